package ovsdb

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/ovn-org/libovsdb/client"
	"github.com/ovn-org/libovsdb/model"
	"github.com/ovn-org/libovsdb/ovsdb"
)

// Topology reads and changes bridges and ports that are not Flowkeep's own, by a connection of its own. One goroutine
// uses it.
type Topology struct {
	db *DB
}

// Bridge is a bridge that another program manages.
type Bridge struct {
	Name       string
	Datapath   string // system or netdev; empty is system
	FailMode   string // secure or standalone; empty is standalone
	STP, RSTP  bool
	McastSnoop bool
	Ports      []BridgePort // by name
}

// BridgePort is one port with one interface. Ports with several (bonds of Open vSwitch) have the names of all.
type BridgePort struct {
	Name       string
	Type       string // internal, system or empty, or a kind of tunnel
	Mode       string // vlan_mode
	Tag        int
	Trunks     []int
	Interfaces []string
	Error      string // why the switch could not open it
	Open       bool   // the switch has opened it
}

type topologyBridge struct {
	UUID       string   `ovsdb:"_uuid"`
	Name       string   `ovsdb:"name"`
	Ports      []string `ovsdb:"ports"`
	Datapath   string   `ovsdb:"datapath_type"`
	FailMode   *string  `ovsdb:"fail_mode"`
	STP        bool     `ovsdb:"stp_enable"`
	RSTP       bool     `ovsdb:"rstp_enable"`
	McastSnoop bool     `ovsdb:"mcast_snooping_enable"`

	OtherConfig map[string]string `ovsdb:"other_config"`
}

type topologyPort struct {
	UUID       string   `ovsdb:"_uuid"`
	Name       string   `ovsdb:"name"`
	Interfaces []string `ovsdb:"interfaces"`
	Mode       *string  `ovsdb:"vlan_mode"`
	Tag        *int     `ovsdb:"tag"`
	Trunks     []int    `ovsdb:"trunks"`
}

type topologyInterface struct {
	UUID       string  `ovsdb:"_uuid"`
	Name       string  `ovsdb:"name"`
	Type       string  `ovsdb:"type"`
	Ofport     *int    `ovsdb:"ofport"`
	MTURequest *int    `ovsdb:"mtu_request"`
	MAC        *string `ovsdb:"mac"`
	Error      *string `ovsdb:"error"`
}

// OpenTopology connects to an endpoint such as unix:/var/run/openvswitch/db.sock and reads the database. The
// connection does not come back by itself: open another.
func OpenTopology(ctx context.Context, endpoint string) (*Topology, error) {
	dbModel, err := model.NewClientDBModel("Open_vSwitch", map[string]model.Model{
		"Open_vSwitch": &openVSwitch{}, "Bridge": &topologyBridge{}, "Port": &topologyPort{},
		"Interface": &topologyInterface{},
	})
	if err != nil {
		return nil, err
	}
	quiet := logr.Discard()
	c, err := client.NewOVSDBClient(dbModel, client.WithEndpoint(endpoint), client.WithLogger(&quiet))
	if err != nil {
		return nil, err
	}
	if err := c.Connect(ctx); err != nil {
		return nil, fmt.Errorf("connect to ovsdb-server at %s: %w (is openvswitch-switch running?)", endpoint, err)
	}
	var o openVSwitch
	var b topologyBridge
	var p topologyPort
	var i topologyInterface
	if _, err := c.Monitor(ctx, c.NewMonitor(client.WithTable(&o, &o.Bridges, &o.OVSVersion),
		client.WithTable(&b, &b.Name, &b.Ports, &b.Datapath, &b.FailMode, &b.STP, &b.RSTP, &b.McastSnoop,
			&b.OtherConfig),
		client.WithTable(&p, &p.Name, &p.Interfaces, &p.Mode, &p.Tag, &p.Trunks),
		client.WithTable(&i, &i.Name, &i.Type, &i.Ofport, &i.MTURequest, &i.MAC, &i.Error))); err != nil {
		c.Close()
		return nil, fmt.Errorf("read the Open vSwitch database: %w", err)
	}
	return &Topology{db: &DB{client: c}}, nil
}

// Close ends the connection.
func (t *Topology) Close() { t.db.Close() }

// Connected reports whether the connection to ovsdb-server is up.
func (t *Topology) Connected() bool { return t.db.Connected() }

// Bridges returns all bridges with their ports, sorted by name.
func (t *Topology) Bridges(ctx context.Context) ([]Bridge, error) {
	var bridges []topologyBridge
	var ports []topologyPort
	var interfaces []topologyInterface
	if err := errors.Join(t.db.client.List(ctx, &bridges), t.db.client.List(ctx, &ports),
		t.db.client.List(ctx, &interfaces)); err != nil {
		return nil, fmt.Errorf("list bridges: %w", err)
	}
	byID := map[string]BridgePort{}
	named := map[string]topologyInterface{}
	for _, i := range interfaces {
		named[i.UUID] = i
	}
	for _, p := range ports {
		byID[p.UUID] = p.describe(named)
	}
	out := make([]Bridge, 0, len(bridges))
	for _, b := range bridges {
		one := Bridge{
			Name:       b.Name,
			Datapath:   b.Datapath,
			FailMode:   value(b.FailMode),
			STP:        b.STP,
			RSTP:       b.RSTP,
			McastSnoop: b.McastSnoop,
		}
		for _, id := range b.Ports {
			if p, ok := byID[id]; ok {
				one.Ports = append(one.Ports, p)
			}
		}
		slices.SortFunc(one.Ports, func(a, b BridgePort) int { return strings.Compare(a.Name, b.Name) })
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b Bridge) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func (p *topologyPort) describe(interfaces map[string]topologyInterface) BridgePort {
	out := BridgePort{
		Name:   p.Name,
		Mode:   value(p.Mode),
		Tag:    value(p.Tag),
		Trunks: slices.Sorted(slices.Values(p.Trunks)),
	}
	for _, id := range p.Interfaces {
		i := interfaces[id]
		out.Interfaces = append(out.Interfaces, i.Name)
		out.Type, out.Error = i.Type, value(i.Error)
		out.Open = i.Ofport != nil && *i.Ofport > 0
	}
	return out
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func (b *Bridge) row() *topologyBridge {
	row := &topologyBridge{
		UUID:       "newbridge",
		Name:       b.Name,
		Datapath:   b.Datapath,
		STP:        b.STP,
		RSTP:       b.RSTP,
		McastSnoop: b.McastSnoop,
	}
	if b.FailMode != "" {
		row.FailMode = &b.FailMode
	}
	return row
}

// SetBridge makes the bridge, without ports, or corrects it; its ports and its datapath stay as they are.
func (t *Topology) SetBridge(ctx context.Context, b Bridge) error {
	root, err := t.db.root(ctx)
	if err != nil {
		return err
	}
	row := b.row()
	have, err := findOne(ctx, t.db, func(o *topologyBridge) bool { return o.Name == b.Name })
	if errors.Is(err, client.ErrNotFound) {
		ops, err := t.db.client.Create(row)
		if err != nil {
			return err
		}
		link, err := t.db.client.Where(root).Mutate(root,
			model.Mutation{Field: &root.Bridges, Mutator: ovsdb.MutateOperationInsert, Value: []string{row.UUID}})
		if err != nil {
			return err
		}
		return t.db.transact(ctx, "create bridge "+b.Name, append(ops, link...))
	}
	if err != nil {
		return err
	}
	row.UUID = have.UUID
	ops, err := t.db.client.Where(have).Update(row, &row.FailMode, &row.STP, &row.RSTP, &row.McastSnoop)
	if err != nil {
		return err
	}
	return t.db.transact(ctx, "change bridge "+b.Name, ops)
}

// DeleteBridge removes the bridge with its ports; it is no error if there is none.
func (t *Topology) DeleteBridge(ctx context.Context, name string) error {
	root, err := t.db.root(ctx)
	if err != nil {
		return err
	}
	b, err := findOne(ctx, t.db, func(b *topologyBridge) bool { return b.Name == name })
	if errors.Is(err, client.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	ops, err := t.db.client.Where(root).Mutate(root,
		model.Mutation{Field: &root.Bridges, Mutator: ovsdb.MutateOperationDelete, Value: []string{b.UUID}})
	if err != nil {
		return err
	}
	return t.db.transact(ctx, "delete bridge "+name, ops)
}

// AddPort puts an interface on the bridge: an internal one is made by that, any other must be there. It returns when
// the switch has opened the port.
func (t *Topology) AddPort(ctx context.Context, bridge string, p BridgePort, mac string) error {
	b, err := findOne(ctx, t.db, func(b *topologyBridge) bool { return b.Name == bridge })
	if err != nil {
		return fmt.Errorf("bridge %s: %w", bridge, err)
	}
	i := &topologyInterface{UUID: "newiface", Name: p.Name, Type: p.Type}
	if mac != "" && p.Type == "internal" {
		i.MAC = &mac
		if err := t.localMAC(ctx, p.Name, mac); err != nil {
			return err
		}
	}
	row := &topologyPort{UUID: "newport", Name: p.Name, Interfaces: []string{i.UUID}}
	row.vlan(p)
	ops, err := t.db.client.Create(i, row)
	if err != nil {
		return err
	}
	link, err := t.db.client.Where(b).Mutate(b,
		model.Mutation{Field: &b.Ports, Mutator: ovsdb.MutateOperationInsert, Value: []string{row.UUID}})
	if err != nil {
		return err
	}
	if err := t.db.transact(ctx, "add port "+p.Name, append(ops, link...)); err != nil {
		return err
	}
	return t.await(ctx, p.Name)
}

func (p *topologyPort) vlan(want BridgePort) {
	p.Mode, p.Tag, p.Trunks = nil, nil, want.Trunks
	if want.Mode != "" {
		p.Mode = &want.Mode
	}
	if want.Tag != 0 {
		p.Tag = &want.Tag
	}
}

// SetPort changes a port's VLANs.
func (t *Topology) SetPort(ctx context.Context, p BridgePort) error {
	have, err := findOne(ctx, t.db, func(o *topologyPort) bool { return o.Name == p.Name })
	if err != nil {
		return fmt.Errorf("port %s: %w", p.Name, err)
	}
	have.vlan(p)
	ops, err := t.db.client.Where(have).Update(have, &have.Mode, &have.Tag, &have.Trunks)
	if err != nil {
		return err
	}
	return t.db.transact(ctx, "change port "+p.Name, ops)
}

// Request asks the switch to give an internal interface an MTU or a MAC address; 0 and "" leave what there is.
func (t *Topology) Request(ctx context.Context, name string, mtu int, mac string) error {
	i, err := findOne(ctx, t.db, func(i *topologyInterface) bool { return i.Name == name })
	if err != nil {
		return fmt.Errorf("interface %s: %w", name, err)
	}
	if mtu != 0 {
		i.MTURequest = &mtu
	}
	if mac != "" {
		i.MAC = &mac
		if err := t.localMAC(ctx, name, mac); err != nil {
			return err
		}
	}
	ops, err := t.db.client.Where(i).Update(i, &i.MTURequest, &i.MAC)
	if err != nil {
		return err
	}
	return t.db.transact(ctx, "change interface "+name, ops)
}

// localMAC: the interface that has its bridge's name has its MAC address from the bridge's settings.
func (t *Topology) localMAC(ctx context.Context, name, mac string) error {
	b, err := findOne(ctx, t.db, func(b *topologyBridge) bool { return b.Name == name })
	if errors.Is(err, client.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	b.OtherConfig = maps.Clone(b.OtherConfig)
	if b.OtherConfig == nil {
		b.OtherConfig = map[string]string{}
	}
	b.OtherConfig["hwaddr"] = mac
	ops, err := t.db.client.Where(b).Update(b, &b.OtherConfig)
	if err != nil {
		return err
	}
	return t.db.transact(ctx, "set the MAC address of "+name, ops)
}

// DeletePort takes a port from its bridge, whichever that is; it is no error if there is none.
func (t *Topology) DeletePort(ctx context.Context, name string) error {
	p, err := findOne(ctx, t.db, func(p *topologyPort) bool { return p.Name == name })
	if errors.Is(err, client.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	b, err := findOne(ctx, t.db, func(b *topologyBridge) bool { return slices.Contains(b.Ports, p.UUID) })
	if err != nil {
		return fmt.Errorf("the bridge of port %s: %w", name, err)
	}
	ops, err := t.db.client.Where(b).Mutate(b,
		model.Mutation{Field: &b.Ports, Mutator: ovsdb.MutateOperationDelete, Value: []string{p.UUID}})
	if err != nil {
		return err
	}
	return t.db.transact(ctx, "delete port "+name, ops)
}

// await polls the replica of the database that libovsdb keeps in memory, until the switch has opened the port.
func (t *Topology) await(ctx context.Context, name string) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		i, err := findOne(ctx, t.db, func(i *topologyInterface) bool { return i.Name == name })
		switch {
		case err != nil && !errors.Is(err, client.ErrNotFound):
			return err
		case err == nil && value(i.Ofport) > 0:
			return nil
		case err == nil && value(i.Error) != "":
			return fmt.Errorf("the switch cannot open port %s: %s", name, *i.Error)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for ovs-vswitchd to open port %s: %w (is ovs-vswitchd running?)", name, ctx.Err())
		}
	}
}
