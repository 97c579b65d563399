package resolve

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

func listed(t *testing.T) *Engine {
	t.Helper()
	e := New(0)
	b := Batch{}
	for _, name := range []string{"a", "b"} {
		b.Namespaces = append(b.Namespaces, policy.Namespace{Name: name, Labels: map[string]string{"name": name}})
		for i := range 3 {
			b.Endpoints = append(b.Endpoints, &policy.Endpoint{
				Namespace:   name,
				Name:        fmt.Sprintf("p%d", i),
				UID:         fmt.Sprint(name, i),
				Labels:      map[string]string{"app": fmt.Sprint(i % 2)},
				Node:        "n",
				HostNetwork: i == 2,
				Addresses:   []netip.Addr{netip.AddrFrom4([4]byte{10, name[0], 0, byte(i)})},
			})
		}
		b.Policies = append(b.Policies, &policy.Policy{Namespace: name, Name: "all", IsolatesIngress: true})
	}
	e.Apply(b)
	return e
}

func TestWorldOfNamespace_IsThatPartOfTheWorld(t *testing.T) {
	e := listed(t)
	want := e.World()
	want.Namespaces = slices.DeleteFunc(want.Namespaces, func(ns policy.Namespace) bool { return ns.Name != "b" })
	want.Endpoints = slices.DeleteFunc(want.Endpoints, func(p *policy.Endpoint) bool { return p.Namespace != "b" })
	want.Policies = slices.DeleteFunc(want.Policies, func(p *policy.Policy) bool { return p.Namespace != "b" })
	got := e.WorldOfNamespace("b")
	if SortWorld(got); !reflect.DeepEqual(got, want) || len(got.Endpoints) != 3 {
		t.Errorf("%+v, want\n%+v", got, want)
	}
	if got := e.WorldOfNamespace("none"); len(got.Namespaces)+len(got.Endpoints)+len(got.Policies) != 0 {
		t.Errorf("%+v", got)
	}
}

func TestSnapshot_ReadsWhatHasChanged(t *testing.T) {
	e := listed(t)
	if w := e.Snapshot(5); w != nil {
		t.Errorf("%+v after 5 of 6 endpoints", w)
	}
	first := e.Snapshot(5)
	if SortWorld(first); len(first.Endpoints) != 6 || len(first.Policies) != 2 || len(first.Namespaces) != 2 {
		t.Errorf("%+v", first)
	}
	e.Apply(Batch{DeletedEndpoints: []string{"a/p1"}})
	if len(e.snapshot.stale) != 1 {
		t.Errorf("%d endpoints are to be read after one was deleted", len(e.snapshot.stale))
	}
	got := e.Snapshot(1)
	if SortWorld(got); len(got.Endpoints) != 5 || len(first.Endpoints) != 6 {
		t.Errorf("%+v; before:\n%+v", got, first)
	}
}

func TestSummaries_CountPodsAndEndAtTheirBudget(t *testing.T) {
	e := listed(t)
	ids := append(e.PolicyIDs(""), "b/none")
	slices.Sort(ids)
	list, looked := e.Summaries(ids, 1000)
	if looked != 3 || len(list) != 2 || list[1].Policy.ID() != "b/all" || list[1].Pods != 2 || !slices.Equal(list[1].Extent.Nodes, []string{"n"}) {
		t.Errorf("%d, %+v", looked, list)
	}
	if list, looked := e.Summaries(ids, 1); looked != 1 || len(list) != 1 {
		t.Errorf("%d, %+v", looked, list)
	}
	if got := e.PolicyIDs("b"); len(got) != 1 {
		t.Errorf("%q", got)
	}
}
