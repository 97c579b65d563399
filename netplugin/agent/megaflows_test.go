package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/ofctl"
)

// The userspace datapath keeps no decision over a change of flows; the kernel's is left alone, and so are both where nothing changed.
func TestTheUserspaceDatapathForgetsOldDecisions(t *testing.T) {
	for _, c := range []struct {
		name, datapath string
		mods           []ofctl.FlowMod
		want           int
	}{
		{"userspace", "netdev", []ofctl.FlowMod{{Flow: ofctl.Flow{Table: 33, Priority: 7}}}, 1},
		{"userspace, nothing changed", "netdev", nil, 0},
		{"kernel", "system", []ofctl.FlowMod{{Flow: ofctl.Flow{Table: 33, Priority: 7}}}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, s, _ := testAgent(t)
			a.session = s
			a.cfg.DatapathType, a.cfg.OVSControl = c.datapath, filepath.Join(t.TempDir(), "ctl")
			asked := control(t, a.cfg.OVSControl)
			if err := a.commit(t.Context(), c.mods); err != nil {
				t.Fatal(err)
			}
			if len(asked) != c.want {
				t.Errorf("asked %d times, want %d", len(asked), c.want)
			}
			if len(asked) > 0 {
				if line, want := <-asked, `{"id":0,"method":"revalidator/purge","params":[]}`+"\n"; line != want {
					t.Errorf("asked %q, want %q", line, want)
				}
			}
		})
	}
}

// The cache is emptied along with the change too, and the owner goes on meanwhile.
func TestOldDecisionsGoAlongWithTheChange(t *testing.T) {
	for datapath, want := range map[string]int{"netdev": 1, "system": 0} {
		a, _, _ := testAgent(t)
		a.cfg.DatapathType, a.cfg.OVSControl = datapath, filepath.Join(t.TempDir(), "ctl")
		sent, asked := make(chan struct{}), make(chan string, 1)
		answering(t, a.cfg.OVSControl, func(line string) string {
			<-sent
			asked <- line
			return ""
		})
		a.vswitchd.purgeAlong(t.Context())
		close(sent)
		for range want {
			if line := <-asked; !strings.Contains(line, `"revalidator/purge"`) {
				t.Errorf("%s: asked for %s", datapath, line)
			}
		}
		if n := len(asked); n != 0 {
			t.Errorf("%s: asked %d times more", datapath, n)
		}
	}
}

// TestPurge_IsRepeatedBehindTheRevalidators: what a revalidator has locked, or has decided on, at a purge goes with
// another one, when its round has ended; also where the switch does not report that.
func TestPurge_IsRepeatedBehindTheRevalidators(t *testing.T) {
	for _, c := range []struct {
		name, refused, want string
	}{
		{"a round ends", "nothing", "purge wait purge"},
		{"no round is reported", "revalidator/wait", "purge wait purge"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, s, _ := testAgent(t)
			a.session = s
			a.cfg.DatapathType, a.cfg.OVSControl = "netdev", filepath.Join(t.TempDir(), "ctl")
			asked := refusing(t, a.cfg.OVSControl, c.refused)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			if err := a.commit(ctx, []ofctl.FlowMod{{Flow: ofctl.Flow{Table: 33, Priority: 7}}}); err != nil {
				t.Fatal(err)
			}
			go func() { defer close(done); a.vswitchd.keepPurged(ctx) }()
			var got []string
			for range 3 {
				_, command, _ := strings.Cut(<-asked, "revalidator/")
				command, _, _ = strings.Cut(command, `"`)
				got = append(got, command)
			}
			if got := strings.Join(got, " "); got != c.want {
				t.Errorf("the switch was sent %q, want %q", got, c.want)
			}
			cancel()
			<-done
		})
	}
}

// The flows may have changed and nobody have asked for more: whoever waited had gone, or netplugin had crashed.
func TestMegaflows_DeletedWithoutWaiter(t *testing.T) {
	a, s, _ := testAgent(t)
	a.cfg.DatapathType, a.cfg.OVSControl = "netdev", filepath.Join(t.TempDir(), "ctl")
	asked := control(t, a.cfg.OVSControl)
	purges := func() (n int) {
		for range len(asked) {
			if strings.Contains(<-asked, "revalidator/purge") {
				n++
			}
		}
		return n
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.commit(gone, []ofctl.FlowMod{{Flow: ofctl.Flow{Priority: 7}}}); err != nil {
		t.Fatal(err)
	}
	if n := purges(); n != 1 {
		t.Errorf("asked %d times after a change whose caller had gone", n)
	}
	for _, what := range []string{"a comparison that finds something", "one that finds nothing"} {
		if err := a.attach(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if n := purges(); n != 1 {
			t.Errorf("asked %d times after %s", n, what)
		}
	}
}

// TestAnotherLayoutWaitsForTheCache: the tables of another layout go when the datapath leads no packet there any more, and not before: when a round of its
// revision has ended that began after the change; and where entries can outlive that, when the cache is emptied once more.
func TestAnotherLayoutWaitsForTheCache(t *testing.T) {
	for datapath, want := range map[string]string{
		"system": "wait wait wait",
		"netdev": "purge wait wait wait purge, then gone: purge",
	} {
		a, s, _ := testAgent(t)
		a.cfg.DatapathType, a.cfg.OVSControl = datapath, filepath.Join(t.TempDir(), "ctl")
		a.update(t.Context(), rules(1, allow(80)))
		wanted := len(s.holds)
		clear(s.holds)
		old := ofctl.Flow{Table: 200, Priority: 7}
		if err := s.Commit(t.Context(), []ofctl.FlowMod{{Flow: old}, {Flow: ofctl.Flow{Priority: 9999, Actions: []ofctl.Action{{Kind: ofctl.GotoTable, Table: 200}}}}}); err != nil {
			t.Fatal(err)
		}
		var asked []string
		gone := false
		answering(t, a.cfg.OVSControl, func(line string) string {
			_, command, ok := strings.Cut(line, "revalidator/")
			if !ok {
				return ""
			}
			command, _, _ = strings.Cut(command, `"`)
			if _, there := s.holds[pickyKey{table: old.Table, priority: old.Priority}]; there && len(s.holds) != wanted+1 {
				t.Errorf("%s: %d flows beside the old one, want %d", command, len(s.holds)-1, wanted)
			} else if !there && !gone {
				gone = true
				asked[len(asked)-1] += ", then gone:"
			}
			asked = append(asked, command)
			return ""
		})
		if err := a.attach(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(asked, " "); got != want || len(s.holds) != wanted {
			t.Errorf("%s: asked for %q, want %q; %d flows after it, want %d", datapath, got, want, len(s.holds), wanted)
		}
	}
}

// A switch that does not say when it has revised its cache empties it all the same: what is left of another layout must not lead packets to its tables.
func TestMegaflows_FlushedWithoutRevision(t *testing.T) {
	a, _, _ := testAgent(t)
	a.cfg.DatapathType, a.cfg.OVSControl = "netdev", filepath.Join(t.TempDir(), "ctl")
	asked := refusing(t, a.cfg.OVSControl, "revalidator/wait")
	a.vswitchd.drain(t.Context())
	for _, want := range []string{"revalidator/wait", "revalidator/purge"} {
		select {
		case line := <-asked:
			if !strings.Contains(line, want) {
				t.Errorf("asked %s, want %s", line, want)
			}
		default:
			t.Errorf("%s was not asked for", want)
		}
	}
}

// At each connection of the switch, which may be a new process, its conntrack is told to take halves of TCP connections, and to
// hold more fragments.
func TestHalvesOfConnectionsAreTracked(t *testing.T) {
	for datapath, want := range map[string]int{"netdev": 1, "system": 0} {
		a, s, _ := testAgent(t)
		a.cfg.DatapathType, a.cfg.OVSControl = datapath, filepath.Join(t.TempDir(), "ctl")
		asked := control(t, a.cfg.OVSControl)
		if err := a.attach(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		found := map[string]int{}
		for range len(asked) {
			found[<-asked]++
		}
		for _, setting := range []string{`"dpctl/ct-disable-tcp-seq-chk","params":["netdev@ovs-netdev"]`, `"dpctl/ipf-set-max-nfrags","params":["netdev@ovs-netdev","5000"]`} {
			if n := found[`{"id":0,"method":`+setting+"}\n"]; n != want {
				t.Errorf("%s: %s was asked %d times, want %d", datapath, setting, n, want)
			}
		}
	}
}

// A switch that takes a question and never answers does not hold the owner.
func TestTheOwnerDoesNotWaitForASilentSwitch(t *testing.T) {
	a, _, _ := testAgent(t)
	a.cfg.OVSControl = filepath.Join(t.TempDir(), "ctl")
	listener, err := net.Listen("unix", a.cfg.OVSControl)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	failed := make(chan error, 1)
	go func() { failed <- a.vswitchd.control(t.Context(), "revalidator/purge") }()
	select {
	case err := <-failed:
		if err == nil {
			t.Error("nobody answered, and no error")
		}
	case <-time.After(10 * controlTime):
		t.Error("the owner waits")
	}
}

// control is ovs-vswitchd's control socket: it answers everything with success, and notes what it was asked before it answers.
func control(t *testing.T, path string) chan string {
	t.Helper()
	return answering(t, path, func(string) string { return "" })
}

// answering is one that answers what is asked.
func answering(t *testing.T, path string, answer func(line string) string) chan string {
	t.Helper()
	return serving(t, path, func(line string) map[string]any { return map[string]any{"id": 0, "result": answer(line), "error": nil} })
}

// refusing is one that refuses a command.
func refusing(t *testing.T, path, command string) chan string {
	t.Helper()
	return serving(t, path, func(line string) map[string]any {
		if strings.Contains(line, command) {
			return map[string]any{"id": 0, "result": nil, "error": "no"}
		}
		return map[string]any{"id": 0, "result": "", "error": nil}
	})
}

func serving(t *testing.T, path string, reply func(line string) map[string]any) chan string {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	asked, done := make(chan string, 999), make(chan struct{})
	t.Cleanup(func() { listener.Close(); <-done })
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			line, _ := bufio.NewReader(conn).ReadString('\n')
			asked <- line
			_ = json.NewEncoder(conn).Encode(reply(line))
			conn.Close()
		}
	}()
	return asked
}
