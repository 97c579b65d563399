package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/macvtap/api/v1alpha1"
	"github.com/flowkeep/flowkeep/netctl/apiserver"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const macvtapLong = `Macvtap shows which interfaces nodes give to pods as macvtap devices, why, and which pod holds which (docs/macvtap.md). It reads the objects MacvtapNode
from the API server, which the nodes' agents write; netmaster is not asked. Nothing is changed.`

func macvtapCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "macvtap", Aliases: []string{"mvn"}, Short: "What nodes expose as macvtap devices, and why", Long: macvtapLong, RunE: group, Args: cobra.ArbitraryArgs,
		Example: "  netctl macvtap ls\n  netctl macvtap explain node1",
	}
	cmd.AddCommand(macvtapList(o), macvtapExplain(o))
	return cmd
}

var macvtapPath = "/apis/" + v1alpha1.GroupVersion.String() + "/" + v1alpha1.ResourceNode

func listMacvtap(ctx context.Context, c *apiserver.Client) ([]v1alpha1.MacvtapNode, error) {
	nodes, err := apiserver.List[v1alpha1.MacvtapNode](ctx, c, macvtapPath)
	if apiserver.IsNotFound(err) {
		return nil, errors.New("this cluster knows no MacvtapNode: kubectl apply -f deploy/crds, and run netplugin macvtap on the nodes")
	}
	return nodes, err
}

func completeMacvtap(o *options) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		_ = fromAPI(cmd, o.inShort(), func(ctx context.Context, c *apiserver.Client) error {
			nodes, err := listMacvtap(ctx, c)
			for i := range nodes {
				names = append(names, nodes[i].Name)
			}
			return err
		})
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// macvtapNode is a node of ls.
type macvtapNode struct {
	Node      string                  `json:"node"`
	Source    string                  `json:"source"`
	Policies  []string                `json:"policies"`
	Available metav1.ConditionStatus  `json:"available"`
	Degraded  metav1.ConditionStatus  `json:"degraded"`
	Conflict  metav1.ConditionStatus  `json:"conflict"`
	Resources []v1alpha1.NodeResource `json:"resources"`
	Truncated bool                    `json:"truncated,omitempty"`
}

func newMacvtapNode(n *v1alpha1.MacvtapNode) macvtapNode {
	status := func(kind string) metav1.ConditionStatus {
		if c := meta.FindStatusCondition(n.Status.Conditions, kind); c != nil {
			return c.Status
		}
		return metav1.ConditionUnknown
	}
	line := macvtapNode{Node: n.Name, Source: n.Status.Source, Policies: n.Status.Policies, Available: status(v1alpha1.ConditionAvailable),
		Degraded: status(v1alpha1.ConditionDegraded), Conflict: status(v1alpha1.ConditionConflict), Resources: n.Status.Resources, Truncated: n.Status.Truncated}
	if line.Policies == nil {
		line.Policies = []string{}
	}
	if line.Resources == nil {
		line.Resources = []v1alpha1.NodeResource{}
	}
	return line
}

const macvtapListLong = `Ls lists what nodes expose as macvtap devices, a line a resource: on which parents, in which mode, how many devices there are, how many of them
work, how many pods have, and whether the explicit configuration, policies, or neither of them (implicit) says so. With -o wide also which entries, and whether the node has
something that is refused (degraded) or on which policies disagree (conflict); netctl macvtap explain tells more.`

func macvtapList(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "Nodes, and the resources that they expose", Long: macvtapListLong, Args: exactly(),
		Example: "  netctl macvtap ls\n  netctl macvtap ls -o wide\n  netctl macvtap ls -o json | jq -r '.[] | select(.conflict == \"True\").node'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			lines := []macvtapNode{}
			err := fromAPI(cmd, o, func(ctx context.Context, c *apiserver.Client) error {
				nodes, err := listMacvtap(ctx, c)
				for i := range nodes {
					lines = append(lines, newMacvtapNode(&nodes[i]))
				}
				return err
			})
			if err != nil {
				return err
			}
			slices.SortFunc(lines, func(a, b macvtapNode) int { return cmp.Compare(a.Node, b.Node) })
			return show(cmd.OutOrStdout(), o, lines, func(w io.Writer, wide bool) { printMacvtap(w, lines, wide) })
		},
	}
}

func printMacvtap(w io.Writer, lines []macvtapNode, wide bool) {
	heading := []string{"NODE", "SOURCE", "RESOURCE", "PARENTS", "MODE", "DEVICES", "HEALTHY", "IN USE"}
	if wide {
		heading = append(heading, "FROM", "DEGRADED", "CONFLICT")
	}
	var rows [][]string
	for _, l := range lines {
		after := func(from string) []string {
			if !wide {
				return nil
			}
			return []string{from, string(l.Degraded), string(l.Conflict)}
		}
		for _, r := range l.Resources {
			row := []string{l.Node, dash(l.Source), r.Name, parentNames(r), r.Mode, fmt.Sprint(r.Capacity), fmt.Sprint(r.Healthy), fmt.Sprint(r.InUse)}
			rows = append(rows, append(row, after(parentOrigins(r))...))
		}
		if len(l.Resources) == 0 {
			rows = append(rows, append([]string{l.Node, dash(l.Source), "-", "-", "-", "0", "0", "0"}, after(dash(strings.Join(l.Policies, ",")))...))
		}
	}
	table(w, heading, rows)
}

func parentNames(r v1alpha1.NodeResource) string {
	var names []string
	for _, p := range r.Parents {
		names = append(names, p.Link)
	}
	return dash(strings.Join(names, ","))
}

func parentOrigins(r v1alpha1.NodeResource) string {
	var origins []string
	for _, p := range r.Parents {
		if !slices.Contains(origins, p.From) {
			origins = append(origins, p.From)
		}
	}
	return dash(strings.Join(origins, ", "))
}
