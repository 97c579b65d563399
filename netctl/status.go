package main

import (
	"fmt"
	"io"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/spf13/cobra"
)

func statusCommand(o *options) *cobra.Command {
	var ways string
	cmd := &cobra.Command{
		Use: "status", Short: "Is everything well: netmaster, its stores, and every node", Args: exactly(),
		Long: "Status says in its first line whether everything is well, and why not. It exits with 1 if something is not, and with\n" +
			"4 if it failed.",
		Example: "  netctl status\n  netctl status --ways node1\n  netctl status -o json | jq .problems",
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, err := ask[inspect.Status](cmd, o, inspect.Question{Kind: inspect.AskStatus, Node: ways})
			if err != nil {
				return err
			}
			if err := show(cmd.OutOrStdout(), o, st, func(w io.Writer, wide bool) {
				if printStatus(w, &st, wide); ways != "" {
					printNodeWays(w, ways, st.Ways)
				}
			}); err != nil {
				return err
			}
			if len(st.Problems) > 0 {
				return errDegraded
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&ways, "ways", "", "also show the way between the pods of this node and of each other node: "+
		"route or geneve, and why")
	_ = cmd.RegisterFlagCompletionFunc("ways", completeNodeFlag(o))
	return cmd
}

func printNodeWays(w io.Writer, node string, ways []inspect.PeerWay) {
	rows := make([][]string, 0, len(ways))
	for _, p := range ways {
		rows = append(rows, []string{p.Peer, dash(p.Way), dash(p.Reason)})
	}
	fmt.Fprintf(w, "\nways between pods of node %s and of other nodes:\n\n", oneLine.Replace(node))
	table(w, []string{"PEER", "WAY", "REASON"}, rows)
}

func printStatus(w io.Writer, st *inspect.Status, wide bool) {
	if len(st.Problems) == 0 {
		fmt.Fprintf(w, "healthy: %s in force on %s%s\n", plural(st.Policies-st.DryRuns, "policy", "policies"), plural(len(st.Nodes), "node", "nodes"), st.DryRunsText())
	} else {
		fmt.Fprintf(w, "degraded: %s\n", plural(len(st.Problems), "problem", "problems"))
		for _, p := range st.Problems {
			fmt.Fprintf(w, "  - %s\n", oneLine.Replace(p))
		}
	}
	fmt.Fprintf(w, "\nnetmaster %s, up %s, revision %d: %d namespaces, %d endpoints, %d policies, %d rules, %d groups\n\n",
		st.Version, age(st.Started), st.Revision, st.Namespaces, st.Endpoints, st.Policies, st.Rules, st.Groups)
	if l := st.Leader; l != nil {
		printLeader(w, l)
	}
	if h := st.History; h != nil {
		fmt.Fprintf(w, "explain --at goes back to revision %d, %s ago: %s, %d KiB\n\n", h.Oldest, age(h.Since), plural(h.Changes, "change", "changes"), (h.Bytes+1023)/1024)
	}
	heading := []string{"NODE", "FEED", "REVISION", "RULES", "GROUPS", "PODS", "FLOWS", "SWITCH"}
	if wide {
		heading = append(heading, "SINCE", "PENDING", "VERSION", "DATAPATH", "CHECKED", "DRIFT")
	}
	var rows [][]string
	for i := range st.Nodes {
		rows = append(rows, nodeRow(&st.Nodes[i], wide))
	}
	table(w, heading, rows)
}

func printLeader(w io.Writer, l *inspect.Leader) {
	fmt.Fprintf(w, "leader %s, epoch %d\n", oneLine.Replace(l.Identity), l.Epoch)
	for _, s := range l.Standbys {
		fmt.Fprintf(w, "standby %s, %s", oneLine.Replace(s.Identity), oneLine.Replace(s.Version))
		if s.NotReady != "" {
			fmt.Fprintf(w, ", could not take over now: %s", oneLine.Replace(s.NotReady))
		}
		fmt.Fprintln(w)
	}
	switch {
	case l.StandbysUnknown != "":
		fmt.Fprintf(w, "who stands by is not known: %s\n", oneLine.Replace(l.StandbysUnknown))
	case len(l.Standbys) == 0:
		fmt.Fprintln(w, "no standby: while this netmaster is away, policies that change wait, and pods do not start")
	}
	fmt.Fprintln(w)
}

func nodeRow(n *inspect.Node, wide bool) []string {
	feed, revision := "away", fmt.Sprint(n.Realised)
	if n.Connected {
		feed = "connected"
	}
	if n.Realised < n.Sent {
		revision = fmt.Sprintf("%d of %d", n.Realised, n.Sent)
	}
	row := []string{n.Name, feed, revision, fmt.Sprint(n.Rules), fmt.Sprint(n.Groups), "-", "-", "-"}
	datapath, checked, drift := "-", "-", "-"
	if n.Own != nil {
		sw := "away"
		switch {
		case n.Own.SwitchProblem != "":
			sw = "loses all"
		case n.Own.SwitchConnected:
			sw = "connected"
		}
		row[5], row[6], row[7], datapath = fmt.Sprint(n.Own.Endpoints), fmt.Sprint(n.Own.Flows), sw, n.Own.Datapath
		checked, drift = driftCheckCells(&n.Own.DriftCheck)
	}
	if wide {
		row = append(row, age(n.Since), fmt.Sprint(n.Pending), dash(n.Version), datapath, checked, drift)
	}
	return row
}

// driftCheckCells returns when a node last compared its flows, and what all comparisons have found.
func driftCheckCells(a *inspect.DriftCheck) (checked, drift string) {
	checked, drift = "never", "none"
	if !a.At.IsZero() {
		checked = age(a.At) + " ago"
	}
	if a.Drift.Sum() > 0 {
		drift = plural(a.Drift.Sum(), "flow", "flows") + ", " + age(a.DriftAt) + " ago"
	}
	return checked, drift
}
