package lint

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// crowded has pods of 20 kinds in one namespace, and a policy of n rules with a port each.
func crowded(n int) *Cluster {
	w := &policy.World{Namespaces: []policy.Namespace{{Name: "shop"}}}
	for i := range 50 {
		w.Endpoints = append(w.Endpoints, &policy.Endpoint{
			Namespace: "shop",
			Name:      fmt.Sprintf("p%d", i),
			Labels:    map[string]string{"app": fmt.Sprint(i % 20)},
			Node:      "n",
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})},
		})
	}
	p := ingress("p", selector())
	for i := range n {
		p.Ingress = append(p.Ingress, on(from(), port(policy.TCP, uint16(1+2*i), uint16(1+2*i))))
	}
	w.Policies = []*policy.Policy{p}
	return &Cluster{World: w}
}

func TestCheck_ManyRulesCostWhatTheyAre(t *testing.T) {
	for n, wantCompared := range map[int]bool{1000: true, 16_500: false} {
		c := crowded(n)
		c.most = 2_000_000
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		list, err := CheckWithin(t.Context(), c)
		runtime.ReadMemStats(&after)
		took := (after.TotalAlloc - before.TotalAlloc) >> 20
		if compared := len(only(list, NotCompared)) == 0; err != nil || took > 64 || compared != wantCompared {
			t.Errorf("%d rules: %d findings, compared %v, %d MiB allocated, %v", n, len(list), compared, took, err)
		}
	}
}

func TestCheck_EndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if list, err := CheckWithin(ctx, crowded(10)); !errors.Is(err, context.Canceled) || list != nil {
		t.Errorf("%v, %v", list, err)
	}
}

// What was not looked at is not taken for absent.
func TestCheck_FindsNothingWrongBehindItsBudget(t *testing.T) {
	c := crowded(3)
	c.World.Policies = append(c.World.Policies, ingress("q", selector("app", "1"), from(pods(selector("app", "2")))))
	for steps := range 60 {
		k := newChecker(c)
		k.effort.left = steps
		for _, pol := range c.World.Policies {
			if k.effort.step(1) {
				k.policy(pol)
			}
		}
		if list := only(k.findings, NobodyIsolated, NobodyAtPeer, NoNamespaceAtPeer, NoDNS); len(list) > 0 {
			t.Errorf("%d steps: %+v", steps, list)
		}
	}
}
