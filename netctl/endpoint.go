package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/spf13/cobra"
)

func endpointCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{Use: "endpoint", Aliases: []string{"endpoints", "ep"}, Short: "Pods as enforcement sees them", RunE: group, Args: cobra.ArbitraryArgs}
	var namespace string
	ls := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List endpoints", Args: exactly(), Example: "  netctl endpoint ls\n  netctl endpoint ls -n shop -o wide",
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := ask[[]inspect.Endpoint](cmd, o, inspect.Question{Kind: inspect.AskEndpoints, Namespace: namespace})
			if err != nil {
				return err
			}
			return show(cmd.OutOrStdout(), o, list, func(w io.Writer, wide bool) { printEndpoints(w, list, wide) })
		},
	}
	ls.Flags().StringVarP(&namespace, "namespace", "n", "", "only this namespace; default: all")
	_ = ls.RegisterFlagCompletionFunc("namespace", completeNamespaces(o))
	show := &cobra.Command{
		Use: "show NAMESPACE/NAME", Short: "Show a pod: addresses, labels, ports, and what isolates it", Args: oneID, Example: "  netctl endpoint show shop/db-0", ValidArgsFunction: completeEndpoints(o),
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := ask[[]inspect.Endpoint](cmd, o, inspect.Question{Kind: inspect.AskEndpoints, ID: args[0]})
			if err != nil {
				return err
			}
			if len(list) != 1 {
				return fmt.Errorf("netmaster knows %d of the name %s", len(list), args[0])
			}
			return show(cmd.OutOrStdout(), o, list[0], func(w io.Writer, _ bool) { printEndpoint(w, &list[0]) })
		},
	}
	cmd.AddCommand(ls, show)
	return cmd
}

func addresses(e *inspect.Endpoint) string {
	var out []string
	for _, a := range e.Addresses {
		out = append(out, a.String())
	}
	return dash(strings.Join(out, ","))
}

func labels(e *inspect.Endpoint) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(e.Labels)) {
		out = append(out, k+"="+e.Labels[k])
	}
	return dash(strings.Join(out, ","))
}

func printEndpoints(w io.Writer, list []inspect.Endpoint, wide bool) {
	heading := []string{"NAMESPACE", "NAME", "NODE", "ADDRESSES", "INGRESS", "EGRESS", "STATE"}
	if wide {
		heading = append(heading, "LABELS")
	}
	isolated := func(by []string) string {
		if len(by) == 0 {
			return "open"
		}
		return "isolated (" + plural(len(by), "policy", "policies") + ")"
	}
	var rows [][]string
	for i := range list {
		e := &list[i]
		row := []string{e.Namespace, e.Name, dash(e.Node), addresses(e), isolated(e.Ingress), isolated(e.Egress), e.State}
		if wide {
			row = append(row, labels(e))
		}
		rows = append(rows, row)
	}
	table(w, heading, rows)
}

func printEndpoint(w io.Writer, e *inspect.Endpoint) {
	by := func(list []string) string {
		if len(list) == 0 {
			return "open: no policy isolates it"
		}
		return "isolated by " + strings.Join(list, ", ")
	}
	var ports []string
	for _, p := range e.Ports {
		ports = append(ports, fmt.Sprintf("%s=%s/%d", p.Name, p.Protocol, p.Number))
	}
	fmt.Fprintf(w, "%s/%s on %s, %s\n", e.Namespace, e.Name, dash(e.Node), e.State)
	if e.Remedy != "" {
		fmt.Fprintln(w, e.Remedy)
	}
	fmt.Fprintf(w, "addresses    %s\nlabels       %s\nnamed ports  %s\n", addresses(e), labels(e), dash(strings.Join(ports, ", ")))
	fmt.Fprintf(w, "ingress      %s\negress       %s\n", by(e.Ingress), by(e.Egress))
}
