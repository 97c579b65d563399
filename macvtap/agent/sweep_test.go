package agent

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/macvtap"
	"github.com/flowkeep/flowkeep/macvtap/deviceplugin"
	"github.com/flowkeep/flowkeep/macvtap/tap"
	"github.com/flowkeep/flowkeep/macvtap/taptest"
	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

func TestListings(t *testing.T) {
	device := func(generation, adopted int64, onNode bool) []tap.State {
		return []tap.State{{Record: tap.Record{ID: "d", Generation: generation, Adopted: adopted}, Allocated: true, OnNode: onNode}}
	}
	held := []macvtap.Holder{{Device: "d"}}
	now := time.Unix(0, 0)
	var l listings
	for _, c := range []struct {
		what    string
		after   time.Duration
		devices []tap.State
		holders []macvtap.Holder
		kubelet string
		want    string
	}{
		{"an agent that starts", 0, device(1, 0, true), nil, "a", ""},
		{"it may be an earlier kubelet's", unseenTimeout - time.Second, device(1, 0, true), nil, "a", ""},
		{"that was long ago", time.Second, device(1, 0, true), nil, "a", "drop"},
		{"it is gone", time.Second, device(1, 0, false), nil, "a", ""},
		{"it is allocated", time.Second, device(2, 0, true), nil, "a", ""},
		{"and not listed yet", unlistedTimeout - time.Second, device(2, 0, true), nil, "a", ""},
		{"a pod holds it", time.Second, device(2, 0, true), held, "a", "ensure"},
		{"the CNI plugin adopted it", time.Second, device(2, 2, false), held, "a", ""},
		{"it is allocated again", time.Second, device(3, 2, true), held, "a", "ensure"},
		{"the kubelet restarted and knows no pods", time.Hour, device(3, 2, true), nil, "b", ""},
		{"still", unseenTimeout - time.Second, device(3, 2, true), nil, "b", ""},
		{"it knows the pod", time.Second, device(3, 2, true), held, "b", "ensure"},
		{"the pod ended", time.Second, device(3, 2, true), nil, "b", ""},
		{"a moment later", unlistedTimeout - time.Second, device(3, 2, true), nil, "b", ""},
		{"it is over", time.Second, device(3, 2, true), nil, "b", "drop"},
	} {
		now = now.Add(c.after)
		next, ensure, drop := l.next(c.devices, c.holders, list{c.kubelet, 1}, now)
		got := ""
		if len(ensure) > 0 {
			got += "ensure"
		}
		if len(drop) > 0 {
			got += "drop"
		}
		if l = next; got != c.want {
			t.Errorf("%s: %q, not %q", c.what, got, c.want)
		}
	}
}

// lister is a kubelet's PodResources API.
type lister struct {
	api.UnimplementedPodResourcesListerServer
	mu   sync.Mutex
	pods map[string]string // device ids
	more int               // pods without devices
	each func()            // before each answer
}

func (l *lister) List(context.Context, *api.ListPodResourcesRequest) (*api.ListPodResourcesResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.each != nil {
		l.each()
	}
	answer := new(api.ListPodResourcesResponse)
	for n := range l.more {
		answer.PodResources = append(answer.PodResources, &api.PodResources{Name: fmt.Sprint("other-", n)})
	}
	for name, id := range l.pods {
		devices := []*api.ContainerDevices{{ResourceName: macvtap.FullName("dataplane"), DeviceIds: []string{id}}}
		answer.PodResources = append(answer.PodResources, &api.PodResources{Name: name, Containers: []*api.ContainerResources{{Devices: devices}}})
	}
	return answer, nil
}

// sweeper is an agent and a kubelet of a node with a parent eth0.
type sweeper struct {
	*testing.T
	*lister
	host   *netns.Namespace
	store  *tap.Store
	agent  *Agent
	known  listings
	now    time.Time
	socket string
	server *grpc.Server
}

func newSweeper(t *testing.T) *sweeper {
	t.Helper()
	dir, err := os.MkdirTemp("", "sw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &sweeper{T: t, lister: &lister{pods: map[string]string{}}, now: time.Now(), socket: filepath.Join(dir, "kubelet.sock")}
	s.host, _ = taptest.Node(t, "eth0")
	if s.store, err = tap.Open(filepath.Join(dir, "state")); err != nil {
		t.Fatal(err)
	}
	s.agent = New(Config{Records: s.store, PodResources: s.socket, Log: slog.New(slog.DiscardHandler)})
	s.kubelet()
	t.Cleanup(func() { s.server.Stop() })
	return s
}

// kubelet starts one, in the place of another.
func (s *sweeper) kubelet() {
	s.Helper()
	if s.server != nil {
		s.server.Stop()
	}
	l, err := net.Listen("unix", s.socket)
	if err != nil {
		s.Fatal(err)
	}
	s.server = grpc.NewServer()
	api.RegisterPodResourcesListerServer(s.server, s.lister)
	go func(server *grpc.Server) { _ = server.Serve(l) }(s.server)
}

func (s *sweeper) allocate(n int) (id string) {
	s.Helper()
	id = macvtap.DeviceID("dataplane", "eth0", n)
	a := Allocator{Store: s.store, Given: func() {}, Log: slog.New(slog.DiscardHandler)}
	taptest.In(s, s.host, func() error {
		_, err := a.Allocate(s.Context(), []deviceplugin.Device{{Resource: "dataplane", ID: id, Parent: "eth0", Mode: macvtap.Bridge}})
		return err
	})
	return id
}

// list has the agent list pods, after some time.
func (s *sweeper) list(after time.Duration) {
	s.Helper()
	s.now = s.now.Add(after)
	s.agent.listHolders(s.Context())
	if err := s.agent.in.holdersErr; err != nil {
		s.Fatal(err)
	}
	taptest.In(s, s.host, func() error { s.known = s.agent.sweep(s.known, s.now); return nil })
}

// links returns the devices on the node.
func (s *sweeper) links() []string {
	s.Helper()
	return slices.DeleteFunc(taptest.Links(s, s.host), func(name string) bool { return name == "eth0" })
}

// nodes returns how many device nodes there are.
func (s *sweeper) nodes() int {
	s.Helper()
	count := 0
	for n := range 20 {
		if _, err := os.Stat(s.store.Node(macvtap.DeviceID("dataplane", "eth0", n))); err == nil {
			count++
		}
	}
	return count
}

// attach has the CNI plugin's ADD give a device to a pod.
func (s *sweeper) attach(id, container string, pod *netns.Namespace) tap.Want {
	s.Helper()
	w := tap.Want{
		Device:      id,
		Network:     "net",
		ContainerID: container,
		IfName:      "net1",
		NetNS:       pod.Path(),
		Owner:       tap.DefaultOwner,
		Group:       tap.DefaultOwner,
	}
	taptest.In(s, s.host, func() error { _, err := s.store.Attach(w); return err })
	return w
}

// detach has the CNI plugin's DEL remove what attach made.
func (s *sweeper) detach(attached []tap.Want) {
	s.Helper()
	for _, w := range attached {
		taptest.In(s, s.host, func() error { return s.store.Detach(w) })
	}
}

// Every second pod has an attachment by the CNI plugin.
func TestSweep_AThousandPodsLeakNothing(t *testing.T) {
	s := newSweeper(t)
	s.list(0)
	var namespaces [2][10]*netns.Namespace
	for set := range namespaces {
		for n := range namespaces[set] {
			namespaces[set][n] = netns.NewNamed(t, fmt.Sprint("sweep-", set, "-", n))
		}
	}
	var late []tap.Want // of pods that ended, and whose devices others have by now
	for round := range 50 {
		var attached []tap.Want
		for n := range 20 {
			id := s.allocate(n)
			s.pods[fmt.Sprint("pod-", round, "-", n)] = id
			if n%2 == 1 {
				attached = append(attached, s.attach(id, fmt.Sprint("c-", round, "-", n), namespaces[round%2][n/2]))
			}
		}
		s.detach(late)
		s.list(time.Second)
		if links := s.links(); len(links) != 10 || s.nodes() != 20 {
			t.Fatalf("%d links on the node and %d device nodes of 20 pods", len(links), s.nodes())
		}
		for n := range 10 {
			has, had := taptest.Links(t, namespaces[round%2][n]), taptest.Links(t, namespaces[1-round%2][n])
			if len(has) != 1 || len(had) != 0 {
				t.Fatalf("round %d: a pod has %v, and the one before it %v", round, has, had)
			}
		}
		clear(s.pods)
		late = attached
		if round%2 == 1 { // the next pods get the devices before these are removed
			continue
		}
		s.detach(attached)
		late = nil
		s.list(15 * time.Second)
		s.list(unlistedTimeout)
		if links := s.links(); len(links) > 0 || s.nodes() > 0 {
			t.Fatalf("after %d pods %d links and %d device nodes are left", 20*(round+1), len(links), s.nodes())
		}
	}
	s.detach(late)
	s.list(15 * time.Second)
	s.list(unlistedTimeout)
	if links := s.links(); len(links) > 0 || s.nodes() > 0 {
		t.Errorf("%v and %d device nodes are left", links, s.nodes())
	}
}

// A kubelet that restarts between the allocation and the pod's start, and lists no pods at first, costs no pod its
// device.
func TestSweep_KubeletRestarts(t *testing.T) {
	s := newSweeper(t)
	s.list(0)
	id := s.allocate(0)
	s.kubelet()
	s.list(time.Second)
	s.list(unseenTimeout - 2*time.Second)
	if links := s.links(); len(links) != 1 {
		t.Fatalf("links %v", links)
	}
	s.pods["vm"] = id
	s.list(time.Second)
	s.agent.told(func(in *inputs) { in.intentErr = context.DeadlineExceeded })
	clear(s.pods)
	s.kubelet()
	s.list(time.Hour)
	s.list(time.Hour)
	if links := s.links(); len(links) != 1 {
		t.Fatalf("while the API server is away: links %v", links)
	}
	s.agent.told(func(in *inputs) { in.intentErr = nil })
	s.more = 1
	s.list(time.Second)
	s.list(unseenTimeout)
	if links := s.links(); len(links) != 0 || s.nodes() != 0 {
		t.Errorf("no pod holds it: links %v", links)
	}
}

// A kubelet that restarts between the allocation and the CNI plugin's ADD costs no pod its device: ADD makes it in the
// pod, also where the agent has removed it from the node by then, and the agent makes no second one.
func TestSweep_KubeletRestartsBeforeADD(t *testing.T) {
	for _, c := range []struct {
		what   string
		before func(s *sweeper, id string) // what happens between the restart and ADD
		links  int                         // on the node then
	}{
		{"at once", func(*sweeper, string) {}, 1},
		{"it lists other pods", func(s *sweeper, _ string) { s.list(time.Second); s.list(unseenTimeout - 2*time.Second) }, 1},
		{"it lists the pod", func(s *sweeper, id string) { s.pods["vm"] = id; s.list(time.Second); s.list(time.Hour) }, 1},
		{"the device is removed", func(s *sweeper, _ string) { s.list(time.Second); s.list(unseenTimeout); s.list(time.Second) }, 0},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := newSweeper(t)
			s.more = 1
			s.list(0)
			id := s.allocate(0)
			s.kubelet()
			c.before(s, id)
			if links := s.links(); len(links) != c.links {
				t.Fatalf("before ADD: links %v on the node", links)
			}
			pod := netns.NewNamed(t, "restart")
			w := s.attach(id, "c1", pod)
			whole := func(when string) {
				t.Helper()
				if in, on := taptest.Links(t, pod), s.links(); len(in) != 1 || len(on) != 0 || s.nodes() != 1 {
					t.Errorf("%s: links %v in the pod and %v on the node, %d device nodes", when, in, on, s.nodes())
				}
			}
			whole("after ADD")
			s.list(time.Second)
			s.list(unseenTimeout)
			s.list(time.Hour)
			whole("the pod is not listed for long")
			s.pods["vm"] = id
			s.list(time.Second)
			s.list(time.Hour)
			whole("the pod is listed")
			clear(s.pods)
			s.detach([]tap.Want{w})
			s.list(time.Second)
			s.list(unseenTimeout)
			if in, on := taptest.Links(t, pod), s.links(); len(in)+len(on)+s.nodes() > 0 {
				t.Errorf("after DEL: links %v in the pod and %v on the node, %d device nodes", in, on, s.nodes())
			}
		})
	}
}

// A kubelet that lists no pods at all, not even the agent's, does not know its pods: they keep their devices. So they
// do while its first list is not complete.
func TestSweep_KubeletListsNoPods(t *testing.T) {
	s := newSweeper(t)
	s.more = 1
	s.list(0)
	for n := range 3 {
		s.pods[fmt.Sprint("vm-", n)] = s.allocate(n)
	}
	s.list(time.Second)
	pods := maps.Clone(s.pods)
	clear(s.pods)
	s.more = 0
	s.kubelet()
	for range 24 {
		s.list(time.Hour)
	}
	if links := s.links(); len(links) != 3 || s.nodes() != 3 {
		t.Fatalf("the kubelet listed no pods for a day: links %v", links)
	}
	s.more = 1
	s.list(time.Hour)
	s.list(unseenTimeout - time.Second)
	if links := s.links(); len(links) != 3 {
		t.Fatalf("the kubelet has listed its first pod: links %v", links)
	}
	s.pods["vm-0"] = pods["vm-0"]
	s.list(time.Second)
	if links := s.links(); len(links) != 1 || s.nodes() != 1 {
		t.Errorf("two pods are not listed for %s: links %v", unseenTimeout, links)
	}
}

// A list of a kubelet that ends meanwhile counts for none: by it the next kubelet would have listed the pods.
func TestSweep_KubeletRestartsDuringAList(t *testing.T) {
	s := newSweeper(t)
	s.more = 1
	s.pods["vm"] = s.allocate(0)
	s.each = func() {
		if err := os.Chtimes(s.socket, time.Time{}, time.Now()); err != nil {
			t.Error(err)
		}
	}
	s.agent.listHolders(t.Context())
	if by := s.agent.in.list; by.kubelet != "" || len(s.agent.in.holders) != 1 {
		t.Errorf("the list is of %q, with %v", by.kubelet, s.agent.in.holders)
	}
	s.each = nil
	s.agent.listHolders(t.Context())
	if by := s.agent.in.list; by != (list{kubeletOf(s.socket), 2}) {
		t.Errorf("the list is %v", by)
	}
}

// A device that a listed pod holds is made again where it is missing.
func TestSweep_MissingDeviceIsMade(t *testing.T) {
	s := newSweeper(t)
	s.list(0)
	s.pods["vm"] = s.allocate(0)
	taptest.In(t, s.host, func() error { return s.store.Drop(s.pods["vm"], 1) })
	s.list(time.Second)
	if links := s.links(); len(links) != 1 || s.nodes() != 1 {
		t.Errorf("links %v", links)
	}
}
