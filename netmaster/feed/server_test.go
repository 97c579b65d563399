package feed

import (
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// What is told of all nodes goes to all nodes: not if it is what they know.
func TestNodesAreToldOnceOfTheSame(t *testing.T) {
	s := NewServer(Config{})
	c := &conn{infos: make(chan struct{}, 1)}
	s.conns["a"] = c
	one, two := policy.NodeInfo{Name: "a"}, policy.NodeInfo{Name: "b"}
	for i, step := range []struct {
		infos []policy.NodeInfo
		told  bool
	}{
		{[]policy.NodeInfo{one, two}, true},
		{[]policy.NodeInfo{two, one}, false},
		{[]policy.NodeInfo{one}, true},
		{[]policy.NodeInfo{one}, false},
		{nil, true},
	} {
		s.SetNodes(step.infos)
		if told := len(c.infos) > 0; told != step.told {
			t.Errorf("step %d: told %v", i, told)
		}
		m, err := s.tellInfos()
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := s.tellInfos(); again != m {
			t.Errorf("step %d: the message is made a second time", i)
		}
		if step.told {
			<-c.infos
		}
	}
}
