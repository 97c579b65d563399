package ovsdb

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ovn-org/libovsdb/ovsdb"
)

// Change is a value of the database that EnsureBridge has corrected.
type Change struct {
	Table  string // as Bridge
	Name   string // of the bridge, port or interface
	Column string
	Was    string
	Want   string
}

// String returns the change as a log has it.
func (c Change) String() string {
	return fmt.Sprintf("%s %s %s %s, corrected to %s", c.Table, c.Name, c.Column, c.Was, c.Want)
}

// IsOfBridge reports whether the value is one of the bridge itself, and not of a port.
func (c Change) IsOfBridge() bool { return c.Table != tablePort && c.Table != tableInterface }

// FlushesFlows reports whether ovs-vswitchd deletes flows of the bridge when the value changes, all or, by flow_limit,
// some (ovs-vswitchd.conf.db(5), fail_mode and flow_limit; ofproto/connmgr.c).
func (c Change) FlushesFlows() bool {
	flushes := []string{"fail_mode", "controller", "datapath_type", "protocols"}
	evicts := strings.HasSuffix(c.Column, " flow_limit")
	return c.Table == tableBridge && (evicts || slices.Contains(flushes, c.Column))
}

// Tables of the database.
const (
	tableBridge    = "Bridge"
	tablePort      = "Port"
	tableInterface = "Interface"
)

// difference is a column of a row that has another value than it should have.
type difference struct {
	Change
	uuid  string
	value any  // that it should have
	own   bool // an earlier version of Flowkeep wrote the value that is there
}

// rowCheck collects the differences of one row.
type rowCheck struct {
	table, name, uuid string
	own               bool
	found             []difference
}

// column compares a column. The values are those of a model: strings, numbers, pointers to them, slices, maps.
func (c *rowCheck) column(name string, have, want any) {
	if was, should := text(have), text(want); was != should {
		c.found = append(c.found, difference{
			Change: Change{Table: c.table, Name: c.name, Column: name, Was: was, Want: should},
			uuid:   c.uuid,
			value:  want,
			own:    c.own,
		})
	}
}

// references are the UUIDs of rows.
type references []string

// removedPort is the UUID of a port that is to leave its bridge.
type removedPort string

// text returns a value of a model as text that differs for each value. Sets have no order.
func text(v any) string {
	switch v := v.(type) {
	case *string:
		if v == nil {
			return "[]"
		}
		return fmt.Sprintf("%q", *v)
	case *int:
		if v == nil {
			return "[]"
		}
		return fmt.Sprint(*v)
	case references:
		return fmt.Sprint(slices.Sorted(slices.Values(v)))
	case []string:
		return fmt.Sprintf("%q", slices.Sorted(slices.Values(v)))
	case []int:
		return fmt.Sprint(slices.Sorted(slices.Values(v)))
	case map[string]string:
		return fmt.Sprintf("%q", v)
	case string:
		return fmt.Sprintf("%q", v)
	}
	return fmt.Sprint(v)
}

// differences returns which columns of a bridge and of its ports have other values than they should have: those by
// which a packet that is denied may pass, or one that is allowed is lost.
//
//   - Bridge: fail_mode, controller, protocols and datapath_type delete flows or the connection; stp_enable and
//     rstp_enable block ports; mcast_snooping_enable floods multicast packets from one VLAN to another, with fail_mode
//     standalone; mirrors copy packets to a port or a VLAN; other_config:disable-in-band; external_ids:owner.
//     compareTables compares flow_tables.
//   - Port: vlan_mode, tag, trunks and cvlans mix ports with fail_mode standalone; protected drops what flows output
//     to another such port; qos; interfaces, where several are a bond; external_ids.
//   - Interface: type, options, ofport_request, mtu_request, mac, ingress_policing_rate, ingress_policing_kpkts_rate,
//     external_ids.
//
// These do neither, and stay: netflow, sflow, ipfix, flood_vlans, auto_attach and other keys of other_config; of ports
// lacp, bond_*, fake_bridge and other_config, which the action NORMAL alone regards, within a VLAN; of interfaces
// bfd, cfm_* and lldp, which concern packets of these protocols; other programs' keys of external_ids; of the local
// port, and of ports that the specification does not have, all but the VLAN.
func differences(have *rows, want *bridge, ports []PortSpec, tags map[string]int) []difference {
	b := have.bridge(want.Name)
	if b == nil {
		return nil
	}
	specs := map[string]*PortSpec{}
	for i := range ports {
		specs[ports[i].Name] = &ports[i]
	}
	found := b.differences(want, have.harmlessMirrors(b, specs))
	for _, id := range b.Ports {
		p := have.ports[id]
		if tag := tags[p.Name]; tag != 0 {
			found = append(found, p.vlanDifferences(tag)...)
		}
		if spec := specs[p.Name]; spec != nil {
			found = append(found, spec.differences(have, b, &p)...)
		}
	}
	return found
}

// differences returns how the bridge itself differs. Other programs' keys of other_config and external_ids stay.
func (b *bridge) differences(want *bridge, mirrors references) []difference {
	c := rowCheck{table: tableBridge, name: b.Name, uuid: b.UUID}
	c.column("datapath_type", b.DatapathType, want.DatapathType)
	c.column("fail_mode", b.FailMode, want.FailMode)
	c.column("protocols", b.Protocols, want.Protocols)
	c.column("controller", references(b.Controllers), references(want.Controllers))
	c.column("stp_enable", b.STP, want.STP)
	c.column("rstp_enable", b.RSTP, want.RSTP)
	c.column("mcast_snooping_enable", b.McastSnooping, want.McastSnooping)
	c.column("mirrors", references(b.Mirrors), mirrors)
	c.column("other_config", b.OtherConfig, withKeys(b.OtherConfig, want.OtherConfig))
	c.own = b.ExternalIDs[flowLimitKey] != want.ExternalIDs[flowLimitKey] // of an earlier version
	c.column("external_ids", b.ExternalIDs, withKeys(b.ExternalIDs, want.ExternalIDs))
	return c.found
}

// harmlessMirrors returns the mirrors of a bridge that copy packets neither to a VLAN nor to a port of Flowkeep's: by
// others an administrator looks at packets, as ovs-tcpdump(8) does.
func (r *rows) harmlessMirrors(b *bridge, specs map[string]*PortSpec) (all references) {
	for _, id := range b.Mirrors {
		m := r.mirrors[id]
		to := r.ports[value(m.OutputPort)].Name
		if m.OutputVLAN == nil && to != b.Name && specs[to] == nil {
			all = append(all, id)
		}
	}
	return all
}

// vlanDifferences returns how the port's VLANs differ from those of an access port with a tag of its own.
func (p *port) vlanDifferences(tag int) []difference {
	own := p.Tag == nil && value(p.VLANMode) == "trunk" && slices.Equal(p.Trunks, []int{4095})
	c := rowCheck{table: tablePort, name: p.Name, uuid: p.UUID, own: own}
	access := accessMode
	c.column("vlan_mode", p.VLANMode, &access)
	c.column("tag", p.Tag, &tag)
	c.column("trunks", p.Trunks, []int(nil))
	c.column("cvlans", p.CVLANs, []int(nil))
	return c.found
}

// differences returns how a port of a bridge and its interface differ from the specification. A port that has lost its
// interface is removed.
func (s *PortSpec) differences(have *rows, b *bridge, p *port) []difference {
	c := rowCheck{table: tablePort, name: p.Name, uuid: p.UUID}
	c.column("protected", p.Protected, false)
	c.column("qos", p.QoS, (*string)(nil))
	c.column("external_ids", p.ExternalIDs, withKeys(p.ExternalIDs, s.ids()))
	for _, id := range p.Interfaces {
		if i := have.interfaces[id]; i.Name == s.Name {
			c.column("interfaces", references(p.Interfaces), references{id})
			return append(c.found, s.interfaceDifferences(&i)...)
		}
	}
	remove := rowCheck{table: tablePort, name: p.Name, uuid: b.UUID}
	remove.column("interfaces", references(p.Interfaces), references(nil))
	remove.found[0].value = removedPort(p.UUID)
	return remove.found
}

// interfaceDifferences returns how the port's interface differs. That it requests no number, and has the one it should,
// is no other program's change: versions before requested none.
func (s *PortSpec) interfaceDifferences(i *iface) []difference {
	want, _ := s.rows(0)
	c := rowCheck{table: tableInterface, name: i.Name, uuid: i.UUID}
	if kind := i.Type; kind != "system" || want.Type != "" { // which is the same (ovs-vswitchd.conf.db(5), type)
		c.column("type", kind, want.Type)
	}
	c.column("options", i.Options, want.Options)
	if s.MTU != 0 || !s.Internal {
		c.column("mtu_request", i.MTURequest, want.MTURequest)
	}
	c.column("mac", i.MAC, want.MAC)
	c.column("ingress_policing_rate", i.PolicingRate, 0)
	c.column("ingress_policing_kpkts_rate", i.PolicingKpkts, 0)
	c.column("external_ids", i.ExternalIDs, withKeys(i.ExternalIDs, want.ExternalIDs))
	if number := s.number(i); number > 0 {
		c.own = i.OfportRequest == nil && value(i.Ofport) == number
		c.column("ofport_request", i.OfportRequest, &number)
	}
	return c.found
}

// number returns the OpenFlow number that the interface should request; 0: any. Where the specification has none it is
// the number that the interface has: Open vSwitch closes a port that requests none when another port requests its
// number (vswitchd/bridge.c).
func (s *PortSpec) number(i *iface) int {
	if s.Number == 0 && i.OfportRequest == nil {
		return value(i.Ofport)
	}
	return int(s.Number)
}

// withKeys returns a copy of a map with the keys of another.
func withKeys(of, keys map[string]string) map[string]string {
	all := maps.Clone(keys)
	for k, v := range of {
		if _, ok := keys[k]; !ok {
			all[k] = v
		}
	}
	return all
}

// operations returns the updates that remove differences, one a row.
func operations(found []difference) ([]ovsdb.Operation, error) {
	var all []ovsdb.Operation
	of := map[string]int{} // indices in all
	for _, d := range found {
		if id, ok := d.value.(removedPort); ok {
			all = append(all, removePort(d.uuid, string(id)))
			continue
		}
		v, err := wireValue(d.value)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", d.Table, d.Column, err)
		}
		n, ok := of[d.uuid]
		if !ok {
			n = len(all)
			of[d.uuid] = n
			all = append(all, ovsdb.Operation{
				Op:    ovsdb.OperationUpdate,
				Table: d.Table,
				Where: isRow(d.uuid),
				Row:   ovsdb.Row{},
			})
		}
		all[n].Row[d.Column] = v
	}
	return all, nil
}

// isRow returns the condition that holds for one row.
func isRow(id string) []ovsdb.Condition {
	return []ovsdb.Condition{ovsdb.NewCondition("_uuid", ovsdb.ConditionEqual, ovsdb.UUID{GoUUID: id})}
}

// removePort returns the operation that removes a port from a bridge.
func removePort(bridgeID, id string) ovsdb.Operation {
	return ovsdb.Operation{
		Op:    ovsdb.OperationMutate,
		Table: tableBridge,
		Where: isRow(bridgeID),
		Mutations: []ovsdb.Mutation{
			*ovsdb.NewMutation("ports", ovsdb.MutateOperationDelete, ovsdb.UUID{GoUUID: id}),
		},
	}
}

// wireValue returns a value of a model as an operation has it (RFC 7047, 5.1).
func wireValue(v any) (any, error) {
	switch v := v.(type) {
	case *string:
		return ovsdb.NewOvsSet(v)
	case *int:
		return ovsdb.NewOvsSet(v)
	case references:
		ids := make([]ovsdb.UUID, 0, len(v))
		for _, id := range v {
			ids = append(ids, ovsdb.UUID{GoUUID: id})
		}
		return ovsdb.NewOvsSet(ids)
	case []string:
		return ovsdb.NewOvsSet(v)
	case []int:
		return ovsdb.NewOvsSet(v)
	case map[string]string:
		return ovsdb.NewOvsMap(v)
	}
	return v, nil
}

// reported returns the changes of other programs.
func reported(found []difference) (all []Change) {
	for _, d := range found {
		if !d.own {
			all = append(all, d.Change)
		}
	}
	return all
}
