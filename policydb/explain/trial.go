package explain

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Attempt is a policy that is tried on a world: put in place of the one of its name, or removed.
type Attempt struct {
	Policy *policy.Policy
	// Remove takes the policy of this name away; of Policy only the names count.
	Remove bool
	// TypesOmitted: the object names no policyTypes. Kubernetes then keeps those of the object that is there.
	TypesOmitted bool
	// ModeOmitted: the object is a manifest without the annotation of a dry run, which kubectl may leave on the object
	// that is there.
	ModeOmitted bool
}

// Action is what an Attempt does to a world.
type Action string

// Actions.
const (
	Created   Action = "created"
	Changed   Action = "changed"
	Unchanged Action = "unchanged"
	Removed   Action = "removed"
	Missing   Action = "missing" // there is nothing to remove
)

// Tried is what became of an Attempt.
type Tried struct {
	Policy string `json:"policy"` // namespace/name
	Action Action `json:"action"`
	// Notes has sentences: rejected parts of the policy, and other remarks.
	Notes []string `json:"notes,omitempty"`
}

// Try returns the world with policies put or removed, and the effect on each policy in the order of the attempts. If
// several attempts have the same name, the last one counts. The worlds share everything else, and unchanged policies.
func Try(w *policy.World, attempts []Attempt) (*policy.World, []Tried) {
	at := map[string]int{}
	for i, p := range w.Policies {
		at[p.ID()] = i
	}
	last := map[string]int{}
	for i := range attempts {
		last[attempts[i].Policy.ID()] = i
	}
	known := map[string]bool{}
	for i := range w.Namespaces {
		known[w.Namespaces[i].Name] = true
	}
	after := *w
	after.Policies = slices.Clone(w.Policies)
	tried := make([]Tried, 0, len(last))
	for _, i := range slices.Sorted(maps.Values(last)) {
		a := &attempts[i]
		var old *policy.Policy
		if n, ok := at[a.Policy.ID()]; ok {
			old = after.Policies[n]
		}
		now, t := a.on(old)
		if !a.Remove && !known[a.Policy.Namespace] {
			t.Notes = append(t.Notes, "there is no namespace "+a.Policy.Namespace)
		}
		switch n, ok := at[a.Policy.ID()]; {
		case ok:
			after.Policies[n] = now
		case now != nil:
			after.Policies = append(after.Policies, now)
		}
		tried = append(tried, t)
	}
	after.Policies = slices.DeleteFunc(after.Policies, func(p *policy.Policy) bool { return p == nil })
	return &after, tried
}

// on returns the policy that the attempt leaves in place of another one; either may be nil.
func (a *Attempt) on(old *policy.Policy) (now *policy.Policy, t Tried) {
	t.Policy = a.Policy.ID()
	switch {
	case a.Remove && old == nil:
		t.Action = Missing
		return nil, t
	case a.Remove:
		t.Action = Removed
		return nil, t
	case old == nil:
		t.Action, t.Notes = Created, notes(a.Policy)
		return a.Policy, t
	}
	put := *a.Policy
	if a.TypesOmitted && (put.IsolatesIngress != old.IsolatesIngress || put.IsolatesEgress != old.IsolatesEgress) {
		put.IsolatesIngress, put.IsolatesEgress = old.IsolatesIngress, old.IsolatesEgress
		t.Notes = append(t.Notes,
			"it has no policyTypes: kubectl apply keeps those of the policy in the cluster, "+typesOf(old))
	}
	if a.ModeOmitted && old.DryRun {
		t.Notes = append(t.Notes,
			"the policy in the cluster is a dry run, and remains one if kubectl annotate set the annotation: "+
				"kubectl apply removes only annotations that it has applied")
	}
	t.Notes = append(notes(a.Policy), t.Notes...)
	if sameRules(&put, old) {
		t.Action = Unchanged
		return old, t
	}
	t.Action = Changed
	return &put, t
}

func notes(p *policy.Policy) (notes []string) {
	for _, problem := range p.Problems {
		notes = append(notes, policy.ProblemText(problem))
	}
	if p.DryRun {
		notes = append(notes, "it is a dry run: it isolates no pod and allows nothing")
	}
	return notes
}

func typesOf(p *policy.Policy) string {
	switch {
	case p.IsolatesIngress && p.IsolatesEgress:
		return "Ingress and Egress"
	case p.IsolatesEgress:
		return "Egress only"
	}
	return "Ingress only"
}

// sameRules reports whether two policies of one name have the same meaning.
func sameRules(a, b *policy.Policy) bool {
	x, y := *a, *b
	var texts [2][]byte
	for i, p := range []*policy.Policy{&x, &y} {
		p.UID, p.Generation, p.Copy, p.Problems = "", 0, "", nil
		texts[i], _ = json.Marshal(p) // so that a list that is empty equals none
	}
	return bytes.Equal(texts[0], texts[1])
}
