package main

import (
	"slices"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/spf13/cobra"
)

// complete asks netmaster for names. Shells show nothing where it does not answer.
func complete[T any](o *options, most int, kind string, names func(T) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		answer, err := ask[T](cmd, o, inspect.Question{Kind: kind})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		list := names(answer)
		slices.Sort(list)
		return slices.Compact(list), cobra.ShellCompDirectiveNoFileComp
	}
}

// forFlag is for the value of a flag, whatever arguments stand before it.
const forFlag = 1 << 30

func completePolicies(o *options, most int) cobra.CompletionFunc {
	return complete(o, most, inspect.AskPolicies, func(list []inspect.Policy) (names []string) {
		for i := range list {
			names = append(names, list[i].Namespace+"/"+list[i].Name)
		}
		return names
	})
}

func completeEndpoints(o *options) cobra.CompletionFunc {
	return complete(o, 1, inspect.AskEndpoints, func(list []inspect.Endpoint) (names []string) {
		for i := range list {
			names = append(names, list[i].Namespace+"/"+list[i].Name)
		}
		return names
	})
}

func completeNamespaces(o *options) cobra.CompletionFunc {
	return complete(o, forFlag, inspect.AskEndpoints, func(list []inspect.Endpoint) (names []string) {
		for i := range list {
			names = append(names, list[i].Namespace)
		}
		return names
	})
}

func completeNodes(o *options) cobra.CompletionFunc {
	return complete(o, 1, inspect.AskStatus, func(st inspect.Status) (names []string) {
		for i := range st.Nodes {
			names = append(names, st.Nodes[i].Name)
		}
		return names
	})
}

// completeTables are those that the node has flows in.
func completeTables(o *options) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		var names []string
		if len(args) == 1 {
			nf, _ := ask[inspect.NodeFlows](cmd, o, inspect.Question{Kind: inspect.AskFlows, Node: args[0]})
			for i := range nf.Flows {
				names = append(names, nf.Flows[i].TableName)
			}
		}
		slices.Sort(names)
		return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
	}
}
