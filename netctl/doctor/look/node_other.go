//go:build !linux

package look

import (
	"context"
	"errors"

	"github.com/flowkeep/flowkeep/netctl/doctor"
)

// Node returns an error: nodes run Linux.
func Node(context.Context, *Options) (*doctor.NodeFacts, error) {
	return nil, errors.New("netctl doctor node looks at the node that it runs on, and a node of Flowkeep runs Linux")
}
