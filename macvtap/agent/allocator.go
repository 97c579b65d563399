package agent

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/flowkeep/flowkeep/macvtap"
	"github.com/flowkeep/flowkeep/macvtap/deviceplugin"
	"github.com/flowkeep/flowkeep/macvtap/tap"
)

// Store is where devices are written down that the CNI plugin then makes. Safe for concurrent use.
type Store interface {
	Allocate(resource, parent string, mode macvtap.Mode, id string) (tap.Device, error)
}

// Allocator gives devices away.
type Allocator struct {
	Store Store
	Given func() // some were
	Log   *slog.Logger
}

// Allocate makes the devices, and has their nodes be the container's. A device that can't be made is given away all the
// same: the kubelet never tries a pod again that is refused here, while the agent and the CNI plugin try to make the
// device.
func (a Allocator) Allocate(_ context.Context, devices []deviceplugin.Device) (g deviceplugin.Grant, err error) {
	defer a.Given()
	for _, d := range devices {
		made, err := a.Store.Allocate(d.Resource, d.Parent, d.Mode, d.ID)
		if err != nil {
			return g, fmt.Errorf("allocate %s: %w", d.ID, err)
		}
		if made.Pending != nil {
			a.Log.Warn("could not create an allocated device; retrying", "device", d.ID, "err", made.Pending)
		}
		g.Nodes = append(g.Nodes, deviceplugin.Node{Host: made.HostPath, Container: made.ContainerPath, Permissions: "rw"})
	}
	return g, nil
}
