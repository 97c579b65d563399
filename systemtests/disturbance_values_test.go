package systemtests

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/frame"
)

// valueDisturbances change values in Open vSwitch's database, and flows, and remove no row.
var valueDisturbances = []disturbance{
	{"fail_mode standalone", bridge, "$VSCTL set-fail-mode fk0 standalone"},
	{"another OpenFlow version", bridge, "$VSCTL set bridge fk0 protocols=OpenFlow10"},
	{"spanning tree", bridge, "$VSCTL set bridge fk0 stp_enable=true"},
	{"external_ids of pods", bridge, forPods("clear interface $p external_ids -- clear port $p external_ids")},
	{"tags removed", bridge, withoutTags},
	{"one tag for all", bridge, forPorts("clear port $p trunks -- set port $p tag=7 vlan_mode=access")},
	{"policing", bridge, forPods("set interface $p ingress_policing_rate=1 ingress_policing_burst=1")},
	{"numbers of pods' ports", bridge, forPods("set interface $p ofport_request=9")},
	{"the number of fk-gw for pods", bridge, "n=$($VSCTL get interface fk-gw ofport); " + forPods("set interface $p ofport_request=$n")},
	{"actions of flows", bridge, "ovs-ofctl -O OpenFlow13 mod-flows unix:$BRIDGE actions=drop"},
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

// rawFrames are sent by a pod that may send nothing to the MAC of another pod of its node.
type rawFrames struct {
	from, to end
	token    []byte
	kinds    []frameKind
}

type frameKind struct {
	name string
	data []byte
}

// framesBetween returns frames of one pod with the MAC and the IPv4 address of another: without a tag, and with tags
// (IEEE 802.1Q), among them priority tags, the reserved VLAN 4095 and two tags (802.1ad).
func (w *world) framesBetween(from, to string) *rawFrames {
	w.Helper()
	f := &rawFrames{from: w.end(from, 4), to: w.end(to, 4), token: token()}
	datagram := frame.Datagram(f.from.ip, f.to.ip, 7777, 80, f.token)
	packet := frame.IP{Src: f.from.ip, Dst: f.to.ip, Proto: frame.UDP, Payload: datagram}
	plain := frame.Ether(f.from.mac, f.to.mac, frame.EtherIPv4, packet.Bytes())
	f.kinds = []frameKind{{"no tag", plain}}
	for _, vlan := range []uint16{0, 1, 7, 4095} {
		f.kinds = append(f.kinds, frameKind{fmt.Sprintf("VLAN %d", vlan), tagged(plain, 0x8100, vlan)})
	}
	f.kinds = append(f.kinds, frameKind{"VLAN 4095 in 1", tagged(tagged(plain, 0x8100, 4095), 0x88a8, 1)})
	return f
}

// tagged inserts a tag into a frame behind its MAC addresses.
func tagged(plain []byte, etherType, vlan uint16) []byte {
	const macs = 12
	tag := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, etherType), vlan)
	return slices.Concat(plain[:macs], tag, plain[macs:])
}

// send sends all kinds of frames, a frame each 5 ms, until ctx ends.
func (f *rawFrames) send(ctx context.Context, w *world) {
	var batch [][]byte
	for range 10 {
		for _, k := range f.kinds {
			batch = append(batch, k.data)
		}
	}
	for ctx.Err() == nil {
		if err := w.SendFrames(ctx, f.from.NetNS, 5*time.Millisecond, batch...); err != nil && ctx.Err() == nil {
			w.Errorf("send frames from pod %s: %v", f.from.Name, err)
			return
		}
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

// arrive waits until frames arrive: without that, their absence would show nothing.
func (f *rawFrames) arrive(w *world, why string) {
	w.Helper()
	w.must(cluster.Until(w.ctx, settling, func() error {
		stop := f.sent(w)
		cluster.Undisturbed(w.ctx, 500*time.Millisecond)
		if len(stop()) == 0 {
			return fmt.Errorf("no frame of pod %s arrives at pod %s: %s", f.from.Name, f.to.Name, why)
		}
		return nil
	}))
}

// judgeFrames fails the test if frames have arrived.
func (d *disturbed) judgeFrames(arrived [][]byte) {
	d.Helper()
	if len(arrived) > 0 {
		d.leak("%d frames of pod %s arrived at pod %s, the first to %v: %x", len(arrived), d.frames.from.Name,
			d.frames.to.Name, net.HardwareAddr(arrived[0][:6]), arrived[0])
	}
}

// withoutTags shows that frames arrive where both guards are gone, fail_mode and the ports' tags, while netplugin does
// not run. Then netplugin restores both.
func (d *disturbed) withoutTags() {
	d.Helper()
	d.must(d.Stop(d.ctx, "node1-netplugin"))
	d.disturb("$VSCTL set-fail-mode fk0 standalone; " + withoutTags)
	d.frames.arrive(d.world, "fail_mode is standalone, and no port has a tag")
	d.starts()
}
