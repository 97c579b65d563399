package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/spf13/cobra"
)

const verifyLong = `Verify tells whether the nodes' Open vSwitch does what the policies say. Each node compares the flows that its switch holds with
those that it should hold: what is missing, changed or extra is listed, with the policies that it serves. Then packets are drawn, between the
node's pods and other pods, nodes and addresses, on ports that policies name and others, in both families, about as many that should pass as not;
the switch tells what it does with each (ofproto/trace; nothing is sent), and the policies what it should do.

With --independent another decoder reads the flows, ofnet with libOpenflow: the usual one belongs to the code that
encodes the flows, so a fault of it shows in neither. It reads groups and meters too. What it cannot read is named, and
is no difference.

Nothing is changed: netplugin's drift check repairs differences (--drift-check-interval). What changes while it is read is read again. The
same --seed draws the same packets, as long as pods and policies are the same.

It exits with 0 where all is as it should be, with 1 on any difference, and where not everything could be looked at, and
with 4 if it failed.`

const verifyExample = `  netctl verify
  netctl verify node1 node2 --samples 1000
  netctl verify --samples 0 -o wide
  netctl verify --independent --samples 0
  netctl verify node1 --seed 42 -o json | jq '.nodes[].flows.differences[].origins'`

// verifyTime is how long verify waits where no --timeout is given: the API server gives a question a minute.
const verifyTime = 50 * time.Second

func verifyCommand(o *options) *cobra.Command {
	what := inspect.VerifyWhat{}
	cmd := &cobra.Command{
		Use: "verify [NODE...]", Short: "Is what the switches do what the policies say", Long: verifyLong, Example: verifyExample,
		ValidArgsFunction: completeMoreNodes(o),
		Args: func(_ *cobra.Command, args []string) error {
			for _, name := range args {
				if strings.Contains(name, "/") || inspect.ParseName(name) != nil {
					return usageError{fmt.Errorf("%q is not the name of a node", name)}
				}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if what.Samples < 0 || what.Samples > inspect.MostSamples {
				return usageError{fmt.Errorf("--samples %d: 0 to %d", what.Samples, inspect.MostSamples)}
			}
			if !cmd.Flags().Changed("seed") {
				what.Seed = uint64(rand.Uint32())
			}
			if !cmd.Flags().Changed("timeout") {
				o.timeout = verifyTime
			}
			what.Nodes = args
			v, err := ask[inspect.Verified](cmd, o, inspect.Question{Kind: inspect.AskVerify, Verify: &what})
			if err != nil {
				return err
			}
			if err := show(cmd.OutOrStdout(), o, v, func(w io.Writer, wide bool) { printVerified(w, &v, wide) }); err != nil {
				return err
			}
			return verdictOf(&v)
		},
	}
	f := cmd.Flags()
	f.IntVar(&what.Samples, "samples", 100, "how many packets to trace on each node")
	f.Uint64Var(&what.Seed, "seed", 0, "which packets; any if it is not given")
	f.BoolVar(&what.Independent, "independent", false, "read the flows by another decoder, ofnet with libOpenflow")
	return cmd
}

var (
	errSwitchDiffers = errors.New("a switch does not do what the policies say: see above")
	errNotWhole      = errors.New("not everything could be looked at: see above")
)

func verdictOf(v *inspect.Verified) error {
	var err error
	if len(v.Problems) > 0 {
		err = errNotWhole
	}
	for i := range v.Nodes {
		n := &v.Nodes[i]
		if differences(n) > 0 {
			return errSwitchDiffers
		}
		if !n.Fine {
			err = errNotWhole
		}
	}
	return err
}

func differences(n *inspect.NodeResult) int {
	sum := n.Samples.Differing
	if n.Flows != nil {
		sum += n.Flows.Sum()
	}
	return sum
}

// printVerified prints the nodes with differences first.
func printVerified(w io.Writer, v *inspect.Verified, wide bool) {
	for i := range v.Nodes {
		if n := &v.Nodes[i]; differences(n) > 0 {
			printDiffering(w, n, wide)
		}
	}
	var rows [][]string
	for i := range v.Nodes {
		rows = append(rows, verifiedRow(&v.Nodes[i], wide))
	}
	heading := []string{"NODE", "FLOWS", "MISSING", "CHANGED", "EXTRA", "PACKETS", "PASS", "DROPPED", "DIFFER", "RESULT"}
	if wide {
		heading = append(heading, "REVISION", "SKIPPED", "TOOK", "MENDS EVERY")
	}
	table(w, heading, rows)
	for i := range v.Nodes {
		if f := v.Nodes[i].Flows; f != nil && f.Independent != nil {
			line(w, "  - node %s: libOpenflow read %s", v.Nodes[i].Node, tablesRead(f.Independent))
		}
		for _, p := range v.Nodes[i].Problems {
			line(w, "  - node %s: %s", v.Nodes[i].Node, p)
		}
	}
	for _, p := range v.Problems {
		line(w, "  - %s", p)
	}
	fmt.Fprintf(w, "\nrevision %d, seed %d\n", v.Revision, v.Seed)
}

// tablesRead returns the tables that were read, by number and name, with the numbers of groups and meters.
func tablesRead(r *inspect.IndependentReading) string {
	others := "no groups and no meters, since netplugin is of an older version"
	if r.Groups != nil && r.Meters != nil {
		others = fmt.Sprintf("%s, %s", plural(*r.Groups, "group", "groups"), plural(*r.Meters, "meter", "meters"))
	}
	var names []string
	for _, t := range r.Tables {
		names = append(names, strings.TrimSpace(fmt.Sprintf("%d %s", t.Table, t.Name)))
	}
	return fmt.Sprintf("%s, and %d tables: %s", others, len(names), strings.Join(names, ", "))
}

func verifiedRow(n *inspect.NodeResult, wide bool) []string {
	s := &n.Samples
	row := []string{n.Node, "-", "-", "-", "-", fmt.Sprint(s.Traced), fmt.Sprint(s.Allowed), fmt.Sprint(s.Denied), fmt.Sprint(s.Differing), "fine"}
	more := []string{"-", fmt.Sprint(s.Skipped), "-", "-"}
	if f := n.Flows; f != nil {
		row[1], row[2], row[3], row[4] = fmt.Sprint(f.Held), fmt.Sprint(f.Missing), fmt.Sprint(f.Changed), fmt.Sprint(f.Extra)
		more[0], more[2], more[3] = fmt.Sprint(f.Revision), f.Took.Round(time.Millisecond).String(), "never"
		if f.DriftCheckInterval > 0 {
			more[3] = f.DriftCheckInterval.String()
		}
	}
	switch {
	case differences(n) > 0:
		row[9] = "DIFFERS"
	case n.Flows == nil && s.Traced == 0:
		row[9] = "NOT VERIFIED"
	case !n.Fine:
		row[9] = "NOT ALL VERIFIED"
	}
	if wide {
		row = append(row, more...)
	}
	return row
}

// listed is how many differences of a node are shown but with -o wide, proven how many of the packets with the end of their way.
const (
	listed = 10
	proven = 3
)

func printDiffering(w io.Writer, n *inspect.NodeResult, wide bool) {
	if f := n.Flows; f != nil && f.Sum() > 0 {
		line(w, "!!! node %s: %s", n.Node, plural(f.Sum(), "flow is not as it should be", "flows are not as they should be"))
		shown := f.Differences
		if !wide {
			shown = shown[:min(len(shown), listed)]
		}
		for i := range shown {
			printDifference(w, &shown[i])
		}
		if more := f.Sum() - len(shown); more > 0 {
			fmt.Fprintf(w, "    and %d more\n", more)
		}
	}
	if n.Samples.Differing == 0 {
		fmt.Fprintln(w)
		return
	}
	line(w, "!!! node %s: %s judged otherwise than the policies say", n.Node, plural(n.Samples.Differing, "packet is", "packets are"))
	shown := n.Samples.Wrong
	if !wide {
		shown = shown[:min(len(shown), listed)]
	}
	for i := range shown {
		steps := shown[i].Trace.Steps
		if !wide {
			steps = steps[max(0, len(steps)-3):]
		}
		if !wide && i >= proven {
			steps = nil
		}
		printWrong(w, &shown[i], steps, wide)
	}
	if more := n.Samples.Differing - len(shown); more > 0 {
		fmt.Fprintf(w, "    and %d more\n", more)
	}
	fmt.Fprintln(w)
}

// line prints what nodes say: it is one line, whatever they say.
func line(w io.Writer, format string, args ...any) {
	fmt.Fprintln(w, oneLine.Replace(fmt.Sprintf(format, args...)))
}

func printDifference(w io.Writer, d *inspect.Difference) {
	if d.TableName == inspect.MeterTable || d.TableName == inspect.GroupTable {
		line(w, "    %-7s  %s: %s  (%s)", strings.ToUpper(d.Kind), d.Match, d.Actions, d.Note)
		if d.Found != "" {
			line(w, "             it has: %s", d.Found)
		}
		return
	}
	line(w, "    %-7s  table %d %s, priority %d: %s → %s  (%s)", strings.ToUpper(d.Kind), d.Table, d.TableName, d.Priority, cmp.Or(d.Match, "any"), d.Actions,
		cmp.Or(d.Note, d.Flow.Kind))
	if d.Kind == inspect.FlowChanged {
		line(w, "             it has: %s", d.Found)
		if d.FoundCookie != d.Cookie {
			line(w, "             and the cookie %s", d.FoundCookie)
		}
	}
	if d.Foreign != "" {
		line(w, "             and what Flowkeep never sends: %s", d.Foreign)
	}
}

func printWrong(w io.Writer, x *inspect.WrongSample, steps []inspect.TraceStep, wide bool) {
	p := &x.Packet
	does, should := map[bool]string{true: "PASSES", false: "IS DROPPED"}, map[bool]string{true: "passes", false: "is denied"}
	because := "no policy isolates either end here"
	switch {
	case len(x.By) > 0 && x.Allowed:
		because = "allowed by " + strings.Join(x.By, ", ")
	case len(x.Policies) > 0:
		because = "isolated by " + strings.Join(x.Policies, ", ")
	}
	line(w, "    %s → %s %s", ofAddress(x.From, p.From), ofAddress(x.To, p.To), portText(p.Protocol, p.Port))
	line(w, "             %s (%s), but by the policies it %s: %s", does[x.Passed], x.Trace.Out, should[x.Allowed], because)
	for i := range steps {
		s, match, actions := &steps[i], cmp.Or(steps[i].Match, "any"), steps[i].Actions
		if !wide {
			match, actions = cut(match, 90), cut(actions, 70)
		}
		if s.Missed {
			line(w, "             table %d %s: no flow matches", s.Table, s.TableName)
			continue
		}
		line(w, "             table %d %s, priority %d: %s → %s  (%s)", s.Table, s.TableName, s.Priority, match, actions, cmp.Or(s.Note, s.Kind))
	}
}

func ofAddress(name string, a netip.Addr) string {
	if name == a.String() {
		return name
	}
	return fmt.Sprintf("%s (%s)", name, a)
}
