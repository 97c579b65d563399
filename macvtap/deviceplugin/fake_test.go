package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/stopwatch"
	"github.com/flowkeep/flowkeep/macvtap"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// kubelet is one in miniature: it removes all sockets when it starts, takes registrations, calls back before it answers them, and follows
// devices. What it has seen outlives its restarts.
type kubelet struct {
	*testing.T
	api.UnimplementedRegistrationServer
	dir    string
	watch  *stopwatch.Watch
	server *grpc.Server
	stop   context.CancelFunc
	ctx    context.Context

	mu        sync.Mutex
	news      chan struct{}
	endpoints map[string]*endpoint
	conns     []*grpc.ClientConn
	taken     map[string]int // registrations, by resource
	refuse    func(resource string) error
}

// endpoint is a resource's, as the kubelet has it.
type endpoint struct {
	api.DevicePluginClient
	conn    *grpc.ClientConn
	devices []*api.Device
	lists   int
	over    bool // the stream has ended
}

func newKubelet(t *testing.T, dir string) *kubelet {
	return &kubelet{T: t, dir: dir, watch: stopwatch.Start(t), news: make(chan struct{}, 1), endpoints: map[string]*endpoint{}, taken: map[string]int{}}
}

func (k *kubelet) start() {
	k.Helper()
	names, err := os.ReadDir(k.dir)
	if err != nil {
		k.Fatal(err)
	}
	for _, n := range names {
		if n.Type()&os.ModeSocket != 0 {
			err = errors.Join(err, os.Remove(filepath.Join(k.dir, n.Name())))
		}
	}
	l, lerr := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(k.dir, kubeletSocket), Net: "unix"})
	if err = errors.Join(err, lerr); err != nil {
		k.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	k.ctx, k.stop = context.WithCancel(context.Background())
	k.server = grpc.NewServer()
	api.RegisterRegistrationServer(k.server, k)
	go func(s *grpc.Server) { _ = s.Serve(l) }(k.server)
	k.Cleanup(k.kill)
}

// kill ends it as signal 9 does: its socket stays.
func (k *kubelet) kill() {
	k.stop()
	k.server.Stop()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.conns {
		c.Close()
	}
	k.conns = nil
	clear(k.endpoints)
}

func (k *kubelet) Register(ctx context.Context, r *api.RegisterRequest) (*api.Empty, error) {
	k.mu.Lock()
	refuse := k.refuse
	k.mu.Unlock()
	if refuse != nil {
		if err := refuse(r.ResourceName); err != nil {
			return nil, err
		}
	}
	if r.Version != "v1beta1" || strings.Contains(r.Endpoint, "/") || !strings.HasPrefix(r.ResourceName, macvtap.Domain+"/") {
		return nil, fmt.Errorf("%+v", r)
	}
	conn, err := dial(filepath.Join(k.dir, r.Endpoint))
	if err != nil {
		return nil, err
	}
	k.seen(func() { k.conns = append(k.conns, conn) })
	e := &endpoint{DevicePluginClient: api.NewDevicePluginClient(conn), conn: conn}
	if o, err := e.GetDevicePluginOptions(ctx, &api.Empty{}); err != nil || !o.GetPreferredAllocationAvailable || o.PreStartRequired {
		return nil, fmt.Errorf("options %v: %w", o, err)
	}
	name := strings.TrimPrefix(r.ResourceName, macvtap.Domain+"/")
	k.seen(func() {
		k.endpoints[name] = e
		k.taken[name]++
	})
	go k.follow(k.ctx, e)
	return &api.Empty{}, nil
}

func (k *kubelet) follow(ctx context.Context, e *endpoint) {
	stream, err := e.ListAndWatch(ctx, &api.Empty{})
	for err == nil {
		var list *api.ListAndWatchResponse
		if list, err = stream.Recv(); err == nil {
			k.seen(func() {
				e.devices = list.Devices
				e.lists++
			})
		}
	}
	k.seen(func() { e.over = true })
}

func (k *kubelet) seen(change func()) {
	k.mu.Lock()
	change()
	k.mu.Unlock()
	select {
	case k.news <- struct{}{}:
	default:
	}
}

// await returns how long it took until what the kubelet knows is so. While the machine stalls nothing is late.
func (k *kubelet) await(what string, limit time.Duration, is func() bool) time.Duration {
	k.Helper()
	began, end := k.watch.Elapsed(), k.watch.After(limit)
	for {
		k.mu.Lock()
		so := is()
		k.mu.Unlock()
		if so {
			return k.watch.Elapsed() - began
		}
		select {
		case <-k.news:
		case <-end:
			k.mu.Lock()
			defer k.mu.Unlock()
			k.Fatalf("not within %v: %s (registrations %v)", limit, what, k.taken)
		}
	}
}

// healthy is how many devices of a resource are; -1: the kubelet doesn't know it. To be called in await.
func (k *kubelet) healthy(resource string) (n int) {
	e := k.endpoints[resource]
	if e == nil || e.lists == 0 || e.over {
		return -1
	}
	for _, d := range e.devices {
		if d.Health == api.Healthy {
			n++
		}
	}
	return n
}

func (k *kubelet) ids(resource string) (ids []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, d := range k.endpoints[resource].devices {
		ids = append(ids, d.ID)
	}
	return ids
}

func (k *kubelet) endpoint(resource string) *endpoint {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.endpoints[resource]
}

// taps is an allocator that remembers.
type taps struct {
	mu    sync.Mutex
	given []Device
	err   error
}

func (a *taps) Allocate(_ context.Context, devices []Device) (g Grant, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return g, a.err
	}
	a.given = append(a.given, devices...)
	for i, d := range devices {
		g.Nodes = append(g.Nodes, Node{"/state/dev/" + d.ID, fmt.Sprintf("/dev/tap%d", i), "rw"})
	}
	return g, nil
}

// started is a manager that runs.
type started struct {
	*Manager
	taps *taps
	end  func()
}

func startIn(t *testing.T, dir string) *started {
	t.Helper()
	a := new(taps)
	m := New(Config{
		Dir:       dir,
		Allocator: a,
		Log:       slog.New(slog.DiscardHandler),
		Metrics:   NewMetrics(prometheus.NewRegistry()),
		finishing: time.Minute, // the machine may be slow
		following: 20 * time.Second,
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	s := &started{m, a, sync.OnceFunc(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})}
	t.Cleanup(s.end)
	return s
}

// resource has a parent for each capacity: p0, p1, ... all healthy.
func resource(name string, capacities ...int) macvtap.Resource {
	r := macvtap.Resource{Name: name}
	for i, c := range capacities {
		r.Parents = append(r.Parents, macvtap.Parent{Link: fmt.Sprintf("p%d", i), Mode: macvtap.Bridge, Capacity: c, Healthy: true})
	}
	return r
}

func sorted(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return list
}
