package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/flowkeep/flowkeep/macvtap/api/v1alpha1"
	"github.com/flowkeep/flowkeep/netctl/apiserver"
	"github.com/spf13/cobra"
)

// macvtapExplanation is all that is known of a node.
type macvtapExplanation struct {
	macvtapNode `json:",inline"`
	Links       []v1alpha1.NodeLink `json:"links"`
	Holders     []v1alpha1.Holder   `json:"holders"`
	Conflicts   []v1alpha1.Conflict `json:"conflicts"`
	Problems    []v1alpha1.Problem  `json:"problems"`
}

const macvtapExplainLong = `Explain tells of each interface of a node whether it is exposed as a macvtap resource, as which, and which entry of the configuration or of which
policy says so, or why it is not; which pod holds which device; which entries disagree and which wins; and which are refused, or find nothing on the node.`

func macvtapExplain(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "explain NODE", Short: "Why a node's interfaces are exposed or not, and who holds devices", Long: macvtapExplainLong, Args: oneNode, ValidArgsFunction: completeMacvtap(o),
		Example: "  netctl macvtap explain node1\n  netctl macvtap explain node1 -o json | jq -r '.holders[] | select(.parent == \"bond1\").pod'",
		RunE: func(cmd *cobra.Command, args []string) error {
			var node *v1alpha1.MacvtapNode
			err := fromAPI(cmd, o, func(ctx context.Context, c *apiserver.Client) (err error) {
				node, err = apiserver.One[v1alpha1.MacvtapNode](ctx, c, macvtapPath+"/"+args[0])
				if apiserver.IsNotFound(err) {
					return fmt.Errorf("node %s has no MacvtapNode: netplugin macvtap on it makes one; netctl macvtap ls shows those that there are", args[0])
				}
				return err
			})
			if err != nil {
				return err
			}
			e := newMacvtapExplanation(node)
			return show(cmd.OutOrStdout(), o, e, func(w io.Writer, wide bool) { printMacvtapExplanation(w, e, wide) })
		},
	}
}

func newMacvtapExplanation(n *v1alpha1.MacvtapNode) *macvtapExplanation {
	e := &macvtapExplanation{newMacvtapNode(n), []v1alpha1.NodeLink{}, []v1alpha1.Holder{}, []v1alpha1.Conflict{}, []v1alpha1.Problem{}}
	e.Links, e.Holders = append(e.Links, n.Status.Links...), append(e.Holders, n.Status.Holders...)
	e.Conflicts, e.Problems = append(e.Conflicts, n.Status.Conflicts...), append(e.Problems, n.Status.Problems...)
	return e
}

func printMacvtapExplanation(w io.Writer, e *macvtapExplanation, wide bool) {
	fmt.Fprintf(w, "node %s %s\n\n", e.Node, e.because())
	var rows [][]string
	told := map[[2]string]bool{}
	for _, l := range e.Links {
		state := "down"
		if l.Up {
			state = "up"
		}
		before := []string{l.Name, l.Kind, state}
		if wide {
			before = append(before, dash(l.MAC), fmt.Sprint(l.MTU))
		}
		found := false
		for _, r := range e.Resources {
			for _, p := range r.Parents {
				if p.Link == l.Name {
					rows = append(rows, append(append([]string{}, before...), exposedAs(r, p), join(p.From, p.Message, l.Message)))
					found, told[[2]string{r.Name, p.Link}] = true, true
				}
			}
		}
		if !found {
			rows = append(rows, append(before, "-", l.Message))
		}
	}
	for _, r := range e.Resources {
		for _, p := range r.Parents {
			if !told[[2]string{r.Name, p.Link}] {
				before := []string{p.Link, "-", "-"}
				if wide {
					before = append(before, "-", "-")
				}
				rows = append(rows, append(before, exposedAs(r, p), join(p.From, p.Message)))
			}
		}
	}
	heading := []string{"INTERFACE", "KIND", "IS", "EXPOSED AS", "WHY"}
	if wide {
		heading = []string{"INTERFACE", "KIND", "IS", "MAC", "MTU", "EXPOSED AS", "WHY"}
	}
	table(w, heading, rows)
	printMacvtapHolders(w, e.Holders)
	for _, c := range e.Conflicts {
		fmt.Fprintf(w, "conflict: %s\n", oneLine.Replace(fmt.Sprintf("%s, not %s, for resource %s on %s: %s", c.Winner, c.Loser, c.Resource, c.Parent, c.About)))
	}
	for _, p := range e.Problems {
		fmt.Fprintf(w, "problem: %s\n", oneLine.Replace(p.From+": "+p.Message))
	}
	if e.Truncated {
		fmt.Fprintln(w, "note: the node's agent had more to tell than an object holds: not all is shown")
	}
}

// because says what decides for the whole node.
func (e *macvtapExplanation) because() string {
	switch e.Source {
	case "config":
		return "exposes what its explicit configuration lists, and nothing else"
	case "policies":
		return "exposes what the policies that select it list, and nothing else: " + oneLine.Replace(strings.Join(e.Policies, ", "))
	case "implicit":
		return "exposes all devices and bonds: it has no configuration, and no policy selects it"
	}
	return "has not reported yet"
}

func exposedAs(r v1alpha1.NodeResource, p v1alpha1.NodeParent) string {
	state := ""
	if !p.Healthy {
		state = ", unhealthy"
	}
	return fmt.Sprintf("%s (%s, %d of %d in use%s)", r.Name, r.Mode, p.InUse, p.Capacity, state)
}

func join(sentences ...string) string {
	var there []string
	for _, s := range sentences {
		if s != "" {
			there = append(there, s)
		}
	}
	return dash(strings.Join(there, "; "))
}

func printMacvtapHolders(w io.Writer, holders []v1alpha1.Holder) {
	fmt.Fprintln(w)
	if len(holders) == 0 {
		fmt.Fprintln(w, "no pod holds a device")
		return
	}
	var rows [][]string
	for _, h := range holders {
		rows = append(rows, []string{h.Resource, dash(h.Parent), h.Device, h.Namespace + "/" + h.Pod, dash(h.Container)})
	}
	table(w, []string{"RESOURCE", "PARENT", "DEVICE", "POD", "CONTAINER"}, rows)
}
