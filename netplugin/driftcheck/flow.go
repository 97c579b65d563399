package driftcheck

import (
	"fmt"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// FlowOf returns a flow and its use as netctl shows them.
func FlowOf(f *ofctl.Flow, n pipeline.Note) inspect.Flow {
	return inspect.Flow{
		Table:     f.Table,
		TableName: pipeline.TableName(f.Table),
		Priority:  f.Priority,
		Match:     f.Match.String(),
		Actions:   ofctl.ActionsString(f.Actions),
		Packets:   f.Packets,
		Bytes:     f.Bytes,
		Cookie:    fmt.Sprintf("%#x", f.Cookie),
		Kind:      n.Kind.String(),
		Origins:   append([]policy.Origin{}, n.Origins...),
		Rules:     n.Rules,
		Note:      n.Text,
	}
}
