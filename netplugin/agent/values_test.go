package agent

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/ofctl/dptype"
	"github.com/flowkeep/flowkeep/ofctl/ovsdb"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// keepPortsUntilEnd runs keepPorts until the test ends.
func keepPortsUntilEnd(t *testing.T, k *portKeeper) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); k.keepPorts(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
}

func repairsOf(t *testing.T, a *agent, object string) float64 {
	t.Helper()
	return countOf(t, a.metrics.hostRepairs.WithLabelValues(object))
}

func writesOf(t *testing.T, a *agent, object string) float64 {
	t.Helper()
	return countOf(t, a.metrics.hostWrites.WithLabelValues(object))
}

func countOf(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

// TestKeepPorts_CorrectsInterfaces: values of the node's own ports are restored after the database's change, and counted.
func TestKeepPorts_CorrectsInterfaces(t *testing.T) {
	k, _, sw := portsKeeper(t)
	wrote := writesOf(t, k.agent, objectPort)
	keepPortsUntilEnd(t, k)
	want := strings.TrimSpace(sw.VSCtl(t, "get", "Port", hostnet.Wire, "tag"))
	sw.VSCtl(t, "--no-wait", "set", "Interface", hostnet.Gateway, "ingress_policing_rate=1", "--",
		"clear", "Port", hostnet.Wire, "tag")
	until(t, "the values as before", func() bool {
		rate := sw.VSCtl(t, "get", "Interface", hostnet.Gateway, "ingress_policing_rate")
		return strings.TrimSpace(rate) == "0" && strings.TrimSpace(sw.VSCtl(t, "get", "Port", hostnet.Wire, "tag")) == want
	})
	until(t, "two repairs", func() bool { return repairsOf(t, k.agent, objectPort) == 2 })
	if n := repairsOf(t, k.agent, objectBridge); n != 0 {
		t.Errorf("%v repairs of the bridge", n)
	}
	if n := writesOf(t, k.agent, objectPort) - wrote; n != 2 {
		t.Errorf("%v writes of ports, want 2", n)
	}
}

// TestRelearn_PortWithoutOwner: a port of which another program has removed external_ids keeps its flows.
func TestRelearn_PortWithoutOwner(t *testing.T) {
	k, s, sw := portsKeeper(t)
	n := numbers(t, k.agent)
	sw.VSCtl(t, "clear", "Interface", hostnet.Gateway, "external_ids")
	until(t, "the database without owner", func() bool {
		ports, err := k.db.Ports(t.Context(), k.cfg.Bridge)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range ports {
			if p.Name == hostnet.Gateway && len(p.ExternalIDs) == 0 {
				return true
			}
		}
		return false
	})
	if err := k.relearn(t.Context()); err != nil || numbers(t, k.agent) != n || !k.isOpen(t, s, n.gateway) {
		t.Errorf("the ports are %+v, before %+v: %v", numbers(t, k.agent), n, err)
	}
	if _, err := k.repairPorts(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "the owner", func() bool {
		return strings.Contains(sw.VSCtl(t, "get", "Interface", hostnet.Gateway, "external_ids"), "owner=flowkeep")
	})
}

// TestCorrectBridge_ChecksFlowsAfterAFlush: ovs-vswitchd deletes all flows when fail_mode changes, and when it changes
// back.
func TestCorrectBridge_ChecksFlowsAfterAFlush(t *testing.T) {
	k, _, sw := portsKeeper(t)
	k.flushed = make(chan struct{}, 1)
	for _, c := range []struct {
		change  []string
		flushes bool
	}{
		{[]string{"del-fail-mode", "fk0"}, true},
		{[]string{"set", "Bridge", "fk0", "stp_enable=true"}, false},
		{[]string{"set-controller", "fk0", "ptcp:6653:127.0.0.1"}, true},
	} {
		sw.VSCtl(t, append([]string{"--no-wait"}, c.change...)...)
		before := repairsOf(t, k.agent, objectBridge)
		until(t, fmt.Sprintf("the correction of %q", c.change), func() bool {
			if err := k.correctBridge(t.Context()); err != nil {
				t.Fatal(err)
			}
			return repairsOf(t, k.agent, objectBridge) > before
		})
		flushed := len(k.flushed) > 0
		if flushed != c.flushes {
			t.Errorf("after %q flows are compared: %v", c.change, flushed)
		}
		if flushed {
			<-k.flushed
		}
	}
	if err := k.db.AwaitConfig(t.Context()); err != nil {
		t.Error(err)
	}
	if flows := sw.AppCtl(t, "bridge/dump-flows", "fk0"); strings.Contains(flows, "NORMAL") {
		t.Errorf("AwaitConfig returns before ovs-vswitchd has fail_mode secure:\n%s", flows)
	}
}

// TestRequestMTU_StaysWithSmallerPorts: Open vSwitch gives internal ports the least MTU of all others, unless one is
// requested.
func TestRequestMTU_StaysWithSmallerPorts(t *testing.T) {
	netns.New(t).Enter(t)
	k, _, sw := portsKeeperOn(t, ovstest.StartOn(t, "netdev", nil), dptype.Netdev)
	k.lostLinks = make(chan struct{}, 1)
	mtus := func() (all []int) {
		for _, name := range hostnet.Devices {
			link, err := netlink.LinkByName(name)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, link.Attrs().MTU)
		}
		return all
	}
	k.requestMTU(9000)
	if len(k.lostLinks) != 1 {
		t.Error("the ports are not compared after a new MTU")
	}
	if err := k.correctBridge(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "the MTU", func() bool { return fmt.Sprint(mtus()) == "[9000 9000 9000]" })
	if n := repairsOf(t, k.agent, objectPort); n != 0 {
		t.Errorf("the first request is reported as %v changes of another program", n)
	}
	addVeth(t, "fkppod")
	e := &endpoints.Endpoint{Namespace: "shop", Name: "db", HostIfName: "fkppod", ContainerID: "c1"}
	if _, err := k.EnsurePort(t.Context(), e.HostIfName, e); err != nil {
		t.Fatal(err)
	}
	sw.VSCtl(t, "set", "Bridge", "fk0", "external_ids:other=1") // returns when ovs-vswitchd has taken over everything
	if got := fmt.Sprint(mtus()); got != "[9000 9000 9000]" {
		t.Errorf("with a pod's port of MTU 1500 the links have the MTUs %s, want 9000 each", got)
	}
}

// addVeth creates a pair of links with an MTU of 1500.
func addVeth(t *testing.T, name string) {
	t.Helper()
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: 1500}, PeerName: "eth0"}
	if err := netlink.LinkAdd(pair); err != nil {
		t.Fatal(err)
	}
}

func TestTexts_Bounded(t *testing.T) {
	all := texts(make([]ovsdb.Change, maxChanges+2))
	if len(all) != maxChanges+1 || all[maxChanges] != "and 2 more" {
		t.Errorf("texts: %q", all)
	}
}
