package ovsdb_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl/ovsdb"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
)

// corrected is a bridge fk0 with three ports and what EnsureBridge has written.
type corrected struct {
	sw   *ovstest.Switch
	db   *ovsdb.DB
	spec ovsdb.BridgeSpec
}

func newCorrected(t *testing.T) *corrected {
	t.Helper()
	c := &corrected{
		sw: ovstest.Start(t, 0),
		spec: ovsdb.BridgeSpec{
			Name:         "fk0",
			DatapathType: "dummy",
			Prefixes:     map[int][]string{7: {"ip_src"}},
			FlowLimit:    50000,
			Ports: []ovsdb.PortSpec{
				{Bridge: "fk0", Name: "fkp1", Number: 300, ExternalIDs: map[string]string{"pod": "shop/db"}},
				{Bridge: "fk0", Name: "fk-gw", Internal: true, MTU: 1400},
				{Bridge: "fk0", Name: "fk-tun", Tunnel: "geneve", Options: map[string]string{
					"remote_ip": "flow", "local_ip": "flow", "key": "241"}},
			},
		},
	}
	var err error
	if c.db, err = ovsdb.Open(t.Context(), c.sw.OVSDB()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.db.Close)
	c.ensure(t)
	for _, spec := range c.spec.Ports {
		if _, err := c.db.EnsurePort(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func (c *corrected) ensure(t *testing.T) []ovsdb.Change {
	t.Helper()
	changes, err := c.db.EnsureBridge(t.Context(), c.spec)
	if err != nil {
		t.Fatal(err)
	}
	return changes
}

// text returns what EnsureBridge corrects.
func (c *corrected) text(t *testing.T) string {
	t.Helper()
	var all []string
	list := func(columns string, of ...string) {
		all = append(all, c.sw.VSCtl(t, append([]string{"--columns=" + columns, "list"}, of...)...))
	}
	list("datapath_type,fail_mode,protocols,controller,stp_enable,rstp_enable,mcast_snooping_enable,mirrors,"+
		"other_config,external_ids", "Bridge", "fk0")
	list("vlan_mode,tag,trunks,cvlans,protected,qos,external_ids", "Port", "fk0", "fkp1", "fk-gw", "fk-tun")
	list("name,type,options,ofport_request,mtu_request,mac,ingress_policing_rate,ingress_policing_kpkts_rate,"+
		"external_ids", "Interface", "fkp1", "fk-gw", "fk-tun")
	list("prefixes,flow_limit", "Flow_Table")
	all = append(all, c.sw.VSCtl(t, "list-ifaces", "fk0"),
		c.sw.VSCtl(t, "get", "Open_vSwitch", ".", "other_config:flow-limit"))
	return strings.Join(all, "\n")
}

// TestEnsureBridge_CorrectsChanges: what another program changes of the bridge and of its ports is corrected, and
// reported once. Keys of other programs stay.
func TestEnsureBridge_CorrectsChanges(t *testing.T) {
	c := newCorrected(t)
	c.sw.VSCtl(t, "set", "Bridge", "fk0", "external_ids:other=1", "other_config:mac-table-size=99", "--",
		"set", "Interface", "fkp1", "external_ids:other=1", "--", "set", "Port", "fkp1", "external_ids:other=1")
	if changes := c.ensure(t); len(changes) > 0 { // numbers are requested where none were
		t.Errorf("%v is reported", changes)
	}
	want := c.text(t)
	for _, test := range []struct{ change, reported string }{
		{"del-fail-mode fk0", "Bridge fail_mode"},
		{"set-fail-mode fk0 standalone", "Bridge fail_mode"},
		{"set-controller fk0 ptcp:6653:127.0.0.1", "Bridge controller"},
		{"set Bridge fk0 protocols=OpenFlow10", "Bridge protocols"},
		{"set Bridge fk0 datapath_type=netdev", "Bridge datapath_type"},
		{"set Bridge fk0 stp_enable=true", "Bridge stp_enable"},
		{"set Bridge fk0 rstp_enable=true", "Bridge rstp_enable"},
		{"set Bridge fk0 mcast_snooping_enable=true", "Bridge mcast_snooping_enable"},
		{"-- --id=@p get Port fkp1 -- --id=@m create Mirror name=m select_all=true output_port=@p " +
			"-- set Bridge fk0 mirrors=@m", "Bridge mirrors"},
		{"-- --id=@m create Mirror name=m select_all=true output_vlan=2 -- set Bridge fk0 mirrors=@m", "Bridge mirrors"},
		{"remove Bridge fk0 other_config disable-in-band", "Bridge other_config"},
		{"remove Bridge fk0 external_ids owner", "Bridge external_ids"},
		{"clear Bridge fk0 flow_tables", "Bridge flow_tables:7 prefixes"},
		{"-- --id=@t create Flow_Table flow_limit=1 overflow_policy=evict -- set Bridge fk0 flow_tables:3=@t",
			"Bridge flow_tables:3 flow_limit"},
		{"remove Open_vSwitch . other_config flow-limit", "Open_vSwitch other_config:flow-limit"},
		{"set Port fkp1 protected=true", "Port protected"},
		{"-- --id=@q create QoS type=linux-htb -- set Port fkp1 qos=@q", "Port qos"},
		{"remove Port fkp1 external_ids pod", "Port external_ids"},
		{"-- --id=@i create Interface name=extra type=dummy -- add Port fkp1 interfaces @i", "Port interfaces"},
		{"set Interface fkp1 type=internal", "Interface type"},
		{"set Interface fk-gw type=nosuch", "Interface type"},
		{"set Interface fk-tun options:remote_ip=192.0.2.1", "Interface options"},
		{"set Interface fkp1 ofport_request=77", "Interface ofport_request"},
		{"set Interface fkp1 mtu_request=600", "Interface mtu_request"},
		{"clear Interface fk-gw mtu_request", "Interface mtu_request"},
		{`set Interface fk-gw mac="02:00:00:00:00:07"`, "Interface mac"},
		{"set Interface fkp1 ingress_policing_rate=1", "Interface ingress_policing_rate"},
		{"set Interface fkp1 ingress_policing_kpkts_rate=1", "Interface ingress_policing_kpkts_rate"},
		{"remove Interface fkp1 external_ids owner", "Interface external_ids"},
	} {
		c.sw.VSCtl(t, append([]string{"--no-wait"}, strings.Fields(test.change)...)...)
		var changes []string
		until(t, fmt.Sprintf("the correction of %q", test.change), func() bool {
			for _, change := range c.ensure(t) {
				changes = append(changes, change.Table+" "+change.Column)
			}
			return len(changes) > 0 && c.text(t) == want
		})
		if !slices.Equal(slices.Compact(changes), []string{test.reported}) {
			t.Errorf("after %q %q is reported, want %q", test.change, changes, test.reported)
		}
	}
}

// TestEnsureBridge_KeepsMirrorsOfAdministrators: ovs-tcpdump(8) copies packets to a port of its own.
func TestEnsureBridge_KeepsMirrorsOfAdministrators(t *testing.T) {
	c := newCorrected(t)
	c.sw.VSCtl(t, "add-port", "fk0", "tap", "--", "set", "Interface", "tap", "type=dummy")
	c.sw.VSCtl(t, strings.Fields("-- --id=@p get Port tap -- --id=@m create Mirror name=m select_all=true "+
		"output_port=@p -- set Bridge fk0 mirrors=@m stp_enable=true")...)
	until(t, "a correction", func() bool { return len(c.ensure(t)) > 0 })
	if mirrors := strings.TrimSpace(c.sw.VSCtl(t, "get", "Bridge", "fk0", "mirrors")); mirrors == "[]" {
		t.Error("the mirror was removed")
	}
}

// TestEnsureBridge_RemovesAPortWithoutItsInterface: its packets would be those of another device.
func TestEnsureBridge_RemovesAPortWithoutItsInterface(t *testing.T) {
	c := newCorrected(t)
	c.sw.VSCtl(t, strings.Fields("-- --id=@i create Interface name=extra type=dummy -- set Port fkp1 interfaces=@i")...)
	until(t, "the port is removed", func() bool {
		c.ensure(t)
		return !strings.Contains(c.sw.VSCtl(t, "list-ports", "fk0"), "fkp1")
	})
}

// TestPorts_WithoutOwner: a port of which another program has removed external_ids is still listed.
func TestPorts_WithoutOwner(t *testing.T) {
	c := newCorrected(t)
	c.sw.VSCtl(t, "clear", "Interface", "fkp1", "external_ids")
	until(t, "the database without owner", func() bool {
		ports, err := c.db.Ports(t.Context(), "fk0")
		if err != nil || len(ports) != len(c.spec.Ports) {
			t.Fatalf("ports %v, %v", ports, err)
		}
		for _, p := range ports {
			if p.Name == "fkp1" {
				return len(p.ExternalIDs) == 0
			}
		}
		t.Fatalf("ports without fkp1: %v", ports)
		return false
	})
}

// TestEnsureBridge_NodePortsKeepNumbers: a pod's port that requests the number of fk-gw does not get it, and with it the
// flows of the node.
func TestEnsureBridge_NodePortsKeepNumbers(t *testing.T) {
	c := newCorrected(t)
	c.ensure(t)
	number := c.sw.VSCtl(t, "get", "Interface", "fk-gw", "ofport")
	c.sw.VSCtl(t, "set", "Interface", "fkp1", "ofport_request="+strings.TrimSpace(number)) // waits for ovs-vswitchd
	if now := c.sw.VSCtl(t, "get", "Interface", "fk-gw", "ofport"); now != number {
		t.Errorf("fk-gw has number %s, had %s", now, number)
	}
}
