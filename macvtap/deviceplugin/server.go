package deviceplugin

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/macvtap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Device is one that the kubelet gives to a container.
type Device struct {
	Resource string // without the domain
	ID       string
	Parent   string
	Mode     macvtap.Mode
}

// Grant is what a container gets for its devices.
type Grant struct {
	Nodes       []Node
	Env         map[string]string
	Annotations map[string]string
}

// Node is a device node of the container.
type Node struct{ Host, Container, Permissions string }

// Allocator readies devices. Safe for concurrent use.
type Allocator interface {
	// Allocate readies all of them, for one container.
	Allocate(ctx context.Context, devices []Device) (Grant, error)
}

// allocateLimit is how long readying a container's devices may take.
const allocateLimit = 20 * time.Second

// offer is the service of one resource for the kubelet. Safe for concurrent use.
type offer struct {
	api.UnimplementedDevicePluginServer
	resource  string
	allocator Allocator
	metrics   *Metrics
	counted   func() // a stream has begun or ended

	mu      sync.Mutex
	devices []device
	over    bool          // nothing more is given out, and streams end
	changed chan struct{} // closed when devices are others
	streams int           // that live
	begun   int           // that ever did
}

func newOffer(resource string, cfg Config, counted func()) *offer {
	return &offer{resource: resource, allocator: cfg.Allocator, metrics: cfg.Metrics, counted: counted, changed: make(chan struct{})}
}

// set takes the devices there are now.
func (o *offer) set(devices []device) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !slices.Equal(o.devices, devices) {
		o.devices = devices
		o.tell()
	}
	o.metrics.devices(o.resource, o.devices)
}

// finish: there are no devices any more.
func (o *offer) finish() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.over {
		o.devices, o.over = nil, true
		o.tell()
	}
}

func (o *offer) tell() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// followers are how many streams there are, and how many there have been.
func (o *offer) followers() (live, begun int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.streams, o.begun
}

func (o *offer) now() (devices []device, over bool, changed <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.devices, o.over, o.changed
}

func (o *offer) count(by int) {
	o.mu.Lock()
	o.streams += by
	o.begun += max(0, by)
	o.mu.Unlock()
	o.counted()
}

// GetDevicePluginOptions returns the optional calls of the plugin.
func (o *offer) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return options(), nil
}

func options() *api.DevicePluginOptions {
	return &api.DevicePluginOptions{GetPreferredAllocationAvailable: true}
}

// ListAndWatch sends the devices at once, and then at each change.
func (o *offer) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	o.count(1)
	defer o.count(-1)
	for {
		devices, over, changed := o.now()
		if err := stream.Send(&api.ListAndWatchResponse{Devices: listed(devices)}); err != nil {
			return err
		}
		if over {
			return nil
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func listed(devices []device) []*api.Device {
	list := make([]*api.Device, len(devices))
	for i, d := range devices {
		list[i] = &api.Device{ID: d.id, Health: api.Unhealthy}
		if d.healthy {
			list[i].Health = api.Healthy
		}
	}
	return list
}

// GetPreferredAllocation spreads devices over parents.
func (o *offer) GetPreferredAllocation(_ context.Context, in *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	devices, _, _ := o.now()
	out := new(api.PreferredAllocationResponse)
	for _, r := range in.GetContainerRequests() {
		ids := preferred(devices, r.GetAvailableDeviceIDs(), r.GetMustIncludeDeviceIDs(), int(r.GetAllocationSize()))
		out.ContainerResponses = append(out.ContainerResponses, &api.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return out, nil
}

// Allocate readies devices for containers. A device whose parent is away for the moment is given out all the same: the kubelet chose it
// when it was well, and a pod that is refused here is never tried again, while its network is.
func (o *offer) Allocate(ctx context.Context, in *api.AllocateRequest) (*api.AllocateResponse, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, allocateLimit, fmt.Errorf("not done within %v", allocateLimit))
	defer cancel()
	out := new(api.AllocateResponse)
	for _, r := range in.GetContainerRequests() {
		c, err := o.allocate(ctx, r.GetDevicesIds())
		if err != nil {
			o.metrics.allocated(o.resource, err)
			return nil, err
		}
		out.ContainerResponses = append(out.ContainerResponses, c)
	}
	o.metrics.allocated(o.resource, nil)
	return out, nil
}

func (o *offer) allocate(ctx context.Context, ids []string) (*api.ContainerAllocateResponse, error) {
	devices, err := o.find(ids)
	if err != nil {
		return nil, err
	}
	g, err := o.allocator.Allocate(ctx, devices)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "ready %v: %v", ids, err)
	}
	out := &api.ContainerAllocateResponse{Envs: g.Env, Annotations: g.Annotations}
	for _, n := range g.Nodes {
		out.Devices = append(out.Devices, &api.DeviceSpec{HostPath: n.Host, ContainerPath: n.Container, Permissions: n.Permissions})
	}
	return out, nil
}

// find has the devices of these ids, or says what is wrong with them.
func (o *offer) find(ids []string) (list []Device, err error) {
	devices, over, _ := o.now()
	if over {
		return nil, status.Errorf(codes.NotFound, "this node exposes no resource %s any more", macvtap.FullName(o.resource))
	}
	known := byID(devices)
	for _, id := range ids {
		d, ok := known[id]
		if !ok {
			return nil, status.Errorf(codes.NotFound, "%s has no device %q, or it was requested twice", macvtap.FullName(o.resource), id)
		}
		delete(known, id)
		list = append(list, Device{o.resource, d.id, d.parent, d.mode})
	}
	return list, nil
}
