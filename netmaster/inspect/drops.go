package inspect

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

// Bounds of one answer: of drops in all, of those that one node may fill it with, and of nodes that are asked at a time.
const (
	mostDrops       = 1000
	leastDropsANode = 20
	nodesAtATime    = 64
	dropsAtATime    = 4 // questions
)

// drops asks all nodes that are connected, and the model what is to be said of what they denied.
func (s *Server) drops(ctx context.Context, q *inspect.Question) (any, error) {
	ctx, cancel := inTime(ctx)
	defer cancel()
	question := q.Drops
	if question == nil {
		question = &inspect.DropsQuestion{}
	}
	return s.denied(ctx, &dropsWanted{DropsQuestion: question, node: q.Node})
}

// dropsWanted is which drops are wanted; with audit, those that there would be if dry runs were enforced.
type dropsWanted struct {
	*inspect.DropsQuestion
	node  string // empty: all
	audit bool
	id    string // of the policy that is to be among those that isolate, as far as nodes know; empty: any
}

func (s *Server) denied(ctx context.Context, want *dropsWanted) (*inspect.Drops, error) {
	select {
	case s.dropping <- struct{}{}:
		defer func() { <-s.dropping }()
	case <-ctx.Done():
		return nil, status.Error(codes.ResourceExhausted, "too many ask for drops at once")
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
	list := s.askForDrops(ctx, want, addresses, out)
	if err := s.explainDrops(ctx, list, out, want.audit); err != nil {
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
	return strings.HasPrefix(d.From.Pod, prefix) || strings.HasPrefix(d.To.Pod, prefix) || strings.HasPrefix(d.Pod, prefix)
}

// addressesOfPod is nil for no pod.
func (s *Server) addressesOfPod(ctx context.Context, pod string) (addresses []netip.Addr, err error) {
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

func (s *Server) askForDrops(ctx context.Context, want *dropsWanted, addresses []netip.Addr, out *inspect.Drops) []drop {
	query := inspect.DropsQuery{Audit: want.audit, Addresses: addresses, Policy: want.id, Within: want.Within, Most: max(mostDrops/max(len(out.Nodes), 1), leastDropsANode)}
	records := make([][]inspect.DropRecord, len(out.Nodes))
	places := make(chan struct{}, nodesAtATime)
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
			if err == nil && answer.Audit != want.audit {
				err = errNoDryRuns
			}
			if err != nil {
				n.Problem = err.Error()
				return
			}
			n.Cursor, n.DropCounts, n.Problem = answer.Cursor, answer.DropCounts, answer.Problem
			records[i] = answer.Records
			if more := len(answer.Records) - query.Most; more > 0 { // a node that gives more than it was asked for
				records[i] = answer.Records[more:]
				n.Left += more
			}
		})
	}
	all.Wait()
	return latest(out, records, want.audit)
}

// errNoDryRuns is of a node that answers with what it denied, whatever it is asked.
var errNoDryRuns = errors.New("its netplugin is older and knows no dry runs: what they would deny there is not known")

// drop is one that is yet to be explained.
type drop struct {
	inspect.Drop
	packet policy.Packet
}

// latest takes the newest of all nodes' records, in their order.
func latest(out *inspect.Drops, records [][]inspect.DropRecord, audit bool) (list []drop) {
	nodes := map[string]*inspect.DropsOfNode{}
	for i := range records {
		nodes[out.Nodes[i].Node] = &out.Nodes[i]
		for j := range records[i] {
			d := dropOf(out.Nodes[i].Node, &records[i][j])
			d.Audit = audit
			list = append(list, d)
		}
	}
	slices.SortStableFunc(list, func(a, b drop) int { return a.Last.Compare(b.Last) })
	more := max(len(list)-mostDrops, 0)
	for i := range list[:more] {
		nodes[list[i].Node].Left++
	}
	return list[more:]
}

func dropOf(node string, r *inspect.DropRecord) drop {
	d := inspect.Drop{Node: node, First: r.First, Last: r.Last, Reason: r.Reason, From: inspect.DropEnd{Address: r.From}, To: inspect.DropEnd{Address: r.To},
		Protocol: protocolName(r.Protocol), Port: r.Port, Packets: r.Packets, Connections: r.Connections, Pod: r.Pod}
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

// explainDrops has the policies of now judge what was dropped; with audit, as if those in a dry run were enforced.
func (s *Server) explainDrops(ctx context.Context, list []drop, out *inspect.Drops, audit bool) error {
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
	if audit {
		m = explain.NewModel(explain.Enforced(world))
	}
	for i := range list {
		explainDrop(m, &list[i].Drop, list[i].packet)
		if audit {
			deniedAlready(inForce, &list[i].Drop, list[i].packet)
		}
	}
	return nil
}

// deniedAlready says so of what policies in force deny: the node of the source knows none of those that isolate the destination on another.
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
	if d.Pod != "" && !isPod(end, d.Pod) { // whose the address is now has nothing to do with it
		at.Pod, d.Note = d.Pod, d.Pod+" no longer has this address"
		return
	}
	switch {
	case side.Allowed && d.Audit:
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

// isPod tells whether the end is a pod's, of which others may claim the address too.
func isPod(e *explain.End, id string) bool {
	return e.Kind == explain.Pod && (slices.Contains(e.Pods, id) || slices.Contains(e.Contested, id))
}

func directionOf(reason string) policy.Direction {
	if reason == inspect.DroppedByEgress {
		return policy.Egress
	}
	return policy.Ingress
}
