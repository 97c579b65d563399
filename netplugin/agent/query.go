package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/capture"
	"github.com/flowkeep/flowkeep/netplugin/conntrack"
	"github.com/flowkeep/flowkeep/netplugin/driftcheck"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// inspector responds to netctl's requests to this node.
type inspector struct {
	a        *agent
	captures *capture.Captures
}

// handler is the agent and its inspector as netmaster's messages reach them.
type handler struct {
	*agent
	*inspector
}

// Query responds to a request of netctl's to this node.
func (ins *inspector) Query(ctx context.Context, body []byte) ([]byte, error) {
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
		return ins.queryFlows(ctx, q.Rules)
	case inspect.QueryStatus:
		return ins.queryStatus(ctx)
	case inspect.QueryCuts:
		return ins.queryCuts()
	case inspect.QueryDrops:
		return ins.queryDrops(q.Drops)
	case inspect.QueryTrace:
		return newTracer(ins.a).Packets(ctx, q.Packets)
	case inspect.QueryCounters:
		return ins.queryCounters(ctx, q.Namespace)
	case inspect.QueryConnections:
		return ins.queryConnections(ctx, q.Connections)
	case inspect.QuerySupport:
		return ins.querySupport(ctx)
	case inspect.QueryService:
		return ins.queryService(ctx, q.Service)
	case inspect.QueryServiceTrace:
		return newTracer(ins.a).Services(ctx, q.Packets)
	case inspect.QueryServiceReport:
		return ins.reportService(ctx, q.Service)
	case inspect.QueryVerify:
		return ins.a.drift.Verify(ctx, q.Independent)
	}
	return nil, fmt.Errorf("this netplugin knows no query %q", q.Kind)
}

func (ins *inspector) queryStatus(ctx context.Context) ([]byte, error) {
	var st inspect.NodeStatus
	if err := ins.a.do(ctx, func() { st = ins.status() }); err != nil {
		return nil, err
	}
	return json.Marshal(st)
}

// status returns the node's status.
func (ins *inspector) status() inspect.NodeStatus {
	return inspect.NodeStatus{
		Version:         ins.a.cfg.Version,
		Revision:        ins.a.rules.revision,
		SwitchConnected: ins.a.session != nil,
		SwitchProblem:   ins.a.wrong.switchProblem,
		DatabaseProblem: ins.a.wrong.databaseProblem,
		Datapath:        ins.a.cfg.DatapathType,
		Endpoints:       len(ins.a.pods.byID),
		Flows:           ins.a.compiler.Count(),
		Rules:           len(ins.a.rules.rules),
		DriftCheck:      ins.a.drift.Status(),
		Network:         *cmp.Or(ins.a.node.problems.Load(), new([]inspect.NetworkProblem)),
	}
}

// queryFlows reads the switch, not the memory: what is shown is what is enforced.
func (ins *inspector) queryFlows(ctx context.Context, rules []policy.Key) ([]byte, error) {
	var sw session
	if err := ins.a.do(ctx, func() { sw = ins.a.session }); err != nil {
		return nil, err
	}
	if sw == nil {
		return nil, fmt.Errorf("Open vSwitch of node %s is away", ins.a.cfg.Node)
	}
	from, done, err := ins.a.drift.OpenReader(ctx, sw)
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
	out := inspect.NodeFlows{Node: ins.a.cfg.Node, Flows: []inspect.Flow{}}
	err = ins.a.do(ctx, func() {
		for i := range flows {
			n := ins.a.compiler.Describe(&flows[i])
			if rules == nil || n.Serves(rules) {
				out.Flows = append(out.Flows, driftcheck.FlowOf(&flows[i], n))
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return json.Marshal(out)
}

func (ins *inspector) queryCuts() ([]byte, error) {
	recent, sum, problem := ins.a.ended.Recent()
	out := inspect.NodeCuts{Node: ins.a.cfg.Node, Connections: sum, Cuts: []inspect.Cut{}}
	if problem != nil {
		out.Problem = problem.Error()
	}
	for i := range recent {
		out.Cuts = append(out.Cuts, describeCut(&recent[i]))
	}
	return json.Marshal(out)
}

func describeCut(r *conntrack.Record) inspect.Cut {
	c := inspect.Cut{Time: r.Time, Reason: string(r.Reason), LivedOn: []policy.Origin{}, DeniedBy: append([]policy.Origin{}, r.DeniedBy...), Endpoint: r.Endpoint,
		Connections: r.Count, Protocols: map[string]int{}, Example: r.Example.String(), Why: r.Why()}
	if r.Direction != 0 {
		c.Direction = r.Direction.String()
	}
	if r.LivedOn != nil {
		c.LivedOn = append(c.LivedOn, r.LivedOn.Origins...)
	}
	for p, n := range r.Protocols {
		c.Protocols[conntrack.ProtocolName(p)] = n
	}
	return c
}
