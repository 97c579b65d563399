package server

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

func linksOf(prefixes ...string) *policy.Links {
	l := new(policy.Links)
	for _, p := range prefixes {
		l.OnLink = append(l.OnLink, netip.MustParsePrefix(p))
	}
	return l
}

// knows reports whether a node holds these links of another one.
func (n *node) knows(of, want string) func() bool {
	return n.is(func() bool {
		for _, info := range n.infos {
			if info.Name == of {
				return (info.Links == nil && want == "unknown") || info.Links != nil && fmt.Sprint(info.Links.OnLink) == want
			}
		}
		return false
	})
}

// Nodes receive of each other the segments in which a node has an address of its own: one cannot claim a segment in
// which it has none. What a node has not announced since netmaster started is unknown; one that never does has none.
func TestLinks_NodesReceiveWhatIsGranted(t *testing.T) {
	w := shopWithCIDRs(t)
	m := w.start(needPodCIDRs)
	n1, n2 := held(m, "node1"), w.node("node2")
	until(t, "a node without links has none", n1.knows("node1", "[]"))
	until(t, "the other one's are unknown", n1.knows("node2", "unknown"))
	n2.links = linksOf("192.0.2.0/24", "198.51.100.0/24", "0.0.0.0/0")
	n2.connect(m)
	until(t, "links of the hello", n1.knows("node2", "[192.0.2.0/24]"))
	n2.say(wire.FromLinks(linksOf("192.0.2.0/25", "10.0.0.0/8")))
	until(t, "links that changed", n1.knows("node2", "[192.0.2.0/25]"))
	if way := policy.WayBetween(&n1.infos[0], &n1.infos[1]); way != policy.WayGeneve {
		t.Errorf("%s to a node without links", way)
	}
	n2.say(wire.FromLinks(linksOf()))
	until(t, "no links any more", n1.knows("node2", "[]"))
	m.stop()
	m = w.start(needPodCIDRs)
	n1.comeBack(m)
	until(t, "after a restart they are unknown", n1.knows("node2", "unknown"))
}
