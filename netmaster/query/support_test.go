package query

import (
	"errors"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/process"
)

func TestSupport(t *testing.T) {
	p := newPlace(t)
	ring := process.NewRing(1000)
	_, _ = ring.Write([]byte("a line\n"))
	p.cfg.Self = &process.Self{Log: ring, Gatherer: process.NewRegistry("netmaster"), Flags: map[string]string{"listen": ":7443"}}
	own, err := asked[inspect.Support](p, inspect.Question{Kind: inspect.AskSupport})
	if err != nil || own.Program != "netmaster" || own.Log != "a line\n" || own.Flags["listen"] != ":7443" || !strings.Contains(own.Metrics, "flowkeep_build_info") {
		t.Errorf("%+v, %v", own, err)
	}
	p.nodes.answers["node1"], p.nodes.answers["node2"] = inspect.Support{Program: "netplugin", Log: "its line"}, errors.New("node node2 is not connected")
	if node, err := asked[inspect.Support](p, inspect.Question{Kind: inspect.AskSupport, Node: "node1"}); err != nil || node.Log != "its line" {
		t.Errorf("%+v, %v", node, err)
	}
	if _, err := asked[inspect.Support](p, inspect.Question{Kind: inspect.AskSupport, Node: "node2"}); err == nil || !strings.Contains(err.Error(), "not connected") {
		t.Error(err)
	}
	for _, c := range []struct {
		q     inspect.Question
		rules bool
	}{{inspect.Question{Kind: inspect.AskPolicies}, false}, {inspect.Question{Kind: inspect.AskPolicies, Rules: true}, true}} {
		list, err := asked[[]inspect.Policy](p, c.q)
		if err != nil || len(list) == 0 || (len(list[0].Rules) > 0) != c.rules {
			t.Errorf("%+v: %+v, %v", c.q, list, err)
		}
	}
}
