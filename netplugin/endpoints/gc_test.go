package endpoints

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
)

// populate adds pods that are older than GC's limit, and starts a process in the network namespace of each whose name
// is not "deserted". It mounts nothing: Config.Proc is a directory with links to these processes, and this one's.
func (w *world) populate(names ...string) map[string]*netns.Namespace {
	w.t.Helper()
	pods := map[string]*netns.Namespace{}
	w.cfg.Proc = w.t.TempDir()
	see := func(pid int) {
		number := strconv.Itoa(pid)
		err := os.Symlink(filepath.Join("/proc", number), filepath.Join(w.cfg.Proc, number))
		if err != nil {
			w.t.Fatal(err)
		}
	}
	see(os.Getpid())
	for _, name := range names {
		pod := netns.NewNamed(w.t, name)
		pods[name] = pod
		w.mustAdd(w.request(name, pod))
		old := time.Now().Add(-2 * minCollectedAge)
		if err := os.Chtimes(w.files.path("c-"+name, "eth0"), old, old); err != nil {
			w.t.Fatal(err)
		}
		if name == "deserted" {
			continue
		}
		process := exec.Command("sleep", "3600")
		pod.Do(func() {
			if err := process.Start(); err != nil {
				w.t.Fatal(err)
			}
		})
		see(process.Process.Pid)
		w.t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
	}
	return pods
}

func (w *world) gc(valid ...string) (err error) {
	w.t.Helper()
	w.node.Do(func() { err = w.GC(context.Background(), valid) })
	return err
}

// attached returns the names of the attached pods. Each has its link, port, rules and addresses.
func (w *world) attached() string {
	w.t.Helper()
	var names []string
	for _, e := range w.List() {
		names = append(names, e.Name)
	}
	slices.Sort(names)
	n := len(names)
	if len(w.links()) != n || len(w.parts.ports) != n || len(w.parts.open) != n || len(w.reserved()) != 2*n {
		w.t.Errorf("pods %v: links %v, ports %v, %d open, addresses %v",
			names, w.links(), w.parts.ports, len(w.parts.open), w.reserved())
	}
	return strings.Join(names, " ")
}

// TestGC_RemovesOnlyPodsThatDoNotLive lists one of the pods as valid. Those with a process stay, as another container
// runtime's do, and those that were attached a moment ago.
func TestGC_RemovesOnlyPodsThatDoNotLive(t *testing.T) {
	for name, c := range map[string]struct {
		valid []string
		blind bool // the processes are those of another PID namespace
		want  string
	}{
		"valid":                           {[]string{"c-web/eth0", "unknown/eth0"}, false, "other recent web"},
		"two are valid":                   {[]string{"c-web/eth0", "c-deserted/eth0"}, false, "deserted other recent web"},
		"nothing is valid":                {nil, false, "deserted other recent web"},
		"a valid pod without a process":   {[]string{"c-deserted/eth0"}, false, "deserted other recent web"},
		"another interface of its pod":    {[]string{"c-web/net1"}, false, "deserted other recent web"},
		"no process of a pod can be seen": {[]string{"c-web/eth0"}, true, "deserted other recent web"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			pods := w.populate("web", "other", "deserted", "ended")
			w.mustAdd(w.request("recent", netns.NewNamed(t, "recent")))
			pods["ended"].Do(func() { _ = exec.Command("ip", "link", "del", "eth0").Run() })
			if c.blind {
				w.cfg.Proc = t.TempDir()
			}
			if err := w.gc(c.valid...); err != nil {
				t.Error(err)
			}
			if got := w.attached(); got != c.want {
				t.Errorf("attached: %s, want %s", got, c.want)
			}
		})
	}
}

// TestGC_ReleasesAddresses releases addresses without an owner, and reports what it could not remove until it can.
func TestGC_ReleasesAddresses(t *testing.T) {
	w := newWorld(t)
	w.populate("web", "deserted")
	if _, err := w.allocator.Allocate("c-leaked", "eth0"); err != nil {
		t.Fatal(err)
	}
	ownerless := filepath.Join(w.dir, "addresses", "flowkeep", "10.9.0.9") // a crash before the owner was written
	if err := os.WriteFile(ownerless, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.parts.fail["Forget"] = errors.New("the owner is busy")
	if err := w.gc("c-web/eth0"); err == nil || len(w.List()) != 2 || len(w.reserved()) != 4 {
		t.Errorf("a port that cannot be closed: %v, %d pods, addresses %v", err, len(w.List()), w.reserved())
	}
	clear(w.parts.fail)
	if err := w.gc("c-web/eth0"); err != nil || w.attached() != "web" {
		t.Errorf("after that: %v, addresses %v", err, w.reserved())
	}
}

// TestGC_UnreadableProcess has a process whose network namespace cannot be read: it may be a pod's.
func TestGC_UnreadableProcess(t *testing.T) {
	w := newWorld(t)
	w.populate("web", "deserted")
	loop := filepath.Join(w.cfg.Proc, "1")
	if err := os.Symlink(loop, loop); err != nil {
		t.Fatal(err)
	}
	if err := w.gc("c-web/eth0"); err == nil || w.attached() != "deserted web" {
		t.Errorf("%v, attached: %s", err, w.attached())
	}
}

// TestGC_DuringAdd starts GC, with a list from before it, while a pod is being attached.
func TestGC_DuringAdd(t *testing.T) {
	w := newWorld(t)
	w.populate("web")
	reached, proceed := make(chan struct{}), make(chan struct{})
	w.parts.hook = func(step string) {
		if step == "Realize" {
			close(reached)
			<-proceed
		}
	}
	added, collected := make(chan error), make(chan error)
	late := netns.NewNamed(t, "late")
	go func() { _, err := w.add(w.request("late", late)); added <- err }()
	<-reached
	w.parts.mu.Lock()
	w.parts.hook = nil
	w.parts.mu.Unlock()
	go func() { collected <- w.gc("c-web/eth0") }()
	close(proceed)
	if err := <-added; err != nil {
		t.Error(err)
	}
	if err := <-collected; err != nil {
		t.Error(err)
	}
	if got := w.attached(); got != "late web" {
		t.Errorf("attached: %s", got)
	}
}

// TestGC_IsBounded ends with its context, and removes nothing outside the node's network namespace.
func TestGC_IsBounded(t *testing.T) {
	w := newWorld(t)
	w.populate("web", "deserted")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	w.node.Do(func() {
		if err := w.GC(ctx, []string{"c-web/eth0"}); err == nil || len(w.List()) != 2 {
			t.Errorf("after its time: %v, %d pods", err, len(w.List()))
		}
	})
	w.cfg.InHost = func() error { return os.ErrNotExist }
	if err := w.gc("c-web/eth0"); err == nil || w.attached() != "deserted web" {
		t.Errorf("outside the node's network namespace: %v", err)
	}
}
