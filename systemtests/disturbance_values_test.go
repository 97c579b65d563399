package systemtests

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/frame"
)

// valueDisturbances change values in Open vSwitch's database, and flows, and remove no row.
var valueDisturbances = []disturbance{
	{"fail_mode standalone", bridgeObject, "$VSCTL set-fail-mode fk0 standalone"},
	{"another OpenFlow version", bridgeObject, "$VSCTL set bridge fk0 protocols=OpenFlow10"},
	{"spanning tree", bridgeObject, "$VSCTL set bridge fk0 stp_enable=true"},
	{"external_ids of pods", portObject, forPods("clear interface $p external_ids -- clear port $p external_ids")},
	{"tags removed", portObject, withoutTags},
	{"one tag for all", portObject, forPorts("clear port $p trunks -- set port $p tag=7 vlan_mode=access")},
	{"policing", portObject, forPods("set interface $p ingress_policing_rate=1 ingress_policing_burst=1")},
	{"numbers of pods' ports", portObject, forPods("set interface $p ofport_request=9")},
	{"the number of fk-gw for pods", portObject, "n=$($VSCTL get interface fk-gw ofport); " + forPods("set interface $p ofport_request=$n")},
	{"actions of flows", flowObject, "ovs-ofctl -O OpenFlow13 mod-flows unix:$BRIDGE actions=drop"},
}

// withoutTags makes each port a trunk of all VLANs.
var withoutTags = forPorts("clear port $p tag -- clear port $p trunks -- clear port $p vlan_mode")

// forPods returns a command that calls ovs-vsctl for the port $p of each pod.
func forPods(command string) string {
	return "for p in $($VSCTL list-ports fk0 | grep ^fkp); do $VSCTL " + command + "; done"
}

// forPorts returns a command that calls ovs-vsctl for each port $p of the bridge.
func forPorts(command string) string {
	return "for p in fk0 $($VSCTL list-ports fk0); do $VSCTL " + command + "; done"
}

// rawFrames are frames to a pod, sent by the link eth0 of a network namespace.
type rawFrames struct {
	from, netns string
	to          cluster.Pod
	token       []byte
	kinds       []frameKind
	each        bool // the payload of each kind is token and the kind's place
}

type frameKind struct {
	name string
	data []byte
}

// framesBetween returns frames of one pod with the MAC and the IPv4 address of another: without a tag, and with tags
// (IEEE 802.1Q), among them priority tags, the reserved VLAN 4095 and two tags (802.1ad).
func (w *world) framesBetween(from, to string) *rawFrames {
	w.Helper()
	sender, receiver := w.end(from, 4), w.end(to, 4)
	f := &rawFrames{from: "pod " + from, netns: sender.NetNS, to: receiver.Pod, token: token()}
	src, dst := netip.AddrPortFrom(sender.ip, 7777), netip.AddrPortFrom(receiver.ip, 80)
	plain := datagramFrame(sender.mac, receiver.mac, src, dst, f.token)
	f.kinds = []frameKind{{"no tag", plain}}
	for _, vlan := range []uint16{0, 1, 7, 4095} {
		f.kinds = append(f.kinds, frameKind{fmt.Sprintf("VLAN %d", vlan), tagged(plain, 0x8100, vlan)})
	}
	f.kinds = append(f.kinds, frameKind{"VLAN 4095 in 1", tagged(tagged(plain, 0x8100, 4095), 0x88a8, 1)})
	return f
}

// datagramFrame returns a frame with a UDP datagram.
func datagramFrame(srcMAC, dstMAC net.HardwareAddr, src, dst netip.AddrPort, payload []byte) []byte {
	datagram := frame.Datagram(src.Addr(), dst.Addr(), src.Port(), dst.Port(), payload)
	packet := frame.IP{Src: src.Addr(), Dst: dst.Addr(), Proto: frame.UDP, Payload: datagram}
	return frame.Ether(srcMAC, dstMAC, frame.EtherType(src.Addr()), packet.Bytes())
}

// add adds a kind of frames with a payload of its own, a datagram.
func (f *rawFrames) add(name string, srcMAC, dstMAC net.HardwareAddr, src netip.Addr, dst netip.AddrPort) {
	payload := append(slices.Clone(f.token), byte(len(f.kinds)))
	from := netip.AddrPortFrom(src, 7777)
	f.kinds = append(f.kinds, frameKind{name, datagramFrame(srcMAC, dstMAC, from, dst, payload)})
}

// framesByNode returns frames of a host outside that reach a pod of node1 by that node: to the pod, with addresses that
// the host does not have, and from its own address to a node port for UDP.
func (w *world) framesByNode(to string, forged []netip.Addr, nodePort uint16) *rawFrames {
	w.Helper()
	f := &rawFrames{from: "a host outside", netns: w.ControlPlaneNS(), to: w.pods[to], token: token(), each: true}
	own, err := w.MAC(w.ctx, f.netns, "eth0")
	w.must(err)
	node, err := w.MAC(w.ctx, w.NodeNS("node1"), "eth0")
	w.must(err)
	for _, src := range forged {
		if dst, ok := f.to.IP(familyOf(src)); ok {
			f.add("from "+src.String(), own, node, src, netip.AddrPortFrom(dst, 80))
		}
	}
	for _, dst := range w.nodeIPs("node1") {
		src, err := w.ControlPlaneIP(w.ctx, familyOf(dst))
		w.must(err)
		f.add("to "+dst.String(), own, node, src, netip.AddrPortFrom(dst, nodePort))
	}
	return f
}

// framesToPort returns frames of a pod of node1 to a node port for UDP of that node, behind which is another pod.
func (w *world) framesToPort(from, to string, nodePort uint16) *rawFrames {
	w.Helper()
	f := &rawFrames{from: "pod " + from, netns: w.pods[from].NetNS, to: w.pods[to], token: token(), each: true}
	for _, dst := range w.nodeIPs("node1") {
		e := w.end(from, familyOf(dst))
		f.add("to "+dst.String(), e.mac, e.gateway, e.ip, netip.AddrPortFrom(dst, nodePort))
	}
	return f
}

func familyOf(a netip.Addr) int { return map[bool]int{true: 4, false: 6}[a.Is4()] }

// tagged inserts a tag into a frame behind its MAC addresses.
func tagged(plain []byte, etherType, vlan uint16) []byte {
	const macs = 12
	tag := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, etherType), vlan)
	return slices.Concat(plain[:macs], tag, plain[macs:])
}

// send sends all kinds of frames, one after another, until ctx ends.
func (f *rawFrames) send(ctx context.Context, w *world) {
	var frames [][]byte
	for _, k := range f.kinds {
		frames = append(frames, k.data)
	}
	if err := w.RepeatFrames(ctx, f.netns, framePause(), frames...); err != nil {
		w.Errorf("send frames from %s: %v", f.from, err)
	}
}

// sent sends frames until the function that it returns is called, which returns those that have arrived.
func (f *rawFrames) sent(w *world) (stop func() [][]byte) {
	w.Helper()
	hearing, err := w.Hear(w.ctx, f.to.NetNS, "eth0", f.token)
	w.must(err)
	ctx, cancel := context.WithCancel(w.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.send(ctx, w)
	}()
	return func() [][]byte {
		w.Helper()
		cancel()
		<-ended
		arrived, err := hearing.Stop()
		w.must(err)
		return arrived
	}
}

// arrive waits until frames of each kind arrive: without that, their absence would show nothing.
func (f *rawFrames) arrive(w *world, why string) {
	w.Helper()
	w.must(cluster.Until(w.ctx, settling, func() error {
		stop := f.sent(w)
		cluster.Undisturbed(w.ctx, cluster.Window(500*time.Millisecond))
		arrived := stop()
		for i, k := range f.kinds {
			payload := f.token
			if f.each {
				payload = append(slices.Clone(f.token), byte(i))
			}
			if !slices.ContainsFunc(arrived, func(b []byte) bool { return bytes.Contains(b, payload) }) {
				return fmt.Errorf("no frame of %s (%s) arrives at pod %s: %s", f.from, k.name, f.to.Name, why)
			}
		}
		return nil
	}))
}

// judge fails the test if frames have arrived.
func (f *rawFrames) judge(d *disturbed, arrived [][]byte) {
	d.Helper()
	if len(arrived) > 0 {
		d.leak("%d frames of %s arrived at pod %s, the first to %v: %x", len(arrived), f.from, f.to.Name,
			net.HardwareAddr(arrived[0][:6]), arrived[0])
	}
}

// withoutTags shows that frames arrive where both guards are gone, fail_mode and the ports' tags, while netplugin does
// not run. Then netplugin restores both.
func (d *disturbed) withoutTags() {
	d.Helper()
	d.must(d.Stop(d.ctx, "node1-netplugin"))
	d.disturb("$VSCTL set-fail-mode fk0 standalone; " + withoutTags)
	d.betweenPods.arrive(d.world, "fail_mode is standalone, and no port has a tag")
	d.starts()
}

// withoutNextHops shows that frames by the node's stack arrive where both guards are gone, nftables and the MACs of the
// next hops, and the filters of the shape strict, while netplugin does not run. Then all are restored.
func (d *disturbed) withoutNextHops() {
	d.Helper()
	saved := d.Dir + "/node1/filtering.nft"
	command := `f=` + saved + `
if nft list table inet filtering >$f; then nft flush table inet filtering; else rm $f; fi
nft delete table inet flowkeep
sysctl -qw ` + filterOfUplink + `=0
ip neigh replace 169.254.102.4 lladdr 02:f1:00:00:00:55 dev fk-gw nud permanent
ip -6 neigh replace fe80::f1:104 lladdr 02:f1:00:00:00:55 dev fk-gw nud permanent
for f in -4 -6; do ip $f rule del pref 61; done`
	d.must(d.Stop(d.ctx, "node1-netplugin"))
	d.disturb(command)
	for _, f := range d.byStack {
		f.arrive(d.world, "neither guard is there")
	}
	d.disturb(undo[strictName] + `
if [ -e ` + saved + ` ]; then nft -f ` + saved + `; rm ` + saved + `; fi`)
	d.starts()
}
