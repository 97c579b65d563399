package agent

import (
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// segmentNode is the node of a number in a segment of a number.
func segmentNode(segment, number byte) policy.NodeInfo {
	address := netip.AddrFrom4([4]byte{192, 0, segment, number})
	onLink, _ := address.Prefix(24)
	return policy.NodeInfo{
		Name:      "node" + string('0'+rune(number)),
		Addresses: []netip.Addr{address},
		PodCIDRs:  []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, number, 0}), 24)},
		Links:     &policy.Links{OnLink: []netip.Prefix{onLink}},
	}
}

var (
	onlyRoute  = hostnet.PeerWay{Routed: true, Bare: true, Closed: true}
	onlyTunnel = hostnet.PeerWay{}
)

func TestWays_RestoredAreSettled(t *testing.T) {
	w := settledWays("node1", []policy.NodeInfo{segmentNode(2, 1), segmentNode(2, 2), segmentNode(3, 3)})
	want := map[string]hostnet.PeerWay{"node2": onlyRoute, "node3": onlyTunnel}
	if got := w.at(time.Now()); !maps.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	if d := w.due(time.Now(), time.Hour); d != time.Hour {
		t.Errorf("a change is due in %s", d)
	}
}

// TestWays_CountOfAChange: the metric counts a way as changing for as long as its flows change.
func TestWays_CountOfAChange(t *testing.T) {
	near := []policy.NodeInfo{segmentNode(2, 1), segmentNode(2, 2), segmentNode(3, 3)}
	began := time.Unix(1000, 0)
	w := settledWays("node1", near[:1]).updated("node1", near, began)
	for after, want := range map[time.Duration]map[string]int{
		0:                            {"route": 0, "geneve": 1, "changing": 1},
		waySendAfter:                 {"route": 0, "geneve": 1, "changing": 1},
		wayCloseAfter - time.Second:  {"route": 0, "geneve": 1, "changing": 1},
		wayCloseAfter:                {"route": 1, "geneve": 1, "changing": 0},
		wayCloseAfter + 24*time.Hour: {"route": 1, "geneve": 1, "changing": 0},
	} {
		if got := w.count(began.Add(after)); !maps.Equal(got, want) {
			t.Errorf("after %s: %v, want %v", after, got, want)
		}
	}
}

// TestWays_BothEndsMeet changes the way at two nodes at times that differ by what the feed may take. At every moment
// what one sends the other accepts, and in the end only by the new way.
func TestWays_BothEndsMeet(t *testing.T) {
	near := []policy.NodeInfo{segmentNode(2, 1), segmentNode(2, 2)}
	far := []policy.NodeInfo{near[0], segmentNode(3, 2)}
	for name, c := range map[string]struct {
		before, after []policy.NodeInfo
		want          hostnet.PeerWay
	}{
		"to a route":  {far, near, onlyRoute},
		"to a tunnel": {near, far, onlyTunnel},
		"new node":    {near[:1], near, onlyRoute},
	} {
		for skew := time.Duration(0); skew <= 4*time.Second; skew += 250 * time.Millisecond {
			began := time.Unix(1000, 0)
			one, two := settledWays("node1", c.before), settledWays("node2", c.before)
			for now := began; now.Before(began.Add(30 * time.Second)); now = now.Add(50 * time.Millisecond) {
				if !now.Before(began.Add(skew)) {
					one = one.updated("node1", c.after, now)
				}
				two = two.updated("node2", c.after, now)
				a, known := one.at(now)["node2"]
				b := two.at(now)["node1"]
				if !known { // what one does not know it does not send to, nor accept from
					continue
				}
				if !accepts(b, a.Routed) || !accepts(a, b.Routed) {
					t.Fatalf("%s, %s apart, after %s: %+v and %+v", name, skew, now.Sub(began), a, b)
				}
			}
			end := began.Add(30 * time.Second)
			if a, b := one.at(end)["node2"], two.at(end)["node1"]; a != c.want || b != c.want {
				t.Errorf("%s, %s apart, in the end: %+v and %+v", name, skew, a, b)
			}
		}
	}
}

// TestWays_ChangeTakenBack checks that packets keep the original way while a change is made and reverted, since the
// other end may not have seen the change.
func TestWays_ChangeTakenBack(t *testing.T) {
	near := []policy.NodeInfo{segmentNode(2, 1), segmentNode(2, 2)}
	far := []policy.NodeInfo{near[0], segmentNode(3, 2)}
	now := time.Unix(1000, 0)
	w := settledWays("node1", near).updated("node1", far, now).updated("node1", near, now.Add(time.Second))
	for passed := time.Second; passed < time.Minute; passed += time.Second {
		if at := w.at(now.Add(passed))["node2"]; !at.Routed || !at.Bare {
			t.Fatalf("after %s: %+v", passed, at)
		}
	}
	if at := w.at(now.Add(time.Minute))["node2"]; at != onlyRoute {
		t.Errorf("in the end: %+v", at)
	}
}

func accepts(w hostnet.PeerWay, routed bool) bool {
	if routed {
		return w.Bare
	}
	return !w.Closed
}

func TestWays_DueAtEachChange(t *testing.T) {
	now := time.Unix(1000, 0)
	w := settledWays("node1", []policy.NodeInfo{segmentNode(2, 1), segmentNode(3, 2)}).
		updated("node1", []policy.NodeInfo{segmentNode(2, 1), segmentNode(2, 2)}, now)
	for _, c := range []struct {
		passed time.Duration
		due    time.Duration
	}{
		{0, waySendAfter},
		{waySendAfter, wayCloseAfter - waySendAfter},
		{wayCloseAfter, time.Hour},
	} {
		if got := w.due(now.Add(c.passed), time.Hour); got != c.due {
			t.Errorf("after %s: due in %s, want %s", c.passed, got, c.due)
		}
	}
}

// TestSendByBoth never gives packets to a stack that has no route, and accepts whatever either accepts.
func TestSendByBoth(t *testing.T) {
	changing := hostnet.PeerWay{Routed: true, Bare: true}
	for _, c := range []struct{ before, after, want hostnet.PeerWay }{
		{onlyTunnel, onlyTunnel, onlyTunnel},
		{onlyRoute, onlyRoute, onlyRoute},
		{hostnet.PeerWay{Bare: true}, changing, hostnet.PeerWay{Bare: true}},
		{changing, hostnet.PeerWay{Bare: true}, hostnet.PeerWay{Bare: true}},
		{changing, onlyRoute, changing},
		{hostnet.PeerWay{Bare: true}, onlyTunnel, hostnet.PeerWay{Bare: true}},
	} {
		got := sendByBoth(map[string]hostnet.PeerWay{"n": c.before}, map[string]hostnet.PeerWay{"n": c.after})["n"]
		if got != c.want {
			t.Errorf("from %+v to %+v: %+v, want %+v", c.before, c.after, got, c.want)
		}
	}
}

// TestWithoutRoute sends by the tunnel what the stack has no route for, but not to a node that accepts nothing from it.
func TestWithoutRoute(t *testing.T) {
	changing := hostnet.PeerWay{Routed: true, Bare: true}
	for before, want := range map[hostnet.PeerWay]hostnet.PeerWay{
		changing:  {Bare: true},
		onlyRoute: onlyRoute,
	} {
		left := []hostnet.Left{{Node: "n"}, {Node: "gone"}}
		if got := withoutRoute(map[string]hostnet.PeerWay{"n": before}, left); got["n"] != want || len(got) != 1 {
			t.Errorf("%+v without a route: %+v, want %+v", before, got, want)
		}
	}
}
