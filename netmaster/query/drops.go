package query

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Limits of one query for drops.
const (
	maxDrops        = 1000 // drops in a response
	minDropsPerNode = 20   // drops that each node may contribute
	maxNodesAtATime = 64   // nodes queried at a time
	maxDropQueries  = 4    // queries at a time
)

// drops returns the packets that connected nodes denied, explained by the present policies.
func (s *trafficQueries) drops(ctx context.Context, q *inspect.Question) (any, error) {
	ctx, cancel := inTime(ctx)
	defer cancel()
	question := q.Drops
	if question == nil {
		question = &inspect.DropsQuestion{}
	}
	return s.denied(ctx, &dropsQuery{DropsQuestion: question, node: q.Node})
}

// dropsQuery selects drops: those of policies in force, or those that dry runs would cause.
type dropsQuery struct {
	*inspect.DropsQuestion
	node   string // empty: all
	dryRun bool
	id     string // of a policy that must be among the isolating ones that the node reports; empty: any
}

func (s *trafficQueries) denied(ctx context.Context, want *dropsQuery) (*inspect.Drops, error) {
	select {
	case s.dropping <- struct{}{}:
		defer func() { <-s.dropping }()
	case <-ctx.Done():
		return nil, status.Error(codes.ResourceExhausted, "too many queries for drops at once")
	}
	addresses, err := s.addressesOfPod(ctx, want.Pod)
	if err != nil {
		return nil, err
	}
	out := &inspect.Drops{Nodes: []inspect.DropsOfNode{}, Drops: []inspect.Drop{}}
	for _, n := range s.cfg.Nodes.Nodes() {
		if want.node == "" || want.node == n.Name {
			out.Nodes = append(out.Nodes, inspect.DropsOfNode{Node: n.Name, Cursor: want.After[n.Name]})
		}
	}
	if want.node != "" && len(out.Nodes) == 0 {
		return nil, status.Errorf(codes.NotFound, "there is no node %s", want.node)
	}
	list := s.queryDrops(ctx, want, addresses, out)
	if err := s.explainDrops(ctx, list, out, want.dryRun); err != nil {
		return nil, err
	}
	for i := range list {
		if d := &list[i].Drop; want.Namespace == "" || concerns(d, want.Namespace+"/") {
			out.Drops = append(out.Drops, *d)
		}
	}
	return out, nil
}

func concerns(d *inspect.Drop, prefix string) bool {
	return strings.HasPrefix(d.From.Pod, prefix) || strings.HasPrefix(d.To.Pod, prefix) ||
		strings.HasPrefix(d.Pod, prefix)
}

// addressesOfPod returns a pod's addresses; nil if no pod is named.
func (s *trafficQueries) addressesOfPod(ctx context.Context, pod string) (addresses []netip.Addr, err error) {
	if pod == "" {
		return nil, nil
	}
	found := false
	err = s.cfg.Owner.Do(ctx, func(e *resolve.Engine) {
		v, ok := e.Endpoint(pod)
		addresses, found = v.Addresses, ok
	})
	switch {
	case err != nil:
		return nil, err
	case !found:
		return nil, status.Errorf(codes.NotFound, "there is no pod %s", pod)
	case len(addresses) == 0:
		return nil, status.Errorf(codes.FailedPrecondition, "pod %s has no address", pod)
	}
	return addresses, nil
}

func (s *trafficQueries) queryDrops(ctx context.Context, want *dropsQuery, addresses []netip.Addr,
	out *inspect.Drops) []drop {
	query := inspect.DropsQuery{
		DryRun:    want.dryRun,
		Addresses: addresses,
		Policy:    want.id,
		Within:    want.Within,
		Most:      max(maxDrops/max(len(out.Nodes), 1), minDropsPerNode),
	}
	records := make([][]inspect.DropRecord, len(out.Nodes))
	places := make(chan struct{}, maxNodesAtATime)
	var all sync.WaitGroup
	for i := range out.Nodes {
		n := &out.Nodes[i]
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			mine := query
			mine.Cursor = n.Cursor
			var answer inspect.NodeDrops
			body, err := s.queryNode(ctx, n.Node, inspect.NodeQuery{Kind: inspect.QueryDrops, Drops: &mine})
			if err == nil {
				err = json.Unmarshal(body, &answer)
			}
			if err == nil && answer.DryRun != want.dryRun {
				err = errNoDryRuns
			}
			if err != nil {
				n.Problem = err.Error()
				return
			}
			n.Cursor, n.DropCounts, n.Problem = answer.Cursor, answer.DropCounts, answer.Problem
			records[i] = answer.Records
			if more := len(answer.Records) - query.Most; more > 0 { // an older node may exceed the limit
				records[i] = answer.Records[more:]
				n.Left += more
			}
		})
	}
	all.Wait()
	return latest(out, records, want.dryRun)
}

// errNoDryRuns is the problem of a node that returns enforced denials for a query about dry runs.
var errNoDryRuns = errors.New("its netplugin is too old for dry runs: upgrade it")

// discard is a denied packet, before its explanation is added.
type drop struct {
	inspect.Drop
	packet policy.Packet
}

// latest merges the records of all nodes by time and keeps the newest maxDrops.
func latest(out *inspect.Drops, records [][]inspect.DropRecord, dryRun bool) (list []drop) {
	nodes := map[string]*inspect.DropsOfNode{}
	for i := range records {
		nodes[out.Nodes[i].Node] = &out.Nodes[i]
		for j := range records[i] {
			d := dropOf(out.Nodes[i].Node, &records[i][j])
			d.DryRun = dryRun
			list = append(list, d)
		}
	}
	slices.SortStableFunc(list, func(a, b drop) int { return a.Last.Compare(b.Last) })
	more := max(len(list)-maxDrops, 0)
	for i := range list[:more] {
		nodes[list[i].Node].Left++
	}
	return list[more:]
}

func dropOf(node string, r *inspect.DropRecord) drop {
	d := inspect.Drop{
		Node:        node,
		First:       r.First,
		Last:        r.Last,
		Reason:      r.Reason,
		From:        inspect.DropEnd{Address: r.From},
		To:          inspect.DropEnd{Address: r.To},
		Protocol:    protocolName(r.Protocol),
		Port:        r.Port,
		Packets:     r.Packets,
		Connections: r.Connections,
		Pod:         r.Pod,
	}
	for _, o := range r.Policies {
		if !slices.Contains(d.Policies, o.Policy) {
			d.Policies = append(d.Policies, o.Policy)
		}
	}
	return drop{d, policy.Packet{From: r.From, To: r.To, Protocol: r.Protocol, Port: r.Port}}
}

func protocolName(p policy.Protocol) string {
	if hasPorts(p) {
		return p.String()
	}
	return "ICMP"
}

// explainDrops evaluates drops by the present policies; with dryRun, as if policies in a dry run were enforced.
func (s *trafficQueries) explainDrops(ctx context.Context, list []drop, out *inspect.Drops, dryRun bool) error {
	ends := map[netip.Addr]struct{}{}
	for i := range list {
		ends[list[i].packet.From], ends[list[i].packet.To] = struct{}{}, struct{}{}
	}
	addresses := make([]netip.Addr, 0, len(ends))
	for a := range ends {
		addresses = append(addresses, a)
	}
	var world *policy.World
	if err := s.cfg.Owner.Do(ctx, func(e *resolve.Engine) {
		out.Revision = e.Revision()
		world = e.WorldOf(addresses...)
	}); err != nil {
		return err
	}
	inForce := explain.NewModel(world)
	m := inForce
	if dryRun {
		m = explain.NewModel(explain.Enforced(world))
	}
	for i := range list {
		if err := ctx.Err(); err != nil {
			return err
		}
		explainDrop(m, &list[i].Drop, list[i].packet)
		if dryRun {
			deniedAlready(inForce, &list[i].Drop, list[i].packet)
		}
	}
	return nil
}

// deniedAlready adds a note if enforced policies deny the packet anyway. The source's node cannot know this: it
// lacks the policies that isolate the destination on another node.
func deniedAlready(inForce *explain.Model, d *inspect.Drop, p policy.Packet) {
	if d.Note != "" {
		return
	}
	x := inForce.Explain(p)
	direction, side := policy.Egress, &x.Egress
	if side.Allowed {
		direction, side = policy.Ingress, &x.Ingress
	}
	if !side.Allowed {
		d.Note = fmt.Sprintf("it is denied already by %s (%s)", strings.Join(side.Isolating(), ", "), direction)
	}
}

func explainDrop(m *explain.Model, d *inspect.Drop, p policy.Packet) {
	if from := m.Owner(p.From); from != nil {
		d.From.Pod = from.ID()
	}
	if to := m.Owner(p.To); to != nil {
		d.To.Pod = to.ID()
	}
	if d.Reason == inspect.DroppedAsForged {
		return
	}
	x := m.Explain(p)
	side, end, at := &x.Ingress, &x.To, &d.To
	if d.Reason == inspect.DroppedByEgress {
		side, end, at = &x.Egress, &x.From, &d.From
	}
	if d.Pod != "" && !isPod(end, d.Pod) { // the present owner of the address is unrelated
		at.Pod, d.Note = d.Pod, d.Pod+" no longer has this address"
		return
	}
	switch {
	case side.Allowed && d.DryRun:
		d.Note = fmt.Sprintf("the policies of now would allow it (%s)", d.Reason)
		return
	case side.Allowed:
		d.Note = fmt.Sprintf("the policies of now allow it (%s)", d.Reason)
		return
	}
	d.Policies = side.Isolating()
	if n, ok := side.Nearest(d.Reason); ok {
		d.Rule, d.Failed, d.Remedy = n.Policy, n.Failed, n.Remedy
		if n.Rule >= 0 {
			d.Rule = policy.OriginsText(directionOf(d.Reason), []policy.Origin{{Policy: n.Policy, Rule: n.Rule}})
		}
	}
}

// isPod reports whether the pod is, or claims to be, at this end.
func isPod(e *explain.End, id string) bool {
	return e.Kind == explain.Pod && (slices.Contains(e.Pods, id) || slices.Contains(e.Contested, id))
}

func directionOf(reason string) policy.Direction {
	if reason == inspect.DroppedByEgress {
		return policy.Egress
	}
	return policy.Ingress
}
