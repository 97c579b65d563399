package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/spf13/cobra"
)

func serviceCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "service",
		Aliases: []string{"services", "svc"},
		Short:   "Services as nodes get them",
		RunE:    group,
		Args:    cobra.ArbitraryArgs,
	}
	cmd.AddCommand(listServices(o), showService(o))
	return cmd
}

func listServices(o *options) *cobra.Command {
	var namespace string
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List Services",
		Args:    exactly(),
		Example: "  netctl service ls\n  netctl service ls -n shop -o wide",
		RunE: func(cmd *cobra.Command, _ []string) error {
			q := inspect.Question{Kind: inspect.AskFrontends, Namespace: namespace}
			list, err := ask[[]inspect.ServedService](cmd, o, q)
			if err != nil {
				return err
			}
			return show(cmd.OutOrStdout(), o, list, func(w io.Writer, wide bool) { printServices(w, list, wide) })
		},
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "only this namespace; default: all")
	_ = cmd.RegisterFlagCompletionFunc("namespace", completeNamespaces(o))
	return cmd
}

func showService(o *options) *cobra.Command {
	var node string
	var fromNode bool
	cmd := &cobra.Command{
		Use:   "show NAMESPACE/NAME",
		Short: "Show a Service: its frontends, the endpoints behind them, and what nodes do with it",
		Long: "Show prints the addresses and ports of a Service, its endpoints with their state, what was left out\n" +
			"with the reason, and what each node does with it: what translates it for pods (Open vSwitch where\n" +
			"netplugin runs with --services ovs, else kube-proxy), which parts Open vSwitch refuses, and how many\n" +
			"packets opened connections to each endpoint.\n\n" +
			"With --node it prints for each frontend which endpoints a pod on that node may use, by the rules of\n" +
			"kube-proxy, and how many of the slots that connections are spread over each has. netmaster computes\n" +
			"that; with --from-node the node does, of what it holds.",
		Example: "  netctl service show shop/web\n  netctl service show shop/web --node node1\n" +
			"  netctl service show shop/web --node node1 --from-node -o yaml",
		Args: oneID,
		ValidArgsFunction: complete(o, 1, inspect.AskFrontends, func(list []inspect.ServedService) (names []string) {
			for i := range list {
				names = append(names, list[i].Namespace+"/"+list[i].Name)
			}
			return names
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			if fromNode && node == "" {
				return usageError{errors.New("--from-node needs --node: no node is named")}
			}
			q := inspect.Question{Kind: inspect.AskFrontends, ID: args[0], Node: node, FromNode: fromNode}
			list, err := ask[[]inspect.ServedService](cmd, o, q)
			if err != nil {
				return err
			}
			if len(list) != 1 {
				return fmt.Errorf("netmaster knows %d of the name %s", len(list), args[0])
			}
			return show(cmd.OutOrStdout(), o, list[0], func(w io.Writer, wide bool) { printServed(w, &list[0], wide) })
		},
	}
	cmd.Flags().StringVar(&node, "node", "", "what pods on this node get")
	cmd.Flags().BoolVar(&fromNode, "from-node", false, "query the node of --node for what it holds")
	_ = cmd.RegisterFlagCompletionFunc("node", completeNodeFlag(o))
	return cmd
}
