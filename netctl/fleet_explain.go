package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/fleet"
	"github.com/flowkeep/flowkeep/netctl/apiserver"
	"github.com/spf13/cobra"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

const fleetExplainLong = `Explain tells why a policy is in force on each cluster, or is not: which gateways it targets, of which class they are, which Placement puts them on which
clusters, and if one of them goes nowhere why; for each cluster the name of the copy, the work that carries it, which overrides are in it, how far it has come and what the cluster
says; and which commands show more. KIND is a kind or a resource, in whatever case, such as RateLimitPolicy, ratelimitpolicies or ratelimitpolicy.kuadrant.io; Gateway, for a
gateway; or NetworkPolicy, for one that a NetworkPolicySet sends.`

func fleetExplain(f *fleetOptions) *cobra.Command {
	cluster := ""
	cmd := &cobra.Command{
		Use: "explain KIND NAMESPACE/NAME", Short: "Why a policy is in force on a cluster, or is not", Long: fleetExplainLong, Args: kindAndID,
		Example: "  netctl fleet explain RateLimitPolicy shop/limit\n  netctl fleet explain networkpolicy shop/deny --cluster eu-1\n  netctl fleet explain gateway shop/web -o json | jq '.copies[].message'",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 1 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return completeFleet(f, func(v *fleet.View) []string { return explainable(v, args) })(cmd, nil, toComplete)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			e, err := f.explanation(cmd, args[0], args[1], cluster)
			if err != nil {
				return err
			}
			return show(cmd.OutOrStdout(), f.options, e, func(w io.Writer, wide bool) { printFleetExplanation(w, e, wide) })
		},
	}
	cmd.Flags().StringVar(&cluster, "cluster", "", "only this one")
	_ = cmd.RegisterFlagCompletionFunc("cluster", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return completeFleet(f, clusterNames)(cmd, nil, "")
	})
	return cmd
}

func kindAndID(cmd *cobra.Command, args []string) error {
	if err := exactly("KIND", "NAMESPACE/NAME")(cmd, args); err != nil {
		return err
	}
	return oneID(cmd, args[1:])
}

// explainable completes kinds, then names of one.
func explainable(v *fleet.View, args []string) (all []string) {
	add := func(kind, name string) {
		if len(args) == 0 {
			all = append(all, kind)
		} else if strings.EqualFold(args[0], kind) {
			all = append(all, name)
		}
	}
	for i := range v.Gateways {
		add("Gateway", v.Gateways[i].String())
	}
	for _, p := range fleetPoliciesOf(v) {
		add(p.Kind, p.Policy)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func clusterNames(v *fleet.View) (names []string) {
	for i := range v.Gateways {
		for _, s := range v.Gateways[i].Report.States {
			names = append(names, s.Cluster)
		}
	}
	for i := range v.Sets {
		names = append(names, v.Sets[i].Report.Clusters...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// fleetExplanation is all that is known of how something goes to clusters.
type fleetExplanation struct {
	Kind       string       `json:"kind"`
	Name       string       `json:"name"`
	Generation int64        `json:"generation,omitempty"`
	InForce    everywhere   `json:"inForce"`
	Problem    string       `json:"problem,omitempty"`
	Ways       []fleetWay   `json:"ways"`
	Copies     []fleetCopy  `json:"copies"`
	Next       []string     `json:"next"`
	Overridden []lostPolicy `json:"overridden,omitempty"`
}

// fleetWay is what takes something to clusters, or why it does not.
type fleetWay struct {
	Gateway   string   `json:"gateway,omitempty"`
	Class     string   `json:"class,omitempty"`
	Set       string   `json:"set,omitempty"`
	Placement string   `json:"placement,omitempty"`
	Clusters  []string `json:"clusters"`
	Why       string   `json:"why,omitempty"`
}

// fleetCopy is one in a cluster.
type fleetCopy struct {
	Cluster   string   `json:"cluster"`
	Copy      string   `json:"copy"`
	Works     []string `json:"works"`
	Overrides []string `json:"overrides"`
	Phase     string   `json:"phase"`
	Since     string   `json:"since,omitempty"`
	InForce   string   `json:"inForce"`
	Reason    string   `json:"reason,omitempty"`
	Message   string   `json:"message,omitempty"`
	// Says are the cluster's newest conditions.
	Says []string `json:"says"`
}

func (f *fleetOptions) explanation(cmd *cobra.Command, kind, name, cluster string) (e *fleetExplanation, err error) {
	err = fromAPI(cmd, f.options, func(ctx context.Context, c *apiserver.Client) error {
		h, err := readHub(ctx, c, gatewayv1.GatewayController(f.controller), f.hasSets())
		if err != nil {
			return err
		}
		if h.Namespaces, err = fleet.ParseNamespaces(f.namespaces); err != nil {
			return fmt.Errorf("--set-namespaces: %w", err)
		}
		bundles := bundlesOf(h.View(), kind, name)
		if len(bundles) > 0 {
			if err := f.works(ctx, cmd, c, h, bundles); err != nil {
				return err
			}
		}
		tellUnread(cmd, h.Unread)
		if e = explainFleet(h.View(), kind, name, cluster); e == nil {
			return fmt.Errorf("the hub has no %s %s of a kind that goes to clusters; netctl fleet policies and netctl fleet gateways list what does", kind, name)
		}
		if cluster != "" && len(e.Copies) == 0 {
			return fmt.Errorf("%s %s does not go to a cluster %s", e.Kind, name, cluster)
		}
		return nil
	})
	return e, whichCluster(err)
}

// isKind reports whether a word names a kind: the kind or the resource, with or without its group.
func isKind(word, kind, resource, group string) bool {
	for _, name := range []string{kind, resource} {
		if strings.EqualFold(word, name) || strings.EqualFold(word, name+"."+group) {
			return true
		}
	}
	return false
}

func isGatewayKind(word string) bool { return isKind(word, "Gateway", "gateways", gatewayv1.GroupName) }

func isNetworkPolicyKind(word string) bool {
	return isKind(word, kindNetworkPolicy, "networkpolicies", "networking.k8s.io")
}

func isPolicyKind(word string, p *fleet.PolicyView) bool {
	return isKind(word, p.Kind.Kind, p.Kind.Resource, p.Kind.Group)
}

// bundlesOf returns the sources of the bundles that may contain the object.
func bundlesOf(v *fleet.View, kind, name string) (bundles []fleet.Source) {
	for i := range v.Gateways {
		if isGatewayKind(kind) && v.Gateways[i].String() == name {
			bundles = append(bundles, fleet.GatewaySource(v.Gateways[i].Name))
		}
	}
	for i := range v.Policies {
		if p := &v.Policies[i]; isPolicyKind(kind, p) && p.Name.String() == name {
			bundles = append(bundles, p.Source())
			for _, t := range p.Targets {
				bundles = append(bundles, fleet.GatewaySource(t.Gateway))
			}
		}
	}
	for i := range v.Sets {
		for j := range v.Sets[i].Report.Policies {
			if isNetworkPolicyKind(kind) && v.Sets[i].Report.Policies[j].Name.String() == name {
				bundles = append(bundles, fleet.SetSource(v.Sets[i].Name))
			}
		}
	}
	return bundles
}

// explainFleet returns nil if the object does not exist.
func explainFleet(v *fleet.View, kind, name, cluster string) *fleetExplanation {
	if isGatewayKind(kind) {
		for i := range v.Gateways {
			if v.Gateways[i].String() == name {
				return explainGateway(&v.Gateways[i], cluster)
			}
		}
		return nil
	}
	for i := range v.Policies {
		if p := &v.Policies[i]; isPolicyKind(kind, p) && p.Name.String() == name {
			return explainPolicy(p, cluster)
		}
	}
	if isNetworkPolicyKind(kind) {
		return explainNetworkPolicy(v, name, cluster)
	}
	return nil
}

func newFleetExplanation(kind, name string, all fleet.Everywhere) *fleetExplanation {
	return &fleetExplanation{Kind: kind, Name: name, InForce: newEverywhere(all), Ways: []fleetWay{}, Copies: []fleetCopy{}, Next: []string{}}
}

func explainPolicy(p *fleet.PolicyView, cluster string) *fleetExplanation {
	e := newFleetExplanation(p.Kind.Kind, p.Name.String(), p.Everywhere())
	e.Generation = p.Generation()
	if p.Problem != nil {
		e.Problem = p.Problem.Message
	}
	for _, t := range p.Targets {
		way := fleetWay{Gateway: t.Gateway.String(), Class: t.Class, Clusters: append([]string{}, t.Clusters...), Why: t.Why}
		if t.Placement.Name != "" {
			way.Placement = t.Placement.String()
		}
		e.Ways = append(e.Ways, way)
	}
	for i := range p.Copies {
		c := &p.Copies[i]
		e.add(p.Kind.Resource+"."+p.Kind.Group, cluster, newFleetCopy(c.State, c.Spoke, c.Works, c.Overrides, p.Report.SaidOf(&c.State)))
	}
	if len(p.Targets) == 0 && p.Problem == nil {
		e.Problem = "it targets no Gateway: spec.targetRef or spec.targetRefs names one of group gateway.networking.k8s.io"
	}
	return e
}

func explainGateway(g *fleet.GatewayView, cluster string) *fleetExplanation {
	e := newFleetExplanation("Gateway", g.String(), g.Report.Everywhere())
	way := fleetWay{Class: g.Class, Clusters: []string{}}
	if g.Placement.Name != "" {
		way.Placement = g.Placement.String()
	}
	if p := g.Report.Problem; p != nil {
		e.Problem, way.Why = p.Message, p.Message
	}
	if g.Selection.Gateway != nil {
		way.Clusters = append(way.Clusters, g.Selection.Gateway.Clusters...)
	}
	e.Ways = append(e.Ways, way)
	for i := range g.Report.States {
		s := &g.Report.States[i]
		e.add("gateways."+gatewayv1.GroupName, cluster, newFleetCopy(*s, g.Spoke, g.Works[s.Cluster], nil, s.Says()))
	}
	e.Overridden = newLost(fleet.Overridden(g.Name, g.Report.Policies))
	return e
}

func explainNetworkPolicy(v *fleet.View, name, cluster string) (e *fleetExplanation) {
	for i := range v.Sets {
		s := &v.Sets[i]
		for j := range s.Report.Policies {
			p := &s.Report.Policies[j]
			if p.Name.String() != name {
				continue
			}
			if e == nil {
				e = newFleetExplanation(kindNetworkPolicy, name, p.Everywhere())
			}
			e.Ways = append(e.Ways, fleetWay{Set: s.String(), Placement: s.Placement.String(), Clusters: append([]string{}, s.Report.Clusters...)})
			for k, state := range p.States {
				c := newFleetCopy(state, fleet.Name{Namespace: s.Target, Name: p.Name.Name}, s.Works[p.Name][state.Cluster], nil, nil)
				if k < len(p.Enforcements) {
					c.Says = saidTexts(p.Enforcements[k].Says())
				}
				e.add("networkpolicies", cluster, c)
			}
		}
	}
	return e
}

func newFleetCopy(s fleet.State, spoke fleet.Name, works []string, overrides []fleet.Name, said []fleet.Said) fleetCopy {
	c := fleetCopy{Cluster: s.Cluster, Copy: spoke.String(), Works: append([]string{}, works...), Overrides: []string{}, Phase: string(s.Phase), Reason: s.Reason, Message: s.Message, Says: saidTexts(said)}
	if !s.Since.IsZero() {
		c.Since = clock(&s.Since)
	}
	for _, o := range overrides {
		c.Overrides = append(c.Overrides, o.String())
	}
	return c
}

func saidTexts(said []fleet.Said) []string {
	texts := []string{}
	for _, c := range said {
		text := fmt.Sprintf("%s=%s", c.Type, c.Status)
		if c.Reason != "" {
			text += " (" + c.Reason + ")"
		}
		if c.Message != "" {
			text += ": " + c.Message
		}
		texts = append(texts, text)
	}
	return texts
}

// add takes a copy in, with what is known of it in the one answer, and where to look further where it is not well.
func (e *fleetExplanation) add(resource, cluster string, c fleetCopy) {
	if cluster != "" && c.Cluster != cluster {
		return
	}
	for _, in := range e.InForce.Clusters {
		if in.Cluster == c.Cluster {
			c.InForce, c.Reason, c.Message = in.InForce, cmp.Or(c.Reason, in.Reason), cmp.Or(c.Message, in.Message)
		}
	}
	e.Copies = append(e.Copies, c)
	if c.InForce == "True" && cluster == "" {
		return
	}
	const most = 10
	namespace, name, _ := strings.Cut(c.Copy, "/")
	for _, work := range c.Works {
		e.next(most, fmt.Sprintf("kubectl -n %s get manifestwork %s -o yaml", c.Cluster, work))
	}
	e.next(most, fmt.Sprintf("kubectl --context %s -n %s get %s %s -o yaml", c.Cluster, namespace, resource, name))
	switch {
	case c.Phase == string(fleet.Silent):
		e.next(most, "kubectl get managedcluster "+c.Cluster)
	case e.Kind == kindNetworkPolicy && c.Phase == string(fleet.Answered):
		e.next(most, fmt.Sprintf("netctl --context %s policy show %s", c.Cluster, c.Copy))
	}
}

func (e *fleetExplanation) next(most int, command string) {
	if len(e.Next) < most && !slices.Contains(e.Next, command) {
		e.Next = append(e.Next, command)
	}
}

func printFleetExplanation(w io.Writer, e *fleetExplanation, wide bool) {
	fmt.Fprintf(w, "%s %s", e.Kind, e.Name)
	if e.Generation > 0 {
		fmt.Fprintf(w, ", generation %d", e.Generation)
	}
	fmt.Fprintf(w, "\nin force everywhere: %s (%s)\n", e.InForce.InForce, oneLine.Replace(e.InForce.Message))
	if e.Problem != "" {
		fmt.Fprintf(w, "problem: %s\n", oneLine.Replace(e.Problem))
	}
	printWays(w, e.Ways)
	if len(e.Copies) > 0 {
		fmt.Fprintln(w)
		printCopies(w, e.Copies, wide)
	}
	for _, l := range e.Overridden {
		fmt.Fprintf(w, "overridden: %s in %s: %s\n", l.Policy, l.Cluster, oneLine.Replace(l.Message))
	}
	if len(e.Next) > 0 {
		fmt.Fprintln(w, "\nlook further with")
	}
	for _, n := range e.Next {
		fmt.Fprintf(w, "  %s\n", oneLine.Replace(n))
	}
}

// printWays prints a sentence for each way by which a set or gateway sends the object to clusters.
func printWays(w io.Writer, ways []fleetWay) {
	for _, y := range ways {
		var by string
		switch {
		case y.Set != "":
			by = "set " + y.Set
		case y.Gateway != "":
			by = "gateway " + y.Gateway
		default:
			by = "its class"
		}
		if y.Class != "" && y.Gateway != "" {
			by += " of class " + y.Class
		} else if y.Class != "" {
			by += " " + y.Class
		}
		switch {
		case y.Why != "":
			fmt.Fprintf(w, "by %s: nowhere, as %s\n", by, oneLine.Replace(y.Why))
		case len(y.Clusters) == 0:
			fmt.Fprintf(w, "by %s, Placement %s: nowhere, as its decisions name no cluster\n", by, y.Placement)
		default:
			fmt.Fprintf(w, "by %s, Placement %s: to %s\n", by, y.Placement, strings.Join(y.Clusters, ", "))
		}
	}
}

func printCopies(w io.Writer, copies []fleetCopy, wide bool) {
	heading := []string{"CLUSTER", "COPY", "STATE", "IN FORCE", "OVERRIDES", "WHY"}
	if wide {
		heading = []string{"CLUSTER", "COPY", "STATE", "SINCE", "IN FORCE", "OVERRIDES", "WORKS", "WHY", "THE CLUSTER SAYS"}
	}
	var rows [][]string
	for _, c := range copies {
		why := strings.TrimSuffix(dash(c.Reason)+": "+c.Message, ": ")
		row := []string{c.Cluster, c.Copy, c.Phase, dash(c.InForce), dash(strings.Join(c.Overrides, ",")), why}
		if wide {
			row = []string{c.Cluster, c.Copy, c.Phase, dash(c.Since), dash(c.InForce), dash(strings.Join(c.Overrides, ",")), dash(strings.Join(c.Works, ",")), why, dash(strings.Join(c.Says, "; "))}
		}
		rows = append(rows, row)
	}
	table(w, heading, rows)
}
