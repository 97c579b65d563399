package pipeline

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
)

// claimant returns a Service over TCP with an endpoint of its own, and its ClusterIP.
func claimant(id string, clusterIP byte, port uint16) *service.Service {
	namespace, name, _ := strings.Cut(id, "/")
	return &service.Service{
		Namespace:  namespace,
		Name:       name,
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, clusterIP})},
		Ports:      []service.Port{{Name: "p", Protocol: policy.TCP, Port: port}},
	}
}

func put(c *Compiler, s *service.Service) []string {
	return c.PutService(s, []*service.Slice{{
		Service: s.Name,
		Ports:   []service.SlicePort{{Name: "p", Protocol: policy.TCP, Port: 8080}},
		Endpoints: []service.Endpoint{{
			Address: netip.AddrFrom4([4]byte{10, 250, 0, s.ClusterIPs[0].As4()[3]}),
			Ready:   true,
			Serving: true,
		}},
	}})
}

// leads returns the Services that flows lead packets to, which come from an address to this address and port.
func leads(c *Compiler, from, to string, port uint16) (out []string) {
	source, destination := netip.MustParseAddr(from), netip.MustParseAddr(to)
	isNode := slices.Contains(c.config.Services.NodeAddrs, destination)
	var best uint16
	for _, f := range c.Flows() {
		m := f.Match
		pool, found := loaded(f.Actions, regPool)
		byAddress := m.NwDst.IsValid() && m.NwDst.Contains(destination)
		byNodePort := isNode && m.Reg[regWay] == exactReg(byNodePort)
		if f.Table != TableServiceFrontend || m.TpDst.Value != port || !byAddress && !byNodePort ||
			m.NwSrc.IsValid() && !m.NwSrc.Contains(source) || f.Priority < best {
			continue
		}
		if f.Priority > best {
			best, out = f.Priority, nil
		}
		if found {
			out = append(out, c.serviceOfPool(pool))
		}
	}
	return out
}

// serviceOfPool returns the Service of a pool, by the endpoint of claimant.
func (c *Compiler) serviceOfPool(pool uint32) string {
	for id := range c.services.known {
		if len(c.Shares(id, pool)) > 0 {
			return id
		}
	}
	return ""
}

type claimCase struct {
	name    string
	owner   func(*service.Service) // of the Service zzz/owner
	taker   func(*service.Service) // of the Service aaa/taker
	to      string
	port    uint16
	want    string // the Service that gets packets; empty: none
	problem string // of aaa/taker, in part
}

var claimCases = []claimCase{
	{
		name:    "external IP at a ClusterIP",
		taker:   func(s *service.Service) { s.ExternalIPs = addresses("10.96.0.10") },
		to:      "10.96.0.10",
		port:    53,
		want:    "zzz/owner",
		problem: "ExternalIP 10.96.0.10 is in a CIDR of ClusterIPs",
	},
	{
		name: "load balancer with source ranges at a ClusterIP",
		taker: func(s *service.Service) {
			s.LoadBalancerIPs = addresses("10.96.0.10")
			s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
		},
		to:      "10.96.0.10",
		port:    53,
		want:    "zzz/owner",
		problem: "LoadBalancer 10.96.0.10 is in a CIDR of ClusterIPs",
	},
	{
		name:    "external IP at a ClusterIP outside of the CIDRs",
		owner:   func(s *service.Service) { s.ClusterIPs = addresses("198.51.100.10") },
		taker:   func(s *service.Service) { s.ExternalIPs = addresses("198.51.100.10") },
		to:      "198.51.100.10",
		port:    53,
		want:    "zzz/owner",
		problem: "TCP 53 is of Service zzz/owner (ClusterIP)",
	},
	{
		name:    "external IP in a CIDR of ClusterIPs",
		taker:   func(s *service.Service) { s.ExternalIPs = addresses("10.96.0.99") },
		to:      "10.96.0.99",
		port:    53,
		problem: "is in a CIDR of ClusterIPs",
	},
	{
		name:    "external IP of a pod of another node",
		taker:   func(s *service.Service) { s.ExternalIPs = addresses("10.244.2.9") },
		to:      "10.244.2.9",
		port:    53,
		problem: "ExternalIP 10.244.2.9 is an address of pods",
	},
	{
		name:  "a Service's own ClusterIP",
		taker: func(s *service.Service) { s.ExternalIPs = addresses("10.96.0.20") },
		to:    "10.96.0.20",
		port:  53,
		want:  "aaa/taker",
	},
	{
		name:    "external IP at an address of a load balancer",
		owner:   func(s *service.Service) { s.LoadBalancerIPs = addresses("203.0.113.1") },
		taker:   func(s *service.Service) { s.ExternalIPs = addresses("203.0.113.1") },
		to:      "203.0.113.1",
		port:    53,
		want:    "zzz/owner",
		problem: "TCP 53 is of Service zzz/owner (LoadBalancer)",
	},
	{
		name:  "another port of the same external IP",
		owner: func(s *service.Service) { s.ExternalIPs, s.Ports[0].Port = addresses("203.0.113.1"), 54 },
		taker: func(s *service.Service) { s.ExternalIPs = addresses("203.0.113.1") },
		to:    "203.0.113.1",
		port:  53,
		want:  "aaa/taker",
	},
	{
		name: "external IP of an older Service",
		owner: func(s *service.Service) {
			s.ExternalIPs, s.CreatedAt = addresses("203.0.113.1"), 1
		},
		taker: func(s *service.Service) {
			s.ExternalIPs, s.CreatedAt = addresses("203.0.113.1"), 2
		},
		to:      "203.0.113.1",
		port:    53,
		want:    "zzz/owner",
		problem: "TCP 53 is of Service zzz/owner (ExternalIP)",
	},
	{
		name: "source ranges at an address of an older Service",
		owner: func(s *service.Service) {
			s.LoadBalancerIPs, s.CreatedAt = addresses("203.0.113.1"), 1
		},
		taker: func(s *service.Service) {
			s.LoadBalancerIPs, s.CreatedAt = addresses("203.0.113.1"), 2
			s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
		},
		to:      "203.0.113.1",
		port:    53,
		want:    "zzz/owner",
		problem: "TCP 53 is of Service zzz/owner (LoadBalancer)",
	},
	{
		name:    "external IP at a node port of a node",
		owner:   func(s *service.Service) { s.Ports[0].NodePort = 30053 },
		taker:   func(s *service.Service) { s.ExternalIPs, s.Ports[0].Port = addresses("192.0.2.2"), 30053 },
		to:      "192.0.2.2",
		port:    30053,
		want:    "zzz/owner",
		problem: "TCP 30053 is the node port of Service zzz/owner",
	},
	{
		name:  "external IP of a node at another port",
		owner: func(s *service.Service) { s.Ports[0].NodePort = 30053 },
		taker: func(s *service.Service) { s.ExternalIPs = addresses("192.0.2.2") },
		to:    "192.0.2.2",
		port:  53,
		want:  "aaa/taker",
	},
	{
		name: "external IP of a Service that was created before that of the node port",
		owner: func(s *service.Service) {
			s.Ports[0].NodePort, s.CreatedAt = 30053, 2
		},
		taker: func(s *service.Service) {
			s.ExternalIPs, s.Ports[0].Port, s.CreatedAt = addresses("192.0.2.2"), 30053, 1
		},
		to:      "192.0.2.2",
		port:    30053,
		want:    "zzz/owner",
		problem: "TCP 30053 is the node port of Service zzz/owner",
	},
	{
		name: "load balancer at a node port of an older Service",
		owner: func(s *service.Service) {
			s.Ports[0].NodePort, s.CreatedAt = 30053, 1
		},
		taker: func(s *service.Service) {
			s.LoadBalancerIPs, s.Ports[0].Port, s.CreatedAt = addresses("192.0.2.2"), 30053, 2
		},
		to:      "192.0.2.2",
		port:    30053,
		want:    "zzz/owner",
		problem: "TCP 30053 is the node port of Service zzz/owner",
	},
	{
		name:  "node port at an older load balancer of a node",
		owner: atNode,
		taker: func(s *service.Service) { s.Ports[0].NodePort, s.CreatedAt = 30053, 2 },
		to:    "192.0.2.2",
		port:  30053,
		want:  "zzz/owner",
	},
	{
		name:  "node port with the number of an older load balancer of another node",
		owner: atNode,
		taker: func(s *service.Service) { s.Ports[0].NodePort, s.CreatedAt = 30053, 2 },
		to:    "192.0.2.1",
		port:  30053,
		want:  "aaa/taker",
	},
	{
		name:    "node port of a Service that was created first",
		owner:   func(s *service.Service) { s.Ports[0].NodePort, s.CreatedAt = 30053, 1 },
		taker:   func(s *service.Service) { s.Ports[0].NodePort, s.CreatedAt = 30053, 2 },
		to:      "192.0.2.2",
		port:    30053,
		want:    "zzz/owner",
		problem: "NodePort of IPv4: TCP 30053 is of Service zzz/owner (NodePort)",
	},
}

// atNode makes a Service an old one with a load balancer at a node's address.
func atNode(s *service.Service) {
	s.LoadBalancerIPs, s.Ports[0].Port, s.CreatedAt = addresses("192.0.2.2"), 30053, 1
}

func addresses(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

func withClaims() Config {
	cfg := withServices()
	cfg.Services.PodCIDRs = []netip.Prefix{
		netip.MustParsePrefix("10.244.1.0/24"),
		netip.MustParsePrefix("10.244.2.0/24"),
	}
	return cfg
}

// TestServices_OneServiceHasAFrontend: no Service gets packets to an address and port of another, whatever their names
// and the order in which they come, and the one that does not is reported. It gets them when the other has gone.
func TestServices_OneServiceHasAFrontend(t *testing.T) {
	for i := range claimCases {
		x := &claimCases[i]
		for _, ownerFirst := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, owner first %v", x.name, ownerFirst), func(t *testing.T) { oneHas(t, x, ownerFirst) })
		}
	}
}

func oneHas(t *testing.T, x *claimCase, ownerFirst bool) {
	c := New(withClaims(), nil)
	owner, taker := claimant("zzz/owner", 10, 53), claimant("aaa/taker", 20, 53)
	if x.owner != nil {
		x.owner(owner)
	}
	x.taker(taker)
	if ownerFirst {
		put(c, owner)
		put(c, taker)
	} else {
		put(c, taker)
		put(c, owner)
	}
	want := []string{x.want}
	if x.want == "" {
		want = nil
	}
	if got := leads(c, "10.244.1.5", x.to, x.port); !slices.Equal(got, want) {
		t.Errorf("%s:%d leads to %v, want %v", x.to, x.port, got, want)
	}
	p := policy.Packet{To: netip.MustParseAddr(x.to), Protocol: policy.TCP, Port: x.port}
	if got := c.ServiceAt(p); got != x.want {
		t.Errorf("%s:%d is of %q, want %q", x.to, x.port, got, x.want)
	}
	problems := c.ServiceProblems()
	got := strings.Join(problems["aaa/taker"], "; ")
	if !strings.Contains(got, x.problem) || got != "" && x.problem == "" {
		t.Errorf("reported: %q, want %q", got, x.problem)
	}
	if len(problems["zzz/owner"]) > 0 {
		t.Errorf("reported of the owner: %q", problems["zzz/owner"])
	}
	c.RemoveService("zzz/owner")
	left := strings.Contains(x.problem, "is an address") || strings.Contains(x.problem, "is in a CIDR")
	if got := c.ServiceProblems(); len(got) > 0 != left {
		t.Errorf("without the owner: %q", got)
	}
}

// TestServices_ClaimsFollowNodes: an external IP that becomes an address of a node loses a node port's number there.
func TestServices_ClaimsFollowNodes(t *testing.T) {
	cfg := withClaims()
	c := New(cfg, nil)
	owner, taker := claimant("zzz/owner", 10, 53), claimant("aaa/taker", 20, 30053)
	owner.Ports[0].NodePort = 30053
	taker.ExternalIPs = addresses("192.0.2.3", "10.244.3.1")
	put(c, owner)
	if problems := put(c, taker); len(problems) > 0 {
		t.Errorf("%q", problems)
	}
	more := cfg
	more.Services.NodeAddrs = append(slices.Clone(cfg.Services.NodeAddrs), netip.MustParseAddr("192.0.2.3"))
	more.Services.PodCIDRs = append(slices.Clone(cfg.Services.PodCIDRs), netip.MustParsePrefix("10.244.3.0/24"))
	c.SetConfig(more)
	if got := leads(c, "10.244.1.5", "192.0.2.3", 30053); !slices.Equal(got, []string{"zzz/owner"}) {
		t.Errorf("with the node, packets are led to %v", got)
	}
	if got := c.ServiceProblems()["aaa/taker"]; len(got) != 2 {
		t.Errorf("with the node: %q", got)
	}
	c.SetConfig(cfg)
	if got := leads(c, "10.244.1.5", "192.0.2.3", 30053); !slices.Equal(got, []string{"aaa/taker"}) {
		t.Errorf("without the node, packets are led to %v", got)
	}
}

// TestServices_AnOlderServiceTakesAnExternalIP: a Service takes the external IP of a newer one, and a node's address of
// its load balancer, by an edit. The age is that of the Service.
func TestServices_AnOlderServiceTakesAnExternalIP(t *testing.T) {
	for _, x := range []struct {
		to           string
		owner, taker func(*service.Service)
		shown        string // of the one that loses
	}{{
		to:    "203.0.113.1",
		owner: func(s *service.Service) { s.ExternalIPs = addresses("203.0.113.1") },
		taker: func(s *service.Service) { s.ExternalIPs, s.Ports[0].Port = addresses("203.0.113.1"), 30053 },
		shown: "TCP 30053 is of Service aaa/taker (ExternalIP)",
	}, {
		to:    "192.0.2.2",
		owner: func(s *service.Service) { s.LoadBalancerIPs = addresses("192.0.2.2") },
		taker: func(s *service.Service) { s.Ports[0].NodePort = 30053 },
		shown: "TCP 30053 is the node port of Service aaa/taker",
	}} {
		c := New(withClaims(), nil)
		owner := claimant("zzz/owner", 10, 30053)
		owner.CreatedAt = 100
		x.owner(owner)
		put(c, owner)
		for _, edited := range []bool{false, true} {
			taker, want := claimant("aaa/taker", 20, 53), "zzz/owner"
			taker.CreatedAt = 1
			if edited {
				x.taker(taker)
				want = "aaa/taker"
			}
			put(c, taker)
			if got := leads(c, "10.244.1.5", x.to, 30053); !slices.Equal(got, []string{want}) {
				t.Errorf("%s, edited %v: packets are led to %v, want %s", x.to, edited, got, want)
			}
		}
		if got := strings.Join(c.ServiceProblems()["zzz/owner"], "; "); !strings.Contains(got, x.shown) {
			t.Errorf("%s: %q is reported, want %q", x.to, got, x.shown)
		}
	}
}

// TestServices_ClaimsFollowAges: a load balancer at a node's address gets the packets to the number of a node port when
// the node port's Service is created again.
func TestServices_ClaimsFollowAges(t *testing.T) {
	c := New(withClaims(), nil)
	balancer := claimant("zzz/owner", 10, 30053)
	balancer.LoadBalancerIPs, balancer.CreatedAt = addresses("192.0.2.2"), 2
	put(c, balancer)
	for i, want := range []string{"aaa/taker", "zzz/owner", "aaa/taker"} {
		createdAt := int64(1 + i%2*2)
		other := claimant("aaa/taker", 20, 53)
		other.Ports[0].NodePort, other.CreatedAt = 30053, createdAt
		put(c, other)
		if got := leads(c, "10.244.1.5", "192.0.2.2", 30053); !slices.Equal(got, []string{want}) {
			t.Errorf("created at %d: packets are led to %v, want %s", createdAt, got, want)
		}
	}
}

// TestServices_ClaimsDoNotDependOnHistory: after random changes the flows and problems are those of a compiler that has
// only seen the end, with its ids.
func TestServices_ClaimsDoNotDependOnHistory(t *testing.T) {
	lost := 0
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 3))
		c := New(withClaims(), nil)
		held := map[string]*service.Service{}
		for range 40 {
			s := randomClaimant(r)
			if r.IntN(4) == 0 {
				c.RemoveService(s.ID())
				delete(held, s.ID())
				continue
			}
			held[s.ID()] = s
			put(c, s)
		}
		again := New(withClaims(), c.Assignments())
		for _, s := range held {
			put(again, s)
		}
		want := asTable(again.Flows())
		if got := asTable(c.Flows()); !equalTables(got, want) {
			report(t, seed, want, got)
		}
		got, problems := c.ServiceProblems(), again.ServiceProblems()
		if lost += len(problems); fmt.Sprint(got) != fmt.Sprint(problems) {
			t.Errorf("seed %d: %q, want %q", seed, got, problems)
		}
		unshared(t, seed, c)
	}
	if lost < 60 {
		t.Errorf("only %d Services had claims that are not in force: nothing was shown", lost)
	}
}

// unshared fails the test where two Services want different flows of one key.
func unshared(t *testing.T, seed uint64, c *Compiler) {
	t.Helper()
	for _, owners := range c.services.owners {
		for _, o := range owners[1:] {
			if !sameFlow(&o.flow, &owners[0].flow) {
				t.Errorf("seed %d: %s wants %s, %s wants %s", seed, owners[0].owner, &owners[0].flow, o.owner, &o.flow)
			}
		}
	}
}

func randomClaimant(r *rand.Rand) *service.Service {
	all := []string{"10.96.0.10", "198.51.100.10", "192.0.2.1", "192.0.2.2", "203.0.113.1", "203.0.113.2", "10.244.2.7"}
	some := func() (out []netip.Addr) {
		for _, text := range all {
			if r.IntN(4) == 0 {
				out = append(out, netip.MustParseAddr(text))
			}
		}
		return out
	}
	n := r.IntN(5)
	s := claimant(fmt.Sprintf("ns/s%d", n), byte(10+n), uint16(30000+r.IntN(2)))
	if r.IntN(3) == 0 {
		s.ClusterIPs = addresses("198.51.100.10")
	}
	s.ExternalIPs, s.LoadBalancerIPs, s.CreatedAt = some(), some(), int64(r.IntN(3))
	if r.IntN(2) == 0 {
		s.Ports[0].NodePort = uint16(30000 + r.IntN(2))
	}
	if r.IntN(2) == 0 {
		s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	}
	return s
}
