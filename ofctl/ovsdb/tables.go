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

// tableChange is how the configuration of a bridge's flow tables changes.
type tableChange struct {
	remove map[int]string   // rows that are removed from tables
	insert map[int][]string // prefixes of the rows that tables get
	found  []difference
}

// compareTables returns how the rows of flow tables differ: each table has the prefix trees that are wanted of it, and
// none a limit, with which ovs-vswitchd refuses or evicts flows (ovs-vswitchd.conf.db(5), Flow_Table). Rows are
// replaced: another bridge may have the same one.
func compareTables(bridgeName string, of map[int]string, have map[string]flowTable, want map[int][]string) tableChange {
	change := tableChange{remove: map[int]string{}, insert: map[int][]string{}}
	numbers := maps.Clone(of)
	if numbers == nil {
		numbers = map[int]string{}
	}
	for number := range want {
		numbers[number] = of[number]
	}
	for _, number := range slices.Sorted(maps.Keys(numbers)) {
		row, read := have[of[number]]
		c := rowCheck{table: tableBridge, name: bridgeName}
		prefixes, ours := want[number]
		if ours {
			c.column(fmt.Sprintf("flow_tables:%d prefixes", number), row.Prefixes, prefixes)
		}
		c.column(fmt.Sprintf("flow_tables:%d flow_limit", number), row.FlowLimit, (*int)(nil))
		if len(c.found) == 0 || !read && !ours {
			continue
		}
		change.found = append(change.found, c.found...)
		if id, there := of[number]; there {
			change.remove[number] = id
		}
		if ours {
			change.insert[number] = prefixes
		}
	}
	return change
}

// ensureTables corrects the configuration of the bridge's flow tables, and returns how it differed.
func (db *DB) ensureTables(ctx context.Context, spec BridgeSpec) ([]difference, error) {
	b, err := db.awaitBridge(ctx, spec.Name)
	if err != nil {
		return nil, err
	}
	var list []flowTable
	if err := db.client.List(ctx, &list); err != nil {
		return nil, err
	}
	have := map[string]flowTable{}
	for _, t := range list {
		have[t.UUID] = t
	}
	change := compareTables(spec.Name, b.FlowTables, have, spec.Prefixes)
	if len(change.found) == 0 {
		return nil, nil
	}
	ops, err := tableOperations(db, b, &change)
	if err != nil {
		return nil, err
	}
	return change.found, db.transact(ctx, "set the flow tables of bridge "+spec.Name, ops)
}

// tableOperations returns the operations that make a change.
func tableOperations(db *DB, b *bridge, change *tableChange) ([]ovsdb.Operation, error) {
	var created []model.Model
	insert := map[int]string{}
	for _, number := range slices.Sorted(maps.Keys(change.insert)) {
		row := &flowTable{UUID: fmt.Sprintf("newtable%d", number), Prefixes: change.insert[number]}
		created, insert[number] = append(created, row), row.UUID
	}
	var ops []ovsdb.Operation
	if len(created) > 0 {
		var err error
		if ops, err = db.client.Create(created...); err != nil {
			return nil, err
		}
	}
	link, err := db.client.Where(b).Mutate(b,
		model.Mutation{Field: &b.FlowTables, Mutator: ovsdb.MutateOperationDelete, Value: change.remove},
		model.Mutation{Field: &b.FlowTables, Mutator: ovsdb.MutateOperationInsert, Value: insert})
	return append(ops, link...), err
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
