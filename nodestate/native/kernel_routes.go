package native

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/nodestate"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// routes returns those of all tables but the local one that node state has; it never holds the others. A route with
// something that is not in the model is left out, and stays as it is.
func routes(byIndex map[int]*seen, destinations map[netip.Prefix]bool) (out []route, err error) {
	nameOf := func(index int) string {
		if s := byIndex[index]; s != nil {
			return s.link.Name
		}
		return ""
	}
	req := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
	req.AddData(&nl.RtMsg{})
	var unread error
	err = req.ExecuteIter(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE, func(m []byte) bool {
		if !nodestate.KeepsRoute(m, destinations) {
			return true
		}
		r, ok, err := readRoute(m, nameOf)
		if ok {
			out = append(out, r)
		}
		unread = err
		return err == nil
	})
	return out, cmp.Or(err, unread)
}

var routeTypes = map[int]string{unix.RTN_UNICAST: "", unix.RTN_BLACKHOLE: "blackhole", unix.RTN_UNREACHABLE: "unreachable", unix.RTN_PROHIBIT: "prohibit"}

// readRoute reads a message of the kernel. It returns false where the model has no such route.
func readRoute(m []byte, nameOf func(index int) string) (r route, ok bool, err error) {
	msg := nl.DeserializeRtMsg(m)
	kind, known := routeTypes[int(msg.Type)]
	if !known || msg.Flags&unix.RTM_F_CLONED != 0 {
		return r, false, nil
	}
	switch msg.Family {
	case unix.AF_INET:
		r.Dst = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	case unix.AF_INET6:
		r.Dst = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	default:
		return r, false, nil
	}
	attrs, err := nl.ParseRouteAttr(m[msg.Len():])
	if err != nil {
		return r, false, err
	}
	r.Table, r.Type, r.Protocol, r.Scope, r.TOS = int(msg.Table), kind, int(msg.Protocol), int(msg.Scope), int(msg.Tos)
	r.OnLink = msg.Flags&unix.RTNH_F_ONLINK != 0
	ok = true
	for _, a := range attrs {
		ok = r.take(a.Attr.Type&nl.NLA_TYPE_MASK, a.Value, int(msg.Dst_len), nameOf) && ok
	}
	if r.Hops != nil || kind != "" {
		r.Link = ""
	}
	network := !r.Dst.Addr().IsLinkLocalUnicast() && !r.Dst.Addr().IsMulticast() || !r.kernelMade()
	return r, ok && network && r.Table != unix.RT_TABLE_LOCAL, nil
}

// take reads an attribute of a route. It returns false where the model has no such attribute.
func (r *route) take(kind uint16, value []byte, bits int, nameOf func(index int) string) bool {
	switch kind {
	case unix.RTA_DST:
		if a, ok := netip.AddrFromSlice(value); ok {
			r.Dst = netip.PrefixFrom(a, bits)
		}
	case unix.RTA_OIF:
		r.Link = nameOf(numberIn(value))
	case unix.RTA_GATEWAY:
		r.Via = addrOf(value)
	case unix.RTA_PREFSRC:
		r.Source = addrOf(value)
	case unix.RTA_PRIORITY:
		r.Metric = numberIn(value)
	case unix.RTA_TABLE:
		r.Table = numberIn(value)
	case unix.RTA_METRICS:
		r.takeMetrics(value)
	case unix.RTA_MULTIPATH:
		return r.takeHops(value, nameOf)
	case unix.RTA_ENCAP, unix.RTA_VIA, unix.RTA_NEWDST:
		return false
	}
	return true
}

func (r *route) takeMetrics(value []byte) {
	places := map[uint16]*int{
		unix.RTAX_MTU: &r.MTU, unix.RTAX_ADVMSS: &r.AdvMSS, unix.RTAX_WINDOW: &r.Window,
		unix.RTAX_INITCWND: &r.InitCwnd, unix.RTAX_INITRWND: &r.InitRwnd,
	}
	metrics, _ := nl.ParseRouteAttr(value)
	for _, m := range metrics {
		if place := places[m.Attr.Type&nl.NLA_TYPE_MASK]; place != nil {
			*place = numberIn(m.Value)
		}
	}
}

// takeHops reads the next hops of a route with several (struct rtnexthop, rtnetlink(7)).
func (r *route) takeHops(value []byte, nameOf func(index int) string) bool {
	for len(value) >= unix.SizeofRtNexthop {
		size := numberIn(value[:2])
		if size < unix.SizeofRtNexthop || size > len(value) {
			return false
		}
		h := hop{Link: nameOf(numberIn(value[4:8])), Weight: int(value[3]), OnLink: value[2]&unix.RTNH_F_ONLINK != 0}
		attrs, err := nl.ParseRouteAttr(value[unix.SizeofRtNexthop:size])
		if err != nil {
			return false
		}
		for _, a := range attrs {
			switch a.Attr.Type & nl.NLA_TYPE_MASK {
			case unix.RTA_GATEWAY:
				h.Via = addrOf(a.Value)
			case unix.RTA_ENCAP, unix.RTA_VIA, unix.RTA_NEWDST:
				return false
			}
		}
		r.Hops = append(r.Hops, h)
		value = value[min(len(value), (size+3)&^3):]
	}
	return true
}

// flowkeeps reports whether the route is Flowkeep's.
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
