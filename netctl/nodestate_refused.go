package main

import (
	"errors"
	"net/netip"
	"slices"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// enforcedBridge is the bridge that netplugin enforces on, by default.
const enforcedBridge = "fk0"

// nativeBackend is the name of the backend whose plans netctl computes.
const nativeBackend = "native"

// nodeReport is a node as its object reports it, to find out which desired states its agent refuses.
type nodeReport struct {
	state   *nmstatev1.NodeNetworkState
	current nmstate.State
	native  bool   // the functions of the native backend plan for the node
	note    string // why they cannot, although the node has that backend
	// addresses are the Node's; none: they are not known.
	addresses []netip.Addr
}

func reportOf(state *nmstatev1.NodeNetworkState, current nmstate.State) *nodeReport {
	n := &nodeReport{state: state, current: current, native: state.Status.Backend == nativeBackend}
	if n.native && state.Status.Truncated {
		n.native, n.note = false, "its report is truncated: the agent may refuse more than this plan does"
	}
	return n
}

// newRefusals returns the errors for which the node's agent refuses a desired state, but for those of the present one.
func (n *nodeReport) newRefusals(was, then nmstate.State) error {
	before := n.refusals(was)
	var refused []error
	for _, reason := range n.refusals(then) {
		if !slices.Contains(before, reason) {
			refused = append(refused, errors.New(reason))
		}
	}
	return errors.Join(refused...)
}

func (n *nodeReport) refusals(desired nmstate.State) []string {
	status := &n.state.Status
	reasons := nmstate.RefusedTypes(desired, n.current, status.Backend, status.Capabilities)
	if n.native {
		more, note := n.nativeRefusals(desired)
		if note == "" {
			return append(reasons, more...)
		}
		n.note = note
	}
	reasons = append(reasons, nmstate.RefusedNames(desired, enforcedBridge)...)
	reasons = append(reasons, nmstate.RefusedReported(desired)...)
	return append(reasons, nmstate.Refused(desired, status.Backend)...)
}
