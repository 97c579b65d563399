package agent

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/internal/testkit/slow"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/netplugin/ipam"
	"github.com/flowkeep/flowkeep/ofctl/dptype"
	"github.com/flowkeep/flowkeep/ofctl/ovsdb"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
)

func TestDatabaseWatch(t *testing.T) {
	if longest := (databaseFailures + 1) * databaseInterval; longest > 30*time.Second {
		t.Errorf("a problem is reported after %s", longest)
	}
	hung := errors.New("no response")
	type result struct {
		waits bool
		err   error
	}
	for _, c := range []struct {
		name    string
		results []result
		want    []string // parts of the problems
	}{
		{"responds", []result{{}, {}}, []string{"", ""}},
		{"one failure", []result{{err: hung}, {}, {err: hung}}, []string{"", "", ""}},
		{"hung", []result{{err: hung}, {err: hung}, {}}, []string{"", "does not respond", ""}},
		{"away", []result{{err: ovsdb.ErrNotConnected}, {err: ovsdb.ErrNotConnected}}, []string{"", "is away"}},
		{"restarts with flow-restore-wait", []result{{waits: true}, {}}, []string{"", ""}},
		{"left true", []result{{waits: true}, {waits: true}}, []string{"", "flow-restore-wait=true"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var w databaseWatch
			for n, r := range c.results {
				got := w.next(r.waits, r.err, waitRemedy(minQuiet, false, false))
				if (got == "") != (c.want[n] == "") || !strings.Contains(got, c.want[n]) {
					t.Errorf("result %d: %q, want %q", n, got, c.want[n])
				}
			}
		})
	}
}

// TestWaitRemedy: the problem says when netplugin removes flow-restore-wait, which depends on the switch.
func TestWaitRemedy(t *testing.T) {
	for _, c := range []struct {
		least               time.Duration
		others, unmonitored bool
		want                string
	}{
		{minQuiet, false, false, "removes the key when no program has changed flows for at least 10s"},
		{minQuietOthers, true, false, "removes the key when no program has changed flows for at least 5m0s: "},
		{minQuiet, false, true, "does not remove the key"},
		{minQuietOthers, true, true, "does not remove the key"},
	} {
		w := databaseWatch{failed: databaseFailures}
		problem := w.next(true, nil, waitRemedy(c.least, c.others, c.unmonitored))
		if !strings.Contains(problem, c.want) || !strings.HasSuffix(problem, "other_config flow-restore-wait") {
			t.Errorf("%+v: %s", c, problem)
		}
	}
}

// TestDatabaseGate: a request under way ends with the problem of the database, and so do others until there is none.
func TestDatabaseGate(t *testing.T) {
	var g databaseGate
	waits := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	works := func(context.Context) error { return nil }
	away, hung := errors.New("away"), errors.New("hung")
	begun, ended := make(chan struct{}), make(chan error)
	go func() {
		ended <- g.do(t.Context(), func(ctx context.Context) error { close(begun); return waits(ctx) })
	}()
	<-begun
	for _, problem := range []error{away, hung} {
		g.set(problem)
		if err := g.do(t.Context(), works); !errors.Is(err, problem) {
			t.Errorf("a request while the database is %v: %v", problem, err)
		}
	}
	if err := <-ended; !errors.Is(err, away) {
		t.Errorf("the request under way ended with %v", err)
	}
	g.set(nil)
	g.set(nil)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.do(t.Context(), works); err != nil {
		t.Errorf("without a problem: %v", err)
	}
	if err := g.do(canceled, waits); !errors.Is(err, context.Canceled) {
		t.Errorf("a request that is canceled: %v", err)
	}
}

// watchDatabase runs keepDatabase until the test ends. It removes no flow-restore-wait.
func watchDatabase(t *testing.T, k *portKeeper) {
	t.Helper()
	keepDatabase(t, databaseKeeper{k.runner, time.Hour, time.Hour})
}

// keepDatabase runs a keeper until the test ends.
func keepDatabase(t *testing.T, d databaseKeeper) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); d.keepDatabase(ctx, 200*time.Millisecond) }()
	t.Cleanup(func() { cancel(); <-ended })
}

// stopServer stops ovsdb-server by SIGSTOP. It returns a function that has it go on; the end of the test does so too.
func stopServer(t *testing.T, sw *ovstest.Switch) (resume func()) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(sw.Dir, "ovsdb-server.pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	resume = func() { _ = syscall.Kill(pid, syscall.SIGCONT) }
	t.Cleanup(resume)
	return resume
}

// TestKeepDatabase_HungServer: readiness and the node's status name an ovsdb-server that does not respond, and the same
// connection works when it responds again.
func TestKeepDatabase_HungServer(t *testing.T) {
	k, _, sw := portsKeeper(t)
	watchDatabase(t, k)
	resume := stopServer(t, sw)
	until(t, "the problem", func() bool { return strings.Contains(k.cfg.Health.NotReady(), "database: ovsdb-server") })
	if own := databaseProblem(t, k); !strings.Contains(own, "ovsdb-server does not respond") {
		t.Errorf("the node's status has the problem %q", own)
	}
	resume()
	until(t, "readiness", func() bool { return k.cfg.Health.NotReady() == "" })
	e := &endpoints.Endpoint{Namespace: "shop", Name: "db", HostIfName: "fkpdb", ContainerID: "c1"}
	if number, err := k.EnsurePort(t.Context(), e.HostIfName, e); err != nil || number == 0 {
		t.Errorf("a port after that has number %d: %v", number, err)
	}
}

// databaseProblem returns the database's problem in the node's status.
func databaseProblem(t *testing.T, k *portKeeper) (problem string) {
	t.Helper()
	if err := k.do(t.Context(), func() { problem = k.inspector.status().DatabaseProblem }); err != nil {
		t.Fatal(err)
	}
	return problem
}

// TestKeepDatabase_FlowRestoreWait: flow-restore-wait that stays true is reported with the command that removes it.
func TestKeepDatabase_FlowRestoreWait(t *testing.T) {
	k, _, sw := portsKeeper(t)
	watchDatabase(t, k)
	sw.VSCtl(t, "--no-wait", "set", "Open_vSwitch", ".", "other_config:flow-restore-wait=true")
	until(t, "the problem", func() bool {
		return strings.Contains(k.cfg.Health.NotReady(), "ovs-vsctl remove Open_vSwitch . other_config flow-restore-wait")
	})
	sw.VSCtl(t, "--no-wait", "remove", "Open_vSwitch", ".", "other_config", "flow-restore-wait")
	until(t, "readiness", func() bool { return k.cfg.Health.NotReady() == "" })
}

// managerOf returns a manager of a runner's pods, with addresses of the podCIDR of configured.
func managerOf(t *testing.T, r *runner) *endpoints.Manager {
	t.Helper()
	dir := t.TempDir()
	m, err := endpoints.Open(endpoints.Config{
		StateDir: dir,
		Logger:   r.log,
		Switch:   r,
		Realizer: &r.pods,
		InHost:   inHost,
	})
	if err != nil {
		t.Fatal(err)
	}
	allocator, err := ipam.New(dir, []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")})
	if err != nil {
		t.Fatal(err)
	}
	m.SetNetwork(endpoints.Network{
		MTU:        1400,
		GatewayMAC: endpoints.MAC(r.node.gateway.MAC),
		Gateways:   []netip.Addr{netip.MustParseAddr("10.244.1.1")},
	}, allocator)
	return m
}

// requestTimeout bounds a CNI request, as --add-timeout does.
const requestTimeout = 10 * time.Second

// addPod attaches a pod.
func (k *portKeeper) addPod(t *testing.T, name string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), slow.Stretch(requestTimeout))
	defer cancel()
	_, err := k.manager.Add(ctx, endpoints.Request{
		Namespace:   "shop",
		Name:        name,
		UID:         "uid-" + name,
		ContainerID: "c-" + name,
		IfName:      "eth0",
		NetNS:       netns.New(t).Path(),
	})
	return err
}

// TestDeletePort_AfterTimeout: a port of which the creation timed out while ovsdb-server hung counts as deleted only when
// ovsdb-server responds: it executes the request when it goes on.
func TestDeletePort_AfterTimeout(t *testing.T) {
	k, _, sw := portsKeeper(t)
	e := &endpoints.Endpoint{Namespace: "shop", Name: "db", HostIfName: "fkpdb", ContainerID: "c1"}
	briefly := func(f func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		return f(ctx)
	}
	resume := stopServer(t, sw)
	created := briefly(func(ctx context.Context) error {
		_, err := k.EnsurePort(ctx, e.HostIfName, e)
		return err
	})
	deleted := briefly(func(ctx context.Context) error { return k.DeletePort(ctx, e.HostIfName, e) })
	if created == nil || deleted == nil {
		t.Errorf("while ovsdb-server hangs the port is created: %v, deleted: %v", created, deleted)
	}
	resume()
	if err := k.DeletePort(t.Context(), e.HostIfName, e); err != nil {
		t.Error(err)
	}
	if ports := sw.VSCtl(t, "list-ports", "fk0"); strings.Contains(ports, hostnet.PodPrefix) {
		t.Errorf("ports of pods are left:\n%s", ports)
	}
}

// settleNext sends the rules of a pod when it is announced.
func (k *portKeeper) settleNext(t *testing.T, name string) {
	for text := range k.client.(*diary).told {
		if text == "announced uid-"+name {
			break
		}
	}
	u := settle(1, "uid-"+name)
	u.Settled[0].ID = "shop/" + name
	_ = k.Update(t.Context(), u, leads, func([]wire.RuleError) {})
}

// TestKeepDatabase_PodsThatWait: the ADD of a pod that waits for its port when ovsdb-server hangs, and later ones, fail
// with the reason, which the kubelet's Event FailedCreatePodSandBox shows. So does a DEL, which closes the pod first.
// When ovsdb-server goes on, nothing is left of these pods.
func TestKeepDatabase_PodsThatWait(t *testing.T) {
	const reason = "ovsdb-server does not respond: no pod gets a port: "
	netns.New(t).Enter(t)
	k, s, sw := portsKeeperOn(t, ovstest.StartOn(t, "netdev", nil), dptype.Netdev)
	k.manager = managerOf(t, k.runner)
	go k.settleNext(t, "before")
	if err := k.addPod(t, "before"); err != nil {
		t.Fatal(err)
	}
	watchDatabase(t, k)
	resume := stopServer(t, sw)
	for _, name := range []string{"waits", "later"} {
		if err := k.addPod(t, name); err == nil || !strings.HasPrefix(err.Error(), reason) {
			t.Errorf("the ADD of pod %s: %v", name, err)
		}
	}
	all := k.manager.List()
	before := all[slices.IndexFunc(all, func(e endpoints.Endpoint) bool { return e.Name == "before" })]
	if !k.isOpen(t, s, before.Port) {
		t.Fatal("the pod has no flows: nothing is shown")
	}
	ctx, cancel := context.WithTimeout(t.Context(), slow.Stretch(requestTimeout))
	defer cancel()
	err := k.manager.Del(ctx, before.ContainerID, before.IfName)
	if err == nil || !strings.HasPrefix(err.Error(), reason) || k.isOpen(t, s, before.Port) {
		t.Errorf("the DEL of a pod: %v; it is open: %v", err, k.isOpen(t, s, before.Port))
	}
	resume()
	until(t, "readiness", func() bool { return k.cfg.Health.NotReady() == "" })
	if _, err := k.manager.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if ports := sw.VSCtl(t, "list-ports", "fk0"); strings.Contains(ports, hostnet.PodPrefix) {
		t.Errorf("ports of pods are left:\n%s", ports)
	}
	if left := k.manager.List(); len(left) > 0 {
		t.Errorf("endpoints are left: %+v", left)
	}
	go k.settleNext(t, "after")
	if err := k.addPod(t, "after"); err != nil {
		t.Error(err)
	}
}
