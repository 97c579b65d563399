package verdicts

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
)

// Services of more endpoints than a group has buckets.

// firstPort is the first of the ports of endpoints in many.
const firstPort = 9000

// many sets a Service with an endpoint at each of n ports of a pod, but for some of them, and commits.
func (s *serviceSwitch) many(pod, n int, gone ...int) []ofctl.FlowMod {
	s.Helper()
	svc := &service.Service{
		Namespace:  "ns",
		Name:       "many",
		ClusterIPs: []netip.Addr{vip(service.IPv4, 9)},
		Ports:      []service.Port{{Name: "tcp", Protocol: policy.TCP, Port: 80}},
	}
	var all []*service.Slice
	for i := range n {
		if slices.Contains(gone, i) {
			continue
		}
		all = append(all, &service.Slice{
			Namespace: "ns",
			Name:      fmt.Sprint("many-", i),
			Service:   "many",
			Ports:     []service.SlicePort{{Name: "tcp", Protocol: policy.TCP, Port: uint16(firstPort + i)}},
			Endpoints: []service.Endpoint{{Address: podIP(service.IPv4, pod), Ready: true, Serving: true}},
		})
	}
	if problems := s.compiler.PutService(svc, all); len(problems) > 0 {
		s.Fatalf("problems: %q", problems)
	}
	return s.commit()
}

// serveMany has a pod respond at n ports with the port's number.
func (s *serviceSwitch) serveMany(pod, n int) {
	s.pods[pod].Do(func() {
		for i := range n {
			l, err := net.Listen("tcp4", fmt.Sprintf(":%d", firstPort+i))
			must(s, err)
			s.Cleanup(func() { l.Close() })
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					go echoStream(c, i)
				}
			}()
		}
	})
}

// TestServices_MoreEndpointsThanBuckets: connections of several clients go to many of 600 endpoints. When one of these
// goes, each open connection stays with its endpoint, new ones go to the others, few flows change, and no group does.
func TestServices_MoreEndpointsThanBuckets(t *testing.T) {
	const endpoints, ofEach = 600, 80
	s := startServices(t)
	s.serveMany(1, endpoints)
	s.many(1, endpoints)
	groups := s.sw.OFCtl(s, "dump-groups")
	to := at(vip(service.IPv4, 9), 80)
	type open struct {
		net.Conn
		endpoint int
	}
	var conns []open
	seen := map[int]map[int]bool{} // by client
	all := map[int]bool{}
	for _, client := range []int{0, 2, 3} {
		seen[client] = map[int]bool{}
		for range ofEach {
			c, err := s.dial(client, "tcp", to, serviceWait)
			must(t, err)
			endpoint, _, err := s.ask(c, []byte("x"), serviceWait)
			must(t, err)
			conns = append(conns, open{c, endpoint})
			seen[client][endpoint], all[endpoint] = true, true
		}
		if n := len(seen[client]); n < ofEach/2 { // of 256 slots chosen at random 69 are expected
			t.Errorf("%d connections of client %d went to %d endpoints", ofEach, client, n)
		}
	}
	if len(all) < 3*ofEach/2 { // with one table: 256 slots of 600 endpoints have no more than 256 of them
		t.Errorf("connections went to %d endpoints", len(all))
	}
	gone := conns[0].endpoint
	mods := s.many(1, endpoints, gone)
	if len(mods) == 0 || len(mods) > 80 {
		t.Errorf("%d flow mods for an endpoint that has gone", len(mods))
	}
	if after := s.sw.OFCtl(s, "dump-groups"); after != groups {
		t.Errorf("groups:\n%s\nbefore:\n%s", after, groups)
	}
	for _, c := range conns {
		if got, _, err := s.ask(c, []byte("x"), serviceWait); err != nil || got != c.endpoint {
			t.Errorf("a connection to %d went on to %d: %v", c.endpoint, got, err)
		}
	}
	for range ofEach {
		got, _, err := s.get(0, "tcp", to, serviceWait)
		must(t, err)
		if got == gone {
			t.Fatalf("a new connection went to the endpoint %d, which has gone", gone)
		}
	}
	s.compiler.RemoveService("ns/many")
	s.commit()
	if left := s.sw.OFCtl(s, "dump-flows", fmt.Sprintf("table=%d", pipeline.TableServiceSlot)); strings.Contains(left, "actions") {
		t.Errorf("left in the table of slots:\n%s", left)
	}
}

// TestServices_FiveThousandEndpoints: a switch takes them, a connection is one entry of each zone, and another endpoint
// is few flows.
func TestServices_FiveThousandEndpoints(t *testing.T) {
	const endpoints = 5000
	s := startServices(t)
	s.many(1, endpoints)
	mods := s.many(1, endpoints, 17)
	if len(mods) == 0 || len(mods) > 200 {
		t.Errorf("%d flow mods for an endpoint that has gone", len(mods))
	}
	s.serveMany(1, endpoints)
	c, err := s.dial(0, "tcp", at(vip(service.IPv4, 9), 80), serviceWait)
	must(t, err)
	if endpoint, _, err := s.ask(c, []byte("x"), serviceWait); err != nil || endpoint == 17 {
		t.Errorf("endpoint %d responds: %v", endpoint, err)
	}
	entries := 0
	for _, zone := range []uint16{
		pipeline.ZonePolicy,
		pipeline.ZoneTranslation,
		pipeline.ZoneHairpin,
		pipeline.ZoneEvaluation,
		pipeline.ZoneService,
	} {
		entries += len(s.tracked(zone))
	}
	if entries != 2 {
		t.Errorf("%d entries of conntrack for a connection, want 2", entries)
	}
}

// TestServices_FarEndpointsReset: a client learns by its socket that an endpoint on another node has reset the
// connection.
func TestServices_FarEndpointsReset(t *testing.T) {
	s := startServices(t)
	s.put(nil, elsewhere(service.IPv4), elsewhere(service.IPv6))
	for _, f := range serviceFamilies {
		l, err := net.Listen("tcp", at(elsewhere(f), echoPort).String())
		must(t, err)
		defer l.Close()
		accepted := make(chan net.Conn, 1)
		go func() {
			if c, err := l.Accept(); err == nil {
				accepted <- c
			}
		}()
		c, err := s.dial(0, "tcp", at(vip(f, 7), 80), serviceWait)
		must(t, err)
		far := <-accepted
		must(t, far.(*net.TCPConn).SetLinger(0)) // Close sends RST
		must(t, far.Close())
		_ = c.SetDeadline(time.Now().Add(serviceWait))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("IPv%d: %v, want a reset", f, err)
		}
	}
}
