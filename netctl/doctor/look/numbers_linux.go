package look

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/flowkeep/flowkeep/netctl/doctor"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// numbers reads policy rules, the routes of other programs in Flowkeep's table, and those with Flowkeep's protocol.
func (o *Options) numbers() doctor.Numbers {
	return doctor.Numbers{
		Table:    o.ServiceTable,
		Priority: o.RulePriority,
		Rules:    doctor.Read(policyRules()),
		Routes:   doctor.Read(o.routesOfOthers()),
		Marked:   doctor.Read(destinations(unix.RT_TABLE_UNSPEC, isMarked)),
	}
}

// routesOfOthers returns the destinations of other programs' routes in Flowkeep's tables. Those of arrivals are for
// IPv6.
func (o *Options) routesOfOthers() (list []string, err error) {
	ofIPv6 := []int{
		wellknown.ArrivalTable - wellknown.ServiceTable, wellknown.OutArrivalTable - wellknown.ServiceTable,
	}
	for offset := range wellknown.LastTable - wellknown.ServiceTable + 1 {
		more, moreErr := destinations(o.ServiceTable+offset, func(r *netlink.Route) bool {
			ofFamily := !slices.Contains(ofIPv6, offset) || r.Dst != nil && r.Dst.IP.To4() == nil
			return !isMarked(r) && ofFamily
		})
		list, err = append(list, more...), errors.Join(err, moreErr)
	}
	return list, err
}

func isMarked(r *netlink.Route) bool { return r.Protocol == wellknown.RouteProtocol }

func policyRules() (out []doctor.Rule, err error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := rtnl.Dump(func() ([]netlink.Rule, error) { return netlink.RuleList(family) })
		if err != nil && family == netlink.FAMILY_V4 {
			return nil, err
		}
		for i := range list {
			out = append(out, ruleOf(&list[i]))
		}
	}
	return out, nil
}

func ruleOf(r *netlink.Rule) doctor.Rule {
	out := doctor.Rule{
		Priority:    max(r.Priority, 0),
		Table:       r.Table,
		Protocol:    r.Protocol,
		Source:      cidrText(r.Src),
		Destination: cidrText(r.Dst),
		Interface:   r.IifName,
		Mark:        r.Mark,
		Next:        max(r.Goto, 0),
		Geneve:      isGeneve(r),
		Other:       hasOther(r),
	}
	if r.Mask != nil {
		out.Mask = *r.Mask
	}
	return out
}

func cidrText(n *net.IPNet) string {
	if n == nil || n.IP == nil {
		return ""
	}
	return n.String()
}

// isGeneve reports whether a rule is for UDP packets to the port of Geneve.
func isGeneve(r *netlink.Rule) bool {
	const geneve = 6081
	only := netlink.RulePortRange{Start: geneve, End: geneve}
	return r.IPProto == unix.IPPROTO_UDP && r.Dport != nil && *r.Dport == only
}

// hasOther reports whether a rule has an attribute that no rule of Flowkeep's has (linux/fib_rules.h).
func hasOther(r *netlink.Rule) bool {
	return r.OifName != "" || r.Invert || r.Tos != 0 || r.TunID != 0 || r.Flow >= 0 ||
		r.SuppressPrefixlen >= 0 || r.SuppressIfgroup >= 0 || r.Sport != nil || r.UIDRange != nil ||
		!isGeneve(r) && (r.IPProto != 0 || r.Dport != nil)
}

// destinations returns those of a table's routes that match, of all tables with RT_TABLE_UNSPEC.
func destinations(table int, match func(*netlink.Route) bool) (out []string, err error) {
	list, err := rtnl.Dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, err
	}
	for i := range list {
		if match(&list[i]) {
			out = append(out, fmt.Sprint(list[i].Dst))
		}
	}
	return out, nil
}
