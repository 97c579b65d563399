package clean

import (
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/ofctl/ovsdb"
	"github.com/vishvananda/netlink"
)

// onKernel is a node whose bridge is of the kernel's datapath. Another bridge is there if it is said so. scripts/kernel runs the tests that have one, TestKernel…, in a
// virtual machine; elsewhere they are skipped.
func onKernel(t *testing.T, another bool) *machine {
	t.Helper()
	if families, err := netlink.GenlFamilyList(); err != nil || !slices.ContainsFunc(families, func(f *netlink.GenlFamily) bool { return f.Name == datapathFamily }) {
		t.Skipf("the kernel has no openvswitch (%v): scripts/kernel runs this in a virtual machine", err)
	}
	m := newMachine(t)
	m.kind = "system"
	if another {
		m.run("ovs-vsctl", "--db="+m.cfg.OVSDB, "--timeout=20", "add-br", "others2")
	}
	return m
}

// sparing leaves the one out that is not for where time is short.
func sparing(t *testing.T, worth bool) {
	t.Helper()
	if testing.Short() && !worth {
		t.Skip("half a minute in a virtual machine")
	}
}

func (m *machine) tunnel() {
	m.t.Helper()
	db, err := ovsdb.Open(m.t.Context(), m.cfg.OVSDB)
	if err != nil {
		m.t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.EnsurePort(m.t.Context(), ovsdb.PortSpec{Bridge: m.cfg.Bridge, Name: hostnet.Tunnel, Tunnel: "geneve", Options: map[string]string{"remote_ip": "flow", "key": "flow"}}); err != nil {
		m.t.Fatal(err)
	}
}

// The datapath with its flows, ports and tunnel, and the connections in its zones, go with the bridge; what others have stays.
func TestKernelDatapath(t *testing.T) {
	for name, another := range map[string]bool{"alone": false, "beside another": true} {
		t.Run(name, func(t *testing.T) {
			sparing(t, another)
			m := onKernel(t, another)
			before := m.picture()
			m.flowkeep(true)
			m.tunnel()
			full := m.picture()
			for _, want := range []string{"datapath ovs-system with [", "link " + tunnelDevice, "connection to port 9004 in zone 65521", "connection to port 9004 in zone 65522", "link fkp1234"} {
				if !strings.Contains(full, want) {
					t.Errorf("before cleaning there is no %q in\n%s", want, full)
				}
			}
			out, err := m.clean(func(c *Config) { c.Force = true })
			if after := m.picture(); err != nil || after != before {
				t.Errorf("%v\n%s\nafter cleaning there is\n%s\nand before there was\n%s", err, out, after, before)
			}
			if out, err := m.clean(nil); err != nil || out != "nothing of Flowkeep's is on this node\n" {
				t.Errorf("again: %v: %s", err, out)
			}
		})
	}
}

// Where Open vSwitch has ended before, as on a node that was left and is back, what it leaves in the kernel goes too; of a datapath that others have
// ports of, its ports alone.
func TestKernelDatapathWithoutASwitch(t *testing.T) {
	for name, another := range map[string]bool{"alone": false, "beside another": true} {
		t.Run(name, func(t *testing.T) {
			sparing(t, !another)
			m := onKernel(t, another)
			m.flowkeep(true)
			m.tunnel()
			m.end()
			if another { // killed: its socket is left
				l, err := net.ListenUnix("unix", &net.UnixAddr{Name: m.dir + "/db.sock", Net: "unix"})
				if err != nil {
					t.Fatal(err)
				}
				l.SetUnlinkOnClose(false)
				l.Close()
			} else {
				os.Remove(m.dir + "/db.sock")
			}
			if full := m.picture(); !strings.Contains(full, "datapath ovs-system with [") || !strings.Contains(full, "link fk-gw") || !strings.Contains(full, "in zone 65521") {
				t.Errorf("before cleaning there is\n%s", full)
			}
			out, err := m.clean(func(c *Config) { c.Force = true })
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			after := m.picture()
			for _, gone := range []string{"link fk", "fk-gw", "zone 6552", "rules.db", "table inet flowkeep"} {
				if strings.Contains(after, gone) {
					t.Errorf("%s is left:\n%s", gone, after)
				}
			}
			if left := strings.Contains(after, "datapath ovs-system with [") && strings.Contains(after, "link others2"); left != another || !another && strings.Contains(after, "ovs-system") {
				t.Errorf("there is\n%s", after)
			}
			if out, err := m.clean(nil); err != nil || out != "nothing of Flowkeep's is on this node\n" {
				t.Errorf("again: %v: %s", err, out)
			}
		})
	}
}
