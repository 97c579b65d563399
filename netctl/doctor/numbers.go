package doctor

import (
	"fmt"
	"slices"
	"strconv"
)

// Numbers are those of the node's network stack that Flowkeep is to use, and what has them.
type Numbers struct {
	Table    int // of routes
	Priority int // of the first policy rule
	Rules    Fact[[]Rule]
	Routes   Fact[[]string] // destinations of other programs' routes in the table
}

// Rule is a policy rule.
type Rule struct {
	Priority, Table int
	Interface       string // by which packets come; empty: by any
}

// ruleOffsets are the differences of the priorities of Flowkeep's rules from that of the first.
var ruleOffsets = []int{0, 10, 11, 50}

// localTable is the kernel's table of local addresses (ip-route(8)).
const localTable = 255

// isFlowkeeps reports whether a rule may be Flowkeep's.
func (n *Numbers) isFlowkeeps(r *Rule) bool {
	isLocal := r.Priority == n.Priority+ruleOffsets[3] && r.Table == localTable
	return slices.Contains([]string{gateway, wire}, r.Interface) || isLocal
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
		b.add(check, Problem, fmt.Sprintf("table %d, which Flowkeep needs, has routes of another program: %s", n.Table,
			some(list)), fmt.Sprintf(remedy, "--service-table"))
	}
	for i := range n.Rules.Value {
		r := &n.Rules.Value[i]
		if n.isFlowkeeps(r) {
			continue
		}
		seen := fmt.Sprintf("the policy rule %d of another program, which looks up table %d, has ", r.Priority, r.Table)
		if r.Table == n.Table {
			taken = true
			b.add(check, Problem, seen+"Flowkeep's table", fmt.Sprintf(remedy, "--service-table"))
		}
		if slices.Contains(ruleOffsets, r.Priority-n.Priority) {
			taken = true
			b.add(check, Problem, seen+"a priority of Flowkeep's", fmt.Sprintf(remedy, "--rule-priority"))
		}
	}
	if !taken {
		b.ok(check, "no other program uses table %d, or the priorities of Flowkeep's policy rules from %d", n.Table,
			n.Priority)
	}
}
