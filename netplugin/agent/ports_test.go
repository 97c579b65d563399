package agent

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/ipam"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/fake"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

func TestFreeNumber_IsUnused(t *testing.T) {
	all := []endpoints.Endpoint{{Port: 3}, {Port: minPodNumber + 7}, {Port: minPodNumber + 8}}
	for _, test := range []struct {
		order uint64
		want  uint32
	}{
		{0, minPodNumber},
		{6, minPodNumber + 6},
		{7, minPodNumber + 9},
		{maxPodNumber - minPodNumber, maxPodNumber},
		{maxPodNumber - minPodNumber + 1, minPodNumber},
	} {
		if got := freeNumber(test.order, all); got != test.want {
			t.Errorf("order %d: number %d, want %d", test.order, got, test.want)
		}
	}
}

// portsOf returns a switch with the agent's flows.
func portsOf(t *testing.T, a *agent) *fake.Switch {
	t.Helper()
	sw := fake.New()
	var mods []ofctl.FlowMod
	for _, f := range a.compiler.Flows() {
		mods = append(mods, ofctl.FlowMod{Command: ofctl.Add, Flow: f})
	}
	if err := sw.Commit(t.Context(), mods); err != nil {
		t.Fatal(err)
	}
	return sw
}

// TestRenumber_ClosesPodsWithoutAPort starts as after a reboot: a pod's file names a port number that the switch has given
// to nobody yet. Whoever gets it does not send as that pod. With its own port the pod sends again.
func TestRenumber_ClosesPodsWithoutAPort(t *testing.T) {
	a, _, _ := testAgent(t)
	a.cfg.Node = "node1"
	a.node.gateway = pipeline.Device{Port: 1, MAC: ofctl.MAC{2, 0xf0, 0, 0, 0, 1}}
	a.node.wire = pipeline.Device{Port: 4, MAC: ofctl.MAC{2, 0xf0, 0, 0, 0, 4}}
	a.node.out = pipeline.Device{Port: 2, MAC: ofctl.MAC{2, 0xf0, 0, 0, 0, 2}}
	a.node.clusters = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	a.rules.nodes = []policy.NodeInfo{{
		Name:      "node1",
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.11")},
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
	}}
	e := endpoints.Endpoint{
		Namespace:   "shop",
		Name:        "db",
		UID:         "1",
		ContainerID: "c1",
		IfName:      "eth0",
		HostIfName:  "fkpdb",
		Port:        3,
		MAC:         endpoints.MAC{2, 0xf1, 10, 244, 1, 5},
		Addresses:   []netip.Addr{netip.MustParseAddr("10.244.1.5")},
		Realised:    true,
	}
	a.pods.restorePods([]endpoints.Endpoint{e})
	a.node.configure(t.Context())
	direct := fake.IP(e.Addresses[0], netip.MustParseAddr("10.244.2.7"), 17, 53)
	direct.EthSrc, direct.EthDst = ofctl.MAC(e.MAC), a.node.gateway.MAC
	if r := portsOf(t, a).Inject(3, direct); !r.Left(4) {
		t.Errorf("to a pod elsewhere: %s", r)
	}
	leaves := func(port uint32) bool {
		p := fake.IP(e.Addresses[0], netip.MustParseAddr("198.51.100.7"), 17, 53)
		p.EthSrc, p.EthDst = ofctl.MAC(e.MAC), a.node.gateway.MAC
		return portsOf(t, a).Inject(port, p).Left(2)
	}
	if !leaves(3) {
		t.Fatal("the pod cannot send: nothing is shown")
	}
	a.pods.renumber(map[string]uint32{"fk-gw": 1})
	if leaves(3) {
		t.Error("port 3 sends as a pod that has no port")
	}
	a.pods.renumber(map[string]uint32{"fkpdb": 300})
	if leaves(3) || !leaves(300) {
		t.Error("the pod's own port does not send, or its former one does")
	}
}

// TestKeepSwept: pods are swept soon after the start, and each half a minute from then on.
func TestKeepSwept(t *testing.T) {
	a, _, _ := running(t)
	var began time.Time
	var sweeps []time.Duration
	manager, err := endpoints.Open(endpoints.Config{StateDir: t.TempDir(), Logger: a.log, InHost: func() error {
		sweeps = append(sweeps, time.Since(began))
		return errors.New("so that no address is released")
	}})
	if err != nil {
		t.Fatal(err)
	}
	allocator, err := ipam.New(t.TempDir(), []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")})
	if err != nil {
		t.Fatal(err)
	}
	manager.SetNetwork(endpoints.Network{}, allocator)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 70*time.Second)
		defer cancel()
		began = time.Now()
		(&portKeeper{runner: &runner{agent: a, manager: manager}}).keepSwept(ctx)
	})
	if want := []time.Duration{time.Second, 31 * time.Second, 61 * time.Second}; !slices.Equal(sweeps, want) {
		t.Errorf("swept %v after the start, want %v", sweeps, want)
	}
}
