package main

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/explain"
)

// notAttached returns an explanation with a denied end that Flowkeep did not attach.
func notAttached() inspect.Explained {
	x := serviced()
	x.Ways[0].NotEnforced, x.Ways[0].Traces = []string{"shop/db-0"}, nil
	x.Service.Ports = x.Service.Ports[:1]
	return x
}

func TestOutput_PodNotAttached(t *testing.T) {
	b := newBench(t, town())
	b.answers[inspect.AskExplain] = notAttached()
	b.answers[inspect.AskMatrix] = inspect.Matrix{NotEnforced: []string{"shop/db-0"}, Remedy: "recreate it"}
	b.answers[inspect.AskEndpoints] = []inspect.Endpoint{{Namespace: "shop", Name: "db-0", Node: "node1",
		State: "not wired", Remedy: "recreate it"}}
	b.answers[inspect.AskWait] = inspect.Wait{Namespace: "shop", Name: "db", Generation: 1, Nodes: []inspect.PolicyNode{
		{Name: "node1", State: "partial", Reason: "shop/db-0 is not wired by Flowkeep", Errors: []string{"table is full"}}}}
	for command, want := range map[string][]string{
		"explain shop/web-0 svc/shop/db": {
			": policies deny it; shop/db-0 is not wired by Flowkeep, its side is not enforced\n  BACKEND",
			"policies deny it (1)",
			": policies deny it; shop/db-0 is not wired by Flowkeep, its side is not enforced\n",
			"ingress  NOT ENFORCED: shop/db-0 is isolated by shop/db",
		},
		"matrix": {
			"not wired by Flowkeep, their side of each cell is not enforced: shop/db-0: recreate it\n",
		},
		"endpoint show shop/db-0": {"shop/db-0 on node1, not wired\nrecreate it\naddresses"},
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
	if !errors.Is(outcome(&x), errDenied) {
		t.Error("a denial that is not enforced has exit code 0")
	}
}

func TestServiceVerdict(t *testing.T) {
	end := func(id, node string) explain.End {
		return explain.End{Kind: explain.Pod, Pods: []string{id}, Node: node}
	}
	way := func(to explain.End, allowed bool) inspect.Way {
		w := inspect.Way{}
		w.To, w.Allowed, w.Egress.Allowed, w.Ingress.Allowed = to, allowed, true, allowed
		return w
	}
	denied, allowed := way(end("a/d", "n1"), false), way(end("a/a", "n2"), true)
	open, unproved, silent := denied, denied, allowed
	open.NotEnforced, unproved.Unproved = []string{"a/d"}, true
	silent.NotProved = []inspect.NoProof{{Node: "n2"}}
	const notWired = "a/d is not wired by Flowkeep, its side is not enforced"
	const noAnswer = "no switch proves it, n2 does not answer"
	for name, c := range map[string]struct {
		ways []inspect.Way
		want string
	}{
		"allowed": {[]inspect.Way{allowed}, "ALLOWED"},
		"denied":  {[]inspect.Way{denied}, "DENIED"},
		"both":    {[]inspect.Way{allowed, denied}, "ALLOWED to 1 of 2 backends, DENIED to the others"},
		"not enforced at one": {[]inspect.Way{allowed, open},
			"policies allow 1 of 2 backends and deny the others; " + notWired},
		"not proved":       {[]inspect.Way{unproved, unproved}, "policies deny it; not proved"},
		"a node is silent": {[]inspect.Way{silent}, "policies allow it; " + noAnswer},
		"several caveats": {[]inspect.Way{silent, open, unproved}, "policies allow 1 of 3 backends and deny the " +
			"others; " + noAnswer + "; " + notWired + "; and for 1 more reason"},
	} {
		t.Run(name, func(t *testing.T) {
			p := inspect.ServicePort{Backends: []inspect.Backend{{Way: -1, Unused: "gets no packets"}}}
			for i := range c.ways {
				p.Backends = append(p.Backends, inspect.Backend{Way: i, Allowed: c.ways[i].Allowed})
			}
			if got := serviceVerdict(&p, c.ways); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
