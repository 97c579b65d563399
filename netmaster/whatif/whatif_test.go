package whatif

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netmaster/resolve/workload"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// owner runs functions at once, and measures the longest.
type owner struct {
	e    *resolve.Engine
	held time.Duration
}

func (o *owner) Do(ctx context.Context, f func(*resolve.Engine)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	began := time.Now()
	f(o.e)
	o.held = max(o.held, time.Since(began))
	return nil
}

func in(key, value string) policy.Selector {
	return policy.Selector{Requirements: []policy.Requirement{{Key: key, Operator: policy.In, Values: []string{value}}}}
}

// twoTenants has a namespace evil, and a namespace bank of which these pods and policies are.
func twoTenants(pods []string, policies []*policy.Policy) *resolve.Engine {
	e := resolve.New(0)
	b := resolve.Batch{Policies: policies}
	for _, name := range []string{"evil", "bank"} {
		b.Namespaces = append(b.Namespaces, policy.Namespace{Name: name, Labels: map[string]string{"name": name}})
	}
	add := func(namespace, name, tier string) {
		b.Endpoints = append(b.Endpoints, &policy.Endpoint{
			Namespace: namespace,
			Name:      name,
			UID:       namespace + name,
			Labels:    map[string]string{"tier": tier, "name": name},
			Node:      "n",
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(len(b.Endpoints) + 1)})},
		})
	}
	add("evil", "p", "x")
	add("evil", "q", "y")
	for _, name := range pods {
		add("bank", name, "secret-"+name)
	}
	e.Apply(b)
	return e
}

// What a comparison within a namespace returns does not depend on any other.
func TestDiff_WithinANamespaceDependsOnNoOther(t *testing.T) {
	block := policy.Peer{Block: &policy.IPBlock{CIDR: netip.MustParsePrefix("203.0.113.0/24")}}
	tier := in("tier", "x")
	bank := []*policy.Policy{{
		Namespace:      "bank",
		Name:           "vault",
		AppliedTo:      in("name", "vault-0"),
		IsolatesEgress: true,
		Egress:         []policy.PolicyRule{{Peers: []policy.Peer{block, {Pods: &tier}}, AnyPort: true}},
	}}
	worlds := []*resolve.Engine{twoTenants(nil, nil), twoTenants([]string{"ledger-0", "vault-0"}, bank), twoTenants([]string{"vault-0"}, nil)}
	every, named := policy.Selector{}, in("name", "bank")
	secret := policy.Selector{Requirements: []policy.Requirement{{Key: "tier", Operator: policy.NotIn, Values: []string{"secret-vault-0"}}}}
	for i, rules := range [][]policy.PolicyRule{
		nil,
		{{Peers: []policy.Peer{{Namespaces: &named, Pods: &secret}}, AnyPort: true}},
		{{Peers: []policy.Peer{{Namespaces: &every}}, AnyPort: true}},
		{{Peers: []policy.Peer{block}, AnyPort: true}},
	} {
		p := &policy.Policy{Namespace: "evil", Name: "p", IsolatesIngress: true, IsolatesEgress: true, Ingress: rules, Egress: rules}
		var texts []string
		for _, e := range worlds {
			d, err := New(&owner{e: e}, nil, policy.DefaultBudgets).Diff(t.Context(), Request{Attempts: []explain.Attempt{{Policy: p}}, Namespace: "evil"})
			if err != nil {
				t.Fatal(err)
			}
			d.Revision = 0
			text, _ := json.Marshal(d)
			texts = append(texts, string(text))
		}
		if len(slices.Compact(texts)) != 1 || strings.Contains(texts[0], "bank") || !strings.Contains(texts[0], "evil/p") {
			t.Errorf("%d: %q", i, texts)
		}
	}
}

// One small policy in a cluster of 20,000 pods and 2,000 policies, a fifth of the workload.
func TestDiff_OfASmallPolicyInALargeClusterIsSmall(t *testing.T) {
	e := resolve.New(0)
	b := workload.Cluster().Batch
	b.Namespaces, b.Endpoints, b.Policies = b.Namespaces[:200], b.Endpoints[:20_000], b.Policies[:2000]
	e.Apply(b)
	ns := b.Namespaces[7].Name
	o := &owner{e: e}
	app := in("app", "1")
	p := &policy.Policy{Namespace: ns, Name: "p", AppliedTo: app, IsolatesIngress: true, Ingress: []policy.PolicyRule{{AnyPort: true, Peers: []policy.Peer{{Pods: &app}}}}}
	runtime.GC()
	for _, r := range []Request{
		{Namespace: ns, Bounds: explain.Bounds{Steps: 1_000_000, Bytes: 1 << 20}},
		{Bounds: explain.Bounds{Steps: 4_000_000, Bytes: 10 << 20}},
	} {
		r.Attempts = []explain.Attempt{{Policy: p}}
		o.held = 0
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := time.Now()
		_, err := New(o, nil, policy.DefaultBudgets).Diff(t.Context(), r)
		took := time.Since(began)
		runtime.ReadMemStats(&after)
		allocated := (after.TotalAlloc - before.TotalAlloc) >> 20
		t.Logf("namespace %q: %s, %d MiB allocated, owner held %s", r.Namespace, took, allocated, o.held)
		if err != nil || allocated > 40 || r.Namespace != "" && allocated > 8 {
			t.Errorf("namespace %q: %v, %d MiB allocated", r.Namespace, err, allocated)
		}
	}
}

// TestDiff_Budgets: what exceeds netmaster's budget of a policy is left out of the attempt, and named.
func TestDiff_Budgets(t *testing.T) {
	every := policy.Selector{}
	for _, c := range []struct {
		rules int
		want  string
	}{{2, ""}, {1, "spec.ingress[1]: over the budget of 1 rules of a policy"}} {
		budgets := policy.DefaultBudgets
		budgets.Policy.Rules = c.rules
		p := &policy.Policy{Namespace: "evil", Name: "p", IsolatesIngress: true}
		for _, peer := range []policy.Peer{{Pods: &policy.Selector{}}, {Namespaces: &every}} {
			p.Ingress = append(p.Ingress, policy.PolicyRule{AnyPort: true, Peers: []policy.Peer{peer}})
		}
		o := &owner{e: twoTenants([]string{"vault-0"}, nil)}
		d, err := New(o, nil, budgets).Diff(t.Context(), Request{Attempts: []explain.Attempt{{Policy: p}}})
		if err != nil || len(d.Policies) != 1 {
			t.Fatalf("%+v: %v", d, err)
		}
		text, _ := json.Marshal(d)
		if c.want == "" == strings.Contains(string(text), "over the budget") || !strings.Contains(string(text), c.want) {
			t.Errorf("with a budget of %d rules the difference is %s", c.rules, text)
		}
	}
}

func TestDiff_EndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	o := &owner{e: twoTenants(nil, nil)}
	p := &policy.Policy{Namespace: "evil", Name: "p", IsolatesIngress: true}
	for i := range 500 {
		p.Ingress = append(p.Ingress, policy.PolicyRule{AnyPeer: true, Ports: []policy.PolicyPort{{Protocol: policy.TCP, First: uint16(2 * i), Last: uint16(2 * i)}}})
	}
	j := New(o, nil, policy.DefaultBudgets)
	if _, err := j.Diff(ctx, Request{Attempts: []explain.Attempt{{Policy: p}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Diff(ctx, Request{Attempts: []explain.Attempt{{Policy: p}}, Bounds: explain.Bounds{Bytes: 1}}); !errors.Is(err, explain.ErrTooMany) {
		t.Error(err)
	}
	cancel()
	for range maxAtWork + 1 {
		if _, err := j.Diff(ctx, Request{Attempts: []explain.Attempt{{Policy: p}}}); !errors.Is(err, context.Canceled) {
			t.Error(fmt.Sprint(err))
		}
	}
}
