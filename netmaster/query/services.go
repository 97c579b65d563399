package query

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Services reads Services from the API server for each query: no policy depends on them, so they are not watched.
// Netmaster reads them with its own rights, because the web UI and netctl --server have none. That reveals only
// names and addresses of pods, which explanations contain anyway (docs/decisions/010).
type Services interface {
	Service(ctx context.Context, namespace, name string) (watch.Service, bool, error)
	Services(ctx context.Context) ([]watch.Service, error)
	Backends(ctx context.Context, namespace, name string) ([]watch.Backend, error)
}

const (
	// servicesTimeout bounds how long an explanation waits for Services.
	servicesTimeout = 3 * time.Second
	// servicesTTL is how long a list of all Services is reused.
	servicesTTL = 2 * time.Second
)

// serviceList is the list of all Services, at most servicesLast old.
type serviceList struct {
	turn chan struct{} // semaphore for the other fields
	at   time.Time
	list []watch.Service
}

func newServiceList() *serviceList { return &serviceList{turn: make(chan struct{}, 1)} }

var errNoServices = errors.New("this netmaster reads no Services")

// allServices returns a list of all Services. Concurrent callers share one request to the API server.
func (s *sources) allServices(ctx context.Context) ([]watch.Service, error) {
	if s.cfg.Services == nil {
		return nil, errNoServices
	}
	ctx, cancel := context.WithTimeout(ctx, servicesTimeout)
	defer cancel()
	l := s.serviceList
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if time.Since(l.at) < servicesTTL {
		return l.list, nil
	}
	list, err := s.cfg.Services.Services(ctx)
	if err == nil {
		l.list, l.at = list, time.Now()
	}
	return list, err
}

// services returns the names of Services, for completion.
func (s *nodeQueries) services(ctx context.Context, q *inspect.Question) (any, error) {
	list, err := s.allServices(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	out := []inspect.ServiceName{}
	for i := range list {
		v := &list[i]
		if q.Namespace == "" || q.Namespace == v.Namespace {
			out = append(out,
				inspect.ServiceName{Namespace: v.Namespace, Name: v.Name, Type: v.Type, Addresses: v.Addresses})
		}
	}
	slices.SortFunc(out, func(a, b inspect.ServiceName) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out, nil
}

// serviceTarget is the Service that an explained packet is sent to.
type serviceTarget struct {
	watch.Service
	node string // node of the node port; empty: not a node port
	// bySwitch: the source node's switch translates it and keeps the pod's address as the source.
	bySwitch bool
}

// target resolves both ends, and returns the Service that the packet passes; nil if there is none.
func (x *explanation) target(ctx context.Context) (*serviceTarget, error) {
	namespace, name, named := inspect.ServiceOf(x.q.To.Name)
	named = named && len(addressesOf(x.infos, x.q.To.Name)) == 0
	err := x.within(ctx, func(c cluster) (err error) {
		if x.from, err = x.endOf(c, x.q.From); err == nil && !named {
			x.to, err = x.endOf(c, x.q.To.Name)
		}
		return err
	})
	switch {
	case status.Code(err) == codes.NotFound && x.from.addresses != nil && !named:
		return nil, x.hint(ctx, err)
	case err != nil:
		return nil, err
	case !named:
		return x.addressed(ctx)
	}
	x.services = true
	switch {
	case x.s.cfg.Services == nil:
		return nil, status.Error(codes.Unimplemented, errNoServices.Error())
	case x.q.To.Protocol == "ICMP":
		return nil, status.Error(codes.InvalidArgument,
			"Services translate only TCP, UDP and SCTP, not ICMP: query a pod behind the Service")
	}
	svc, there, err := x.s.cfg.Services.Service(ctx, namespace, name)
	switch {
	case err != nil:
		return nil, status.Error(codes.Unavailable, err.Error())
	case !there:
		return nil, status.Errorf(codes.NotFound, "there is no Service %s/%s", namespace, name)
	}
	return &serviceTarget{Service: svc}, nil
}

// hint adds to the error for an unknown pod that a Service has this name.
func (x *explanation) hint(ctx context.Context, err error) error {
	namespace, name, ok := strings.Cut(x.q.To.Name, "/")
	if !ok || x.s.cfg.Services == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, servicesTimeout)
	defer cancel()
	if _, there, asked := x.s.cfg.Services.Service(ctx, namespace, name); asked != nil || !there {
		return err
	}
	return status.Errorf(codes.NotFound, "there is no pod %[1]s, but a Service: ask for svc/%[1]s", x.q.To.Name)
}

// addressed returns the Service with the target's address or node port; nil if there is none. It notes as a problem
// what is not explained further.
func (x *explanation) addressed(ctx context.Context) (*serviceTarget, error) {
	number, _ := strconv.ParseUint(x.q.To.Port, 10, 16)
	a, err := netip.ParseAddr(x.q.To.Name)
	isAddress := err == nil && x.to.node == "" && x.to.host == "" && x.q.To.Protocol != "ICMP"
	isNode := x.to.host != "" && number > 0
	if !isAddress && !isNode || x.s.cfg.Services == nil {
		return nil, nil
	}
	x.services = true
	list, err := x.s.allServices(ctx)
	if err != nil {
		x.out.Problems = append(x.out.Problems,
			fmt.Sprintf("cannot look up a Service at %s: %v", x.q.To.Name, err))
		return nil, nil
	}
	for i := range list {
		if isAddress && slices.Contains(list[i].Addresses, a.Unmap()) {
			return &serviceTarget{Service: list[i]}, nil
		}
	}
	if svc := x.translated(ctx, list, uint16(number)); svc != nil {
		return svc, nil
	}
	for i := range list {
		svc := &list[i]
		switch {
		case isAddress && slices.Contains(svc.External, a.Unmap()):
			x.note(
				"%s is an address of Service %s/%s from outside: egress policies judge it as it is, and those of "+
					"the pod behind it what the node makes of it; ask for svc/%[2]s/%[3]s too",
				a,
				svc.Namespace,
				svc.Name,
			)
		case isNode && len(nodePorts(svc, uint16(number), x.q.To.Protocol)) > 0 && x.from.node == "":
			return &serviceTarget{Service: *svc, node: x.to.host}, nil
		case isNode && len(nodePorts(svc, uint16(number), x.q.To.Protocol)) > 0:
			x.note(
				"port %d of %s is a node port of Service %s/%s: this is the way to the node; the pod behind it is "+
					"reached with this pod's address where it is on that node, else with the node's; ask for "+
					"svc/%[3]s/%[4]s, or from %[2]s, too",
				number,
				x.to.host,
				svc.Namespace,
				svc.Name,
			)
		}
	}
	return nil, nil
}

// translated returns the Service that the source node's switch translates packets to an address to, which is no
// ClusterIP; nil: none. Port 0 stands for any.
func (x *explanation) translated(ctx context.Context, list []watch.Service, port uint16) *serviceTarget {
	if x.from.node == "" || x.s.cfg.Frontends == nil {
		return nil
	}
	all := make([]*service.Service, 0, len(list))
	for i := range list {
		if v, _ := x.s.cfg.Frontends.Get(list[i].Namespace + "/" + list[i].Name); v.Service != nil {
			all = append(all, v.Service)
		}
	}
	for _, pair := range pairs(x.from.addresses, x.to.addresses) {
		to, use := pair[1], x.addressUse(pair[1])
		var protocol policy.Protocol
		if x.q.To.Protocol != "" {
			protocol = protocols[x.q.To.Protocol]
		}
		if s, _ := service.At(all, to, protocol, port, use); s == nil {
			continue
		}
		by := x.translator(ctx)
		if by.TranslatedBy != inspect.TranslatedByOVS {
			return nil
		}
		use.Services = slices.ContainsFunc(by.ServiceCIDRs, func(p netip.Prefix) bool { return p.Contains(to) })
		s, f := service.At(all, to, protocol, port, use)
		if s == nil {
			continue
		}
		i := slices.IndexFunc(list, func(v watch.Service) bool { return v.Namespace+"/"+v.Name == s.ID() })
		out := &serviceTarget{Service: list[i], bySwitch: true}
		if f.Kind == service.NodePort {
			out.node = x.to.host
		}
		return out
	}
	return nil
}

// addressUse returns what the source node uses an address for, but for CIDRs of ClusterIPs.
func (x *explanation) addressUse(a netip.Addr) service.AddressUse {
	out := service.AddressUse{Node: nodeAt(x.infos, a) != ""}
	for i := range x.infos {
		n := &x.infos[i]
		isPod := slices.ContainsFunc(n.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(a) })
		out.Pods = out.Pods || isPod
		out.LocalPods = out.LocalPods || isPod && n.Name == x.from.node
	}
	return out
}

func (x *explanation) note(format string, args ...any) {
	x.out.Problems = append(x.out.Problems, fmt.Sprintf(format, args...))
}

func nodePorts(svc *watch.Service, number uint16, protocol string) (out []watch.ServicePort) {
	for _, p := range svc.Ports {
		if p.NodePort == number && number > 0 && (protocol == "" || protocols[protocol] == p.Protocol) {
			out = append(out, p)
		}
	}
	return out
}

// portsOf returns the Service's ports that the query names, or all.
func (t *serviceTarget) portsOf(to *inspect.Target) (out []watch.ServicePort, err error) {
	number, err := strconv.ParseUint(to.Port, 10, 16)
	isNumber := err == nil
	if t.node != "" {
		return nodePorts(&t.Service, uint16(number), to.Protocol), nil
	}
	if t.Headless && isNumber { // a headless Service is not translated: the port is the pods'
		return []watch.ServicePort{{Protocol: protocols[to.Protocol], Port: uint16(number)}}, nil
	}
	for _, p := range t.Ports {
		matches := to.Port == "" || isNumber && uint16(number) == p.Port || !isNumber && to.Port == p.Name
		if matches && (to.Protocol == "" || protocols[to.Protocol] == p.Protocol) {
			out = append(out, p)
		}
	}
	if len(out) > 0 {
		return out, nil
	}
	return nil, status.Errorf(codes.NotFound, "Service %s/%s has no port %s: it has %s", t.Namespace, t.Name,
		strings.Trim(to.Port+"/"+to.Protocol, "/"), servicePorts(t.Ports))
}

func servicePorts(ports []watch.ServicePort) string {
	var out []string
	for _, p := range ports {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s/%d", p.Name, p.Protocol, p.Port)))
	}
	return cmp.Or(strings.Join(out, ", "), "none")
}

// followedCount returns the endpoints behind a port, with the reason if nodes send no packets to one now.
func (t *serviceTarget) chosen(port *watch.ServicePort, all []watch.Backend, from *end) (out []inspect.Backend) {
	local, by := t.local(from)
	var behind []watch.Backend
	for _, b := range all {
		isPort := b.PortName == port.Name && b.Protocol == port.Protocol
		if isPort || t.Headless && port.Target == "" {
			behind = append(behind, b)
		}
	}
	here := func(b *watch.Backend) bool { return local == "" || b.Node == local }
	anyReady := slices.ContainsFunc(behind, func(b watch.Backend) bool { return b.Ready && here(&b) })
	for i := range behind {
		b := &behind[i]
		v := inspect.Backend{
			Pod:     b.Pod,
			Node:    b.Node,
			Address: b.Address,
			Port:    cmp.Or(b.Port, port.Port),
			State:   stateOfBackend(b),
			Way:     -1,
		}
		switch {
		case !here(b):
			v.Unused = fmt.Sprintf("not on %s, and %s is Local", local, by)
		case b.Ready:
		case t.Headless:
			v.Unused = "the DNS leaves it out"
		case b.Terminating && b.Serving && !anyReady: // the last endpoints of the Service
		case b.Terminating:
			v.Unused = "new connections go elsewhere"
		default:
			v.Unused = "gets no packets"
		}
		out = append(out, v)
	}
	if t.Headless && port.Target == "" {
		out = atNumber(out, port.Port)
	}
	return out
}

// atNumber sets the port of all endpoints and removes duplicate addresses.
func atNumber(list []inspect.Backend, number uint16) []inspect.Backend {
	for i := range list {
		list[i].Port = number
	}
	slices.SortStableFunc(list, func(a, b inspect.Backend) int { return a.Address.Compare(b.Address) })
	return slices.CompactFunc(list, func(a, b inspect.Backend) bool { return a.Address == b.Address })
}

// local returns the node whose own endpoints alone receive packets, and the field of the Service that says so;
// empty: no restriction.
func (t *serviceTarget) local(from *end) (node, field string) {
	switch {
	case t.Headless:
	case t.node != "" && t.ExternalLocal && from.host == "" && !t.bySwitch:
		return t.node, "externalTrafficPolicy"
	case t.node == "" && t.InternalLocal:
		return from.on(), "internalTrafficPolicy"
	}
	return "", ""
}

func stateOfBackend(b *watch.Backend) string {
	switch {
	case b.Terminating:
		return inspect.BackendTerminating
	case b.Ready:
		return inspect.BackendReady
	}
	return inspect.BackendNotReady
}
