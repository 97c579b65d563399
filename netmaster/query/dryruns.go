package query

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/kube"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// dryRun returns policies in a dry run, with the counters of nodes and the pairs that would have been denied.
func (s *trafficQueries) dryRun(ctx context.Context, q *inspect.Question) (any, error) {
	ctx, cancel := inTime(ctx)
	defer cancel()
	want := q.DryRun
	if want == nil {
		want = &inspect.DryRunQuestion{}
	}
	x := scope{namespace: q.Namespace, id: q.ID, dryRun: true}
	if namespace, _, named := strings.Cut(q.ID, "/"); named {
		x.namespace = namespace // nodes are asked for no others
	}
	out := &inspect.DryRuns{
		Time:     time.Now(),
		Nodes:    []inspect.DryRunNode{},
		Policies: []inspect.DryRun{},
		Pairs:    []inspect.Drop{},
	}
	if err := s.dryRuns(ctx, &x, out); err != nil {
		return nil, err
	}
	return out, s.fill(ctx, &x, want, out)
}

// dryRuns adds the policies of the scope to out. It fails if a named policy is not in a dry run.
func (s *trafficQueries) dryRuns(ctx context.Context, x *scope, out *inspect.DryRuns) error {
	var wrong error
	err := s.cfg.Owner.Do(ctx, func(e *resolve.Engine) {
		out.Revision = e.Revision()
		pods := map[string]int{} // by selector: thousands of policies may have one
		for _, id := range x.policies(e) {
			p := e.PolicyObject(id)
			chosen := p.Namespace + "/" + p.AppliedTo.String()
			if _, known := pods[chosen]; !known {
				pods[chosen] = len(e.Select(policy.GroupSpec{Namespace: p.Namespace, Pods: &p.AppliedTo}))
			}
			out.Policies = append(out.Policies, inspect.DryRun{
				Policy:     id,
				Pods:       pods[chosen],
				Nodes:      len(e.Extent(id).Nodes),
				Directions: directionsOf(p),
			})
		}
		if len(out.Policies) == 0 {
			wrong = x.notFoundError(e)
		}
	})
	return cmp.Or(err, wrong)
}

// notFoundError returns the error for a scope without policies in a dry run; nil if that is no error.
func (x *scope) notFoundError(e *resolve.Engine) error {
	if x.id == "" {
		return x.check(e)
	}
	if p := e.PolicyObject(x.id); p != nil {
		return status.Error(codes.FailedPrecondition, notInDryRun(p))
	}
	return status.Errorf(codes.NotFound, "there is no policy %s", x.id)
}

func notInDryRun(p *policy.Policy) string {
	why := ""
	for _, problem := range p.Problems {
		if strings.Contains(problem, kube.Enforcement) {
			why = " (" + problem + ")"
		}
	}
	return fmt.Sprintf(
		"policy %s is enforced, not in a dry run%s: kubectl annotate --overwrite networkpolicy -n %s %s %s=%s "+
			"starts one, in which denied packets pass",
		p.ID(),
		why,
		p.Namespace,
		p.Name,
		kube.Enforcement,
		policy.ModeDryRun,
	)
}

// fill queries nodes for counters and denied pairs at the same time, so that an unresponsive node delays the
// response only once.
func (s *trafficQueries) fill(ctx context.Context, x *scope, want *inspect.DryRunQuestion, out *inspect.DryRuns) error {
	if len(out.Policies) == 0 {
		return nil
	}
	var counting []inspect.CountingNode
	var told []siteCounter
	pairs := &inspect.Drops{}
	var notCounted, notDenied error
	var both sync.WaitGroup
	if want.Counts {
		both.Go(func() { counting, told, notCounted = s.count(ctx, *x) })
	}
	if want.Pairs != nil {
		both.Go(func() {
			pairs, notDenied = s.denied(ctx, &dropsQuery{DropsQuestion: want.Pairs, dryRun: true, id: x.id})
		})
	}
	both.Wait()
	if err := cmp.Or(notCounted, notDenied); err != nil {
		return err
	}
	out.Nodes = mergeNodes(counting, pairs.Nodes)
	at := map[string]*inspect.DryRun{}
	for i := range out.Policies {
		at[out.Policies[i].Policy] = &out.Policies[i]
	}
	addCounters(at, told)
	for i := range pairs.Drops {
		if d := &pairs.Drops[i]; slices.ContainsFunc(d.Policies, func(id string) bool { return at[id] != nil }) {
			out.Pairs = append(out.Pairs, *d)
		}
	}
	return nil
}

// mergeNodes merges both lists by node.
func mergeNodes(counting []inspect.CountingNode, denying []inspect.DropsOfNode) []inspect.DryRunNode {
	out := make([]inspect.DryRunNode, 0, max(len(counting), len(denying)))
	at := map[string]int{}
	for _, n := range counting {
		at[n.Name] = len(out)
		out = append(out,
			inspect.DryRunNode{DropsOfNode: inspect.DropsOfNode{Node: n.Name, Problem: n.Problem}, Since: n.Since})
	}
	for _, n := range denying {
		n.Problem = named(n.Node, n.Problem)
		i, known := at[n.Node]
		if !known {
			out = append(out, inspect.DryRunNode{DropsOfNode: n})
			continue
		}
		n.Problem = cmp.Or(out[i].Problem, n.Problem)
		out[i].DropsOfNode = n
	}
	slices.SortFunc(out, func(a, b inspect.DryRunNode) int { return cmp.Compare(a.Node, b.Node) })
	return out
}

// addCounters adds to each policy its counters, which are adjacent in the list.
func addCounters(at map[string]*inspect.DryRun, told []siteCounter) {
	partly := map[string]bool{}
	for i := range told {
		t := &told[i]
		p := at[t.Policy]
		if p == nil { // in a dry run only since the query began
			continue
		}
		p.Counters = append(p.Counters, t.Counter)
		if partly[t.Policy] = partly[t.Policy] || t.since.IsZero(); partly[t.Policy] {
			p.Since = time.Time{}
		} else if p.Since.Before(t.since) {
			p.Since = t.since
		}
	}
}
