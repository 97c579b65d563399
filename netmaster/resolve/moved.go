package resolve

import (
	"iter"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Held is an endpoint as enforced (World), with a number that identifies it while it exists.
type Held struct {
	Place    uint32
	Endpoint *policy.Endpoint // nil: it was deleted
	Orphan   bool             // deleted from the API server or replaced, but still attached
}

// Moved returns the endpoints that the last Apply may have changed, possibly with duplicates.
func (e *Engine) Moved() iter.Seq[Held] {
	return func(yield func(Held) bool) {
		for _, id := range e.moved {
			h := Held{Place: uint32(id)}
			if ep := e.endpoints.at(id); ep.obj != nil {
				h.Endpoint, h.Orphan = e.inForce(ep), ep.orphan
			}
			if !yield(h) {
				return
			}
		}
	}
}

// noteMoved records the touched endpoints. Others that share an address with them are recorded by finishContended.
func (e *Engine) noteMoved() {
	for i := range e.batch.endpoints {
		e.moved = append(e.moved, e.batch.endpoints[i].id)
	}
	e.moved = append(e.moved, e.batch.fresh...)
}
