package systemtests

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// scene is two allowed and two denied pairs, on one node and across, that are watched while something is killed.
type scene struct {
	*world
	ns               string
	allowed, refused []cluster.Expectation
}

func newScene(t *testing.T) *scene { return sceneIn(setup(t)) }

func sceneIn(w *world) *scene {
	s := &scene{world: w, ns: threePods(w)}
	w.policy(s.ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	w.policy(s.ns, "a", `{podSelector: {matchLabels: {app: a}}, ingress: [{from: [{podSelector: {matchLabels: {app: c}}}]}]}`)
	for _, proto := range []string{"tcp", "udp"} {
		s.allowed = append(s.allowed, w.open("a", "b", proto, 80, "allowed, same node")...)
		s.allowed = append(s.allowed, w.open("c", "a", proto, 80, "allowed, across")...)
		s.refused = append(s.refused, w.shut("c", "b", proto, 80, "denied, across")...)
	}
	s.refused = append(s.refused, w.shut("b", "a", "udp", 80, "denied, same node")...)
	w.settles(s.allowed, s.refused)
	w.must(w.AwaitSynced(w.ctx, settling)) // also the node on which these policies change nothing
	return s
}

// unharmed watches all ways while during runs: nothing lost, nothing opened, and no flow touched on any node.
func (s *scene) unharmed(during func()) {
	s.Helper()
	s.waysSettled()
	before, started := s.dump(), time.Now()
	s.watch(stall, append(s.allowed, s.refused...), func() {
		during()
		time.Sleep(500 * time.Millisecond)
	})
	for node, flows := range s.dump() {
		if len(before[node]) == 0 {
			s.Errorf("no flows on %s: nothing was shown", node)
		}
		for _, change := range cluster.Touched(before[node], flows, time.Since(started)) {
			s.Errorf("%s: %s", node, change)
		}
	}
}

func (s *scene) dump() map[string][]cluster.Flow {
	s.Helper()
	dumps := map[string][]cluster.Flow{}
	for _, node := range []string{"node1", "node2"} {
		flows, err := s.Flows(s.ctx, node)
		s.must(err)
		dumps[node] = flows
	}
	return dumps
}

// again starts a process when the test ends, also when it fails, so that the next test has a whole cluster.
func (w *world) again(name string) {
	w.Cleanup(func() {
		ctx := context.Background()
		if err := w.Start(ctx, name); err != nil {
			w.Error(err)
		}
		if strings.HasPrefix(name, "net") || strings.HasSuffix(name, "-netplugin") {
			if err := w.AwaitReady(ctx, name, 30*time.Second); err != nil {
				w.Error(err)
			}
		}
		if name == "apiserver" {
			w.served(ctx)
			if err := w.WatchAnew(ctx); err != nil {
				w.Error(err)
			}
		}
	})
}

// awaitNetplugin waits until a netplugin that was started is ready, and all nodes are connected to netmaster.
func (w *world) awaitNetplugin(name string) {
	w.Helper()
	w.must(w.AwaitReady(w.ctx, name, settling))
	w.must(w.AwaitConnected(w.ctx, settling))
}

// resumes lets a process that the test suspends go on when the test ends.
func (w *world) resumes(name string) {
	w.Cleanup(func() { _ = w.Signal(context.Background(), name, syscall.SIGCONT) })
}

// served waits until an API server that was started serves netctl too: it asks itself who serves what only now and then.
func (w *world) served(ctx context.Context) {
	w.Helper()
	if err := cluster.Until(ctx, time.Minute, func() error {
		_, err := w.Kubectl(ctx, "", "get", "--raw", "/apis/inspect.flowkeep.io/v1alpha1")
		return err
	}); err != nil {
		w.Error(err)
	}
}

func (s *scene) killAndStart(name string) {
	s.Helper()
	s.again(name)
	s.must(s.Kill(s.ctx, name))
	time.Sleep(2 * time.Second) // it is away for a while
	s.must(s.Start(s.ctx, name))
	s.must(s.AwaitReady(s.ctx, name, 30*time.Second))
}

// stillEnforces shows that changes arrive: a may no longer reach b, c may.
func (s *scene) stillEnforces() {
	s.Helper()
	s.policy(s.ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: c}}}]}]}`)
	s.settles(s.shut("a", "b", "tcp", 80, "the policy was turned round"), s.open("c", "b", "tcp", 80, "the policy was turned round"))
}

func TestNetmasterKilled(t *testing.T) {
	s := newScene(t)
	s.unharmed(func() { s.killAndStart("netmaster") })
	s.stillEnforces()
}

func TestNetpluginKilled(t *testing.T) {
	s := newScene(t)
	s.unharmed(func() { s.killAndStart("node1-netplugin") })
	s.stillEnforces()
}

// The switch dies and comes back empty: until the flows are there again nothing passes, then all is as before.
func TestSwitchKilled(t *testing.T) {
	s := newScene(t)
	s.again("node1-vswitchd")
	s.watch(0, s.refused, func() {
		s.must(s.Kill(s.ctx, "node1-vswitchd"))
		s.must(s.Start(s.ctx, "node1-vswitchd"))
		s.must(cluster.Until(s.ctx, 60*time.Second, func() error {
			unmet, err := s.Check(s.ctx, cluster.Patience{Open: 400 * time.Millisecond}, s.allowed)
			if err == nil && len(unmet) > 0 {
				err = fmt.Errorf("not back: %s", strings.Join(unmet, "; "))
			}
			return err
		}))
	})
	s.settles(s.allowed, s.refused)
	s.stillEnforces()
}

// A switch that was started in the kernel's first seconds takes no packets from the kernel's datapath, and looks well to whoever asks it. That is said until it is
// started again.
func TestSwitchThatTakesNoPackets(t *testing.T) {
	s := newScene(t)
	kernel, err := s.KernelDatapath(s.ctx, "node1")
	s.must(err)
	version, err := exec.CommandContext(s.ctx, "ovs-vswitchd", "--version").Output()
	s.must(err)
	if !kernel || !strings.Contains(string(version), " 3.1.0\n") {
		t.Skip("Open vSwitch 3.1.0 loses its packets so, on the kernel's datapath (scripts/kernel)")
	}
	status := func() string {
		text, _ := s.Netctl(s.ctx, "status") // it may exit with an error when something is not well
		return text
	}
	const loss = "ovs-vswitchd takes no packets from the kernel's datapath"
	if text := status(); strings.Contains(text, loss) {
		t.Fatal(text)
	}
	s.again("node1-vswitchd")
	s.must(s.Kill(s.ctx, "node1-vswitchd"))
	s.must(s.StartInYoungKernel(s.ctx, "node1-vswitchd"))
	s.must(cluster.Until(s.ctx, 2*time.Minute, func() error {
		if _, err := s.Check(s.ctx, cluster.Patience{Open: 400 * time.Millisecond}, s.allowed); err != nil { // which sends packets
			return err
		}
		if text := status(); !strings.Contains(text, "node node1: "+loss) || !strings.Contains(text, "loses all") {
			return fmt.Errorf("it is not told:\n%s", text)
		}
		return nil
	}))
	if err := s.AwaitReady(s.ctx, "node1-netplugin", time.Second); err == nil || !strings.Contains(err.Error(), loss) {
		t.Errorf("netplugin is ready, or does not say why not: %v", err)
	}
	s.must(s.Kill(s.ctx, "node1-vswitchd"))
	s.must(s.Start(s.ctx, "node1-vswitchd"))
	s.must(s.AwaitReady(s.ctx, "node1-netplugin", 30*time.Second))
	s.settles(s.allowed, s.refused)
	if text := status(); strings.Contains(text, loss) {
		t.Error(text)
	}
}

// A policy that changes while netmaster is away takes effect when it is back; one that is deleted then, too.
func TestPoliciesChangeWhileNetmasterIsAway(t *testing.T) {
	s := newScene(t)
	s.again("netmaster")
	s.must(s.Kill(s.ctx, "netmaster"))
	s.deletePolicy(s.ns, "a")
	s.policy(s.ns, "b", `{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress]}`)
	s.settles(s.allowed, s.refused)
	s.must(s.Start(s.ctx, "netmaster"))
	s.must(s.AwaitReady(s.ctx, "netmaster", 30*time.Second))
	s.settles(s.open("b", "a", "udp", 80, "its policy was deleted"), s.shut("a", "b", "tcp", 80, "its policy was emptied"))
}

func TestMemcachedStopped(t *testing.T) {
	s := newScene(t)
	s.again("memcached")
	s.unharmed(func() { s.must(s.Stop(s.ctx, "memcached")) })
	s.stillEnforces()
	s.must(cluster.Until(s.ctx, settling, func() error {
		up, err := s.Metric(s.ctx, "netmaster", "flowkeep_labelcache_memcached_up")
		if err == nil && up != 0 {
			err = fmt.Errorf("flowkeep_labelcache_memcached_up is %v without memcached", up)
		}
		return err
	}))
	s.statusSays("memcached")
	s.must(s.Start(s.ctx, "memcached"))
	s.must(cluster.Until(s.ctx, 2*settling, func() error {
		up, err := s.Metric(s.ctx, "netmaster", "flowkeep_labelcache_memcached_up")
		if err == nil && up != 1 {
			err = fmt.Errorf("flowkeep_labelcache_memcached_up is %v with memcached back", up)
		}
		return err
	}))
}

// statusSays wants a line of netctl status that names the thing and says that it is not well.
func (s *scene) statusSays(thing string) {
	s.Helper()
	text, _ := s.Netctl(s.ctx, "status") // it may exit with an error when something is not well
	for line := range strings.Lines(text) {
		line = strings.ToLower(line)
		if strings.Contains(line, thing) && (strings.Contains(line, "does not answer") || strings.Contains(line, "set aside")) {
			return
		}
	}
	s.Errorf("netctl status does not say what is wrong with %s:\n%s", thing, text)
}

// The policy database is cut short while netmaster is away: it is set aside, said, and rebuilt; nothing changes on the
// nodes.
func TestPolicyDatabaseTruncated(t *testing.T) {
	s := newScene(t)
	dir := filepath.Join(s.Dir, "flowkeep", "netmaster")
	s.Cleanup(func() { // netmaster reports the database that was set aside until it ends, also in traces of later tests
		ctx, name := context.Background(), "netmaster"
		if err := errors.Join(s.Stop(ctx, name), s.Start(ctx, name), s.AwaitReady(ctx, name, 30*time.Second),
			s.AwaitConnected(ctx, 30*time.Second)); err != nil {
			s.Error(err)
		}
		if text, _ := s.Netctl(ctx, "status"); strings.Contains(text, "set aside") {
			s.Errorf("netmaster reports the database to later tests:\n%s", text)
		}
	})
	s.unharmed(func() {
		s.must(s.Kill(s.ctx, "netmaster"))
		files, err := filepath.Glob(filepath.Join(dir, "*.db"))
		s.must(err)
		if len(files) != 1 {
			s.Fatalf("want one database in %s, found %v", dir, files)
		}
		info, err := os.Stat(files[0])
		s.must(err)
		const kept = 2*4096 + 123 // bbolt's two meta pages and little more
		if info.Size() <= kept {
			s.Fatalf("%s has %d bytes only", files[0], info.Size())
		}
		s.must(os.Truncate(files[0], kept))
		s.must(s.Start(s.ctx, "netmaster"))
		s.must(s.AwaitReady(s.ctx, "netmaster", 30*time.Second))
		aside, err := filepath.Glob(files[0] + "?*")
		s.must(err)
		if len(aside) == 0 {
			s.Errorf("the broken database was not set aside in %s", dir)
		}
	})
	log, err := s.LogText("netmaster")
	s.must(err)
	if !strings.Contains(log, "set aside") {
		s.Error("netmaster's log does not say that the database was set aside")
	}
	s.stillEnforces()
}

// The switch does nothing for a moment, as on a busy machine: what comes meanwhile waits for it, of allowed and denied connections.
func TestSwitchStalls(t *testing.T) {
	s := newScene(t)
	s.resumes("node1-vswitchd")
	s.unharmed(func() {
		for range 3 {
			s.must(s.Signal(s.ctx, "node1-vswitchd", syscall.SIGSTOP))
			time.Sleep(400 * time.Millisecond)
			s.must(s.Signal(s.ctx, "node1-vswitchd", syscall.SIGCONT))
			time.Sleep(500 * time.Millisecond)
		}
	})
}

func TestAPIServerDown(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long by its nature")
	}
	s := newScene(t)
	s.again("apiserver")
	s.unharmed(func() {
		s.must(s.Kill(s.ctx, "apiserver"))
		time.Sleep(12 * time.Second)
		s.must(s.Start(s.ctx, "apiserver"))
	})
	s.watching()
	s.stillEnforces()
}

// netmaster starts while the API server is away: it serves what it has stored, and the nodes keep what they hold.
func TestNetmasterStartsWithoutAPIServer(t *testing.T) {
	s := newScene(t)
	s.again("apiserver")
	s.again("netmaster")
	s.unharmed(func() {
		s.must(s.Kill(s.ctx, "apiserver"))
		s.must(s.Kill(s.ctx, "netmaster"))
		s.must(s.Start(s.ctx, "netmaster"))
		time.Sleep(5 * time.Second)
		s.must(s.Start(s.ctx, "apiserver"))
		s.must(s.AwaitReady(s.ctx, "netmaster", 60*time.Second))
	})
	s.watching()
	s.stillEnforces()
}

// watching waits until the API server serves, and until netmaster follows its policies again: client-go's watches wait
// up to 30 s before they connect again. It writes a policy that selects no pod, and waits until netmaster has it.
func (s *scene) watching() {
	s.Helper()
	s.served(s.ctx)
	s.policy(s.ns, "canary", `{podSelector: {matchLabels: {app: nobody}}}`)
	s.must(cluster.Until(s.ctx, 60*time.Second, func() error {
		text, err := s.Netctl(s.ctx, "policy", "ls", "-n", s.ns, "-o", "json")
		if err == nil && !strings.Contains(text, "canary") {
			err = errors.New("netmaster does not know the newest policy yet")
		}
		return err
	}))
}
