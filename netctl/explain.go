package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/spf13/cobra"
)

const explainLong = `Explain tells whether FROM reaches TO, and why: which policies isolate either end, what each of their rules says of this packet, and
what would have to change. Then comes the proof: Open vSwitch of each node on the way is asked which flows exactly this packet meets
(ofproto/trace; nothing is sent). If a switch does not do what the policies say, that is said first.

FROM and TO are pods (NAMESPACE/NAME), IP addresses, nodes or "world"; TO may have a port, by number or by the pod's name for it, and a
protocol: TO[:PORT][/tcp|udp|sctp|icmp]. Without a port, what is allowed at all is told, and one port explained.

TO may be a Service: svc/NAMESPACE/NAME, its name in the DNS (NAME.NAMESPACE.svc), its ClusterIP, or a node with a node port. The node
translates such packets first, and policies judge what comes of it: each endpoint behind the Service is told of, at the pod's own port, with
one explanation for all that have the same verdict for the same reasons. Where Open vSwitch translates Services
(netplugin --services ovs), its flows show where it leads such a packet.

With --at it is explained as it was: at a revision (netctl status shows which are kept), so long ago, or at a time. What switches hold is of
now; there is no proof then.

It exits with 0 where the packet may pass, with 1 where it may not, or where a switch disagrees, and with 4 if it failed.`

func explainCommand(o *options) *cobra.Command {
	var short bool
	var at string
	cmd := &cobra.Command{
		Use: "explain FROM TO[:PORT][/PROTOCOL]", Short: "Why A reaches B, or not, and the proof", Long: explainLong, Args: exactly("FROM", "TO"),
		Example:           "  netctl explain shop/web shop/db:5432\n  netctl explain shop/web 192.0.2.7:443/tcp -o json\n  netctl explain world shop/web:http\n  netctl explain shop/web svc/shop/db:sql\n  netctl explain --at -10m shop/web shop/db:5432\n  netctl explain node1 shop/db/icmp",
		ValidArgsFunction: completeEnds(o),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := inspect.ParseName(args[0]); err != nil {
				return usageError{err}
			}
			to, err := inspect.ParseTarget(args[1])
			if err != nil {
				return usageError{err}
			}
			q := inspect.Question{Kind: inspect.AskExplain, From: args[0], To: &to}
			if cmd.Flags().Changed("at") {
				if q.At, err = inspect.ParseAt(at); err != nil {
					return usageError{err}
				}
			}
			x, err := ask[inspect.Explained](cmd, o, q)
			switch {
			case err != nil:
				return err
			case q.At != nil && x.At == nil:
				return errNoPast
			}
			if err := show(cmd.OutOrStdout(), o, x, func(w io.Writer, wide bool) { printExplained(w, &x, !short, wide) }); err != nil {
				return err
			}
			return outcome(&x)
		},
	}
	cmd.Flags().StringVar(&at, "at", "", "as it was: at a REVISION, so long ago (-5m), or at a time (RFC 3339), while netmaster keeps that")
	_ = cmd.RegisterFlagCompletionFunc("at", cobra.NoFileCompletions)
	cmd.Flags().BoolVar(&short, "no-proof", false, "leave out the flows of the switches, which are queried all the same")
	return cmd
}

var (
	errDenied   = errors.New("denied")
	errNoPast   = errors.New("this netmaster is older than netctl and explains only what is now: leave out --at")
	errDisagree = errors.New("a switch does not do what the policies say: see above")
)

func outcome(x *inspect.Explained) error {
	denied := false
	for i := range x.Ways {
		if len(x.Ways[i].Disagreements) > 0 {
			return errDisagree
		}
		denied = denied || !x.Ways[i].Allowed
	}
	if denied || !servicesAnswered(x.Service) {
		return errDenied
	}
	return nil
}

// serviceKinds are what kubectl calls Services.
var serviceKinds = []string{"svc", "service", "services"}

func completeEnds(o *options) cobra.CompletionFunc {
	pods := complete(o, 2, inspect.AskEndpoints, func(list []inspect.Endpoint) (names []string) {
		for i := range list {
			names = append(names, list[i].Namespace+"/"+list[i].Name)
		}
		return append(names, inspect.World)
	})
	return func(cmd *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
		if kind, _, ok := strings.Cut(text, "/"); ok && len(args) == 1 && slices.Contains(serviceKinds, kind) {
			names, how := completeServices(o, kind+"/")(cmd, args, text)
			return names, how | cobra.ShellCompDirectiveNoSpace
		}
		names, how := pods(cmd, args, text)
		if len(args) == 1 {
			names = append(names, "svc/")
		}
		return names, how | cobra.ShellCompDirectiveNoSpace // a port may follow
	}
}

func printExplained(w io.Writer, x *inspect.Explained, proof, wide bool) {
	for i := range x.Ways {
		for _, d := range x.Ways[i].Disagreements {
			fmt.Fprintf(w, "!!! %s\n", oneLine.Replace(d))
		}
	}
	if x.At != nil {
		fmt.Fprintln(w, pastText(x.At))
	}
	if x.Service != nil {
		printService(w, x.Service, x.Ways, proof, wide)
	}
	for i := range x.Ways {
		way := &x.Ways[i]
		if i > 0 || x.Service != nil {
			fmt.Fprintln(w)
		}
		if x.Service != nil {
			fmt.Fprintf(w, "(%d) ", i+1)
		}
		if i > 0 && sameReasons(way, &x.Ways[0]) {
			fmt.Fprintf(w, "%s: %s, for the same reasons\n", packetText(way), way.Verdict())
			printTraces(w, way, proof && len(way.Disagreements) > 0, wide)
			continue
		}
		printWay(w, way)
		printTraces(w, way, proof, wide)
	}
	for _, p := range x.Problems {
		fmt.Fprintf(w, "  - %s\n", oneLine.Replace(p))
	}
}

// pastText says of when an explanation is.
func pastText(p *inspect.Past) string {
	until := "until now"
	if p.Until != nil {
		until = "until " + p.Until.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("AS IT WAS at revision %d, from %s %s", p.Revision, p.Since.UTC().Format(time.RFC3339), until)
}

// sameReasons compares what both families' policies say; blocks are of one family, and of addresses.
func sameReasons(a, b *inspect.Way) bool {
	return a.Allowed == b.Allowed && a.OfTheNode == b.OfTheNode && a.Protocol == b.Protocol && a.Port == b.Port &&
		a.Egress.Alike(&b.Egress) && a.Ingress.Alike(&b.Ingress) && a.DryRun.Alike(b.DryRun) && a.EnforcedAlike(b)
}

func packetText(way *inspect.Way) string {
	return fmt.Sprintf("%s → %s %s", endText(&way.From), endText(&way.To), portText(way.Protocol, way.Port))
}

func portText(p policy.Protocol, port uint16) string {
	if p == 1 || p == 58 {
		return "ICMP"
	}
	return fmt.Sprintf("%s/%d", p, port)
}

func endText(e *explain.End) string {
	if e.Kind == explain.Pod {
		return fmt.Sprintf("%s (%s on %s)", e.Pods[0], e.Address, dash(e.Node))
	}
	if len(e.Pods) > 0 {
		return fmt.Sprintf("%s (%s, %s)", e.Address, e.Kind, strings.Join(e.Pods, ", "))
	}
	return e.Address.String()
}

func printWay(w io.Writer, way *inspect.Way) {
	fmt.Fprintf(w, "%s: %s\n", packetText(way), way.Verdict())
	if way.PortChosen {
		fmt.Fprintf(w, "no port was given; allowed between them: %s\n", way.Connections)
	}
	switch {
	case way.Self:
		fmt.Fprintln(w, "a pod always reaches itself")
		return
	case way.OfTheNode:
		fmt.Fprintln(w, "a node always reaches its own pods (docs/semantics.md)")
		return
	}
	fmt.Fprintln(w)
	printSides(w, way)
	if run := way.DryRun; run != nil {
		printDryRun(w, "egress", &way.From, run.Egress)
		printDryRun(w, "ingress", &way.To, run.Ingress)
	}
}

// printDryRun prints the verdict as if the dry runs were enforced.
func printDryRun(w io.Writer, name string, e *explain.End, side *explain.Side) {
	switch {
	case side == nil:
	case side.Allowed:
		fmt.Fprintf(w, "\nin a dry run, %s would be allowed by %s; %s would be isolated by %s\n", name, policy.OriginsText(directions[name], side.Allowing()), e.Pods[0], strings.Join(side.Isolating(), ", "))
	default:
		fmt.Fprintf(w, "\nin a dry run, %s WOULD BE DENIED: %s would be isolated by %s, and no rule would allow it\n", name, e.Pods[0], strings.Join(side.Isolating(), ", "))
		printDenial(w, name, side)
	}
}

func printSides(w io.Writer, way *inspect.Way) {
	printSide(w, "egress", &way.From, &way.Egress, way.IsEnforced(&way.From))
	printSide(w, "ingress", &way.To, &way.Ingress, way.IsEnforced(&way.To))
}

func printSide(w io.Writer, name string, e *explain.End, side *explain.Side, enforced bool) {
	who := e.Address.String()
	if len(e.Pods) > 0 {
		who = e.Pods[0]
	}
	switch side.Reason {
	case explain.ReasonNotPod:
		fmt.Fprintf(w, "%-8s open: policies select pods, and %s is none\n", name, e.Address)
	case explain.ReasonOpen:
		fmt.Fprintf(w, "%-8s open: no policy isolates %s\n", name, who)
	case explain.ReasonAllowed:
		fmt.Fprintf(w, "%-8s allowed by %s; %s is isolated by %s\n", name, policy.OriginsText(directions[name], side.Allowing()), who, strings.Join(side.Isolating(), ", "))
	default:
		verdict := "DENIED"
		if !enforced {
			verdict = "NOT ENFORCED"
		}
		fmt.Fprintf(w, "%-8s %s: %s is isolated by %s, and no rule allows it\n", name, verdict, who,
			strings.Join(side.Isolating(), ", "))
		printDenial(w, name, side)
	}
}

// printDenial prints the reports of the policies, and the remedies.
func printDenial(w io.Writer, name string, side *explain.Side) {
	for i := range side.Policies {
		printReport(w, name, &side.Policies[i])
	}
	for i, r := range side.Remedies {
		fmt.Fprintf(w, "  %s %s\n", [2]string{"it would pass with  ", "or with             "}[min(i, 1)], r)
	}
}

var directions = map[string]policy.Direction{"egress": policy.Egress, "ingress": policy.Ingress}

func printReport(w io.Writer, direction string, p *explain.PolicyReport) {
	if len(p.Rules) == 0 {
		fmt.Fprintf(w, "  %s has no %s rules\n", p.Policy, direction)
	}
	for i := range p.Rules {
		r := &p.Rules[i]
		fmt.Fprintf(w, "  %s %s[%d]\n", p.Policy, direction, r.Rule)
		for _, peer := range r.Peers {
			mark, why := "yes", ""
			if !peer.Matches {
				var failures []string
				for _, f := range peer.Failures {
					failures = append(failures, f.String())
				}
				mark, why = "no ", ": "+strings.Join(failures, "; ")
			}
			fmt.Fprintf(w, "    %s  %s%s\n", mark, oneLine.Replace(peer.String()), oneLine.Replace(why))
		}
		for _, port := range r.Ports {
			mark, why := "yes", ""
			if port.Failure != nil {
				mark, why = "no ", ": "+port.Failure.String()
			}
			fmt.Fprintf(w, "    %s  port %s%s\n", mark, port, oneLine.Replace(why))
		}
		if !r.AnyPeer && len(r.Peers) == 0 || !r.AnyPort && len(r.Ports) == 0 {
			fmt.Fprintf(w, "    no   all of its entries were refused\n")
		}
	}
}

func endOfTrace(way *inspect.Way, t *inspect.Trace) string {
	switch arrives := way.Egress.Allowed || t.Node == way.From.Node; {
	case !t.Passed:
		return t.Out
	case !arrives:
		return "it would pass: " + t.Out
	}
	return "it passes: " + t.Out
}

func printTraces(w io.Writer, way *inspect.Way, proof, wide bool) {
	for i := range way.Traces {
		t := &way.Traces[i]
		if t.Problem != "" {
			fmt.Fprintf(w, "\n%s: no proof: %s\n", t.Node, oneLine.Replace(t.Problem))
			continue
		}
		fmt.Fprintf(w, "\nOpen vSwitch of %s: %s\n", t.Node, oneLine.Replace(endOfTrace(way, t)))
		if !proof {
			continue
		}
		printSteps(w, t.Steps, wide)
	}
}

// printSteps prints the flows that a packet meets.
func printSteps(w io.Writer, steps []inspect.TraceStep, wide bool) {
	heading := []string{"", "TABLE", "FLOW", "FOR"}
	if wide {
		heading = append(heading, "ACTIONS")
	}
	var rows [][]string
	for i := range steps {
		s := &steps[i]
		flow := fmt.Sprintf("%s priority=%d", s.Match, s.Priority)
		if s.Missed {
			flow = "none matches"
		}
		row := []string{"", s.TableName, strings.TrimSpace(flow), dash(s.Note)}
		if wide {
			row = append(row, s.Actions)
		}
		rows = append(rows, row)
	}
	table(w, heading, rows)
}
