package ovsdb

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/ovn-org/libovsdb/client"
	"github.com/ovn-org/libovsdb/model"
	"github.com/ovn-org/libovsdb/ovsdb"
)

// BridgeSpec is how a bridge should be.
type BridgeSpec struct {
	Name         string
	DatapathType string // system or netdev
	// Prefixes are the fields of each flow table for which the switch keeps prefix trees (ovs-vswitchd.conf.db(5),
	// Flow_Table). Of other tables nothing is changed.
	Prefixes map[int][]string
	// FlowLimit bounds the megaflows of the node, where nothing else has set a bound; 0: it is left alone.
	FlowLimit int
}

// EnsureBridge creates the bridge, or corrects what another program changed of it, and reports whether it wrote. The
// bridge has fail_mode secure, so that nothing passes without flows, OpenFlow 1.3, and no controllers: with one more or
// one less ovs-vswitchd deletes all flows, and a controller may set flows of its own. All of its ports are separated:
// without fail_mode secure ovs-vswitchd forwards packets as a learning switch does, but not between separated ports.
func (db *DB) EnsureBridge(ctx context.Context, spec BridgeSpec) (wrote bool, err error) {
	root, err := db.root(ctx)
	if err != nil {
		return false, err
	}
	secure := "secure"
	want := &bridge{
		UUID:         "newbridge",
		Name:         spec.Name,
		DatapathType: spec.DatapathType,
		FailMode:     &secure,
		Protocols:    []string{"OpenFlow13"},
		OtherConfig:  map[string]string{"disable-in-band": "true"},
		ExternalIDs:  map[string]string{ownerKey: ownerValue},
	}
	have, err := findOne(ctx, db, func(b *bridge) bool { return b.Name == spec.Name })
	limit, limitErr := db.limitFlows(root, spec.FlowLimit, have, want)
	if limitErr != nil {
		return false, limitErr
	}
	switch {
	case errors.Is(err, client.ErrNotFound):
		wrote, err = true, db.createBridge(ctx, root, want, limit)
	case err == nil:
		wrote, err = correctBridge(ctx, db, have, want, limit)
	}
	if err != nil {
		return wrote, err
	}
	separated, err := separatePorts(ctx, db, spec.Name)
	if err != nil {
		return wrote, err
	}
	trees, err := db.ensurePrefixes(ctx, spec)
	return wrote || separated || trees, err
}

// separate removes the port from all VLANs but the reserved one, 4095. Open vSwitch's action NORMAL drops what comes by
// such a port. Flows that output to it are not affected; the column protected would affect them.
func (p *port) separate() {
	trunk := "trunk"
	p.VLANMode, p.Trunks = &trunk, []int{4095}
}

// isSeparate reports whether separate has been called for the port.
func (p *port) isSeparate() bool {
	return value(p.VLANMode) == "trunk" && slices.Equal(p.Trunks, []int{4095})
}

// separatePorts separates a bridge's ports where they are not, and reports whether it wrote.
func separatePorts(ctx context.Context, db *DB, bridgeName string) (wrote bool, err error) {
	b, err := findOne(ctx, db, func(b *bridge) bool { return b.Name == bridgeName })
	if errors.Is(err, client.ErrNotFound) {
		return false, nil // it was just created, with its only port separated, and has not been read yet
	}
	if err != nil {
		return false, fmt.Errorf("bridge %s: %w", bridgeName, err)
	}
	var open []port
	mixed := func(p *port) bool { return !p.isSeparate() && slices.Contains(b.Ports, p.UUID) }
	if err := db.client.WhereCache(mixed).List(ctx, &open); err != nil {
		return false, fmt.Errorf("list ports of bridge %s: %w", bridgeName, err)
	}
	var all []ovsdb.Operation
	for i := range open {
		open[i].separate()
		ops, err := db.client.Where(&open[i]).Update(&open[i], &open[i].VLANMode, &open[i].Trunks)
		if err != nil {
			return false, err
		}
		all = append(all, ops...)
	}
	if len(all) == 0 {
		return false, nil
	}
	return true, db.transact(ctx, "separate ports of bridge "+bridgeName, all)
}

// correctBridge writes a bridge and also where it differs, and reports whether it did. Other programs' keys of
// other_config and external_ids stay.
func correctBridge(ctx context.Context, db *DB, have, want *bridge, also []ovsdb.Operation) (wrote bool, err error) {
	want.UUID = have.UUID
	want.OtherConfig = withKeys(have.OtherConfig, want.OtherConfig)
	want.ExternalIDs = withKeys(have.ExternalIDs, want.ExternalIDs)
	if have.DatapathType == want.DatapathType && value(have.FailMode) == *want.FailMode && len(have.Controllers) == 0 &&
		slices.Equal(have.Protocols, want.Protocols) && maps.Equal(have.OtherConfig, want.OtherConfig) &&
		maps.Equal(have.ExternalIDs, want.ExternalIDs) && len(also) == 0 {
		return false, nil
	}
	ops, err := db.client.Where(have).Update(want, &want.DatapathType, &want.FailMode, &want.Protocols,
		&want.Controllers, &want.OtherConfig, &want.ExternalIDs)
	if err != nil {
		return false, err
	}
	return true, db.transact(ctx, "correct bridge "+want.Name, append(ops, also...))
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

func (db *DB) createBridge(ctx context.Context, root *openVSwitch, b *bridge, also []ovsdb.Operation) error {
	local := &iface{UUID: "newiface", Name: b.Name, Type: "internal"}
	p := &port{UUID: "newport", Name: b.Name, Interfaces: []string{local.UUID}}
	p.separate()
	b.Ports = []string{p.UUID}
	ops, err := db.client.Create(local, p, b)
	if err != nil {
		return err
	}
	link, err := db.client.Where(root).Mutate(root,
		model.Mutation{Field: &root.Bridges, Mutator: ovsdb.MutateOperationInsert, Value: []string{b.UUID}})
	if err != nil {
		return err
	}
	return db.transact(ctx, "create bridge "+b.Name, slices.Concat(ops, link, also))
}
