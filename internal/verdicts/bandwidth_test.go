package verdicts

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// TestUserspaceDatapathBandwidth and TestKernelDatapathBandwidth: of datagrams that are sent at several times a pod's
// limit as many pass as the limit allows, in both directions and families. Those of a pod without a limit pass.
func TestUserspaceDatapathBandwidth(t *testing.T) { limitsBandwidth(t, "netdev") }

func TestKernelDatapathBandwidth(t *testing.T) {
	ovstest.NeedKernelDatapath(t)
	limitsBandwidth(t, "system")
}

func limitsBandwidth(t *testing.T, datapath string) {
	const limit = 1e6 // bits a second
	sw := startReal(t, datapath)
	sw.run(t, "limits", func(t testing.TB) {
		b := three(t)
		b.config.Limits = true
		b.compiler.SetConfig(b.config)
		b.locals[0].Bandwidth = pipeline.Bandwidth{Egress: limit}
		b.locals[1].Bandwidth = pipeline.Bandwidth{Ingress: limit}
		for _, e := range b.locals[:2] {
			b.compiler.PutEndpoint(e)
		}
		must(t, sw.session.EnsureMeters(t.Context(), b.compiler.BandwidthMeters()))
		b.apply(resolve.Batch{})
		sw.settle(t)
		for _, six := range []bool{false, true} {
			outside := netip.MustParseAddr(map[bool]string{false: "198.51.100.7", true: "2001:db8::7"}[six])
			for _, c := range []struct {
				from    int
				to      netip.Addr
				out     uint32
				limited bool
			}{
				{2, outside, wirePort, false},
				{0, outside, wirePort, true},
				{0, policytest.Address(2, six), b.locals[2].Port, true},
				{2, policytest.Address(1, six), b.locals[1].Port, true},
			} {
				from := b.locals[c.from]
				frame := datagramOf(from.MAC, policytest.Address(c.from, six), c.to)
				r := sw.flood(t, from.Port, c.out, frame, limit)
				way := fmt.Sprintf("pod %d to %v", c.from, c.to)
				t.Logf("%s: %s", way, r)
				switch most := allowed(limit, r.all); {
				case !c.limited && r.passed < 2*most:
					t.Errorf("%s: %s, without a limit", way, r)
				case c.limited && (r.passed > 1.1*most || r.passed < 0.5*limit*r.sending.Seconds()):
					t.Errorf("%s: %s, and at most %.0f kbit may", way, r, most/1e3)
				}
			}
		}
	})
}

// allowed returns how many bits a limit lets pass in a time, with the burst of docs/field.md.
func allowed(limit float64, d time.Duration) float64 { return limit*d.Seconds() + max(limit/5, 640e3) }

// A flooding is the outcome of realSwitch.flood, in bits.
type flooding struct {
	sent, passed float64
	sending, all time.Duration // until the last frame was sent, and until the last one came out
}

func (f flooding) String() string {
	return fmt.Sprintf("%.0f of %.0f kbit have passed in %v", f.passed/1e3, f.sent/1e3, f.all.Round(time.Millisecond))
}

// flood sends a frame by a port, at ten times a limit, and counts what comes out of another port. It ends after a
// second, or later on a machine that has not sent three times as much as the limit lets pass.
func (s *realSwitch) flood(t testing.TB, in, out uint32, frame []byte, limit float64) (f flooding) {
	t.Helper()
	const atOnce = 200 // frames; then it counts
	bits := float64(8 * len(frame))
	tick, began := time.NewTicker(5*time.Millisecond), time.Now()
	defer tick.Stop()
	count := func(a arrival) {
		if a.port == out {
			f.passed += bits
			f.all = time.Since(began)
		}
	}
	for f.sending < time.Second || f.sent < 3*allowed(limit, f.sending) {
		select {
		case a := <-s.arrived:
			count(a)
		case <-tick.C:
			for n := 0; n < atOnce && f.sent < 10*limit*time.Since(began).Seconds(); n++ {
				must(t, unix.Send(s.ends[in], frame, 0))
				f.sent += bits
			}
		}
		if f.sending = time.Since(began); f.sending > comes {
			t.Fatalf("this machine sends too slowly: %.0f kbit in %v", f.sent/1e3, f.sending)
		}
	}
	for {
		select {
		case a := <-s.arrived:
			count(a)
		case <-time.After(2 * s.patience):
			return f
		}
	}
}

// datagramOf returns a frame of a pod's to the gateway, with 1,372 bytes of data by UDP.
func datagramOf(mac ofctl.MAC, src, dst netip.Addr) []byte {
	b := make([]byte, 1380)
	binary.BigEndian.PutUint16(b, 4711)
	binary.BigEndian.PutUint16(b[2:], 80)
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
	binary.BigEndian.PutUint16(b[6:], checksum(append(pseudo(src, dst, protoUDP, len(b)), b...)))
	etherType := ofctl.EtherIPv4
	if src.Is6() {
		etherType = ofctl.EtherIPv6
	}
	return ethernet(config.Gateway.MAC[:], mac[:], etherType, ipPacket(src, dst, protoUDP, b))
}
