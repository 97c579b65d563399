package verdicts

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/policydb/service"
)

// use is what connections take of the kernel's datapath.
type use struct {
	entries   map[uint16]int // of conntrack, by zone
	megaflows int
	packets   int // that the datapath got by ports
	lookups   int // one a packet and one a recirculation
}

// perPacket returns the recirculations of a packet.
func (u use) perPacket() float64 { return float64(u.lookups-u.packets) / float64(max(u.packets, 1)) }

// used reads what is used now.
func (s *serviceSwitch) used() use {
	s.Helper()
	u := use{entries: map[uint16]int{}}
	zones := []uint16{pipeline.ZonePolicy, pipeline.ZoneTranslation, pipeline.ZoneEvaluation, pipeline.ZoneHairpin}
	for _, zone := range zones {
		u.entries[zone] = len(s.tracked(zone))
	}
	u.megaflows = strings.Count(s.sw.AppCtl(s, "dpctl/dump-flows", "system@ovs-system"), "recirc_id(")
	var hit, missed int
	text := s.sw.AppCtl(s, "dpctl/show", "system@ovs-system")
	_, lookups, _ := strings.Cut(text, "lookups: ")
	if _, err := fmt.Sscanf(lookups, "hit:%d missed:%d", &hit, &missed); err != nil {
		s.Fatalf("%v: %s", err, text)
	}
	u.lookups = hit + missed
	for line := range strings.Lines(s.sw.OFCtl(s, "dump-ports")) {
		var n int
		if _, received, found := strings.Cut(line, "rx pkts="); found {
			_, _ = fmt.Sscanf(received, "%d", &n)
		}
		u.packets += n
	}
	return u
}

// TestKernelDatapathServicesCost: what 1,000 connections take of the kernel's datapath, directly and by a Service.
func TestKernelDatapathServicesCost(t *testing.T) {
	ovstest.NeedKernelDatapath(t)
	if testing.Short() {
		t.Skip("takes a minute in a virtual machine")
	}
	s := startServices(t)
	s.sw.VSCtl(t, "set", "Open_vSwitch", ".", "other_config:max-idle=3600000") // unused megaflows count too
	translated := map[uint16]int{pipeline.ZonePolicy: 1, pipeline.ZoneTranslation: 1}
	for _, c := range []struct {
		name      string
		endpoints []int
		zones     map[uint16]int // entries of a connection
	}{
		{"to a pod", nil, map[uint16]int{pipeline.ZonePolicy: 1}},
		{"to a Service of one endpoint", []int{1}, translated},
		{"to a Service of three", []int{1, 2, 3}, translated},
	} {
		for _, network := range []string{"tcp", "udp"} {
			s.costs(c.name, network, c.endpoints, c.zones)
		}
	}
}

// costs opens 1,000 connections to a pod, or to a Service of endpoints, logs what they take, and fails the test unless
// each has so many entries of a zone.
func (s *serviceSwitch) costs(name, network string, endpoints []int, zones map[uint16]int) {
	s.Helper()
	const connections = 1000
	to := at(podIP(service.IPv4, 1), echoPort)
	if endpoints != nil {
		s.put(nil, both(endpoints...)...)
		to = at(vip(service.IPv4, 7), 80)
	}
	s.quiet()
	s.sw.AppCtl(s, "dpctl/flush-conntrack")
	s.sw.AppCtl(s, "revalidator/purge")
	before := s.used()
	opened := s.openAll(network, to, connections)
	after := s.used()
	s.requestAll(opened)
	end := s.used()
	megaflows := end.megaflows - before.megaflows
	s.Logf("%s over %s: %v entries by zone, %d megaflows; recirculations a packet: %.2f while opening, %.2f then",
		name, network, after.entries, megaflows,
		difference(before, after).perPacket(), difference(after, end).perPacket())
	for zone, n := range after.entries {
		if n != zones[zone]*connections {
			s.Errorf("zone %d has %d entries, want %d for each connection", zone, n, zones[zone])
		}
	}
	if megaflows > 250 {
		s.Errorf("%d megaflows of %d connections", megaflows, connections)
	}
	for _, c := range opened {
		c.Close()
	}
}

func difference(from, to use) use {
	return use{packets: to.packets - from.packets, lookups: to.lookups - from.lookups}
}

// quiet waits until no packets come.
func (s *serviceSwitch) quiet() {
	s.Helper()
	for last := -1; ; time.Sleep(noService) {
		now := s.used().packets
		if now == last {
			return
		}
		last = now
	}
}

// openAll opens connections of pod 0 and keeps them; over UDP it sends a request by each.
func (s *serviceSwitch) openAll(network string, to netip.AddrPort, n int) (all []net.Conn) {
	s.Helper()
	for range n {
		c, err := s.dial(0, network, to, serviceWait)
		must(s, err)
		all = append(all, c)
	}
	if network == "udp" {
		s.requestAll(all)
	}
	return all
}

// requestAll sends a request by each connection.
func (s *serviceSwitch) requestAll(all []net.Conn) {
	s.Helper()
	for i, c := range all {
		if _, _, err := s.ask(c, []byte("x"), serviceWait); err != nil {
			s.Fatalf("connection %d of %d: %v", i, len(all), err)
		}
	}
}
