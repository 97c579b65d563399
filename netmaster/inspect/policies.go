package inspect

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func (s *Server) policies(ctx context.Context, q *inspect.Question) (any, error) {
	var views []resolve.PolicyView
	err := s.cfg.Owner.Do(ctx, func(e *resolve.Engine) {
		for _, id := range e.Policies() {
			if q.ID != "" && q.ID != id || q.Namespace != "" && !strings.HasPrefix(id, q.Namespace+"/") {
				continue
			}
			if v, ok := e.Policy(id); ok {
				views = append(views, v)
			}
		}
	})
	if err == nil && q.ID != "" && len(views) == 0 {
		err = status.Errorf(codes.NotFound, "there is no policy %s", q.ID)
	}
	out := make([]inspect.Policy, 0, len(views))
	for i := range views {
		out = append(out, s.policyOf(&views[i], q.ID != "" || q.Rules))
	}
	return out, err
}

func (s *Server) policyOf(v *resolve.PolicyView, rules bool) inspect.Policy {
	p := inspect.Policy{Namespace: v.Policy.Namespace, Name: v.Policy.Name, Generation: v.Policy.Generation, Mode: v.Policy.Mode(), Selector: v.Policy.AppliedTo.String(),
		AppliedTo: append([]string{}, v.AppliedTo...), Problems: v.Policy.Problems, Directions: directionsOf(v.Policy)}
	extent := extentOf(v)
	p.Nodes = PolicyNodes(s.cfg.Nodes.Standing(v.Policy.ID(), &extent), v.Policy, extent.Rules, never)
	if rules {
		for i := range v.Rules {
			p.Rules = append(p.Rules, ruleOf(&v.Rules[i]))
		}
	}
	return p
}

// directionsOf are those that a policy isolates in.
func directionsOf(p *policy.Policy) []string {
	out := []string{}
	if p.IsolatesIngress {
		out = append(out, "ingress")
	}
	if p.IsolatesEgress {
		out = append(out, "egress")
	}
	return out
}

// extentOf is what nodes hold of a policy, as the view has it.
func extentOf(v *resolve.PolicyView) policy.Extent {
	out := policy.Extent{Nodes: v.Nodes}
	for i := range v.Rules {
		r := &v.Rules[i].Rule
		out.Rules, out.Applied, out.Peers = append(out.Rules, r.Key), append(out.Applied, r.AppliedTo), append(out.Peers, r.Peers...)
	}
	return out
}

func ruleOf(v *resolve.RuleView) inspect.Rule {
	r := inspect.Rule{Key: v.Rule.Key, Direction: v.Rule.Direction.String(), Index: v.Index, AppliedTo: v.Target.Text, Ports: portsText(&v.Rule)}
	if v.Rule.AnyPeer {
		r.Peers = append(r.Peers, inspect.Peer{Text: "everyone"})
	}
	for _, g := range v.Peers {
		r.Peers = append(r.Peers, inspect.Peer{Text: g.Text, Endpoints: g.Members})
	}
	for _, b := range v.Rule.Blocks {
		text := b.CIDR.String()
		if len(b.Except) > 0 {
			text += fmt.Sprintf(" except %s", join(b.Except))
		}
		r.Peers = append(r.Peers, inspect.Peer{Text: text})
	}
	return r
}

func join(prefixes []netip.Prefix) string {
	texts := make([]string, len(prefixes))
	for i, p := range prefixes {
		texts[i] = p.String()
	}
	return strings.Join(texts, ", ")
}

func portsText(r *policy.Rule) string {
	if r.AnyPort {
		return "all"
	}
	var texts []string
	for _, p := range r.Ports {
		switch {
		case p.First == p.Last:
			texts = append(texts, fmt.Sprintf("%s/%d", p.Protocol, p.First))
		case p.First == 0 && p.Last == 65535:
			texts = append(texts, p.Protocol.String())
		default:
			texts = append(texts, fmt.Sprintf("%s/%d-%d", p.Protocol, p.First, p.Last))
		}
	}
	return strings.Join(texts, ",")
}
