package query

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// TestFrontends_Reports: nodes report what they do with a Service, also one that is away. Their counts are summed up.
func TestFrontends_Reports(t *testing.T) {
	p, _ := withFrontends(t)
	opened := func(n uint64) []inspect.OpenedCount {
		return []inspect.OpenedCount{{
			Address:  netip.MustParseAddr("10.0.0.2"),
			Protocol: policy.TCP,
			Port:     8080,
			Opened:   n,
		}}
	}
	p.nodes.answers["node1"] = func(q inspect.NodeQuery) any {
		if q.Kind != inspect.QueryServiceReport || q.Service != "shop/web" {
			return nil
		}
		return inspect.ServiceReport{
			Node:         "node7", // which it is not
			TranslatedBy: inspect.TranslatedByOVS,
			Held:         true,
			Refused:      []string{"it is so"},
			Opened:       3,
			Endpoints:    opened(3),
		}
	}
	p.nodes.answers["node2"] = inspect.ServiceReport{
		TranslatedBy: inspect.TranslatedByOVS,
		Opened:       4,
		Endpoints:    opened(4),
	}
	q := inspect.Question{Kind: inspect.AskFrontends, ID: "shop/web"}
	list, err := asked[[]inspect.ServedService](p, q)
	if err != nil || len(list) != 1 || len(list[0].Nodes) < 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	s := list[0]
	if n := s.Nodes[0]; n.Node != "node1" || !n.Held || len(n.Refused) != 1 || n.Opened != 3 ||
		s.Nodes[1].Node != "node2" {
		t.Errorf("%+v", s.Nodes)
	}
	if s.Endpoints[0].Opened != 7 || s.Endpoints[1].Opened != 0 {
		t.Errorf("%+v", s.Endpoints)
	}
	q.Node = "node2"
	p.nodes.answers["node2"] = errors.New(`this netplugin knows no query "service-report"`)
	list, err = asked[[]inspect.ServedService](p, q)
	if err != nil || len(list) != 1 || len(list[0].Nodes) != 1 || list[0].Nodes[0].Problem == "" ||
		list[0].Nodes[0].TranslatedBy != "" {
		t.Errorf("an older node: %+v, %v", list, err)
	}
}
