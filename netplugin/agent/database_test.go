package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/ofctl/ovsdb"
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
				got := w.next(r.waits, r.err)
				if (got == "") != (c.want[n] == "") || !strings.Contains(got, c.want[n]) {
					t.Errorf("result %d: %q, want %q", n, got, c.want[n])
				}
			}
		})
	}
}

// watchDatabase runs keepDatabase until the test ends.
func watchDatabase(t *testing.T, k *portKeeper) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); databaseKeeper{k.runner}.keepDatabase(ctx, 200*time.Millisecond) }()
	t.Cleanup(func() { cancel(); <-ended })
}

// TestKeepDatabase_HungServer: readiness and the node's status name an ovsdb-server that does not respond, and the same
// connection works when it responds again.
func TestKeepDatabase_HungServer(t *testing.T) {
	k, _, sw := portsKeeper(t)
	watchDatabase(t, k)
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
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	until(t, "the problem", func() bool { return strings.Contains(k.cfg.Health.NotReady(), "database: ovsdb-server") })
	if own := databaseProblem(t, k); !strings.Contains(own, "ovsdb-server does not respond") {
		t.Errorf("the node's status has the problem %q", own)
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
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
