package query

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/budget"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// frontends are Services as nodes get them.
type frontends struct {
	all     []budget.Served
	unknown bool
}

func (f *frontends) All() ([]budget.Served, bool) { return f.all, !f.unknown }

func (f *frontends) Get(id string) (budget.Served, bool) {
	i := slices.IndexFunc(f.all, func(s budget.Served) bool { return s.Service.ID() == id })
	if i < 0 {
		return budget.Served{}, !f.unknown
	}
	return f.all[i], !f.unknown
}

func (f *frontends) Zone(node string) string { return map[string]string{"node1": "west"}[node] }

func withFrontends(t *testing.T) (*place, *frontends) {
	t.Helper()
	p := twoNodes(t)
	web := &service.Service{
		Namespace:     "shop",
		Name:          "web",
		Type:          "ClusterIP",
		ClusterIPs:    []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports:         []service.Port{{Protocol: policy.TCP, Port: 80}},
		InternalLocal: true,
	}
	slice := &service.Slice{
		Namespace: "shop",
		Name:      "web-1",
		Service:   "web",
		Ports:     []service.SlicePort{{Protocol: policy.TCP, Port: 8080}},
		Endpoints: []service.Endpoint{
			{Address: netip.MustParseAddr("10.0.0.2"), Pod: "shop/db", Node: "node1", Ready: true, Serving: true},
			{Address: netip.MustParseAddr("10.0.0.9"), Node: "node3", Terminating: true},
		},
	}
	f := &frontends{all: []budget.Served{
		{Service: &service.Service{Namespace: "other", Name: "db", Unserved: "headless"}},
		{Service: web, Slices: []*service.Slice{slice}},
	}}
	p.cfg.Frontends = f
	return p, f
}

func TestFrontends_List(t *testing.T) {
	p, _ := withFrontends(t)
	list, err := asked[[]inspect.ServedService](p, inspect.Question{Kind: inspect.AskFrontends})
	if err != nil || len(list) != 2 || list[0].Unserved == "" || list[1].FrontendCount != 1 || list[1].ReadyCount != 1 ||
		list[1].EndpointCount != 2 || list[1].Frontends != nil {
		t.Errorf("%+v, %v", list, err)
	}
	list, err = asked[[]inspect.ServedService](p, inspect.Question{Kind: inspect.AskFrontends, Namespace: "shop"})
	if err != nil || len(list) != 1 || list[0].Name != "web" {
		t.Errorf("of a namespace: %+v, %v", list, err)
	}
}

// TestFrontends_OfOne: without a place, and as pods of nodes use it.
func TestFrontends_OfOne(t *testing.T) {
	p, _ := withFrontends(t)
	for node, want := range map[string]string{"": "", "node1": "translated", "node2": "dropped"} {
		q := inspect.Question{Kind: inspect.AskFrontends, ID: "shop/web", Node: node}
		list, err := asked[[]inspect.ServedService](p, q)
		if err != nil || len(list) != 1 || len(list[0].Endpoints) != 2 || list[0].Frontends[0].Outcome != want {
			t.Fatalf("%q: %+v, %v", node, list, err)
		}
		if at := list[0].At; (at == nil) != (node == "") || at != nil && (at.Node != node || at.Holds != nil) {
			t.Errorf("%q: at %+v", node, at)
		}
		if node == "node1" && list[0].At.Zone != "west" {
			t.Errorf("the zone is %q", list[0].At.Zone)
		}
	}
}

// TestFrontends_OfTheNode: the node is queried for what it holds.
func TestFrontends_OfTheNode(t *testing.T) {
	p, _ := withFrontends(t)
	held := inspect.NodeService{
		Service: &inspect.ServedService{Namespace: "shop", Name: "web"},
		Holds:   inspect.NodeServices{Services: 3, Endpoints: 4},
	}
	p.nodes.answers["node1"] = func(q inspect.NodeQuery) any {
		if q.Kind != inspect.QueryService || q.Service != "shop/web" {
			return inspect.NodeService{Holds: held.Holds}
		}
		return held
	}
	q := inspect.Question{Kind: inspect.AskFrontends, ID: "shop/web", Node: "node1", FromNode: true}
	list, err := asked[[]inspect.ServedService](p, q)
	if err != nil || len(list) != 1 || list[0].At == nil || list[0].At.Node != "node1" || list[0].At.Holds.Services != 3 {
		t.Errorf("%+v, %v", list, err)
	}
	q.ID = "shop/none"
	if _, err := asked[[]inspect.ServedService](p, q); status.Code(err) != codes.NotFound {
		t.Errorf("a Service that the node does not hold: %v", err)
	}
}

func TestFrontends_Refused(t *testing.T) {
	p, f := withFrontends(t)
	p.nodes.answers["node1"] = errors.New("it is away")
	p.nodes.answers["node2"] = "nonsense"
	one := func(change func(*inspect.Question)) inspect.Question {
		q := inspect.Question{Kind: inspect.AskFrontends, ID: "shop/web", Node: "node1", FromNode: true}
		change(&q)
		return q
	}
	for name, c := range map[string]struct {
		q    inspect.Question
		want codes.Code
	}{
		"no such Service":    {one(func(q *inspect.Question) { q.ID, q.Node, q.FromNode = "shop/none", "", false }), codes.NotFound},
		"no such node":       {one(func(q *inspect.Question) { q.Node = "node9" }), codes.NotFound},
		"of which node":      {one(func(q *inspect.Question) { q.Node = "" }), codes.InvalidArgument},
		"node away":          {one(func(*inspect.Question) {}), codes.Unavailable},
		"node without sense": {one(func(q *inspect.Question) { q.Node = "node2" }), codes.Unavailable},
	} {
		if _, err := asked[[]inspect.ServedService](p, c.q); status.Code(err) != c.want {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	f.unknown = true
	for _, id := range []string{"", "shop/web"} {
		_, err := asked[[]inspect.ServedService](p, inspect.Question{Kind: inspect.AskFrontends, ID: id})
		if status.Code(err) != codes.Unavailable {
			t.Errorf("before Services are known: %v", err)
		}
	}
	p.cfg.Frontends = nil
	if _, err := asked[[]inspect.ServedService](p, one(func(*inspect.Question) {})); status.Code(err) != codes.Unimplemented {
		t.Errorf("without Services: %v", err)
	}
}
