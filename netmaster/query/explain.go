package query

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/attachment"
	"github.com/flowkeep/flowkeep/netmaster/history"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// end is one end of an explained connection.
type end struct {
	addresses []netip.Addr // pods and World: at most one a family; nodes: any number
	node      string       // node that the pod is attached to
	host      string       // node itself, given by name, by address or as a pod with hostNetwork
	ports     []policy.NamedPort
}

// text returns all fields, for the cache key.
func (x *end) text() string { return fmt.Sprintf("%v %q %q %v", x.addresses, x.node, x.host, x.ports) }

// on returns the node that the end sends from; empty if it is outside the cluster.
func (x *end) on() string { return cmp.Or(x.node, x.host) }

// worldAddrs stand for any address outside the cluster (documentation addresses, RFC 5737 and RFC 3849).
var worldAddrs = []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8:1::1")}

// cluster is the state that an explanation reads: the engine's present one, or a past one.
type cluster interface {
	Endpoint(id string) (resolve.EndpointView, bool)
	WorldOf(addresses ...netip.Addr) *policy.World
}

// explanation collects the response to one query.
type explanation struct {
	s        *sources
	q        *inspect.Question
	infos    []policy.NodeInfo
	from, to end
	past     *history.State // nil: the present
	services bool           // it depends on Services, of which the state does not count changes
	out      inspect.Explained
}

// explain returns the verdicts for two ends, with the traces of the nodes' switches unless the query declines them.
func (s *packetQueries) explain(ctx context.Context, q *inspect.Question) (any, error) {
	ctx, cancel := inTime(ctx)
	defer cancel()
	x, err := s.explained(ctx, q)
	if err != nil {
		return nil, err
	}
	isProved := !q.Unproved && q.At == nil
	for i := range x.out.Ways {
		x.out.Ways[i].Unproved = !isProved
		if q.At == nil {
			markUnattached(&x.out.Ways[i], s.cfg.Unattached())
		}
	}
	if isProved {
		x.out.Problems = append(x.out.Problems, s.prove(ctx, x.out.Ways, x.from.node)...)
		x.translate(ctx)
	}
	x.out.Problems = addUnattached(x.out.Problems, x.out.Ways)
	if x.services {
		return ofNow{&x.out}, nil
	}
	return &x.out, nil
}

// markUnattached marks the ends of a way that Flowkeep did not attach.
func markUnattached(w *inspect.Way, pods *attachment.Set) {
	w.NotEnforced = nil
	for _, e := range []*explain.End{&w.From, &w.To} {
		if e.Kind == explain.Pod && pods.Lacks(e.Pods[0]) {
			w.NotEnforced = append(w.NotEnforced, e.Pods[0])
		}
	}
}

// addUnattached appends a sentence, with the remedy, about the ends of ways that Flowkeep did not attach, unless there
// are none, or a problem has the remedy. Of ways to backends of a Service that are alike it names one pod.
func addUnattached(problems []string, ways []inspect.Way) []string {
	var pods []string
	for i := range ways {
		pods = append(pods, ways[i].NotEnforced...)
	}
	hasRemedy := func(p string) bool { return strings.HasSuffix(p, attachment.Remedy) }
	if len(pods) == 0 || slices.ContainsFunc(problems, hasRemedy) {
		return problems
	}
	slices.Sort(pods)
	return append(problems, attachment.DescribeUnattached(slices.Compact(pods)))
}

// explained returns the explanation without traces.
func (s *sources) explained(ctx context.Context, q *inspect.Question) (*explanation, error) {
	if q.To == nil {
		return nil, status.Error(codes.InvalidArgument, "an explanation needs two ends")
	}
	x := &explanation{s: s, q: q, infos: s.cfg.Nodes.Infos()}
	x.out = inspect.Explained{From: q.From, To: *q.To, Ways: []inspect.Way{}, Problems: []string{}}
	if !isOfState(q) || s.unsynced() != "" { // else it may be cached, without the process's present problems
		x.out.Problems = append(x.out.Problems, s.cfg.Problems()...)
	}
	if q.At != nil {
		if err := x.back(q.At); err != nil {
			return nil, err
		}
	}
	to, err := x.target(ctx)
	if err != nil {
		return nil, err
	}
	if to != nil {
		return x, x.through(ctx, to)
	}
	return x, x.fromCache(ctx, x.direct)
}

// verdicts is the cacheable part of an explanation. It depends on the engine's state, the ends, the nodes' addresses
// and the endpoints of a Service.
type verdicts struct {
	Revision uint64              `json:"revision"`
	Ways     []inspect.Way       `json:"ways"`
	Service  *inspect.ServiceWay `json:"service,omitempty"`
	Problems []string            `json:"problems,omitempty"`
}

// fromCache sets the verdicts from the cache, or calls decide to compute them. Verdicts of the past are not cached.
func (x *explanation) fromCache(ctx context.Context, decide func(context.Context) error) error {
	if x.past != nil {
		return decide(ctx)
	}
	query, err := x.s.queryOf("verdicts", x.q.From, x.q.To, x.from.text(), x.to.text(), x.infos, x.out.Service)
	if err != nil {
		return err
	}
	problems := x.out.Problems
	body, _, _, err := x.s.throughCache(ctx, query, x.s.resolved, func(ctx context.Context) ([]byte, bool, error) {
		x.out.Problems = nil // the process's present problems are not cached
		if err := decide(ctx); err != nil {
			return nil, false, err
		}
		return encoded(verdicts{x.out.Revision, x.out.Ways, x.out.Service, x.out.Problems}, nil)
	})
	if err != nil {
		return err
	}
	var v verdicts
	if err := json.Unmarshal(body, &v); err != nil {
		return fmt.Errorf("decode the cached verdicts: %w", err)
	}
	x.out.Revision, x.out.Ways, x.out.Service = v.Revision, v.Ways, v.Service
	x.out.Problems = append(problems, v.Problems...)
	return nil
}

// within calls f with the present or past state, which does not change during the call.
func (x *explanation) within(ctx context.Context, f func(cluster) error) error {
	if x.past != nil {
		x.out.Revision = x.past.Revision
		return f(x.past)
	}
	var failed error
	err := x.s.cfg.Owner.Do(ctx, func(e *resolve.Engine) {
		x.out.Revision = e.Revision()
		failed = f(e)
	})
	return cmp.Or(err, failed)
}

// model returns a model of everything that verdicts between these addresses depend on.
func (x *explanation) model(ctx context.Context, addresses []netip.Addr) (model *explain.Model, err error) {
	var world *policy.World
	err = x.within(ctx, func(c cluster) error {
		world = c.WorldOf(addresses...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	x.out.Problems = append(x.out.Problems, contested(world)...)
	model = explain.NewModel(world)
	return model, checkEntries(model, addresses)
}

// maxEntries limits the rules, peers and ports of all policies that isolate an explained end.
const maxEntries = 100_000

func checkEntries(m *explain.Model, addresses []netip.Addr) error {
	type side struct {
		policy    *policy.Policy
		direction policy.Direction
	}
	n, seen := 0, map[side]bool{}
	for _, a := range addresses {
		for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
			for _, pol := range m.Isolating(d, m.Owner(a)) {
				if seen[side{pol, d}] {
					continue
				}
				seen[side{pol, d}] = true
				for _, r := range explain.RulesOf(pol, d) {
					n += 1 + len(r.Peers) + len(r.Ports)
				}
			}
		}
	}
	if n > maxEntries {
		return status.Errorf(codes.ResourceExhausted,
			"the policies of these ends have %d rules, peers and ports: more than %d are not explained", n, maxEntries)
	}
	return nil
}

// direct explains packets that no node translates.
func (x *explanation) direct(ctx context.Context) error {
	model, err := x.model(ctx, slices.Concat(x.from.addresses, x.to.addresses))
	if err != nil {
		return err
	}
	for _, pair := range pairs(x.from.addresses, x.to.addresses) {
		if err := ctx.Err(); err != nil {
			return err
		}
		way, err := wayOf(model, pair, x.q.To, x.to.ports)
		if err != nil {
			return err
		}
		x.out.Ways = append(x.out.Ways, x.ofTheNode(way))
	}
	if len(x.out.Ways) == 0 {
		return status.Errorf(codes.FailedPrecondition, "%s and %s have no addresses of one family: %v and %v",
			x.q.From, x.q.To.Name, x.from.addresses, x.to.addresses)
	}
	return nil
}

// ofTheNode allows a way from a node to its own pods, which no policy denies.
func (x *explanation) ofTheNode(way inspect.Way) inspect.Way {
	way.OfTheNode = way.To.Kind == explain.Pod && isNodes(x.infos, way.To.Node, way.From.Address)
	if way.OfTheNode {
		way.Allowed, way.DryRun = true, nil
	}
	return way
}

// endOf resolves a pod, node, address or World to an end.
func (x *explanation) endOf(c cluster, name string) (end, error) {
	infos := x.infos
	if a, err := netip.ParseAddr(name); err == nil {
		a = a.Unmap()
		e := end{addresses: []netip.Addr{a}, host: nodeAt(infos, a)}
		for _, held := range c.WorldOf(a).Endpoints {
			e.node, e.ports = held.Node, held.Ports
		}
		return e, nil
	}
	if name == inspect.World {
		return end{addresses: worldAddrs}, nil
	}
	if v, ok := c.Endpoint(name); ok {
		switch {
		case v.Endpoint.HostNetwork:
			return end{addresses: addressesOf(infos, v.Node), host: v.Node, ports: v.Endpoint.Ports}, nil
		case len(v.Addresses) == 0 && x.past == nil && x.s.cfg.Unattached().Lacks(name):
			return end{}, status.Errorf(codes.FailedPrecondition,
				"pod %s has no effective address: it is not wired by Flowkeep: %s", name, attachment.Remedy)
		case len(v.Addresses) == 0:
			return end{}, status.Errorf(codes.FailedPrecondition, "pod %s has no address (it is %s)", name,
				endpointState(&v))
		}
		return end{addresses: v.Addresses, node: v.Node, ports: v.Endpoint.Ports}, nil
	}
	if own := addressesOf(infos, name); len(own) > 0 {
		return end{addresses: own, host: name}, nil
	}
	if isMissing(c, name) {
		return end{}, status.Errorf(codes.NotFound, "pod %s at that time is not kept: %s", name, overShare)
	}
	return end{}, status.Errorf(codes.NotFound,
		"there is no pod or node %s: write a pod as namespace/name, an IP address, a node's name, or %s", name,
		inspect.World)
}

// contested describes addresses that several endpoints claim. Nodes apply the policies of all claimants, the model
// those of the first.
func contested(w *policy.World) (problems []string) {
	holder := map[netip.Addr]string{}
	for _, e := range w.Endpoints {
		if e.HostNetwork {
			continue
		}
		for _, a := range e.Addresses {
			if other := holder[a]; other != "" {
				problems = append(problems, fmt.Sprintf(
					"%s is claimed by %s and %s: while it is, it is no peer of any rule, and the policies of both hold",
					a, other, e.ID()))
				continue
			}
			holder[a] = e.ID()
		}
	}
	return problems
}

// nodeAt returns the name of the node with an address; empty if there is none.
func nodeAt(infos []policy.NodeInfo, a netip.Addr) string {
	for i := range infos {
		if slices.Contains(infos[i].Addresses, a) {
			return infos[i].Name
		}
	}
	return ""
}

func addressesOf(infos []policy.NodeInfo, node string) []netip.Addr {
	for i := range infos {
		if infos[i].Name == node {
			return infos[i].Addresses
		}
	}
	return nil
}

// isNodes reports whether an address belongs to the node; its pods' gateway address does.
func isNodes(infos []policy.NodeInfo, node string, a netip.Addr) bool {
	for i := range infos {
		if infos[i].Name == node {
			gateway := slices.ContainsFunc(infos[i].PodCIDRs,
				func(p netip.Prefix) bool { return p.Masked().Addr().Next() == a })
			return gateway || slices.Contains(infos[i].Addresses, a)
		}
	}
	return false
}

// pairs returns an address of each end for each family that both have.
func pairs(from, to []netip.Addr) (list [][2]netip.Addr) {
	for _, six := range []bool{false, true} {
		of := func(a netip.Addr) bool { return a.Is6() == six }
		i, j := slices.IndexFunc(from, of), slices.IndexFunc(to, of)
		if i >= 0 && j >= 0 {
			list = append(list, [2]netip.Addr{from[i], to[j]})
		}
	}
	return list
}

func wayOf(m *explain.Model, pair [2]netip.Addr, target *inspect.Target,
	named []policy.NamedPort) (inspect.Way, error) {
	way := inspect.Way{
		Connections:   m.Connections(pair[0], pair[1]),
		Traces:        []inspect.Trace{},
		Disagreements: []string{},
	}
	p := policy.Packet{From: pair[0], To: pair[1]}
	var err error
	if p.Protocol, p.Port, err = portOf(target, named, pair[0].Is6()); err != nil {
		return way, err
	}
	if target.Port == "" && hasPorts(p.Protocol) {
		way.PortChosen = true
		p.Protocol, p.Port = choose(way.Connections, target.Protocol, p.Protocol)
	}
	way.Explanation = m.Explain(p)
	return way, nil
}

const (
	icmp   policy.Protocol = 1
	icmpv6 policy.Protocol = 58
)

var protocols = map[string]policy.Protocol{"": policy.TCP, "TCP": policy.TCP, "UDP": policy.UDP, "SCTP": policy.SCTP}

func hasPorts(p policy.Protocol) bool { return p != icmp && p != icmpv6 }

// portOf returns the target's protocol and port number. A named port of only one protocol needs no protocol.
func portOf(t *inspect.Target, named []policy.NamedPort, six bool) (policy.Protocol, uint16, error) {
	if t.Protocol == "ICMP" {
		if six {
			return icmpv6, 0, nil
		}
		return icmp, 0, nil
	}
	protocol, ok := protocols[t.Protocol]
	if !ok {
		return 0, 0, status.Errorf(codes.InvalidArgument, "protocol %q: use TCP, UDP, SCTP or ICMP", t.Protocol)
	}
	if t.Port == "" {
		return protocol, 0, nil
	}
	if n, err := strconv.ParseUint(t.Port, 10, 16); err == nil {
		return protocol, uint16(n), nil
	}
	for _, p := range named {
		if p.Name == t.Port && (t.Protocol == "" || p.Protocol == protocol) {
			return p.Protocol, p.Number, nil
		}
	}
	return 0, 0, status.Errorf(codes.NotFound, "%s has no port called %q", t.Name, t.Port)
}

// choose returns an allowed port if there is one, preferably 80.
func choose(c explain.Connections, asked string, otherwise policy.Protocol) (policy.Protocol, uint16) {
	const web = 80
	ranges, _ := c.Ranges()
	for _, r := range ranges {
		if (asked == "" || r.Protocol == otherwise) && !c.Contains(otherwise, web) {
			return r.Protocol, max(r.First, 1)
		}
	}
	return otherwise, web
}
