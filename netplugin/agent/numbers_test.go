package agent

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
)

// A first installation refuses a number that another program uses, and goes on once it is free. A later start goes on
// and reports, also after a reboot.
func TestKeepHost_NumbersOfOthers(t *testing.T) {
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
	run := func(line string) {
		if out, err := exec.Command("sh", "-ec", line).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", line, err, out)
		}
	}
	// start returns what a start of netplugin reports.
	start := func(before, after string) (h *hostKeeper, err error) {
		h = &hostKeeper{runner: &runner{agent: a, manager: manager}}
		netns.New(t).Do(func() {
			if err = nodeLinks(); err != nil {
				return
			}
			run(before)
			if err = h.keepHost(t.Context(), a.rules.nodes); after != "" {
				run(after)
				err = h.keepHost(t.Context(), a.rules.nodes)
			}
		})
		return h, err
	}
	const rule = "ip rule add pref 1000 from 198.51.100.11 lookup 26214"
	_, err = start(rule, "")
	if err == nil || !strings.Contains(err.Error(), "1000: from 198.51.100.11") ||
		!strings.Contains(err.Error(), hostnet.TableFlag) {
		t.Errorf("first installation: %v", err)
	}
	if _, err = start(rule, "ip rule del pref 1000"); err != nil {
		t.Errorf("after the rule was removed: %v", err)
	}
	h, err := start(rule, "") // another network namespace: rules and routes are gone, as after a reboot
	reported := func(p inspect.NetworkProblem) bool {
		return p.Kind == inspect.NetworkNumbers && strings.Contains(p.Text, "1000: from 198.51.100.11")
	}
	if err != nil || !slices.ContainsFunc(h.problems, reported) {
		t.Errorf("later start: %v, problems %v", err, h.problems)
	}
}
