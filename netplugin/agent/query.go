package agent

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/connections"
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
	if q.Within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, q.Within)
		defer cancel()
	}
	switch q.Kind {
	case inspect.QueryFlows:
		return a.queryFlows(ctx, q.Rules)
	case inspect.QueryStatus:
		return a.queryStatus(ctx)
	case inspect.QueryCuts:
		return a.queryCuts()
	case inspect.QueryDrops:
		return a.queryDrops(q.Drops)
	case inspect.QueryTrace:
		return a.queryTrace(ctx, q.Packets)
	case inspect.QueryCounters:
		return a.queryCounters(ctx, q.Namespace)
	case inspect.QueryConnections:
		return a.queryConnections(ctx, q.Connections)
	case inspect.QuerySupport:
		return a.querySupport(ctx)
	case inspect.QueryVerify:
		return a.queryVerify(ctx)
	}
	return nil, fmt.Errorf("this netplugin knows no query %q", q.Kind)
}

func (a *agent) queryStatus(ctx context.Context) ([]byte, error) {
	var st inspect.NodeStatus
	if err := a.do(ctx, func() { st = a.status() }); err != nil {
		return nil, err
	}
	return json.Marshal(st)
}

// status is the node's own word on itself.
func (a *agent) status() inspect.NodeStatus {
	d := &a.drift
	return inspect.NodeStatus{Version: a.cfg.Version, Revision: a.rules.revision, SwitchConnected: a.session != nil, SwitchProblem: a.switchProblem, Datapath: a.cfg.DatapathType,
		Endpoints: len(a.pods), Flows: a.compiler.Count(), Rules: len(a.rules.rules),
		Audit: inspect.Audit{Interval: a.cfg.AuditInterval, At: d.audited, Took: d.took, Last: d.last, Drift: d.total, DriftAt: d.at, Problem: d.problem}}
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
	from, done, err := a.openReader(ctx, sw)
	if err != nil {
		return nil, err
	}
	defer done()
	var flows []ofctl.Flow
	err = from.Dump(ctx, func(f ofctl.Flow, err error) error {
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

func (a *agent) queryCuts() ([]byte, error) {
	recent, sum, problem := a.ended.Recent()
	out := inspect.NodeCuts{Node: a.cfg.Node, Connections: sum, Cuts: []inspect.Cut{}}
	if problem != nil {
		out.Problem = problem.Error()
	}
	for i := range recent {
		out.Cuts = append(out.Cuts, describeCut(&recent[i]))
	}
	return json.Marshal(out)
}

func describeCut(r *connections.Record) inspect.Cut {
	c := inspect.Cut{Time: r.Time, Reason: string(r.Reason), LivedOn: []policy.Origin{}, DeniedBy: append([]policy.Origin{}, r.DeniedBy...), Endpoint: r.Endpoint,
		Connections: r.Count, Protocols: map[string]int{}, Example: r.Example.String(), Why: r.Why()}
	if r.Direction != 0 {
		c.Direction = r.Direction.String()
	}
	if r.LivedOn != nil {
		c.LivedOn = append(c.LivedOn, r.LivedOn.Origins...)
	}
	for p, n := range r.Protocols {
		c.Protocols[connections.ProtocolName(p)] = n
	}
	return c
}
