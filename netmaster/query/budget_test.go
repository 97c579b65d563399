package query

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// crowd has policies of many rules that isolate the same pod.
func crowd(policies, rules int) *resolve.Engine {
	e := resolve.New(0)
	b := resolve.Batch{Namespaces: []policy.Namespace{{Name: "crowd"}}}
	for i := range 2 {
		b.Endpoints = append(b.Endpoints, &policy.Endpoint{
			Namespace: "crowd",
			Name:      fmt.Sprintf("p%d", i),
			UID:       fmt.Sprint(i),
			Node:      "node1",
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 9, 0, byte(i)})},
		})
	}
	for i := range policies {
		p := &policy.Policy{Namespace: "crowd", Name: fmt.Sprintf("p%d", i), IsolatesIngress: true}
		for k := range rules {
			p.Ingress = append(p.Ingress, policy.PolicyRule{AnyPeer: true, Ports: []policy.PolicyPort{{Protocol: policy.TCP, First: uint16(k), Last: uint16(k)}}})
		}
		b.Policies = append(b.Policies, p)
	}
	e.Apply(b)
	return e
}

type owns struct{ e *resolve.Engine }

// Do does not look at the context, so that what comes after it has to.
func (o owns) Do(_ context.Context, f func(*resolve.Engine)) error {
	f(o.e)
	return nil
}

func TestAnalyses_EndWithTheirContextAndBudget(t *testing.T) {
	p := newPlace(t)
	to := inspect.Target{Name: "crowd/p1", Port: "80"}
	explain := inspect.Question{Kind: inspect.AskExplain, From: "crowd/p0", To: &to, Unproved: true}
	p.cfg.Owner = owns{crowd(26, 2000)}
	if _, err := p.packets.explain(t.Context(), &explain); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("explain: %v", err)
	}
	p.cfg.Owner = owns{crowd(2, 100)}
	if _, err := p.packets.explain(t.Context(), &explain); err != nil {
		t.Errorf("explain: %v", err)
	}
	explain.To = &inspect.Target{Name: "crowd/p1", Port: "81"} // of the first the verdicts are cached
	over, end := context.WithCancel(t.Context())
	end()
	for kind, f := range map[string]func(context.Context, *inspect.Question) (any, error){
		"lint": p.policies.lint, "matrix": p.policies.matrix, "explain": p.packets.explain,
	} {
		if _, err := f(over, &explain); err == nil {
			t.Errorf("%s goes on without a context", kind)
		}
	}
}

// TestAnalyses_FewAtOnce: each analysis may take the memory of whatif.DefaultBounds.
func TestAnalyses_FewAtOnce(t *testing.T) {
	p := newPlace(t)
	analyses := map[string]func(context.Context) error{
		"matrix": func(ctx context.Context) error {
			_, err := p.policies.matrix(ctx, &inspect.Question{})
			return err
		},
		"lint": func(ctx context.Context) error {
			_, err := p.policies.lint(ctx, &inspect.Question{})
			return err
		},
		"unused": func(ctx context.Context) error {
			return (&trafficQueries{sources: p.sources}).explainUnused(ctx, "", []inspect.UnusedRule{{}})
		},
	}
	var leave []func()
	for range 2 {
		one, err := p.policies.whatif.Enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		leave = append(leave, one)
	}
	over, end := context.WithCancel(t.Context())
	end()
	for name, f := range analyses {
		if err := f(over); err == nil || !strings.Contains(err.Error(), "busy with other analyses") {
			t.Errorf("%s as the third analysis: %v", name, err)
		}
	}
	for _, f := range leave {
		f()
	}
	for name, f := range analyses {
		for range 3 { // each leaves its place
			if err := f(t.Context()); err != nil {
				t.Errorf("%s alone: %v", name, err)
			}
		}
	}
}
