package ovsdb

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ovn-org/libovsdb/client"
	"github.com/ovn-org/libovsdb/model"
	"github.com/ovn-org/libovsdb/ovsdb"
)

// ensurePrefixes gives each flow table of the bridge its prefix trees where it has others, and reports whether it
// wrote.
func (db *DB) ensurePrefixes(ctx context.Context, spec BridgeSpec) (wrote bool, err error) {
	if len(spec.Prefixes) == 0 {
		return false, nil
	}
	b, err := db.awaitBridge(ctx, spec.Name)
	if err != nil {
		return false, err
	}
	remove, insert := map[int]string{}, map[int]string{}
	var rows []model.Model
	for _, number := range slices.Sorted(maps.Keys(spec.Prefixes)) {
		id, ok := b.FlowTables[number]
		if ok && db.hasPrefixes(ctx, id, spec.Prefixes[number]) {
			continue
		}
		if ok {
			remove[number] = id
		}
		row := &flowTable{UUID: fmt.Sprintf("newtable%d", number), Prefixes: spec.Prefixes[number]}
		rows, insert[number] = append(rows, row), row.UUID
	}
	if len(rows) == 0 {
		return false, nil
	}
	ops, err := db.client.Create(rows...)
	if err != nil {
		return false, err
	}
	link, err := db.client.Where(b).Mutate(b,
		model.Mutation{Field: &b.FlowTables, Mutator: ovsdb.MutateOperationDelete, Value: remove},
		model.Mutation{Field: &b.FlowTables, Mutator: ovsdb.MutateOperationInsert, Value: insert})
	if err != nil {
		return false, err
	}
	return true, db.transact(ctx, "set the prefix trees of bridge "+spec.Name, append(ops, link...))
}

// awaitBridge polls the replica of the database that libovsdb keeps in memory.
func (db *DB) awaitBridge(ctx context.Context, name string) (*bridge, error) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		b, err := findOne(ctx, db, func(b *bridge) bool { return b.Name == name })
		if !errors.Is(err, client.ErrNotFound) {
			return b, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for bridge %s in the database: %w", name, ctx.Err())
		}
	}
}

func (db *DB) hasPrefixes(ctx context.Context, id string, want []string) bool {
	have, err := findOne(ctx, db, func(t *flowTable) bool { return t.UUID == id })
	return err == nil && slices.Equal(slices.Sorted(slices.Values(have.Prefixes)), slices.Sorted(slices.Values(want)))
}
