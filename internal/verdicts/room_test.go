package verdicts

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/appctl"
	"github.com/flowkeep/flowkeep/ofctl/fake"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// refuseNew has the bridge's flows refuse new connections, but the node's own.
func (b *bridge) refuseNew(full bool) {
	b.t.Helper()
	cfg := b.config
	cfg.Full = full
	b.compiler.SetConfig(cfg)
	b.apply(resolve.Batch{})
}

// TestFullConntrack: while it is full the node opens connections to its pods, open ones go on, and nothing else opens
// any, with each kind of sender.
func TestFullConntrack(t *testing.T) { fullConntrack(t, func(*bridge) {}) }

// fullConntrack has fill called when a connection is open, and new ones are refused behind it.
func fullConntrack(t testing.TB, fill func(*bridge)) {
	b := three(t, silent("1"))
	outside, to := netip.MustParseAddr("198.51.100.7"), policytest.Address(1, false)
	open := tcpBetween(0, 2)
	b.expect(open, true, "there is room")
	b.expect(open.Reply(), true, "there is room")
	fill(b)
	b.refuseNew(true)
	b.expect(tcpBetween(2, 0), false, "no room for pods")
	b.expect(fake.IP(policytest.Address(0, false), outside, protoUDP, 53), false, "no room for pods")
	b.expect(fake.IP(outside, to, protoTCP, 80), false, "no room for other hosts")
	probe := fake.IP(config.NodeAddrs[0], to, protoTCP, 8080)
	b.expect(probe, true, "the node's own")
	b.expect(probe.Reply(), true, "an answer to the node, of a pod that may open nothing")
	probe.MidStream = true
	b.expect(probe, true, "the node's own goes on")
	b.expect(probe.Reply(), true, "the node's own goes on")
	open.MidStream = true
	b.expect(open, true, "committed before")
	b.expect(open.Reply(), true, "committed before")
	b.refuseNew(false)
	if b.real == nil { // which may have no room for it
		b.expect(tcpBetween(2, 0), true, "there is room again")
	}
}

// TestUserspaceDatapathFull: on a switch whose zone pods have filled the answer of a pod to the node is evaluated as
// the pod's own connection, and lost. With the limit raised and new connections refused, as netplugin does, all is as
// in TestFullConntrack.
func TestUserspaceDatapathFull(t *testing.T) {
	const entries = 20
	sw := startReal(t, "netdev")
	limit := func(n int) {
		sw.AppCtl(t, "dpctl/ct-set-limits", sw.datapathName(), fmt.Sprintf("zone=65521,limit=%d", n))
	}
	limit(entries)
	sw.run(t, "full", func(t testing.TB) {
		fullConntrack(t, func(b *bridge) {
			sw.settle(t)
			sw.fillZone(t, b.locals[2], entries)
			probe := fake.IP(config.NodeAddrs[0], policytest.Address(1, false), protoTCP, 8081)
			probe.EthSrc, probe.EthDst = config.Gateway.MAC, b.nextHop(probe.Src)
			if !sw.comesOut(t, gatewayPort, probe, comes) {
				t.Error("what the node opens is lost")
			}
			answer := probe.Reply()
			answer.EthSrc, answer.EthDst = b.locals[1].MAC, config.Gateway.MAC
			if sw.comesOut(t, b.locals[1].Port, answer, 20*sw.patience) {
				t.Error("an answer passes though the zone is full: docs/decisions/028 has it otherwise")
			}
			limit(2 * entries)
		})
	})
}

// fillZone has a pod open connections until the policies' zone has so many entries.
func (s *realSwitch) fillZone(t testing.TB, from pipeline.LocalEndpoint, entries int) {
	t.Helper()
	outside := netip.MustParseAddr("198.51.100.7")
	for i := range 5 * entries {
		p := ported(from.Addresses[0], outside, protoUDP, uint16(2000+i), 99, 0)
		must(t, unix.Send(s.ends[from.Port], ethernet(config.Gateway.MAC[:], from.MAC[:], ofctl.EtherIPv4, p), 0))
	}
	for deadline := time.Now().Add(comes); ; {
		text := s.ask(t, "dpctl/ct-get-limits", s.datapathName(), "zone=65521")
		if limits, err := appctl.ParseLimits(text); err == nil && limits[65521].Count >= uint32(entries) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the zone does not fill: %s", text)
		}
	}
}

// comesOut reports whether a packet that goes in by a port comes out by any within the limit.
func (s *realSwitch) comesOut(t testing.TB, in uint32, p fake.Packet, limit time.Duration) bool {
	t.Helper()
	frame := s.frame(&p)
	number, _ := numberOf(frame)
	must(t, unix.Send(s.ends[in], frame, 0))
	for late := time.After(limit); ; {
		select {
		case a := <-s.arrived:
			if a.number == number {
				return true
			}
			s.expectDropped(t, a)
		case <-late:
			return false
		}
	}
}
