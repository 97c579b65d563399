package query

import (
	"context"
	"slices"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/lint"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// lint checks the policies of a namespace, or all. It runs off the owner goroutine, except while it copies the state.
func (s *policyQueries) lint(ctx context.Context, q *inspect.Question) (any, error) {
	ctx, leave, err := s.beginAnalysis(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	out := inspect.Lint{Findings: []lint.Finding{}}
	nodes := s.cfg.Nodes.Infos() // before the world: a change of nodes makes a new state
	revision, world, err := s.world(ctx)
	if err != nil {
		return nil, err
	}
	out.Revision = revision
	if q.Namespace != "" &&
		!slices.ContainsFunc(world.Namespaces, func(ns policy.Namespace) bool { return ns.Name == q.Namespace }) {
		return nil, status.Errorf(codes.NotFound, "there is no namespace %s", q.Namespace)
	}
	for _, p := range world.Policies {
		if q.Namespace == "" || p.Namespace == q.Namespace {
			out.Policies++
		}
	}
	list, err := findings(ctx, nodes, world, q.Namespace)
	out.Findings = append(out.Findings, list...)
	return out, err
}

func findings(
	ctx context.Context,
	nodes []policy.NodeInfo,
	world *policy.World,
	namespace string,
) ([]lint.Finding, error) {
	c := lint.Cluster{World: world, Namespace: namespace}
	for _, n := range nodes {
		c.PodCIDRs = append(c.PodCIDRs, n.PodCIDRs...)
	}
	return lint.CheckWithin(ctx, &c)
}

// reasons are the finding codes that explain why a rule matches no packet.
var reasons = []string{
	lint.NobodyIsolated,
	lint.NobodyAtPeer,
	lint.NoNamespaceAtPeer,
	lint.NoSuchPortName,
	lint.OtherProtocol,
	lint.NothingPasses,
	lint.CoveredAlways,
	lint.CoveredNow,
	lint.PolicyNoEffect,
	lint.NotUnderstood,
}

// explainUnused adds to unused rules the findings that explain why they match no packet.
func (s *trafficQueries) explainUnused(ctx context.Context, namespace string, rules []inspect.UnusedRule) error {
	if len(rules) == 0 {
		return nil
	}
	ctx, leave, err := s.beginAnalysis(ctx)
	if err != nil {
		return err
	}
	defer leave()
	_, world, err := s.world(ctx)
	if err != nil {
		return err
	}
	list, err := findings(ctx, s.cfg.Nodes.Infos(), world, namespace)
	if err != nil {
		return err
	}
	why := map[site][]string{}
	for _, f := range list {
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
