package service

import (
	"fmt"
	"slices"
)

// Place is where a pod is.
type Place struct {
	Node string
	Zone string // the node's label topology.kubernetes.io/zone
}

// Outcome is what becomes of a packet to a frontend.
type Outcome uint8

// Outcomes.
const (
	Translated Outcome = iota // to one of Choice.Backends
	Rejected                  // with an ICMP error or RST: no endpoint of the Service serves
	Dropped                   // the Service has endpoints, and none that the node may use
)

var outcomeNames = []string{"translated", "rejected", "dropped"}

// String returns the outcome in a word.
func (o Outcome) String() string { return outcomeNames[o] }

// Choice is the endpoints that pods of a node may use for a frontend.
type Choice struct {
	Outcome  Outcome
	Backends []Backend
	Reason   string // why these, or why none
}

// Choose returns which of the endpoints behind a frontend a pod may use. Its rules are kube-proxy's
// (pkg/proxy/topology.go) for packets of pods of the node:
//
//   - A ready endpoint is used. If no endpoint is ready, those are used that terminate and still serve (KEP-1669).
//   - If every ready endpoint has a hint for a node, and one is for this node, only those with this node are used
//     (KEP-4444); else the same with zones (KEP-2433).
//   - With internalTrafficPolicy: Local a ClusterIP leads to endpoints of this node alone, hints do not count, and a
//     packet is dropped if there is none (KEP-2086).
//   - externalTrafficPolicy: Local does not hold for pods: kube-proxy treats their packets to external addresses and
//     node ports as internal ones. Nor does internalTrafficPolicy hold there.
//   - A Service of which no endpoint is ready or serves rejects packets.
func Choose(s *Service, f *Frontend, behind []Backend, at Place) Choice {
	if f.Kind == ClusterIP && s.InternalLocal {
		return chooseLocal(behind, at)
	}
	usable, terminating := usable(behind)
	switch {
	case len(usable) == 0:
		return rejected(behind)
	case terminating:
		return Choice{Backends: usable, Reason: reasonTerminating}
	}
	near, hint := preferred(usable, at)
	return Choice{Backends: near, Reason: hint}
}

const (
	reasonReady       = "ready endpoints"
	reasonTerminating = "no endpoint is ready: those that terminate and still serve"
)

func rejected(behind []Backend) Choice {
	if len(behind) == 0 {
		return Choice{Outcome: Rejected, Reason: "there are no endpoints"}
	}
	return Choice{Outcome: Rejected, Reason: "no endpoint is ready, and none that terminates serves"}
}

func chooseLocal(behind []Backend, at Place) Choice {
	if all, _ := usable(behind); len(all) == 0 {
		return rejected(behind)
	}
	local := filter(behind, func(b *Backend) bool { return b.Node == at.Node })
	of, terminating := usable(local)
	reason := "internalTrafficPolicy: Local, endpoints of the node"
	switch {
	case len(of) == 0:
		return Choice{Outcome: Dropped, Reason: "internalTrafficPolicy: Local, and no endpoint of the node serves"}
	case terminating:
		reason += " that terminate and still serve"
	}
	return Choice{Backends: of, Reason: reason}
}

// usable returns the endpoints that are ready, or else those that terminate and serve.
func usable(all []Backend) (out []Backend, terminating bool) {
	if out = filter(all, func(b *Backend) bool { return b.Ready }); len(out) > 0 {
		return out, false
	}
	return filter(all, func(b *Backend) bool { return b.Serving && b.Terminating }), true
}

// preferred returns the ready endpoints with a hint for the place, if all have hints and one has it; else all.
func preferred(ready []Backend, at Place) ([]Backend, string) {
	if near := hinted(ready, at.Node, func(b *Backend) []string { return b.NodeHints }); near != nil {
		return near, fmt.Sprintf("ready endpoints with a hint for node %s", at.Node)
	}
	if near := hinted(ready, at.Zone, func(b *Backend) []string { return b.ZoneHints }); near != nil {
		return near, fmt.Sprintf("ready endpoints with a hint for zone %s", at.Zone)
	}
	return ready, reasonReady
}

// hinted returns the endpoints with a hint for a name; nil if there is none, or an endpoint has no hints.
func hinted(ready []Backend, name string, hints func(*Backend) []string) []Backend {
	if slices.ContainsFunc(ready, func(b Backend) bool { return len(hints(&b)) == 0 }) {
		return nil
	}
	return filter(ready, func(b *Backend) bool { return slices.Contains(hints(b), name) })
}

func filter(all []Backend, keep func(*Backend) bool) (out []Backend) {
	for i := range all {
		if keep(&all[i]) {
			out = append(out, all[i])
		}
	}
	return out
}
