package query

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

func TestStatus_Ways(t *testing.T) { synctest.Test(t, testStatusWays) }

func testStatusWays(t *testing.T) {
	p := newPlace(t)
	p.nodes.infos = nil
	for i, name := range []string{"a", "b", "c"} {
		address := netip.AddrFrom4([4]byte{192, 0, byte(2 + i/2), byte(1 + i)})
		onLink, _ := address.Prefix(24)
		p.nodes.infos = append(p.nodes.infos, policy.NodeInfo{
			Name:      name,
			Addresses: []netip.Addr{address},
			PodCIDRs:  []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24)},
			Links:     &policy.Links{OnLink: []netip.Prefix{onLink}},
		})
	}
	for mode, want := range map[string][]inspect.PeerWay{
		"auto": {
			{Peer: "b", Way: "route"},
			{Peer: "c", Way: "geneve", Reason: "192.0.3.3 of node c is not on-link for node a"},
		},
		"route": {
			{Peer: "b", Way: "route", Reason: "traffic mode route"},
			{Peer: "c", Way: "route", Reason: "traffic mode route"},
		},
	} {
		p.nodes.list = []feed.NodeStatus{{Name: "a", TrafficMode: mode}}
		st, err := asked[inspect.Status](p, inspect.Question{Kind: inspect.AskStatus, Node: "a"})
		if err != nil || !slices.Equal(st.Ways, want) {
			t.Errorf("in mode %s: %+v (%v)", mode, st.Ways, err)
		}
	}
	if st, err := asked[inspect.Status](p, inspect.Question{Kind: inspect.AskStatus}); err != nil || st.Ways != nil {
		t.Errorf("without a node: %+v (%v)", st.Ways, err)
	}
	if _, err := asked[inspect.Status](p, inspect.Question{Kind: inspect.AskStatus, Node: "nobody"}); err == nil {
		t.Error("of no node")
	}
}
