package main

import (
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/spf13/cobra"
)

// completionTime is the time limit of a completion.
const completionTime = 3 * time.Second

// inShort returns the options with the short timeout of completions.
func (o *options) inShort() *options {
	short := *o
	short.timeout = min(o.timeout, completionTime)
	return &short
}

// complete asks netmaster for names. Shells show nothing where it does not answer.
func complete[T any](o *options, most int, kind string, names func(T) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		answer, err := ask[T](cmd, o.inShort(), inspect.Question{Kind: kind, Names: true})
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

func completeNodes(o *options) cobra.CompletionFunc { return nodesUpTo(o, 1) }

func completeNodeFlag(o *options) cobra.CompletionFunc { return nodesUpTo(o, forFlag) }

// completeMoreNodes completes any number of nodes, each once.
func completeMoreNodes(o *options) cobra.CompletionFunc {
	nodes := nodesUpTo(o, forFlag)
	return func(cmd *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
		names, how := nodes(cmd, args, text)
		return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(args, name) }), how
	}
}

func nodesUpTo(o *options, most int) cobra.CompletionFunc {
	return complete(o, most, inspect.AskStatus, func(st inspect.Status) (names []string) {
		for i := range st.Nodes {
			names = append(names, st.Nodes[i].Name)
		}
		return names
	})
}

// completeTables completes the tables in which the node has flows.
func completeTables(o *options) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		var names []string
		if len(args) == 1 {
			nf, _ := ask[inspect.NodeFlows](cmd, o.inShort(), inspect.Question{Kind: inspect.AskFlows, Node: args[0]})
			for i := range nf.Flows {
				names = append(names, nf.Flows[i].TableName)
			}
		}
		slices.Sort(names)
		return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
	}
}
