package inspect

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/history"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// end is whom a name means.
type end struct {
	addresses []netip.Addr // at most one a family, for World and pods; any for nodes
	node      string       // where a pod is wired
	host      string       // the node that it is: by name, by address, or as a pod with hostNetwork
	ports     []policy.NamedPort
}

// on is the node that translates what the end sends; empty: it is outside.
func (x *end) on() string { return cmp.Or(x.node, x.host) }

// worldAddrs are of nobody (RFC 5737, RFC 3849).
var worldAddrs = []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8:1::1")}

// cluster is what the engine holds.
type cluster interface {
	Endpoint(id string) (resolve.EndpointView, bool)
	WorldOf(addresses ...netip.Addr) *policy.World
}

// explaining is one explanation on its way.
type explaining struct {
	s        *Server
	q        *inspect.Question
	infos    []policy.NodeInfo
	from, to end
	past     *history.State // nil: it is of now
	out      inspect.Explained
}

// explain takes the model from the owner, and the traces from the nodes meanwhile.
func (s *Server) explain(ctx context.Context, q *inspect.Question) (any, error) {
	ctx, cancel := inTime(ctx)
	defer cancel()
	x, err := s.explained(ctx, q)
	if err != nil {
		return nil, err
	}
	if !q.Unproved && q.At == nil {
		x.out.Problems = append(x.out.Problems, s.prove(ctx, x.out.Ways, x.from.node)...)
	}
	return &x.out, nil
}

// explained is without proof.
func (s *Server) explained(ctx context.Context, q *inspect.Question) (*explaining, error) {
	if q.To == nil {
		return nil, status.Error(codes.InvalidArgument, "an explanation needs two ends")
	}
	x := &explaining{s: s, q: q, infos: s.cfg.Nodes.Infos()}
	x.out = inspect.Explained{From: q.From, To: *q.To, Ways: []inspect.Way{}, Problems: append([]string{}, s.cfg.Problems()...)}
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
	return x, x.direct(ctx)
}

// within gives the cluster as it is, or was, which holds still meanwhile.
func (x *explaining) within(ctx context.Context, f func(cluster) error) error {
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

// model is of all that the verdicts between these addresses depend on.
func (x *explaining) model(ctx context.Context, addresses []netip.Addr) (model *explain.Model, err error) {
	err = x.within(ctx, func(c cluster) error {
		world := c.WorldOf(addresses...)
		model = explain.NewModel(world)
		x.out.Problems = append(x.out.Problems, contested(world)...)
		return nil
	})
	return model, err
}

// direct explains packets that nobody translates.
func (x *explaining) direct(ctx context.Context) error {
	model, err := x.model(ctx, slices.Concat(x.from.addresses, x.to.addresses))
	if err != nil {
		return err
	}
	for _, pair := range pairs(x.from.addresses, x.to.addresses) {
		way, err := wayOf(model, pair, x.q.To, x.to.ports)
		if err != nil {
			return err
		}
		x.out.Ways = append(x.out.Ways, x.ofTheNode(way))
	}
	if len(x.out.Ways) == 0 {
		return status.Errorf(codes.FailedPrecondition, "%s and %s have no addresses of one family: %v and %v", x.q.From, x.q.To.Name, x.from.addresses, x.to.addresses)
	}
	return nil
}

// ofTheNode lets pass what a node sends to its own pods.
func (x *explaining) ofTheNode(way inspect.Way) inspect.Way {
	way.OfTheNode = way.To.Kind == explain.Pod && isNodes(x.infos, way.To.Node, way.From.Address)
	if way.OfTheNode {
		way.Allowed, way.DryRun = true, nil
	}
	return way
}

// endOf finds whom a name means.
func endOf(c cluster, infos []policy.NodeInfo, name string) (end, error) {
	if a, err := netip.ParseAddr(name); err == nil {
		a = a.Unmap()
		x := end{addresses: []netip.Addr{a}, host: nodeAt(infos, a)}
		for _, held := range c.WorldOf(a).Endpoints {
			x.node, x.ports = held.Node, held.Ports
		}
		return x, nil
	}
	if name == inspect.World {
		return end{addresses: worldAddrs}, nil
	}
	if v, ok := c.Endpoint(name); ok {
		switch {
		case v.Endpoint.HostNetwork:
			return end{addresses: addressesOf(infos, v.Node), host: v.Node, ports: v.Endpoint.Ports}, nil
		case len(v.Addresses) == 0:
			return end{}, status.Errorf(codes.FailedPrecondition, "pod %s has no address (it is %s)", name, endpointState(&v))
		}
		return end{addresses: v.Addresses, node: v.Node, ports: v.Endpoint.Ports}, nil
	}
	if own := addressesOf(infos, name); len(own) > 0 {
		return end{addresses: own, host: name}, nil
	}
	return end{}, status.Errorf(codes.NotFound, "there is no pod or node %s: write a pod as namespace/name, an IP address, a node's name, or %s", name, inspect.World)
}

// contested are the addresses that several endpoints hold: the model takes the first of them, the nodes deny for all.
func contested(w *policy.World) (problems []string) {
	holder := map[netip.Addr]string{}
	for _, e := range w.Endpoints {
		if e.HostNetwork {
			continue
		}
		for _, a := range e.Addresses {
			if other := holder[a]; other != "" {
				problems = append(problems, fmt.Sprintf("%s is claimed by %s and %s: while it is, it is no peer of any rule, and the policies of both hold", a, other, e.ID()))
				continue
			}
			holder[a] = e.ID()
		}
	}
	return problems
}

// nodeAt is whose address it is.
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

// isNodes tells whether an address is the node's own, its gateway to its pods included.
func isNodes(infos []policy.NodeInfo, node string, a netip.Addr) bool {
	for i := range infos {
		if infos[i].Name == node {
			gateway := slices.ContainsFunc(infos[i].PodCIDRs, func(p netip.Prefix) bool { return p.Masked().Addr().Next() == a })
			return gateway || slices.Contains(infos[i].Addresses, a)
		}
	}
	return false
}

// pairs are an address of each end, one pair a family.
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

func wayOf(m *explain.Model, pair [2]netip.Addr, target *inspect.Target, named []policy.NamedPort) (inspect.Way, error) {
	way := inspect.Way{Connections: m.Connections(pair[0], pair[1]), Traces: []inspect.Trace{}, Disagreements: []string{}}
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

// portOf finds a port's number where the pod names it. A name that the pod gives one protocol only needs none.
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

// choose takes a port that is allowed, if any is.
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
