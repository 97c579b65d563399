package native

import (
	"net"
	"testing"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"github.com/vishvananda/netlink"
)

// Pods' links are neither shown nor changed, whoever made them; a node's card may be the end of a veth too.
func TestPodsLinksAreLeftAlone(t *testing.T) {
	netns.New(t).Enter(t)
	b := newBench(t, Config{})
	pod := netns.New(t)
	for _, name := range []string{"calixyz", "eth0", "uplink"} {
		veth := &netlink.Veth{LinkAttrs: attrs(name), PeerName: "p" + name, PeerNamespace: netlink.NsFd(pod.FD())}
		if err := netlink.LinkAdd(veth); err != nil {
			t.Fatal(err)
		}
	}
	up, err := netlink.LinkByName("uplink")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(up, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 1), Mask: net.CIDRMask(24, 32)}}); err != nil {
		t.Fatal(err)
	}
	have := b.show()
	for name, want := range map[string]bool{"calixyz": false, "eth0": true, "uplink": true} {
		if _, shown := have.Interface(name); shown != want {
			t.Errorf("%s is shown: %v", name, shown)
		}
	}
	b.refused("interfaces: [{name: calixyz, mtu: 1300}]", "another network namespace")
	b.apply("interfaces: [{name: uplink, mtu: 1400}, {name: eth0, state: up}]")
}

// What is reported and what may be changed follow one rule.
func TestFlowkeepsNamesAreKnownEverywhere(t *testing.T) {
	for _, name := range []string{"fk0", "fk-gw", wellknown.PodLinkPrefix + "12", "ovs-system", "ovs-netdev", "genev_sys_6081"} {
		if !nmstate.OfFlowkeep(name, "fk0") || (Own{Bridge: "fk0"}).why(name) == "" {
			t.Errorf("%s is not known as Flowkeep's", name)
		}
	}
}
