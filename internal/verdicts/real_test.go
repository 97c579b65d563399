package verdicts

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/internal/testkit/slow"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/fake"
	"github.com/flowkeep/flowkeep/ofctl/ovsdb"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// onReal is a test whose bridges are a real switch's too.
type onReal struct {
	*testing.T
	sw *realSwitch
}

// realSwitch is Open vSwitch with a pair of virtual interfaces a port, in a network namespace: frames go in at their other ends, and come out there.
type realSwitch struct {
	*ovstest.Switch
	datapath string
	session  *ofctl.Session
	changed  bool           // since settle
	ends     map[uint32]int // of each port, a packet socket
	arrived  chan arrival
	sent     uint16              // the last frame's number, in IPv4's identification or IPv6's flow label
	opened   map[fake.Tuple]bool // by a SYN: what comes back is its answer
	patience time.Duration       // for what is not to come
	awaited  bool                // the next packet comes out, though the switch in memory keeps it
	missed   bool                // an expected packet did not come out
	kept     map[uint16]bool     // the numbers of denied frames that did not come out
}

type arrival struct {
	number uint16
	port   uint32
}

const realPorts = firstPod + pods

// runInParallel lets a test with a userspace switch run in parallel with others. Such tests wait most of their time for
// packets that must not come out.
func runInParallel(t *testing.T, datapath string) {
	if datapath == "netdev" {
		t.Parallel()
	}
}

// startReal starts the switch in a network namespace, in which the rest of the test runs.
func startReal(t *testing.T, datapath string) *realSwitch {
	t.Helper()
	runInParallel(t, datapath)
	netns.New(t).Enter(t)
	s := &realSwitch{datapath: datapath, ends: map[uint32]int{}, kept: map[uint16]bool{}, arrived: make(chan arrival, 64), patience: slow.Window(100 * time.Millisecond)}
	must(t, os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)) // interfaces say nothing by themselves
	names := make([]string, realPorts)
	for i := range names {
		names[i] = fmt.Sprintf("p%d", i+1)
		s.addEnd(t, uint32(i+1), names[i])
	}
	s.Switch = ovstest.StartOn(t, datapath, names)
	withPrefixes(t, s.Switch, datapath, pipeline.Prefixes())
	s.session = connect(t, s.Switch)
	return s
}

// withPrefixes gives the bridge the prefix trees that netplugin gives it.
func withPrefixes(t *testing.T, sw *ovstest.Switch, datapath string, prefixes map[int][]string) {
	t.Helper()
	db, err := ovsdb.Open(t.Context(), sw.OVSDB())
	must(t, err)
	defer db.Close()
	_, err = db.EnsureBridge(t.Context(), ovsdb.BridgeSpec{
		Name:         sw.Bridge,
		DatapathType: datapath,
		Prefixes:     prefixes,
	})
	must(t, err)
}

func (s *realSwitch) addEnd(t *testing.T, port uint32, name string) {
	t.Helper()
	end := fmt.Sprintf("x%d", port)
	for _, args := range [][]string{{"link", "add", name, "type", "veth", "peer", "name", end}, {"link", "set", name, "up"}, {"link", "set", end, "up"}} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	i, err := net.InterfaceByName(end)
	must(t, err)
	all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all))
	must(t, err)
	must(t, unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1))
	must(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100000}))
	must(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: i.Index}))
	s.ends[port] = fd
	over, done := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() {
		close(over)
		<-done
		_ = unix.Close(fd)
	})
	go func() {
		defer close(done)
		for frame := make([]byte, 4096); ; {
			n, _, err := unix.Recvfrom(fd, frame, 0)
			select {
			case <-over:
				return
			default:
			}
			if number, ok := numberOf(frame[:max(n, 0)]); err == nil && ok {
				select {
				case s.arrived <- arrival{number, port}:
				case <-over:
					return
				}
			}
		}
	}()
}

func numberOf(frame []byte) (uint16, bool) {
	if len(frame) < 34 {
		return 0, false
	}
	switch binary.BigEndian.Uint16(frame[12:]) {
	case ofctl.EtherIPv4:
		return binary.BigEndian.Uint16(frame[18:]), true
	case ofctl.EtherIPv6:
		return binary.BigEndian.Uint16(frame[16:]), true
	}
	return 0, false
}

// forget makes a new switch of it.
func (s *realSwitch) forget(t testing.TB) {
	t.Helper()
	s.commit(t, []ofctl.FlowMod{{Command: ofctl.DeleteAll}})
	s.lose(t)
}

// lose has its conntrack know nothing.
func (s *realSwitch) lose(t testing.TB) {
	t.Helper()
	s.AppCtl(t, "dpctl/flush-conntrack")
	s.opened = map[fake.Tuple]bool{}
}

func (s *realSwitch) commit(t testing.TB, mods []ofctl.FlowMod) {
	t.Helper()
	must(t, s.session.Commit(t.Context(), mods))
	s.changed = true
}

// settle returns when the datapath's cache has followed the changes.
func (s *realSwitch) settle(t testing.TB) {
	t.Helper()
	if s.datapath == "netdev" {
		// A purge leaves out the megaflow that a revalidator has locked at this moment, which is long on a busy
		// machine: see netplugin/agent, keepPurged.
		for _, command := range []string{"revalidator/purge", "revalidator/wait", "revalidator/purge"} {
			s.ask(t, command)
		}
	} else {
		for range 3 { // see netplugin/agent, revisions
			s.ask(t, "revalidator/wait")
		}
	}
	s.changed = false
}

// comes is how long what must come out is waited for: that costs nothing where it does, however long the machine stands still. What does not
// come costs it once: then the test has failed, and only needs to end.
const comes = 2 * time.Minute

func (s *realSwitch) limit(r *fake.Result) time.Duration {
	switch {
	case len(r.Outputs) == 0 && !s.awaited:
		return s.patience
	case s.missed:
		return 20 * s.patience
	}
	return comes
}

// follow sends the packet of a result of the switch in memory, whose outputs become those of this one.
func (s *realSwitch) follow(t testing.TB, r *fake.Result) {
	t.Helper()
	if s.changed {
		s.settle(t)
	}
	frame := s.frame(&r.Packet)
	number, _ := numberOf(frame) // of fragments that of their datagram
	delete(s.kept, number)
	must(t, unix.Send(s.ends[r.InPort], frame, 0))
	limit := s.limit(r)
	r.Outputs, s.awaited = nil, false
	for late := time.After(limit); ; {
		select {
		case a := <-s.arrived:
			if a.number == number {
				r.Outputs = append(r.Outputs, fake.Output{Port: a.port, Packet: r.Packet})
				return
			}
			s.expectDropped(t, a)
		case <-late:
			s.kept[number] = limit == s.patience // an allowed frame may come late
			s.missed = s.missed || limit == comes
			s.takeAll(t)
			return
		}
	}
}

// takeAll returns when the userspace datapath has taken the frames that were sent. A frame that waits while the process
// stands still could otherwise be evaluated after the next one of another port, which may open its connection. The
// thread that takes frames also answers requests, between two rounds of all ports (vswitchd/ovs-vswitchd.c).
func (s *realSwitch) takeAll(t testing.TB) {
	t.Helper()
	if s.datapath != "netdev" {
		return
	}
	for range 2 {
		s.ask(t, "version")
	}
}

// expectDropped fails the test for a frame that the switch seemed to have dropped, since it came out after patience.
func (s *realSwitch) expectDropped(t testing.TB, a arrival) {
	t.Helper()
	if s.kept[a.number] {
		t.Errorf("LEAK: frame %d came out of port %d later than %v after it was sent", a.number, a.port, s.patience)
	}
}

// frame is the packet's, with a number of its own.
func (s *realSwitch) frame(p *fake.Packet) []byte {
	s.sent++
	network := s.network(p)
	rest := s.transport(p)
	if p.Pieces > 1 {
		size := len(rest) / p.Pieces &^ 7
		end := size * (p.Piece + 1)
		more := p.Piece+1 < p.Pieces
		if !more {
			end = len(rest)
		}
		offset := uint16(size * p.Piece / 8)
		rest = rest[size*p.Piece : end]
		binary.BigEndian.PutUint16(network[4:], uint16(p.FragID))
		if more {
			offset |= 1 << 13
		}
		binary.BigEndian.PutUint16(network[6:], offset)
	}
	if p.EtherType == ofctl.EtherIPv4 {
		binary.BigEndian.PutUint16(network[2:], uint16(len(network)+len(rest)))
		binary.BigEndian.PutUint16(network[10:], 0)
		binary.BigEndian.PutUint16(network[10:], checksum(network))
	} else {
		binary.BigEndian.PutUint16(network[4:], uint16(len(rest)))
	}
	return slices.Concat(p.EthDst[:], p.EthSrc[:], binary.BigEndian.AppendUint16(nil, p.EtherType), network, rest)
}

// network is the packet's IP header without what depends on its length.
func (s *realSwitch) network(p *fake.Packet) []byte {
	if p.EtherType == ofctl.EtherIPv4 {
		h := make([]byte, 20)
		h[0], h[8], h[9] = 0x45, 64, p.Proto
		binary.BigEndian.PutUint16(h[4:], s.sent)
		copy(h[12:], p.Src.AsSlice())
		copy(h[16:], p.Dst.AsSlice())
		return h
	}
	h := make([]byte, 40)
	h[0], h[6], h[7] = 0x60, p.Proto, 64
	binary.BigEndian.PutUint16(h[2:], s.sent)
	copy(h[8:], p.Src.AsSlice())
	copy(h[24:], p.Dst.AsSlice())
	return h
}

const (
	protoICMP     = 1
	protoTCP      = 6
	protoUDP      = 17
	protoFragment = 44
	protoICMPv6   = 58
)

// transport is all behind the IP header.
func (s *realSwitch) transport(p *fake.Packet) []byte {
	var b []byte
	sum := -1 // where the checksum is
	switch p.Proto {
	case protoTCP:
		b, sum = s.segment(p), 16
	case protoUDP:
		b, sum = make([]byte, 8+64), 6
		binary.BigEndian.PutUint16(b, p.SrcPort)
		binary.BigEndian.PutUint16(b[2:], p.DstPort)
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
	case protoICMP, protoICMPv6:
		b, sum = make([]byte, 8), 2
		b[0], b[1] = p.ICMPType, p.ICMPCode
		if p.Inner != nil {
			b = append(b, s.quoted(p)...)
		} else {
			binary.BigEndian.PutUint16(b[4:], p.SrcPort)
		}
	default:
		b = make([]byte, 32)
	}
	if sum >= 0 {
		pseudo := []byte{}
		if p.Proto != protoICMP {
			pseudo = slices.Concat(p.Src.AsSlice(), p.Dst.AsSlice(), []byte{0, p.Proto}, binary.BigEndian.AppendUint16(nil, uint16(len(b))))
		}
		binary.BigEndian.PutUint16(b[sum:], checksum(append(pseudo, b...)))
	}
	return b
}

// pieceSize is of a fragment in bytes: Open vSwitch's userspace datapath drops smaller ones than 1,200 (ipf-set-min-frag, ovs-vswitchd(8)).
const pieceSize = 1240

// segment is TCP's: of the end that sent a SYN, or of the one that answers it.
func (s *realSwitch) segment(p *fake.Packet) []byte {
	const syn, rst, ack = 2, 4, 16
	here := fake.Tuple{Src: p.Src, Dst: p.Dst, Proto: p.Proto, SrcPort: p.SrcPort, DstPort: p.DstPort}
	there := fake.Tuple{Src: p.Dst, Dst: p.Src, Proto: p.Proto, SrcPort: p.DstPort, DstPort: p.SrcPort}
	answers := s.opened[there]
	b := make([]byte, 20)
	seq, acked := uint32(1000), uint32(0)
	switch {
	case p.Reset:
		seq, acked, b[13] = 1001, 5001, rst|ack
	case p.MidStream:
		seq, acked, b[13] = 1001, 5001, ack
	case p.Unasked || answers:
		seq, acked, b[13] = 5000, 1001, syn|ack
	default:
		b[13] = syn
		s.opened[here] = true
	}
	if answers && (p.Reset || p.MidStream) {
		seq, acked = acked, seq
	}
	binary.BigEndian.PutUint16(b, p.SrcPort)
	binary.BigEndian.PutUint16(b[2:], p.DstPort)
	binary.BigEndian.PutUint32(b[4:], seq)
	binary.BigEndian.PutUint32(b[8:], acked)
	b[12] = 5 << 4
	binary.BigEndian.PutUint16(b[14:], 65000)
	if p.Pieces > 1 {
		b = append(b, make([]byte, pieceSize*p.Pieces-len(b))...)
	}
	return b
}

// quoted is the beginning of the packet that an error speaks of.
func (s *realSwitch) quoted(p *fake.Packet) []byte {
	in := fake.Packet{EtherType: p.EtherType, Src: p.Inner.Src, Dst: p.Inner.Dst, Proto: p.Inner.Proto}
	h := s.network(&in)
	ports := make([]byte, 20)
	binary.BigEndian.PutUint16(ports, p.Inner.SrcPort)
	binary.BigEndian.PutUint16(ports[2:], p.Inner.DstPort)
	ports[12] = 5 << 4
	if p.EtherType == ofctl.EtherIPv4 {
		binary.BigEndian.PutUint16(h[2:], uint16(len(h)+len(ports)))
		binary.BigEndian.PutUint16(h[10:], checksum(h))
	} else {
		binary.BigEndian.PutUint16(h[4:], uint16(len(ports)))
	}
	return append(h, ports...)
}

func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// TestUserspaceDatapathJudges and TestKernelDatapathJudges: connections of a real switch, through random worlds, changes and all that has gone wrong with live ones
// elsewhere, are judged as those of the switch in memory. The second needs the kernel's module, which scripts/kernel has.
func TestUserspaceDatapathJudges(t *testing.T) { judges(t, "netdev") }

func TestKernelDatapathJudges(t *testing.T) {
	ovstest.NeedKernelDatapath(t)
	judges(t, "system")
}

// judges runs its cases on several switches: those of the userspace datapath in parallel.
func judges(t *testing.T, datapath string) {
	cases := slices.Clone(connectionTraps)
	cases = append(cases, trap{"errors", judgesErrors}, trap{"next hops", judgesNextHops})
	worlds := 3
	if testing.Short() {
		worlds = 1
	}
	for seed := range worlds {
		cases = append(cases, trap{
			name: fmt.Sprintf("random world %d", seed),
			run:  func(t testing.TB) { judgesWorld(t, uint64(seed)) },
		})
	}
	runInParallel(t, datapath)
	for i, part := range slices.Collect(slices.Chunk(cases, casesOfASwitch)) {
		t.Run(fmt.Sprintf("switch %d", i+1), func(t *testing.T) {
			sw := startReal(t, datapath)
			for _, c := range part {
				sw.run(t, c.name, c.run)
			}
		})
	}
}

// casesOfASwitch is how many cases judges runs on a switch, one after the other.
const casesOfASwitch = 7

func (s *realSwitch) run(t *testing.T, name string, test func(testing.TB)) {
	t.Run(name, func(t *testing.T) { test(&onReal{t, s}) })
}

func judgesErrors(t testing.TB) {
	b := three(t, lets("0", "1"))
	for _, six := range []bool{false, true} {
		router := netip.MustParseAddr(map[bool]string{false: "172.30.0.1", true: "fd00:172::1"}[six])
		allowed := fake.IP(policytest.Address(0, six), policytest.Address(1, six), protoTCP, 80)
		b.expect(allowed, true, "opens")
		answer := allowed.Reply()
		b.expect(answer, true, "is answered")
		b.expect(answer.ErrorFrom(router), true, "to the isolated pod, of its connection")
		b.expect(allowed.ErrorFrom(router), true, "to the client, of its connection")
		b.expect(allowed.ErrorFrom(policytest.Address(2, six)), false, "a third pod has nothing to say")
		foreign := fake.IP(policytest.Address(1, six), policytest.Address(2, six), protoTCP, 81)
		b.expect(foreign.ErrorFrom(router), false, "of no connection")
	}
}

// judgesWorld: connections of a random world, and what becomes of them when its policies change.
func judgesWorld(t testing.TB, seed uint64) {
	g := policytest.New(seed)
	w := g.World(pods, 5)
	onOneNode(w)
	b := newBridge(t, w)
	var connections []live
	for range 40 {
		p := g.Packet(pods)
		if !b.traceable(p) || p.Protocol == policy.SCTP { // the kernel looks into its chunks
			continue
		}
		want, request := policy.Allowed(w, p), packetOf(p)
		request.SrcPort = uint16(1024 + g.IntN(60000))
		b.expect(request, want.Allowed, want)
		if want.Allowed {
			b.expect(request.Reply(), true, "the reply")
			connections = append(connections, live{p, request})
		}
	}
	b.followsChanges(g, w, connections, 3)
}
