// Package ovsdb makes and watches a bridge and its ports in Open vSwitch's database (ovs-vswitchd.conf.db(5)).
package ovsdb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/go-logr/logr"
	"github.com/ovn-org/libovsdb/cache"
	"github.com/ovn-org/libovsdb/client"
	"github.com/ovn-org/libovsdb/model"
	"github.com/ovn-org/libovsdb/ovsdb"
)

type openVSwitch struct {
	UUID        string            `ovsdb:"_uuid"`
	Bridges     []string          `ovsdb:"bridges"`
	OVSVersion  *string           `ovsdb:"ovs_version"`
	OtherConfig map[string]string `ovsdb:"other_config"`
	NextConfig  int               `ovsdb:"next_cfg"`
	CurConfig   int               `ovsdb:"cur_cfg"`
}

type bridge struct {
	UUID          string            `ovsdb:"_uuid"`
	Name          string            `ovsdb:"name"`
	Ports         []string          `ovsdb:"ports"`
	DatapathType  string            `ovsdb:"datapath_type"`
	FailMode      *string           `ovsdb:"fail_mode"`
	Protocols     []string          `ovsdb:"protocols"`
	Controllers   []string          `ovsdb:"controller"`
	STP           bool              `ovsdb:"stp_enable"`
	RSTP          bool              `ovsdb:"rstp_enable"`
	McastSnooping bool              `ovsdb:"mcast_snooping_enable"`
	Mirrors       []string          `ovsdb:"mirrors"`
	OtherConfig   map[string]string `ovsdb:"other_config"`
	ExternalIDs   map[string]string `ovsdb:"external_ids"`
	FlowTables    map[int]string    `ovsdb:"flow_tables"`
}

// flowTable is the configuration of one table of a bridge.
type flowTable struct {
	UUID      string   `ovsdb:"_uuid"`
	Prefixes  []string `ovsdb:"prefixes"`
	FlowLimit *int     `ovsdb:"flow_limit"`
}

// mirror copies packets of a bridge to a port or a VLAN.
type mirror struct {
	UUID       string  `ovsdb:"_uuid"`
	OutputPort *string `ovsdb:"output_port"`
	OutputVLAN *int    `ovsdb:"output_vlan"`
}

type port struct {
	UUID        string            `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	Interfaces  []string          `ovsdb:"interfaces"`
	VLANMode    *string           `ovsdb:"vlan_mode"`
	Tag         *int              `ovsdb:"tag"`
	Trunks      []int             `ovsdb:"trunks"`
	CVLANs      []int             `ovsdb:"cvlans"`
	Protected   bool              `ovsdb:"protected"`
	QoS         *string           `ovsdb:"qos"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

type iface struct {
	UUID          string            `ovsdb:"_uuid"`
	Name          string            `ovsdb:"name"`
	Type          string            `ovsdb:"type"`
	Options       map[string]string `ovsdb:"options"`
	Ofport        *int              `ovsdb:"ofport"`
	OfportRequest *int              `ovsdb:"ofport_request"`
	MTURequest    *int              `ovsdb:"mtu_request"`
	MAC           *string           `ovsdb:"mac"`
	PolicingRate  int               `ovsdb:"ingress_policing_rate"`
	PolicingKpkts int               `ovsdb:"ingress_policing_kpkts_rate"`
	Error         *string           `ovsdb:"error"`
	ExternalIDs   map[string]string `ovsdb:"external_ids"`
}

// owner marks what Flowkeep made, in external_ids.
const ownerKey, ownerValue = "owner", "flowkeep"

// DB is a connection to ovsdb-server that comes back by itself. Safe for concurrent use.
type DB struct {
	client  client.Client
	changes chan struct{}
	tags    tagBook // of the bridge that EnsureBridge makes
	// unsettled has the names of ports of which the creation got no response.
	unsettled sync.Map
	// flushing is the next_cfg of the last change that deletes flows.
	flushing atomic.Int64
}

// Open connects to an endpoint such as unix:/var/run/openvswitch/db.sock and waits until the database is read.
func Open(ctx context.Context, endpoint string) (*DB, error) {
	dbModel, err := model.NewClientDBModel("Open_vSwitch", map[string]model.Model{
		"Open_vSwitch": &openVSwitch{}, "Bridge": &bridge{}, "Port": &port{}, "Interface": &iface{},
		"Flow_Table": &flowTable{}, "Mirror": &mirror{},
	})
	if err != nil {
		return nil, err
	}
	quiet := logr.Discard()
	c, err := client.NewOVSDBClient(dbModel, client.WithEndpoint(endpoint), client.WithLogger(&quiet),
		client.WithReconnect(5*time.Second, backoff.NewConstantBackOff(500*time.Millisecond)))
	if err != nil {
		return nil, err
	}
	if err := c.Connect(ctx); err != nil {
		return nil, fmt.Errorf("connect to ovsdb-server at %s: %w (is openvswitch-switch running?)", endpoint, err)
	}
	db := &DB{client: c, changes: make(chan struct{}, 1)}
	c.Cache().AddEventHandler(db.handler())
	_, err = c.Monitor(ctx, monitor(c))
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("read the Open vSwitch database: %w", err)
	}
	return db, nil
}

// monitor names every column that the models have: of others libovsdb would not understand the updates, and would drop
// those that came with them.
func monitor(c client.Client) *client.Monitor {
	var o openVSwitch
	var b bridge
	var p port
	var i iface
	var t flowTable
	var m mirror
	return c.NewMonitor(client.WithTable(&o, &o.Bridges, &o.OVSVersion, &o.OtherConfig, &o.NextConfig, &o.CurConfig),
		client.WithTable(&b, &b.Name, &b.Ports, &b.DatapathType, &b.FailMode, &b.Protocols, &b.Controllers,
			&b.STP, &b.RSTP, &b.McastSnooping, &b.Mirrors, &b.OtherConfig, &b.ExternalIDs, &b.FlowTables),
		client.WithTable(&t, &t.Prefixes, &t.FlowLimit),
		client.WithTable(&m, &m.OutputPort, &m.OutputVLAN),
		client.WithTable(&p, &p.Name, &p.Interfaces, &p.VLANMode, &p.Tag, &p.Trunks, &p.CVLANs, &p.Protected, &p.QoS,
			&p.ExternalIDs),
		client.WithTable(&i, &i.Name, &i.Type, &i.Options, &i.Ofport, &i.OfportRequest, &i.MTURequest, &i.MAC,
			&i.PolicingRate, &i.PolicingKpkts, &i.Error, &i.ExternalIDs))
}

// Changes receives a value after rows of bridges, ports or interfaces have changed. It has room for one value, so a
// reader compares everything after each.
func (db *DB) Changes() <-chan struct{} { return db.changes }

// handler returns what fills Changes; the library calls it on a goroutine of its own.
func (db *DB) handler() cache.EventHandler {
	changed := func() {
		select {
		case db.changes <- struct{}{}:
		default:
		}
	}
	return &cache.EventHandlerFuncs{
		AddFunc:    func(_ string, _ model.Model) { changed() },
		UpdateFunc: func(_ string, _, _ model.Model) { changed() },
		DeleteFunc: func(_ string, _ model.Model) { changed() },
	}
}

// Close ends the connection.
func (db *DB) Close() { db.client.Close() }

// Connected reports whether the connection to ovsdb-server is up. The client library keeps reporting itself as
// connected after the server has ended and answers from its cache; its current endpoint is empty then.
func (db *DB) Connected() bool { return db.client.Connected() && db.client.CurrentEndpoint() != "" }

// ErrNotConnected is returned while there is no connection to ovsdb-server.
var ErrNotConnected = client.ErrNotConnected

// WaitsForFlows reports whether ovs-vswitchd is to wait for flows to be restored when it starts, and to
// handle no upcalls until then (ovs-vswitchd.conf.db(5), flow-restore-wait). It returns an error where ovsdb-server
// does not respond (RFC 7047, echo) before ctx ends.
func (db *DB) WaitsForFlows(ctx context.Context) (bool, error) {
	if !db.Connected() {
		return false, ErrNotConnected
	}
	if err := db.client.Echo(ctx); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return false, err
	}
	root, err := db.root(ctx)
	if err != nil {
		return false, err
	}
	return root.OtherConfig[restoreKey] == "true", nil
}

// restoreKey is the key of other_config by which ovs-vswitchd waits for flows.
const restoreKey = "flow-restore-wait"

// EndWaitForFlows removes flow-restore-wait where it is true: ovs-vswitchd handles upcalls from then on.
func EndWaitForFlows(ctx context.Context, db *DB) error {
	root, err := db.root(ctx)
	if err != nil {
		return err
	}
	ops, err := db.client.Where(root).Mutate(root, model.Mutation{
		Field:   &root.OtherConfig,
		Mutator: ovsdb.MutateOperationDelete,
		Value:   map[string]string{restoreKey: "true"},
	})
	if err != nil {
		return err
	}
	return db.transact(ctx, "remove "+restoreKey, ops)
}

// HasOtherBridges reports whether there is more than one bridge.
func HasOtherBridges(ctx context.Context, db *DB) (bool, error) {
	root, err := db.root(ctx)
	return err == nil && len(root.Bridges) > 1, err
}

// Version returns the version of ovs-vswitchd, or "" while it has not started.
func (db *DB) Version(ctx context.Context) string {
	root, err := db.root(ctx)
	if err != nil || root.OVSVersion == nil {
		return ""
	}
	return *root.OVSVersion
}

// HasBridge reports whether a bridge of this name exists, no matter which program created it.
func (db *DB) HasBridge(name string) bool {
	_, err := findOne(context.Background(), db, func(b *bridge) bool { return b.Name == name })
	return err == nil
}

// DeleteBridge removes the bridge with its ports; it is no error if there is none.
func (db *DB) DeleteBridge(ctx context.Context, name string) error {
	root, err := db.root(ctx)
	if err != nil {
		return err
	}
	b, err := findOne(ctx, db, func(b *bridge) bool { return b.Name == name })
	if errors.Is(err, client.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	ops, err := db.client.Where(root).Mutate(root,
		model.Mutation{Field: &root.Bridges, Mutator: ovsdb.MutateOperationDelete, Value: []string{b.UUID}})
	if err != nil {
		return err
	}
	unlimit, err := unlimitFlows(db, root, b)
	if err != nil {
		return err
	}
	return db.transact(ctx, "delete bridge "+name, append(ops, unlimit...))
}

// PortSpec is how a port should be.
type PortSpec struct {
	Bridge      string
	Name        string
	Internal    bool              // an internal port, else a device that exists, or a tunnel
	Tunnel      string            // the kind of a tunnel port, such as geneve
	Options     map[string]string // of a tunnel
	MTU         int               // that the switch gives it; 0: of an internal port as it is, of others no request
	Number      uint32            // the OpenFlow number that it requests; 0: none
	ExternalIDs map[string]string
}

// ids returns the external_ids of the port and its interface.
func (s *PortSpec) ids() map[string]string {
	return withKeys(s.ExternalIDs, map[string]string{ownerKey: ownerValue})
}

// rows returns the port and its interface as they are created.
func (s *PortSpec) rows(tag int) (*iface, *port) {
	i := &iface{UUID: "newiface", Name: s.Name, Type: s.Tunnel, Options: s.Options, ExternalIDs: s.ids()}
	if s.Internal {
		i.Type = "internal"
	}
	if s.MTU != 0 {
		i.MTURequest = &s.MTU
	}
	if number := int(s.Number); number != 0 {
		i.OfportRequest = &number
	}
	p := &port{UUID: "newport", Name: s.Name, Interfaces: []string{i.UUID}, ExternalIDs: s.ids()}
	p.setTag(tag)
	return i, p
}

// Port is a port as the switch has it.
type Port struct {
	Name        string
	OFPort      uint32
	ExternalIDs map[string]string
}

// EnsurePort makes the port where it is absent, waits until the switch has opened it, and returns its OpenFlow number.
// A port of the name on another bridge is an error: its number there may be another port's on this one.
func (db *DB) EnsurePort(ctx context.Context, spec PortSpec) (uint32, error) {
	p, err := findOne(ctx, db, func(p *port) bool { return p.Name == spec.Name })
	if err == nil {
		err = isOn(ctx, db, spec.Bridge, p)
	} else if errors.Is(err, client.ErrNotFound) {
		err = db.createPort(ctx, spec)
	}
	if err != nil {
		return 0, err
	}
	return db.awaitPort(ctx, spec.Name)
}

// isOn returns an error unless the port is on the bridge.
func isOn(ctx context.Context, db *DB, bridgeName string, p *port) error {
	b, err := findOne(ctx, db, func(b *bridge) bool { return slices.Contains(b.Ports, p.UUID) })
	if err == nil && b.Name != bridgeName {
		err = fmt.Errorf("it is on bridge %s: remove it there", b.Name)
	}
	if err != nil {
		return fmt.Errorf("port %s of bridge %s: %w", p.Name, bridgeName, err)
	}
	return nil
}

func (db *DB) createPort(ctx context.Context, spec PortSpec) error {
	b, err := findOne(ctx, db, func(b *bridge) bool { return b.Name == spec.Bridge })
	if err != nil {
		return fmt.Errorf("bridge %s: %w", spec.Bridge, err)
	}
	tag, err := db.newTag(ctx, spec.Bridge, spec.Name)
	if err != nil {
		return err
	}
	i, p := spec.rows(tag)
	ops, err := db.client.Create(i, p)
	if err != nil {
		return err
	}
	link, err := db.client.Where(b).Mutate(b,
		model.Mutation{Field: &b.Ports, Mutator: ovsdb.MutateOperationInsert, Value: []string{p.UUID}})
	if err != nil {
		return err
	}
	if err := db.transact(ctx, "create port "+spec.Name, append(ops, link...)); err != nil {
		db.tags.remove(spec.Name)
		if _, ok := errors.AsType[*noResponse](err); ok {
			db.unsettled.Store(spec.Name, nil)
		}
		return err
	}
	db.unsettled.Delete(spec.Name)
	return nil
}

// awaitPort polls the replica of the database that libovsdb keeps in memory.
func (db *DB) awaitPort(ctx context.Context, name string) (uint32, error) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		i, err := findOne(ctx, db, func(i *iface) bool { return i.Name == name })
		switch {
		case err != nil && !errors.Is(err, client.ErrNotFound):
			return 0, err
		case err == nil && i.Ofport != nil && *i.Ofport > 0:
			return uint32(*i.Ofport), nil
		case err == nil && i.Error != nil && *i.Error != "":
			return 0, fmt.Errorf("the switch cannot open port %s: %s", name, *i.Error)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, fmt.Errorf("wait for ovs-vswitchd to open port %s: %w (is ovs-vswitchd running?)", name,
				ctx.Err())
		}
	}
}

// DeletePort removes a port; it is no error if there is none. If the creation of the port got no response, ovsdb-server
// may execute it later: then DeletePort fails until ovsdb-server responds.
func (db *DB) DeletePort(ctx context.Context, bridgeName, name string) error {
	ops, err := deletePort(ctx, db, name)
	if _, unsettled := db.unsettled.Load(name); unsettled && err == nil && len(ops) == 0 {
		ops, err = deleteUnseenPort(ctx, db, bridgeName, name)
	}
	if err == nil && len(ops) > 0 {
		err = db.transact(ctx, "delete port "+name, ops)
	}
	if err == nil {
		db.unsettled.Delete(name)
	}
	return err
}

// deleteUnseenPort returns the operations that remove a port which the replica may not have yet, none if ovsdb-server
// has none. It executes the requests of a connection in their order.
func deleteUnseenPort(ctx context.Context, db *DB, bridgeName, name string) (ops []ovsdb.Operation, err error) {
	b, err := findOne(ctx, db, func(b *bridge) bool { return b.Name == bridgeName })
	if err != nil {
		return nil, fmt.Errorf("bridge %s: %w", bridgeName, err)
	}
	results, err := db.client.Transact(ctx, ovsdb.Operation{
		Op:      ovsdb.OperationSelect,
		Table:   tablePort,
		Where:   []ovsdb.Condition{ovsdb.NewCondition("name", ovsdb.ConditionEqual, name)},
		Columns: []string{"_uuid"},
	})
	if err != nil {
		return nil, fmt.Errorf("look up port %s: %w", name, err)
	}
	for _, r := range results {
		if r.Error != "" {
			return nil, fmt.Errorf("look up port %s: %s", name, r.Error)
		}
		for _, row := range r.Rows {
			if id, ok := row["_uuid"].(ovsdb.UUID); ok {
				ops = append(ops, removePort(b.UUID, id.GoUUID))
			}
		}
	}
	return ops, nil
}

// deletePort returns the operations that remove a port, none if there is none.
func deletePort(ctx context.Context, db *DB, name string) ([]ovsdb.Operation, error) {
	p, err := findOne(ctx, db, func(p *port) bool { return p.Name == name })
	if errors.Is(err, client.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	b, err := findOne(ctx, db, func(b *bridge) bool { return slices.Contains(b.Ports, p.UUID) })
	if err != nil {
		return nil, fmt.Errorf("the bridge of port %s: %w", name, err)
	}
	return db.client.Where(b).Mutate(b, model.Mutation{
		Field:   &b.Ports,
		Mutator: ovsdb.MutateOperationDelete,
		Value:   []string{p.UUID},
	})
}

// ClosePort removes a port, and waits until the switch has closed it. One that is created before that takes over the
// device of the former, also one that is gone.
func (db *DB) ClosePort(ctx context.Context, name string) error {
	ops, err := deletePort(ctx, db, name)
	if err != nil || len(ops) == 0 {
		return err
	}
	root, err := db.root(ctx)
	if err != nil {
		return err
	}
	next, err := nextConfig(db, root)
	if err != nil {
		return err
	}
	if err := db.transact(ctx, "close port "+name, append(ops, next...)); err != nil {
		return err
	}
	return awaitConfig(ctx, db, root.NextConfig+1)
}

// nextConfig returns the operation that has ovs-vswitchd write when it has taken over the configuration
// (ovs-vswitchd.conf.db(5), next_cfg).
func nextConfig(db *DB, root *openVSwitch) ([]ovsdb.Operation, error) {
	return db.client.Where(root).Mutate(root, model.Mutation{
		Field:   &root.NextConfig,
		Mutator: ovsdb.MutateOperationAdd,
		Value:   1,
	})
}

// AwaitConfig waits until ovs-vswitchd has taken over what EnsureBridge has written, where that deletes flows
// (Change.FlushesFlows).
func (db *DB) AwaitConfig(ctx context.Context) error {
	return awaitConfig(ctx, db, int(db.flushing.Load()))
}

// awaitConfig waits until ovs-vswitchd has taken over a configuration (ovs-vswitchd.conf.db(5), cur_cfg).
func awaitConfig(ctx context.Context, db *DB, number int) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		root, err := db.root(ctx)
		if err != nil || root.CurConfig >= number {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for ovs-vswitchd to take over its configuration: %w (is ovs-vswitchd running?)",
				ctx.Err())
		}
	}
}

// Ports lists the bridge's ports that the switch has opened, but for the local port. Ports that another program added,
// or of which it removed the owner in external_ids, are among them.
func (db *DB) Ports(ctx context.Context, bridgeName string) ([]Port, error) {
	r, err := db.complete(ctx)
	if err != nil {
		return nil, err
	}
	b := r.bridge(bridgeName)
	if b == nil {
		return nil, fmt.Errorf("bridge %s: %w", bridgeName, client.ErrNotFound)
	}
	var out []Port
	for _, id := range b.Ports {
		p := r.ports[id]
		for _, of := range p.Interfaces {
			i := r.interfaces[of]
			if i.Name == p.Name && i.Name != b.Name && i.Ofport != nil && *i.Ofport > 0 {
				out = append(out, Port{Name: p.Name, OFPort: uint32(*i.Ofport), ExternalIDs: i.ExternalIDs})
			}
		}
	}
	return out, nil
}

func (db *DB) root(ctx context.Context) (*openVSwitch, error) {
	return findOne(ctx, db, func(*openVSwitch) bool { return true })
}

// findOne returns the first row that match accepts. The library waits with List until its replica is complete, but not
// with conditions.
func findOne[T any](ctx context.Context, db *DB, match func(*T) bool) (*T, error) {
	ctx, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	var rows []T
	if err := db.client.List(ctx, &rows); err != nil {
		return nil, err
	}
	if ctx.Err() != nil { // List returns what it has then
		return nil, fmt.Errorf("%w: %w", ErrIncomplete, ctx.Err())
	}
	for i := range rows {
		if match(&rows[i]) {
			return &rows[i], nil
		}
	}
	return nil, client.ErrNotFound
}

// noResponse is the error of a request without a response, as after a timeout or a lost connection: ovsdb-server may
// execute it nevertheless, also later.
type noResponse struct{ err error }

func (e *noResponse) Error() string { return e.err.Error() }

func (e *noResponse) Unwrap() error { return e.err }

// transact executes operations in one transaction. It returns a noResponse where it is unknown whether they are.
func (db *DB) transact(ctx context.Context, what string, ops []ovsdb.Operation) error {
	results, err := db.client.Transact(ctx, ops...)
	if err != nil {
		return fmt.Errorf("%s: %w", what, &noResponse{err})
	}
	if problems, err := ovsdb.CheckOperationResults(results, ops); err != nil {
		for _, p := range problems {
			err = errors.Join(err, p)
		}
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Made reports whether there is a bridge of the name, and whether Flowkeep made it, with its ports' names.
func (db *DB) Made(ctx context.Context, name string) (there, ours bool, ports []string, err error) {
	r, err := db.complete(ctx)
	if err != nil {
		return false, false, nil, err
	}
	b := r.bridge(name)
	if b == nil {
		return false, false, nil, nil
	}
	for _, id := range b.Ports {
		ports = append(ports, r.ports[id].Name)
	}
	slices.Sort(ports)
	return true, b.ExternalIDs[ownerKey] == ownerValue, ports, nil
}
