package look

import (
	"fmt"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/flowkeep/flowkeep/netctl/doctor"
	"github.com/vishvananda/netlink"
)

// numbers reads policy rules, and the routes of other programs in Flowkeep's table.
func (o *Options) numbers() doctor.Numbers {
	return doctor.Numbers{
		Table:    o.ServiceTable,
		Priority: o.RulePriority,
		Rules:    doctor.Read(policyRules()),
		Routes:   doctor.Read(othersRoutes(o.ServiceTable)),
	}
}

func policyRules() (out []doctor.Rule, err error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := rtnl.Dump(func() ([]netlink.Rule, error) { return netlink.RuleList(family) })
		if err != nil && family == netlink.FAMILY_V4 {
			return nil, err
		}
		for i := range list {
			r := &list[i]
			out = append(out, doctor.Rule{
				Priority:  max(r.Priority, 0),
				Table:     r.Table,
				Interface: r.IifName,
			})
		}
	}
	return out, nil
}

func othersRoutes(table int) (out []string, err error) {
	list, err := rtnl.Dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, err
	}
	for i := range list {
		if r := &list[i]; r.Protocol != wellknown.RouteProtocol {
			out = append(out, fmt.Sprint(r.Dst))
		}
	}
	return out, nil
}
