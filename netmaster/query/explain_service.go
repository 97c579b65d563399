package query

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxBackends limits the endpoints of a port that are evaluated.
const maxBackends = 1000

// through explains packets to a Service. Policies apply to the packet after its translation to an endpoint.
func (x *explanation) through(ctx context.Context, t *serviceTarget) error {
	if t.Type == "ExternalName" {
		return status.Errorf(codes.FailedPrecondition,
			"Service %s/%s is another name in the DNS (ExternalName): nothing is translated; ask for an address of %s",
			t.Namespace, t.Name, t.ExternalName)
	}
	ports, err := t.portsOf(x.q.To)
	if err != nil {
		return err
	}
	behind, err := x.s.cfg.Services.Backends(ctx, t.Namespace, t.Name)
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	out := &inspect.ServiceWay{
		Namespace: t.Namespace,
		Name:      t.Name,
		Type:      t.Type,
		Addresses: t.Addresses,
		Headless:  t.Headless,
		Node:      t.node,
		Ports:     []inspect.ServicePort{},
		Notes:     x.notes(t),
	}
	for i := range ports {
		p := inspect.ServicePort{
			Name:     ports[i].Name,
			Protocol: ports[i].Protocol,
			Port:     ports[i].Port,
			NodePort: ports[i].NodePort,
			Target:   ports[i].Target,
		}
		p.Backends = append([]inspect.Backend{}, t.chosen(&ports[i], behind, &x.from)...)
		p.Refused = t.refusal(p.Backends, &x.from)
		out.Ports = append(out.Ports, p)
	}
	x.out.Service = out
	return x.fromCache(ctx, func(ctx context.Context) error { return x.judge(ctx, t, out) })
}

// notes returns what else affects where packets to the Service go.
func (x *explanation) notes(t *serviceTarget) (notes []string) {
	say := func(holds bool, text string) {
		if holds {
			notes = append(notes, text)
		}
	}
	number, err := strconv.ParseUint(x.q.To.Port, 10, 16)
	for _, p := range t.Ports {
		say(
			t.Headless && err == nil && p.Port == uint16(number) && p.Target != x.q.To.Port,
			fmt.Sprintf("port %d reaches the pods as %[1]d, and not as their %s: a headless Service is not translated",
				p.Port, p.Target),
		)
	}
	say(x.past != nil, "the Service and its endpoints are as they are now")
	say(t.Nearest, "nodes may prefer backends that are near (trafficDistribution)")
	say(t.Sticky, "a client comes to the same backend again (sessionAffinity)")
	say(
		t.node == "" && !t.Headless && x.from.on() == "",
		"no node translates a ClusterIP for packets from outside: these are the policies' verdicts at the backends, "+
			"for a node port or a load balancer that leads there by a node that has the backend",
	)
	masquerades := t.node != "" && !t.ExternalLocal && x.from.host != t.node && !t.bySwitch
	say(masquerades, "a backend of another node sees the address of "+t.node+
		", not the source's (externalTrafficPolicy: Cluster)")
	return notes
}

// refusal returns why packets to a port reach no endpoint, whatever policies allow; empty if they do.
func (t *serviceTarget) refusal(list []inspect.Backend, from *end) string {
	local, field := t.local(from)
	switch used := slices.ContainsFunc(list, func(b inspect.Backend) bool { return b.Unused == "" }); {
	case used:
		return ""
	case len(list) == 0:
		return "it has no endpoints: nodes refuse its packets before any policy applies"
	case local != "" && !slices.ContainsFunc(list, func(b inspect.Backend) bool { return b.Node == local }):
		return fmt.Sprintf(
			"%s has none of its endpoints, and %s is Local: the node drops its packets before any policy applies",
			local, field)
	}
	return "none of its endpoints is ready: nodes refuse its packets before any policy applies"
}

// judge evaluates each backend, and adds one explanation for all that have the same verdict for the same reasons.
func (x *explanation) judge(ctx context.Context, t *serviceTarget, out *inspect.ServiceWay) error {
	via := addressesOf(x.infos, t.node)
	addresses := slices.Concat(x.from.addresses, via)
	for i := range out.Ports {
		if n := len(out.Ports[i].Backends); n > maxBackends {
			x.note("port %d has %d endpoints: only the first %d are shown", out.Ports[i].Port, n, maxBackends)
			out.Ports[i].Backends = out.Ports[i].Backends[:maxBackends]
		}
		for _, b := range out.Ports[i].Backends {
			addresses = append(addresses, b.Address)
		}
	}
	model, err := x.model(ctx, addresses)
	if err != nil {
		return err
	}
	alike := map[string]int{}
	for i := range out.Ports {
		p, told := &out.Ports[i], false
		for j := range p.Backends {
			if err := ctx.Err(); err != nil {
				return err
			}
			b := &p.Backends[j]
			from, ok := x.source(t, b, via)
			if !ok || b.Unused != "" {
				continue
			}
			x.explainBackend(model, from, p, b, alike)
			told = true
		}
		if !told && p.Refused == "" {
			p.Refused = fmt.Sprintf("none of its endpoints has an address of a family that %s has", x.q.From)
		}
	}
	return nil
}

// source returns the source address that a backend sees: the client's, or that of the node whose port is used.
func (x *explanation) source(t *serviceTarget, b *inspect.Backend, via []netip.Addr) (netip.Addr, bool) {
	list := x.from.addresses
	if t.node != "" && b.Node != t.node && x.from.host != t.node && !t.bySwitch {
		list = via
	}
	i := slices.IndexFunc(list, func(a netip.Addr) bool { return a.Is6() == b.Address.Is6() })
	if i < 0 {
		return netip.Addr{}, false
	}
	return list[i], true
}

func (x *explanation) explainBackend(m *explain.Model, from netip.Addr, p *inspect.ServicePort, b *inspect.Backend,
	alike map[string]int) {
	way := x.ofTheNode(inspect.Way{Traces: []inspect.Trace{}, Disagreements: []string{},
		Explanation: m.Explain(policy.Packet{From: from, To: b.Address, Protocol: p.Protocol, Port: b.Port})})
	b.Allowed = way.Allowed
	if x.past == nil {
		markUnattached(&way, x.s.cfg.Unattached())
	}
	key := likeness(&way)
	i, known := alike[key]
	if !known {
		i = len(x.out.Ways)
		alike[key], way.Connections = i, m.Connections(from, b.Address)
		x.out.Ways = append(x.out.Ways, way)
	}
	b.Way = i
}

// likeness returns the same text for ways that have the same verdict for the same reasons, and are enforced at the same
// ends.
func likeness(w *inspect.Way) string {
	text, err := json.Marshal(
		[]any{w.From.Address, w.To.Kind, w.Protocol, w.Port, w.To.Address.Is6(), w.Allowed, w.OfTheNode, w.Self,
			w.Egress.Reason, w.Egress.Policies, w.Ingress.Reason, w.Ingress.Policies, w.DryRun,
			w.IsEnforced(&w.From), w.IsEnforced(&w.To)},
	)
	if err != nil {
		return fmt.Sprint(w.To.Address, w.Protocol, w.Port) // unique
	}
	return string(text)
}
