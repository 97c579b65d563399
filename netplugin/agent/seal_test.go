package agent

import (
	"os/exec"
	"testing"

	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
)

// TestKeepHost_SealsLinksThoughSetupFails: the address that another program gave to a pod's link goes also while the
// rest of the host's network cannot be set up.
func TestKeepHost_SealsLinksThoughSetupFails(t *testing.T) {
	a, _, _ := running(t)
	a.cfg.Health = new(process.Health)
	configured(t, a)
	dir := t.TempDir()
	keep(t, dir, wired("1", "c1", 7), true)
	name := hostIfName("c1")
	manager, err := endpoints.Open(endpoints.Config{StateDir: dir, Logger: a.log})
	if err != nil || len(manager.List()) != 1 {
		t.Fatalf("endpoints %v (%v)", manager.List(), err)
	}
	h := &hostKeeper{runner: &runner{agent: a, manager: manager, lostLinks: make(chan struct{}, 1)}}
	netns.New(t).Do(func() {
		if out, err := exec.Command("sh", "-ec", `ip link add "$0" type veth peer name peer
ip addr add 203.0.113.1/24 dev "$0"`, name).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
			return
		}
		if err := h.keepHost(t.Context(), a.rules.nodes); err == nil {
			t.Error("Setup succeeded without fk-gw: this test shows nothing")
		}
		out, err := exec.Command("ip", "-o", "addr", "show", "dev", name).CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("addresses of the link: %s (%v)", out, err)
		}
	})
}
