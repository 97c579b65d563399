// Package trace returns the way of a packet through the flow tables of this node, by Open vSwitch's ofproto/trace.
package trace

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/trace"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Owner is the goroutine that holds the compiled flows and the node's pods. Do runs PortName and PodWith on it, and
// what reads the compiler.
type Owner interface {
	// Do runs f on the owner goroutine and waits for it.
	Do(ctx context.Context, f func()) error
	// PortName returns the name of a port of the bridge for a person to read.
	PortName(port uint32) string
	// PodWith returns the pod of this node with an address; empty: none of this node has it.
	PodWith(address netip.Addr) string
	// Trace has ovs-vswitchd trace a packet, off the owner goroutine, and returns its text.
	Trace(ctx context.Context, packet string, options ...string) (string, error)
}

// Tracer traces packets through the switch of a node.
type Tracer struct {
	Node         string
	Translates   bool           // the switch translates Services
	ServiceCIDRs []netip.Prefix // CIDRs of ClusterIPs
	Compiler     *pipeline.Compiler
	Owner        Owner
}

// Packets traces packets and returns an inspect.NodeTraces as JSON. Only the compilation of the packets and the
// description of the flows need the owner goroutine.
func (r *Tracer) Packets(ctx context.Context, packets []policy.Packet) ([]byte, error) {
	if len(packets) > inspect.MostTraces {
		return nil, fmt.Errorf("%d packets to trace: no more than %d at once", len(packets), inspect.MostTraces)
	}
	out := inspect.NodeTraces{Node: r.Node, Traces: []inspect.Trace{}}
	for _, p := range packets {
		t := inspect.Trace{Node: r.Node, Packet: p, Steps: []inspect.TraceStep{}}
		if err := r.trace(ctx, &t); err != nil {
			t.Problem = err.Error()
		}
		if t.Problem != "" && ctx.Err() != nil && len(out.Traces) > 0 {
			break // its time is over; the others count
		}
		out.Traces = append(out.Traces, t)
	}
	return json.Marshal(out)
}

// trace makes two traces, one up to conntrack and one from there on (pipeline.Probe).
func (r *Tracer) trace(ctx context.Context, t *inspect.Trace) error {
	var probe pipeline.Probe
	var err error
	if doErr := r.Owner.Do(ctx, func() { probe, err = r.Compiler.Probe(t.Packet) }); doErr != nil {
		return doErr
	}
	if err != nil {
		t.OutOfScope = true
		return err
	}
	arriving, err := r.traceText(ctx, probe.Arriving, endTrace...)
	if err != nil {
		return err
	}
	way := arriving.Passes[0].Steps
	ended := arriving
	if len(arriving.Passes) > 1 {
		if ended, err = r.traceText(ctx, probe.Judged); err != nil {
			return err
		}
		way = append(way, judgedSteps(ended)...)
	}
	t.Passed = !ended.Dropped()
	return r.Owner.Do(ctx, func() {
		for i := range way {
			if s := &way[i]; !s.Missed || !pipeline.TellsOfDryRuns(s.Table) { // which leads nowhere
				t.Steps = append(t.Steps, r.describeStep(s))
			}
		}
		if len(way) > 0 {
			t.Out = r.whereTo(&way[len(way)-1], t.Passed)
		}
	})
}

// endTrace ends a trace behind its first visit to conntrack, where an invalid packet meets no flow. A trace never finds
// a connection committed: without it, one to a Service would be committed again and again, and ovs-vswitchd would
// neither do anything else nor stop taking memory.
var endTrace = []string{"--ct-next", "trk,inv"}

// endServiceTrace ends a trace behind its second visit: a new connection in the zone that translates, and what comes
// before policies.
var endServiceTrace = append([]string{"--ct-next", "trk,new"}, endTrace...)

func (r *Tracer) traceText(ctx context.Context, packet string, options ...string) (*trace.Trace, error) {
	text, err := r.Owner.Trace(ctx, packet, options...)
	if err != nil {
		return nil, err
	}
	return trace.Parse(text)
}

// judgedSteps returns the steps behind conntrack, without the table where the trace began. A packet that is committed
// is evaluated again, for which a trace has no original tuple: of that pass only the steps after the evaluation count.
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

func (r *Tracer) describeStep(s *trace.Step) inspect.TraceStep {
	step := inspect.TraceStep{
		Table:     s.Table,
		TableName: pipeline.TableName(s.Table),
		Missed:    s.Missed,
		Priority:  s.Priority,
		Match:     s.Match,
		Actions:   strings.Join(s.Actions, ","),
		Cookie:    fmt.Sprintf("%#x", s.Cookie),
		Origins:   []policy.Origin{},
	}
	if s.Missed {
		return step
	}
	n := r.Compiler.Describe(&ofctl.Flow{Table: s.Table, Priority: s.Priority, Cookie: s.Cookie})
	step.Kind, step.Note, step.Origins = n.Kind.String(), cmp.Or(n.Text, staticNote(s)), append(step.Origins, n.Origins...)
	return step
}

// staticNote returns the meaning of a flow that serves no policy.
func staticNote(s *trace.Step) string {
	if s.Table == pipeline.TableState && s.Priority > 0 {
		return "a connection of the node itself is not judged"
	}
	if s.Table == pipeline.TableCommit && s.Priority == pipeline.RefusedPriority {
		return "allowed, but conntrack has no room for new connections"
	}
	return map[uint8]string{
		pipeline.TableInput: "it comes from the node, or from elsewhere", pipeline.TableService: "not to a Service", pipeline.TableConntrack: "its connection is looked up",
		pipeline.TableState: "valid", pipeline.TableEgress: "no policy here isolates the source", pipeline.TableIngress: "no policy here isolates the destination",
		pipeline.TableEgressPeer: "no rule here names the destination", pipeline.TableIngressPeer: "no rule here names the source",
		pipeline.TableEgressBlock: "it is in no ipBlock of a rule here", pipeline.TableIngressBlock: "it is in no ipBlock of a rule here",
		pipeline.TableEgressDryRun: "no dry run isolates the source", pipeline.TableIngressDryRun: "no dry run isolates the destination",
		pipeline.TableEgressDryRunPeer: "no rule here names the destination", pipeline.TableIngressDryRunPeer: "no rule here names the source",
		pipeline.TableEgressDryRunBlock: "it is in no ipBlock of a rule here", pipeline.TableIngressDryRunBlock: "it is in no ipBlock of a rule here",
		pipeline.TableCommit: "allowed: the connection is remembered",
	}[s.Table]
}

// whereTo returns where the last step sends the packet.
func (r *Tracer) whereTo(s *trace.Step, passed bool) string {
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
		return r.Owner.PortName(uint32(port))
	}
	return "the node" // in_port: by the gateway, and back
}
