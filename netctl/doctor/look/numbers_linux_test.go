package look

import (
	"net"
	"testing"

	"github.com/flowkeep/flowkeep/netctl/doctor"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestRuleOf(t *testing.T) {
	mask := uint32(0xff)
	for name, c := range map[string]struct {
		change func(*netlink.Rule)
		want   doctor.Rule
	}{
		"no selector": {func(*netlink.Rule) {}, doctor.Rule{}},
		"addresses": {func(r *netlink.Rule) {
			r.Src = &net.IPNet{IP: net.IPv4(10, 1, 0, 0).To4(), Mask: net.CIDRMask(16, 32)}
			r.IifName = "fk-gw"
		}, doctor.Rule{Source: "10.1.0.0/16", Interface: "fk-gw"}},
		"a mark":         {func(r *netlink.Rule) { r.Mark, r.Mask = 7, &mask }, doctor.Rule{Mark: 7, Mask: 0xff}},
		"kernel's":       {func(r *netlink.Rule) { r.Protocol = unix.RTPROT_KERNEL }, doctor.Rule{Protocol: 2}},
		"an output link": {func(r *netlink.Rule) { r.OifName = "eth0" }, doctor.Rule{Other: true}},
		"inverted":       {func(r *netlink.Rule) { r.Invert = true }, doctor.Rule{Other: true}},
		"a port":         {func(r *netlink.Rule) { r.Dport = netlink.NewRulePortRange(53, 53) }, doctor.Rule{Other: true}},
		"a protocol":     {func(r *netlink.Rule) { r.IPProto = unix.IPPROTO_TCP }, doctor.Rule{Other: true}},
		"goto":           {func(r *netlink.Rule) { r.Goto = 200 }, doctor.Rule{Next: 200}},
	} {
		r := netlink.NewRule()
		r.Priority, r.Table = 60, 26214
		c.change(r)
		c.want.Priority, c.want.Table = 60, 26214
		if got := ruleOf(r); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
