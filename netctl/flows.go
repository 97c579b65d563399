package main

import (
	"fmt"
	"io"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/spf13/cobra"
)

func flowsCommand(o *options) *cobra.Command {
	var policyID, tableName string
	cmd := &cobra.Command{
		Use: "flows NODE", Short: "The flows of a node's Open vSwitch, each with what it is for", Args: exactly("NODE"),
		Long:              "Flows are read from the switch now, with its packet counts. Each is annotated with the policy and rule, pod or stage it serves.",
		ValidArgsFunction: completeNodes(o),
		Example:           "  netctl flows node1 --policy shop/db\n  netctl flows node1 --table ingress-rules -o wide\n  netctl flows node1 -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			nf, err := ask[inspect.NodeFlows](cmd, o, inspect.Question{Kind: inspect.AskFlows, Node: args[0], ID: policyID})
			if err != nil {
				return err
			}
			nf.Flows = ofTable(nf.Flows, tableName)
			return show(cmd.OutOrStdout(), o, nf, func(w io.Writer, wide bool) { printFlows(w, &nf, wide) })
		},
	}
	cmd.Flags().StringVar(&policyID, "policy", "", "only flows that serve this policy, NAMESPACE/NAME")
	cmd.Flags().StringVar(&tableName, "table", "", "only this table, by name or number")
	_ = cmd.RegisterFlagCompletionFunc("policy", completePolicies(o, forFlag))
	_ = cmd.RegisterFlagCompletionFunc("table", completeTables(o))
	return cmd
}

func ofTable(flows []inspect.Flow, name string) []inspect.Flow {
	if name == "" {
		return flows
	}
	out := []inspect.Flow{}
	for _, f := range flows {
		if f.TableName == name || fmt.Sprint(f.Table) == name {
			out = append(out, f)
		}
	}
	return out
}

func printFlows(w io.Writer, nf *inspect.NodeFlows, wide bool) {
	fmt.Fprintf(w, "%s on %s\n", plural(len(nf.Flows), "flow", "flows"), nf.Node)
	for start := 0; start < len(nf.Flows); {
		end := start
		for end < len(nf.Flows) && nf.Flows[end].Table == nf.Flows[start].Table {
			end++
		}
		fmt.Fprintf(w, "\ntable %d %s\n", nf.Flows[start].Table, nf.Flows[start].TableName)
		printTable(w, nf.Flows[start:end], wide)
		start = end
	}
}

func printTable(w io.Writer, flows []inspect.Flow, wide bool) {
	heading := []string{"  PACKETS", "PRIORITY", "MATCH", "ACTIONS", "WHY"}
	if wide {
		heading = []string{"  PACKETS", "BYTES", "COOKIE", "PRIORITY", "MATCH", "ACTIONS", "WHY"}
	}
	var rows [][]string
	for _, f := range flows {
		why := f.Note
		if why == "" {
			why = f.Kind
		}
		match, actions := f.Match, f.Actions
		if match == "" {
			match = "any"
		}
		if !wide {
			match, actions = cut(match, 90), cut(actions, 70)
		}
		row := []string{"  " + fmt.Sprint(f.Packets), fmt.Sprint(f.Priority), match, actions, why}
		if wide {
			row = []string{row[0], fmt.Sprint(f.Bytes), f.Cookie, row[1], match, actions, why}
		}
		rows = append(rows, row)
	}
	table(w, heading, rows)
}

func cut(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}
