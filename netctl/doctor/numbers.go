package doctor

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/flowkeep/flowkeep/api/wellknown"
)

// Numbers are those of the node's network stack that Flowkeep is to use, and what has them.
type Numbers struct {
	Table    int // of routes; the next are Flowkeep's too (wellknown.LastTable)
	Priority int // of the first policy rule
	Rules    Fact[[]Rule]
	Routes   Fact[[]string] // destinations of other programs' routes in these tables
	Marked   Fact[[]string] // destinations of routes with Flowkeep's protocol, in all tables
}

// Differences of the numbers of Flowkeep's other tables from Numbers.Table.
const (
	arrivalTable = wellknown.ArrivalTable - wellknown.ServiceTable
	ownTable     = wellknown.OwnTable - wellknown.ServiceTable
	translated   = wellknown.TranslatedTable - wellknown.ServiceTable
	geneveTable  = wellknown.GeneveTable - wellknown.ServiceTable
	outArrivals  = wellknown.OutArrivalTable - wellknown.ServiceTable
	lastTable    = wellknown.LastTable - wellknown.ServiceTable
)

// Rule is a policy rule.
type Rule struct {
	Priority, Table     int
	Protocol            uint8
	Source, Destination string // CIDRs; empty: any
	Interface           string // by which packets come; empty: by any
	Mark, Mask          uint32
	Next                int  // priority of the rule to go on with; 0: it looks up the table
	Geneve              bool // it is for UDP packets to port 6081 alone
	Other               bool // it has an attribute that no rule of Flowkeep's has
}

const (
	compatTable    = 252       // the first that the kernel uses itself: RT_TABLE_COMPAT (rtnetlink(7))
	localTable     = 255       // the kernel's table of local addresses (ip-route(8)), the last
	mainPriority   = 32766     // of the kernel's rule for the table main
	formerTable    = 102       // of versions before v0.1.0
	formerMark     = 0x1000000 // of TranslatedRule in such versions
	kernelProtocol = 2         // RTPROT_KERNEL (rtnetlink(7))
)

// isFlowkeeps reports whether a rule is as netplugin writes it with a table and a first priority.
func (r *Rule) isFlowkeeps(table, priority int) bool {
	if r.Other || r.Protocol != kernelProtocol && !r.isFormer(table, priority) {
		return false
	}
	offset := r.Priority - priority
	goesOn := offset == wellknown.ReturningRule || offset == wellknown.OwnSourceRule
	if (r.Next != 0) != goesOn || r.Geneve != (offset == wellknown.GeneveRule) {
		return false
	}
	unmarked := r.Mark == 0 && r.Mask == 0
	byGateway := r.Interface == gateway && r.Source != ""
	fromPods := byGateway && unmarked
	switch offset {
	case wellknown.GatewayLocalRule:
		return fromPods && r.Destination != "" && r.Table == localTable
	case wellknown.ReturningRule:
		marked := r.Mark == wellknown.ReturningMark && r.Mask == wellknown.ReturningMark
		return byGateway && r.Destination == "" && marked && r.Next == priority+wellknown.LocalRule && r.Table == 0
	case wellknown.ServiceRule:
		return fromPods && r.Destination == "" && r.Table == table
	case wellknown.TranslatedRule:
		marked := r.Mark == formerMark && r.Mask == formerMark
		isFormer := r.Interface == wellknown.WireDevice && marked && r.Table == table
		isNow := r.Interface == wellknown.OutDevice && unmarked && r.Table == table+translated
		return r.Source != "" && r.Destination == "" && (isFormer || isNow)
	case wellknown.ArrivalRule:
		marked := r.Mark == wellknown.ArrivalMark && r.Mask == wellknown.ArrivalMark
		return r.Interface == "lo" && r.Source == "" && r.Destination == "" && marked && r.Table == table+arrivalTable
	case wellknown.OutArrivalRule:
		marked := r.Mark == wellknown.OutArrivalMark && r.Mask == wellknown.OutArrivalMark
		return r.Interface == "lo" && r.Source == "" && r.Destination == "" && marked && r.Table == table+outArrivals
	case wellknown.OwnRule:
		toPods := r.Source == "" && r.Destination != ""
		return r.Interface == "lo" && toPods && unmarked && r.Table == table+ownTable && r.Protocol == kernelProtocol
	case wellknown.ReplyRule:
		toPods := r.Source == "" && r.Destination != ""
		return r.Interface == gateway && toPods && unmarked && r.Table == table && r.Protocol == kernelProtocol
	case wellknown.OwnSourceRule:
		ends := r.Source != "" && r.Destination != ""
		return r.Interface == "lo" && ends && unmarked && r.Next == priority+wellknown.LocalRule && r.Table == 0
	case wellknown.ForgedRule:
		ends := r.Source != "" && r.Destination != ""
		return r.Interface == "" && ends && unmarked && r.Table == table+geneveTable
	case wellknown.GeneveRule:
		byOut := r.Interface == wellknown.OutDevice && r.Source != "" && r.Destination == ""
		return byOut && unmarked && r.Table == table+geneveTable
	case wellknown.LocalRule:
		return r.Interface == "" && r.Source == "" && r.Destination == "" && unmarked && r.Table == localTable
	}
	return false
}

// isFormer reports whether a rule has no protocol, and whether versions before v0.1.0, which wrote none, had these
// numbers.
func (r *Rule) isFormer(table, priority int) bool {
	return r.Protocol == 0 && table == formerTable && priority == wellknown.RulePriority
}

// looksUpServices reports whether a rule is that of netplugin, with whatever numbers, that looks up its table.
func (r *Rule) looksUpServices() bool {
	first := r.Priority - wellknown.ServiceRule
	ofKernel := r.Table < 1 || r.Table >= compatTable && r.Table <= localTable
	return !ofKernel && first > 0 && first+wellknown.LastRule < mainPriority && r.isFlowkeeps(r.Table, first)
}

// isFlowkeeps reports whether a rule is Flowkeep's, with these numbers or with those of a rule that looks up its table.
func (n *Numbers) isFlowkeeps(r *Rule) bool {
	return r.isFlowkeeps(n.Table, n.Priority) || slices.ContainsFunc(n.Rules.Value, func(service Rule) bool {
		return service.looksUpServices() && r.isFlowkeeps(service.Table, service.Priority-wellknown.ServiceRule)
	})
}

// protocol reports routes that netplugin would remove, on a node on which it does not run.
func (b *book) protocol(n *Numbers, links *Fact[[]Link]) {
	const check = "numbers"
	isInstalled := slices.ContainsFunc(links.Value, func(l Link) bool { return l.Name == gateway }) ||
		slices.ContainsFunc(n.Rules.Value, func(r Rule) bool { return r.looksUpServices() })
	switch {
	case !n.Marked.known():
		b.unknown(check, "routes with Flowkeep's protocol", n.Marked.Error, "ip route show table all proto 102")
	case !isInstalled && len(n.Marked.Value) > 0:
		b.add(check, Problem, fmt.Sprintf("routes have Flowkeep's protocol 102, and netplugin removes those: %s",
			some(n.Marked.Value)), "have the other program give its routes another protocol")
	}
}

// numbers reports other programs that use a routing table or priorities of Flowkeep's.
func (b *book) numbers(n *Numbers) {
	const check = "numbers"
	const remedy = "have the other program use another, or give netplugin %s"
	if !n.Rules.known() || !n.Routes.known() {
		b.unknown(check, "policy rules and routes", n.Rules.Error+n.Routes.Error, "ip rule; ip route show table "+
			strconv.Itoa(n.Table))
		return
	}
	taken := false
	if list := n.Routes.Value; len(list) > 0 {
		taken = true
		b.add(check, Problem, fmt.Sprintf("tables %d to %d are Flowkeep's, and have routes of another program: %s",
			n.Table, n.Table+lastTable, some(list)), fmt.Sprintf(remedy, "--service-table"))
	}
	for i := range n.Rules.Value {
		r := &n.Rules.Value[i]
		if n.isFlowkeeps(r) {
			continue
		}
		does := fmt.Sprintf("looks up table %d", r.Table)
		if r.Next != 0 {
			does = fmt.Sprintf("goes on at %d", r.Next)
		}
		seen := fmt.Sprintf("the policy rule %d of another program, which %s, has ", r.Priority, does)
		if r.Table >= n.Table && r.Table <= n.Table+lastTable {
			taken = true
			b.add(check, Problem, seen+"a table of Flowkeep's", fmt.Sprintf(remedy, "--service-table"))
		}
		if slices.Contains(wellknown.RuleOffsets, r.Priority-n.Priority) {
			taken = true
			b.add(check, Problem, seen+"a priority of Flowkeep's", fmt.Sprintf(remedy, "--rule-priority"))
		}
	}
	if !taken {
		b.ok(check, "no other program uses tables %d to %d, or the priorities of Flowkeep's policy rules from %d",
			n.Table, n.Table+lastTable, n.Priority)
	}
}
