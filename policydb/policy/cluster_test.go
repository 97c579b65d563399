package policy_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// everyPod selects all pods of all namespaces.
var everyPod = policy.Peer{Namespaces: &policy.Selector{}}

// clusterPolicy returns a policy for all pods with ingress rules.
func clusterPolicy(name string, t policy.Tier, priority uint16, rules ...policy.ClusterRule) *policy.ClusterPolicy {
	return &policy.ClusterPolicy{Name: name, Tier: t, Priority: priority, Subject: everyPod, Ingress: rules}
}

// clusterRule returns a rule for all ports of peers; without any, for all pods.
func clusterRule(a policy.Action, peers ...policy.Peer) policy.ClusterRule {
	if len(peers) == 0 {
		peers = []policy.Peer{everyPod}
	}
	return policy.ClusterRule{Action: a, PolicyRule: policy.PolicyRule{Peers: peers, AnyPort: true}}
}

// onPort restricts a rule to a port.
func onPort(r policy.ClusterRule, p policy.PolicyPort) policy.ClusterRule {
	r.AnyPort, r.Ports = false, []policy.PolicyPort{p}
	return r
}

const (
	admin    = policy.AdminTier
	baseline = policy.BaselineTier
)

// clusterCase is a packet from web to api, to the port 80 where it is not said otherwise.
type clusterCase struct {
	name     string
	policies []*policy.ClusterPolicy
	isolates bool // a NetworkPolicy isolates api and allows nothing
	allows   bool // a NetworkPolicy isolates api and allows web
	want     bool
	by       string // the policy that decides; "" if none of a tier does
}

// TestAllowed_Tiers has the order of tiers, priorities and rules, and the actions, from the API's comments on Tier,
// Priority, Ingress and Action.
func TestAllowed_Tiers(t *testing.T) {
	accept, deny, pass := clusterRule(policy.Accept), clusterRule(policy.Deny), clusterRule(policy.Pass)
	of := func(p ...*policy.ClusterPolicy) []*policy.ClusterPolicy { return p }
	for _, c := range []clusterCase{
		{name: "no policy", want: true},
		{name: "Admin denies", policies: of(clusterPolicy("a", admin, 5, deny)), by: "a"},
		{name: "Admin denies before a NetworkPolicy allows", policies: of(clusterPolicy("a", admin, 5, deny)),
			allows: true, by: "a"},
		{name: "Admin accepts before a NetworkPolicy isolates", policies: of(clusterPolicy("a", admin, 5, accept)),
			isolates: true, want: true, by: "a"},
		{name: "Admin passes to an isolating NetworkPolicy", policies: of(clusterPolicy("a", admin, 5, pass)),
			isolates: true},
		{name: "Admin passes to an allowing NetworkPolicy", policies: of(clusterPolicy("a", admin, 5, pass)),
			allows: true, want: true},
		{name: "Pass skips the rest of the tier", policies: of(clusterPolicy("a", admin, 5, pass, deny),
			clusterPolicy("b", admin, 6, deny)), want: true},
		{name: "Pass leads to Baseline", policies: of(clusterPolicy("a", admin, 5, pass),
			clusterPolicy("b", baseline, 5, deny)), by: "b"},
		{name: "Baseline denies", policies: of(clusterPolicy("b", baseline, 5, deny)), by: "b"},
		{name: "a NetworkPolicy overrides Baseline", policies: of(clusterPolicy("b", baseline, 5, deny)), allows: true,
			want: true},
		{name: "Baseline does not accept for isolated pods", policies: of(clusterPolicy("b", baseline, 5, accept)),
			isolates: true},
		{name: "Baseline passes to the default", policies: of(clusterPolicy("b", baseline, 5, pass, deny)), want: true},
		{name: "the lower priority value comes first", policies: of(clusterPolicy("a", admin, 6, deny),
			clusterPolicy("b", admin, 5, accept)), want: true, by: "b"},
		{name: "Admin comes first whatever the priority", policies: of(clusterPolicy("b", baseline, 0, accept),
			clusterPolicy("a", admin, 1000, deny)), by: "a"},
		{name: "the first rule counts", policies: of(clusterPolicy("a", admin, 5, accept, deny)), want: true, by: "a"},
		{name: "equal priorities go by name", policies: of(clusterPolicy("b", admin, 5, deny),
			clusterPolicy("a", admin, 5, accept)), want: true, by: "a"},
		{name: "all rules of the first name precede", policies: of(clusterPolicy("b", admin, 5, deny),
			clusterPolicy("a", admin, 5, onPort(deny, policy.PolicyPort{Protocol: policy.UDP, Last: 65535}), accept)),
			want: true, by: "a"},
		{name: "names go by bytes", policies: of(clusterPolicy("a-b", admin, 5, accept),
			clusterPolicy("a", admin, 5, deny), clusterPolicy("B", admin, 5, accept)), want: true, by: "B"},
		{name: "a name comes before its extensions", policies: of(clusterPolicy("a-b", admin, 5, accept),
			clusterPolicy("a", admin, 5, deny)), by: "a"},
	} {
		t.Run(c.name, func(t *testing.T) { tiers(t, &c) })
	}
}

func tiers(t *testing.T, c *clusterCase) {
	w := shop()
	if c.isolates || c.allows {
		np := &policy.Policy{Namespace: "a", Name: "np", AppliedTo: *only("app", "api"), IsolatesIngress: true}
		if c.allows {
			np.Ingress = []policy.PolicyRule{{AnyPeer: true, AnyPort: true}}
		}
		w.Policies = []*policy.Policy{np}
	}
	w.ClusterPolicies = c.policies
	v := policy.Allowed(w, tcp(web, api, 80))
	if v.Allowed != c.want || v.Ingress.Cluster.Policy != c.by || !v.Egress.Allowed || v.Egress.Cluster.Policy != "" {
		t.Errorf("got %+v, want %v by %q", v, c.want, c.by)
	}
}

// TestAllowed_ClusterRuleMatches has what subjects, peers and protocols select, from the API's comments on them.
func TestAllowed_ClusterRuleMatches(t *testing.T) {
	red, blue := only("team", "red"), only("team", "blue")
	block := func(cidr string) policy.Peer {
		return policy.Peer{Block: &policy.IPBlock{CIDR: netip.MustParsePrefix(cidr)}}
	}
	named := policy.PolicyPort{Protocol: policy.TCP, Name: "http"}
	toNodes := policy.ClusterRule{Action: policy.Deny, Nodes: []policy.Selector{*only("role", "edge")}}
	toNodes.AnyPort = true
	otherNodes := toNodes
	otherNodes.Nodes = []policy.Selector{*only("role", "none")}
	for _, c := range []struct {
		name            string
		subject         policy.Peer
		ingress, egress policy.ClusterRule
		packet          policy.Packet
		denied          bool
	}{
		{name: "namespaces of the subject", subject: policy.Peer{Namespaces: red}, ingress: clusterRule(policy.Deny),
			packet: tcp(web, api, 80), denied: true},
		{name: "other namespaces than the subject's", subject: policy.Peer{Namespaces: blue},
			ingress: clusterRule(policy.Deny), packet: tcp(web, api, 80)},
		{name: "pods of the subject", subject: policy.Peer{Namespaces: red, Pods: only("app", "api")},
			ingress: clusterRule(policy.Deny), packet: tcp(web, api, 80), denied: true},
		{name: "other pods than the subject's", subject: policy.Peer{Namespaces: red, Pods: only("app", "web")},
			ingress: clusterRule(policy.Deny), packet: tcp(web, api, 80)},
		{name: "no rule in the packet's direction", subject: everyPod, ingress: clusterRule(policy.Deny),
			packet: tcp(web, outside, 80)},
		{name: "a peer's pods", subject: everyPod, packet: tcp(web, api, 80), denied: true,
			ingress: clusterRule(policy.Deny, policy.Peer{Namespaces: red, Pods: only("app", "web")})},
		{name: "no peer's pod", subject: everyPod, packet: tcp(web, api, 80),
			ingress: clusterRule(policy.Deny, policy.Peer{Namespaces: red, Pods: only("app", "api")})},
		{name: "an address outside is no pod", subject: everyPod, packet: tcp(outside, api, 80),
			ingress: clusterRule(policy.Deny)},
		{name: "networks contain pods too", subject: everyPod, packet: tcp(web, api, 80), denied: true,
			egress: clusterRule(policy.Deny, block("0.0.0.0/0"))},
		{name: "networks without protocols match ICMP", subject: everyPod, denied: true,
			packet: policy.Packet{From: web, To: outside, Protocol: 1},
			egress: clusterRule(policy.Deny, block("192.0.2.0/24"))},
		{name: "other networks", subject: everyPod, packet: tcp(web, outside, 80),
			egress: clusterRule(policy.Deny, block("198.51.100.0/24"))},
		{name: "a named port of the pod", subject: everyPod, packet: tcp(web, api, 80), denied: true,
			ingress: onPort(clusterRule(policy.Deny), named)},
		{name: "another port than the named one", subject: everyPod, packet: tcp(web, api, 81),
			ingress: onPort(clusterRule(policy.Deny), named)},
		{name: "nodes", subject: everyPod, packet: tcp(web, outside, 80), egress: toNodes, denied: true},
		{name: "other nodes", subject: everyPod, packet: tcp(web, outside, 80), egress: otherNodes},
		{name: "nodes, another port", subject: everyPod, packet: tcp(web, outside, 80),
			egress: onPort(toNodes, policy.PolicyPort{Protocol: policy.TCP, First: 81, Last: 90})},
	} {
		w := shop()
		w.Nodes = []policy.Node{{Labels: map[string]string{"role": "edge"}, Addresses: []netip.Addr{outside}}}
		w.ClusterPolicies = []*policy.ClusterPolicy{{Name: "p", Tier: admin, Subject: c.subject,
			Ingress: []policy.ClusterRule{c.ingress}, Egress: []policy.ClusterRule{c.egress}}}
		if v := policy.Allowed(w, c.packet); v.Allowed == c.denied {
			t.Errorf("%s: %+v", c.name, v)
		}
	}
}

// outranks reports whether a rule precedes another one, by each part of the rank in turn.
func outranks(a *policy.ClusterPolicy, i int, b *policy.ClusterPolicy, j int) bool {
	switch {
	case a.Tier != b.Tier:
		return a.Tier == policy.AdminTier
	case a.Priority != b.Priority:
		return a.Priority < b.Priority
	case a.Name != b.Name:
		return a.Name < b.Name
	}
	return i < j
}

// actionOf returns the action of a tier on a packet: it asks for each rule alone whether it matches, and takes the one
// that no other outranks.
func actionOf(w *policy.World, t policy.Tier, d policy.Direction, p policy.Packet) (action policy.Action) {
	var best *policy.ClusterPolicy
	at := 0
	for _, pol := range w.ClusterPolicies {
		for i, r := range pol.Rules(d) {
			if pol.Tier == t && matchesAlone(w, pol, r, d, p) && (best == nil || outranks(pol, i, best, at)) {
				best, at, action = pol, i, r.Action
			}
		}
	}
	return action
}

// matchesAlone reports whether a rule matches a packet: as the only rule of the world, and with the action Deny.
func matchesAlone(
	w *policy.World, pol *policy.ClusterPolicy, r policy.ClusterRule, d policy.Direction, p policy.Packet,
) bool {
	r.Action = policy.Deny
	alone := *pol
	alone.Ingress, alone.Egress = nil, nil
	if d == policy.Egress {
		alone.Egress = []policy.ClusterRule{r}
	} else {
		alone.Ingress = []policy.ClusterRule{r}
	}
	return !policy.Allowed(&policy.World{Namespaces: w.Namespaces, Endpoints: w.Endpoints, Nodes: w.Nodes,
		ClusterPolicies: []*policy.ClusterPolicy{&alone}}, p).Allowed
}

// allowedSlowly returns whether one end of a packet allows it, from the actions of the tiers and from the verdict that
// NetworkPolicies alone give.
func allowedSlowly(w *policy.World, d policy.Direction, p policy.Packet) bool {
	plain := *w
	plain.ClusterPolicies = nil
	v := policy.Allowed(&plain, p)
	end := v.Ingress
	if d == policy.Egress {
		end = v.Egress
	}
	switch first := actionOf(w, policy.AdminTier, d, p); {
	case first == policy.Accept || first == policy.Deny:
		return first == policy.Accept
	case len(end.Isolated) > 0:
		return end.Allowed
	}
	return actionOf(w, policy.BaselineTier, d, p) != policy.Deny
}

// TestAllowed_RandomTiers compares verdicts in random worlds with those by actionOf. It shuffles the policies, and
// checks that a rule that fails closed lets no packet pass that did not pass before.
func TestAllowed_RandomTiers(t *testing.T) {
	decided := map[bool]int{}
	for seed := range uint64(1500) {
		g := policytest.New(seed)
		w, p := g.TieredWorld(10, 3, 6), g.Packet(10)
		v := policy.Allowed(w, p)
		egress, ingress := allowedSlowly(w, policy.Egress, p), allowedSlowly(w, policy.Ingress, p)
		if v.Egress.Allowed != egress || v.Ingress.Allowed != ingress || v.Allowed != (egress && ingress) {
			t.Fatalf("seed %d: %+v, want %v and %v: %+v", seed, v, egress, ingress, p)
		}
		if v.Egress.Cluster.Policy != "" || v.Ingress.Cluster.Policy != "" {
			decided[v.Allowed]++
		}
		closed := *w
		closed.ClusterPolicies = slices.Clone(w.ClusterPolicies)
		g.Shuffle(len(closed.ClusterPolicies), func(i, j int) {
			closed.ClusterPolicies[i], closed.ClusterPolicies[j] = closed.ClusterPolicies[j], closed.ClusterPolicies[i]
		})
		if policy.Allowed(&closed, p).Allowed != v.Allowed {
			t.Fatalf("seed %d: the order of the list counts for %+v", seed, p)
		}
		less := *closed.ClusterPolicies[0]
		less.Ingress, less.Egress = failClosed(g, less.Ingress), failClosed(g, less.Egress)
		closed.ClusterPolicies[0] = &less
		if policy.Allowed(&closed, p).Allowed && !v.Allowed {
			t.Fatalf("seed %d: a rule that fails closed opens for %+v", seed, p)
		}
	}
	if decided[true] < 50 || decided[false] < 50 {
		t.Errorf("tiers allowed %d packets and denied %d", decided[true], decided[false])
	}
}

// failClosed returns rules of which one fails closed.
func failClosed(g policytest.Gen, rules []policy.ClusterRule) []policy.ClusterRule {
	rules = slices.Clone(rules)
	if len(rules) > 0 {
		i := g.IntN(len(rules))
		rules[i] = rules[i].FailClosed()
	}
	return rules
}

// TestDryRun_AfterTiers isolates api in a dry run. It would deny nothing where the Admin tier accepts.
func TestDryRun_AfterTiers(t *testing.T) {
	dry := &policy.Policy{Namespace: "a", Name: "dry", IsolatesIngress: true, DryRun: true}
	for tier, want := range map[policy.Tier]bool{admin: true, baseline: false} {
		w := shop(dry)
		w.ClusterPolicies = []*policy.ClusterPolicy{clusterPolicy("a", tier, 1, clusterRule(policy.Accept))}
		if v := policy.DryRun(w, tcp(web, api, 80)); v.Allowed != want {
			t.Errorf("%s: %+v", tier, v)
		}
	}
}

// TestAllowed_TiersExempt denies all pods to each other, and all networks, from the API's notes on hairpin traffic and
// on pods of the host's network: these are neither a subject nor a peer by selectors, and networks contain them.
func TestAllowed_TiersExempt(t *testing.T) {
	pods := clusterRule(policy.Deny)
	networks := clusterRule(policy.Deny, policy.Peer{Block: &policy.IPBlock{CIDR: netip.MustParsePrefix("0.0.0.0/0")}})
	for _, c := range []struct {
		name     string
		egress   policy.ClusterRule
		from, to netip.Addr
		want     bool
	}{
		{name: "pods", egress: pods, from: web, to: api},
		{name: "a pod and itself", egress: pods, from: api, to: api, want: true},
		{name: "a pod and itself, by networks", egress: networks, from: api, to: api, want: true},
		{name: "to the host's network", egress: pods, from: api, to: outside, want: true},
		{name: "to the host's network, by networks", egress: networks, from: api, to: outside},
		{name: "from the host's network", egress: networks, from: outside, to: api, want: true},
	} {
		for _, tier := range []policy.Tier{admin, baseline} {
			w := shop()
			w.Endpoints = append(w.Endpoints, &policy.Endpoint{Namespace: "a", Name: "host", HostNetwork: true,
				Addresses: []netip.Addr{outside}})
			all := clusterPolicy("p", tier, 1, pods)
			all.Egress = []policy.ClusterRule{c.egress}
			w.ClusterPolicies = []*policy.ClusterPolicy{all}
			if v := policy.Allowed(w, tcp(c.from, c.to, 80)); v.Allowed != c.want {
				t.Errorf("%s, %s: %+v", tier, c.name, v)
			}
		}
	}
}
