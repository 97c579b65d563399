package native

import (
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/nodestate"
	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/native/lldp/lldptest"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"github.com/flowkeep/flowkeep/nodestate/nodeconfig"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// listening is a bench that hears neighbours.
type listening struct {
	*bench
	moved chan struct{}
	reg   *prometheus.Registry
}

func newListening(t *testing.T, record string) *listening {
	t.Helper()
	l := &listening{bench: newBench(t, Config{Neighbours: record}), moved: make(chan struct{}, 1), reg: prometheus.NewRegistry()}
	if err := l.Listen(l.moved, l.reg, slog.New(slog.DiscardHandler)); err != nil {
		t.Skip(err)
	}
	return l
}

// hears waits for news, until the neighbours of the interface have these names.
func (l *listening) hears(link string, names ...string) {
	l.t.Helper()
	late := time.After(3 * time.Minute)
	for {
		i, _ := l.show().Interface(link)
		got := neighbours(i)
		if slices.Equal(got, names) {
			return
		}
		select {
		case <-l.moved:
		case <-late:
			l.t.Fatalf("the neighbours of %s are %v, not %v: %v", link, got, names, i["lldp"])
		}
	}
}

func neighbours(i nmstate.Interface) (names []string) {
	list, _ := i.Section("lldp")["neighbors"].([]any)
	for _, n := range list {
		first := n.([]any)[0].(map[string]any)
		name, _ := first["system-name"].(string)
		names = append(names, name)
	}
	return names
}

// frames is how many had the outcome.
func (l *listening) frames(outcome string) (n float64) {
	l.t.Helper()
	families, err := l.reg.Gather()
	if err != nil {
		l.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == outcome {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

// send has an interface of this thread's network namespace send a frame.
func send(t *testing.T, link string, frame []byte) {
	t.Helper()
	l, err := netlink.LinkByName(link)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index}); err != nil {
		t.Fatal(err)
	}
}

func tor(name string, last byte, ttl time.Duration) []byte {
	return lldptest.Switch(name, "Ethernet1/1", last, ttl)
}

func TestListen_ReportsNeighbours(t *testing.T) {
	netns.New(t).Enter(t)
	record := filepath.Join(t.TempDir(), "neighbours.json")
	l := newListening(t, record)
	l.apply(`interfaces: [{name: v0, type: veth, state: up, veth: {peer: v1}}, {name: v1, type: veth, state: up}, {name: br1, type: linux-bridge, state: up}]`)
	if i, _ := l.show().Interface("v0"); i["lldp"] != nil {
		t.Errorf("a veth listens unasked: %v", i["lldp"])
	}
	change := l.apply(`interfaces: [{name: v0, lldp: {enabled: true}}]`)
	if !slices.Equal(change.Steps, []string{"enable lldp on v0"}) {
		t.Error(change.Steps)
	}
	for _, group := range [][6]byte{{0x01, 0x80, 0xc2, 0, 0, 0x02}, {0x01, 0, 0x5e, 0, 0, 0x0e}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}} {
		other := tor("elsewhere", 9, time.Minute)
		copy(other, group[:])
		send(t, "v1", other)
	}
	send(t, "v1", lldptest.Frame(lldptest.Nearest, lldptest.Text(5, "no-ids")))
	send(t, "v1", tor("tor-1", 1, 2*time.Minute))
	l.hears("v0", "tor-1")
	send(t, "v1", tor("tor-1", 1, 2*time.Minute))
	send(t, "v0", tor("nobody listens", 3, 2*time.Minute))
	for n, last := range []byte{0x03, 0x00} { // the other groups
		frame := tor("tor-2", 2, 2*time.Minute)
		frame[5] = last
		send(t, "v1", frame)
		if l.hears("v0", "tor-1", "tor-2"); n == 0 {
			send(t, "v1", tor("tor-2", 2, 0))
			l.hears("v0", "tor-1")
		}
	}
	if heard, malformed := l.frames("heard"), l.frames("malformed"); heard != 5 || malformed != 1 {
		t.Errorf("%v frames were heard, %v malformed", heard, malformed)
	}
	l.matched("tor-2", "v0")
	send(t, "v1", tor("tor-3", 3, time.Second))
	l.hears("v0", "tor-1", "tor-2", "tor-3")
	l.hears("v0", "tor-1", "tor-2") // once it was silent for a second

	l.apply(`interfaces: [{name: v0, state: down}]`)
	l.hears("v0", "tor-1", "tor-2") // what a policy does to an interface must not make it match no more
	l.apply(`interfaces: [{name: v0, state: up}, {name: br1, bridge: {port: [{name: v0}]}}]`)
	send(t, "v1", tor("tor-4", 4, 2*time.Minute))
	l.hears("v0", "tor-1", "tor-2", "tor-4")
	if i, _ := l.show().Interface("br1"); i["lldp"] != nil {
		t.Errorf("heard on the bridge: %v", i["lldp"])
	}

	l.Close()
	again := newListening(t, record) // a restart
	again.hears("v0")
	again.apply(`interfaces: [{name: v0, lldp: {enabled: true}}]`)
	again.hears("v0", "tor-1", "tor-2", "tor-4")

	off := again.apply(`interfaces: [{name: v0, lldp: {enabled: false}}]`)
	if i, _ := again.show().Interface("v0"); i["lldp"] != nil {
		t.Errorf("listens though it shall not: %v", i["lldp"])
	}
	if err := again.Rollback(again.ctx(), off); err != nil {
		t.Error(err)
	}
	again.inSync(state(t, `interfaces: [{name: v0, lldp: {enabled: true}}]`))
	before := again.show()
	again.rolledBack(again.apply(`interfaces: [{name: v0, state: absent}]`), before)
	again.inSync(state(t, `interfaces: [{name: v0, lldp: {enabled: true}}]`))
}

// matched has a policy match the interface, and no other, by its neighbour.
func (l *listening) matched(system, link string) {
	l.t.Helper()
	raw, err := json.Marshal(nmstate.Own(l.show(), nil, "fk0"))
	if err != nil {
		l.t.Fatal(err)
	}
	o := &nmstatev1.NodeNetworkState{ObjectMeta: metav1.ObjectMeta{Name: "node1", Generation: 1}}
	o.Spec.NodeName, o.Status.CurrentState, o.Status.ObservedGeneration = "node1", &nmstatev1.State{Raw: raw}, 1
	p := &nmstatev1.NodeNetworkConfigurationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: 1}}
	p.Spec.Match = []nmstatev1.MatchRule{{LLDP: &nmstatev1.LLDPMatch{SystemName: system, ChassisID: "02:00:00:00:00:*", PortID: "Ethernet1/?"}}}
	p.Spec.DesiredState = &nmstatev1.State{Raw: []byte(`{"interfaces": [{"mtu": 1400}]}`)}
	node := &nodeconfig.Node{Object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}, State: nodeconfig.ReadState(o)}
	if e := nodeconfig.Decide(node, []*nodeconfig.Policy{nodeconfig.NewPolicy(p)}, nil).Entries["p"]; !slices.Equal(e.Interfaces, []string{link}) {
		l.t.Errorf("the policy matches %v, not %s: %s", e.Interfaces, link, e.Reason)
	}
}

// Cards are listened to unasked. Where the machine is a container, so is the veth that stands for one.
func TestCardsAreListenedTo(t *testing.T) {
	netns.New(t).Enter(t)
	l := newListening(t, "")
	outside := netns.New(t)
	for _, name := range []string{"eth0", "calixyz"} {
		veth := &netlink.Veth{LinkAttrs: attrs(name), PeerName: "p" + name, PeerNamespace: netlink.NsFd(outside.FD())}
		if err := netlink.LinkAdd(veth); err != nil {
			t.Fatal(err)
		}
		link, err := netlink.LinkByName(name)
		if err := errors.Join(err, netlink.LinkSetUp(link)); err != nil {
			t.Fatal(err)
		}
	}
	if i, _ := l.show().Interface("eth0"); i.Section("lldp")["enabled"] != true {
		t.Fatalf("eth0 is not listened to: %v", i)
	}
	outside.Do(func() {
		for _, name := range []string{"peth0", "pcalixyz"} {
			link, err := netlink.LinkByName(name)
			if err := errors.Join(err, netlink.LinkSetUp(link)); err != nil {
				t.Error(err)
				return
			}
			send(t, name, tor("tor-1", 1, time.Minute))
		}
	})
	l.hears("eth0", "tor-1")
	if heard := l.frames("heard"); heard != 1 {
		t.Errorf("%v frames were heard: a pod's link is none of ours", heard)
	}
	change := l.apply(`interfaces: [{name: eth0, type: ethernet, lldp: {enabled: false}}]`)
	if i, _ := l.show().Interface("eth0"); i["lldp"] != nil || !slices.Equal(change.Steps, []string{"disable lldp on eth0"}) {
		t.Errorf("%v: %v", change.Steps, i["lldp"])
	}
}

// A desire that the node cannot have is refused with the reason.
func TestListen_WithoutPacketSockets(t *testing.T) {
	f := newFake()
	f.Deaf = errors.New("operation not permitted")
	_, err := onFake(f).Apply(t.Context(), state(t, "interfaces: [{name: eth1, lldp: {enabled: true}}]"), volatile)
	if !errors.Is(err, nodestate.ErrRefused) || !strings.Contains(err.Error(), "interfaces[eth1].lldp: LLDP does not work on this node: operation not permitted") {
		t.Error(err)
	}
	if _, err := onFake(f).Apply(t.Context(), state(t, "interfaces: [{name: eth1, lldp: {enabled: false}}]"), volatile); err != nil {
		t.Error(err)
	}
}
