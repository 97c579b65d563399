package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// beginHost returns the keeper of the host's network, which compares it first with the nodes on disk. Before that, and
// before the first flows of this start, the policy rules are there: without one that an earlier version did not write,
// the flows would drop replies of Services.
func (r *runner) beginHost() *hostKeeper {
	h := r.newHostKeeper()
	if len(r.rules.nodes) == 0 {
		return h
	}
	r.node.infos <- r.rules.nodes
	cfg := hostnet.Config{Tunnelled: r.cfg.tunnelled(), Kept: &h.kept}
	cfg.Self, _ = split(r.cfg.Node, r.rules.nodes)
	if len(cfg.Self.PodCIDRs) == 0 || h.chooseNumbers(cfg.Self.PodCIDRs) != nil { // keepNetwork reports both
		return h
	}
	cfg.Numbers = h.numbers.inUse
	if err := hostnet.AddRules(&cfg); err != nil {
		r.log.Warn("could not add policy rules before the flows that need them", "error", err)
	}
	return h
}

// setUpWithoutLinks sets what needs no links of the host's network, for a time when they cannot be read. As in setUp
// the flows of podCIDRs that the node has lost are removed first. A repair does not wait for the owner.
func (h *hostKeeper) setUpWithoutLinks(ctx context.Context, cfg *hostnet.Config) error {
	if !h.steady {
		if err := h.do(ctx, func() { h.node.shutLost(ctx) }); err != nil {
			return err
		}
	}
	return hostnet.SetupWithoutLinks(cfg)
}

// networkProblems returns the problems of the cluster's network as this node sees it, bounded. infos are all nodes.
func networkProblems(
	cfg *hostnet.Config, infos []policy.NodeInfo, left []hostnet.Left,
	taken []string,
) (out []inspect.NetworkProblem) {
	add := func(kind, node, text string) {
		if len(out) < inspect.MaxNetworkProblems {
			out = append(out, inspect.NetworkProblem{Kind: kind, Node: node, Text: text})
		}
	}
	if text := wrongCIDRs(cfg.ClusterCIDRs, infos); text != "" {
		add(inspect.NetworkCIDRs, cfg.Self.Name, text)
	}
	if name, _ := hostnet.Underlay(cfg.Links, cfg.Self.Addresses); name == "" && len(cfg.Self.Addresses) > 0 {
		add(inspect.NetworkAddress, cfg.Self.Name, fmt.Sprintf(
			"no interface of the node has the InternalIP %s: correct the kubelet's --node-ip", cfg.Self.Addresses[0]))
	}
	if text := twin(cfg, infos); text != "" {
		add(inspect.NetworkAddress, cfg.Self.Name, text)
	}
	if err := hostnet.LegacyDrops(); err != nil {
		add(inspect.NetworkFirewall, cfg.Self.Name, err.Error())
	}
	for _, text := range taken[:min(len(taken), maxTaken)] {
		add(inspect.NetworkNumbers, cfg.Self.Name, text)
	}
	var offLink []hostnet.Left
	for _, l := range left {
		switch l.Reason {
		case hostnet.LeftOffLink:
			offLink = append(offLink, l)
		case hostnet.LeftConflict: // netmaster refuses such claims, and reports them
		default:
			add(inspect.NetworkPeer, l.Node, fmt.Sprintf("its podCIDR %s has no route: %s", l.CIDR, l.Text))
		}
	}
	if len(offLink) > inspect.MaxNetworkProblems { // a network with segments, which has routes of its own
		return out
	}
	for _, l := range offLink {
		add(inspect.NetworkOffLink, l.Node,
			fmt.Sprintf("its podCIDR %s is left to the routes of the network: %s", l.CIDR, l.Text))
	}
	return out
}

// twin returns a sentence about the first other Node with an address of this machine, as after a change of its name;
// empty if there is none. The Node that was there first keeps the address (docs/decisions/032).
func twin(cfg *hostnet.Config, infos []policy.NodeInfo) string {
	own := hostnet.OwnAddresses(cfg.Links)
	for i := range infos {
		at := slices.IndexFunc(infos[i].Addresses, func(a netip.Addr) bool { return own[a.Unmap()] })
		if at < 0 || infos[i].Name == cfg.Self.Name {
			continue
		}
		return fmt.Sprintf("the Node %s has the address %s of this machine, and other nodes send its packets there: "+
			"if it is a former name of this machine, kubectl delete node %[1]s", infos[i].Name, infos[i].Addresses[at])
	}
	return ""
}

// wrongCIDRs compares --cluster-cidrs with the podCIDRs of all nodes; empty if they hold all. The text is the same on
// all nodes with the same flag.
func wrongCIDRs(clusters []netip.Prefix, infos []policy.NodeInfo) string {
	var first string
	nodes := 0
	for i := range infos {
		outside := slices.IndexFunc(infos[i].PodCIDRs, func(p netip.Prefix) bool { return !within(p, clusters) })
		if outside < 0 {
			continue
		}
		if nodes++; first == "" {
			first = fmt.Sprintf("%s of node %s", infos[i].PodCIDRs[outside], infos[i].Name)
		}
	}
	if nodes == 0 {
		return ""
	}
	texts := []string{}
	for _, c := range clusters {
		texts = append(texts, c.String())
	}
	text := fmt.Sprintf("--cluster-cidrs (%s) do not hold the podCIDR %s", strings.Join(texts, ", "), first)
	if nodes > 1 {
		text += fmt.Sprintf(", nor those of %d more nodes", nodes-1)
	}
	return text + ": packets between pods are masqueraded, and policies take them for the node's; " +
		"correct network.clusterCIDRs"
}

func within(p netip.Prefix, list []netip.Prefix) bool {
	return slices.ContainsFunc(list, func(c netip.Prefix) bool { return c.Bits() <= p.Bits() && c.Contains(p.Addr()) })
}

// withContested returns problems with those of contested objects in front, in place of former ones, bounded.
func withContested(problems, contested []inspect.NetworkProblem) []inspect.NetworkProblem {
	isContested := func(p inspect.NetworkProblem) bool { return p.Kind == inspect.NetworkContested }
	all := slices.Concat(contested, slices.DeleteFunc(slices.Clone(problems), isContested))
	return all[:min(len(all), inspect.MaxNetworkProblems)]
}

// setProblems sets the metric, logs problems that are new, and has status report them.
func (h *hostKeeper) setProblems(problems []inspect.NetworkProblem) {
	count, firewall := map[string]float64{}, ""
	for _, p := range problems {
		if count[p.Kind]++; p.Kind == inspect.NetworkFirewall {
			firewall = p.Text
		}
		if !slices.Contains(h.problems, p) && p.Kind != inspect.NetworkPeer && p.Kind != inspect.NetworkOffLink {
			// reportLeft logs the others
			h.log.Error("the cluster's network is not right", "kind", p.Kind, "problem", p.Text)
		}
	}
	for _, kind := range inspect.NetworkKinds {
		h.metrics.networkProblems.WithLabelValues(kind).Set(count[kind])
	}
	h.problems = problems
	h.node.problems.Store(&problems)
	h.cfg.Health.SetReady("firewall", firewall)
}
