package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/spf13/cobra"
)

func policyCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{Use: "policy", Aliases: []string{"policies", "netpol"}, Short: "Policies as they were resolved", RunE: group, Args: cobra.ArbitraryArgs}
	var namespace string
	ls := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List policies", Args: exactly(), Example: "  netctl policy ls\n  netctl policy ls -n shop -o wide",
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := ask[[]inspect.Policy](cmd, o, inspect.Question{
				Kind:      inspect.AskPolicies,
				Namespace: namespace,
				Counts:    o.output == "table" || o.output == "wide",
			})
			if err != nil {
				return err
			}
			return show(cmd.OutOrStdout(), o, list, func(w io.Writer, wide bool) { printPolicies(w, list, wide) })
		},
	}
	ls.Flags().StringVarP(&namespace, "namespace", "n", "", "only this namespace; default: all")
	_ = ls.RegisterFlagCompletionFunc("namespace", completeNamespaces(o))
	show := &cobra.Command{
		Use: "show NAMESPACE/NAME", Short: "Show a policy: its rules, whom they reach, and where they are in force", Args: oneID,
		Long: "Show tells a policy's rules and peers as they were resolved, and of each node that needs it whether it is realised: the node has acknowledged\n" +
			"the present form of the policy's rules and of its groups' members; pending: not yet; failed: the node says why, and denies what it could not\n" +
			"let through; away: it is not connected and enforces what it last had; partial: pods of the policy are not wired by\n" +
			"Flowkeep, and it is not enforced there. A node that no longer needs it is listed until it has removed the rules.",
		Example: "  netctl policy show shop/db\n  netctl policy show shop/db -o yaml", ValidArgsFunction: completePolicies(o, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := ask[[]inspect.Policy](cmd, o, inspect.Question{Kind: inspect.AskPolicies, ID: args[0]})
			if err != nil {
				return err
			}
			if len(list) != 1 {
				return fmt.Errorf("netmaster knows %d of the name %s", len(list), args[0])
			}
			return show(cmd.OutOrStdout(), o, list[0], func(w io.Writer, _ bool) { printPolicy(w, &list[0]) })
		},
	}
	cmd.AddCommand(ls, show, waitCommand(o))
	return cmd
}

// inForce sums a policy's nodes up.
func inForce(p *inspect.Policy) string {
	c := inspect.CountNodes(p.Nodes) // which an older netmaster lists
	if p.InForce != nil {
		c = *p.InForce
	}
	if c.Nodes == 0 {
		return "no pod"
	}
	return fmt.Sprintf("%d/%d nodes", c.Realised, c.Nodes)
}

func printPolicies(w io.Writer, list []inspect.Policy, wide bool) {
	heading := []string{"NAMESPACE", "NAME", "APPLIED TO", "ISOLATES", "MODE", "IN FORCE"}
	if wide {
		heading = append(heading, "GENERATION", "PROBLEMS")
	}
	var rows [][]string
	for _, p := range list {
		row := []string{p.Namespace, p.Name, fmt.Sprintf("%s (%d)", p.Selector, p.Pods), strings.Join(p.Directions, ","), dash(p.Mode), inForce(&p)}
		if wide {
			row = append(row, fmt.Sprint(p.Generation), dash(strings.Join(p.Problems, "; ")))
		}
		rows = append(rows, row)
	}
	table(w, heading, rows)
}

// unlisted returns how many pods are not listed.
func unlisted(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" and %d more", n)
}

// nodeLine returns a node's state with its reason on one line.
func nodeLine(n *inspect.PolicyNode) string {
	text := n.State
	if n.Leaving {
		text += ", has to drop its rules"
	}
	if n.Reason != "" {
		text += " (" + oneLine.Replace(n.Reason) + ")"
	}
	return text
}

func printPolicy(w io.Writer, p *inspect.Policy) {
	fmt.Fprintf(w, "%s/%s, generation %d\n", p.Namespace, p.Name, p.Generation)
	pods := dash(strings.Join(p.AppliedTo, ", ")) + unlisted(p.MorePods)
	fmt.Fprintf(w, "applied to   %s of %s: %s\n", p.Selector, p.Namespace, pods)
	isolates, where := "", "in force on "
	if p.Mode == policy.ModeDryRun {
		fmt.Fprintf(w, "mode         dry-run: netctl dry-run %s/%s shows what it would have denied\n", p.Namespace, p.Name)
		isolates, where = "no pod; once it is enforced: ", "dry run on  "
	}
	fmt.Fprintf(w, "isolates     %s%s\n", isolates, strings.Join(p.Directions, ", "))
	for i, n := range p.Nodes {
		title := "            "
		if i == 0 {
			title = where
		}
		fmt.Fprintf(w, "%s %s: %s\n", title, n.Name, nodeLine(&n))
		for _, e := range n.Errors {
			fmt.Fprintf(w, "             ! %s\n", oneLine.Replace(e))
		}
	}
	for _, problem := range p.Problems {
		fmt.Fprintf(w, "left out     %s\n", oneLine.Replace(problem))
	}
	for _, r := range p.Rules {
		if r.Index < 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s[%d]  ports %s, to %s\n", r.Direction, r.Index, r.Ports, r.AppliedTo)
		for _, peer := range r.Peers {
			fmt.Fprintf(w, "  peer  %s", peer.Text)
			if len(peer.Endpoints) > 0 {
				fmt.Fprintf(w, ": %s%s", strings.Join(peer.Endpoints, ", "), unlisted(peer.More))
			}
			fmt.Fprintln(w)
		}
	}
}
