package agent

import (
	"context"
	"fmt"

	"github.com/flowkeep/flowkeep/internal/macvtap"
	"github.com/flowkeep/flowkeep/netplugin/macvtap/deviceplugin"
	"github.com/flowkeep/flowkeep/netplugin/macvtap/tap"
)

// Store is where devices are written down that the CNI plugin then makes. Safe for concurrent use.
type Store interface {
	Allocate(resource, parent string, mode macvtap.Mode, id string) (tap.Device, error)
}

// Allocator gives devices away.
type Allocator struct {
	Store Store
	Given func() // some were
}

// Allocate writes the devices down, and has their nodes be the container's. The nodes are there once the pod is attached to its network.
func (a Allocator) Allocate(_ context.Context, devices []deviceplugin.Device) (g deviceplugin.Grant, err error) {
	defer a.Given()
	for _, d := range devices {
		made, err := a.Store.Allocate(d.Resource, d.Parent, d.Mode, d.ID)
		if err != nil {
			return g, fmt.Errorf("allocate %s: %w", d.ID, err)
		}
		g.Nodes = append(g.Nodes, deviceplugin.Node{Host: made.HostPath, Container: made.ContainerPath, Permissions: "rw"})
	}
	return g, nil
}
