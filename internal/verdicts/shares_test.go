package verdicts

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netplugin/conntrack"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/appctl"
	"github.com/flowkeep/flowkeep/ofctl/fake"
)

// capPods has the bridge's flows keep pods from opening connections to Services.
func (b *bridge) capPods(list ...string) {
	b.t.Helper()
	cfg := b.config
	cfg.Capped = list
	b.compiler.SetConfig(cfg)
	b.apply(resolve.Batch{})
}

// TestServicesZoneFull: a pod that may send nothing fills the zone of connections to Services, well below its rate.
// Then no response from a Service reaches another pod. While the first pod is capped, as netplugin does, it adds none,
// its connection that had a response goes on, and other pods' connections work.
func TestServicesZoneFull(t *testing.T) {
	const limit = 40
	sw := startReal(t, "netdev")
	sw.limitServices(t, limit)
	for _, capped := range []bool{false, true} {
		sw.run(t, fmt.Sprintf("capped %v", capped), func(t testing.TB) {
			b := three(t, silent("0"))
			sw.settle(t)
			flooder, other := b.locals[0], b.locals[1]
			open := sw.toService(b, flooder, 999)
			if !sw.opens(t, b, flooder, open) {
				t.Fatal("the first connection does not open")
			}
			sw.openMany(t, flooder, 0, limit/8*6)
			sw.awaitEntries(t, limit/8*6)
			if capped {
				b.capPods(flooder.ID)
				sw.settle(t)
			}
			sw.openMany(t, flooder, limit, 3*limit)
			before := sw.entries(t)
			if want := map[bool]int{true: 1 + limit/8*6, false: limit}[capped]; before != want {
				t.Errorf("there are %d entries, want %d", before, want)
			}
			zone := fmt.Sprintf("zone=%d", pipeline.ZoneService)
			opened := conntrack.Openers(sw.ask(t, "dpctl/dump-conntrack", sw.datapathName(), zone))
			if n := int(opened[flooder.Addresses[0]]); n != before {
				t.Errorf("%d of %d entries are listed as the pod's", n, before)
			}
			if got := sw.opens(t, b, other, sw.toService(b, other, 1000)); got != capped {
				t.Errorf("another pod's connection to a Service opens: %v, want %v", got, capped)
			}
			open.MidStream = true
			if !sw.comesOut(t, flooder.Port, open, comes) {
				t.Error("a connection from before is lost")
			}
		})
	}
}

// limitServices sets the limit of connections to Services. Without one the switch does not count them.
func (s *realSwitch) limitServices(t testing.TB, limit int) {
	t.Helper()
	s.AppCtl(t, "dpctl/ct-set-limits", s.datapathName(), fmt.Sprintf("zone=%d,limit=%d", pipeline.ZoneService, limit))
}

// toService returns a SYN of a pod to a Service.
func (s *realSwitch) toService(b *bridge, from pipeline.LocalEndpoint, port uint16) fake.Packet {
	p := fake.IP(from.Addresses[0], netip.MustParseAddr("10.96.0.10"), protoTCP, 80)
	p.SrcPort, p.EthSrc, p.EthDst = port, from.MAC, b.config.Gateway.MAC
	return p
}

// opens reports whether a connection to a Service opens: the request leaves by the gateway, and the response comes
// back.
func (s *realSwitch) opens(t testing.TB, b *bridge, from pipeline.LocalEndpoint, request fake.Packet) bool {
	t.Helper()
	if !s.comesOut(t, from.Port, request, comes) {
		return false
	}
	response := request.Reply()
	response.EthSrc, response.EthDst = b.config.Gateway.MAC, b.nextHop(response.Src)
	return s.comesOut(t, gatewayPort, response, 20*s.patience)
}

// openMany has a pod send SYNs to Services, one to each address from a number on, no faster than the port is read.
func (s *realSwitch) openMany(t testing.TB, from pipeline.LocalEndpoint, first, n int) {
	t.Helper()
	for i := first; i < first+n; i++ {
		to := netip.AddrFrom4([4]byte{10, 96, 9, byte(i)})
		p := ported(from.Addresses[0], to, protoTCP, uint16(2000+i), 80, 2)
		must(t, unix.Send(s.ends[from.Port], ethernet(config.Gateway.MAC[:], from.MAC[:], ofctl.EtherIPv4, p), 0))
		if i%20 == 19 {
			s.takeAll(t)
		}
	}
	s.takeAll(t)
}

// entries returns the number of connections to Services.
func (s *realSwitch) entries(t testing.TB) int {
	t.Helper()
	text := s.ask(t, "dpctl/ct-get-limits", s.datapathName(), fmt.Sprintf("zone=%d", pipeline.ZoneService))
	limits, err := appctl.ParseLimits(text)
	must(t, err)
	return int(limits[pipeline.ZoneService].Count)
}

func (s *realSwitch) awaitEntries(t testing.TB, n int) {
	t.Helper()
	for deadline := time.Now().Add(comes); s.entries(t) < n; {
		if time.Now().After(deadline) {
			t.Fatalf("there are %d entries, want %d", s.entries(t), n)
		}
	}
}

// TestUnansweredEntriesAreRenewed: packets of a connection without a reply keep its entry, also those that a capped
// pod sends. So no rate of new connections bounds the entries of a pod.
func TestUnansweredEntriesAreRenewed(t *testing.T) {
	sw := startReal(t, "netdev")
	sw.limitServices(t, 40)
	sw.run(t, "capped", func(t testing.TB) {
		b := three(t, silent("0"))
		sw.settle(t)
		pod := b.locals[0]
		sw.openMany(t, pod, 0, 1)
		sw.awaitEntries(t, 1)
		b.capPods(pod.ID)
		sw.settle(t)
		timeout := func() int {
			text := sw.AppCtl(t, "dpctl/dump-conntrack", "-s", sw.datapathName(),
				fmt.Sprintf("zone=%d", pipeline.ZoneService))
			_, after, _ := strings.Cut(text, "timeout=")
			n, err := strconv.Atoi(after[:max(0, strings.IndexAny(after+",", ",\n"))])
			must(t, err)
			return n
		}
		for began := timeout(); timeout() > began-2; {
			time.Sleep(100 * time.Millisecond)
		}
		before := timeout()
		sw.openMany(t, pod, 0, 1)
		if after := timeout(); after <= before {
			t.Errorf("the entry ends in %d s, before the packet in %d s: decision 028 has it otherwise", after, before)
		}
	})
}

// TestServices_FragmentsAreBounded: where the switch translates Services, a connection that opens with fragments is
// committed before policies on the userspace datapath. So a pod that may send nothing opens no more of them than its
// meter lets through, and none while it is capped.
func TestServices_FragmentsAreBounded(t *testing.T) {
	sw := startReal(t, "netdev")
	withPrefixes(t, sw.Switch, "netdev", pipeline.ServicePrefixes())
	sw.AppCtl(t, "dpctl/ipf-set-max-nfrags", "netdev@ovs-netdev", "5000")
	for _, capped := range []bool{false, true} {
		sw.run(t, fmt.Sprintf("capped %v", capped), func(t testing.TB) {
			e := sw.translateCapping(t, capped, silent("0"))
			f := flood{sw, e.Port}
			const sent = 8000
			began, before := time.Now(), f.lookups(t)
			for i := range sent {
				for _, p := range twoFragments(e.Addresses[0], floodedService[0], uint16(1024+i), uint16(i)) {
					frame := ethernet(config.Gateway.MAC[:], e.MAC[:], ofctl.EtherIPv4, p)
					must(t, unix.Send(f.ends[f.port], frame, 0))
				}
				if i%50 == 49 {
					f.await(t, before+2*(i+1))
				}
			}
			rate := pipeline.MaxOpeningRate / 2 // a datagram has two fragments
			most := (2 + int(time.Since(began).Seconds()+1)) * rate
			tracked, err := strconv.Atoi(strings.TrimSpace(sw.AppCtl(t, "dpctl/ct-get-nconns", "netdev@ovs-netdev")))
			must(t, err)
			t.Logf("%d of %d are tracked, %d at most", tracked, sent, most)
			if capped && tracked > 0 || !capped && (tracked > most || tracked < 100) {
				t.Errorf("%d connections are tracked, want %d at most, none where capped, else some", tracked, most)
			}
		})
	}
}

// twoFragments returns the two fragments of a UDP datagram without a checksum.
func twoFragments(src, dst netip.Addr, from, id uint16) [][]byte {
	whole := make([]byte, 2*1208)
	binary.BigEndian.PutUint16(whole, from)
	binary.BigEndian.PutUint16(whole[2:], 53)
	binary.BigEndian.PutUint16(whole[4:], uint16(len(whole)))
	return [][]byte{
		ipv4Packet(src, dst, protoUDP, id, 1<<13, whole[:1208]),
		ipv4Packet(src, dst, protoUDP, id, 1208/8, whole[1208:]),
	}
}
