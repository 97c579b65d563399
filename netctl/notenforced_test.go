package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
)

// notAttached returns an explanation with a denied end that Flowkeep did not attach.
func notAttached() inspect.Explained {
	x := serviced()
	x.Ways[0].NotEnforced, x.Ways[0].Traces = []string{"shop/db-0"}, nil
	x.Service.Ports = x.Service.Ports[:1]
	x.Service.Ports[0].Backends[0].NotEnforced = true
	return x
}

func TestOutput_PodNotAttached(t *testing.T) {
	b := newBench(t, town())
	b.answers[inspect.AskExplain] = notAttached()
	b.answers[inspect.AskMatrix] = inspect.Matrix{NotEnforced: []string{"shop/db-0"}}
	b.answers[inspect.AskWait] = inspect.Wait{Namespace: "shop", Name: "db", Generation: 1, Nodes: []inspect.PolicyNode{
		{Name: "node1", State: "partial", Reason: "shop/db-0 is not wired by Flowkeep", Errors: []string{"table is full"}}}}
	for command, want := range map[string][]string{
		"explain shop/web-0 svc/shop/db": {
			"policies allow 0 of 1 backend and deny the others; not enforced at those not wired by Flowkeep: 1",
			"DENIED (1), not enforced: not wired by Flowkeep",
			": policies deny it; shop/db-0 is not wired by Flowkeep, its side is not enforced\n",
			"ingress  NOT ENFORCED: shop/db-0 is isolated by shop/db",
		},
		"matrix": {"not wired by Flowkeep, their side of each cell is not enforced: shop/db-0\n"},
		"policy wait shop/db --timeout 1ms": {"node1  partial  shop/db-0 is not wired by Flowkeep; table is full",
			"node1 partial"},
	} {
		t.Run(command, func(t *testing.T) {
			out, errOut, code := b.run(strings.Fields(command)...)
			for _, text := range want {
				if !strings.Contains(out+errOut, text) {
					t.Errorf("exit code %d, without %q:\n%s%s", code, text, out, errOut)
				}
			}
		})
	}
}

func TestOutcome_PodNotAttached(t *testing.T) {
	x := explained(netip.MustParseAddr("10.244.1.3"), netip.MustParseAddr("10.244.1.2"))
	x.Ways[0].Disagreements, x.Ways[0].NotEnforced = nil, []string{"shop/db-0"}
	if outcome(&x) != errDenied {
		t.Error("a denial that is not enforced has exit code 0")
	}
}
