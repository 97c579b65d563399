package query

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/budget"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
)

// translatedByOVS has a node translate Services in Open vSwitch, and lead packets to these endpoints of a Service.
func (p *place) translatedByOVS(node, id string, endpoints ...string) {
	p.nodes.answers[node] = func(q inspect.NodeQuery) any {
		if q.Kind != inspect.QueryServiceTrace {
			return errors.New("no proof today")
		}
		out := inspect.NodeServiceTraces{Node: "another", TranslatedBy: inspect.TranslatedByOVS}
		for _, packet := range q.Packets {
			t := inspect.ServiceTrace{
				Packet:  packet,
				Service: id,
				Outcome: inspect.ServiceTranslated,
			}
			for _, e := range endpoints {
				t.Endpoints = append(t.Endpoints, inspect.SlotShare{Endpoint: netip.MustParseAddrPort(e), Slots: 4})
			}
			if len(endpoints) == 0 {
				t.Outcome = inspect.ServiceRejected
			}
			out.Traces = append(out.Traces, t)
		}
		return out
	}
}

// TestExplain_ServiceTranslatedByTheSwitch: an explanation has where the switch of the source's node leads packets, and
// names what is otherwise there than among the endpoints.
func TestExplain_ServiceTranslatedByTheSwitch(t *testing.T) {
	both := []string{"10.0.0.2:5432", "10.0.0.4:5432", "192.0.2.99:5432"}
	for name, c := range map[string]struct {
		leads []string
		id    string
		want  string // among the problems; empty: none of the switch
	}{
		"as it should":     {both, "shop/all", ""},
		"fewer":            {both[:2], "shop/all", "2 of 3 endpoints"},
		"others":           {append([]string{"10.0.0.3:5432"}, both...), "shop/all", "1 endpoints that may not be chosen"},
		"nowhere":          {nil, "shop/all", "nowhere (rejected)"},
		"another Service":  {both, "shop/other", "to Service shop/other"},
		"without the port": {[]string{"10.0.0.2:0"}, "shop/all", "1 of 3 endpoints"},
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := withServices(t)
			p.translatedByOVS("node2", c.id, c.leads...)
			got, err := explained(t, p, "shop/api", "svc/shop/all")
			if err != nil || got.Service == nil || got.Service.TranslatedBy != inspect.TranslatedByOVS ||
				len(got.Service.Ports) != 1 || len(got.Service.Ports[0].Traces) != 1 {
				t.Fatalf("%+v, %v", got, err)
			}
			trace := got.Service.Ports[0].Traces[0]
			if trace.Node != "node2" || trace.Packet.To != netip.MustParseAddr("10.96.0.2") || trace.Packet.Port != 3306 {
				t.Errorf("%+v", trace)
			}
			told := ""
			for _, problem := range got.Problems {
				if strings.HasPrefix(problem, "Open vSwitch of node node2") {
					told = problem
				}
			}
			if (told == "") != (c.want == "") || !strings.Contains(told, c.want) {
				t.Errorf("problem %q, want %q", told, c.want)
			}
		})
	}
}

// TestExplain_FrontendsOfPods: where the switch translates, a pod's packet to a node port or an external address is
// evaluated at the endpoint, with the pod's own address; where kube-proxy does, it is as it was.
func TestExplain_FrontendsOfPods(t *testing.T) {
	p, _ := withServices(t)
	svc := &service.Service{
		Namespace:   "shop",
		Name:        "all",
		ClusterIPs:  addresses("10.96.0.2"),
		ExternalIPs: addresses("203.0.113.80"),
		Ports:       []service.Port{{Protocol: policy.TCP, Port: 3306, NodePort: 30006}},
	}
	p.cfg.Frontends = &frontends{all: []budget.Served{{Service: svc}}}
	for _, to := range []string{"node1:30006", "203.0.113.80:3306"} {
		p.nodes.answers["node2"] = inspect.NodeServiceTraces{TranslatedBy: inspect.TranslatedByKubeProxy}
		if got, err := explained(t, p, "shop/api", to); err != nil || got.Service != nil {
			t.Errorf("%s by kube-proxy: %s, %v", to, seen(&got), err)
		}
		p.translatedByOVS("node2", "shop/all", "10.0.0.2:5432", "10.0.0.4:5432", "192.0.2.99:5432")
		got, err := explained(t, p, "shop/api", to)
		if err != nil || got.Service == nil || !strings.Contains(seen(&got), "true from 10.0.0.3") ||
			strings.Contains(seen(&got), "from 192.0.2") || len(got.Service.Ports[0].Traces) != 1 {
			t.Fatalf("%s by Open vSwitch: %s, %v", to, seen(&got), err)
		}
		trace := got.Service.Ports[0].Traces[0]
		if text := trace.Packet.To.String(); text != "192.0.2.1" && text != "203.0.113.80" {
			t.Errorf("%s: traced to %s", to, text)
		}
	}
}

// TestExplain_ClaimedAddress: of Services that claim one address, that with the ClusterIP is explained, then that of
// the first claim on the port.
func TestExplain_ClaimedAddress(t *testing.T) {
	p, r := withServices(t)
	sql := []watch.ServicePort{{Name: "sql", Protocol: policy.TCP, Port: 3306}}
	claimed := map[string]*service.Service{
		"a": {ExternalIPs: addresses("10.96.0.1", "203.0.113.90"), CreatedAt: 2},
		"b": {ExternalIPs: addresses("203.0.113.90"), CreatedAt: 1},
		"c": {LoadBalancerIPs: addresses("203.0.113.91"), CreatedAt: 3},
		"d": {ExternalIPs: addresses("203.0.113.91", "203.0.113.90")},
	}
	f := &frontends{}
	for i, name := range []string{"d", "a", "b", "c"} {
		svc := claimed[name]
		svc.Namespace, svc.Name, svc.ClusterIPs = "aaa", name, addresses("10.96.1.1")
		svc.Ports = []service.Port{{Protocol: policy.TCP, Port: 3306}}
		f.all = append(f.all, budget.Served{Service: svc})
		of := watch.Service{
			Namespace: "aaa",
			Name:      name,
			Ports:     sql,
			External:  slices.Concat(svc.ExternalIPs, svc.LoadBalancerIPs),
		}
		if name == "d" {
			of.Ports, svc.Ports[0].Port = []watch.ServicePort{{Protocol: policy.TCP, Port: 3307}}, 3307
		}
		r.services = slices.Insert(r.services, i, of)
		r.behind["aaa/"+name] = r.behind["shop/one"]
	}
	p.cfg.Frontends = f
	p.translatedByOVS("node2", "", "10.0.0.2:5432")
	for to, want := range map[string]string{
		"10.96.0.1:3306":    "shop/one",
		"203.0.113.90:3306": "aaa/b",
		"203.0.113.90:3307": "aaa/d",
		"203.0.113.91:3306": "aaa/c",
	} {
		got, err := explained(t, p, "shop/api", to)
		if err != nil || got.Service == nil || got.Service.ID() != want {
			t.Errorf("%s: %s, %v; want %s", to, seen(&got), err, want)
		}
	}
}

func addresses(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

// TestTrace_ServiceTranslatedByTheSwitch: a packet that the switch translates and then drops is never seen with the
// endpoint's address. The verdict is that of the policies for the endpoint.
func TestTrace_ServiceTranslatedByTheSwitch(t *testing.T) {
	for name, c := range map[string]struct {
		endpoints []string
		outcome   inspect.Outcome
		verdict   string
	}{
		"denied":      {[]string{"10.0.0.2:5432"}, inspect.Denied, "DENIED on node2: shop/api is isolated by shop/api"},
		"no endpoint": {nil, inspect.Refused, "REFUSED by Open vSwitch of node2: the Service has no endpoint"},
		"a hash": {
			[]string{"10.0.0.2:5432", "10.0.0.4:5432"},
			inspect.Unsure,
			"NOT CERTAIN: Open vSwitch of node2 translated it to one of 2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, _ := withServices(t)
				p.owner.engine.Apply(resolve.Batch{Policies: []*policy.Policy{{
					Namespace:      "shop",
					Name:           "api",
					Generation:     1,
					AppliedTo:      is("app", "api"),
					IsolatesEgress: true,
				}}})
				sent := seenAt("api", false, syn, 3306, 0)
				sent.Dst = netip.MustParseAddr("10.96.0.1")
				p.sees("node2", "dropped in the table egress-denied", sent)
				p.sees("node1", "dropped in the table ingress-denied")
				others := p.nodes.answers["node2"].(func(inspect.NodeQuery) any)
				p.translatedByOVS("node2", "shop/one", c.endpoints...)
				leads := p.nodes.answers["node2"].(func(inspect.NodeQuery) any)
				p.nodes.answers["node2"] = func(q inspect.NodeQuery) any {
					if q.Kind != inspect.QueryServiceTrace {
						return others(q)
					}
					out := leads(q).(inspect.NodeServiceTraces)
					for i := range out.Traces {
						if e := out.Traces[i].Endpoints; len(e) == 1 {
							out.Traces[i].Endpoint = e[0].Endpoint
						}
					}
					return out
				}
				list, err := p.traced("shop/api", "svc/shop/one", &inspect.TraceSpec{Duration: time.Minute})
				if err != nil || len(list) < 2 || list[1].Packet == nil {
					t.Fatalf("%+v, %v", list, err)
				}
				if got := list[1].Packet; got.Outcome != c.outcome || !strings.HasPrefix(got.Verdict, c.verdict) {
					t.Errorf("%s: %s", got.Outcome, got.Verdict)
				}
			})
		})
	}
}
