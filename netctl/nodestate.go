package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/netctl/apiserver"
	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const nodeStateLong = `Node-state shows how nodes' networks are, how they should be, and what policies would make of them (docs/node-state.md). It reads the objects
NodeNetworkState, NodeNetworkConfigurationPolicy and Node from the API server; netmaster is not asked. Nothing is changed.`

func nodeStateCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "node-state", Aliases: []string{"nns"}, Short: "How nodes' networks are and should be", Long: nodeStateLong, RunE: group, Args: cobra.ArbitraryArgs,
		Example: "  netctl node-state ls\n  netctl node-state diff node1\n  netctl node-state history node1\n  netctl node-state plan -f policy.yaml",
	}
	cmd.AddCommand(nodeStateList(o), withResult(nodeStateDiff(o)), nodeStateHistory(o), withResult(nodeStatePlan(o)))
	return cmd
}

// Where the API server has the objects.
var (
	statesPath   = "/apis/" + nmstatev1.GroupVersion.String() + "/" + nmstatev1.ResourceState
	policiesPath = "/apis/" + nmstatev1.GroupVersion.String() + "/" + nmstatev1.ResourcePolicy
)

// fromAPI reads objects of the API server, within the time that there is.
func fromAPI(cmd *cobra.Command, o *options, read func(ctx context.Context, c *apiserver.Client) error) error {
	if o.server != "" {
		return usageError{fmt.Errorf("%s reads the API server's objects, not netmaster's: leave out --server and FLOWKEEP_SERVER, and give --kubeconfig if need be", cmd.Parent().Name())}
	}
	c, err := apiserver.New(o.access())
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), o.timeout)
	defer cancel()
	err = read(ctx, c)
	if ctx.Err() != nil && cmd.Context().Err() == nil {
		return fmt.Errorf("%w: no answer from %s within %v; is the kubeconfig right, or is a longer --timeout needed?", errTimeout, c.Server(), o.timeout)
	}
	return err
}

func listStates(ctx context.Context, c *apiserver.Client) ([]nmstatev1.NodeNetworkState, error) {
	states, err := apiserver.List[nmstatev1.NodeNetworkState](ctx, c, statesPath)
	if apiserver.IsNotFound(err) {
		return nil, errors.New("this cluster knows no NodeNetworkState: kubectl apply -f deploy/crds, and run netplugin node-state on the nodes")
	}
	return states, err
}

func oneState(cmd *cobra.Command, o *options, node string) (state *nmstatev1.NodeNetworkState, err error) {
	err = fromAPI(cmd, o, func(ctx context.Context, c *apiserver.Client) (err error) {
		state, err = apiserver.One[nmstatev1.NodeNetworkState](ctx, c, statesPath+"/"+node)
		if apiserver.IsNotFound(err) {
			return fmt.Errorf("node %s has no NodeNetworkState: netplugin node-state on it makes one; netctl node-state ls shows those that there are", node)
		}
		return err
	})
	return state, err
}

// oneNode accepts one name of a node.
func oneNode(cmd *cobra.Command, args []string) error {
	if err := exactly("NODE")(cmd, args); err != nil {
		return err
	}
	if args[0] == "" || strings.ContainsAny(args[0], "/?#% ") {
		return usageError{fmt.Errorf("%q is no node's name", args[0])}
	}
	return nil
}

func completeStates(o *options) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		_ = fromAPI(cmd, o.inShort(), func(ctx context.Context, c *apiserver.Client) error {
			states, err := listStates(ctx, c)
			for i := range states {
				names = append(names, states[i].Name)
			}
			return err
		})
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// nodeState is a line of ls.
type nodeState struct {
	Node        string       `json:"node"`
	Managed     bool         `json:"managed"`
	InSync      string       `json:"inSync"`
	Reason      string       `json:"reason"`
	Message     string       `json:"message,omitempty"`
	Interfaces  int32        `json:"interfaces"`
	Truncated   bool         `json:"truncated,omitempty"`
	Policies    []string     `json:"policies"`
	Backend     string       `json:"backend,omitempty"`
	LastSuccess *metav1.Time `json:"lastSuccess,omitempty"`
	Attempt     int32        `json:"attempt,omitempty"`
	NextAttempt *metav1.Time `json:"nextAttempt,omitempty"`
	Created     metav1.Time  `json:"created"`
}

func newNodeState(s *nmstatev1.NodeNetworkState) nodeState {
	line := nodeState{
		Node: s.Name, Managed: s.Spec.IsManaged(), InSync: string(metav1.ConditionUnknown), Interfaces: s.Status.Interfaces, Truncated: s.Status.Truncated, Policies: []string{},
		Backend: s.Status.Backend, LastSuccess: s.Status.LastSuccess, Attempt: s.Status.Attempt, NextAttempt: s.Status.NextAttempt, Created: s.CreationTimestamp,
	}
	if c := meta.FindStatusCondition(s.Status.Conditions, nmstatev1.ConditionInSync); c != nil {
		line.InSync, line.Reason, line.Message = string(c.Status), c.Reason, c.Message
	}
	if s.Status.ObservedGeneration < s.Generation && line.Managed {
		line.Message = strings.TrimPrefix(line.Message+"; the agent has not seen the latest edit yet", "; ")
	}
	if s.Spec.FromPolicies != nil {
		for _, p := range s.Spec.FromPolicies.Policies {
			line.Policies = append(line.Policies, p.Name)
		}
	}
	return line
}

const nodeStateListLong = `Ls lists the nodes' states: whether the agent manages the node, whether the node is as desired and if not why, how many interfaces of its own it
has, and how many policies contribute to what is desired. With -o wide also which policies, the backend, when the node was last as desired, and when the next attempt is made.`

func nodeStateList(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "Nodes, and whether they are as desired", Long: nodeStateListLong, Args: exactly(),
		Example: "  netctl node-state ls\n  netctl node-state ls -o wide\n  netctl node-state ls -o json | jq -r '.[] | select(.inSync != \"True\").node'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			lines := []nodeState{}
			err := fromAPI(cmd, o, func(ctx context.Context, c *apiserver.Client) error {
				states, err := listStates(ctx, c)
				for i := range states {
					lines = append(lines, newNodeState(&states[i]))
				}
				return err
			})
			if err != nil {
				return err
			}
			slices.SortFunc(lines, func(a, b nodeState) int { return cmp.Compare(a.Node, b.Node) })
			return show(cmd.OutOrStdout(), o, lines, func(w io.Writer, wide bool) { printStates(w, lines, wide) })
		},
	}
}

func printStates(w io.Writer, lines []nodeState, wide bool) {
	heading := []string{"NODE", "MANAGED", "IN SYNC", "REASON", "INTERFACES", "POLICIES", "AGE"}
	if wide {
		heading = append(heading, "BACKEND", "LAST SUCCESS", "ATTEMPT", "NEXT", "MESSAGE")
	}
	var rows [][]string
	for _, l := range lines {
		interfaces := fmt.Sprint(l.Interfaces)
		if l.Truncated {
			interfaces += " (not all shown)"
		}
		row := []string{l.Node, fmt.Sprint(l.Managed), l.InSync, dash(l.Reason), interfaces, fmt.Sprint(len(l.Policies)), age(l.Created.Time)}
		if wide {
			row[5] = dash(strings.Join(l.Policies, ","))
			row = append(row, dash(l.Backend), clock(l.LastSuccess), fmt.Sprint(l.Attempt), clock(l.NextAttempt), dash(l.Message))
		}
		rows = append(rows, row)
	}
	table(w, heading, rows)
}

func clock(t *metav1.Time) string {
	if t == nil || t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// stateDiff is what a node lacks to be as desired.
type stateDiff struct {
	Node        string            `json:"node"`
	Managed     bool              `json:"managed"`
	InSync      string            `json:"inSync"`
	Reason      string            `json:"reason"`
	Message     string            `json:"message,omitempty"`
	Differences []stateDifference `json:"differences"`
	Notes       []string          `json:"notes,omitempty"`
	nothing     bool              // is desired
}

type stateDifference struct {
	Path string `json:"path"`
	Want any    `json:"want"`           // null: it shall not be there
	Have any    `json:"have"`           // null: it is not there
	From string `json:"from,omitempty"` // by hand, or policies
}

const nodeStateDiffLong = `Diff tells what a node lacks to be as its desired state says: what is desired, what its agent last reported, and whether the wish came from
policies or was written by hand. What the desired state does not name does not matter, nor do text forms (MAC case, IPv6), link-local addresses and lifetimes.

It exits with 0 if nothing differs, with 1 if something does, and with more on trouble: 2 for wrong usage, 3 if the API server does not
answer, 4 for everything else.`

func nodeStateDiff(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "diff NODE", Short: "What a node lacks to be as desired", Long: nodeStateDiffLong, Args: oneNode, ValidArgsFunction: completeStates(o),
		Example: "  netctl node-state diff node1\n  netctl node-state diff node1 -o json | jq -r '.differences[].path'",
		RunE: func(cmd *cobra.Command, args []string) error {
			return nodeStateDiffers(cmd, o, args[0])
		},
	}
}

func nodeStateDiffers(cmd *cobra.Command, o *options, node string) error {
	state, err := oneState(cmd, o, node)
	if err != nil {
		return err
	}
	d, err := newStateDiff(state)
	if err != nil {
		return err
	}
	if err := show(cmd.OutOrStdout(), o, d, func(w io.Writer, _ bool) { printStateDiff(w, d) }); err != nil {
		return err
	}
	if len(d.Differences) > 0 {
		return errDiffers
	}
	return nil
}

func newStateDiff(s *nmstatev1.NodeNetworkState) (*stateDiff, error) {
	line := newNodeState(s)
	d := &stateDiff{Node: s.Name, Managed: line.Managed, InSync: line.InSync, Reason: line.Reason, Message: line.Message, Differences: []stateDifference{}}
	desired, err := stored(s.Spec.DesiredState)
	nmstate.SpellDesired(desired)
	if err != nil {
		return nil, fmt.Errorf("spec.desiredState of node %s: %w", s.Name, err)
	}
	current, err := stored(s.Status.CurrentState)
	if err != nil {
		return nil, fmt.Errorf("status.currentState of node %s: %w", s.Name, err)
	}
	fromPolicies := map[string]bool{}
	if s.Spec.FromPolicies != nil {
		record, err := stored(s.Spec.FromPolicies.State)
		if err != nil {
			return nil, fmt.Errorf("spec.fromPolicies of node %s: %w", s.Name, err)
		}
		for _, one := range nmstate.Diff(record, current) {
			fromPolicies[one.Path+fmt.Sprint(one.Want)] = true
		}
	}
	for _, one := range nmstate.Diff(desired, current) {
		from := "by hand"
		if fromPolicies[one.Path+fmt.Sprint(one.Want)] {
			from = "policies"
		}
		d.Differences = append(d.Differences, stateDifference{one.Path, one.Want, one.Have, from})
	}
	d.Notes, d.nothing = notesOn(s, current), len(desired) == 0
	return d, nil
}

func notesOn(s *nmstatev1.NodeNetworkState, current nmstate.State) (notes []string) {
	if current == nil {
		notes = append(notes, "the node's agent has reported nothing yet: all that is desired counts as missing")
	}
	if s.Status.Truncated {
		notes = append(notes, "the report is truncated: what it leaves out counts as missing, though it may be there")
	}
	if !s.Spec.IsManaged() {
		notes = append(notes, "spec.managed is false: nothing is enforced, and what is reported is old")
	}
	return notes
}

// stored reads a document of an object.
func stored(s *nmstatev1.State) (nmstate.State, error) {
	if s == nil || len(s.Raw) == 0 {
		return nil, nil
	}
	return nmstate.Decode(s.Raw)
}

func printStateDiff(w io.Writer, d *stateDiff) {
	switch {
	case d.nothing:
		fmt.Fprintf(w, "nothing is desired of node %s\n", d.Node)
	case len(d.Differences) == 0:
		fmt.Fprintf(w, "node %s is as desired\n", d.Node)
	default:
		fmt.Fprintf(w, "node %s differs in %s", d.Node, plural(len(d.Differences), "place", "places"))
		if d.Reason != "" && d.Reason != nmstatev1.ReasonInSync {
			fmt.Fprintf(w, "; its agent says %s", oneLine.Replace(strings.TrimSuffix(d.Reason+": "+d.Message, ": ")))
		}
		fmt.Fprintln(w)
		var rows [][]string
		for _, one := range d.Differences {
			rows = append(rows, []string{one.Path, valueText(one.Have), valueText(one.Want), one.From})
		}
		table(w, []string{"WHERE", "IS", "SHOULD BE", "FROM"}, rows)
	}
	for _, n := range d.Notes {
		fmt.Fprintf(w, "note: %s\n", oneLine.Replace(n))
	}
}

const nodeStateHistoryLong = `History lists the latest attempts of a node's agent to change its network, newest first: when, for which generation of the object, how it ended
(Applied, RolledBack, Failed, Partial, Recovered), and what was changed or went wrong. With -o wide every change is a line of its own.`

func nodeStateHistory(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "history NODE", Short: "What was changed on a node, and how it ended", Long: nodeStateHistoryLong, Args: oneNode, ValidArgsFunction: completeStates(o),
		Example: "  netctl node-state history node1\n  netctl node-state history node1 -o wide",
		RunE: func(cmd *cobra.Command, args []string) error {
			state, err := oneState(cmd, o, args[0])
			if err != nil {
				return err
			}
			history := state.Status.History
			if history == nil {
				history = []nmstatev1.Attempt{}
			}
			return show(cmd.OutOrStdout(), o, history, func(w io.Writer, wide bool) { printHistory(w, args[0], history, wide) })
		},
	}
}

func printHistory(w io.Writer, node string, history []nmstatev1.Attempt, wide bool) {
	if len(history) == 0 {
		fmt.Fprintf(w, "nothing was ever changed on node %s by its agent\n", node)
		return
	}
	var rows [][]string
	for _, a := range history {
		what := slices.Clone(a.Changes)
		if a.Message != "" {
			what = append([]string{a.Message}, what...)
		}
		if !wide && len(what) > 1 {
			what = []string{fmt.Sprintf("%s; and %d more", what[0], len(what)-1)}
		}
		first := ""
		if len(what) > 0 {
			first, what = what[0], what[1:]
		}
		rows = append(rows, []string{clock(&a.Time), fmt.Sprint(a.Generation), string(a.Outcome), dash(first)})
		for _, more := range what {
			rows = append(rows, []string{"", "", "", more})
		}
	}
	table(w, []string{"TIME", "GENERATION", "OUTCOME", "WHAT"}, rows)
}
