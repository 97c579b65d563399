package server

import (
	"maps"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// gate delays responses to announced pods until every policy older than the pod is known. A pod waits for the first
// list of policies and namespaces that began after the pod was seen on its node (docs/decisions/033). The gate uses
// neither a clock nor the API server. Lists are numbered, with one in progress at a time. The zero gate delays
// nothing.
type gate struct {
	begun     uint64                  // number of the newest list
	wanted    uint64                  // number of the newest list that a pod waits for
	confirmed uint64                  // number of the newest list whose contents the watches have delivered
	floor     uint64                  // number of the list that pods without an entry in needs wait for
	needs     map[string]uint64       // number of the list that a pod waits for, by the pod's ID
	waiting   map[string][]heldAnswer // by node, in order
	lags      map[string]bool         // namespaces whose policies of the confirmed list are not all in the engine
}

// heldAnswer is a delayed response.
type heldAnswer struct {
	policy.SettledEndpoint
	since time.Time
}

// see records a pod that is new, or new on its node.
func (g *gate) see(id string) {
	if g.needs == nil {
		g.needs = map[string]uint64{}
	}
	g.wanted = g.begun + 1
	g.needs[id] = g.wanted
}

// seeAll makes every pod wait for the next list.
func (g *gate) seeAll() {
	g.wanted = g.begun + 1
	g.floor = g.wanted
	clear(g.needs)
}

// lag records namespaces whose policies of the list that is about to be confirmed are not all known yet.
func (g *gate) lag(namespaces map[string]bool) {
	if g.lags == nil {
		g.lags = map[string]bool{}
	}
	maps.Copy(g.lags, namespaces)
}

// isKnown reports whether every policy of the pod's namespace that is older than the pod is known.
func (g *gate) isKnown(id string) bool {
	if namespace, _, _ := strings.Cut(id, "/"); g.lags[namespace] {
		return false
	}
	need, ok := g.needs[id]
	if !ok {
		need = g.floor
	}
	return need <= g.confirmed
}

// pass returns the responses that need not wait, and keeps the others. Responses about one pod stay in order: either
// all of them pass, or none.
func (g *gate) pass(answers []policy.SettledEndpoint, now time.Time) (open []policy.SettledEndpoint) {
	for i := range answers {
		a := &answers[i]
		if g.isKnown(a.ID) {
			open = append(open, *a)
			continue
		}
		if g.waiting == nil {
			g.waiting = map[string][]heldAnswer{}
		}
		g.waiting[a.Node] = append(g.waiting[a.Node], heldAnswer{*a, now})
	}
	return open
}

// wants reports whether a pod waits for a list that has not begun.
func (g *gate) wants() bool { return g.wanted > g.begun }

// begin returns the number of a list that is about to be requested.
func (g *gate) begin() uint64 {
	g.begun++
	return g.begun
}

// abandon makes pods wait for the next list instead of the one in progress, which will not be compared.
func (g *gate) abandon() {
	if g.begun > g.confirmed {
		g.wanted = g.begun + 1
	}
}

// confirm records that the contents of a list are known, and returns the responses that waited for it.
func (g *gate) confirm(list uint64) (open []heldAnswer) {
	g.confirmed = max(g.confirmed, list)
	for node, all := range g.waiting {
		var rest []heldAnswer
		for i := range all {
			if g.isKnown(all[i].ID) {
				open = append(open, all[i])
			} else {
				rest = append(rest, all[i])
			}
		}
		if len(rest) == 0 {
			delete(g.waiting, node)
		} else {
			g.waiting[node] = rest
		}
	}
	maps.DeleteFunc(g.needs, func(_ string, need uint64) bool { return need <= g.confirmed && g.floor <= g.confirmed })
	return open
}

// waits returns the number of delayed responses.
func (g *gate) waits() (n int) {
	for _, all := range g.waiting {
		n += len(all)
	}
	return n
}

// drop removes the responses to a node that has reconnected: it receives new ones for all its pods.
func (g *gate) drop(node string) { delete(g.waiting, node) }

// dropAll removes all responses.
func (g *gate) dropAll() { clear(g.waiting) }
