package query

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func (s *nodeQueries) flows(ctx context.Context, q *inspect.Question) (any, error) {
	query := inspect.NodeQuery{Kind: inspect.QueryFlows}
	var rules []resolve.RuleView
	if q.ID != "" {
		var p resolve.PolicyView
		found := false
		if err := s.cfg.Owner.Do(ctx, func(e *resolve.Engine) { p, found = e.PolicyUpTo(q.ID, 0, 0) }); err != nil {
			return nil, err
		}
		if !found {
			return nil, status.Errorf(codes.NotFound, "there is no policy %s", q.ID)
		}
		rules, query.Rules = p.Rules, []policy.Key{}
		for i := range rules {
			query.Rules = append(query.Rules, rules[i].Rule.Key)
		}
	}
	ctx, cancel := inTime(ctx)
	defer cancel()
	body, err := s.queryNode(ctx, q.Node, query)
	if err != nil {
		return nil, err
	}
	var out inspect.NodeFlows
	if err := json.Unmarshal(body, &out); err != nil {
		return nil, fmt.Errorf("the answer of node %s: %w", q.Node, err)
	}
	for i := range out.Flows {
		nameOrigins(&out.Flows[i], q.ID, rules)
	}
	return &out, nil
}

// nameOrigins adds the requested policy to the origins of a flow, as nodes know only the first few origins of a rule.
func nameOrigins(f *inspect.Flow, id string, rules []resolve.RuleView) {
	for i := range rules {
		o := policy.Origin{Policy: id, Rule: rules[i].Index}
		if slices.Contains(f.Rules, rules[i].Rule.Key) && !slices.Contains(f.Origins, o) {
			f.Origins = append(f.Origins, o)
			f.Note += ", " + id + " and others"
		}
	}
}
