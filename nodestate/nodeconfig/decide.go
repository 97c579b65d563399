package nodeconfig

import (
	"encoding/json"
	"errors"
	"slices"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// Desire is what a node's spec is to hold: all of it in one update.
type Desire struct {
	Desired, Record nmstate.State
	Policies        []nmstatev1.PolicyRef
}

// Set writes it into a spec.
func (d *Desire) Set(spec *nmstatev1.NodeNetworkStateSpec) {
	spec.DesiredState, spec.FromPolicies = raw(d.Desired), nil
	if len(d.Policies) > 0 || len(d.Record) > 0 {
		spec.FromPolicies = &nmstatev1.FromPolicies{Policies: d.Policies, State: raw(d.Record)}
	}
}

func raw(s nmstate.State) *nmstatev1.State {
	if len(s) == 0 {
		return nil
	}
	return &nmstatev1.State{Raw: json.RawMessage(jsonOf(map[string]any(s)))}
}

// Decision is what follows from a node's objects, the policies and where they stand. The same objects give the same decision.
type Decision struct {
	// Write is nil when the node has what it is to have.
	Write *Desire
	// Claims name the policies whose entries for the node must be stored before Write.
	Claims []string
	// Entries and Conflicts are what the policies' statuses are to say of the node, by policy. Entries are without time.
	Entries   map[string]nmstatev1.PolicyNode
	Conflicts map[string][]nmstatev1.Conflict
	// Blockers are nodes for which this one waits, by policy.
	Blockers map[string][]string
}

// ByHand stands in conflicts for what an administrator wrote into the node's desired state; no policy has this name.
const ByHand = "(by hand)"

// interfacesLimit is how many of the matching interfaces an entry names.
const interfacesLimit = 20

// decider is the making of one decision.
type decider struct {
	node      *Node
	policies  []*Policy
	standings map[string]Standing
	wants     []want
	had       map[string]int64 // policies of which the node has something, and of which generation
	waits     map[int]string   // policies that may not change the node now, and why
	blockers  map[string][]string
	changing  map[int]bool // policies because of which the node's desire changes
	evidence  evidence     // of a node that is failing
}

// Decide says what is to become of a node. Policies must be in the order of Sort, without those that are gone; standings are by
// policy's name.
func Decide(n *Node, policies []*Policy, standings map[string]Standing) Decision {
	d := &decider{node: n, policies: policies, standings: standings, waits: map[int]string{}, blockers: map[string][]string{}, changing: map[int]bool{}}
	if n.unmanaged {
		return d.everywhere(nmstatev1.PhaseUnmanaged, "the node's spec.managed is false")
	}
	if n.unknown != "" {
		return d.everywhere(nmstatev1.PhaseWaiting, n.unknown)
	}
	d.had = generations(n.refs)
	d.wants = n.Memory.wantsOf(n, policies)
	for by, p := range policies {
		w := &d.wants[by]
		if why, refused := n.Refused[p.Name]; refused && w.err == nil {
			w.err = errors.New(why)
		}
		if why, held := n.Held[p.Name]; held {
			d.waits[by] = why
		}
		if w.err != nil {
			d.waits[by] = w.err.Error()
		}
	}
	n.Memory.begin()
	defer n.Memory.end()
	target := d.settle()
	if n.sync == failing {
		d.evidence = evidenceOf(n.message, target)
	}
	conflicts, overruled := d.conflicts(target)
	decision := Decision{Entries: make(map[string]nmstatev1.PolicyNode, len(policies)), Conflicts: conflicts, Blockers: d.blockers}
	refs := target.refs(n, d.waits)
	if !target.wanted() || !target.recorded() || !sameNames(refs, n.refs) {
		decision.Write = target.write(n, refs)
	}
	for by, p := range policies {
		decision.Entries[p.Name] = d.entry(by, overruled[p.Name])
		if d.changing[by] {
			decision.Claims = append(decision.Claims, p.Name)
		}
	}
	return decision
}

// everywhere is the decision to leave the node alone.
func (d *decider) everywhere(phase nmstatev1.Phase, why string) Decision {
	decision := Decision{Entries: map[string]nmstatev1.PolicyNode{}}
	for _, p := range d.policies {
		decision.Entries[p.Name] = nmstatev1.PolicyNode{Node: d.node.Object.Name, Phase: phase, Reason: why, ObservedGeneration: p.Generation}
	}
	return decision
}

// settle finds what the node is to have: all that the policies want, or, of those that have to wait, what the node has of them.
func (d *decider) settle() *aggregate {
	for {
		target := d.aggregate()
		d.changing = map[int]bool{}
		if target.wanted() {
			return target
		}
		d.findChanging(target)
		more := false
		for by := range d.changing {
			p := d.policies[by]
			if why, others := d.turn(p); why != "" {
				d.waits[by], d.blockers[p.Name], more = why, others, true
			}
		}
		if !more { // it ends: each time round some policy more waits
			return target
		}
	}
}

// turn is Turn, but a node without a live agent takes none.
func (d *decider) turn(p *Policy) (why string, others []string) {
	s, node := d.standings[p.Name], d.node.Object.Name
	if d.node.Silent != "" && !holdsTurn(s.entries[node]) {
		return "its turn comes when it answers: " + d.node.Silent, nil
	}
	return Turn(p, s, node)
}

func (d *decider) aggregate() *aggregate {
	target := aggregateOf(d.node, d.policies, d.wants, d.waits, pieces{})
	if !d.holdsBack() {
		return target
	}
	return aggregateOf(d.node, d.policies, d.wants, d.waits, target.keep(d.keeps))
}

// holdsBack reports whether the node has something of policies that wait.
func (d *decider) holdsBack() bool {
	old := d.had
	for by := range d.waits {
		if _, ok := old[d.policies[by].Name]; ok {
			return true
		}
	}
	return false
}

// keeps reports whether an attribute of the node stays because it may belong to a policy that waits: where no other
// policy sets it, or where it lies above a policy that is as it was when the node was written.
func (d *decider) keeps(l leaf) bool {
	if l.by > len(d.policies) {
		return false // set by hand
	}
	old := d.had
	for by := range d.waits {
		if _, had := old[d.policies[by].Name]; !had {
			continue
		}
		if l.by < 0 || l.by < by && old[d.policies[l.by].Name] == d.policies[l.by].Generation {
			return true
		}
	}
	return false
}

// findChanging finds the policies because of which the node would change: those whose attributes are new or other than the
// node's, and where attributes go, those of which the node has something and that are not as they were.
func (d *decider) findChanging(target *aggregate) {
	gone := false
	target.changes(func(l leaf) {
		switch {
		case l.by < 0:
			gone = true
		case l.by < len(d.policies):
			d.changing[l.by] = true
		}
	})
	if !gone {
		return
	}
	old, owners := d.had, target.owners()
	for by, p := range d.policies {
		had, ok := old[p.Name]
		if _, waits := d.waits[by]; ok && !waits && (had != p.Generation || !owners[by]) {
			d.changing[by] = true
		}
	}
}

func (a *aggregate) write(n *Node, refs []nmstatev1.PolicyRef) *Desire {
	record := a.record()
	return &Desire{Desired: nmstate.Overlay(record, n.hand), Record: record, Policies: refs}
}

// entry says where a policy stands on the node, given that Write, if any, is about to be written.
func (d *decider) entry(by int, overruled bool) nmstatev1.PolicyNode {
	p, w := d.policies[by], d.wants[by]
	e := nmstatev1.PolicyNode{
		Node: d.node.Object.Name, Matched: w.matched, Reason: w.why, ObservedGeneration: p.Generation,
		Interfaces: w.interfaces[:min(len(w.interfaces), interfacesLimit)],
	}
	if w.err != nil {
		e.Phase, e.Message = nmstatev1.PhaseFailing, w.err.Error()
		return e
	}
	if why, waits := d.waits[by]; waits {
		e.Phase, e.Message = nmstatev1.PhaseWaiting, why
		return e
	}
	if d.changing[by] {
		e.Phase = nmstatev1.PhaseApplying
		return e
	}
	e.Phase, e.Message = d.phaseOnceWritten(by, restingPhase(w, overruled))
	return e
}

// restingPhase is where a policy ends up on a node that is as desired.
func restingPhase(w want, overruled bool) nmstatev1.Phase {
	switch {
	case !w.selected:
		return nmstatev1.PhaseNotSelected
	case !w.matched:
		return nmstatev1.PhaseNoMatch
	case overruled:
		return nmstatev1.PhaseConflict
	}
	return nmstatev1.PhaseApplied
}

// phaseOnceWritten goes by what the node's agent says.
func (d *decider) phaseOnceWritten(by int, rest nmstatev1.Phase) (nmstatev1.Phase, string) {
	own := d.entryOf(by)
	inForce := rest == nmstatev1.PhaseApplied || rest == nmstatev1.PhaseConflict
	switch d.node.sync {
	case synced:
		return rest, ""
	case failing:
		switch v, why := d.judge(by, inForce); v {
		case guilty:
			return nmstatev1.PhaseFailing, d.node.message
		case bystander:
			return nmstatev1.PhaseApplying, why
		}
	case applying:
		if holdsTurn(own) {
			return own.Phase, own.Message
		}
		if inForce && own.Phase == "" {
			return nmstatev1.PhaseApplying, ""
		}
	}
	return rest, ""
}

// conflicts returns the attributes that each policy wins and loses, as far as there is room, and the policies that
// lose some.
func (d *decider) conflicts(target *aggregate) (found map[string][]nmstatev1.Conflict, overruled map[string]bool) {
	found, overruled = map[string][]nmstatev1.Conflict{}, map[string]bool{}
	for _, q := range target.disputes() {
		if q.winner == target.heldBy() || q.loser == target.heldBy() {
			continue // a policy that waits: its turn will report it
		}
		c := nmstatev1.Conflict{
			Node: d.node.Object.Name, Path: q.path, Winner: d.nameOf(q.winner), Loser: d.nameOf(q.loser),
			WinnerValue: q.won, LoserValue: q.wanted,
		}
		overruled[c.Loser] = true
		for _, name := range []string{c.Winner, c.Loser} {
			if name != ByHand && len(found[name]) < nmstatev1.ConflictsLimit {
				found[name] = append(found[name], c)
			}
		}
	}
	return found, overruled
}

func (d *decider) nameOf(by int) string {
	if by < len(d.policies) {
		return d.policies[by].Name
	}
	return ByHand
}

// Sort puts policies into the order in which they are laid over each other: lower priorities first, then by name, so that
// it is the same whatever the order in which they came.
func Sort(policies []*Policy) { slices.SortFunc(policies, inOrder) }
