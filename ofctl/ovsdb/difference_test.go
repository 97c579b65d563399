package ovsdb

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

func pointer[T any](v T) *T { return &v }

// wantedPorts are the ports of asWanted.
var wantedPorts = []PortSpec{
	{Bridge: "fk0", Name: "fkp1", Number: 300, ExternalIDs: map[string]string{"pod": "shop/db"}},
	{Bridge: "fk0", Name: "fk-gw", Internal: true, MTU: 9000},
	{Bridge: "fk0", Name: "fk-tun", Tunnel: "geneve", Options: map[string]string{"key": "241"}},
}

// wantedTags are the tags of the ports of asWanted.
var wantedTags = map[string]int{"fk0": 1, "fkp1": 2, "fk-gw": 3, "fk-tun": 4, "other": 5}

// asWanted returns a database with the bridge fk0 and its ports as they should be, a port of another program, and a
// mirror to that.
func asWanted() (*rows, *bridge) {
	want := (&BridgeSpec{Name: "fk0", DatapathType: "netdev"}).row()
	have := *want
	have.UUID, have.Ports, have.Mirrors = "b", []string{"fk0", "other"}, []string{"m"}
	r := &rows{
		roots:      []openVSwitch{{UUID: "r", Bridges: []string{"b"}}},
		ports:      map[string]port{},
		interfaces: map[string]iface{},
		mirrors:    map[string]mirror{"m": {UUID: "m", OutputPort: pointer("other")}},
	}
	for _, name := range have.Ports {
		_, p := (&PortSpec{Name: name}).rows(wantedTags[name])
		p.UUID, p.ExternalIDs, p.Interfaces = name, nil, []string{"i-" + name}
		r.ports[name], r.interfaces["i-"+name] = *p, iface{UUID: "i-" + name, Name: name, Type: "internal"}
	}
	for _, spec := range wantedPorts {
		i, p := spec.rows(wantedTags[spec.Name])
		p.UUID, i.UUID = spec.Name, "i-"+spec.Name
		p.Interfaces = []string{i.UUID}
		r.ports[p.UUID], r.interfaces[i.UUID] = *p, *i
		have.Ports = append(have.Ports, p.UUID)
	}
	r.bridges = map[string]bridge{"b": have}
	return r, want
}

// change changes a row of a table.
func change[T any](of map[string]T, id string, how func(*T)) {
	row := of[id]
	how(&row)
	of[id] = row
}

// differenceTest is a change of asWanted's database, and the differences it makes, with "own" before those that
// Flowkeep wrote.
type differenceTest struct {
	name   string
	change func(*rows)
	want   string
}

func expectDifferences(t *testing.T, tests []differenceTest) {
	t.Helper()
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			r, want := asWanted()
			c.change(r)
			if got := describe(differences(r, want, wantedPorts, wantedTags)); got != c.want {
				t.Errorf("found %s\nwant  %s", got, c.want)
			}
		})
	}
}

func TestDifferences_Bridge(t *testing.T) {
	on := func(how func(*bridge)) func(*rows) { return func(r *rows) { change(r.bridges, "b", how) } }
	to := func(how func(*mirror)) func(*rows) { return func(r *rows) { change(r.mirrors, "m", how) } }
	expectDifferences(t, []differenceTest{
		{"nothing", func(*rows) {}, ""},
		{"no bridge", func(r *rows) { clear(r.bridges) }, ""},
		{"fail_mode", on(func(b *bridge) { b.FailMode = nil }), `Bridge fk0 fail_mode [], corrected to "secure"`},
		{"standalone", on(func(b *bridge) { b.FailMode = pointer("standalone") }),
			`Bridge fk0 fail_mode "standalone", corrected to "secure"`},
		{"controller", on(func(b *bridge) { b.Controllers = []string{"c"} }),
			`Bridge fk0 controller [c], corrected to []`},
		{"protocols", on(func(b *bridge) { b.Protocols = nil }),
			`Bridge fk0 protocols [], corrected to ["OpenFlow13"]`},
		{"datapath_type", on(func(b *bridge) { b.DatapathType = "system" }),
			`Bridge fk0 datapath_type "system", corrected to "netdev"`},
		{"stp_enable", on(func(b *bridge) { b.STP = true }), `Bridge fk0 stp_enable true, corrected to false`},
		{"rstp_enable", on(func(b *bridge) { b.RSTP = true }), `Bridge fk0 rstp_enable true, corrected to false`},
		{"mcast_snooping_enable", on(func(b *bridge) { b.McastSnooping = true }),
			`Bridge fk0 mcast_snooping_enable true, corrected to false`},
		{"a mirror to a pod", to(func(m *mirror) { m.OutputPort = pointer("fkp1") }),
			`Bridge fk0 mirrors [m], corrected to []`},
		{"a mirror to the node", to(func(m *mirror) { m.OutputPort = pointer("fk0") }),
			`Bridge fk0 mirrors [m], corrected to []`},
		{"a mirror to a VLAN", to(func(m *mirror) { m.OutputPort, m.OutputVLAN = nil, pointer(2) }),
			`Bridge fk0 mirrors [m], corrected to []`},
		{"other keys", on(func(b *bridge) {
			b.OtherConfig = map[string]string{"disable-in-band": "true", "hwaddr": "x"}
			b.ExternalIDs = map[string]string{"owner": "flowkeep", "x": "y"}
		}), ""},
		{"external_ids", on(func(b *bridge) { b.ExternalIDs = map[string]string{"x": "y"} }),
			`Bridge fk0 external_ids map["x":"y"], corrected to map["owner":"flowkeep" "x":"y"]`},
	})
}

func TestDifferences_Port(t *testing.T) {
	on := func(how func(*port)) func(*rows) { return func(r *rows) { change(r.ports, "fkp1", how) } }
	expectDifferences(t, []differenceTest{
		{"tag", on(func(p *port) { p.Tag = pointer(1) }), `Port fkp1 tag 1, corrected to 2`},
		{"trunks", on(func(p *port) { p.Trunks = []int{9, 7} }), `Port fkp1 trunks [7 9], corrected to []`},
		{"cvlans", on(func(p *port) { p.CVLANs = []int{7} }), `Port fkp1 cvlans [7], corrected to []`},
		{"vlan_mode", on(func(p *port) { p.VLANMode = nil }), `Port fkp1 vlan_mode [], corrected to "access"`},
		{"another program's port", func(r *rows) { change(r.ports, "other", func(p *port) { p.Tag = nil }) },
			`Port other tag [], corrected to 5`},
		{"of a version before", on(func(p *port) { p.VLANMode, p.Tag, p.Trunks = pointer("trunk"), nil, []int{4095} }),
			`own Port fkp1 vlan_mode "trunk", corrected to "access"; own Port fkp1 tag [], corrected to 2; ` +
				`own Port fkp1 trunks [4095], corrected to []`},
		{"like a version before", on(func(p *port) { p.VLANMode, p.Trunks = pointer("trunk"), []int{4095} }),
			`Port fkp1 vlan_mode "trunk", corrected to "access"; Port fkp1 trunks [4095], corrected to []`},
		{"protected", on(func(p *port) { p.Protected = true }), `Port fkp1 protected true, corrected to false`},
		{"qos", on(func(p *port) { p.QoS = pointer("q") }), `Port fkp1 qos "q", corrected to []`},
		{"external_ids", on(func(p *port) { p.ExternalIDs = map[string]string{"x": "y", "pod": "a"} }),
			`Port fkp1 external_ids map["pod":"a" "x":"y"], corrected to map["owner":"flowkeep" "pod":"shop/db" "x":"y"]`},
		{"other keys", on(func(p *port) { p.ExternalIDs = withKeys(p.ExternalIDs, map[string]string{"x": "y"}) }), ""},
		{"a second interface", on(func(p *port) { p.Interfaces = []string{"i-other", "i-fkp1"} }),
			`Port fkp1 interfaces [i-fkp1 i-other], corrected to [i-fkp1]`},
		{"another interface", on(func(p *port) { p.Interfaces = []string{"i-other"} }),
			`Port fkp1 interfaces [i-other], corrected to []`},
	})
}

func TestDifferences_Interface(t *testing.T) {
	of := func(name string, how func(*iface)) func(*rows) {
		return func(r *rows) { change(r.interfaces, "i-"+name, how) }
	}
	on := func(how func(*iface)) func(*rows) { return of("fkp1", how) }
	expectDifferences(t, []differenceTest{
		{"type", on(func(i *iface) { i.Type = "internal" }), `Interface fkp1 type "internal", corrected to ""`},
		{"the same type", on(func(i *iface) { i.Type = "system" }), ""},
		{"type system of fk-gw", of("fk-gw", func(i *iface) { i.Type = "system" }),
			`Interface fk-gw type "system", corrected to "internal"`},
		{"options", of("fk-tun", func(i *iface) { i.Options = map[string]string{"key": "1"} }),
			`Interface fk-tun options map["key":"1"], corrected to map["key":"241"]`},
		{"mtu_request of a pod", on(func(i *iface) { i.MTURequest = pointer(600) }),
			`Interface fkp1 mtu_request 600, corrected to []`},
		{"mtu_request of fk-gw", of("fk-gw", func(i *iface) { i.MTURequest = nil }),
			`Interface fk-gw mtu_request [], corrected to 9000`},
		{"mac", of("fk-gw", func(i *iface) { i.MAC = pointer("02:00:00:00:00:01") }),
			`Interface fk-gw mac "02:00:00:00:00:01", corrected to []`},
		{"policing", on(func(i *iface) { i.PolicingRate, i.PolicingKpkts = 1, 2 }),
			`Interface fkp1 ingress_policing_rate 1, corrected to 0; ` +
				`Interface fkp1 ingress_policing_kpkts_rate 2, corrected to 0`},
		{"external_ids", on(func(i *iface) { i.ExternalIDs = nil }),
			`Interface fkp1 external_ids map[], corrected to map["owner":"flowkeep" "pod":"shop/db"]`},
		{"ofport_request", on(func(i *iface) { i.OfportRequest, i.Ofport = pointer(7), pointer(7) }),
			`Interface fkp1 ofport_request 7, corrected to 300`},
		{"no ofport_request", on(func(i *iface) { i.OfportRequest, i.Ofport = nil, pointer(300) }),
			`own Interface fkp1 ofport_request [], corrected to 300`},
		{"no ofport_request of fk-gw", of("fk-gw", func(i *iface) { i.Ofport = pointer(1) }),
			`own Interface fk-gw ofport_request [], corrected to 1`},
		{"ofport_request of fk-gw", of("fk-gw", func(i *iface) { i.OfportRequest, i.Ofport = pointer(7), pointer(1) }), ""},
		{"another program's", of("other", func(i *iface) { i.PolicingRate, i.Type = 1, "" }), ""},
	})
}

// TestCompareTables: tables have the prefix trees that are wanted, and no limits.
func TestCompareTables(t *testing.T) {
	have := map[string]flowTable{
		"a": {UUID: "a", Prefixes: []string{"ip_dst", "ip_src"}},
		"b": {UUID: "b", FlowLimit: pointer(5)},
		"c": {UUID: "c", Prefixes: []string{"ip_src"}},
	}
	src := []string{"ip_src"}
	for _, c := range []struct {
		name   string
		of     map[int]string
		want   map[int][]string
		remove map[int]string
		insert []int
	}{
		{"none", nil, nil, map[int]string{}, nil},
		{"a new one", nil, map[int][]string{7: src}, map[int]string{}, []int{7}},
		{"as wanted", map[int]string{7: "a"}, map[int][]string{7: {"ip_src", "ip_dst"}}, map[int]string{}, nil},
		{"others", map[int]string{7: "a"}, map[int][]string{7: src}, map[int]string{7: "a"}, []int{7}},
		{"another table", map[int]string{3: "c"}, nil, map[int]string{}, nil},
		{"a limit", map[int]string{3: "b", 7: "c"}, map[int][]string{7: src}, map[int]string{3: "b"}, nil},
		{"a limit of a table with trees", map[int]string{7: "b"}, map[int][]string{7: src}, map[int]string{7: "b"}, []int{7}},
		{"a row that was not read", map[int]string{3: "x"}, nil, map[int]string{}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := compareTables("fk0", c.of, have, c.want)
			insert := slices.Sorted(maps.Keys(got.insert))
			if !maps.Equal(got.remove, c.remove) || !slices.Equal(insert, c.insert) {
				t.Errorf("removed %v, inserted %v; want %v, %v", got.remove, insert, c.remove, c.insert)
			}
			if changes := len(got.found) > 0; changes != (len(c.remove)+len(c.insert) > 0) {
				t.Errorf("differences: %v", got.found)
			}
		})
	}
}

func describe(found []difference) string {
	var all []string
	for _, d := range found {
		text := d.String()
		if d.own {
			text = "own " + text
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}

// TestOperations_OneUpdateOfARow: the columns of a row are written together.
func TestOperations_OneUpdateOfARow(t *testing.T) {
	r, want := asWanted()
	change(r.bridges, "b", func(b *bridge) { b.FailMode, b.Protocols = nil, nil })
	change(r.ports, "fkp1", func(p *port) { p.Tag, p.Trunks = nil, []int{3} })
	ops, err := operations(differences(r, want, wantedPorts, wantedTags))
	if err != nil {
		t.Fatal(err)
	}
	var columns []string
	for _, op := range ops {
		for column := range op.Row {
			columns = append(columns, op.Table+" "+column)
		}
	}
	slices.Sort(columns)
	got := strings.Join(columns, ", ")
	if len(ops) != 2 || got != "Bridge fail_mode, Bridge protocols, Port tag, Port trunks" {
		t.Errorf("%d updates: %s", len(ops), got)
	}
}
