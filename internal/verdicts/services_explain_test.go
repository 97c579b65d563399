package verdicts

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/budget"
	"github.com/flowkeep/flowkeep/netmaster/query"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/policydb/labelcache"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
)

// nodes are those of a netmaster, which explainedWorld has.
type nodes interface{ query.Nodes }

// explainedWorld is a netmaster's view of Services and nodes. The switch of node1 translates.
type explainedWorld struct {
	nodes
	*resolve.Engine
	services map[string]*service.Service
	compiler *pipeline.Compiler
	infos    []policy.NodeInfo
	cidrs    []netip.Prefix
}

func (w *explainedWorld) Do(_ context.Context, f func(*resolve.Engine)) error {
	f(w.Engine)
	return nil
}

func (w *explainedWorld) Infos() []policy.NodeInfo { return w.infos }

func (w *explainedWorld) Query(context.Context, string, []byte) ([]byte, error) {
	return json.Marshal(inspect.NodeServiceTraces{TranslatedBy: inspect.TranslatedByOVS, ServiceCIDRs: w.cidrs})
}

func (w *explainedWorld) Service(context.Context, string, string) (watch.Service, bool, error) {
	return watch.Service{}, false, nil
}

func (w *explainedWorld) Services(context.Context) (out []watch.Service, err error) {
	for _, s := range w.services {
		v := watch.Service{
			Namespace: s.Namespace,
			Name:      s.Name,
			Addresses: s.ClusterIPs,
			External:  slices.Concat(s.ExternalIPs, s.LoadBalancerIPs),
		}
		for _, p := range s.Ports {
			v.Ports = append(v.Ports, watch.ServicePort{Protocol: p.Protocol, Port: p.Port, NodePort: p.NodePort})
		}
		out = append(out, v)
	}
	return out, nil
}

func (w *explainedWorld) Backends(context.Context, string, string) ([]watch.Backend, error) {
	return nil, nil
}

func (w *explainedWorld) All() ([]budget.Served, bool) { return nil, true }

func (w *explainedWorld) Get(id string) (budget.Served, bool) {
	return budget.Served{Service: w.services[id]}, true
}

func (w *explainedWorld) Zone(string) string { return "" }

// explainedAddresses are of Services, nodes, pods of each node, a CIDR of ClusterIPs, and outside.
var explainedAddresses = []string{"10.96.0.99", "192.0.2.1", "192.0.2.2", "203.0.113.1", "10.244.1.7", "10.244.2.7", "198.51.100.10"}

// TestServices_ExplainAgreesWithTheSwitch: for generated Services, netmaster explains packets to each address and port
// as those to the Service that the node's compiler has flows for.
func TestServices_ExplainAgreesWithTheSwitch(t *testing.T) {
	translated, byNodePort := 0, 0
	for seed := range uint64(60) {
		w := newExplainedWorld(rand.New(rand.NewPCG(seed, 11)))
		s := query.NewServer(query.Config{
			Owner:     w,
			Nodes:     w,
			Services:  w,
			Frontends: w,
			Problems:  func() []string { return nil },
			Labels:    func() labelcache.Stamp { return labelcache.Stamp{} },
		})
		for _, to := range explainedAddresses {
			for port := uint16(30000); port < 30003; port++ {
				want := w.compiler.ServiceAt(policy.Packet{To: netip.MustParseAddr(to), Protocol: policy.TCP, Port: port})
				got := w.explain(t, s, inspect.Target{Name: to, Port: fmt.Sprint(port), Protocol: "TCP"})
				id := ""
				if got != nil {
					id = got.Namespace + "/" + got.Name
				}
				if id != want {
					t.Errorf("seed %d: %s:%d is explained as of %q, the switch leads it to %q", seed, to, port, id, want)
				}
				if want != "" {
					translated++
				}
				if got != nil && got.Node != "" {
					byNodePort++
				}
			}
		}
	}
	if translated < 200 || byNodePort < 50 || translated-byNodePort < 50 {
		t.Errorf("%d packets were translated, %d of them at a node port: too few", translated, byNodePort)
	}
}

func newExplainedWorld(r *rand.Rand) *explainedWorld {
	pod := &policy.Endpoint{Namespace: "ns", Name: "client", UID: "u", Node: "node1"}
	pod.Addresses = []netip.Addr{netip.MustParseAddr("10.244.1.5")}
	w := &explainedWorld{
		Engine:   resolve.New(1),
		services: map[string]*service.Service{},
		cidrs:    []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
	}
	w.Apply(resolve.Batch{
		Namespaces: []policy.Namespace{{Name: "ns"}},
		Endpoints:  []*policy.Endpoint{pod},
		Announced: []resolve.Announcement{
			{Node: "node1", Namespace: "ns", Name: "client", UID: "u", Addresses: pod.Addresses},
		},
	})
	cfg := pipeline.Config{ServiceCIDRs: w.cidrs, Services: pipeline.Services{Translated: true, Node: "node1"}}
	for i := range 2 {
		n := policy.NodeInfo{
			Name:      fmt.Sprintf("node%d", i+1),
			Addresses: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", i+1))},
			PodCIDRs:  []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", i+1))},
		}
		w.infos = append(w.infos, n)
		cfg.Services.NodeAddrs = append(cfg.Services.NodeAddrs, n.Addresses...)
		cfg.Services.PodCIDRs = append(cfg.Services.PodCIDRs, n.PodCIDRs...)
	}
	cfg.PodCIDRs = w.infos[0].PodCIDRs
	w.compiler = pipeline.New(cfg, nil)
	nodePorts := r.Perm(5) // the API server assigns each once
	for i := range 5 {
		s := generatedService(r, i)
		if r.IntN(2) == 0 {
			s.Ports[0].NodePort = 30000 + uint16(nodePorts[i])
		}
		w.services[s.ID()] = s
		w.compiler.PutService(s, nil)
	}
	return w
}

func generatedService(r *rand.Rand, i int) *service.Service {
	s := &service.Service{
		Namespace:  "ns",
		Name:       fmt.Sprintf("s%d", i),
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(i + 1)})},
		Ports:      []service.Port{{Protocol: policy.TCP, Port: uint16(30000 + r.IntN(3))}},
		CreatedAt:  int64(r.IntN(3)),
	}
	for _, text := range explainedAddresses {
		switch a := netip.MustParseAddr(text); r.IntN(6) {
		case 0:
			s.ExternalIPs = append(s.ExternalIPs, a)
		case 1:
			s.LoadBalancerIPs = append(s.LoadBalancerIPs, a)
		}
	}
	return s
}

// explain returns the Service of an explanation; nil: there is none.
func (w *explainedWorld) explain(t *testing.T, s *query.Server, to inspect.Target) *inspect.ServiceWay {
	t.Helper()
	q := inspect.Question{Kind: inspect.AskExplain, From: "ns/client", To: &to, Unproved: true}
	a, err := s.Answer(t.Context(), &q)
	must(t, err)
	var out inspect.Explained
	must(t, json.Unmarshal(a.Body, &out))
	return out.Service
}
