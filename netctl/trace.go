package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/spf13/cobra"
)

const traceLong = `Trace follows a real packet from FROM to TO, and what comes back, through the nodes: where it was seen, when, with which addresses, what
policies and each switch say to exactly this packet, and where it ended: delivered and answered, denied, or lost between two places. It
sends nothing: make the traffic yourself, such as by kubectl exec, while it waits.

FROM and TO are as for explain, but for "world": a real packet has an address. Of pods, the address must be their own, and a pod of its
node's network is asked for by the node. Without a port, any packet between both is followed, also of connections that TO began.

The nodes of both ends, and of all endpoints of a Service, look at all of their interfaces. A packet is known again by what stays the same
on its way: IP's identification, TCP's numbers and timestamps, an echo's sequence, and its content; not by addresses, which Services and
masquerading change. Nothing marks it, and no flow is any other while it is traced. Nodes' clocks are not compared: times are since
a node saw the packet first. Of a packet's content, nothing is told.

The ClusterRole flowkeep-admin is needed, or, between two pods of one namespace, flowkeep-capture there.

It exits with 0 where each packet was delivered, and answered if it asks for an answer; with 1 where one was not, none came, or a switch
disagrees with the policies; with 4 if it failed.`

const traceExample = `  netctl trace shop/web shop/db:5432
  netctl trace shop/web svc/shop/db:sql --count 3
  netctl trace shop/web 192.0.2.7:443/tcp --timeout 1m
  netctl trace node1 shop/db/icmp -o json`

var (
	errNotDelivered = errors.New("not all of it was delivered and answered: see above")
	errNoPacket     = errors.New("no packet came")
)

type traceOptions struct {
	*options
	spec inspect.TraceSpec
}

func traceCommand(o *options) *cobra.Command {
	t := &traceOptions{options: o}
	cmd := &cobra.Command{
		Use: "trace FROM TO[:PORT][/PROTOCOL]", Short: "Follow a real packet across nodes", Long: traceLong, Example: traceExample, Args: exactly("FROM", "TO"),
		ValidArgsFunction: completeEnds(o),
		RunE:              func(cmd *cobra.Command, args []string) error { return t.run(cmd, args) },
	}
	f := cmd.Flags()
	f.IntVarP(&t.spec.Count, "count", "c", 1, "how many packets to follow")
	f.DurationVar(&t.spec.Duration, "timeout", 10*time.Second, "how long to wait for packets")
	for _, name := range []string{"count", "timeout"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	return cmd
}

// tracedAll is the whole trace, for programs.
type tracedAll struct {
	From     string                   `json:"from"`
	To       inspect.Target           `json:"to"`
	Nodes    []string                 `json:"nodes"`
	Packets  []inspect.FollowedPacket `json:"packets"`
	End      string                   `json:"end"`
	Problems []string                 `json:"problems"`
}

func (t *traceOptions) run(cmd *cobra.Command, args []string) error {
	if err := inspect.ParseName(args[0]); err != nil {
		return usageError{err}
	}
	to, err := inspect.ParseTarget(args[1])
	switch {
	case err != nil:
		return usageError{err}
	case t.spec.Count < 1 || t.spec.Count > inspect.MostFollowed:
		return usageError{fmt.Errorf("count %d: from 1 to %d", t.spec.Count, inspect.MostFollowed)}
	case t.spec.Duration <= 0 || t.spec.Duration > inspect.LongestTrace:
		return usageError{fmt.Errorf("timeout %v: at most %v", t.spec.Duration, inspect.LongestTrace)}
	case args[0] == inspect.World || to.Name == inspect.World:
		return usageError{fmt.Errorf("a trace needs an address instead of %s", inspect.World)}
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	all := tracedAll{From: args[0], To: to, Nodes: []string{}, Packets: []inspect.FollowedPacket{}, Problems: []string{}}
	q := inspect.Question{Kind: inspect.AskTrace, From: args[0], To: &to, Trace: &t.spec}
	err = t.followSoon(ctx, q, func(body json.RawMessage) error {
		var got inspect.Traced
		if err := json.Unmarshal(body, &got); err != nil {
			return err
		}
		if got.Nodes != nil {
			all.Nodes = got.Nodes
			fmt.Fprintf(cmd.ErrOrStderr(), "waiting %v for %s from %s to %s; %s\n", t.spec.Duration, plural(t.spec.Count, "packet", "packets"), args[0], args[1], lookers(got.Nodes))
		}
		all.Problems, all.End = append(all.Problems, got.Problems...), got.End
		if got.Packet == nil {
			return nil
		}
		all.Packets = append(all.Packets, *got.Packet)
		if t.output == "table" || t.output == "wide" {
			if len(all.Packets) > 1 {
				fmt.Fprintln(cmd.OutOrStdout())
			}
			printFollowed(cmd.OutOrStdout(), got.Packet, t.output == "wide")
		}
		return nil
	})
	if ctx.Err() != nil && all.End == "" { // ^C
		err, all.End = nil, "interrupted"
	}
	if err != nil {
		return err
	}
	if err := show(cmd.OutOrStdout(), t.options, all, func(w io.Writer, _ bool) { printTraceEnd(w, &all) }); err != nil {
		return err
	}
	return traceOutcome(&all)
}

func lookers(nodes []string) string {
	if len(nodes) == 1 {
		return nodes[0] + " looks"
	}
	return strings.Join(nodes, ", ") + " look"
}

func traceOutcome(all *tracedAll) error {
	if len(all.Packets) == 0 {
		return errNoPacket
	}
	failed := false
	for i := range all.Packets {
		p := &all.Packets[i]
		if p.Way != nil && len(p.Way.Disagreements) > 0 {
			return errDisagree
		}
		failed = failed || p.Outcome != inspect.Answered && p.Outcome != inspect.Delivered
	}
	if failed {
		return errNotDelivered
	}
	return nil
}

func printTraceEnd(w io.Writer, all *tracedAll) {
	if len(all.Packets) == 0 {
		fmt.Fprintln(w, oneLine.Replace(all.End))
	}
	for _, p := range all.Problems {
		fmt.Fprintf(w, "  - %s\n", oneLine.Replace(p))
	}
}

func printFollowed(w io.Writer, p *inspect.FollowedPacket, wide bool) {
	if p.Way != nil {
		for _, d := range p.Way.Disagreements {
			fmt.Fprintf(w, "!!! %s\n", oneLine.Replace(d))
		}
	}
	fmt.Fprintf(w, "%s\n%s\n\n", oneLine.Replace(p.Verdict), oneLine.Replace(p.Text))
	heading := []string{"NODE", "AFTER", "SEEN AT", "ON ITS WAY", "FROM", "TO"}
	if wide {
		heading = append(heading, "TIME", "PACKET")
	}
	rows := hopRows(p.Hops, wide)
	if len(p.Answer) > 0 {
		rows = append(rows, slices.Concat([]string{"answer"}, make([]string, len(heading)-1)))
		rows = append(rows, hopRows(p.Answer, wide)...)
	}
	var lines strings.Builder
	table(&lines, heading, rows)
	for line := range strings.Lines(lines.String()) {
		fmt.Fprintln(w, strings.TrimRight(line, " \n"))
	}
	if p.Service != nil {
		fmt.Fprintln(w)
		printServiceTrace(w, p.Service, false, false)
	}
	if p.Way != nil {
		printFollowedWay(w, p.Way)
	}
	for _, problem := range p.Problems {
		fmt.Fprintf(w, "  - %s\n", oneLine.Replace(problem))
	}
}

func hopRows(hops []inspect.Hop, wide bool) (rows [][]string) {
	for i := range hops {
		h := &hops[i]
		row := []string{h.Node, fmt.Sprintf("%d µs", h.After.Microseconds()), hopText(h), wayText(h), addressText(h.Src, h.SrcPort, h.Protocol), addressText(h.Dst, h.DstPort, h.Protocol)}
		if wide {
			row = append(row, h.Time.UTC().Format("15:04:05.000000"), h.Text)
		}
		rows = append(rows, row)
	}
	return rows
}

func hopText(h *inspect.Hop) string {
	if h.Pod != "" {
		return "link of " + h.Pod
	}
	return h.Interface
}

var (
	sentTo   = map[inspect.Place]string{inspect.PlacePod: "to the pod", inspect.PlaceGateway: "into the switch", inspect.PlaceWire: "into the switch", inspect.PlaceTunnel: "out, in a tunnel", inspect.PlaceOther: "out"}
	cameFrom = map[inspect.Place]string{inspect.PlacePod: "into the switch", inspect.PlaceGateway: "out of the switch", inspect.PlaceWire: "out of the switch", inspect.PlaceTunnel: "in, from a tunnel", inspect.PlaceOther: "in"}
)

func wayText(h *inspect.Hop) string {
	if h.Sent {
		return dash(sentTo[h.Place])
	}
	return dash(cameFrom[h.Place])
}

func addressText(a netip.Addr, port uint16, p policy.Protocol) string {
	if p == policy.TCP || p == policy.UDP || p == policy.SCTP {
		return netip.AddrPortFrom(a, port).String()
	}
	return a.String()
}

// printFollowedWay says what policies and switches say, in few lines: explain has the rest.
func printFollowedWay(w io.Writer, way *inspect.Way) {
	fmt.Fprintf(w, "\npolicies: %s: %s\n", packetText(way), way.Verdict())
	switch {
	case way.OfTheNode:
		fmt.Fprintln(w, "a node always reaches its own pods (docs/semantics.md)")
	case !way.Self:
		printSides(w, way)
	}
	for i := range way.Traces {
		t := &way.Traces[i]
		if t.Problem != "" {
			fmt.Fprintf(w, "%s: no proof: %s\n", t.Node, oneLine.Replace(t.Problem))
			continue
		}
		var tables []string
		for j := range t.Steps {
			tables = append(tables, t.Steps[j].TableName)
		}
		fmt.Fprintf(w, "Open vSwitch of %s: %s: %s\n", t.Node, strings.Join(slices.Compact(tables), " → "), oneLine.Replace(endOfTrace(way, t)))
	}
}
