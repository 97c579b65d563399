package native

import (
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// Own has the parts of the node that only Flowkeep may change.
type Own struct {
	Bridge string // that Flowkeep enforces policies on
}

// why returns the reason for which an interface of the name may not be changed, or "" if its name gives none.
func (o Own) why(name string) string {
	return nmstate.WhyOfFlowkeep(name, o.Bridge)
}

// rule reports whether a routing rule is Flowkeep's.
func (o Own) rule(r *rule) bool {
	return r.Iif != "" && o.why(r.Iif) != "" || isOwnTable(r.Table)
}
