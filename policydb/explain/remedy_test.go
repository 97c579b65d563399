package explain_test

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// TestEveryRemedyHelps applies each remedy to a copy of the world and of the packet: its rule must then allow.
func TestEveryRemedyHelps(t *testing.T) {
	seen := map[explain.ChangeKind]int{}
	worlds(t, 300, func(g policytest.Gen, w *policy.World, m *explain.Model) {
		for range 20 {
			p := g.Packet(pods)
			x := m.Explain(p)
			for _, r := range x.Egress.Remedies {
				checkRemedy(t, w, p, r, policy.Egress, seen)
			}
			for _, r := range x.Ingress.Remedies {
				checkRemedy(t, w, p, r, policy.Ingress, seen)
			}
		}
	})
	for _, kind := range []explain.ChangeKind{
		explain.SetLabel, explain.RemoveLabel, explain.SetNamespaceLabel, explain.RemoveNamespaceLabel, explain.UsePort,
		explain.AddRulePort, explain.RemoveRulePorts, explain.AddRulePeer, explain.AddPolicy,
	} {
		if seen[kind] == 0 {
			t.Errorf("no remedy had a change of kind %s", kind)
		}
	}
}

func checkRemedy(t *testing.T, w *policy.World, p policy.Packet, r explain.Remedy, d policy.Direction, seen map[explain.ChangeKind]int) {
	t.Helper()
	changed, packet := clone(w), p
	for _, c := range r.Changes {
		seen[c.Kind]++
		apply(t, changed, &packet, c)
	}
	v := policy.Allowed(changed, packet)
	side := v.Ingress
	if d == policy.Egress {
		side = v.Egress
	}
	if !side.Allowed || r.Rule != nil && !slices.Contains(side.By, *r.Rule) {
		t.Errorf("%+v %s: %q doesn't let rule %v allow: %+v", p, d, r, r.Rule, side)
	}
}

func clone(w *policy.World) *policy.World {
	c := &policy.World{Namespaces: slices.Clone(w.Namespaces)}
	for _, e := range w.Endpoints {
		copied := *e
		c.Endpoints = append(c.Endpoints, &copied)
	}
	for _, p := range w.Policies {
		copied := *p
		copied.Ingress, copied.Egress = slices.Clone(p.Ingress), slices.Clone(p.Egress)
		c.Policies = append(c.Policies, &copied)
	}
	return c
}

func apply(t *testing.T, w *policy.World, p *policy.Packet, c explain.Change) {
	t.Helper()
	switch c.Kind {
	case explain.SetLabel, explain.RemoveLabel:
		e := endpoint(w, c.Subject)
		e.Labels = relabel(e.Labels, c)
	case explain.SetNamespaceLabel, explain.RemoveNamespaceLabel:
		for i := range w.Namespaces {
			if w.Namespaces[i].Name == c.Subject {
				w.Namespaces[i].Labels = relabel(w.Namespaces[i].Labels, c)
			}
		}
	case explain.UsePort:
		p.Protocol, p.Port = c.Protocol, c.Port
	case explain.AddRulePort:
		r := ruleOf(w, c)
		r.Ports = append(slices.Clone(r.Ports), policy.PolicyPort{Protocol: c.Protocol, First: c.Port, Last: c.Port})
	case explain.RemoveRulePorts:
		ruleOf(w, c).AnyPort = true
	case explain.AddRulePeer:
		r := ruleOf(w, c)
		r.Peers = append(slices.Clone(r.Peers), peerFor(w, c.Subject))
	case explain.AddPolicy:
		addPolicy(w, c)
	default:
		t.Errorf("unknown change %+v", c)
	}
}

func relabel(labels map[string]string, c explain.Change) map[string]string {
	labels = maps.Clone(labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[c.Key] = c.Value
	if c.Kind == explain.RemoveLabel || c.Kind == explain.RemoveNamespaceLabel {
		delete(labels, c.Key)
	}
	return labels
}

func endpoint(w *policy.World, id string) *policy.Endpoint {
	for _, e := range w.Endpoints {
		if e.ID() == id {
			return e
		}
	}
	return nil
}

func ruleOf(w *policy.World, c explain.Change) *policy.PolicyRule {
	for _, p := range w.Policies {
		if p.ID() != c.Policy {
			continue
		}
		if c.Direction == "egress" {
			return &p.Egress[c.Rule]
		}
		return &p.Ingress[c.Rule]
	}
	return nil
}

// peerFor chooses one pod, by a label given to it and its namespace, or one address.
func peerFor(w *policy.World, subject string) policy.Peer {
	e := endpoint(w, subject)
	if e == nil {
		a := netip.MustParseAddr(subject)
		return policy.Peer{Block: &policy.IPBlock{CIDR: netip.PrefixFrom(a, a.BitLen())}}
	}
	e.Labels = relabel(e.Labels, explain.Change{Key: "only", Value: "this"})
	only := policy.Selector{Requirements: []policy.Requirement{{Key: "only", Operator: policy.Exists}}}
	return policy.Peer{Namespaces: &policy.Selector{}, Pods: &only}
}

func addPolicy(w *policy.World, c explain.Change) {
	e := endpoint(w, c.Pod)
	rule := policy.PolicyRule{Peers: []policy.Peer{peerFor(w, c.Subject)}, Ports: []policy.PolicyPort{{Protocol: c.Protocol, First: c.Port, Last: c.Port}}}
	p := &policy.Policy{Namespace: e.Namespace, Name: "new"}
	if c.Direction == "egress" {
		p.IsolatesEgress, p.Egress = true, []policy.PolicyRule{rule}
	} else {
		p.IsolatesIngress, p.Ingress = true, []policy.PolicyRule{rule}
	}
	w.Policies = append(w.Policies, p)
}
