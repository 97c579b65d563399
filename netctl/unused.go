package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/spf13/cobra"
)

const unusedLong = `Unused lists the rules of policies that have matched nothing for a time, on any node, and where the policies tell it, why.

What cannot be known is not called unused, and is listed after: rules that are newer, in a policy or as they are now; and rules in force on a node
that does not answer, or has not counted for so long. What a node counted is gone with the node.

A packet that several rules allow counts for one of them only. So a rule that another rule covers may seem unused
although it makes the policy easier to read: the output names the other rule. It exits with 1 if a node does not answer,
and with 4 if it failed.`

func unusedCommand(o *options) *cobra.Command {
	q := inspect.Question{Kind: inspect.AskUnused}
	since := "7d"
	cmd := &cobra.Command{
		Use: "unused", Short: "Rules that have matched nothing for a time", Long: unusedLong, Args: exactly(),
		Example: "  netctl unused\n  netctl unused -n shop --since 30d\n  netctl unused --since 12h -o json | jq -r '.rules[] | .policy'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if q.Since, err = parseSince(since); err != nil {
				return usageError{err}
			}
			u, err := ask[inspect.Unused](cmd, o, q)
			if err != nil {
				return err
			}
			if err := show(cmd.OutOrStdout(), o, u, func(w io.Writer, wide bool) { printUnused(w, &u, wide) }); err != nil {
				return err
			}
			if slices.ContainsFunc(u.Nodes, func(n inspect.CountingNode) bool { return n.Problem != "" }) {
				return errDegraded
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVarP(&q.Namespace, "namespace", "n", "", "only policies of this namespace; default: all")
	f.StringVar(&since, "since", since, "for how long they have matched nothing, such as 90m, 12h, 7d or 4w")
	_ = cmd.RegisterFlagCompletionFunc("namespace", completeNamespaces(o))
	_ = cmd.RegisterFlagCompletionFunc("since", cobra.FixedCompletions([]string{"1d", "7d", "30d"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// mostSince is the longest period of a query: ten years.
const mostSince = 10 * 365 * 24 * time.Hour

// parseSince takes days and weeks too, which Go does not.
func parseSince(text string) (time.Duration, error) {
	wrong := fmt.Errorf("--since %q: write how long, such as 90m, 12h, 7d or 4w, up to ten years", text)
	day := 24 * time.Hour
	var d time.Duration
	var err error
	if unit := map[string]time.Duration{"d": day, "w": 7 * day}[text[max(0, len(text)-1):]]; unit != 0 {
		var n uint64
		if n, err = strconv.ParseUint(text[:len(text)-1], 10, 12); err == nil {
			d = time.Duration(n) * unit
		}
	} else {
		d, err = time.ParseDuration(text)
	}
	if err != nil || d <= 0 || d > mostSince {
		return 0, wrong
	}
	return d, nil
}

func printUnused(w io.Writer, u *inspect.Unused, wide bool) {
	printCountingNodes(w, u.Nodes)
	for _, n := range u.Nodes {
		if n.Problem == "" && n.Since.After(u.Since) {
			fmt.Fprintf(w, "node %s counts only since %s: what its pods matched before is not known\n", n.Name, n.Since.UTC().Format(time.RFC3339))
		}
	}
	fmt.Fprintf(w, "%s matched nothing since %s; %d did\n", plural(len(u.Rules), "rule", "rules"), u.Since.UTC().Format(time.RFC3339), u.Used)
	if len(u.Rules) > 0 {
		fmt.Fprintln(w)
		unusedTable(w, u.Rules, "WHY", wide, func(r *inspect.UnusedRule) []string { return r.Why })
	}
	if len(u.Unsure) > 0 {
		fmt.Fprintf(w, "\nnot known of %s:\n", plural(len(u.Unsure), "rule", "rules"))
		unusedTable(w, u.Unsure, "BECAUSE", wide, func(r *inspect.UnusedRule) []string { return r.Unsure })
	}
}

func unusedTable(w io.Writer, rules []inspect.UnusedRule, reason string, wide bool, why func(*inspect.UnusedRule) []string) {
	heading := []string{"POLICY", "RULE", "LAST", reason}
	if wide {
		heading = slices.Insert(heading, 3, "COUNTED SINCE")
	}
	var rows [][]string
	for i := range rules {
		r := &rules[i]
		row := []string{r.Policy, placeText(r.Direction, r.Rule), lastText(r.Last), dash(strings.Join(why(r), "; "))}
		if wide {
			counted := "-"
			if !r.Counted.IsZero() {
				counted = r.Counted.UTC().Format(time.RFC3339)
			}
			row = slices.Insert(row, 3, counted)
		}
		rows = append(rows, row)
	}
	table(w, heading, rows)
}
