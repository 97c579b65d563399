package resolve

import (
	"iter"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Held is an endpoint as it is in force (World), at a place that is its own for as long as it is there.
type Held struct {
	Place    uint32
	Endpoint *policy.Endpoint // nil: it is gone
	Ghost    bool             // still wired, but no longer the API's pod of that name
}

// Moved are the endpoints that the last Apply may have changed as they are in force, each once or more.
func (e *Engine) Moved() iter.Seq[Held] {
	return func(yield func(Held) bool) {
		for _, id := range e.moved {
			h := Held{Place: uint32(id)}
			if ep := e.endpoints.at(id); ep.obj != nil {
				h.Endpoint, h.Ghost = e.inForce(ep), ep.ghost
			}
			if !yield(h) {
				return
			}
		}
	}
}

// noteMoved notes whom the batch touched; those who share an address with them are noted where that is settled.
func (e *Engine) noteMoved() {
	for i := range e.batch.endpoints {
		e.moved = append(e.moved, e.batch.endpoints[i].id)
	}
	e.moved = append(e.moved, e.batch.fresh...)
}
