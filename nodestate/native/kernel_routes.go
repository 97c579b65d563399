package native

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// routes of all tables but the local one; with what a route may have that is not in the model it is left out, and nobody touches it.
func routes(byIndex map[int]*seen) ([]route, error) {
	list, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, err
	}
	out := make([]route, 0, len(list))
	for _, r := range list {
		if one, ok := routeOf(&r, byIndex); ok {
			out = append(out, one)
		}
	}
	return out, nil
}

var routeTypes = map[int]string{unix.RTN_UNICAST: "", unix.RTN_BLACKHOLE: "blackhole", unix.RTN_UNREACHABLE: "unreachable", unix.RTN_PROHIBIT: "prohibit"}

func routeOf(r *netlink.Route, byIndex map[int]*seen) (out route, ok bool) {
	kind, known := routeTypes[r.Type]
	if !known || r.Table == unix.RT_TABLE_LOCAL || r.Encap != nil || r.Via != nil || r.MPLSDst != nil || r.Family == netlink.FAMILY_MPLS {
		return out, false
	}
	nameOf := func(index int) string {
		if s := byIndex[index]; s != nil {
			return s.link.Name
		}
		return ""
	}
	out = route{
		Dst: dstOf(r), Table: r.Table, Metric: r.Priority, Type: kind, Via: addrOf(r.Gw), Source: addrOf(r.Src), Protocol: int(r.Protocol),
		Scope: int(r.Scope), TOS: r.Tos, MTU: r.MTU, AdvMSS: r.AdvMSS, Window: r.Window, InitCwnd: r.InitCwnd, InitRwnd: r.InitRwnd,
		OnLink: r.Flags&int(netlink.FLAG_ONLINK) != 0,
	}
	if kind == "" {
		out.Link = nameOf(r.LinkIndex)
	}
	for _, h := range r.MultiPath {
		out.Link = ""
		out.Hops = append(out.Hops, hop{Link: nameOf(h.LinkIndex), Via: addrOf(h.Gw), Weight: h.Hops, OnLink: h.Flags&int(netlink.FLAG_ONLINK) != 0})
	}
	return out, !out.Dst.Addr().IsLinkLocalUnicast() && !out.Dst.Addr().IsMulticast() || !out.kernelMade()
}

func dstOf(r *netlink.Route) netip.Prefix {
	if r.Dst == nil {
		if r.Family == netlink.FAMILY_V6 {
			return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	ones, _ := r.Dst.Mask.Size()
	ip := addrOf(r.Dst.IP)
	if r.Family == netlink.FAMILY_V6 && ip.Is4() {
		ip = netip.AddrFrom16(ip.As16())
	}
	return netip.PrefixFrom(ip, ones)
}

// flowkeeps tells whether the route is Flowkeep's.
func (r *route) flowkeeps() bool { return r.Protocol == wellknown.RouteProtocol }

// rules returns those that the kernel does not begin with; what has more than the model is named in Others.
func rules() ([]rule, error) {
	var out []rule
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		req := nl.NewNetlinkRequest(unix.RTM_GETRULE, unix.NLM_F_DUMP)
		req.AddData(nl.NewIfInfomsg(family))
		messages, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWRULE)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
			continue // a kernel without rules of this family
		}
		if err != nil {
			return nil, err
		}
		for _, m := range messages {
			if len(m) > 0 && int(m[0]) != family {
				continue
			}
			r, err := ruleOf(m)
			if err != nil {
				return nil, err
			}
			if r.isBuiltIn() {
				continue
			}
			out = append(out, r)
		}
	}
	return out, nil
}

// isBuiltIn reports whether the rule is one of the three that the kernel begins with.
func (r *rule) isBuiltIn() bool {
	return r.Priority == 0 && r.Table == unix.RT_TABLE_LOCAL || r.Priority == 32766 && r.Table == mainTable ||
		r.Priority == 32767 && r.Table == unix.RT_TABLE_DEFAULT
}

var ruleActions = map[uint8]string{nl.FR_ACT_TO_TBL: "", nl.FR_ACT_BLACKHOLE: "blackhole", nl.FR_ACT_UNREACHABLE: "unreachable", nl.FR_ACT_PROHIBIT: "prohibit"}

func ruleOf(m []byte) (rule, error) {
	msg := nl.DeserializeRtMsg(m)
	attrs, err := nl.ParseRouteAttr(m[msg.Len():])
	if err != nil {
		return rule{}, err
	}
	action, known := ruleActions[msg.Type]
	r := rule{IPv6: msg.Family == unix.AF_INET6, Table: int(msg.Table), Action: action}
	if !known || msg.Tos != 0 || msg.Flags&netlink.FibRuleInvert != 0 {
		r.Others = "action, tos or not"
	}
	for _, a := range attrs {
		r.take(a.Attr.Type, a.Value, msg)
	}
	if r.Action != "" {
		r.Table = 0
	}
	return r, nil
}

func (r *rule) take(kind uint16, value []byte, msg *nl.RtMsg) {
	word := func() uint32 {
		if len(value) < 4 {
			return 0
		}
		return nl.NativeEndian().Uint32(value)
	}
	text := func() string { return strings.TrimRight(string(value), "\x00") }
	switch kind {
	case nl.FRA_SRC:
		r.From = netip.PrefixFrom(addrOf(value), int(msg.Src_len))
	case nl.FRA_DST:
		r.To = netip.PrefixFrom(addrOf(value), int(msg.Dst_len))
	case nl.FRA_IIFNAME:
		r.Iif = text()
	case nl.FRA_OIFNAME:
		r.Oif = text()
	case nl.FRA_PRIORITY:
		r.Priority = int(word())
	case nl.FRA_FWMARK:
		r.Mark = word()
	case nl.FRA_FWMASK:
		r.Mask = word()
	case nl.FRA_TABLE:
		r.Table = int(word())
	case nl.FRA_SUPPRESS_PREFIXLEN:
		r.Suppress = int(word() + 1) // all ones stand for none
	case nl.FRA_PROTOCOL:
		if len(value) > 0 {
			r.Protocol = int(value[0])
		}
	case nl.FRA_SUPPRESS_IFGROUP:
		if word() != 1<<32-1 {
			r.Others = "suppress_ifgroup"
		}
	default:
		r.Others = fmt.Sprintf("attribute %d", kind)
	}
}
