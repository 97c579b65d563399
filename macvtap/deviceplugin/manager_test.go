package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/stopwatch"
	"github.com/flowkeep/flowkeep/macvtap"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// again is less than idle, after which a plugin looks at the kubelet's socket without an event. TestPauses has the time
// until a retry.
const again = 45 * time.Second

// kubeletDir is short: unix sockets' paths are.
func kubeletDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestTenResources(t *testing.T) {
	dir := kubeletDir(t)
	k, s := newKubelet(t, dir), startIn(t, dir)
	k.start()
	var all []macvtap.Resource
	for i := range 10 {
		all = append(all, resource(fmt.Sprintf("net%d", i), 100))
	}
	s.Set(all)
	took := k.await("10 resources with 100 devices each", again, func() bool {
		for i := range 10 {
			if k.healthy(fmt.Sprintf("net%d", i)) != 100 {
				return false
			}
		}
		return true
	})
	t.Logf("10 resources were registered and followed after %v", took)
}

// Whatever the kubelet does, it is registered with again soon, and sees the same devices.
func TestKubeletComesAndGoes(t *testing.T) {
	dir := kubeletDir(t)
	k, s := newKubelet(t, dir), startIn(t, dir)
	s.Set([]macvtap.Resource{resource("data", 2, 3), resource("quick", 1)})
	back := func(what string) {
		t.Helper()
		took := k.await(what, again, func() bool { return k.healthy("data") == 5 && k.healthy("quick") == 1 })
		t.Logf("%s: after %v", what, took)
		want := []string{"data:p0:0", "data:p0:1", "data:p1:0", "data:p1:1", "data:p1:2"}
		if ids := k.ids("data"); !slices.Equal(ids, want) {
			t.Errorf("%s: %v", what, ids)
		}
	}
	remove := func(paths ...string) {
		t.Helper()
		for _, p := range paths {
			if err := os.RemoveAll(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	k.start()
	back("the kubelet came late")
	k.kill()
	k.start()
	back("it was restarted")
	k.kill()
	awaitState(t, s, "data", "refused")
	k.start()
	back("it was restarted after a while, its old socket still there")
	k.kill()
	remove(filepath.Join(dir, kubeletSocket))
	awaitState(t, s, "data", "no kubelet")
	k.start()
	back("its socket was gone for a while")
	k.kill()
	remove(dir)
	awaitState(t, s, "data", "no kubelet")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	k.start()
	back("the directory was made anew")
	k.kill()
	if err := errors.Join(os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir + ".old")
	k.start()
	back("another directory took its place")
}

// awaitState waits until a resource is not registered for a reason that has this in it; "" waits until it is.
func awaitState(t *testing.T, s *started, resource, why string) {
	t.Helper()
	end := stopwatch.Start(t).After(2 * again)
	for {
		state := s.States()[resource]
		if why == "" && state.Registered || why != "" && !state.Registered && strings.Contains(state.Why, why) {
			return
		}
		select {
		case <-end:
			t.Fatalf("%s is %+v, not %q", resource, state, why)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Sockets that somebody removes from under a kubelet that follows are no reason to disturb it; one that hung up is registered with again,
// by a new socket.
func TestSocketsRemoved(t *testing.T) {
	dir := kubeletDir(t)
	k, s := newKubelet(t, dir), startIn(t, dir)
	k.start()
	s.Set([]macvtap.Resource{resource("data", 2)})
	k.await("registered", again, func() bool { return k.healthy("data") == 2 })
	awaitState(t, s, "data", "")
	own := filepath.Join(dir, socketName(dir, "data"))
	if err := os.Remove(own); err != nil {
		t.Fatal(err)
	}
	s.Set([]macvtap.Resource{resource("data", 3)})
	k.await("more devices over the old stream", again, func() bool { return k.healthy("data") == 3 })
	if k.taken["data"] != 1 {
		t.Errorf("registered %d times", k.taken["data"])
	}
	k.endpoint("data").conn.Close()
	k.await("registered again", again, func() bool { return k.taken["data"] >= 2 && k.healthy("data") == 3 })
	if _, err := os.Stat(own); err != nil {
		t.Error(err)
	}
}

// A kubelet that hangs keeps its connections; the one that was started in its place is registered with all the same, and the old one is hung up on.
func TestOldKubeletHangs(t *testing.T) {
	dir := kubeletDir(t)
	old, s := newKubelet(t, dir), startIn(t, dir)
	old.start()
	s.Set([]macvtap.Resource{resource("data", 2)})
	old.await("registered", again, func() bool { return old.healthy("data") == 2 })
	k := newKubelet(t, dir)
	k.start()
	k.await("registered with the new one", again, func() bool { return k.healthy("data") == 2 })
	old.await("hung up on the old one", again, func() bool { return old.endpoints["data"].over })
}

func TestListsAreSentOnChangeOnly(t *testing.T) {
	dir := kubeletDir(t)
	k, s := newKubelet(t, dir), startIn(t, dir)
	k.start()
	r := resource("data", 500, 500)
	s.Set([]macvtap.Resource{r})
	k.await("1000 devices", again, func() bool { return k.healthy("data") == 1000 })
	for range 100 {
		s.Set([]macvtap.Resource{r, resource("other", 1)})
	}
	r = resource("data", 500, 500)
	r.Parents[1].Healthy, r.Parents[1].Why = false, "down"
	s.Set([]macvtap.Resource{r, resource("other", 1)})
	k.await("half are healthy", again, func() bool { return k.healthy("data") == 500 && k.healthy("other") == 1 })
	if e := k.endpoint("data"); e.lists != 2 || len(e.devices) != 1000 {
		t.Errorf("%d lists, %d devices", e.lists, len(e.devices))
	}
	r = resource("data", 500, 500)
	s.Set([]macvtap.Resource{r, resource("other", 1)})
	k.await("all are well again", again, func() bool { return k.healthy("data") == 1000 })
	if k.taken["data"] != 1 {
		t.Errorf("registered %d times", k.taken["data"])
	}
}

// What is exposed no more ends with an empty list, its socket goes, and it can come back at once.
func TestResourceGoesAndComesBack(t *testing.T) {
	dir := kubeletDir(t)
	k, s := newKubelet(t, dir), startIn(t, dir)
	k.start()
	both := []macvtap.Resource{resource("data", 2), resource("other", 1)}
	s.Set(both)
	k.await("registered", again, func() bool { return k.healthy("data") == 2 && k.healthy("other") == 1 })
	old := k.endpoint("data")
	s.Set(both[1:])
	k.await("an empty list", again, func() bool { return old.over && old.lists == 2 && len(old.devices) == 0 })
	if _, err := old.Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: []string{"data:p0:0"}}}}); err == nil {
		t.Error("given out although it is exposed no more")
	}
	if _, ok := s.States()["data"]; ok {
		t.Error("it still has a state")
	}
	for range 20 {
		s.Set(both)
		s.Set(both[1:])
	}
	s.Set(both)
	k.await("it is back", again, func() bool { return k.healthy("data") == 2 })
	if k.taken["other"] != 1 {
		t.Errorf("the other was registered %d times", k.taken["other"])
	}
	s.end()
	if left, _ := filepath.Glob(filepath.Join(dir, "macvtap-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestAllocate(t *testing.T) {
	dir := kubeletDir(t)
	k, s := newKubelet(t, dir), startIn(t, dir)
	k.start()
	r := resource("data", 2, 2)
	r.Parents[1].Mode, r.Parents[1].Healthy = macvtap.Private, false
	s.Set([]macvtap.Resource{r})
	k.await("registered", again, func() bool { return k.healthy("data") == 2 })
	e := k.endpoint("data")
	ask := func(ids ...[]string) (*api.AllocateResponse, error) {
		in := new(api.AllocateRequest)
		for _, list := range ids {
			in.ContainerRequests = append(in.ContainerRequests, &api.ContainerAllocateRequest{DevicesIds: list})
		}
		return e.Allocate(t.Context(), in)
	}
	out, err := ask([]string{"data:p0:1", "data:p1:0"}, nil)
	if err != nil || len(out.ContainerResponses) != 2 || len(out.ContainerResponses[0].Devices) != 2 || len(out.ContainerResponses[1].Devices) != 0 {
		t.Fatalf("%v: %v", err, out)
	}
	if d := out.ContainerResponses[0].Devices[0]; d.HostPath != "/state/dev/data:p0:1" || d.ContainerPath != "/dev/tap0" || d.Permissions != "rw" {
		t.Errorf("%v", d)
	}
	want := []Device{{"data", "data:p0:1", "p0", macvtap.Bridge}, {"data", "data:p1:0", "p1", macvtap.Private}}
	if !slices.Equal(s.taps.given, want) {
		t.Errorf("%v", s.taps.given)
	}
	for what, ids := range map[string][]string{"unknown": {"data:p9:0"}, "empty": {""}, "twice": {"data:p0:0", "data:p0:0"}, "another resource's": {"other:p0:0"}} {
		if _, err := ask(ids); status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "macvtap.network.kubevirt.io/data") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if len(s.taps.given) != 2 {
		t.Errorf("readied although refused: %v", s.taps.given)
	}
	s.taps.err = errors.New("the disk is full")
	if _, err := ask([]string{"data:p0:0"}); err == nil || !strings.Contains(err.Error(), "the disk is full") {
		t.Error(err)
	}
}

// One resource that the kubelet refuses, or lets wait, holds up no other; and comes when the kubelet is of another mind.
func TestOneInTroubleHoldsUpNoOther(t *testing.T) {
	dir := kubeletDir(t)
	k, s := newKubelet(t, dir), startIn(t, dir)
	wait := make(chan struct{})
	k.refuse = func(resource string) error {
		switch {
		case strings.HasSuffix(resource, "/refused"):
			return errors.New("not this one")
		case strings.HasSuffix(resource, "/waiting"):
			<-wait
		}
		return nil
	}
	k.start()
	s.Set([]macvtap.Resource{resource("data", 2), resource("refused", 1), resource("waiting", 1)})
	const held = registerLimit - time.Second // after which a plugin gives the registration up
	k.await("the one that is well", held, func() bool { return k.healthy("data") == 2 })
	awaitState(t, s, "refused", "not this one")
	s.Set([]macvtap.Resource{resource("data", 1), resource("refused", 1), resource("waiting", 1)})
	k.await("and its changes", held, func() bool { return k.healthy("data") == 1 })
	k.seen(func() { k.refuse = nil })
	close(wait)
	k.await("all", again, func() bool { return k.healthy("refused") == 1 && k.healthy("waiting") == 1 })
}

// A kubelet that hangs up each time is asked ever more seldom, and one that never follows is registered with again.
func TestHostileKubelet(t *testing.T) {
	dir := kubeletDir(t)
	l, err := net.Listen("unix", filepath.Join(dir, kubeletSocket))
	if err != nil {
		t.Fatal(err)
	}
	calls := make(chan struct{}, 1000)
	go func() { // says what is no gRPC
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			calls <- struct{}{}
			_, _ = c.Write([]byte("HTTP/1.1 418 no\r\n\r\n"))
			c.Close()
		}
	}()
	s := startIn(t, dir)
	s.Set([]macvtap.Resource{resource("data", 1)})
	awaitState(t, s, "data", "register with the kubelet")
	l.Close()
	k := newKubelet(t, dir)
	k.start()
	k.await("a good one", again, func() bool { return k.healthy("data") == 1 })
	if n := len(calls); n > 20 {
		t.Errorf("called %d times", n)
	}
	e := k.endpoint("data")
	for range 3 { // more than one follower, as a kubelet has that was registered with twice
		stream, err := e.ListAndWatch(k.ctx, &api.Empty{})
		if err != nil {
			t.Fatal(err)
		}
		if list, err := stream.Recv(); err != nil || len(list.Devices) != 1 {
			t.Fatal(list, err)
		}
	}
	if _, err := e.PreStartContainer(t.Context(), &api.PreStartContainerRequest{}); status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
}

func TestPauses(t *testing.T) {
	for failures := range 100 {
		for _, random := range []float64{0, 0.5, 0.999} {
			d := pause(failures, random)
			if most := min(firstPause<<min(failures, 20), longestPause); d < most/2 || d > most {
				t.Errorf("after %d failures, %v: %v", failures, random, d)
			}
		}
	}
}

func TestSocketNames(t *testing.T) {
	name := strings.Repeat("x", 63)
	for length := 1; length <= longestPath-1-len(kubeletSocket); length++ {
		dir := "/" + strings.Repeat("d", length-1)
		a, b := socketName(dir, name), socketName(dir, name+"y")
		if len(filepath.Join(dir, a)) > longestPath || len(filepath.Join(dir, b)) > longestPath || a == b || strings.Contains(a, "/") || a == kubeletSocket {
			t.Errorf("%d: %s, %s", length, a, b)
		}
	}
	if n := socketName("/var/lib/kubelet/device-plugins", "dataplane"); n != "macvtap-dataplane.sock" {
		t.Error(n)
	}
	// What is at the path already gives way, and what took a socket's place is left alone.
	dir := kubeletDir(t)
	path := filepath.Join(dir, "s")
	l, own, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	m, other, err := listen(path)
	if err != nil || own == other {
		t.Fatal(own, other, err)
	}
	defer m.Close()
	if removeOwn(path, own); identify(path) != other {
		t.Error("another's socket was removed")
	}
	if removeOwn(path, other); identify(path) != (identity{}) {
		t.Error("the own socket is still there")
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil || identify(path) != (identity{}) {
		t.Error("a file passes for a socket")
	}
}

func TestEndedContextRegistersNothing(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	m := startIn(t, kubeletDir(t)).Manager
	m.Set([]macvtap.Resource{resource("data", 1)})
	p := newPlugin("data", m.cfg)
	p.run(ctx, nil)
	if p.stands().Registered {
		t.Error("registered")
	}
}
