package hostnet

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Numbers are numbers of the node's network stack that other programs use too.
type Numbers struct {
	Table    int // of the routes of Services' second pass; those up to wellknown.LastTable follow
	Priority int // of the first of Flowkeep's policy rules
}

// DefaultNumbers are used where Config has none.
var DefaultNumbers = Numbers{Table: wellknown.ServiceTable, Priority: wellknown.RulePriority}

// FormerNumbers are those of versions before v0.1.0, which had no flags. cloud-init numbers the tables of network
// interfaces from 100.
var FormerNumbers = Numbers{Table: 102, Priority: wellknown.RulePriority}

// Flags with which other numbers are set.
const (
	TableFlag    = "--service-table"
	PriorityFlag = "--rule-priority"
)

// OrDefault returns the numbers, or DefaultNumbers in place of none.
func (n Numbers) OrDefault() Numbers { return cmp.Or(n, DefaultNumbers) }

func (cfg *Config) numbers() Numbers { return cfg.Numbers.OrDefault() }

func (cfg *Config) taken(text string) {
	if cfg.Taken != nil {
		cfg.Taken(text)
	}
}

// Check returns an error for numbers that the kernel uses itself or does not have.
func (n Numbers) Check() error {
	const mainPriority = 32766                                  // of the kernel's look-up of the table main
	const behind = wellknown.LastTable - wellknown.ServiceTable // tables that are used too
	isKernels := n.Table+behind >= unix.RT_TABLE_COMPAT && n.Table <= unix.RT_TABLE_LOCAL
	if n.Table < 1 || n.Table > math.MaxInt32-behind || isKernels {
		return fmt.Errorf("%s %d: use a number from 1 to %d other than %d to %d; the %d behind it are used too",
			TableFlag, n.Table, math.MaxInt32-behind, unix.RT_TABLE_COMPAT-behind, unix.RT_TABLE_LOCAL, behind)
	}
	if n.Priority < 1 || n.Priority+wellknown.LastRule >= mainPriority {
		return fmt.Errorf("%s %d: use a number from 1 to %d", PriorityFlag, n.Priority,
			mainPriority-wellknown.LastRule-1)
	}
	return nil
}

// mayBeEarlier reports whether an earlier version may have had the numbers, which used fewer behind them than Check
// allows for.
func (n Numbers) mayBeEarlier() bool {
	const mainPriority = 32766
	isKernels := n.Table >= unix.RT_TABLE_COMPAT && n.Table <= unix.RT_TABLE_LOCAL
	return n.Table > 0 && !isKernels && n.Priority > 0 && n.Priority+wellknown.ServiceRule < mainPriority
}

// priorities returns those of all of Flowkeep's rules.
func (n Numbers) priorities() (out []int) {
	for _, offset := range wellknown.RuleOffsets {
		out = append(out, n.Priority+offset)
	}
	return out
}

// tables returns those of all of Flowkeep's routes but the kernel's.
func (n Numbers) tables() []int {
	return []int{
		n.Table, n.arrivalTable(), n.ownTable(), n.translatedTable(), n.outArrivalTable(), n.geneveTable(),
	}
}

// Installed reports whether this network namespace has rules or tables of Flowkeep's, and returns the numbers of the
// rules.
func Installed() (list []Numbers, installed bool, err error) {
	for _, family := range families46 {
		have, err := rulesOf(family)
		if err != nil {
			return list, len(list) > 0, fmt.Errorf("list policy rules: %w", err)
		}
		list = append(list, numbersOf(have)...)
	}
	if len(list) > 0 {
		return list, true, nil
	}
	tables, err := nftTables()
	return nil, len(tables) > 0, err
}

// Taken returns a sentence for each object of another program with one of the numbers, in the address families of the
// node's pod CIDRs, and for each route with Flowkeep's protocol. It is for a node on which Flowkeep has never been.
func Taken(n Numbers, podCIDRs []netip.Prefix) (out []string, err error) {
	list, err := allRoutes()
	if err != nil {
		return nil, err
	}
	if out, err = takenBy(list, n, podCIDRs); err != nil {
		return nil, err
	}
	for i := range list {
		if r := &list[i]; r.Protocol == protocolFlowkeep {
			out = append(out, fmt.Sprintf("the route to %s in table %d has Flowkeep's protocol %d: give it another",
				r.Dst, r.Table, protocolFlowkeep))
		}
	}
	return out, nil
}

// TakenLater returns a sentence for each object of another program with one of the numbers, in the address families of
// the node's pod CIDRs. It is for a node on which Flowkeep has other numbers.
func TakenLater(n Numbers, podCIDRs []netip.Prefix) ([]string, error) {
	list, err := allRoutes()
	if err != nil {
		return nil, err
	}
	return takenBy(list, n, podCIDRs)
}

// takenBy returns the sentences about policy rules, and about those of the node's routes that are in the table.
func takenBy(routes []netlink.Route, n Numbers, podCIDRs []netip.Prefix) (out []string, err error) {
	n = n.OrDefault()
	families := familiesOf(podCIDRs)
	for _, family := range families {
		have, err := rulesOf(family)
		if err != nil {
			return nil, fmt.Errorf("list policy rules: %w", err)
		}
		out = append(out, takenRules(have, n, append(numbersOf(have), n))...)
	}
	return append(out, takenTables(routes, n, families)...), nil
}

// familiesOf returns the address families of prefixes, IPv4 first.
func familiesOf(list []netip.Prefix) []int {
	return slices.DeleteFunc(slices.Clone(families46), func(family int) bool {
		return !slices.ContainsFunc(list, func(p netip.Prefix) bool { return familyOf(p.Addr()) == family })
	})
}

// takenRules returns a sentence for each rule of another program with one of the numbers. Rules that Flowkeep writes
// with known numbers are no such rules.
func takenRules(have []netlink.Rule, n Numbers, known []Numbers) (out []string) {
	for i := range have {
		r := &have[i]
		if isFlowkeepsOf(r, known) {
			continue
		}
		if slices.Contains(n.tables(), r.Table) {
			out = append(out, fmt.Sprintf("the policy rule %s looks up table %d: give Flowkeep another by %s",
				ruleText(r), r.Table, TableFlag))
		}
		for _, p := range n.priorities() {
			if r.Priority == p {
				out = append(out, fmt.Sprintf("the policy rule %s has the priority of one of Flowkeep's: "+
					"give Flowkeep others by %s", ruleText(r), PriorityFlag))
			}
		}
	}
	return out
}

// takenTables returns sentences about routes of other programs in Flowkeep's tables.
func takenTables(list []netlink.Route, n Numbers, families []int) []string {
	out := takenRoutes(list, n.Table, families, "packets to Services that take such a route are dropped")
	if ofIPv6(families) {
		for _, table := range []int{n.arrivalTable(), n.outArrivalTable()} {
			out = append(out, takenRoutes(list, table, []int{netlink.FAMILY_V6},
				"a firewall that looks up the way back may drop packets of pods")...)
		}
	}
	out = append(out, takenRoutes(list, n.ownTable(), families,
		"packets of the node to its pods that take such a route are lost")...)
	out = append(out, takenRoutes(list, n.translatedTable(), families,
		"packets of pods to addresses outside that take such a route go there")...)
	return append(out, takenRoutes(list, n.geneveTable(), families,
		"pods' packets to UDP port 6081 take such a route")...)
}

// takenRoutes returns a sentence for each of the address families of which other programs have routes in a table. It
// has the first destination only: the table may be that of a routing daemon.
func takenRoutes(list []netlink.Route, table int, families []int, effect string) (out []string) {
	first, count := map[int]*netlink.Route{}, map[int]int{}
	least := map[int]netip.Prefix{}
	for i := range list {
		r := &list[i]
		if r.Table != table || r.Protocol == protocolFlowkeep {
			continue
		}
		p, _ := prefixOf(r)
		family := familyOf(p.Addr())
		if count[family]++; count[family] == 1 || p.Compare(least[family]) < 0 {
			first[family], least[family] = r, p
		}
	}
	for _, family := range families {
		if count[family] == 0 {
			continue
		}
		out = append(out, fmt.Sprintf("the route to %s of protocol %s%s in table %d is another program's, and %s: "+
			"give Flowkeep another table by %s",
			least[family], first[family].Protocol, andOthers(count[family]-1), table, effect, TableFlag))
	}
	return out
}

// andOthers returns a text for a number of other routes. Of many it has the order of magnitude: the text is in logs and
// Events, which are written again when it changes.
func andOthers(n int) string {
	if n == 0 {
		return ""
	}
	if n < 10 {
		return fmt.Sprintf(" (and %d more)", n)
	}
	bound := 10
	for bound*10 <= n {
		bound *= 10
	}
	return fmt.Sprintf(" (and at least %d more)", bound)
}
