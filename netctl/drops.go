package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

const dropsLong = `Drops shows what the nodes have denied of late: who wanted to reach whom, the policies that isolate, the rule that was the nearest to
allowing it, what of it did not hold, and the least that would let it pass. One line sums up all tries of one client at one port;
with -f, a line comes for each, and again when the client opens another connection, not when it only sends the same one again.

Open vSwitch hands the beginning of denied packets to netplugin, at most --drop-log-rate a second (100 by default), shared among the pods,
so that one that floods hides no other and costs no more than before. What was denied above the rate is counted and said. "forged" is
what a pod sends from an address that is not its own.

What the policies say is what they say now; where they allow by now what was denied before, the line says so.
It exits with 1 if a node does not say, and with 4 if it failed. With -f it goes on until it is interrupted, through restarts of netmaster and of nodes.`

const dropsExample = `  netctl drops
  netctl drops -n shop --since 1h -o wide
  netctl drops -f --pod shop/web
  netctl drops -f --since 0s -o json | jq -r 'select(.reason == "ingress") | [.from.pod, .to.pod, .port] | @tsv'`

// dropsFlags are the command's.
type dropsFlags struct {
	question inspect.DropsQuestion
	node     string
	follow   bool
}

// followGap is how long a follower waits before it asks again.
const followGap = time.Second

func dropsCommand(o *options) *cobra.Command {
	var f dropsFlags
	cmd := &cobra.Command{
		Use: "drops [NODE]", Short: "Denied connections, live, and why", Long: dropsLong, Example: dropsExample, Args: atMost("NODE"),
		ValidArgsFunction: completeNodes(o),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				f.node = args[0]
			}
			if err := f.check(); err != nil {
				return err
			}
			if f.follow {
				p := follower{w: cmd.OutOrStdout(), errs: cmd.ErrOrStderr(), output: o.output, problems: map[string]string{}, untold: map[string]uint64{}}
				return p.follow(cmd.Context(), &f.question, func() (inspect.Drops, error) { return f.ask(cmd, o) })
			}
			return f.once(cmd, o)
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&f.follow, "follow", "f", false, "go on, and show what is denied as it happens; with -o json, a line each")
	flags.StringVarP(&f.question.Namespace, "namespace", "n", "", "only what is from or to pods of this namespace")
	flags.StringVar(&f.question.Pod, "pod", "", "only what is from or to this pod: NAMESPACE/NAME, or NAME with -n")
	flags.DurationVar(&f.question.Within, "since", 10*time.Minute,
		"leave out what was denied longer ago; 0s: leave out nothing, and with -f show all earlier denials")
	_ = cmd.RegisterFlagCompletionFunc("namespace", completeNamespaces(o))
	_ = cmd.RegisterFlagCompletionFunc("pod", completePods(o))
	return cmd
}

func completePods(o *options) cobra.CompletionFunc {
	return complete(o, forFlag, inspect.AskEndpoints, func(list []inspect.Endpoint) (names []string) {
		for i := range list {
			names = append(names, list[i].Namespace+"/"+list[i].Name)
		}
		return names
	})
}

func (f *dropsFlags) check() error {
	q := &f.question
	if q.Within < 0 {
		return usageError{fmt.Errorf("--since %v: say how long ago, such as 10m", q.Within)}
	}
	if q.Pod == "" {
		return nil
	}
	if !strings.Contains(q.Pod, "/") && q.Namespace != "" {
		q.Pod = q.Namespace + "/" + q.Pod
	}
	if ns, name, ok := strings.Cut(q.Pod, "/"); !ok || ns == "" || name == "" || strings.Contains(name, "/") {
		return usageError{fmt.Errorf("--pod %q: say which namespace too, as in default/%s", q.Pod, strings.Trim(q.Pod, "/"))}
	}
	return nil
}

func (f *dropsFlags) ask(cmd *cobra.Command, o *options) (inspect.Drops, error) {
	return ask[inspect.Drops](cmd, o, inspect.Question{Kind: inspect.AskDrops, Node: f.node, Drops: &f.question})
}

func (f *dropsFlags) once(cmd *cobra.Command, o *options) error {
	d, err := f.ask(cmd, o)
	if err != nil {
		return err
	}
	if err := show(cmd.OutOrStdout(), o, d, func(w io.Writer, wide bool) { printDrops(w, &d, wide) }); err != nil {
		return err
	}
	if slices.ContainsFunc(d.Nodes, func(n inspect.DropsOfNode) bool { return n.Problem != "" }) {
		return errDegraded
	}
	return nil
}

// follow asks until ctx ends. What cannot go on is said once, and again when it is well.
func (p *follower) follow(ctx context.Context, q *inspect.DropsQuestion, ask func() (inspect.Drops, error)) error {
	first, since, began := true, q.Within, time.Now()
	for ctx.Err() == nil {
		if since == 0 {
			q.Within = max(time.Since(began), time.Nanosecond)
		}
		d, err := ask()
		switch {
		case err == nil:
			p.problem("netmaster", "")
			if err := p.tell(&d); err != nil {
				return err
			}
			first, q.After = false, read(q.After, &d)
		case ctx.Err() != nil: // that is why
		case first && !isUnreachable(err) || !passing(err):
			return err
		default:
			p.problem("netmaster", message(err))
		}
		select {
		case <-time.After(followGap):
		case <-ctx.Done():
		}
	}
	return nil
}

// passing reports whether an error may be transient: netmaster restarts, or is busy.
func passing(err error) bool {
	return isUnreachable(err) || errors.Is(err, errTimeout) || isBusy(err)
}

// read notes how far each node was read.
func read(before map[string]inspect.Cursor, d *inspect.Drops) map[string]inspect.Cursor {
	after := map[string]inspect.Cursor{}
	maps.Copy(after, before)
	for _, n := range d.Nodes {
		if n.Cursor != (inspect.Cursor{}) {
			after[n.Node] = n.Cursor
		}
	}
	return after
}

// follower prints what comes.
type follower struct {
	w, errs  io.Writer
	output   string
	headed   bool
	problems map[string]string
	untold   map[string]uint64
	dryRun   bool // nothing is denied, but would be
}

func (p *follower) problem(who, text string) {
	was := p.problems[who]
	if text == was {
		return
	}
	p.problems[who] = text
	if text == "" {
		text = "answers again"
	}
	fmt.Fprintf(p.errs, "netctl: %s: %s\n", who, oneLine.Replace(text))
}

func (p *follower) tell(d *inspect.Drops) error {
	for i := range d.Nodes {
		n := &d.Nodes[i]
		p.problem("node "+n.Node, n.Problem)
		if was, known := p.untold[n.Node]; known && n.Untold > was {
			fmt.Fprintf(p.errs, "netctl: node %s: %s above --drop-log-rate, and not looked at\n", n.Node, p.denied(int(n.Untold-was)))
		}
		if n.Problem == "" {
			p.untold[n.Node] = n.Untold
		}
		if n.Left > 0 {
			fmt.Fprintf(p.errs, "netctl: node %s: %s left out\n", n.Node, plural(n.Left, "older line", "older lines"))
		}
	}
	for i := range d.Drops {
		if err := p.line(&d.Drops[i]); err != nil {
			return err
		}
	}
	return nil
}

// denied returns the text for n further denials.
func (p *follower) denied(n int) string {
	if p.dryRun {
		return plural(n, "more connection", "more connections") + " would have been denied"
	}
	return plural(n, "more packet", "more packets") + " denied"
}

func (p *follower) line(d *inspect.Drop) error {
	switch p.output {
	case "json", "yaml":
		b, err := json.Marshal(d)
		if err != nil {
			return err
		}
		b = escaped(b)
		if p.output == "yaml" {
			if b, err = yaml.JSONToYAML(b); err != nil {
				return err
			}
			b = append([]byte("---\n"), b...)
		} else {
			b = append(b, '\n')
		}
		_, err = p.w.Write(b)
		return err
	}
	if !p.headed {
		p.headed = true
		p.row(dropsHeading(p.output == "wide"))
	}
	p.row(dropRow(d, p.output == "wide"))
	return nil
}

// row prints a line with fixed column widths, because the next lines are unknown.
func (p *follower) row(cells []string) {
	widths := []int{20, 10, 8, 50, 7, 20, 40, 11, 30, 25, 40}
	var b strings.Builder
	for i, c := range cells {
		c = oneLine.Replace(c)
		if i < len(widths) && i < len(cells)-1 {
			fmt.Fprintf(&b, "%-*s  ", widths[i], c)
		} else {
			b.WriteString(c + "  ")
		}
	}
	fmt.Fprintln(p.w, strings.TrimRight(b.String(), " "))
}

func printDrops(w io.Writer, d *inspect.Drops, wide bool) {
	var told, untold uint64
	for _, n := range d.Nodes {
		told += n.Told
		untold += n.Untold
	}
	fmt.Fprintf(w, "%s denied on %s since netplugin started there", plural(int(told+untold), "packet", "packets"), plural(len(d.Nodes), "node", "nodes"))
	if untold > 0 {
		fmt.Fprintf(w, "; %d of them above --drop-log-rate, and not looked at", untold)
	}
	fmt.Fprintln(w)
	for _, n := range d.Nodes {
		if n.Problem != "" {
			fmt.Fprintf(w, "  - node %s: %s\n", n.Node, oneLine.Replace(n.Problem))
		}
		if n.Left > 0 {
			fmt.Fprintf(w, "  - node %s: %s left out; ask for less with --pod or --since, or for this node alone\n", n.Node, plural(n.Left, "older line", "older lines"))
		}
	}
	if len(d.Drops) > 0 {
		fmt.Fprintln(w)
		printDropRows(w, d.Drops, wide)
	}
}

func printDropRows(w io.Writer, list []inspect.Drop, wide bool) {
	var rows [][]string
	for i := range list {
		rows = append(rows, dropRow(&list[i], wide))
	}
	table(w, dropsHeading(wide), rows)
}

func dropsHeading(wide bool) []string {
	if wide {
		return []string{"LAST", "NODE", "DENIED", "CONNECTION", "PACKETS", "FIRST", "ADDRESSES", "CONNECTIONS", "ISOLATED BY", "NEAREST RULE", "FAILED", "REMEDY"}
	}
	return []string{"LAST", "NODE", "DENIED", "CONNECTION", "PACKETS", "WHY"}
}

func dropRow(d *inspect.Drop, wide bool) []string {
	target := endName(&d.To)
	if d.Port != 0 {
		target += fmt.Sprintf(":%d", d.Port)
	}
	connection := fmt.Sprintf("%s → %s %s", endName(&d.From), target, d.Protocol)
	if d.To.Address.Is6() {
		connection += " over IPv6"
	}
	row := []string{d.Last.UTC().Format(time.RFC3339), d.Node, d.Reason, connection, fmt.Sprint(d.Packets)}
	if !wide {
		return append(row, dropWhy(d))
	}
	return append(row, d.First.UTC().Format(time.RFC3339), fmt.Sprintf("%s→%s", d.From.Address, d.To.Address), fmt.Sprint(d.Connections),
		dash(strings.Join(d.Policies, ",")), dash(d.Rule), dash(cmp.Or(d.Note, d.Failed)), dash(d.Remedy))
}

func endName(e *inspect.DropEnd) string {
	if e.Pod == "" && e.Address.Is6() {
		return "[" + e.Address.String() + "]"
	}
	return cmp.Or(e.Pod, e.Address.String())
}

// dropWhy returns a sentence: the isolating policies, and the failed condition of the nearest rule.
func dropWhy(d *inspect.Drop) string {
	was, is := "was denied by ", "isolated by "
	if d.DryRun {
		was, is = "would have been denied by ", "would be isolated by "
	}
	switch {
	case d.Reason == inspect.DroppedAsForged:
		return fmt.Sprintf("not an address of %s, which sent it", cmp.Or(d.Pod, "the pod"))
	case d.Note != "":
		return fmt.Sprintf("%s%s; %s", was, cmp.Or(strings.Join(d.Policies, ", "), "policies that are gone"), d.Note)
	}
	text := is + strings.Join(d.Policies, ", ")
	if d.Rule != "" {
		text += fmt.Sprintf("; nearest is %s: %s", d.Rule, d.Failed)
	}
	return text
}
