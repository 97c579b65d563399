package ovsdb_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/ofctl/ovsdb"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
)

// TestEnsureBridge_CorrectsChanges: what another program changes of the bridge is corrected, once, and keys of other
// programs stay.
func TestEnsureBridge_CorrectsChanges(t *testing.T) {
	sw := ovstest.Start(t, 0)
	db, err := ovsdb.Open(t.Context(), sw.OVSDB())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	spec := ovsdb.BridgeSpec{
		Name:         "fk0",
		DatapathType: "dummy",
		Prefixes:     map[int][]string{7: {"ip_src"}},
	}
	ensure := func() bool {
		t.Helper()
		wrote, err := db.EnsureBridge(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		return wrote
	}
	ensure()
	sw.VSCtl(t, "set", "Bridge", "fk0", "external_ids:other=1", "other_config:mac-table-size=99")
	want := bridgeText(t, sw)
	changes := [][]string{
		{"del-fail-mode", "fk0"},
		{"set-fail-mode", "fk0", "standalone"},
		{"set-controller", "fk0", "ptcp:6653:127.0.0.1"},
		{"set", "Bridge", "fk0", "protocols=OpenFlow10"},
		{"set", "Bridge", "fk0", "datapath_type=netdev"},
		{"remove", "Bridge", "fk0", "other_config", "disable-in-band"},
		{"remove", "Bridge", "fk0", "external_ids", "owner"},
		{"clear", "Bridge", "fk0", "flow_tables"},
	}
	for _, change := range changes {
		sw.VSCtl(t, append([]string{"--no-wait"}, change...)...)
		for !ensure() { // until this connection has read the change
			select {
			case <-db.Changes():
			case <-time.After(2 * time.Minute):
				t.Fatalf("%q was not corrected", change)
			}
		}
		if got := bridgeText(t, sw); got != want {
			t.Errorf("after %q the bridge is\n%s\nwant\n%s", change, got, want)
		}
	}
}

// bridgeText returns what EnsureBridge sets.
func bridgeText(t *testing.T, sw *ovstest.Switch) string {
	t.Helper()
	columns := "--columns=name,datapath_type,fail_mode,protocols,controller,other_config,external_ids"
	return strings.TrimSpace(sw.VSCtl(t, columns, "list", "Bridge", "fk0")) + "\n" +
		strings.TrimSpace(sw.VSCtl(t, "--columns=prefixes", "list", "Flow_Table"))
}

// TestEnsurePort_OnAnotherBridge: the number of a port that another program moved is not taken for one of this bridge.
func TestEnsurePort_OnAnotherBridge(t *testing.T) {
	sw := ovstest.Start(t, 1)
	db, err := ovsdb.Open(t.Context(), sw.OVSDB())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.EnsureBridge(t.Context(), ovsdb.BridgeSpec{Name: "fk0", DatapathType: "dummy"}); err != nil {
		t.Fatal(err)
	}
	number, err := db.EnsurePort(t.Context(), ovsdb.PortSpec{Bridge: "fk0", Name: "p1"})
	if err == nil || !strings.Contains(err.Error(), "it is on bridge br0") {
		t.Errorf("number %d, %v", number, err)
	}
	if number, err := db.EnsurePort(t.Context(), ovsdb.PortSpec{Bridge: sw.Bridge, Name: "p1"}); number == 0 || err != nil {
		t.Errorf("on its own bridge: number %d, %v", number, err)
	}
}

// TestEnsureBridge_SeparatesPorts: when another program deletes fail_mode, ovs-vswitchd deletes all flows and forwards as
// a learning switch until netplugin corrects it. No packet passes from one port to another meanwhile, and flows are not
// affected.
func TestEnsureBridge_SeparatesPorts(t *testing.T) {
	sw := ovstest.Start(t, 0)
	db, err := ovsdb.Open(t.Context(), sw.OVSDB())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ensure := func() bool {
		wrote, err := db.EnsureBridge(t.Context(), ovsdb.BridgeSpec{Name: "fk0", DatapathType: "dummy"})
		if err != nil {
			t.Fatal(err)
		}
		return wrote
	}
	ensure()
	numbers := map[string]uint32{}
	for _, name := range []string{"fkp1", "fkp2"} {
		if numbers[name], err = db.EnsurePort(t.Context(), ovsdb.PortSpec{Bridge: "fk0", Name: name, Internal: true}); err != nil {
			t.Fatal(err)
		}
	}
	actions := func(flow string) string {
		const macs = "dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02"
		text := sw.AppCtl(t, "ofproto/trace", "fk0", fmt.Sprintf("in_port=%d,%s,%s", numbers["fkp1"], macs, flow))
		return strings.TrimSpace(text[strings.LastIndex(text, "Datapath actions"):])
	}
	const drop = "Datapath actions: drop"
	flow := fmt.Sprintf("actions=output:%d", numbers["fkp2"])
	addFlow(t, sw, flow)
	for _, packet := range []string{"udp", "udp6", "arp", "dl_vlan=7"} {
		if got := actions(packet); got == drop {
			t.Errorf("%s: a flow outputs to another port, and the switch drops the packet", packet)
		}
	}
	sw.VSCtl(t, "del-fail-mode", "fk0")
	if flows := sw.AppCtl(t, "bridge/dump-flows", "fk0"); !strings.Contains(flows, "NORMAL") {
		t.Fatalf("Open vSwitch does not forward by itself:\n%s", flows)
	}
	for _, packet := range []string{"udp", "udp6", "arp", "dl_vlan=7", "dl_vlan=0"} {
		if got := actions(packet); got != drop {
			t.Errorf("%s: without fail_mode a packet of a port is forwarded: %s", packet, got)
		}
	}
	for _, name := range []string{"fkp1", "fkp2"} {
		sw.VSCtl(t, "clear", "Port", name, "trunks", "vlan_mode")
	}
	if got := actions("udp"); got == drop {
		t.Error("a packet between ports that are not separated is dropped too: the test shows nothing")
	}
	for !ensure() {
		select {
		case <-db.Changes():
		case <-time.After(30 * time.Second):
			t.Fatal("ports that are not separated were not corrected")
		}
	}
	if text := sw.VSCtl(t, "get", "Port", "fkp2", "trunks"); strings.TrimSpace(text) != "[4095]" {
		t.Errorf("trunks of the corrected port: %s", text)
	}
}

// addFlow adds a flow to fk0.
func addFlow(t *testing.T, sw *ovstest.Switch, flow string) {
	t.Helper()
	management := "unix:" + filepath.Join(sw.Dir, "fk0.mgmt")
	if out, err := exec.Command("ovs-ofctl", "-OOpenFlow13", "add-flow", management, flow).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
