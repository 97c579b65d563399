package pipeline

import "github.com/flowkeep/flowkeep/ofctl"

// Purpose is the part of a flow in verdicts. It decides whether the flow can be left out when the switch refuses it.
type Purpose uint8

// Purposes.
const (
	// Infrastructure flows lead packets to the flows of policies. Without one, packets can pass that policies deny.
	Infrastructure Purpose = iota
	// Grant flows let packets pass. Without one, more packets are denied.
	Grant
	// Deny flows end packets. Without one, packets can pass that policies deny.
	Deny
	// DryRun flows count what a dry run would deny. Without one, verdicts are the same.
	DryRun
	// Serve flows lead packets to a Service's endpoints and do nothing else. Without one, and with what Refuse makes
	// of its Service, fewer packets reach an endpoint.
	Serve
)

// purposes has the purpose of each kind in cookies. A flow of any other kind is Infrastructure.
//
// KindClause is a Grant because each rule of a clause permits. The clauses of a rule that denies need another kind.
var purposes = map[Kind]Purpose{
	KindStatic:      Infrastructure,
	KindEndpoint:    Infrastructure,
	KindApplied:     Infrastructure,
	KindPeer:        Infrastructure,
	KindBlock:       Infrastructure,
	KindClause:      Grant,
	KindAllow:       Grant,
	KindAllowAll:    Grant,
	KindDefaultDrop: Deny,
	KindFrontend:    Serve,
	KindSlot:        Serve,
	KindBackend:     Serve,
	KindLearned:     Serve,
}

// PurposeOf returns the purpose of a flow. It follows from the kind in the flow's cookie, which is set where the flow
// is made, and neither from the priority nor from the match. Flows that this layout did not make are Infrastructure.
func PurposeOf(f *ofctl.Flow) Purpose {
	kind, _, ok := ParseCookie(f.Cookie)
	switch {
	case !ok || kind == KindStatic:
		return Infrastructure
	case servesDryRuns(f.Table):
		return DryRun
	}
	return purposes[kind]
}
