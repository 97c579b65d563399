package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/kube"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/spf13/cobra"
)

const dryRunLong = `Dry-run shows what policies in a dry run would have done. A NetworkPolicy is in a dry run while it has the annotation
flowkeep.io/enforcement: dry-run. It isolates no pod and denies nothing, and what it would have denied is counted, shown
here and logged by netplugin.

Without a name it lists the policies in a dry run, with sums over all nodes. With a name it shows what each rule would have
allowed, what would have been denied in each direction, and the pairs of pods that would have been denied. Each pair has the
rule that came nearest to allowing it, the part of it that did not match, and (-o wide) the smallest change that would allow
it. With -f it prints a line for each new connection of this kind.

All policies in a dry run are evaluated together, as if all were enforced. So a default-deny and the policies that allow
can be tried together. For a pod that a policy in force isolates, another policy denies nothing more: policies only add
permissions.

Every packet is counted. Packets that would have been denied, also those of connections from before the dry run, are
sampled as with netctl drops: a pair may show fewer packets and connections than there were. Sums survive restarts and
edits. The exit code is 1 if a node did not respond, and 4 after an error.`

const dryRunExample = `  kubectl annotate networkpolicy -n shop db flowkeep.io/enforcement=dry-run
  netctl dry-run
  netctl dry-run shop/db -o wide
  netctl dry-run -f -n shop
  netctl dry-run shop/db -o json | jq -r '.pairs[] | [.from.pod, .to.pod, .port, .rule, .remedy] | @tsv'
  kubectl annotate networkpolicy -n shop db flowkeep.io/enforcement-`

type dryRunFlags struct {
	id        string // empty: all
	namespace string
	follow    bool
	pairs     inspect.DropsQuestion
}

func dryRunCommand(o *options) *cobra.Command {
	var f dryRunFlags
	cmd := &cobra.Command{
		Use: "dry-run [NAMESPACE/NAME]", Short: "What policies in a dry run would have denied", Long: dryRunLong, Example: dryRunExample, Args: atMost("NAMESPACE/NAME"),
		ValidArgsFunction: completeDryRuns(o),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(args); err != nil {
				return usageError{err}
			}
			if !f.follow {
				return f.once(cmd, o)
			}
			p := follower{w: cmd.OutOrStdout(), errs: cmd.ErrOrStderr(), output: o.output, problems: map[string]string{}, untold: map[string]uint64{}, dryRun: true}
			return p.follow(cmd.Context(), &f.pairs, func() (inspect.Drops, error) { return f.askForPairs(cmd, o) })
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&f.follow, "follow", "f", false, "go on, and show what would be denied as it happens; with -o json, a line each")
	flags.StringVarP(&f.namespace, "namespace", "n", "", "only policies of this namespace, or that of NAME")
	flags.DurationVar(&f.pairs.Within, "since", 0,
		"leave out pairs that were last seen longer ago; 0s: leave out nothing, and with -f show all earlier pairs")
	_ = cmd.RegisterFlagCompletionFunc("namespace", completeNamespaces(o))
	return cmd
}

func completeDryRuns(o *options) cobra.CompletionFunc {
	return complete(o, 1, inspect.AskDryRuns, func(d inspect.DryRuns) (names []string) {
		for i := range d.Policies {
			names = append(names, d.Policies[i].Policy)
		}
		return names
	})
}

func (f *dryRunFlags) check(args []string) error {
	if f.pairs.Within < 0 {
		return fmt.Errorf("--since %v: say how long ago, such as 10m", f.pairs.Within)
	}
	if len(args) == 0 {
		return nil
	}
	f.id = args[0]
	if !strings.Contains(f.id, "/") && f.namespace != "" {
		f.id = f.namespace + "/" + f.id
	}
	namespace, name, ok := strings.Cut(f.id, "/")
	switch {
	case !ok || namespace == "" || name == "" || strings.Contains(name, "/"):
		return fmt.Errorf("%q: say which namespace too, as in default/%s", args[0], strings.Trim(args[0], "/"))
	case f.namespace != "" && f.namespace != namespace:
		return fmt.Errorf("%s is not of the namespace %s: leave -n out", f.id, f.namespace)
	}
	return nil
}

func (f *dryRunFlags) ask(cmd *cobra.Command, o *options, want *inspect.DryRunQuestion) (inspect.DryRuns, error) {
	return ask[inspect.DryRuns](cmd, o, inspect.Question{Kind: inspect.AskDryRuns, ID: f.id, Namespace: f.namespace, DryRun: want})
}

func (f *dryRunFlags) askForPairs(cmd *cobra.Command, o *options) (inspect.Drops, error) {
	d, err := f.ask(cmd, o, &inspect.DryRunQuestion{Pairs: &f.pairs})
	out := inspect.Drops{Revision: d.Revision, Drops: d.Pairs}
	for i := range d.Nodes {
		out.Nodes = append(out.Nodes, d.Nodes[i].DropsOfNode)
	}
	return out, err
}

func (f *dryRunFlags) once(cmd *cobra.Command, o *options) error {
	want := &inspect.DryRunQuestion{Counts: true}
	if f.id != "" {
		want.Pairs = &f.pairs
	}
	d, err := f.ask(cmd, o, want)
	if err != nil {
		return err
	}
	if f.id != "" && len(d.Policies) != 1 {
		return errors.New("netmaster answers with another number of policies than one")
	}
	err = show(cmd.OutOrStdout(), o, d, func(w io.Writer, wide bool) {
		printDryRunNodes(w, d.Nodes)
		if f.id == "" {
			printDryRuns(w, d.Policies, wide)
		} else {
			printDryRunPolicy(w, &d, wide)
		}
	})
	if err == nil && slices.ContainsFunc(d.Nodes, func(n inspect.DryRunNode) bool { return n.Problem != "" }) {
		err = errDegraded
	}
	return err
}

func printDryRunNodes(w io.Writer, nodes []inspect.DryRunNode) {
	for i := range nodes {
		if n := &nodes[i]; n.Problem != "" {
			fmt.Fprintln(w, oneLine.Replace(n.Problem))
		}
	}
}

func printDryRuns(w io.Writer, list []inspect.DryRun, wide bool) {
	if len(list) == 0 {
		fmt.Fprintf(w, "no policy is in a dry run; kubectl annotate networkpolicy -n NAMESPACE NAME %s=%s begins one\n", kube.Enforcement, policy.ModeDryRun)
		return
	}
	heading := []string{"POLICY", "PODS", "ISOLATES", "ALLOWED", "DENIED", "PACKETS DENIED", "LAST DENIED"}
	if wide {
		heading = append(heading, "NODES", "SINCE")
	}
	var rows [][]string
	for i := range list {
		p := &list[i]
		allowed, denied := sumsOf(p)
		row := []string{p.Policy, fmt.Sprint(p.Pods), strings.Join(p.Directions, ","), fmt.Sprint(allowed.Count.Connections), fmt.Sprint(denied.Count.Connections), fmt.Sprint(denied.Count.Packets), lastText(denied.Last)}
		if wide {
			row = append(row, fmt.Sprint(p.Nodes), sinceText(p.Since))
		}
		rows = append(rows, row)
	}
	table(w, heading, rows)
	fmt.Fprintln(w, "\nnothing of this was denied. ALLOWED and DENIED are connections as they would be if these policies were enforced; netctl dry-run NAMESPACE/NAME shows the pairs")
}

// sumsOf returns the sums over all rules, and over the isolation of both directions.
func sumsOf(p *inspect.DryRun) (allowed, denied inspect.Counter) {
	for i := range p.Counters {
		c, to := &p.Counters[i], &allowed
		if c.Rule == inspect.Isolation {
			to = &denied
		}
		to.Count.Packets += c.Count.Packets
		to.Count.Connections += c.Count.Connections
		if c.Last != nil && (to.Last == nil || to.Last.Before(*c.Last)) {
			to.Last = c.Last
		}
	}
	return allowed, denied
}

func sinceText(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

func printDryRunPolicy(w io.Writer, d *inspect.DryRuns, wide bool) {
	p := &d.Policies[0]
	fmt.Fprintf(w, "%s is in a dry run: it denies nothing. It applies to %s on %s\n", p.Policy, plural(p.Pods, "pod", "pods"), plural(p.Nodes, "node", "nodes"))
	allowed, denied := sumsOf(p)
	if allowed.Last == nil && denied.Last == nil {
		fmt.Fprintf(w, "nothing was seen yet%s\n", notYet(p))
	}
	fmt.Fprintln(w)
	printDryRunCounters(w, p, wide)
	if len(d.Pairs) > 0 {
		fmt.Fprintf(w, "\nwould have been denied:\n")
		printDropRows(w, d.Pairs, wide)
	}
	for i := range d.Nodes {
		if n := &d.Nodes[i]; n.Left > 0 {
			fmt.Fprintf(w, "node %s: %s left out\n", n.Node, plural(n.Left, "older line", "older lines"))
		}
	}
	namespace, name, _ := strings.Cut(p.Policy, "/")
	get := fmt.Sprintf("networkpolicy -n %s %s", namespace, name)
	fmt.Fprintf(w, "\nto enforce it:                      kubectl annotate %s %s-\n", get, kube.Enforcement)
	fmt.Fprintf(w, "live connections that would be cut: kubectl get %s -o yaml | kubectl annotate --local -f - -o yaml %s- | netctl diff -f -\n", get, kube.Enforcement)
}

// notYet returns why nothing was counted, or since when.
func notYet(p *inspect.DryRun) string {
	switch {
	case p.Nodes == 0:
		return ": it applies to no pod"
	case p.Since.IsZero():
		return ": not all nodes have begun to count, which takes them some seconds"
	}
	return ", since " + p.Since.UTC().Format(time.RFC3339) + "; pods that policies in force isolate are theirs to judge, and not counted here"
}

// printDryRunCounters shows of each direction the rules first, and then what none of them let through.
func printDryRunCounters(w io.Writer, p *inspect.DryRun, wide bool) {
	heading := []string{"WOULD HAVE BEEN", "CONNS", "PACKETS", "BYTES", "LAST"}
	if wide {
		heading = append(heading, "PACKETS/S", "CONNS/S")
	}
	var rows [][]string
	for _, direction := range p.Directions {
		var last [][]string
		for i := range p.Counters {
			c := &p.Counters[i]
			row := []string{wouldText(c), fmt.Sprint(c.Count.Connections), fmt.Sprint(c.Count.Packets), fmt.Sprint(c.Count.Bytes), lastText(c.Last)}
			if wide {
				row = append(row, perSecond(c.Rate.Packets), perSecond(c.Rate.Connections))
			}
			switch {
			case c.Direction != direction:
			case c.Rule == inspect.Isolation:
				last = append(last, row)
			default:
				rows = append(rows, row)
			}
		}
		rows = append(rows, last...)
	}
	table(w, heading, rows)
}

func wouldText(c *inspect.Counter) string {
	if c.Rule == inspect.Isolation {
		return "denied at " + c.Direction
	}
	return "allowed by " + placeText(c.Direction, c.Rule)
}
