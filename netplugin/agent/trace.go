package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/trace"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// queryTrace asks the switch itself, beside the owner: the owner only writes the packets and names the flows.
func (a *agent) queryTrace(ctx context.Context, packets []policy.Packet) ([]byte, error) {
	if len(packets) > inspect.MostTraces {
		return nil, fmt.Errorf("%d packets to trace: no more than %d at once", len(packets), inspect.MostTraces)
	}
	out := inspect.NodeTraces{Node: a.cfg.Node, Traces: []inspect.Trace{}}
	for _, p := range packets {
		t := inspect.Trace{Node: a.cfg.Node, Packet: p, Steps: []inspect.TraceStep{}}
		if err := a.trace(ctx, &t); err != nil {
			t.Problem = err.Error()
		}
		if t.Problem != "" && ctx.Err() != nil && len(out.Traces) > 0 {
			break // its time is over; the others count
		}
		out.Traces = append(out.Traces, t)
	}
	return json.Marshal(out)
}

// trace takes two: what is before conntrack of one, what is behind it of the other (pipeline.Probe).
func (a *agent) trace(ctx context.Context, t *inspect.Trace) error {
	var probe pipeline.Probe
	var err error
	if doErr := a.do(ctx, func() { probe, err = a.compiler.Probe(t.Packet) }); doErr != nil {
		return doErr
	}
	if err != nil {
		t.OutOfScope = true
		return err
	}
	arriving, err := a.traceText(ctx, probe.Arriving)
	if err != nil {
		return err
	}
	way := arriving.Passes[0].Steps
	ended := arriving
	if len(arriving.Passes) > 1 {
		if ended, err = a.traceText(ctx, probe.Judged); err != nil {
			return err
		}
		way = append(way, judgedSteps(ended)...)
	}
	t.Passed = !ended.Dropped()
	return a.do(ctx, func() {
		for i := range way {
			if s := &way[i]; !s.Missed || !pipeline.TellsOfDryRuns(s.Table) { // which leads nowhere
				t.Steps = append(t.Steps, a.describeStep(s))
			}
		}
		if len(way) > 0 {
			t.Out = a.whereTo(&way[len(way)-1], t.Passed)
		}
	})
}

func (a *agent) traceText(ctx context.Context, packet string) (*trace.Trace, error) {
	text, err := a.askSwitch(ctx, "ofproto/trace", a.cfg.Bridge, packet)
	if err != nil {
		return nil, err
	}
	return trace.Parse(text)
}

// judgedSteps are those behind conntrack, without the door by which the trace came in. What is committed is judged once more, for
// which a trace has no original tuple: of that pass, only what comes after the judgement counts.
func judgedSteps(t *trace.Trace) []trace.Step {
	steps := t.Passes[0].Steps[min(1, len(t.Passes[0].Steps)):]
	for _, pass := range t.Passes[1:] {
		i := slices.IndexFunc(pass.Steps, func(s trace.Step) bool { return s.Table > pipeline.TableCommit && !pipeline.Tells(s.Table) })
		if i < 0 {
			i = max(len(pass.Steps)-1, 0)
		}
		steps = append(slices.Clone(steps), pass.Steps[i:]...)
	}
	return steps
}

func (a *agent) describeStep(s *trace.Step) inspect.TraceStep {
	step := inspect.TraceStep{Table: s.Table, TableName: pipeline.TableName(s.Table), Missed: s.Missed, Priority: s.Priority, Match: s.Match,
		Actions: strings.Join(s.Actions, ","), Cookie: fmt.Sprintf("%#x", s.Cookie), Origins: []policy.Origin{}}
	if s.Missed {
		return step
	}
	n := a.compiler.Describe(&ofctl.Flow{Table: s.Table, Priority: s.Priority, Cookie: s.Cookie})
	step.Kind, step.Note, step.Origins = n.Kind.String(), cmp.Or(n.Text, staticNote(s)), append(step.Origins, n.Origins...)
	return step
}

// staticNote says what meeting a flow means that serves no policy.
func staticNote(s *trace.Step) string {
	if s.Table == pipeline.TableState && s.Priority > 0 {
		return "a connection of the node itself is not judged"
	}
	return map[uint8]string{
		pipeline.TableInput: "it comes from the node, or from elsewhere", pipeline.TableService: "not to a Service", pipeline.TableConntrack: "its connection is looked up",
		pipeline.TableState: "valid", pipeline.TableEgress: "no policy here isolates the source", pipeline.TableIngress: "no policy here isolates the destination",
		pipeline.TableEgressPeer: "no rule here names the destination", pipeline.TableIngressPeer: "no rule here names the source",
		pipeline.TableEgressBlock: "it is in no ipBlock of a rule here", pipeline.TableIngressBlock: "it is in no ipBlock of a rule here",
		pipeline.TableEgressAudit: "no dry run isolates the source", pipeline.TableIngressAudit: "no dry run isolates the destination",
		pipeline.TableEgressAuditPeer: "no rule here names the destination", pipeline.TableIngressAuditPeer: "no rule here names the source",
		pipeline.TableEgressAuditBlock: "it is in no ipBlock of a rule here", pipeline.TableIngressAuditBlock: "it is in no ipBlock of a rule here",
		pipeline.TableCommit: "allowed: the connection is remembered",
	}[s.Table]
}

// whereTo reads the last step.
func (a *agent) whereTo(s *trace.Step, passed bool) string {
	if !passed {
		return "dropped in the table " + pipeline.TableName(s.Table)
	}
	for _, action := range s.Actions {
		number, ok := strings.CutPrefix(action, "output:")
		if !ok {
			continue
		}
		port, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			return action
		}
		return a.portName(uint32(port))
	}
	return "the node" // in_port: by the gateway, and back
}

func (a *agent) portName(port uint32) string {
	switch port {
	case a.node.gateway.Port:
		return "the node"
	case a.node.wire.Port:
		return "out of the node"
	case a.node.tunnel:
		return "another node, by tunnel"
	}
	for id, p := range a.pods {
		if p.endpoint.Port == port {
			return "pod " + id
		}
	}
	return fmt.Sprintf("port %d", port)
}
