package verdicts

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// narrowings are revocations after which Open vSwitch matches fewer fields, or fewer bits of them, than before: entries
// of its cache from before the change overlap those from after it. Pod 0 may send to pod 1 on UDP 53 only before.
var narrowings = []struct {
	name          string
	before, after []policy.PolicyRule
}{
	{"ports, then none", []policy.PolicyRule{fromPod("0", 53, 53)}, nil},
	{"ports, then those of TCP", []policy.PolicyRule{fromPod("0", 53, 53)}, []policy.PolicyRule{fromTCP("0")}},
	{"many ranges, then one", []policy.PolicyRule{fromPod("0", 53, 53), fromPod("0", 1000, 1999), fromPod("2", 7, 7)},
		[]policy.PolicyRule{fromPod("2", 7, 7)}},
	{"ports, then another pod on all", []policy.PolicyRule{fromPod("0", 53, 53)}, []policy.PolicyRule{fromPod("2", 0, 65535)}},
	{"an address, then its network", []policy.PolicyRule{fromBlock("172.30.7.0/24"), fromPod("0", 53, 53)},
		[]policy.PolicyRule{fromBlock("172.16.0.0/12")}},
}

func fromPod(name string, first, last uint16) policy.PolicyRule {
	return policy.PolicyRule{
		Peers: []policy.Peer{{Pods: labelled(name)}},
		Ports: []policy.PolicyPort{{Protocol: policy.UDP, First: first, Last: last}},
	}
}

func fromTCP(name string) policy.PolicyRule {
	r := fromPod(name, 80, 80)
	r.Ports[0].Protocol = policy.TCP
	return r
}

func fromBlock(cidr string) policy.PolicyRule {
	return policy.PolicyRule{Peers: []policy.Peer{{Block: &policy.IPBlock{CIDR: netip.MustParsePrefix(cidr)}}}}
}

// isolating isolates pod 1 but for the rules.
func isolating(rules []policy.PolicyRule) *policy.Policy {
	p := lets("0", "1")
	p.Ingress = rules
	return p
}

// TestRevocationsWithNarrowerMasks: no packet passes that was sent after the cache was purged, while streams keep the
// cache full of entries from before and after the change.
func TestRevocationsWithNarrowerMasks(t *testing.T) {
	const rounds, packets = 8, 50
	t.Parallel()
	for _, c := range narrowings {
		t.Run(c.name, func(t *testing.T) {
			sw := startReal(t, "netdev")
			b := three(&onReal{t, sw})
			for range rounds {
				b.put(isolating(c.before))
				sw.settle(t)
				stop := b.streams()
				b.put(isolating(c.after))
				sw.settle(t)
				stop()
				if got := b.passed(t, packets); got != 0 {
					t.Fatalf("LEAK %d of %d packets passed that were sent after the purge", got, packets)
				}
			}
		})
	}
}

// Identifications of packets, by which the test knows them when they have passed.
const (
	idStream = 1 + iota
	idProbe
	idLast
)

// datagram returns a frame with a UDP datagram between two pods.
func (b *bridge) datagram(id uint16, from, to int, port uint16) []byte {
	frame := ethernet(config.Gateway.MAC[:], b.locals[from].MAC[:], ofctl.EtherIPv4,
		ported(policytest.Address(from, false), policytest.Address(to, false), protoUDP, 5000, port, 0))
	const header, identification, sum = 14, 18, 24
	binary.BigEndian.PutUint16(frame[identification:], id)
	binary.BigEndian.PutUint16(frame[sum:], 0)
	binary.BigEndian.PutUint16(frame[sum:], checksum(frame[header:header+20]))
	return frame
}

// streams has pods 0 and 2 send to pod 1, on the port of the permission and on many others, and returns when a packet
// has passed that is allowed. Stop ends it.
func (b *bridge) streams() (stop func()) {
	b.t.Helper()
	over, began := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		every := time.NewTicker(200 * time.Microsecond)
		defer every.Stop()
		for i := 0; ; i++ {
			select {
			case <-every.C:
				_ = unix.Send(b.real.ends[b.locals[0].Port], b.datagram(idStream, 0, 1, 53), 0)
				_ = unix.Send(b.real.ends[b.locals[0].Port], b.datagram(idStream, 0, 1, uint16(900+i%700)), 0)
				_ = unix.Send(b.real.ends[b.locals[2].Port], b.datagram(idStream, 2, 1, uint16(i%60)), 0)
			case <-over:
				return
			}
		}
	})
	all.Go(func() {
		passed := false
		for {
			select {
			case a := <-b.real.arrived:
				if a.port == b.locals[1].Port && !passed {
					passed = true
					close(began)
				}
			case <-over:
				return
			}
		}
	})
	stop = func() { close(over); all.Wait() }
	select {
	case <-began:
	case <-time.After(comes):
		stop()
		b.t.Fatal("nothing passes that is allowed")
	}
	return stop
}

// passed sends packets that the earlier policy allows, and returns how many have reached pod 1 some time after a later
// packet has reached pod 2.
func (b *bridge) passed(t testing.TB, packets int) (came int) {
	t.Helper()
	from := b.real.ends[b.locals[0].Port]
	for range packets {
		must(t, unix.Send(from, b.datagram(idProbe, 0, 1, 53), 0))
	}
	must(t, unix.Send(from, b.datagram(idLast, 0, 2, 99), 0))
	late := time.After(comes)
	for {
		select {
		case a := <-b.real.arrived:
			switch {
			case a.number == idProbe && a.port == b.locals[1].Port:
				came++
			case a.number == idLast && a.port == b.locals[2].Port:
				late = time.After(b.real.patience)
			}
		case <-late:
			return came
		}
	}
}
