package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/keyed"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/dptype"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
	"github.com/prometheus/client_golang/prometheus"
)

// servingNode is a real switch with pods, and the agent that translates Services there. Netmaster sends it Services.
type servingNode struct {
	*answeringSwitch
	agent  *agent
	source keyed.Source
	cursor keyed.Cursor
}

// startServing starts all of it. The rest of the test runs in the switch's network namespace.
func startServing(t *testing.T) *servingNode {
	t.Helper()
	netns.New(t).Enter(t)
	s := &servingNode{answeringSwitch: &answeringSwitch{T: t, registry: prometheus.NewRegistry()}}
	ports := []string{"gw", "wire"}
	s.ip("link", "add", "gw", "type", "veth", "peer", "name", "gw-end")
	s.ip("link", "add", "wire", "type", "veth", "peer", "name", "wire-end")
	for i := range answerPods {
		ports = append(ports, s.addPod(i))
	}
	for _, p := range append([]string{"gw-end", "wire-end"}, ports...) {
		s.ip("link", "set", p, "up")
	}
	s.sw = ovstest.StartOn(t, "netdev", ports)
	var err error
	s.agent, err = newAgent(Config{
		StateDir:     t.TempDir(),
		Node:         "node1",
		Services:     ServicesOVS,
		OVSRunDir:    s.sw.Dir,
		Bridge:       s.sw.Bridge,
		DatapathType: dptype.Netdev,
		Logger:       slog.New(slog.DiscardHandler),
		Registerer:   s.registry,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.configureAgent()
	s.runAgent()
	return s
}

func (s *servingNode) configureAgent() {
	a := s.agent
	a.client = new(listener)
	a.node.gateway = pipeline.Device{Port: answerGateway, MAC: answerGatewayMAC}
	a.node.wire = pipeline.Device{Port: answerWire, MAC: ofctl.MAC{2, 0, 0, 0, 0, 2}}
	a.node.out = a.node.wire
	a.node.services = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112")}
	a.rules.nodes = []policy.NodeInfo{{
		Name:      "node1",
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:10:244:1::/64")},
	}}
	for i := range answerPods {
		e := s.podEndpoint(i)
		a.pods.byID[e.ID()] = &pod{endpoint: e, settled: true}
		a.compiler.PutEndpoint(local(&e))
	}
}

func (s *servingNode) podEndpoint(i int) endpoints.Endpoint {
	own := s.endpoint(i)
	return endpoints.Endpoint{
		Namespace:   "ns",
		Name:        fmt.Sprint("p", i),
		UID:         fmt.Sprint(i),
		ContainerID: fmt.Sprint("c", i),
		IfName:      "eth0",
		Port:        own.Port,
		MAC:         endpoints.MAC(own.MAC),
		Addresses:   own.Addresses,
	}
}

// runAgent attaches the agent to the switch, and runs what Run would.
func (s *servingNode) runAgent() {
	s.Helper()
	session, err := ofctl.Connect(s.Context(), s.sw.Management())
	if err != nil {
		s.Fatal(err)
	}
	s.agent.node.configure(s.Context())
	s.agent.translation.beginServices(s.Context())
	if err := s.agent.attach(s.Context(), session); err != nil {
		s.Fatal(err)
	}
	r := &runner{agent: s.agent}
	ctx, cancel := context.WithCancel(s.Context())
	var all sync.WaitGroup
	for _, run := range []func(context.Context){
		s.agent.loop,
		s.agent.ended.Run,
		r.translation.keepServices,
		r.keepAnswering,
	} {
		all.Go(func() { run(ctx) })
	}
	s.Cleanup(func() { cancel(); all.Wait(); s.agent.close(); session.Close() })
	s.awaitAnswers()
}

// condition is that of an endpoint in an EndpointSlice.
type condition struct{ ready, serving, terminating bool }

var ready = condition{ready: true, serving: true}

// send sends the Service ns/web with pods as its endpoints, and returns when the agent has taken it over.
func (s *servingNode) send(states map[int]condition) {
	s.Helper()
	put := func(key string, value []byte, err error) {
		if err != nil {
			s.Fatal(err)
		}
		s.source.Put(key, value)
	}
	value, err := wire.ServiceValue(&service.Service{
		Namespace:  "ns",
		Name:       "web",
		ClusterIPs: []netip.Addr{webIP(false), webIP(true)},
		Ports: []service.Port{
			{Name: "tcp", Protocol: policy.TCP, Port: 80},
			{Name: "udp", Protocol: policy.UDP, Port: 80},
		},
	})
	put(wire.ServiceKey("ns/web"), value, err)
	for _, six := range []bool{false, true} {
		slice := &service.Slice{
			Namespace: "ns",
			Name:      fmt.Sprintf("web-%v", six),
			Service:   "web",
			Ports: []service.SlicePort{
				{Name: "tcp", Protocol: policy.TCP, Port: 8080},
				{Name: "udp", Protocol: policy.UDP, Port: 8080},
			},
		}
		for i := range answerPods {
			if st, there := states[i]; there {
				slice.Endpoints = append(slice.Endpoints, service.Endpoint{
					Address:     podAddr(six, 10+i),
					Pod:         fmt.Sprint("ns/p", i),
					Node:        "node1",
					Ready:       st.ready,
					Serving:     st.serving,
					Terminating: st.terminating,
				})
			}
		}
		value, err = wire.SliceValue(slice)
		put(wire.SliceKey(slice.ID()), value, err)
	}
	var d keyed.Delta
	d, s.cursor = s.source.Since(s.cursor)
	if err := s.agent.translation.services.Apply(&d); err != nil {
		s.Fatal(err)
	}
	s.until("the change is in the switch", func() bool {
		left := true
		_ = s.agent.do(s.Context(), func() {
			for s.agent.translation.updateServices(s.Context(), servicesStep) {
			}
			left = s.agent.session == nil
		})
		return !left
	})
}

func webIP(six bool) netip.Addr {
	if six {
		return netip.MustParseAddr("fd00:10:96::7")
	}
	return netip.MustParseAddr("10.96.0.7")
}

func (s *servingNode) until(what string, f func() bool) {
	s.Helper()
	for deadline := time.Now().Add(answerWithin); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.Fatalf("not within %v: %s", answerWithin, what)
		}
	}
}

// listen has a pod respond with its number, over TCP and UDP.
func (s *servingNode) listen(i int) {
	s.Helper()
	s.pods[i].Do(func() {
		for _, six := range []bool{false, true} {
			at := netip.AddrPortFrom(podAddr(six, 10+i), 8080).String()
			l, err := net.Listen("tcp", at)
			if err != nil {
				s.Fatal(err)
			}
			p, err := net.ListenPacket("udp", at)
			if err != nil {
				s.Fatal(err)
			}
			s.Cleanup(func() { l.Close(); p.Close() })
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					go func() {
						for b := make([]byte, 1); ; {
							if _, err := io.ReadFull(c, b); err != nil {
								return
							}
							_, _ = c.Write([]byte{byte('0' + i)})
						}
					}()
				}
			}()
			go func() {
				for b := make([]byte, 9); ; {
					_, from, err := p.ReadFrom(b)
					if err != nil {
						return
					}
					_, _ = p.WriteTo([]byte{byte('0' + i)}, from)
				}
			}()
		}
	})
}

// responds returns the pod that responds on a connection.
func (s *servingNode) responds(c net.Conn) (int, error) {
	_ = c.SetDeadline(time.Now().Add(answerWithin))
	if _, err := c.Write([]byte("x")); err != nil {
		return -1, err
	}
	b := make([]byte, 1)
	if _, err := c.Read(b); err != nil {
		return -1, err
	}
	return int(b[0] - '0'), nil
}

// want fails the test unless a pod responds on a connection.
func (s *servingNode) want(c net.Conn, pod int, why string) {
	s.Helper()
	if got, err := s.responds(c); err != nil || got != pod {
		s.Errorf("%s: pod %d responds: %v, want %d", why, got, err, pod)
	}
}

// open opens a connection to the Service, on which a pod responds.
func (s *servingNode) open(network string, six bool, pod int, why string) net.Conn {
	s.Helper()
	c, err := s.dial(0, network, webIP(six), 80)
	if err != nil {
		s.Fatalf("%s: %v", why, err)
	}
	s.want(c, pod, why)
	return c
}

// entries returns how many connections over UDP the switch translates to a pod.
func (s *servingNode) entries(pod int) (n int) {
	text := s.sw.AppCtl(s, "dpctl/dump-conntrack", fmt.Sprintf("zone=%d", pipeline.ZoneTranslation))
	for line := range strings.Lines(text) {
		_, reply, _ := strings.Cut(line, "reply=(")
		for _, six := range []bool{false, true} {
			if strings.HasPrefix(line, "udp") && strings.HasPrefix(reply, fmt.Sprintf("src=%s,", podAddr(six, 10+pod))) {
				n++
			}
		}
	}
	return n
}

// TestEndpoint_LeavesItsService: an endpoint that is not ready, or terminates, gets no new connections. Those over TCP
// go on until the pod ends, and are reset then. Those over UDP go on while it serves, and are deleted when it does not.
func TestEndpoint_LeavesItsService(t *testing.T) {
	for _, c := range []struct {
		name string
		then condition
	}{
		{"not ready", condition{}},
		{"terminating, serving", condition{serving: true, terminating: true}},
		{"terminating", condition{terminating: true}},
	} {
		t.Run(c.name, func(t *testing.T) { leavesItsService(t, c.then) })
	}
}

func leavesItsService(t *testing.T, then condition) {
	s := startServing(t)
	s.listen(1)
	s.listen(2)
	s.send(map[int]condition{1: ready})
	tcp, udp := map[bool]net.Conn{}, map[bool]net.Conn{}
	for _, six := range []bool{false, true} {
		tcp[six] = s.open("tcp", six, 1, "the only endpoint")
		udp[six] = s.open("udp", six, 1, "the only endpoint")
	}
	if n := s.entries(1); n != 2 {
		t.Fatalf("%d connections over UDP, want 2", n)
	}
	s.send(map[int]condition{1: then, 2: ready})
	sent := time.Now()
	if !then.serving {
		s.until("connections over UDP are deleted", func() bool {
			for _, c := range udp { // so that no entry ends by itself
				_, _ = c.Write([]byte("x"))
			}
			return s.entries(1) == 0
		})
		t.Logf("deleted %v after the flows were in the switch", time.Since(sent))
	}
	for _, six := range []bool{false, true} {
		s.want(tcp[six], 1, "earlier TCP connection")
		for range 8 {
			s.open("tcp", six, 2, "new, TCP").Close()
		}
		s.open("udp", six, 2, "new, UDP")
		if then.serving {
			s.want(udp[six], 1, "earlier UDP connection")
		} else {
			// The responses to the requests above come first.
			s.until("the earlier UDP connection moves to the other pod", func() bool {
				got, err := s.responds(udp[six])
				return err == nil && got == 2
			})
		}
	}
	if err := s.agent.pods.Forget(t.Context(), s.podEndpoint(1)); err != nil {
		t.Fatal(err)
	}
	for _, six := range []bool{false, true} {
		s.wantError(tcp[six], syscall.ECONNRESET, fmt.Sprintf("IPv6 %v: TCP, after the pod's end", six))
		s.want(udp[six], 2, "UDP, after the pod's end")
		s.open("tcp", six, 2, "new, after the pod's end")
	}
	s.send(map[int]condition{1: ready, 2: ready}) // netmaster does not know yet
	for _, six := range []bool{false, true} {
		for range 8 {
			s.open("tcp", six, 2, "netmaster names the ended pod").Close()
		}
	}
}

// TestEndpoint_LastOneEnds: when the only endpoint has ended and netmaster is away, new connections are refused, and
// old ones have errors.
func TestEndpoint_LastOneEnds(t *testing.T) {
	s := startServing(t)
	s.listen(1)
	s.send(map[int]condition{1: ready})
	tcp, udp := s.open("tcp", false, 1, "the only endpoint"), s.open("udp", false, 1, "the only endpoint")
	if err := s.agent.pods.Forget(t.Context(), s.podEndpoint(1)); err != nil {
		t.Fatal(err)
	}
	s.wantError(tcp, syscall.ECONNRESET, "TCP")
	s.wantError(udp, syscall.ECONNREFUSED, "UDP")
	if _, err := s.dial(0, "tcp", webIP(false), 80); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a new connection: %v", err)
	}
}
