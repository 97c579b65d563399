package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/netplugin/contest"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// contestedHost is a node on which another program changes the host's network again after each repair.
type contestedHost struct {
	*hostKeeper
	t       *testing.T
	compare func()
}

// fight runs a command before each of some comparisons, and returns the number of those that repaired an object.
func (h *contestedHost) fight(rounds int, command, object string) (repaired int) {
	h.t.Helper()
	for range rounds {
		if out, err := exec.Command("sh", "-ec", command).CombinedOutput(); err != nil {
			h.t.Errorf("%s: %v: %s", command, err, out)
		}
		h.compare()
		if len(h.repaired[object]) > 0 {
			repaired++
		}
	}
	return repaired
}

// contestedNames returns the labels of the series of contested objects.
func contestedNames(t *testing.T, a *agent) (names []string) {
	t.Helper()
	series := make(chan prometheus.Metric, maxContested+1)
	a.metrics.contested.Collect(series)
	close(series)
	for s := range series {
		var m dto.Metric
		if err := s.Write(&m); err != nil {
			t.Fatal(err)
		}
		var labels []string
		for _, l := range m.GetLabel() {
			labels = append(labels, l.GetValue())
		}
		names = append(names, strings.Join(labels, " "))
	}
	slices.Sort(names)
	return names
}

// TestKeepHost_Contested: an object without which packets are denied waits when it has been repaired again and again,
// and one that keeps packets from passing is repaired each time. Both are in the metric, in the problems of the network
// and in the log, there once.
func TestKeepHost_Contested(t *testing.T) {
	log := process.NewRing(process.KeptLog)
	keeper, infos := keptHost(t, slog.New(slog.NewTextHandler(log, nil)))
	h := &contestedHost{keeper, t, nil}
	h.compare = func() {
		if err := h.keepHost(t.Context(), infos); err != nil {
			t.Error(err)
		}
	}
	const rounds, beforeWait = 14, 10
	address, rule := "ip addr add 203.0.113.7/32 dev fk-gw || true", "ip rule del pref 60"
	netns.New(t).Do(func() {
		if err := nodeLinks(); err != nil {
			t.Error(err)
			return
		}
		h.fight(2, "true", "")
		ageLinks(h.hostKeeper)
		if n := h.fight(rounds, address, "address"); n != beforeWait {
			t.Errorf("the address was repaired %d times, want %d", n, beforeWait)
		}
		if n := h.fight(rounds, rule, "rule"); n != rounds {
			t.Errorf("the rule was repaired %d times, want %d", n, rounds)
		}
		h.fight(2, "true", "")
		if names := contestedNames(t, h.agent); !slices.Equal(names, []string{"203.0.113.7 address", "60 rule"}) {
			t.Errorf("contested: %q", names)
		}
		for _, name := range []string{"names=203.0.113.7\n", "names=60\n"} {
			if n := strings.Count(log.Text(), name); n != 1 {
				t.Errorf("%q is in the log %d times:\n%s", name, n, log.Text())
			}
		}
		const want = "another program keeps changing parts of the host's network, and netplugin keeps restoring " +
			"them: address 203.0.113.7, rule 60: stop one of them"
		problem := inspect.NetworkProblem{Kind: inspect.NetworkContested, Node: "node1", Text: want}
		if len(h.problems) == 0 || h.problems[0] != problem {
			t.Errorf("problems %q, want %q first", h.problems, problem)
		}
		h.fight(rounds, "nft delete table inet flowkeep", "nftables")
		if h.cfg.Health.NotReady() != "" {
			t.Errorf("not ready: %s", h.cfg.Health.NotReady())
		}
		if n := h.fight(1, "ip addr add 203.0.113.7/32 dev fk-gw || true", "address"); n != 1 {
			t.Error("the address waits though the nftables tables are contested")
		}
	})
}

// TestKeepHost_ContestedTables: another program that is faster than each write contests the tables, though Setup fails.
func TestKeepHost_ContestedTables(t *testing.T) {
	h, infos := keptHost(t, slog.New(slog.DiscardHandler))
	netns.New(t).Do(func() {
		if err := nodeLinks(); err != nil {
			t.Error(err)
			return
		}
		other := exec.Command("sh", "-c", "yes 'delete table inet flowkeep' | exec nft -i >/dev/null 2>&1")
		other.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := other.Start(); err != nil {
			t.Error(err)
			return
		}
		defer func() {
			_ = syscall.Kill(-other.Process.Pid, syscall.SIGKILL)
			_ = other.Wait()
		}()
		for range 200 {
			if err := h.keepHost(t.Context(), infos); errors.Is(err, hostnet.ErrNftablesChange) {
				if !h.contests.IsContested(tables, time.Now()) || len(contestedNames(t, h.agent)) == 0 {
					t.Error("the tables are not contested")
				}
				return
			}
		}
		t.Error("all writes lasted until they were compared: nothing is shown")
	})
}

// TestKeepHost_ContestedWhileSetupFails: an object that another program changes again and again is counted and
// contested also while another part of the network cannot be set up. What the first comparisons write is not counted.
func TestKeepHost_ContestedWhileSetupFails(t *testing.T) {
	keeper, infos := keptHost(t, slog.New(slog.DiscardHandler))
	keeper.cfg.TrafficMode, keeper.cfg.MTU = TrafficGeneve, 1500 // too large for a tunnel
	h := &contestedHost{keeper, t, nil}
	h.compare = func() {
		if err := h.keepHost(t.Context(), infos); err == nil {
			t.Error("Setup succeeded: this test shows nothing")
		}
	}
	const rounds, rule = 14, "ip rule del pref 60"
	netns.New(t).Do(func() {
		if err := nodeLinks(); err != nil {
			t.Error(err)
			return
		}
		h.fight(2, "true", "")
		if n := repairsOf(t, h.agent, "rule"); n != 0 {
			t.Errorf("%v repairs of rules before another program changed one", n)
		}
		h.fight(rounds, rule, "rule")
		if n := repairsOf(t, h.agent, "rule"); n != rounds {
			t.Errorf("%v repairs of rules, want %d", n, rounds)
		}
		if names := contestedNames(t, h.agent); !slices.Equal(names, []string{"60 rule"}) {
			t.Errorf("contested: %q", names)
		}
		h.expectChanges()
		if h.fight(1, rule, "rule"); repairsOf(t, h.agent, "rule") != rounds {
			t.Error("what was written after a change of nodes is counted")
		}
	})
}

// TestNoteWritten_WantedChanged: while Setup fails, a change of the wanted configuration makes forget what was written
// before it: that may never have been as wanted since.
func TestNoteWritten_WantedChanged(t *testing.T) {
	h, _ := keptHost(t, slog.New(slog.DiscardHandler))
	h.steady = false
	for _, step := range []struct {
		isSame  bool
		written string
		counted []string
	}{{true, "a", []string{"a"}}, {true, "b", []string{"a", "b"}}, {false, "c", []string{"c"}}} {
		h.isSame, h.repaired = step.isSame, map[string][]string{"rule": {step.written}}
		h.noteWritten(true)
		h.isSame = true // of the next comparison
		var counted []string
		for _, name := range []string{"a", "b", "c"} {
			if h.isChanged(contest.Object{Kind: "rule", Name: name}, time.Now()) {
				counted = append(counted, name)
			}
		}
		if !slices.Equal(counted, step.counted) {
			t.Errorf("after %q was written, another program has changed %q, want %q", step.written, counted, step.counted)
		}
	}
}

// TestWithContested: the problem of contested objects takes the place of the former one, before all others.
func TestWithContested(t *testing.T) {
	peer := inspect.NetworkProblem{Kind: inspect.NetworkPeer, Text: "peer"}
	former := inspect.NetworkProblem{Kind: inspect.NetworkContested, Text: "former"}
	now := inspect.NetworkProblem{Kind: inspect.NetworkContested, Text: "now"}
	problems := []inspect.NetworkProblem{former, peer}
	want := []inspect.NetworkProblem{now, peer}
	if got := withContested(problems, []inspect.NetworkProblem{now}); !slices.Equal(got, want) {
		t.Errorf("problems %v, want %v", got, want)
	}
	if got := withContested(problems, nil); !slices.Equal(got, []inspect.NetworkProblem{peer}) {
		t.Errorf("without contested objects: %v", got)
	}
	many := slices.Repeat([]inspect.NetworkProblem{peer}, inspect.MaxNetworkProblems)
	if got := withContested(many, []inspect.NetworkProblem{now}); len(got) != len(many) || got[0] != now {
		t.Errorf("of %d problems: %v", len(many)+1, got)
	}
}

// TestPostpone_WantedChanged: after a change of the wanted configuration nothing waits.
func TestPostpone_WantedChanged(t *testing.T) {
	h, _ := keptHost(t, slog.New(slog.DiscardHandler))
	for range 20 {
		h.contests.AddRepair(contest.Object{Kind: "link", Name: hostnet.Gateway}, time.Now())
	}
	for _, c := range []struct{ steady, isSame, want bool }{
		{true, true, true}, {false, true, false}, {true, false, false},
	} {
		if h.steady, h.isSame = c.steady, c.isSame; h.postpone("link", hostnet.Gateway) != c.want {
			t.Errorf("a contested link waits: %v, want %+v", !c.want, c)
		}
	}
	gateway := &hostnet.Config{Links: new(rtnl.Links), MTU: 1400}
	if was := basisOf(gateway); was != (basis{mtu: 1400}) {
		t.Errorf("without links: %+v", was)
	}
}

// TestCountRepairs: an object that one comparison repairs in several steps counts once.
func TestCountRepairs(t *testing.T) {
	a, _, _ := running(t)
	r := &runner{agent: a}
	if got := r.countRepairs("link", "fk-wire", "fk-gw", "fk-wire"); !slices.Equal(got, []string{"fk-gw", "fk-wire"}) {
		t.Errorf("to log: %q", got)
	}
	if n := repairsOf(t, a, "link"); n != 2 {
		t.Errorf("%v repairs, want 2", n)
	}
	if got := r.countRepairs("link", "fk-wire"); len(got) > 0 {
		t.Errorf("to log: %q", got)
	}
}

// TestContested_NamesPrograms: the log and the problem of contested objects have the programs that are known.
func TestContested_NamesPrograms(t *testing.T) {
	a, _, _ := running(t)
	r := &runner{agent: a}
	const route = "unreachable 10.244.2.0/24 in table 254"
	for _, program := range []string{"nft", "ip, started by foo"} {
		r.addProgram(hostnet.Change{Object: "rule", Name: "60", Program: program})
	}
	r.addProgram(hostnet.Change{Object: "route", Name: "10.244.2.0/24 in table 254", Program: "ip"})
	if got := r.countRepairs("rule", "60"); !slices.Equal(got, []string{"60 (by ip, started by foo; by nft)"}) {
		t.Errorf("to log: %q", got)
	}
	const want = "60 (3 times; by ip, started by foo; by nft)"
	if got := r.repairText(contest.Object{Kind: "rule", Name: "60"}, 3); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for range 20 {
		r.countRepairs("rule", "60", "100")
		r.countRepairs("route", route)
	}
	const text = "another program keeps changing parts of the host's network, and netplugin keeps restoring " +
		"them: route " + route + " (by ip), rule 100, rule 60 (by ip, started by foo; by nft): stop one of them"
	if got := r.contestedProblem(); len(got) != 1 || got[0].Text != text {
		t.Errorf("problems %+v, want %q", got, text)
	}
}

// TestConfiguration_CountsWrites: a CNI configuration that another program writes again after each repair is contested,
// and its writes are logged once.
func TestConfiguration_CountsWrites(t *testing.T) {
	a, _, _ := running(t)
	r, logged := &runner{agent: a}, 0
	cfg := r.configuration(t.Context())
	for range 20 {
		if cfg.CountWrite("/etc/cni/net.d/10-flowkeep.conflist") {
			logged++
		}
	}
	const want = "restoring them: cni /etc/cni/net.d/10-flowkeep.conflist: stop one of them"
	if got := r.contestedProblem(); len(got) != 1 || !strings.HasSuffix(got[0].Text, want) || logged != 1 {
		t.Errorf("problems %+v, %d writes logged", got, logged)
	}
}

// TestKeepHost_NamesPrograms: the problem of a rule that a script deletes again and again has the script's name.
func TestKeepHost_NamesPrograms(t *testing.T) {
	h, infos := keptHost(t, slog.New(slog.DiscardHandler))
	script := filepath.Join(t.TempDir(), "vpn-up")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nip rule del pref 60\ntrue\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	h.changed = make(chan struct{}, 1)
	const maxRounds = 100
	namespace := netns.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	namespace.Do(func() {
		if err := errors.Join(nodeLinks(), h.keepHost(ctx, infos)); err != nil {
			t.Error(err)
		}
	})
	go namespace.Do(func() { defer close(ended); h.watchHost(ctx, hostnet.Watch) })
	defer func() { cancel(); <-ended }()
	var text string
	namespace.Do(func() {
		for range maxRounds {
			_ = exec.Command(script).Run()
			if err := h.keepHost(ctx, infos); err != nil {
				t.Error(err)
			}
			select {
			case <-h.changed: // of this round or of the one before
			case <-time.After(time.Second):
				t.Error("no change is reported")
			}
			if list := h.contestedProblem(); len(list) > 0 {
				text = list[0].Text
			}
			if strings.Contains(text, " rule 60 (by ip, started by vpn-up):") {
				return
			}
		}
	})
	if !strings.Contains(text, " rule 60 (by ip, started by vpn-up):") {
		t.Errorf("%q names no program in %d rounds", text, maxRounds)
	}
}

// TestSweepPause: a sweep that fails is repeated soon, and ever later while it fails.
func TestSweepPause(t *testing.T) {
	var got []time.Duration
	for failures := range 8 {
		got = append(got, sweepPause(failures)/time.Second)
	}
	if want := []time.Duration{30, 1, 2, 4, 8, 16, 30, 30}; !slices.Equal(got, want) {
		t.Errorf("pauses of %d s, want %d", got, want)
	}
}
