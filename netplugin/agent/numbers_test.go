package agent

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// numbered is a node that netplugin starts on, once in each network namespace, as after a reboot.
type numbered struct {
	t     *testing.T
	after string // a command line that runs after the comparison
	*runner
}

func newNumbered(t *testing.T) *numbered {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("nftables is not installed")
	}
	a, _, _ := running(t)
	a.cfg.Health, a.cfg.StateDir = new(process.Health), t.TempDir()
	configured(t, a)
	manager, err := endpoints.Open(endpoints.Config{StateDir: t.TempDir(), Logger: a.log})
	if err != nil {
		t.Fatal(err)
	}
	return &numbered{t, "true", &runner{agent: a, manager: manager}}
}

func (n *numbered) run(line string) string {
	n.t.Helper()
	out, err := exec.Command("sh", "-ec", line).CombinedOutput()
	if err != nil {
		n.t.Errorf("%s: %v: %s", line, err, out)
	}
	return string(out)
}

// keep compares once, as a netplugin that has just started.
func (n *numbered) keep() (*hostKeeper, error) {
	h := &hostKeeper{runner: n.runner}
	return h, h.keepHost(n.t.Context(), n.rules.nodes)
}

// start returns what a start of netplugin after a command line reports.
func (n *numbered) start(before string) (h *hostKeeper, err error) {
	netns.New(n.t).Do(func() {
		if err = nodeLinks(); err != nil {
			return
		}
		n.run(before)
		h, err = n.keep()
		n.run(n.after)
	})
	return h, err
}

const tableRule = "ip rule add pref 1000 from 198.51.100.11 lookup 26214"

// hasText reports whether problems have a text about numbers of another program.
func hasText(problems []inspect.NetworkProblem, text string) bool {
	return slices.ContainsFunc(problems, func(p inspect.NetworkProblem) bool {
		return p.Kind == inspect.NetworkNumbers && strings.Contains(p.Text, text)
	})
}

// A first installation refuses a number that another program uses, and goes on once it is free. A later start goes on
// and reports, also after a reboot.
func TestKeepHost_NumbersOfOthers(t *testing.T) {
	n := newNumbered(t)
	_, err := n.start(tableRule)
	if err == nil || !strings.Contains(err.Error(), "1000: from 198.51.100.11") ||
		!strings.Contains(err.Error(), hostnet.TableFlag) {
		t.Errorf("first installation: %v", err)
	}
	if _, err = os.Stat(hostnet.RecordPath(n.cfg.StateDir)); err == nil {
		t.Error("the refused installation is recorded")
	}
	netns.New(t).Do(func() {
		if err := nodeLinks(); err != nil {
			t.Error(err)
		}
		n.run(tableRule)
		h, _ := n.keep()
		n.run("ip rule del pref 1000")
		if err := h.keepHost(t.Context(), n.rules.nodes); err != nil {
			t.Errorf("after the rule was removed: %v", err)
		}
	})
	if h, err := n.start(tableRule); err != nil || !hasText(h.problems, "1000: from 198.51.100.11") {
		t.Errorf("later start: %v, problems %v", err, h.problems)
	}
}

// TestBeginHost: a start adds the rule of replies of Services before there is a session, where an earlier version did not
// write it, and leaves the rest to the comparison. A first installation that is refused adds none.
func TestBeginHost(t *testing.T) {
	n := newNumbered(t)
	netns.New(t).Do(func() {
		if err := nodeLinks(); err != nil {
			t.Error(err)
		}
		begin := func() (rules string) {
			n.beginHost()
			if infos := <-n.node.infos; len(infos) != len(n.rules.nodes) {
				t.Errorf("the comparison gets %d nodes", len(infos))
			}
			return n.run("ip rule")
		}
		n.run(tableRule)
		if rules := begin(); strings.Contains(rules, "iif fk-gw") {
			t.Errorf("refused, and added:\n%s", rules)
		}
		n.run("ip rule del pref 1000")
		if _, err := n.keep(); err != nil {
			t.Error(err)
		}
		n.run("ip rule del pref 103; ip route flush table 26216")
		if rules := begin(); !strings.Contains(rules, "103:") || n.run("ip route show table 26216") != "" {
			t.Errorf("no rule of replies, or more than rules is back:\n%s", rules)
		}
	})
}

// TestRun_RulesBeforeSession: run begins no session with the switch before beginHost has ended. Here beginHost waits, for
// room in a channel. A session would log that there is no switch.
func TestRun_RulesBeforeSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := process.NewRing(process.KeptLog)
		a, _, _ := testAgent(t)
		a.log, a.cfg.Health = slog.New(slog.NewTextHandler(log, nil)), new(process.Health)
		a.rules.nodes = []policy.NodeInfo{{Name: "node1"}}
		a.node.infos <- nil
		ended := make(chan any, 1)
		go func() {
			defer func() { ended <- recover() }()
			_ = newRunner(a, cidrs{}, nil).run(t.Context())
		}()
		synctest.Wait()
		if strings.Contains(log.Text(), "switch") || len(ended) > 0 {
			t.Errorf("a session has begun, or run has ended:\n%s", log.Text())
		}
		close(a.node.infos)
		if text := fmt.Sprint(<-ended); !strings.Contains(text, "closed channel") {
			t.Errorf("run was not in beginHost: %s", text)
		}
	})
}

// TestKeepHost_InstalledWithoutARecord reboots nodes of a version that recorded nothing.
func TestKeepHost_InstalledWithoutARecord(t *testing.T) {
	for name, c := range map[string]struct {
		file    string
		refuses bool
	}{
		"rules of a refused installation": {"rules.db", true},
		"a store without addresses":       {"addresses/flowkeep/lock", true},
		"addresses of pods":               {"addresses/flowkeep/10.244.1.2", false},
		"addresses of former pods":        {"addresses/flowkeep/last_reserved_ip.0", false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNumbered(t)
			path := filepath.Join(n.cfg.StateDir, c.file)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			h, err := n.start(tableRule)
			if (err != nil) != c.refuses || !c.refuses && !hasText(h.problems, "1000: from 198.51.100.11") {
				t.Errorf("%v, problems %v; refuses: %v", err, h.problems, c.refuses)
			}
		})
	}
}

// TestKeepHost_OtherNumbersThatAreTaken gives an installed node other numbers, of which another program uses one: the
// node keeps the earlier ones and reports, and takes the others over when they are free at a start.
func TestKeepHost_OtherNumbersThatAreTaken(t *testing.T) {
	for name, c := range map[string]struct {
		unrecorded bool // as by versions with table 102
		before     hostnet.Numbers
		configured hostnet.Numbers
		taken      string
	}{
		"a flag": {
			before:     hostnet.DefaultNumbers,
			configured: hostnet.Numbers{Table: 300, Priority: 200},
			taken:      "ip rule add pref 1000 from 198.51.100.11 lookup 300",
		},
		"an upgrade from table 102": {
			before:     hostnet.FormerNumbers,
			configured: hostnet.DefaultNumbers,
			taken:      "ip rule add pref 1000 from 198.51.100.11 lookup 26214",
		},
		"an upgrade, by rules": {
			unrecorded: true,
			before:     hostnet.FormerNumbers,
			configured: hostnet.DefaultNumbers,
			taken:      "ip route add 198.51.100.0/24 dev eth0 table 26214",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNumbered(t)
			netns.New(t).Do(func() {
				if err := nodeLinks(); err != nil {
					t.Error(err)
				}
				n.cfg.Numbers = c.before
				if _, err := n.keep(); err != nil {
					t.Error(err)
				}
				if c.unrecorded {
					n.run("rm " + hostnet.RecordPath(n.cfg.StateDir))
				}
				n.cfg.Numbers = c.configured
				n.run(c.taken)
				h, err := n.keep()
				keeps := fmt.Sprintf("netplugin keeps table %d ", c.before.Table)
				if err != nil || !hasText(h.problems, keeps) || h.watched.Load().Table != c.before.Table {
					t.Errorf("%v, problems %v", err, h.problems)
				}
				n.run("ip rule del pref 1000 || ip route del 198.51.100.0/24 table 26214")
				if h, err := n.keep(); err != nil || len(h.numbers.taken) > 0 ||
					!strings.Contains(n.run("ip rule"), fmt.Sprint("iif fk-gw lookup ", c.configured.Table)) {
					t.Errorf("free again: %v, %q, rules\n%s", err, h.numbers.taken, n.run("ip rule"))
				}
			})
		})
	}
}

// TestKeepHost_ImpossibleNumbers: a node whose record has numbers that are no longer possible has none to keep. It
// refuses configured ones that another program uses, and takes them when they are free. Rules with the former numbers
// are removed, also where there is no record.
func TestKeepHost_ImpossibleNumbers(t *testing.T) {
	n := newNumbered(t)
	record := hostnet.RecordPath(n.cfg.StateDir)
	if err := os.WriteFile(record, []byte("table 249, first priority 50\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, ok, err := hostnet.ReadRecord(n.cfg.StateDir); n.Check() == nil || !ok || err != nil {
		t.Fatalf("the record has possible numbers %v (%v, %v): this test shows nothing", n, ok, err)
	}
	_, err := n.start(tableRule)
	if err == nil || !strings.Contains(err.Error(), record+" has no numbers") ||
		!strings.Contains(err.Error(), "1000: from 198.51.100.11") {
		t.Errorf("the configured numbers are taken: %v", err)
	}
	for _, prepare := range []func() error{func() error { return nil }, func() error { return os.Remove(record) }} {
		if err := prepare(); err != nil {
			t.Fatal(err)
		}
		left := filepath.Join(t.TempDir(), "rules")
		n.after = "ip rule >" + left
		h, err := n.start("ip rule add pref 60 from 10.244.1.0/24 iif fk-gw lookup 249 protocol kernel")
		if err != nil || h.watched.Load().Table != hostnet.DefaultNumbers.Table {
			t.Errorf("the configured numbers are free: %v", err)
		}
		rules, err := os.ReadFile(left)
		if text := string(rules); err != nil || strings.Contains(text, "lookup 249") || !strings.Contains(text, "lookup 26214") {
			t.Errorf("rules (%v):\n%s", err, text)
		}
		if err := os.WriteFile(record, []byte("table 249, first priority 50\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestKeepHost_UnreadableState: rules of an installed node are set also where neither the record nor nftables can be
// read.
func TestKeepHost_UnreadableState(t *testing.T) {
	n := newNumbered(t)
	if err := os.WriteFile(hostnet.RecordPath(n.cfg.StateDir), []byte("table"), 0o600); err != nil {
		t.Fatal(err)
	}
	netns.New(t).Do(func() {
		if err := nodeLinks(); err != nil {
			t.Error(err)
		}
		path := os.Getenv("PATH")
		t.Setenv("PATH", t.TempDir()) // without nft
		_, err := n.keep()
		t.Setenv("PATH", path)
		if got := n.run("ip rule"); err == nil || !strings.Contains(got, "iif fk-gw lookup 26214") {
			t.Errorf("%v, rules\n%s", err, got)
		}
	})
}
