package feed

import (
	"slices"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

func TestForgetGone_KeepsNodesOfTheAPIAndConnectedOnes(t *testing.T) {
	s := NewServer(Config{})
	for _, name := range []string{"api", "connected", "gone", "refused", "span"} {
		s.last[name] = NodeStatus{Name: name, Since: time.Unix(1, 0)}
		s.mirror.view(name)
	}
	s.conns["connected"] = &conn{}
	s.conns["connected"].hello.Node = "connected"
	s.refusals["refused"] = refusal{message: "no"}
	s.mirror.view("span").rules[policy.Key{1}] = struct{}{}
	names := func() (list []string) {
		for _, n := range s.Nodes() {
			list = append(list, n.Name)
		}
		return list
	}
	if s.ForgetGone(); len(names()) != 5 || len(s.last) != 5 {
		t.Errorf("before the API's nodes are known: %q", names())
	}
	s.SetNodes([]policy.NodeInfo{{Name: "api"}})
	if got := names(); !slices.Equal(got, []string{"api", "connected", "refused"}) {
		t.Errorf("%q", got)
	}
	s.ForgetGone()
	if got := names(); !slices.Equal(got, []string{"api", "connected"}) || len(s.last) != 2 || len(s.refusals) != 0 {
		t.Errorf("%q, %d", got, len(s.last))
	}
	if s.mirror.nodes["gone"] != nil || s.mirror.nodes["span"] == nil {
		t.Errorf("%v", s.mirror.nodes)
	}
}
