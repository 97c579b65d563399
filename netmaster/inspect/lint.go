package inspect

import (
	"context"
	"slices"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/lint"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// lint holds the owner only while it takes the world; the rest is done beside it.
func (s *Server) lint(ctx context.Context, q *inspect.Question) (any, error) {
	var world *policy.World
	out := inspect.Lint{Findings: []lint.Finding{}}
	if err := s.cfg.Owner.Do(ctx, func(e *resolve.Engine) { out.Revision, world = e.Revision(), e.World() }); err != nil {
		return nil, err
	}
	if q.Namespace != "" && !slices.ContainsFunc(world.Namespaces, func(ns policy.Namespace) bool { return ns.Name == q.Namespace }) {
		return nil, status.Errorf(codes.NotFound, "there is no namespace %s", q.Namespace)
	}
	for _, p := range world.Policies {
		if q.Namespace == "" || p.Namespace == q.Namespace {
			out.Policies++
		}
	}
	out.Findings = append(out.Findings, s.findings(world, q.Namespace)...)
	return out, nil
}

func (s *Server) findings(world *policy.World, namespace string) []lint.Finding {
	c := lint.Cluster{World: world, Namespace: namespace}
	for _, n := range s.cfg.Nodes.Infos() {
		c.PodCIDRs = append(c.PodCIDRs, n.PodCIDRs...)
	}
	return lint.Check(&c)
}

// reasons are the codes that tell why a rule matches nothing.
var reasons = []string{lint.NobodyIsolated, lint.NobodyAtPeer, lint.NoNamespaceAtPeer, lint.NoSuchPortName, lint.OtherProtocol, lint.NothingPasses, lint.CoveredAlways,
	lint.CoveredNow, lint.PolicyNoEffect, lint.NotUnderstood}

// explainUnused tells of rules that matched nothing why, as far as the policies tell.
func (s *Server) explainUnused(ctx context.Context, namespace string, rules []inspect.UnusedRule) error {
	if len(rules) == 0 {
		return nil
	}
	var world *policy.World
	if err := s.cfg.Owner.Do(ctx, func(e *resolve.Engine) { world = e.World() }); err != nil {
		return err
	}
	why := map[site][]string{}
	for _, f := range s.findings(world, namespace) {
		if slices.Contains(reasons, f.Code) {
			at := site{f.Policy, directionNames[f.Direction], f.Rule}
			why[at] = append(why[at], f.Code+" "+f.Message)
		}
	}
	for i := range rules {
		r := &rules[i]
		r.Why = append(r.Why, why[site{r.Policy, directionNames[r.Direction], r.Rule}]...)
		r.Why = append(r.Why, why[site{r.Policy, 0, inspect.Isolation}]...)
	}
	return nil
}
