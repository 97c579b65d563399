package query

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/follow"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Limits of traces.
const (
	maxTraces    = 8
	maxObservers = 64 // nodes of a trace
)

// trace follows real packets through the nodes that see them.
func (s *packetQueries) trace(ctx context.Context, q *inspect.Question, send func(any) error) error {
	spec := q.Trace
	switch {
	case spec == nil:
		return status.Error(codes.InvalidArgument, "no trace limits specified")
	case spec.Count < 0 || spec.Count > inspect.MostFollowed,
		spec.Duration < 0 || spec.Duration > inspect.LongestTrace:
		return status.Errorf(codes.InvalidArgument, "%d packets within %v: at most %d within %v", spec.Count,
			spec.Duration, inspect.MostFollowed, inspect.LongestTrace)
	case q.From == inspect.World || q.To != nil && q.To.Name == inspect.World:
		return status.Errorf(codes.InvalidArgument, "a trace needs an address instead of %s",
			inspect.World)
	}
	select {
	case s.tracing <- struct{}{}:
		defer func() { <-s.tracing }()
	default:
		return status.Errorf(codes.ResourceExhausted, "%d traces are in progress: retry later", maxTraces)
	}
	t := &traceRun{
		tracePlan: tracePlan{spec: *spec},
		send:      send,
		packets:   map[string]*followed{},
		observers: map[string]*observer{},
	}
	t.spec.Count = max(t.spec.Count, 1)
	if t.spec.Duration == 0 {
		t.spec.Duration = inspect.LongestTrace
	}
	if err := t.prepare(ctx, s.sources, q); err != nil {
		return err
	}
	return t.run(ctx)
}

func (t *tracePlan) prepare(ctx context.Context, s *sources, q *inspect.Question) (err error) {
	ends := &inspect.Question{Kind: q.Kind, From: q.From, To: q.To, Unproved: true}
	if t.x, err = s.explained(ctx, ends); err != nil {
		return err
	}
	if len(t.x.from.addresses) == 0 {
		return status.Errorf(codes.FailedPrecondition, "%s has no address that is known", q.From)
	}
	return t.plan(ctx)
}

const changedMeanwhile = "its ends, or the endpoints of the Service, have changed since: trace again"

// changed reports whether the ends or their Service have changed since the trace was planned, or whether that is
// unknown.
func (t *tracePlan) changed(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, proofTimeout)
	defer cancel()
	now := tracePlan{spec: t.spec}
	if err := now.prepare(ctx, t.x.s, t.x.q); err != nil {
		return true
	}
	of := func(t *tracePlan) map[string]struct{} {
		set := map[string]struct{}{}
		for _, a := range t.query.From {
			set["from "+a.String()] = struct{}{}
		}
		for _, a := range t.query.To {
			set["to "+a.String()+" of "+t.nameOf(a)] = struct{}{}
		}
		for _, p := range t.query.Ports {
			set[strconv.Itoa(int(p))] = struct{}{}
		}
		return set
	}
	return !maps.Equal(of(t), of(&now))
}

// plan sets the ends, the nodes and the packets of the trace.
func (t *tracePlan) plan(ctx context.Context) error {
	x, svc := t.x, t.x.out.Service
	to, ports, protocols := x.to.addresses, []uint16{}, []policy.Protocol{}
	if behind, err := t.behindNodePort(ctx); err != nil {
		return err
	} else if behind != nil {
		w := &x.out.Ways[0]
		to, ports, protocols, t.ends.Virtual = nil, []uint16{w.Port}, []policy.Protocol{w.Protocol}, x.to.addresses
		for i := range behind {
			to, ports = append(to, behind[i].Address), append(ports, cmp.Or(behind[i].Port, w.Port))
		}
	} else if svc != nil {
		to = nil
		t.ends.Virtual = slices.Concat(svc.Addresses, addressesOf(x.infos, svc.Node))
		for i := range svc.Ports {
			p := &svc.Ports[i]
			ports, protocols = append(ports, p.Port), append(protocols, p.Protocol)
			if svc.Node != "" {
				ports = append(ports, p.NodePort)
			}
			for j := range p.Backends {
				to, ports = append(to, p.Backends[j].Address), append(ports, p.Backends[j].Port)
			}
		}
	} else if w := &x.out.Ways[0]; x.q.To.Port != "" {
		ports, protocols = []uint16{w.Port}, []policy.Protocol{w.Protocol}
	} else if x.q.To.Protocol != "" {
		protocols = []policy.Protocol{w.Protocol}
	}
	if err := t.holders(ctx, to); err != nil {
		return err
	}
	t.aliases()
	t.query = inspect.SightingsQuery{
		From:     slices.Concat(t.ends.From.Addresses, t.ends.Aliases),
		To:       slices.Concat(t.ends.Virtual, unique(to)),
		Ports:    unique(ports),
		Duration: t.spec.Duration + 2*responseTimeout,
	}
	if protocols = unique(protocols); len(protocols) == 1 {
		t.query.Protocol = protocols[0]
	}
	if len(t.query.To) == 0 {
		return status.Errorf(codes.FailedPrecondition,
			"%s has neither an address nor endpoints to send to", x.q.To.Name)
	}
	if n := len(t.query.From); n > inspect.MostSources {
		t.query.From = t.query.From[:inspect.MostSources]
	}
	return t.observersOf()
}

// behindNodePort returns the endpoints behind a node port, to which a packet is sent on after policies have
// evaluated it. It returns nil if the target is not a node port, or if that is unknown, which explained has noted.
func (t *tracePlan) behindNodePort(ctx context.Context) ([]watch.Backend, error) {
	x := t.x
	number, _ := strconv.ParseUint(x.q.To.Port, 10, 16)
	if x.out.Service != nil || x.to.host == "" || number == 0 || x.s.cfg.Services == nil {
		return nil, nil
	}
	list, _ := x.s.allServices(ctx)
	for i := range list {
		svc := &list[i]
		ports := nodePorts(svc, uint16(number), x.q.To.Protocol)
		if len(ports) == 0 {
			continue
		}
		behind, err := x.s.cfg.Services.Backends(ctx, svc.Namespace, svc.Name)
		if err != nil {
			return nil, status.Error(codes.Unavailable, err.Error())
		}
		isOther := func(b watch.Backend) bool { return b.PortName != ports[0].Name || b.Protocol != ports[0].Protocol }
		return slices.DeleteFunc(slices.Clone(behind), isOther), nil
	}
	return nil, nil
}

// holders sets the owners of the addresses of both ends.
func (t *tracePlan) holders(ctx context.Context, to []netip.Addr) error {
	x := t.x
	pods := map[netip.Addr][]*policy.Endpoint{}
	err := x.within(ctx, func(c cluster) error {
		for _, e := range c.WorldOf(slices.Concat(x.from.addresses, to)...).Endpoints {
			for _, a := range e.Addresses {
				if !e.HostNetwork && !e.Finished {
					pods[a] = append(pods[a], e)
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	of := func(a netip.Addr) follow.End {
		end := follow.End{Node: nodeAt(x.infos, a), Addresses: []netip.Addr{a}}
		if len(pods[a]) > 0 {
			pod := pods[a][0]
			end = follow.End{Pod: pod.ID(), Node: pod.Node, Addresses: pod.Addresses}
		}
		return end
	}
	t.ends.From = of(x.from.addresses[0])
	t.ends.From.Addresses = x.from.addresses
	for _, a := range unique(to) {
		t.ends.To = append(t.ends.To, of(a))
	}
	for _, name := range []string{x.q.From, x.q.To.Name} {
		if end, err := x.named(ctx, name); err == nil && end.node == "" && end.host != "" && inspect.IsPod(name) {
			return status.Errorf(codes.FailedPrecondition,
				"pod %s is in its node's network, as others are: trace from or to the node %s", name, end.host)
		}
	}
	if err := alone(x.q.From, x.from.addresses, pods); err != nil {
		return err
	}
	if x.out.Service == nil {
		if err := alone(x.q.To.Name, to, pods); err != nil {
			return err
		}
	}
	if from := &t.ends.From; from.Pod != "" && len(t.ends.Virtual) == 0 &&
		!slices.ContainsFunc(t.ends.To, func(to follow.End) bool { return to.Pod != from.Pod }) {
		return status.Errorf(codes.InvalidArgument, "packets from pod %s to itself do not leave the pod", from.Pod)
	}
	return nil
}

// alone returns an error if another pod claims an address of the pod: the trace would show packets of that pod,
// which may be in another namespace.
func alone(name string, addresses []netip.Addr, pods map[netip.Addr][]*policy.Endpoint) error {
	for _, a := range addresses {
		for _, e := range pods[a] {
			if inspect.IsPod(name) && e.ID() != name {
				return status.Errorf(codes.FailedPrecondition,
					"pod %s is not the only pod with the address %s: netctl explain shows the other one", name,
					a)
			}
		}
	}
	return nil
}

func (x *explanation) named(ctx context.Context, name string) (e end, err error) {
	err = x.within(ctx, func(c cluster) (err error) { e, err = x.endOf(c, name); return err })
	return e, err
}

// aliases sets the addresses that a node may substitute for the source's: its own, by masquerading, and the
// gateway's of its pods.
func (t *tracePlan) aliases() {
	x, from := t.x, &t.ends.From
	own := func(node string) []netip.Addr {
		list := slices.Clone(addressesOf(x.infos, node))
		for i := range x.infos {
			for _, cidr := range x.infos[i].PodCIDRs {
				if x.infos[i].Name == node {
					list = append(list, cidr.Masked().Addr().Next())
				}
			}
		}
		return list
	}
	if from.Pod == "" && from.Node != "" {
		from.Addresses = unique(slices.Concat(from.Addresses, own(from.Node)))
	}
	switch svc := x.out.Service; {
	case svc != nil:
		t.ends.Aliases = slices.Concat(own(from.Node), own(svc.Node))
	case len(t.ends.Virtual) > 0:
		t.ends.Aliases = slices.Concat(own(from.Node), own(x.to.host))
	case slices.ContainsFunc(t.ends.To, func(to follow.End) bool { return to.Pod == "" }):
		t.ends.Aliases = own(from.Node)
	}
	t.ends.Aliases = slices.DeleteFunc(unique(t.ends.Aliases),
		func(a netip.Addr) bool { return slices.Contains(from.Addresses, a) })
}

// observersOf sets the nodes that packets may pass.
func (t *tracePlan) observersOf() error {
	names := []string{t.x.to.host}
	if svc := t.x.out.Service; svc != nil && svc.Node != "" {
		names = append(names, svc.Node)
	}
	for i := range t.ends.To {
		names = append(names, t.ends.To[i].Node)
	}
	names = slices.DeleteFunc(unique(names), func(name string) bool { return name == "" || name == t.ends.From.Node })
	if len(names) > maxObservers {
		t.problems = append(t.problems,
			"its endpoints are on more nodes than look at once: what goes to some of them seems lost")
		names = names[:maxObservers]
	}
	if t.ends.From.Node != "" {
		names = append(names, t.ends.From.Node)
	}
	if t.nodes = names; len(names) == 0 {
		return status.Error(codes.FailedPrecondition, "neither end is in the cluster: no node sees its packets")
	}
	return nil
}
