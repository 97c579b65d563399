package query

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// registry is an API server's Services.
type registry struct {
	services []watch.Service
	behind   map[string][]watch.Backend
	fault    error
	listed   int
}

func (r *registry) Service(_ context.Context, namespace, name string) (watch.Service, bool, error) {
	for i := range r.services {
		if r.services[i].Namespace == namespace && r.services[i].Name == name {
			return r.services[i], true, r.fault
		}
	}
	return watch.Service{}, false, r.fault
}

func (r *registry) Services(context.Context) ([]watch.Service, error) {
	r.listed++
	return r.services, r.fault
}

func (r *registry) Backends(_ context.Context, namespace, name string) ([]watch.Backend, error) {
	return r.behind[namespace+"/"+name], r.fault
}

func backend(pod, address, node, state string) watch.Backend {
	b := watch.Backend{PortName: "sql", Protocol: policy.TCP, Address: netip.MustParseAddr(address), Port: 5432, Pod: pod, Node: node}
	b.Ready, b.Terminating, b.Serving = state == "ready", strings.Contains(state, "terminating"), state == "ready" || strings.Contains(state, "serving")
	return b
}

// withServices adds Services to two nodes.
func withServices(t *testing.T) (*place, *registry) {
	p := twoNodes(t)
	sql := []watch.ServicePort{{Name: "sql", Protocol: policy.TCP, Port: 3306, Target: "sql", NodePort: 30006}}
	service := func(name, address string, change func(*watch.Service)) watch.Service {
		s := watch.Service{Namespace: "shop", Name: name, Type: "ClusterIP", Ports: sql}
		if address != "" {
			s.Addresses = []netip.Addr{netip.MustParseAddr(address)}
		}
		if change != nil {
			change(&s)
		}
		return s
	}
	r := &registry{behind: map[string][]watch.Backend{}, services: []watch.Service{
		service("one", "10.96.0.1", func(s *watch.Service) {
			s.Ports = []watch.ServicePort{{Name: "sql", Protocol: policy.TCP, Port: 3306, Target: "sql"}}
		}),
		service("all", "10.96.0.2", func(s *watch.Service) {
			s.Type = "NodePort"
			s.External = []netip.Addr{netip.MustParseAddr("203.0.113.80")}
		}),
		service("none", "10.96.0.3", func(s *watch.Service) {
			s.Ports = []watch.ServicePort{{Protocol: policy.UDP, Port: 53}, {Name: "t", Protocol: policy.TCP, Port: 53}}
		}),
		service("late", "10.96.0.4", func(s *watch.Service) {
			s.Ports = nil
			s.Ports = append(s.Ports, watch.ServicePort{Name: "sql", Protocol: policy.TCP, Port: 3306})
		}),
		service("going", "10.96.0.5", func(s *watch.Service) { s.Ports = []watch.ServicePort{{Name: "sql", Protocol: policy.TCP, Port: 3306}} }),
		service("local", "10.96.0.6", func(s *watch.Service) {
			s.InternalLocal = true
			s.Ports = []watch.ServicePort{{Name: "sql", Protocol: policy.TCP, Port: 3306}}
		}),
		service("bare", "", func(s *watch.Service) {
			s.Headless = true
			s.Ports = []watch.ServicePort{{Name: "sql", Protocol: policy.TCP, Port: 3306, Target: "sql"}}
		}),
		service("alias", "", func(s *watch.Service) { s.Type, s.ExternalName = "ExternalName", "db.example.com" }),
		service("outer", "10.96.0.7", func(s *watch.Service) {
			s.ExternalLocal = true
			s.Ports = []watch.ServicePort{{Name: "sql", Protocol: policy.TCP, Port: 3306, NodePort: 30007}}
		}),
	}}
	db, bag := backend("shop/db", "10.0.0.2", "node1", "ready"), backend("shopping/bag", "10.0.0.4", "node2", "ready")
	r.behind["shop/one"], r.behind["shop/outer"] = []watch.Backend{db}, []watch.Backend{db}
	r.behind["shop/all"] = []watch.Backend{db, bag, backend("", "192.0.2.99", "", "ready"), backend("shop/api", "10.0.0.3", "node2", "not"), backend("shop/six", "fd00::9", "node2", "ready")}
	r.behind["shop/late"] = []watch.Backend{backend("shop/db", "10.0.0.2", "node1", "not")}
	r.behind["shop/going"] = []watch.Backend{backend("shop/db", "10.0.0.2", "node1", "serving, terminating"), backend("shopping/bag", "10.0.0.4", "node2", "terminating")}
	r.behind["shop/local"] = []watch.Backend{db}
	r.behind["shop/bare"] = []watch.Backend{db, backend("shopping/bag", "10.0.0.4", "node2", "not")}
	p.cfg.Services = r
	return p, r
}

// seen is an answer in a line: who is behind, and with what verdict.
func seen(x *inspect.Explained) string {
	if x.Service == nil {
		return "no Service"
	}
	out := []string{x.Service.Namespace + "/" + x.Service.Name}
	for _, p := range x.Service.Ports {
		if p.Refused != "" {
			out = append(out, "refused: "+p.Refused)
		}
		for _, b := range p.Backends {
			says := b.Unused
			if b.Way >= 0 {
				w := &x.Ways[b.Way]
				says = fmt.Sprintf("%v from %s by way %d", b.Allowed, w.From.Address, b.Way)
			}
			out = append(out, fmt.Sprintf("%s %s: %s", netip.AddrPortFrom(b.Address, b.Port), b.State, says))
		}
	}
	return strings.Join(out, "; ")
}

// Backends that differ in nothing but who attached them have ways of their own.
func TestExplainThroughServices_PodNotAttached(t *testing.T) {
	for unattached, want := range map[string]int{"": 1, "shopping/bag@node2": 2} {
		p, r := withServices(t)
		r.behind["shop/one"] = []watch.Backend{
			backend("shop/api", "10.0.0.3", "node2", "ready"),
			backend("shopping/bag", "10.0.0.4", "node2", "ready"),
		}
		p.notAttached(unattached)
		x, err := explained(t, p, "node1", "svc/shop/one")
		if err != nil || len(x.Ways) != want || len(x.Ways[want-1].NotEnforced) != want-1 {
			t.Errorf("not attached: %q: %s, %+v, %v", unattached, seen(&x), x.Ways, err)
		}
	}
}

func TestExplainThroughServices(t *testing.T) {
	p, _ := withServices(t)
	for question, want := range map[string]string{
		"shop/api svc/shop/one:3306":          "shop/one; 10.0.0.2:5432 ready: true from 10.0.0.3 by way 0",
		"shop/api svc/shop/one":               "shop/one; 10.0.0.2:5432 ready: true from 10.0.0.3 by way 0",
		"shop/api service/shop/one:sql/tcp":   "shop/one; 10.0.0.2:5432 ready: true from 10.0.0.3 by way 0",
		"shop/api one.shop.svc.cluster.local": "shop/one; 10.0.0.2:5432 ready: true from 10.0.0.3 by way 0",
		"shop/api 10.96.0.1:3306/tcp":         "shop/one; 10.0.0.2:5432 ready: true from 10.0.0.3 by way 0",
		"shop/db svc/shop/all": "shop/all; 10.0.0.2:5432 ready: true from 10.0.0.2 by way 0; " +
			"10.0.0.4:5432 ready: false from 10.0.0.2 by way 1; 192.0.2.99:5432 ready: false from 10.0.0.2 by way " +
			"2; 10.0.0.3:5432 not ready: gets no packets; [fd00::9]:5432 ready: ",
		"world 10.96.0.1:3306": "shop/one; 10.0.0.2:5432 ready: true from 198.51.100.1 by way 0",
		"shop/api svc/shop/none:53/udp": "shop/none; refused: it has no endpoints: nodes refuse its packets " +
			"before any policy applies",
		"shop/api svc/shop/late": "shop/late; refused: none of its endpoints is ready: nodes refuse " +
			"its packets before any policy applies; 10.0.0.2:5432 not ready: gets no packets",
		"shop/api svc/shop/going": "shop/going; 10.0.0.2:5432 terminating: true from 10.0.0.3 by way 0; " +
			"10.0.0.4:5432 terminating: new connections go elsewhere",
		"shop/api svc/shop/local": "shop/local; refused: node2 has none of its endpoints, and " +
			"internalTrafficPolicy is Local: the node drops its packets before any policy applies; 10.0.0.2:5432 " +
			"ready: not on node2, and internalTrafficPolicy is Local",
		"node1 svc/shop/local": "shop/local; 10.0.0.2:5432 ready: true from 192.0.2.1 by way 0",
		"shop/api svc/shop/bare:sql": "shop/bare; 10.0.0.2:5432 ready: true from 10.0.0.3 by way 0; " +
			"10.0.0.4:5432 not ready: the DNS leaves it out",
		"10.1.0.1 svc/shop/bare:3306": "shop/bare; 10.0.0.2:3306 ready: false from 10.1.0.1 by way 0; " +
			"10.0.0.4:3306 not ready: the DNS leaves it out",
		"fd00::5 svc/shop/one": "shop/one; refused: none of its endpoints has an address of a family " +
			"that fd00::5 has; 10.0.0.2:5432 ready: ",
		"10.1.0.1 node1:30006": "shop/all; 10.0.0.2:5432 ready: true from 10.1.0.1 by way 0; " +
			"10.0.0.4:5432 ready: true from 192.0.2.1 by way 1; 192.0.2.99:5432 ready: true from 192.0.2.1 by way " +
			"2; 10.0.0.3:5432 not ready: gets no packets; [fd00::9]:5432 ready: ",
		"10.1.0.1 192.0.2.2:30007": "shop/outer; refused: node2 has none of its endpoints, and " +
			"externalTrafficPolicy is Local: the node drops its packets before any policy applies; 10.0.0.2:5432 " +
			"ready: not on node2, and externalTrafficPolicy is Local",
		"node2 node2:30007":         "shop/outer; 10.0.0.2:5432 ready: true from 192.0.2.2 by way 0",
		"shop/db node1:30006":       "no Service",
		"shop/db node1:30006/udp":   "no Service",
		"shop/db 203.0.113.80:3306": "no Service",
		"shop/db shop/api:80":       "no Service",
		"shop/db node1:22":          "no Service",
	} {
		from, to, _ := strings.Cut(question, " ")
		x, err := explained(t, p, from, to)
		if got := seen(&x); err != nil || got != want {
			t.Errorf("%s:\n got %s, %v\nwant %s", question, got, err, want)
		}
	}
	for question, want := range map[string]string{
		"shop/api svc/shop/gone":         "NotFound there is no Service shop/gone",
		"shop/api shop/one":              "NotFound there is no pod shop/one, but a Service: ask for svc/shop/one",
		"shop/one shop/api":              "NotFound there is no pod or node shop/one",
		"shop/api shop/nobody":           "NotFound there is no pod or node shop/nobody",
		"shop/api svc/shop/one:80":       "NotFound Service shop/one has no port 80: it has sql TCP/3306",
		"shop/api svc/shop/one:3306/udp": "NotFound Service shop/one has no port 3306/UDP: it has sql TCP/3306",
		"shop/api svc/shop/one:http":     "NotFound Service shop/one has no port http",
		"shop/api one.shop.svc/icmp":     "InvalidArgument Services translate only TCP",
		"shop/api svc/shop/alias": "FailedPrecondition Service shop/alias is another name in the DNS " +
			"(ExternalName): nothing is translated; ask for an address of db.example.com",
	} {
		from, to, _ := strings.Cut(question, " ")
		x, err := explained(t, p, from, to)
		if got := status.Code(err).String() + " " + status.Convert(err).Message(); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %+v, %s; want %s", question, x, got, want)
		}
	}
}

func TestExplain_ServiceNotes(t *testing.T) {
	p, r := withServices(t)
	for question, want := range map[string]string{
		"shop/db node1:30006":         "is a node port of Service shop/all",
		"shop/db 203.0.113.80:3306":   "is an address of Service shop/all from outside",
		"world svc/shop/one":          "no node translates a ClusterIP",
		"world node1:30006":           "sees the address of node1, not the source's",
		"shop/api svc/shop/bare:3306": "a headless Service is not translated",
	} {
		from, to, _ := strings.Cut(question, " ")
		x, err := explained(t, p, from, to)
		said := strings.Join(x.Problems, "\n")
		if x.Service != nil {
			said += strings.Join(x.Service.Notes, "\n")
		}
		if err != nil || !strings.Contains(said, want) {
			t.Errorf("%s: %q, %v; want %q", question, said, err, want)
		}
	}
	if r.listed != 1 {
		t.Errorf("the Services were listed %d times", r.listed)
	}
	names, err := asked[[]inspect.ServiceName](p, inspect.Question{Kind: inspect.AskServices, Namespace: "shop"})
	if err != nil || len(names) != len(r.services) || names[0].Name != "alias" {
		t.Errorf("%+v, %v", names, err)
	}
}

// Without the API server everything is explained but Services.
func TestExplainWithoutServices(t *testing.T) {
	p, r := withServices(t)
	r.fault = errors.New("connection refused")
	for to, want := range map[string]string{"10.96.0.1:3306": "cannot look up a Service at 10.96.0.1: " +
		"connection refused", "node1:30006": "cannot look up a Service at node1", "shop/db:1": ""} {
		x, err := explained(t, p, "shop/api", to)
		if said := strings.Join(x.Problems, "\n"); err != nil || !strings.Contains(said, want) || strings.Contains(said, "Service") != (want != "") {
			t.Errorf("%s: %q, %v; want %q", to, said, err, want)
		}
	}
	if x, err := explained(t, p, "shop/api", "svc/shop/one"); status.Code(err) != codes.Unavailable {
		t.Errorf("%+v, %v", x, err)
	}
	if x, err := explained(t, p, "shop/api", "shop/nobody"); status.Code(err) != codes.NotFound {
		t.Errorf("%+v, %v", x, err)
	}
	p.cfg.Services = nil
	if x, err := explained(t, p, "shop/api", "svc/shop/one"); status.Code(err) != codes.Unimplemented {
		t.Errorf("%+v, %v", x, err)
	}
	if x, err := explained(t, p, "shop/api", "10.96.0.1:1"); err != nil || len(x.Ways) != 1 {
		t.Errorf("%+v, %v", x, err)
	}
}
