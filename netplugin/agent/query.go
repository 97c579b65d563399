package agent

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Query answers what netctl asks of this node.
func (a *agent) Query(ctx context.Context, body []byte) ([]byte, error) {
	var q inspect.NodeQuery
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, fmt.Errorf("query: %w", err)
	}
	switch q.Kind {
	case inspect.QueryFlows:
		return a.queryFlows(ctx, q.Rules)
	case inspect.QueryStatus:
		return a.queryStatus(ctx)
	}
	return nil, fmt.Errorf("this netplugin knows no query %q", q.Kind)
}

func (a *agent) queryStatus(ctx context.Context) ([]byte, error) {
	var st inspect.NodeStatus
	err := a.do(ctx, func() {
		st = inspect.NodeStatus{Version: a.cfg.Version, Revision: a.rules.revision, SwitchConnected: a.session != nil, Datapath: a.cfg.DatapathType,
			Endpoints: len(a.pods), Flows: a.compiler.Count(), Rules: len(a.rules.rules)}
	})
	if err != nil {
		return nil, err
	}
	return json.Marshal(st)
}

// queryFlows reads the switch, not the memory: what is shown is what is enforced.
func (a *agent) queryFlows(ctx context.Context, rules []policy.Key) ([]byte, error) {
	var sw session
	if err := a.do(ctx, func() { sw = a.session }); err != nil {
		return nil, err
	}
	if sw == nil {
		return nil, fmt.Errorf("Open vSwitch of node %s is away", a.cfg.Node)
	}
	var flows []ofctl.Flow
	err := sw.Dump(ctx, func(f ofctl.Flow, err error) error {
		flows = append(flows, f)
		return nil
	})
	if err != nil {
		return nil, err
	}
	pipeline.SortFlows(flows)
	out := inspect.NodeFlows{Node: a.cfg.Node, Flows: []inspect.Flow{}}
	err = a.do(ctx, func() {
		for i := range flows {
			n := a.compiler.Describe(&flows[i])
			if rules == nil || n.Serves(rules) {
				out.Flows = append(out.Flows, describe(&flows[i], n))
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return json.Marshal(out)
}

func describe(f *ofctl.Flow, n pipeline.Note) inspect.Flow {
	return inspect.Flow{Table: f.Table, TableName: pipeline.TableName(f.Table), Priority: f.Priority, Match: f.Match.String(),
		Actions: ofctl.ActionsString(f.Actions), Packets: f.Packets, Bytes: f.Bytes, Cookie: fmt.Sprintf("%#x", f.Cookie),
		Kind: n.Kind.String(), Origins: append([]policy.Origin{}, n.Origins...), Rules: n.Rules, Note: n.Text}
}
