package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/spf13/cobra"
)

func cutsCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "cuts [NODE]", Short: "Live connections that were ended, and by which rule they had lived", Args: atMost("NODE"),
		Long: "When a change of policies, labels or pods takes a permission away, the connections that lived on it end. Cuts tells of the latest on\n" +
			"each node: how many, the rule that had let them live, and the policies that deny them now. A connection that another rule still\n" +
			"allows goes on and is not among them. It exits with 1 if a node could not count or does not say, and with 4 if it\n" +
			"failed.",
		ValidArgsFunction: completeNodes(o),
		Example:           "  netctl cuts\n  netctl cuts node1 -o wide\n  netctl cuts -o json | jq '.nodes[].cuts[] | select(.reason == \"permission\")'",
		RunE: func(cmd *cobra.Command, args []string) error {
			q := inspect.Question{Kind: inspect.AskCuts}
			if len(args) > 0 {
				q.Node = args[0]
			}
			cuts, err := ask[inspect.Cuts](cmd, o, q)
			if err != nil {
				return err
			}
			if err := show(cmd.OutOrStdout(), o, cuts, func(w io.Writer, wide bool) { printCuts(w, &cuts, wide) }); err != nil {
				return err
			}
			if slices.ContainsFunc(cuts.Nodes, func(n inspect.NodeCuts) bool { return n.Problem != "" }) {
				return errDegraded
			}
			return nil
		},
	}
}

func printCuts(w io.Writer, cuts *inspect.Cuts, wide bool) {
	var total uint64
	for _, n := range cuts.Nodes {
		total += n.Connections
	}
	fmt.Fprintf(w, "%s cut on %s since netplugin started there\n", plural(int(total), "connection", "connections"), plural(len(cuts.Nodes), "node", "nodes"))
	for _, n := range cuts.Nodes {
		if n.Problem != "" {
			fmt.Fprintf(w, "  - node %s: %s\n", n.Node, oneLine.Replace(n.Problem))
		}
	}
	type placed struct {
		node string
		inspect.Cut
	}
	var all []placed
	for _, n := range cuts.Nodes {
		for _, c := range n.Cuts {
			all = append(all, placed{n.Node, c})
		}
	}
	if len(all) == 0 {
		return
	}
	slices.SortStableFunc(all, func(a, b placed) int { return a.Time.Compare(b.Time) })
	heading := []string{"TIME", "NODE", "CUT", "WHY"}
	if wide {
		heading = append(heading, "PROTOCOLS", "EXAMPLE")
	}
	var rows [][]string
	for _, c := range all {
		row := []string{c.Time.UTC().Format(time.RFC3339), c.node, fmt.Sprint(c.Connections), c.Why}
		if wide {
			row = append(row, protocols(c.Protocols), c.Example)
		}
		rows = append(rows, row)
	}
	fmt.Fprintln(w)
	table(w, heading, rows)
}

func protocols(counts map[string]int) string {
	var out []string
	for _, p := range slices.Sorted(maps.Keys(counts)) {
		out = append(out, fmt.Sprintf("%s=%d", p, counts[p]))
	}
	return dash(strings.Join(out, ","))
}
