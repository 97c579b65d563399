package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/spf13/cobra"
)

const topLong = `Top shows what the rules of policies let through, and what policies deny, the busiest first: rates over the last ten seconds or so, and
sums since each node began to count, over all nodes. Sums go on over restarts and edits, by the place of a rule in its policy.

A packet counts for the one rule that Open vSwitch found to let it through, and for every policy that has the very same rule. Of several
rules of a pod that let it through only one counts; which is not told. Packets are those of both directions. Connections are those that were
opened; a datagram that nobody answers counts as one each time. What is denied counts for every policy that isolates the pod; packets to and
from pods that nothing isolates are not counted, nor is what policies in a dry run would have done: netctl dry-run has that.

It exits with 1 if a node does not say, and with 4 if it failed.`

type topOptions struct {
	by       string
	limit    int
	watch    bool
	interval time.Duration
}

var topKeys = []string{"packets", "bytes", "connections", "drops"}

func topCommand(o *options) *cobra.Command {
	q := inspect.Question{Kind: inspect.AskCounters}
	var t topOptions
	cmd := &cobra.Command{
		Use: "top", Short: "What rules let through and policies deny, the busiest first", Long: topLong, Args: exactly(),
		Example: "  netctl top\n  netctl top -n shop --by bytes\n  netctl top --by drops --watch\n  netctl top --limit 0 -o json | jq '.counters[] | select(.count.packets == 0)'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := t.check(); err != nil {
				return usageError{err}
			}
			if !t.watch {
				return topOnce(cmd, o, q, &t)
			}
			return topAgain(cmd, o, q, &t)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&q.Namespace, "namespace", "n", "", "only policies of this namespace; default: all")
	f.StringVar(&t.by, "by", "packets", "what to sort by: packets, bytes, connections, or drops (denied packets, and nothing else is shown)")
	f.IntVar(&t.limit, "limit", 20, "show no more than so many; 0: all")
	f.BoolVarP(&t.watch, "watch", "w", false, "show it again and again, until it is interrupted")
	f.DurationVar(&t.interval, "interval", 10*time.Second, "how often to show it with --watch")
	_ = cmd.RegisterFlagCompletionFunc("namespace", completeNamespaces(o))
	_ = cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions(topKeys, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (t *topOptions) check() error {
	switch {
	case !slices.Contains(topKeys, t.by):
		return fmt.Errorf("--by %q: use packets, bytes, connections or drops", t.by)
	case t.limit < 0:
		return fmt.Errorf("--limit %d: show how many? 0 is all", t.limit)
	case t.interval < time.Second:
		return usageError{errors.New("--interval: no less than 1s, nodes read their switch no more often")}
	}
	return nil
}

func topOnce(cmd *cobra.Command, o *options, q inspect.Question, t *topOptions) error {
	c, err := ask[inspect.Counters](cmd, o, q)
	if err != nil {
		return err
	}
	left := t.choose(&c)
	if err := show(cmd.OutOrStdout(), o, c, func(w io.Writer, wide bool) { printTop(w, &c, left, wide) }); err != nil {
		return err
	}
	if slices.ContainsFunc(c.Nodes, func(n inspect.CountingNode) bool { return n.Problem != "" }) {
		return errDegraded
	}
	return nil
}

// topAgain goes on where a node does not say.
func topAgain(cmd *cobra.Command, o *options, q inspect.Question, t *topOptions) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	again := time.NewTicker(t.interval)
	defer again.Stop()
	for {
		if err := topOnce(cmd, o, q, t); err != nil && !errors.Is(err, errDegraded) {
			return err
		}
		select {
		case <-again.C:
			if o.output == "table" || o.output == "wide" {
				fmt.Fprintln(cmd.OutOrStdout())
			}
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil
			}
			return ctx.Err()
		}
	}
}

// choose sorts and shortens the list, and returns the number left out. Entries that never counted anything are last.
func (t *topOptions) choose(c *inspect.Counters) (left int) {
	if t.by == "drops" {
		c.Counters = slices.DeleteFunc(c.Counters, func(x inspect.Counter) bool { return x.Rule != inspect.Isolation })
	}
	rate := map[string]func(*inspect.Counter) (float64, uint64){
		"bytes":       func(x *inspect.Counter) (float64, uint64) { return x.Rate.Bytes, x.Count.Bytes },
		"connections": func(x *inspect.Counter) (float64, uint64) { return x.Rate.Connections, x.Count.Connections },
	}[t.by]
	if rate == nil {
		rate = func(x *inspect.Counter) (float64, uint64) { return x.Rate.Packets, x.Count.Packets }
	}
	slices.SortStableFunc(c.Counters, func(a, b inspect.Counter) int {
		rateA, sumA := rate(&a)
		rateB, sumB := rate(&b)
		return cmp.Or(cmp.Compare(rateB, rateA), cmp.Compare(sumB, sumA))
	})
	if t.limit > 0 && len(c.Counters) > t.limit {
		left = len(c.Counters) - t.limit
		c.Counters = c.Counters[:t.limit]
	}
	return left
}

// placeText returns "ingress[0]" for a rule and "ingress denied" for isolation.
func placeText(direction string, rule int) string {
	if rule == inspect.Isolation {
		return direction + " denied"
	}
	return fmt.Sprintf("%s[%d]", direction, rule)
}

func printTop(w io.Writer, c *inspect.Counters, left int, wide bool) {
	printCountingNodes(w, c.Nodes)
	if len(c.Counters) == 0 {
		fmt.Fprintln(w, "there are no policies in force")
		return
	}
	heading := []string{"POLICY", "RULE", "PACKETS/S", "BYTES/S", "CONNS/S", "PACKETS", "BYTES", "CONNS"}
	if wide {
		heading = append(heading, "NODES", "LAST")
	}
	var rows [][]string
	for i := range c.Counters {
		x := &c.Counters[i]
		row := []string{x.Policy, placeText(x.Direction, x.Rule), perSecond(x.Rate.Packets), perSecond(x.Rate.Bytes), perSecond(x.Rate.Connections),
			fmt.Sprint(x.Count.Packets), fmt.Sprint(x.Count.Bytes), fmt.Sprint(x.Count.Connections)}
		if x.Rule == inspect.Isolation {
			row[4], row[7] = "-", "-"
		}
		if wide {
			row = append(row, fmt.Sprint(x.Nodes), lastText(x.Last))
		}
		rows = append(rows, row)
	}
	table(w, heading, rows)
	if left > 0 {
		fmt.Fprintf(w, "and %d more: --limit 0 shows all\n", left)
	}
}

func printCountingNodes(w io.Writer, nodes []inspect.CountingNode) {
	for _, n := range nodes {
		if n.Problem != "" {
			fmt.Fprintln(w, oneLine.Replace(n.Problem))
		}
	}
}

func lastText(t *time.Time) string {
	if t == nil {
		return "never"
	}
	return t.UTC().Format(time.RFC3339)
}

// perSecond formats a rate with three significant digits.
func perSecond(v float64) string {
	text := fmt.Sprintf("%.3g", v)
	if strings.Contains(text, "e") {
		text = fmt.Sprintf("%.0f", v)
	}
	return text
}
