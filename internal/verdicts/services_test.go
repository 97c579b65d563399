package verdicts

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
)

// Services, translated by the userspace datapath, with the packets of pods' own stacks.

func TestServices_EachFrontendLeadsToTheEndpoint(t *testing.T) {
	s := startServices(t)
	s.serve(-1)
	external := func(svc *service.Service) {
		for _, f := range serviceFamilies {
			svc.ExternalIPs = append(svc.ExternalIPs, hostOf(f, 203, 1))
			svc.LoadBalancerIPs = append(svc.LoadBalancerIPs, hostOf(f, 203, 2))
		}
	}
	for _, endpoint := range []int{1, -1} {
		addresses := both(max(endpoint, 0))
		if endpoint < 0 {
			addresses = []netip.Addr{elsewhere(service.IPv4), elsewhere(service.IPv6)}
		}
		s.put(external, addresses...)
		for _, f := range serviceFamilies {
			s.reaches(0, endpoint, at(vip(f, 7), 80), "ClusterIP")
			s.reaches(0, endpoint, at(hostOf(f, 203, 1), 80), "external IP")
			s.reaches(0, endpoint, at(hostOf(f, 203, 2), 80), "load balancer")
			s.reaches(0, endpoint, at(nodeIP(f, 1), 30080), "node port")
			s.reaches(0, endpoint, at(nodeIP(f, 2), 30080), "node port of another node")
			s.reaches(0, 2, at(podIP(f, 2), echoPort), "no Service")
		}
	}
	for _, f := range serviceFamilies {
		s.reaches(0, -1, at(nodeIP(f, 1), echoPort), "another port of the node")
	}
}

// TestServices_EachConnectionGoesToOneEndpoint: new connections go to all endpoints, each stays with its own whatever
// becomes of the others, and a removed endpoint gets no new one.
func TestServices_EachConnectionGoesToOneEndpoint(t *testing.T) {
	for _, network := range []string{"tcp", "udp"} {
		for _, f := range serviceFamilies {
			t.Run(fmt.Sprintf("%s over IPv%d", network, f), func(t *testing.T) {
				eachConnection(t, network, at(vip(f, 7), 80))
			})
		}
	}
}

func eachConnection(t *testing.T, network string, to netip.AddrPort) {
	s := startServices(t)
	s.put(nil, both(1, 2)...)
	c, err := s.dial(0, "tcp", to, serviceWait)
	must(t, err)
	first, _, err := s.ask(c, []byte("x"), serviceWait)
	must(t, err)
	for _, endpoints := range [][]int{{1, 2, 3}, {3 - first, 3}} {
		mods := s.put(nil, both(endpoints...)...)
		if len(mods) == 0 || len(mods) > 200 {
			t.Errorf("%d flow mods for a change of an endpoint", len(mods))
		}
		seen := map[int]int{}
		for range 24 * len(endpoints) {
			got, _, err := s.get(0, network, to, serviceWait)
			must(t, err)
			seen[got]++
		}
		for _, e := range endpoints {
			if seen[e] < 6 {
				t.Errorf("endpoint %d of %v got %d of %d connections", e, endpoints, seen[e], 24*len(endpoints))
			}
		}
		if len(seen) != len(endpoints) {
			t.Errorf("endpoints %v: connections went to %v", endpoints, seen)
		}
		if got, _, err := s.ask(c, []byte("x"), serviceWait); err != nil || got != first {
			t.Errorf("the open connection went on to %d: %v, want %d", got, err, first)
		}
	}
	if mods := s.put(nil, both(3-first, 3)...); len(mods) != 0 {
		t.Errorf("no change, and %d flow mods, the first %v", len(mods), mods[0])
	}
	before := s.compiler.Count()
	s.compiler.RemoveService("ns/web")
	s.commit()
	if got, _, err := s.ask(c, []byte("x"), serviceWait); err != nil || got != first {
		t.Errorf("without the Service, the open connection went on to %d: %v, want %d", got, err, first)
	}
	s.blocked(0, to, "the Service is gone")
	s.put(nil, both(3-first, 3)...)
	if after := s.compiler.Count(); after != before {
		t.Errorf("%d flows, before %d", after, before)
	}
}

// policies sets what policies allow: each rule applies to one pod, and allows one other.
func (s *serviceSwitch) policies(rules ...*policy.Rule) {
	s.Helper()
	u := policy.NodeUpdate{}
	for _, r := range rules {
		u.Rules = append(u.Rules, policy.RuleChange{Key: r.Key, Rule: r})
	}
	for i := range servicePods {
		for _, kind := range []policy.GroupKind{policy.AppliedToGroup, policy.PeerGroup} {
			u.Groups = append(u.Groups, policy.GroupUpdate{Kind: kind, Key: policy.Key{byte(i + 1)}, Added: both(i)})
		}
	}
	s.compiler.Apply(u)
	s.commit()
}

// allow returns a rule that isolates a pod in a direction and allows another at the endpoints' port.
func allow(direction policy.Direction, pod, peer int) *policy.Rule {
	r := &policy.Rule{
		Direction: direction,
		AppliedTo: policy.Key{byte(pod + 1)},
		Peers:     []policy.Key{{byte(peer + 1)}},
	}
	for _, p := range []policy.Protocol{policy.TCP, policy.UDP} {
		r.Ports = append(r.Ports, policy.PortRange{Protocol: p, First: echoPort, Last: echoPort})
	}
	r.Key = policy.Key{0xff, byte(direction), byte(pod), byte(peer)}
	return r
}

// TestServices_PolicyIsEvaluatedOnTheEndpoint, in both directions. What is denied leaves no connection, in any zone.
func TestServices_PolicyIsEvaluatedOnTheEndpoint(t *testing.T) {
	s := startServices(t)
	s.policies(allow(policy.Egress, 0, 1), allow(policy.Ingress, 3, 2))
	for _, f := range serviceFamilies {
		to := []netip.AddrPort{at(vip(f, 7), 80), at(nodeIP(f, 2), 30080)}
		for _, to := range to {
			s.put(nil, both(1)...)
			s.reaches(0, 1, to, "egress allows the endpoint")
			s.put(nil, both(2)...)
			s.sw.AppCtl(s, "dpctl/flush-conntrack")
			s.blocked(0, to, "egress does not allow the endpoint")
			s.reaches(1, 2, to, "another client")
			s.put(nil, both(3)...)
			s.reaches(2, 3, to, "ingress allows the client")
			s.sw.AppCtl(s, "dpctl/flush-conntrack")
			s.blocked(1, to, "ingress does not allow the client")
			for _, zone := range []uint16{pipeline.ZonePolicy, pipeline.ZoneTranslation, pipeline.ZoneHairpin} {
				if left := s.tracked(zone); len(left) > 0 {
					t.Errorf("zone %d has connections that policies denied: %q", zone, left)
				}
			}
		}
	}
}

// TestServices_LiveConnectionsObeyPolicies: a connection by a Service ends when a policy denies it.
func TestServices_LiveConnectionsObeyPolicies(t *testing.T) {
	s := startServices(t)
	s.put(nil, both(1)...)
	for _, network := range []string{"tcp", "udp"} {
		c, err := s.dial(0, network, at(vip(service.IPv4, 7), 80), serviceWait)
		must(t, err)
		if _, _, err := s.ask(c, []byte("x"), serviceWait); err != nil {
			t.Errorf("%s: %v", network, err)
		}
		deny := allow(policy.Ingress, 1, 2)
		s.policies(deny)
		before := s.sentBy("p1")
		if got, _, err := s.ask(c, []byte("x"), noService); err == nil {
			t.Errorf("LEAK %s: pod %d responds to a client that a policy denies", network, got)
		}
		if after := s.sentBy("p1"); after != before {
			t.Errorf("LEAK %s: the pod got packets that a policy denies: %s, before %s", network, after, before)
		}
		s.compiler.Apply(policy.NodeUpdate{Rules: []policy.RuleChange{{Key: deny.Key}}})
		s.commit()
	}
}

// TestServices_UDPLeavesAnEndpointThatNoLongerServes, while TCP goes on.
func TestServices_UDPLeavesAnEndpointThatNoLongerServes(t *testing.T) {
	s := startServices(t)
	for _, f := range serviceFamilies {
		s.put(nil, both(1)...)
		clients := map[string]net.Conn{}
		ask := func(network string, want int, why string) {
			t.Helper()
			got, _, err := s.ask(clients[network], []byte("x"), serviceWait)
			if err != nil || got != want {
				t.Errorf("IPv%d, %s, %s: pod %d responds: %v, want %d", f, network, why, got, err, want)
			}
		}
		for _, network := range []string{"tcp", "udp"} {
			c, err := s.dial(0, network, at(vip(f, 7), 80), serviceWait)
			must(t, err)
			clients[network] = c
			ask(network, 1, "opened")
		}
		other, err := s.dial(3, "udp", at(podIP(f, 1), echoPort), serviceWait)
		must(t, err)
		s.put(nil, both(1, 2)...)
		if stale := s.compiler.TakeStale(); len(stale) != 0 {
			t.Errorf("another endpoint: stale are %v", stale)
		}
		svc, all := s.another(1, 2)
		s.compiler.PutService(svc, all) // it keeps both
		s.put(nil, both(2)...)
		stale := s.compiler.TakeStale() // by the ClusterIP and the node port of each family
		must(t, s.session.ForgetConnections(t.Context(), stale...))
		ask("udp", 2, "its endpoint no longer serves")
		ask("tcp", 1, "its endpoint no longer serves")
		if got, _, err := s.ask(other, []byte("x"), serviceWait); err != nil || got != 1 || len(stale) != 4 {
			t.Errorf("IPv%d, directly: pod %d: %v; stale %v", f, got, err, stale)
		}
		s.compiler.RemoveService("ns/web")
		s.commit()
		must(t, s.session.ForgetConnections(t.Context(), s.compiler.TakeStale()...))
		if got, _, err := s.ask(clients["udp"], []byte("x"), noService); err == nil {
			t.Errorf("IPv%d: without the Service pod %d responds", f, got)
		}
	}
}

// another returns a Service of the same endpoints at another address.
func (s *serviceSwitch) another(pods ...int) (*service.Service, []*service.Slice) {
	svc := &service.Service{
		Namespace:  "ns",
		Name:       "another",
		ClusterIPs: []netip.Addr{vip(service.IPv4, 8), vip(service.IPv6, 8)},
		Ports:      []service.Port{{Name: "udp", Protocol: policy.UDP, Port: 80}},
	}
	slice := &service.Slice{Namespace: "ns", Name: "another-1", Service: "another", Ports: []service.SlicePort{
		{Name: "udp", Protocol: policy.UDP, Port: echoPort},
	}}
	for _, a := range both(pods...) {
		slice.Endpoints = append(slice.Endpoints, service.Endpoint{Address: a, Ready: true, Serving: true})
	}
	return svc, []*service.Slice{slice}
}

// TestServices_HairpinReachesThePodItself, whatever policies say; it sees the client at a fixed address.
func TestServices_HairpinReachesThePodItself(t *testing.T) {
	s := startServices(t)
	s.put(nil, both(0)...)
	s.policies(allow(policy.Egress, 0, 1), allow(policy.Ingress, 0, 1))
	for i, f := range serviceFamilies {
		for _, network := range []string{"tcp", "udp"} {
			for range 2 {
				got, client, err := s.get(0, network, at(vip(f, 7), 80), serviceWait)
				if err != nil || got != 0 || client != wellknown.HairpinAddrs[i] {
					t.Errorf("%s, IPv%d: pod %d sees %s: %v", network, f, got, client, err)
				}
			}
		}
	}
}

// TestServices_AffinityKeepsTheEndpoint: while the endpoints change, and after the client's endpoint has gone it has
// another.
func TestServices_AffinityKeepsTheEndpoint(t *testing.T) {
	s := startServices(t)
	sticky := func(svc *service.Service) { svc.Affinity = 3 * time.Hour }
	s.put(func(svc *service.Service) { // which has the same clients
		sticky(svc)
		svc.Name, svc.ClusterIPs = "other", []netip.Addr{vip(service.IPv4, 8), vip(service.IPv6, 8)}
		svc.Ports[0].NodePort, svc.Ports[1].NodePort = 0, 0
	}, both(3)...)
	for _, f := range serviceFamilies {
		to := at(vip(f, 7), 80)
		s.put(sticky, both(1)...)
		kept := 1
		for _, endpoints := range [][]int{{1}, {1, 2}, {1, 2, 3}, {2, 3}, {1, 2, 3}} {
			s.put(sticky, both(endpoints...)...)
			seen := map[int]int{}
			s.reaches(0, 3, at(vip(f, 8), 80), "another Service")
			for range 12 {
				got, _, err := s.get(0, "tcp", to, serviceWait)
				must(t, err)
				seen[got]++
			}
			for got := range seen {
				if len(endpoints) == 2 && endpoints[0] == 2 {
					kept = got // its own is gone
				}
				if len(seen) != 1 || got != kept {
					t.Errorf("IPv%d, endpoints %v: %v, want %d alone", f, endpoints, seen, kept)
				}
			}
		}
	}
	text := s.sw.OFCtl(s, "dump-flows", fmt.Sprintf("table=%d", pipeline.TableServiceLearned))
	if !strings.Contains(text, "hard_timeout=10800") {
		t.Errorf("learned flows:\n%s", text)
	}
}

// TestServices_LargeDatagrams arrive whole, from the first on, and so do responses.
func TestServices_LargeDatagrams(t *testing.T) {
	s := startServices(t)
	s.put(nil, both(1, 2, 3)...)
	request := bytes.Repeat([]byte("x"), 4000)
	for _, f := range serviceFamilies {
		for round := range 6 {
			c, err := s.dial(0, "udp", at(vip(f, 7), 80), serviceWait)
			must(t, err)
			for range 3 {
				if _, _, err := s.ask(c, request, serviceWait); err != nil {
					t.Errorf("IPv%d, round %d: %v", f, round, err)
				}
			}
		}
	}
	s.put(nil, both(1)...)
	s.policies(allow(policy.Egress, 0, 2))
	c, err := s.dial(0, "udp", at(vip(service.IPv4, 7), 80), serviceWait)
	must(t, err)
	if got, _, err := s.ask(c, request, noService); err == nil {
		t.Errorf("LEAK pod %d responds to a datagram that policies deny", got)
	}
}

// TestServices_ErrorsAreTranslatedBack: a client learns by its socket that the endpoint has no such port.
func TestServices_ErrorsAreTranslatedBack(t *testing.T) {
	s := startServices(t)
	s.putAt(9, nil, both(1)...)
	for _, f := range serviceFamilies {
		for _, network := range []string{"tcp", "udp"} {
			if _, _, err := s.get(0, network, at(vip(f, 7), 80), serviceWait); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("IPv%d, %s: %v", f, network, err)
			}
		}
	}
}

// TestServices_OtherMACsReachNothing: packets to Services pass the tables that check a pod's MACs.
func TestServices_OtherMACsReachNothing(t *testing.T) {
	s := startServices(t)
	s.put(nil, both(1)...)
	to := at(vip(service.IPv4, 7), 80)
	as := func(own, gateway ofctl.MAC) {
		t.Helper()
		s.pods[0].Do(func() {
			s.ip("link", "set", "eth0", "address", own.String())
			s.ip("neighbour", "replace", hostOf(service.IPv4, 244, 1).String(), "lladdr", gateway.String(), "dev", "eth0")
		})
	}
	as(s.podMAC(7), serviceGatewayMAC)
	s.blocked(0, to, "from a MAC that is not the pod's")
	as(s.podMAC(0), s.podMAC(1))
	s.blocked(0, to, "to a MAC that is not the gateway's")
	as(s.podMAC(0), serviceGatewayMAC)
	s.reaches(0, 1, to, "from its own MAC to the gateway's")
}

// TestServices_SourceRangesHoldForLoadBalancersAlone.
func TestServices_SourceRangesHoldForLoadBalancersAlone(t *testing.T) {
	s := startServices(t)
	lb := hostOf(service.IPv4, 203, 2)
	s.put(func(svc *service.Service) {
		svc.LoadBalancerIPs = []netip.Addr{lb}
		svc.SourceRanges = []netip.Prefix{netip.PrefixFrom(podIP(service.IPv4, 2), 32)}
	}, both(1)...)
	s.reaches(2, 1, at(lb, 80), "in the range")
	s.blocked(3, at(lb, 80), "outside of the range")
	s.reaches(3, 1, at(vip(service.IPv4, 7), 80), "ClusterIP")
}

// TestServices_NothingLeavesWithoutAnEndpoint: no packet to an address of a ServiceCIDR is for the node.
func TestServices_NothingLeavesWithoutAnEndpoint(t *testing.T) {
	s := startServices(t)
	s.put(nil)
	sent := func() string { return s.sentBy("gw") + ", " + s.sentBy("wire") }
	before := sent()
	for _, f := range serviceFamilies {
		s.blocked(0, at(vip(f, 7), 80), "no endpoint")
		s.blocked(0, at(vip(f, 7), 81), "no such port")
		s.blocked(0, at(vip(f, 8), 80), "no such Service")
		s.blocked(0, at(nodeIP(f, 2), 30080), "node port without an endpoint")
	}
	if after := sent(); after != before {
		t.Errorf("packets sent to the node and the wire: %s, before %s", after, before)
	}
	if left := s.tracked(pipeline.ZoneTranslation); len(left) > 0 {
		t.Errorf("connections: %q", left)
	}
}

// TestServices_OneSourcePortToTwoServices: a client's kernel gives connections to two Services the same source port. Where
// both lead to one endpoint, conntrack gives one of them another.
func TestServices_OneSourcePortToTwoServices(t *testing.T) {
	s := startServices(t)
	s.put(nil, both(1)...)
	s.put(func(svc *service.Service) {
		svc.Name, svc.ClusterIPs = "other", []netip.Addr{vip(service.IPv4, 8), vip(service.IPv6, 8)}
		svc.Ports[0].NodePort, svc.Ports[1].NodePort = 0, 0
	}, both(1)...)
	for _, f := range serviceFamilies {
		for _, network := range []string{"tcp", "udp"} {
			var clients []net.Conn
			for _, n := range []int{7, 8} {
				clients = append(clients, s.dialFrom(0, network, 40000, at(vip(f, n), 80)))
			}
			for i, c := range slices.Concat(clients, clients) {
				if got, _, err := s.ask(c, []byte("x"), serviceWait); err != nil || got != 1 {
					t.Errorf("IPv%d, %s, connection %d: pod %d responds: %v", f, network, i%2, got, err)
				}
			}
		}
	}
}

// shareAddress lets sockets have the same local address.
func shareAddress(_, _ string, c syscall.RawConn) (err error) {
	return errors.Join(c.Control(func(fd uintptr) {
		err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
	}), err)
}

// TestServices_SourceOutOfPodCIDR: no packet to a Service leaves the node from a pod whose address is in no podCIDR of
// the node any more. By an external address such a pod reaches an endpoint on its node.
func TestServices_SourceOutOfPodCIDR(t *testing.T) {
	s := startServices(t)
	s.serve(-1)
	s.cfg.PodCIDRs = nil
	for _, f := range serviceFamilies { // of pods 2 and 3
		s.cfg.PodCIDRs = append(s.cfg.PodCIDRs, netip.PrefixFrom(podIP(f, 2), podIP(f, 2).BitLen()-1))
	}
	s.compiler.SetConfig(s.cfg)
	external := func(svc *service.Service) {
		svc.ExternalIPs = []netip.Addr{hostOf(service.IPv4, 203, 1), hostOf(service.IPv6, 203, 1)}
	}
	for endpoint, addresses := range map[int][]netip.Addr{
		3:  both(3),
		-1: {elsewhere(service.IPv4), elsewhere(service.IPv6)},
	} {
		s.put(external, addresses...)
		for _, f := range serviceFamilies {
			to := at(hostOf(f, 203, 1), 80)
			s.reaches(2, endpoint, to, "within the podCIDR")
			before := s.sentBy("wire")
			s.blocked(0, at(vip(f, 7), 80), "out of the podCIDR, to the ClusterIP")
			if endpoint < 0 {
				s.blocked(0, to, "out of the podCIDR, to an endpoint elsewhere")
			} else {
				s.reaches(0, endpoint, to, "out of the podCIDR, to an endpoint of the node")
			}
			if after := s.sentBy("wire"); after != before {
				t.Errorf("LEAK packets of a pod out of the podCIDR left the node: %s, before %s", after, before)
			}
		}
	}
}

// TestServices_FragmentsToNodePort: a Service has a load balancer's address that is a node's. Fragments to its node port
// there have no ports behind the first, and pass.
func TestServices_FragmentsToNodePort(t *testing.T) {
	s := startServices(t)
	s.put(func(svc *service.Service) {
		svc.LoadBalancerIPs = []netip.Addr{nodeIP(service.IPv4, 2), nodeIP(service.IPv6, 2)}
	}, both(1)...)
	for _, f := range serviceFamilies {
		for _, port := range []uint16{80, 30080} {
			c, err := s.dial(0, "udp", at(nodeIP(f, 2), port), serviceWait)
			must(t, err)
			if got, _, err := s.ask(c, bytes.Repeat([]byte("x"), 4000), serviceWait); err != nil || got != 1 {
				t.Errorf("IPv%d, port %d, in fragments: pod %d responds: %v", f, port, got, err)
			}
		}
	}
}
