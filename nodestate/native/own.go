package native

import (
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// Own says what on the node is Flowkeep's, and nobody else's to change.
type Own struct {
	Bridge string // that Flowkeep enforces policies on
}

// why tells why an interface of the name is not to be touched, "" if that is nowhere in its name.
func (o Own) why(name string) string {
	return nmstate.WhyOfFlowkeep(name, o.Bridge)
}

// rule tells whether a routing rule is Flowkeep's.
func (o Own) rule(r *rule) bool {
	return r.Iif != "" && o.why(r.Iif) != "" || isOwnTable(r.Table)
}
