package native

import (
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// TestReadRoute_LeavesOutTunnels: a route with an encapsulation, or with a next hop of another family, is not in the
// model. Without that part it would be another route, which node state could replace. netlink.RouteListFilteredIter
// returns such routes without their encapsulation.
func TestReadRoute_LeavesOutTunnels(t *testing.T) {
	encap := []*nl.RtAttr{
		nl.NewRtAttr(unix.RTA_ENCAP_TYPE, nl.Uint16Attr(unix.LWTUNNEL_ENCAP_IP)),
		nl.NewRtAttr(unix.RTA_ENCAP|unix.NLA_F_NESTED, []byte{12, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 5}),
	}
	hopOf := func(attrs ...*nl.RtAttr) *nl.RtAttr {
		var children []nl.NetlinkRequestData
		for _, a := range attrs {
			children = append(children, a)
		}
		next := nl.RtNexthop{RtNexthop: unix.RtNexthop{Ifindex: 7}, Children: children}
		return nl.NewRtAttr(unix.RTA_MULTIPATH, next.Serialize())
	}
	gateway := nl.NewRtAttr(unix.RTA_GATEWAY, []byte{192, 0, 2, 9})
	via := nl.NewRtAttr(unix.RTA_VIA, append([]byte{unix.AF_INET6, 0}, make([]byte, 16)...))
	for name, c := range map[string]struct {
		attrs []*nl.RtAttr
		want  bool
	}{
		"next hop":                     {[]*nl.RtAttr{gateway}, true},
		"several next hops":            {[]*nl.RtAttr{hopOf(gateway)}, true},
		"encapsulation":                {append(encap, gateway), false},
		"encapsulation of a next hop":  {[]*nl.RtAttr{hopOf(append(encap, gateway)...)}, false},
		"next hop of IPv6":             {[]*nl.RtAttr{via}, false},
		"one of several hops, of IPv6": {[]*nl.RtAttr{hopOf(via)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			msg := nl.RtMsg{RtMsg: unix.RtMsg{
				Family: unix.AF_INET, Dst_len: 24, Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST,
			}}
			m := append(msg.Serialize(), nl.NewRtAttr(unix.RTA_DST, []byte{198, 18, 0, 0}).Serialize()...)
			for _, a := range c.attrs {
				m = append(m, a.Serialize()...)
			}
			r, ok, err := readRoute(m, func(int) string { return "eth0" })
			if ok != c.want || err != nil {
				t.Errorf("%+v, %t, %v; want %t", r, ok, err, c.want)
			}
		})
	}
}
