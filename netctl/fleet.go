package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/fleet"
	"github.com/flowkeep/flowkeep/netctl/apiserver"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

const fleetLong = `Fleet shows what goes from a hub to its clusters and whether it is in force there: gateways, the policies that target them, and NetworkPolicies
(docs/policy-sync.md). It reads the objects of the hub's API server, so give the hub's kubeconfig or context; netmaster is not asked. What is to be sent and what clusters
say is worked out from them as netmaster policy-sync does, so that it is told also while policy-sync does not run. Nothing is changed.`

// fleetOptions are the flags that the commands below fleet share.
type fleetOptions struct {
	*options
	controller string
	sets       bool
	setsGiven  func() bool
	namespaces []string
}

// hasSets reports whether the selected controller sends NetworkPolicySets, which have no controllerName.
func (f *fleetOptions) hasSets() bool {
	if f.setsGiven() {
		return f.sets
	}
	return f.controller == string(fleet.DefaultController)
}

func fleetCommand(o *options) *cobra.Command {
	f := &fleetOptions{options: o}
	cmd := &cobra.Command{
		Use: "fleet", Short: "What goes from a hub to its clusters, and is it in force there", Long: fleetLong, RunE: group, Args: cobra.ArbitraryArgs,
		Example: "  netctl fleet status\n  netctl fleet gateways\n  netctl fleet policies shop/limit\n  netctl fleet explain RateLimitPolicy shop/limit --cluster eu-1",
	}
	cmd.PersistentFlags().StringVar(&f.controller, "controller-name", string(fleet.DefaultController), "controllerName of the GatewayClasses, as policy-sync has it")
	cmd.PersistentFlags().BoolVar(&f.sets, "network-policy-sets", false, "NetworkPolicySets go by that controller, as policy-sync has it; default: with the default --controller-name only")
	cmd.PersistentFlags().StringSliceVar(&f.namespaces, "set-namespaces", fleet.DefaultNamespaces, "namespaces of spokes that NetworkPolicySets may write into, as policy-sync has it")
	f.setsGiven = func() bool { return cmd.PersistentFlags().Changed("network-policy-sets") }
	_ = cmd.RegisterFlagCompletionFunc("controller-name", cobra.NoFileCompletions)
	cmd.AddCommand(fleetGateways(f), fleetPolicies(f), withResult(fleetStatus(f)), fleetExplain(f))
	return cmd
}

// view reads a hub, and puts together what becomes of what it has.
func (f *fleetOptions) view(cmd *cobra.Command) (view *fleet.View, err error) {
	err = fromAPI(cmd, f.options, func(ctx context.Context, c *apiserver.Client) error {
		h, err := readHub(ctx, c, gatewayv1.GatewayController(f.controller), f.hasSets())
		if err != nil {
			return err
		}
		if h.Namespaces, err = fleet.ParseNamespaces(f.namespaces); err != nil {
			return fmt.Errorf("--set-namespaces: %w", err)
		}
		if err := f.works(ctx, cmd, c, h, nil); err != nil {
			return err
		}
		view = h.View()
		return nil
	})
	return view, whichCluster(err)
}

// works reads those of a hub; who sits at a terminal sees how far that is when it takes long.
func (f *fleetOptions) works(ctx context.Context, cmd *cobra.Command, c *apiserver.Client, h *fleet.Hub, bundles []fleet.Source) error {
	progress, done := func(int, int) {}, func() {}
	if isTerminal(cmd.ErrOrStderr()) {
		progress, done = reading(cmd.ErrOrStderr(), time.Now(), time.Now)
	}
	defer done()
	return readWorks(ctx, c, h, bundles, progress)
}

// tellUnread prints the parts that a response lacks.
func tellUnread(cmd *cobra.Command, unread []string) {
	for _, u := range unread {
		fmt.Fprintf(cmd.ErrOrStderr(), "netctl: %s; the ClusterRoles flowkeep-fleet-view and flowkeep-fleet-view-parameters of deploy/roles.yaml are for it\n", oneLine.Replace(u))
	}
}

// whichCluster says of an API server that knows nothing of what a hub has that it may be none.
func whichCluster(err error) error {
	if n, ok := errors.AsType[*apiserver.NotOK](err); ok && n.Code == http.StatusForbidden {
		return fmt.Errorf("%w; reading a fleet takes get and list of what policy-sync reads (ClusterRole flowkeep-fleet-view in deploy/roles.yaml)", err)
	}
	return err
}

// inCluster is what is known of something in a cluster.
type inCluster struct {
	Cluster string `json:"cluster"`
	InForce string `json:"inForce"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// everywhere is one answer for all clusters.
type everywhere struct {
	InForce  string      `json:"inForce"`
	By       string      `json:"by"`
	Reason   string      `json:"reason"`
	Message  string      `json:"message"`
	Clusters []inCluster `json:"clusters"`
}

func newEverywhere(e fleet.Everywhere) everywhere {
	all := everywhere{string(e.Status), e.By, e.Reason, e.Message, []inCluster{}}
	for _, c := range e.Clusters {
		all.Clusters = append(all.Clusters, inCluster{c.Cluster, string(c.Status), c.Reason, c.Message})
	}
	return all
}

// counted returns text such as "2 of 3".
func (e *everywhere) counted() string {
	in := 0
	for _, c := range e.Clusters {
		if c.InForce == string(metav1.ConditionTrue) {
			in++
		}
	}
	return fmt.Sprintf("%d of %d", in, len(e.Clusters))
}

// lacking names the clusters where it is not in force.
func (e *everywhere) lacking() string {
	const most = 5
	var names []string
	for _, c := range e.Clusters {
		if c.InForce != string(metav1.ConditionTrue) {
			names = append(names, c.Cluster)
		}
	}
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ","), len(names)-most)
	}
	return dash(strings.Join(names, ","))
}

// rows returns a line for each cluster.
func (e *everywhere) rows() (rows [][]string) {
	for _, c := range e.Clusters {
		rows = append(rows, []string{c.Cluster, c.InForce, dash(c.Reason), dash(c.Message)})
	}
	return rows
}

// fleetGateway is a line of gateways.
type fleetGateway struct {
	Gateway    string     `json:"gateway"`
	Class      string     `json:"class"`
	Placement  string     `json:"placement,omitempty"`
	Spoke      string     `json:"spoke,omitempty"`
	Addresses  []string   `json:"addresses"`
	Policies   []string   `json:"policies"`
	Programmed everywhere `json:"programmed"`
	// Overridden and Conflicts are policies that lost against others in clusters.
	Overridden []lostPolicy `json:"overridden"`
	Conflicts  []lostPolicy `json:"conflicts"`
	// SameTarget says which policies target what an older one of their kind does, unless all clusters take both.
	SameTarget []string `json:"sameTarget"`
}

type lostPolicy struct {
	Policy  string `json:"policy"`
	Cluster string `json:"cluster"`
	Message string `json:"message"`
}

func newFleetGateway(v *fleet.GatewayView) fleetGateway {
	g := fleetGateway{
		Gateway: v.String(), Class: v.Class, Addresses: v.Report.Addresses(), Policies: []string{}, Programmed: newEverywhere(v.Report.Everywhere()),
		Overridden: newLost(fleet.Overridden(v.Name, v.Report.Policies)), Conflicts: newLost(fleet.Conflicts(v.Name, v.Report.Policies)),
		SameTarget: append([]string{}, fleet.Rivals(v.Name, v.Report.Policies)...),
	}
	if v.Placement.Name != "" {
		g.Placement = v.Placement.String()
	}
	if v.Spoke.Name != "" {
		g.Spoke = v.Spoke.String()
	}
	for i := range v.Report.Policies {
		g.Policies = append(g.Policies, nameOfPolicy(&v.Report.Policies[i].Policy))
	}
	return g
}

func newLost(all []fleet.Lost) []lostPolicy {
	lost := []lostPolicy{}
	for _, l := range all {
		lost = append(lost, lostPolicy(l))
	}
	return lost
}

func nameOfPolicy(p *fleet.Policy) string { return p.Kind.Kind + "/" + p.Name.String() }

const fleetGatewaysLong = `Gateways lists the hub's Gateways of classes that are handled: where their Placement puts them, in how many clusters they are programmed, their
addresses there, and how many policies go along. With the name of one it tells each cluster's state, the policies that go along, and which of them are overridden or in
conflict with others in clusters.`

func fleetGateways(f *fleetOptions) *cobra.Command {
	return &cobra.Command{
		Use: "gateways [NAMESPACE/NAME]", Aliases: []string{"gateway", "gw"}, Short: "Gateways that go to clusters", Long: fleetGatewaysLong, Args: optionalID,
		Example: "  netctl fleet gateways\n  netctl fleet gateways shop/web\n  netctl fleet gateways -o json | jq -r '.[] | select(.programmed.inForce != \"True\").gateway'",
		ValidArgsFunction: completeFleet(f, func(v *fleet.View) (names []string) {
			for i := range v.Gateways {
				names = append(names, v.Gateways[i].String())
			}
			return names
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			view, err := f.view(cmd)
			if err != nil {
				return err
			}
			tellUnread(cmd, view.Unread)
			lines := []fleetGateway{}
			for i := range view.Gateways {
				if g := &view.Gateways[i]; len(args) == 0 || g.String() == args[0] {
					lines = append(lines, newFleetGateway(g))
				}
			}
			if len(args) == 0 {
				return show(cmd.OutOrStdout(), f.options, lines, func(w io.Writer, wide bool) { printFleetGateways(w, lines, wide) })
			}
			if len(lines) == 0 {
				return fmt.Errorf("the hub has no Gateway %s of a class of %s; netctl fleet gateways lists those that it has", args[0], f.controller)
			}
			return show(cmd.OutOrStdout(), f.options, lines[0], func(w io.Writer, _ bool) { printFleetGateway(w, &lines[0]) })
		},
	}
}

// optionalID accepts at most one name of an object.
func optionalID(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return oneID(cmd, args)
}

func printFleetGateways(w io.Writer, lines []fleetGateway, wide bool) {
	if len(lines) == 0 {
		fmt.Fprintln(w, "no Gateway of a class that is handled")
		return
	}
	heading := []string{"GATEWAY", "CLASS", "PLACEMENT", "PROGRAMMED", "IN CLUSTERS", "LACKING", "POLICIES"}
	if wide {
		heading = append(heading, "SPOKE NAME", "ADDRESSES", "OVERRIDDEN", "CONFLICTS", "MESSAGE")
	}
	var rows [][]string
	for i := range lines {
		g := &lines[i]
		row := []string{g.Gateway, g.Class, dash(g.Placement), g.Programmed.InForce, g.Programmed.counted(), g.Programmed.lacking(), fmt.Sprint(len(g.Policies))}
		if wide {
			row = append(row, dash(g.Spoke), dash(strings.Join(g.Addresses, ",")), fmt.Sprint(len(g.Overridden)), fmt.Sprint(len(g.Conflicts)), dash(g.Programmed.Message))
		}
		rows = append(rows, row)
	}
	table(w, heading, rows)
}

func printFleetGateway(w io.Writer, g *fleetGateway) {
	fmt.Fprintf(w, "gateway %s of class %s, placed by %s", g.Gateway, g.Class, dash(g.Placement))
	if g.Spoke != "" {
		fmt.Fprintf(w, "; on the clusters it is %s", g.Spoke)
	}
	fmt.Fprintf(w, "\nprogrammed everywhere: %s (%s)\n", g.Programmed.InForce, oneLine.Replace(g.Programmed.Message))
	if len(g.Addresses) > 0 {
		fmt.Fprintf(w, "addresses: %s\n", strings.Join(g.Addresses, ", "))
	}
	fmt.Fprintln(w)
	table(w, []string{"CLUSTER", "PROGRAMMED", "REASON", "MESSAGE"}, g.Programmed.rows())
	for _, p := range g.Policies {
		fmt.Fprintf(w, "policy: %s\n", p)
	}
	for _, l := range g.Overridden {
		fmt.Fprintf(w, "overridden: %s in %s: %s\n", l.Policy, l.Cluster, oneLine.Replace(l.Message))
	}
	for _, l := range g.Conflicts {
		fmt.Fprintf(w, "conflict: %s in %s: %s\n", l.Policy, l.Cluster, oneLine.Replace(l.Message))
	}
	for _, text := range g.SameTarget {
		fmt.Fprintf(w, "same target: %s\n", text)
	}
}

// fleetPolicy is a line of policies and of status.
type fleetPolicy struct {
	Kind     string   `json:"kind"`
	Policy   string   `json:"policy"`
	Gateways []string `json:"gateways,omitempty"`
	// Set is that of a NetworkPolicy.
	Set     string     `json:"set,omitempty"`
	InForce everywhere `json:"inForce"`
}

// fleetPoliciesOf returns all policies that concern clusters, and the NetworkPolicies of all sets.
func fleetPoliciesOf(v *fleet.View) []fleetPolicy {
	lines := []fleetPolicy{}
	for i := range v.Policies {
		if v.Policies[i].Concerns() {
			lines = append(lines, newFleetPolicy(&v.Policies[i]))
		}
	}
	for i := range v.Sets {
		s := &v.Sets[i]
		for j := range s.Report.Policies {
			p := &s.Report.Policies[j]
			lines = append(lines, fleetPolicy{Kind: kindNetworkPolicy, Policy: p.Name.String(), Set: s.String(), InForce: newEverywhere(p.Everywhere())})
		}
		if s.Report.Problem != nil {
			e := fleet.Everywhere{Status: metav1.ConditionFalse, Reason: s.Report.Problem.Reason, Message: s.Report.Problem.Message, By: "Synced"}
			lines = append(lines, fleetPolicy{Kind: "NetworkPolicySet", Policy: s.String(), Set: s.String(), InForce: newEverywhere(e)})
		}
	}
	slices.SortStableFunc(lines, func(a, b fleetPolicy) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Policy, b.Policy))
	})
	return lines
}

const kindNetworkPolicy = "NetworkPolicy"

func newFleetPolicy(p *fleet.PolicyView) fleetPolicy {
	line := fleetPolicy{Kind: p.Kind.Kind, Policy: p.Name.String(), Gateways: []string{}, InForce: newEverywhere(p.Everywhere())}
	for _, t := range p.Targets {
		line.Gateways = append(line.Gateways, t.Gateway.String())
	}
	return line
}

const fleetPoliciesLong = `Policies lists the hub's policies of the kinds that classes list, and the NetworkPolicies that sets select: which gateways they target or which set
sends them, and in how many clusters they are in force. With the name of one, or more of that name of several kinds, it tells each cluster's state.`

func fleetPolicies(f *fleetOptions) *cobra.Command {
	return &cobra.Command{
		Use: "policies [NAMESPACE/NAME]", Aliases: []string{"policy"}, Short: "Policies that go along with gateways, and NetworkPolicies of sets", Long: fleetPoliciesLong, Args: optionalID,
		Example:           "  netctl fleet policies\n  netctl fleet policies shop/limit\n  netctl fleet policies -o json | jq -r '.[] | select(.inForce.inForce != \"True\").policy'",
		ValidArgsFunction: completeFleet(f, policyNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			view, err := f.view(cmd)
			if err != nil {
				return err
			}
			tellUnread(cmd, view.Unread)
			lines := fleetPoliciesOf(view)
			if len(args) == 0 {
				return show(cmd.OutOrStdout(), f.options, lines, func(w io.Writer, wide bool) { printFleetPolicies(w, lines, wide) })
			}
			if lines = slices.DeleteFunc(lines, func(l fleetPolicy) bool { return l.Policy != args[0] }); len(lines) == 0 {
				return fmt.Errorf("nothing of the name %s goes from the hub to clusters; netctl fleet policies lists what does", args[0])
			}
			return show(cmd.OutOrStdout(), f.options, lines, func(w io.Writer, _ bool) { printEachPolicy(w, lines) })
		},
	}
}

func policyNames(v *fleet.View) (names []string) {
	for _, l := range fleetPoliciesOf(v) {
		names = append(names, l.Policy)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// from returns the set or the gateways that bring a policy to clusters.
func (p *fleetPolicy) from() string {
	if p.Set != "" {
		return "set " + p.Set
	}
	return dash(strings.Join(p.Gateways, ","))
}

func printFleetPolicies(w io.Writer, lines []fleetPolicy, wide bool) {
	if len(lines) == 0 {
		fmt.Fprintln(w, "no policies of kinds that classes list, and no NetworkPolicies of sets")
		return
	}
	heading := []string{"KIND", "POLICY", "WITH", "IN FORCE", "IN CLUSTERS", "LACKING"}
	if wide {
		heading = append(heading, "BY", "REASON", "MESSAGE")
	}
	var rows [][]string
	for i := range lines {
		p := &lines[i]
		row := []string{p.Kind, p.Policy, p.from(), p.InForce.InForce, p.InForce.counted(), p.InForce.lacking()}
		if wide {
			row = append(row, p.InForce.By, dash(p.InForce.Reason), dash(p.InForce.Message))
		}
		rows = append(rows, row)
	}
	table(w, heading, rows)
}

func printEachPolicy(w io.Writer, lines []fleetPolicy) {
	for i := range lines {
		p := &lines[i]
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s %s, with %s\nin force everywhere: %s (%s)\n\n", p.Kind, p.Policy, p.from(), p.InForce.InForce, oneLine.Replace(p.InForce.Message))
		table(w, []string{"CLUSTER", "IN FORCE", "REASON", "MESSAGE"}, p.InForce.rows())
	}
}

// errNotEverywhere ends fleet status where something is not in force everywhere.
var errNotEverywhere = errors.New("not everything is in force everywhere: see above")

// fleetAnswer is the output of status.
type fleetAnswer struct {
	InForce  string         `json:"inForce"`
	Policies []fleetPolicy  `json:"policies"`
	Gateways []fleetGateway `json:"gateways"`
	Problems []string       `json:"problems"`
}

const fleetStatusLong = `Status answers one question: is it in force everywhere? For each policy, gateway and NetworkPolicy that goes from the hub to clusters it says True if every
cluster has it in the version that the hub has now and says that it is in force, False if one says that it is not or does not take it, Unknown if one is silent, has not
answered yet, or answered about another version; and it names the clusters that lack it, and why. What is in force everywhere is counted; with -o wide it is listed too.

It exits with 1 if something is not in force everywhere, or a class of gateways has a problem, and with 4 if it failed.
Objects that you may not read are listed among the problems, and the rest is reported; the state is then Unknown at
best.`

func fleetStatus(f *fleetOptions) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Is it in force everywhere", Long: fleetStatusLong, Args: exactly(),
		Example: "  netctl fleet status\n  netctl fleet status -o json | jq '.policies[] | select(.inForce.inForce != \"True\")'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			view, err := f.view(cmd)
			if err != nil {
				return err
			}
			a := newFleetAnswer(view)
			if err := show(cmd.OutOrStdout(), f.options, a, func(w io.Writer, wide bool) { printFleetAnswer(w, a, wide) }); err != nil {
				return err
			}
			if a.InForce != string(metav1.ConditionTrue) {
				return errNotEverywhere
			}
			return nil
		},
	}
}

func newFleetAnswer(v *fleet.View) *fleetAnswer {
	problems := v.Problems()
	a := &fleetAnswer{InForce: string(metav1.ConditionTrue), Policies: fleetPoliciesOf(v), Gateways: []fleetGateway{}, Problems: append(v.Problems(), v.Unread...)}
	worst := func(status string) {
		if status == string(metav1.ConditionFalse) || a.InForce == string(metav1.ConditionTrue) {
			a.InForce = status
		}
	}
	for i := range v.Gateways {
		a.Gateways = append(a.Gateways, newFleetGateway(&v.Gateways[i]))
		worst(a.Gateways[i].Programmed.InForce)
	}
	for i := range a.Policies {
		worst(a.Policies[i].InForce.InForce)
	}
	if len(problems) > 0 {
		worst(string(metav1.ConditionFalse))
	}
	if len(v.Unread) > 0 {
		worst(string(metav1.ConditionUnknown))
	}
	return a
}

func printFleetAnswer(w io.Writer, a *fleetAnswer, wide bool) {
	fine := 0
	var rows [][]string
	line := func(kind, name string, e *everywhere) {
		if e.InForce == string(metav1.ConditionTrue) {
			if fine++; !wide {
				return
			}
		}
		rows = append(rows, []string{kind, name, e.InForce, e.counted(), e.lacking(), dash(e.Message)})
	}
	for i := range a.Gateways {
		line("Gateway", a.Gateways[i].Gateway, &a.Gateways[i].Programmed)
	}
	for i := range a.Policies {
		line(a.Policies[i].Kind, a.Policies[i].Policy, &a.Policies[i].InForce)
	}
	fmt.Fprintf(w, "in force everywhere: %s (%d of %d)\n", a.InForce, fine, len(a.Gateways)+len(a.Policies))
	if len(rows) > 0 {
		fmt.Fprintln(w)
		table(w, []string{"KIND", "NAME", "IN FORCE", "IN CLUSTERS", "LACKING", "MESSAGE"}, rows)
	}
	for _, p := range a.Problems {
		fmt.Fprintf(w, "problem: %s\n", oneLine.Replace(p))
	}
}

// completeFleet completes names of what a hub has.
func completeFleet(f *fleetOptions, names func(*fleet.View) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		short := &fleetOptions{f.inShort(), f.controller, f.sets, f.setsGiven, f.namespaces}
		view, err := short.view(cmd)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names(view), cobra.ShellCompDirectiveNoFileComp
	}
}
