package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/netctl/apiserver"
	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"github.com/flowkeep/flowkeep/nodestate/nodeconfig"
	"github.com/flowkeep/flowkeep/policydb/kube"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

const nodeStatePlanLong = `Plan tells what would change where if the NodeNetworkConfigurationPolicies of the manifests were applied, or with --delete removed: which nodes
each is for and why not for others, which interfaces match, what would change on them, what would no longer be wanted (it stays as it is
until somebody changes it), and on what policies disagree and which wins. Nothing is changed.

What a node's agent would refuse is refused with the agent's error: the checks of the node's backend run on the node's
report.

It is the end of the roll-out that is shown, as the policy handler works it out of the nodes' current states; how many nodes change at
once, maxUnavailable, is not part of it. What other policies are changing at the moment is left out.

It exits with 0 if nothing would change, with 1 if something would, and with more on trouble: 2 for wrong usage or manifests that
cannot be read, 3 if the API server does not answer, 4 for everything else.`

const nodeStatePlanExample = `  netctl node-state plan -f policy.yaml
  kubectl kustomize overlays/prod | netctl node-state plan -f -
  netctl node-state plan --delete -f policy.yaml
  netctl node-state plan -f policy.yaml -o json | jq -r '.nodes[] | select(.changes != []).node'`

type planOptions struct {
	*options
	files     []string
	recursive bool
	remove    bool
}

func nodeStatePlan(o *options) *cobra.Command {
	p := &planOptions{options: o}
	cmd := &cobra.Command{
		Use: "plan -f FILE|DIR|-", Short: "What policies would change on nodes, before they are applied", Long: nodeStatePlanLong, Example: nodeStatePlanExample, Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return p.run(cmd) },
	}
	f := cmd.Flags()
	f.StringSliceVarP(&p.files, "filename", "f", nil, "a manifest, a directory of them, or - for standard input; may be given again")
	f.BoolVarP(&p.recursive, "recursive", "R", false, "directories with all that is below them")
	f.BoolVar(&p.remove, "delete", false, "what if they were removed")
	_ = cmd.MarkFlagFilename("filename", "yaml", "yml", "json")
	return cmd
}

func (p *planOptions) run(cmd *cobra.Command) error {
	policies, notes, err := p.read(cmd)
	if err != nil {
		return usageError{err}
	}
	var w nodeWorld
	if err := fromAPI(cmd, p.options, w.read); err != nil {
		return err
	}
	out, err := w.plan(policies, p.remove)
	if err != nil {
		return usageError{err}
	}
	out.Notes = append(notes, out.Notes...)
	if err := show(cmd.OutOrStdout(), p.options, out, func(w io.Writer, wide bool) { printPlan(w, out, wide) }); err != nil {
		return err
	}
	if !out.same() {
		return errDiffers
	}
	return nil
}

func (p *planOptions) read(cmd *cobra.Command) (policies []nmstatev1.NodeNetworkConfigurationPolicy, notes []string, err error) {
	switch {
	case len(p.files) == 0:
		return nil, nil, errors.New("say which manifests: -f FILE, -f DIRECTORY, or -f - for standard input")
	case count(p.files, "-") > 1:
		return nil, nil, errors.New("standard input can be read once: give -f - once")
	}
	others := 0
	for _, name := range p.files {
		objects, err := kube.Read(name, p.recursive, cmd.InOrStdin())
		if err != nil {
			return nil, nil, err
		}
		for _, o := range objects {
			if o.Kind != nmstatev1.KindPolicy || !slices.Contains(policyVersions, o.APIVersion) {
				others++
				continue
			}
			policy, err := policyOf(o.JSON)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %v: %w", o.Where, &o, err)
			}
			if policy.Name == "" {
				return nil, nil, fmt.Errorf("%s: a policy needs metadata.name", o.Where)
			}
			policies = append(policies, policy)
		}
	}
	if others > 0 {
		notes = append(notes, fmt.Sprintf("%s of other kinds left out", plural(others, "object", "objects")))
	}
	if len(policies) == 0 {
		return nil, nil, fmt.Errorf("there is no %s (%s) in %s", nmstatev1.KindPolicy, nmstatev1.GroupVersion, strings.Join(p.files, ", "))
	}
	return policies, notes, nil
}

// policyVersions are those that the API server serves.
var policyVersions = []string{nmstatev1.GroupVersion.String(), nmstatev1.GroupVersion.Group + "/v1beta1"}

// policyOf reads a policy but for its status, which kubernetes-nmstate's policies have another of.
func policyOf(raw []byte) (policy nmstatev1.NodeNetworkConfigurationPolicy, err error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(raw, &object); err != nil {
		return policy, err
	}
	delete(object, "status")
	if raw, err = json.Marshal(object); err != nil {
		return policy, err
	}
	return policy, yaml.UnmarshalStrict(raw, &policy)
}

// nodeWorld is what a plan is worked out of.
type nodeWorld struct {
	nodes    []corev1.Node
	states   map[string]*nmstatev1.NodeNetworkState
	policies map[string]*nmstatev1.NodeNetworkConfigurationPolicy
}

func (w *nodeWorld) read(ctx context.Context, c *apiserver.Client) error {
	states, err := listStates(ctx, c)
	if err != nil {
		return err
	}
	policies, err := apiserver.List[nmstatev1.NodeNetworkConfigurationPolicy](ctx, c, policiesPath)
	if err != nil {
		return fmt.Errorf("list policies: %w", err)
	}
	if w.nodes, err = apiserver.List[corev1.Node](ctx, c, "/api/v1/nodes"); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	w.states, w.policies = map[string]*nmstatev1.NodeNetworkState{}, map[string]*nmstatev1.NodeNetworkConfigurationPolicy{}
	for i := range states {
		w.states[states[i].Name] = &states[i]
	}
	for i := range policies {
		w.policies[policies[i].Name] = &policies[i]
	}
	return nil
}

// nodePlan is the whole answer.
type nodePlan struct {
	Policies []plannedPolicy `json:"policies"`
	Nodes    []plannedNode   `json:"nodes"`
	Notes    []string        `json:"notes,omitempty"`
}

type plannedPolicy struct {
	Name   string `json:"name"`
	Action string `json:"action"` // created, changed, unchanged, removed, missing
}

type plannedNode struct {
	Node string `json:"node"`
	// Policies has for each given policy whether it is for the node, and why.
	Policies []plannedMatch `json:"policies"`
	// Changes are what would change on the node.
	Changes []stateDifference `json:"changes"`
	// Dropped is no longer desired; the node keeps it until a change removes it.
	Dropped   []stateDifference    `json:"dropped"`
	Conflicts []nmstatev1.Conflict `json:"conflicts"`

	note string // why the plan may miss a refusal
}

type plannedMatch struct {
	Policy     string          `json:"policy"`
	Matched    bool            `json:"matched"`
	Phase      nmstatev1.Phase `json:"phase"`
	Reason     string          `json:"reason,omitempty"`
	Message    string          `json:"message,omitempty"`
	Interfaces []string        `json:"interfaces,omitempty"`
}

func (p *nodePlan) same() bool {
	return !slices.ContainsFunc(p.Nodes, func(n plannedNode) bool { return len(n.Changes)+len(n.Dropped) > 0 })
}

func (w *nodeWorld) plan(given []nmstatev1.NodeNetworkConfigurationPolicy, remove bool) (*nodePlan, error) {
	out := &nodePlan{Policies: []plannedPolicy{}, Nodes: []plannedNode{}}
	after := maps.Clone(w.policies)
	for i := range given {
		g := &given[i]
		out.Policies = append(out.Policies, plannedPolicy{g.Name, w.try(after, g, remove)})
	}
	before, then := understood(w.policies), understood(after)
	for _, p := range then {
		if slices.ContainsFunc(given, func(g nmstatev1.NodeNetworkConfigurationPolicy) bool { return g.Name == p.Name }) && p.Err != nil {
			return nil, fmt.Errorf("policy %s: %w", p.Name, p.Err)
		}
	}
	for i := range w.nodes {
		state := nodeconfig.ReadState(w.states[w.nodes[i].Name])
		n := &nodeconfig.Node{Object: &w.nodes[i], State: state}
		decision := nodeconfig.Decide(n, then, nil)
		planned, err := w.planNode(n, given, nodeconfig.Decide(n, before, nil), decision)
		if err != nil {
			return nil, err
		}
		for _, g := range given {
			if e, ok := decision.Entries[g.Name]; ok {
				planned.Policies = append(planned.Policies, plannedMatch{g.Name, e.Matched, e.Phase, e.Reason, e.Message, e.Interfaces})
			}
		}
		if planned.note != "" {
			out.Notes = append(out.Notes, "node "+planned.Node+": "+planned.note)
		}
		out.Nodes = append(out.Nodes, *planned)
	}
	slices.SortFunc(out.Nodes, func(a, b plannedNode) int { return cmp.Compare(a.Node, b.Node) })
	if len(w.nodes) == 0 {
		out.Notes = append(out.Notes, "the cluster has no nodes")
	}
	return out, nil
}

// try adds a policy to the others, or removes it, and returns a description.
func (w *nodeWorld) try(after map[string]*nmstatev1.NodeNetworkConfigurationPolicy, g *nmstatev1.NodeNetworkConfigurationPolicy, remove bool) string {
	old, known := w.policies[g.Name]
	switch {
	case remove && known:
		delete(after, g.Name)
		return "removed"
	case remove:
		return "missing"
	case !known:
		g.Generation = 1
		after[g.Name] = g
		return "created"
	case reflect.DeepEqual(asJSON(old.Spec), asJSON(g.Spec)):
		return "unchanged"
	}
	g.Generation = old.Generation + 1
	after[g.Name] = g
	return "changed"
}

func asJSON(v any) (decoded any) {
	raw, err := json.Marshal(v)
	if err == nil {
		_ = json.Unmarshal(raw, &decoded) // what was encoded can be decoded
	}
	return decoded
}

func understood(policies map[string]*nmstatev1.NodeNetworkConfigurationPolicy) (list []*nodeconfig.Policy) {
	for _, p := range policies {
		list = append(list, nodeconfig.NewPolicy(p))
	}
	nodeconfig.Sort(list)
	return list
}

// planNode compares what two sets of policies make of a node.
func (w *nodeWorld) planNode(
	on *nodeconfig.Node, given []nmstatev1.NodeNetworkConfigurationPolicy, before, after nodeconfig.Decision,
) (*plannedNode, error) {
	name := on.Object.Name
	out := &plannedNode{Node: name, Policies: []plannedMatch{}, Changes: []stateDifference{}, Dropped: []stateDifference{}, Conflicts: []nmstatev1.Conflict{}}
	for _, policy := range given {
		for _, c := range after.Conflicts[policy.Name] {
			if !slices.Contains(out.Conflicts, c) { // both sides report it
				out.Conflicts = append(out.Conflicts, c)
			}
		}
	}
	slices.SortFunc(out.Conflicts, func(a, b nmstatev1.Conflict) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Loser, b.Loser))
	})
	state := w.states[name]
	if state == nil || !state.Spec.IsManaged() {
		return out, nil
	}
	current, err := stored(state.Status.CurrentState)
	if err != nil {
		return nil, fmt.Errorf("status.currentState of node %s: %w", name, err)
	}
	desired, err := stored(state.Spec.DesiredState)
	nmstate.SpellDesired(desired)
	if err != nil {
		return nil, fmt.Errorf("spec.desiredState of node %s: %w", name, err)
	}
	was, then := written(before, desired), written(after, desired)
	n := reportOf(state, current)
	n.addresses = nodeconfig.Addresses(on.Object)
	if err := n.newRefusals(was, then); err != nil {
		return nil, fmt.Errorf("node %s would refuse this: %w", name, err)
	}
	out.note = n.note
	pending := nmstate.Diff(was, current)
	for _, d := range nmstate.Diff(then, current) {
		if !slices.ContainsFunc(pending, func(p nmstate.Difference) bool { return reflect.DeepEqual(p, d) }) {
			out.Changes = append(out.Changes, stateDifference{d.Path, d.Want, d.Have, ""})
		}
	}
	for _, d := range nmstate.Diff(was, then) {
		if d.Have == nil && !goes(then, d.Path) {
			out.Dropped = append(out.Dropped, stateDifference{d.Path, nil, d.Want, ""})
		}
	}
	return out, nil
}

// written returns a node's desired state after a decision.
func written(d nodeconfig.Decision, desired nmstate.State) nmstate.State {
	if d.Write == nil {
		return desired
	}
	return d.Write.Desired
}

// goes reports whether the desired state removes the interface of a path.
func goes(s nmstate.State, path string) bool {
	return slices.ContainsFunc(s.Interfaces(), func(i nmstate.Interface) bool {
		return i.State() == nmstate.Absent && path == "interfaces["+i.Key()+"]"
	})
}

func printPlan(w io.Writer, p *nodePlan, wide bool) {
	for _, policy := range p.Policies {
		fmt.Fprintf(w, "%-9s  %s\n", policy.Action, policy.Name)
	}
	changing := 0
	for _, n := range p.Nodes {
		if len(n.Changes) > 0 {
			changing++
		}
	}
	if p.same() {
		fmt.Fprintf(w, "nothing would change on %s\n", plural(len(p.Nodes), "node", "nodes"))
	} else {
		fmt.Fprintf(w, "would change %d of %s\n", changing, plural(len(p.Nodes), "node", "nodes"))
	}
	printMatches(w, p, wide)
	printChanges(w, p)
	for _, n := range p.Notes {
		fmt.Fprintf(w, "note: %s\n", oneLine.Replace(n))
	}
}

func printMatches(w io.Writer, p *nodePlan, wide bool) {
	var rows [][]string
	for _, n := range p.Nodes {
		for _, m := range n.Policies {
			interfaces := m.Interfaces
			if !wide && len(interfaces) > 5 {
				interfaces = append(slices.Clone(interfaces[:5]), fmt.Sprintf("and %d more", len(interfaces)-5))
			}
			why := m.Reason
			if m.Message != "" {
				why = strings.TrimPrefix(why+"; "+m.Message, "; ")
			}
			rows = append(rows, []string{n.Node, m.Policy, map[bool]string{true: "yes", false: "no"}[m.Matched], dash(strings.Join(interfaces, ",")), dash(why)})
		}
	}
	if len(rows) > 0 {
		fmt.Fprintln(w)
		table(w, []string{"NODE", "POLICY", "MATCHES", "INTERFACES", "WHY"}, rows)
	}
}

func printChanges(w io.Writer, p *nodePlan) {
	var changes, conflicts [][]string
	for _, n := range p.Nodes {
		for _, c := range n.Changes {
			changes = append(changes, []string{n.Node, c.Path, valueText(c.Have), valueText(c.Want)})
		}
		for _, d := range n.Dropped {
			changes = append(changes, []string{n.Node, d.Path, valueText(d.Have), "no longer wanted"})
		}
		for _, c := range n.Conflicts {
			conflicts = append(conflicts, []string{n.Node, c.Path, c.Winner + ": " + c.WinnerValue, c.Loser + ": " + c.LoserValue})
		}
	}
	if len(changes) > 0 {
		fmt.Fprintln(w)
		table(w, []string{"NODE", "WHERE", "NOW", "THEN"}, changes)
	}
	if len(conflicts) > 0 {
		fmt.Fprintln(w)
		table(w, []string{"NODE", "CONFLICT", "WINS", "LOSES"}, conflicts)
	}
}

// valueText returns a value of a state document on one line, shortened.
func valueText(v any) string {
	const most = 120
	switch v := v.(type) {
	case nil:
		return "absent"
	case string:
		return v
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	text := []rune(string(raw))
	if len(text) > most {
		return string(text[:most]) + "…"
	}
	return string(text)
}
