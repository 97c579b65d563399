package main

import (
	"errors"
	"strings"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/nodestate/native"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// nativeRefusals returns the reasons for which the native backend refuses a desired state, or why it cannot plan.
func (n *nodeReport) nativeRefusals(desired nmstate.State) (reasons []string, note string) {
	node := native.Node{
		Report:       n.current,
		Capabilities: n.state.Status.Capabilities,
		Volatile:     n.state.Annotations[wellknown.AnnotationAllowVolatile] == "true",
		Addresses:    n.addresses,
	}
	_, err := native.Plan(node, desired, native.Own{Bridge: enforcedBridge})
	switch {
	case err == nil:
		return nil, ""
	case errors.Is(err, native.ErrReport):
		return nil, err.Error()
	}
	return strings.Split(err.Error(), "\n"), ""
}
