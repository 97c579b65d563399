package ovsdb

import (
	"strconv"

	"github.com/ovn-org/libovsdb/model"
	"github.com/ovn-org/libovsdb/ovsdb"
)

// flowLimitKey is the key of other_config that bounds megaflows (ovs-vswitchd.conf.db(5), Open_vSwitch), and the key of
// the bridge's external_ids that holds the bound where EnsureBridge has set it.
const flowLimitKey = "flow-limit"

// limitFlows returns the operations that set the bound where there is none, or where it is an earlier one of
// Flowkeep's, and has want note that it is Flowkeep's. have is the bridge as it is, or nil.
func limitFlows(db *DB, root *openVSwitch, limit int, have, want *bridge) ([]ovsdb.Operation, error) {
	noted, there := "", root.OtherConfig[flowLimitKey]
	if have != nil && have.ExternalIDs[flowLimitKey] != "" {
		noted = have.ExternalIDs[flowLimitKey]
		want.ExternalIDs[flowLimitKey] = noted
	}
	value := strconv.Itoa(limit)
	if limit == 0 || there == value || there != "" && there != noted {
		return nil, nil
	}
	want.ExternalIDs[flowLimitKey] = value
	if there != "" {
		remove, err := mutateFlowLimit(db, root, ovsdb.MutateOperationDelete, there)
		if err != nil {
			return nil, err
		}
		insert, err := mutateFlowLimit(db, root, ovsdb.MutateOperationInsert, value)
		return append(remove, insert...), err
	}
	return mutateFlowLimit(db, root, ovsdb.MutateOperationInsert, value) // which leaves a key alone that is there
}

// limitDifference returns the difference that ops of limitFlows remove, where the bound is one that was set before.
func limitDifference(root *openVSwitch, b *bridge, limit int, ops []ovsdb.Operation) []difference {
	want := strconv.Itoa(limit)
	if len(ops) == 0 || b.ExternalIDs[flowLimitKey] != want {
		return nil
	}
	c := rowCheck{table: "Open_vSwitch", name: ".", uuid: root.UUID}
	c.column("other_config:"+flowLimitKey, root.OtherConfig[flowLimitKey], want)
	return c.found
}

// unlimitFlows returns the operations that remove the bound which EnsureBridge has set for b, if it is still that.
func unlimitFlows(db *DB, root *openVSwitch, b *bridge) ([]ovsdb.Operation, error) {
	value := b.ExternalIDs[flowLimitKey]
	if value == "" {
		return nil, nil
	}
	return mutateFlowLimit(db, root, ovsdb.MutateOperationDelete, value)
}

func mutateFlowLimit(db *DB, root *openVSwitch, how ovsdb.Mutator, value string) ([]ovsdb.Operation, error) {
	return db.client.Where(root).Mutate(root, model.Mutation{
		Field:   &root.OtherConfig,
		Mutator: how,
		Value:   map[string]string{flowLimitKey: value},
	})
}
