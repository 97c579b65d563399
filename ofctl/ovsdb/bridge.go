package ovsdb

import (
	"context"
	"errors"
	"slices"

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
	// Ports are the ports that Flowkeep has made: their values are corrected. None is created.
	Ports []PortSpec
}

// EnsureBridge creates the bridge, or corrects it, and returns what other programs had changed of it. The bridge has
// fail_mode secure, so that nothing passes without flows, OpenFlow 1.3, and no controllers: with one more or one less
// ovs-vswitchd deletes all flows, and a controller may set flows of its own.
//
// Each port is an access port with a VLAN of its own (ovs-vswitchd.conf.db(5), Port, vlan_mode and tag). Without
// fail_mode secure ovs-vswitchd forwards packets as a learning switch does, but not between VLANs, and it drops tagged
// packets of access ports. Flows that output to a port do not depend on its VLAN; the column protected would affect
// them. Where a bridge has more ports than there are VLANs, it corrects all but those, and returns an error.
func (db *DB) EnsureBridge(ctx context.Context, spec BridgeSpec) ([]Change, error) {
	have, err := db.complete(ctx)
	if err != nil {
		return nil, err
	}
	root, b, want := &have.roots[0], have.bridge(spec.Name), spec.row()
	limit, err := limitFlows(db, root, spec.FlowLimit, b, want)
	if err != nil {
		return nil, err
	}
	if b == nil {
		if err := db.createBridge(ctx, root, want, limit); err != nil {
			return nil, err
		}
		_, err = db.ensureTables(ctx, spec)
		return nil, err
	}
	found, tagsErr, err := db.correctBridge(ctx, have, want, spec.Ports, limit)
	if err != nil {
		return nil, errors.Join(tagsErr, err)
	}
	trees, err := db.ensureTables(ctx, spec)
	found = slices.Concat(found, limitDifference(root, b, spec.FlowLimit, limit), trees)
	return reported(found), errors.Join(tagsErr, err)
}

// row returns the bridge as it should be.
func (s *BridgeSpec) row() *bridge {
	secure := "secure"
	return &bridge{
		UUID:         "newbridge",
		Name:         s.Name,
		DatapathType: s.DatapathType,
		FailMode:     &secure,
		Protocols:    []string{"OpenFlow13"},
		OtherConfig:  map[string]string{"disable-in-band": "true"},
		ExternalIDs:  map[string]string{ownerKey: ownerValue},
	}
}

// correctBridge writes the bridge and its ports where they differ, and also, and returns the differences. The first
// error is that of ports without a tag.
func (db *DB) correctBridge(
	ctx context.Context, have *rows, want *bridge, ports []PortSpec, also []ovsdb.Operation,
) (found []difference, tagsErr, err error) {
	tags, tagsErr := db.tags.assign(have.tags(want.Name))
	found = differences(have, want, ports, tags)
	ops, err := operations(found)
	if err != nil {
		return nil, tagsErr, err
	}
	if ops = append(ops, also...); len(ops) == 0 {
		return nil, tagsErr, nil
	}
	if slices.ContainsFunc(found, func(d difference) bool { return d.FlushesFlows() }) {
		next, err := nextConfig(db, &have.roots[0])
		if err != nil {
			return nil, tagsErr, err
		}
		ops = append(ops, next...)
		db.flushing.Store(int64(have.roots[0].NextConfig) + 1)
	}
	return found, tagsErr, db.transact(ctx, "correct bridge "+want.Name, ops)
}

// accessMode is the vlan_mode of all ports.
const accessMode = "access"

// setTag makes the port an access port.
func (p *port) setTag(tag int) {
	mode := accessMode
	p.VLANMode, p.Tag = &mode, &tag
}

// tags returns the tags of a bridge's ports by name; 0: a port has none.
func (r *rows) tags(bridgeName string) map[string]int {
	tags := map[string]int{}
	if b := r.bridge(bridgeName); b != nil {
		for _, id := range b.Ports {
			p := r.ports[id]
			tags[p.Name] = value(p.Tag)
		}
	}
	return tags
}

// newTag returns the tag for a port that is to be created.
func (db *DB) newTag(ctx context.Context, bridgeName, name string) (int, error) {
	have, err := db.complete(ctx)
	if err != nil {
		return 0, err
	}
	tags, err := db.tags.assign(have.tags(bridgeName), name)
	if tags[name] == 0 {
		return 0, err
	}
	return tags[name], nil
}

func (db *DB) createBridge(ctx context.Context, root *openVSwitch, b *bridge, also []ovsdb.Operation) error {
	local := &iface{UUID: "newiface", Name: b.Name, Type: "internal"}
	p := &port{UUID: "newport", Name: b.Name, Interfaces: []string{local.UUID}}
	tags, err := db.tags.assign(nil, b.Name)
	if err != nil {
		return err
	}
	p.setTag(tags[b.Name])
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
