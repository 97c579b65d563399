package ovsdb_test

import (
	"encoding/hex"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/ofctl/appctl"
	"github.com/flowkeep/flowkeep/ofctl/ovsdb"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
)

// separated is a bridge fk0 with ports as a node has them, in the dummy datapath or in the kernel's.
type separated struct {
	sw       *ovstest.Switch
	datapath string
	db       *ovsdb.DB
	numbers  map[string]int
	tags     map[string]int
	links    *portLinks // of the kernel's datapath
}

// separatedPorts are two pods, the node's ports and the local port.
var separatedPorts = []string{"fkp1", "fkp2", "fk-gw", "fk-wire", "fk0"}

// newSeparated starts the kernel's datapath for a test whose name begins with TestKernel.
func newSeparated(t *testing.T) *separated {
	t.Helper()
	s := &separated{datapath: "dummy", numbers: map[string]int{}, tags: map[string]int{}}
	if strings.HasPrefix(t.Name(), "TestKernel") {
		s.datapath, s.links = "system", newPortLinks(t, separatedPorts[:2])
		s.sw = ovstest.StartOn(t, s.datapath, nil)
	} else {
		s.sw = ovstest.Start(t, 0)
	}
	var err error
	if s.db, err = ovsdb.Open(t.Context(), s.sw.OVSDB()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.db.Close)
	s.ensure(t)
	for _, name := range separatedPorts[:4] {
		spec := ovsdb.PortSpec{Bridge: "fk0", Name: name, Internal: strings.HasPrefix(name, "fk-")}
		if _, err := s.db.EnsurePort(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range separatedPorts {
		s.numbers[name] = s.number(t, "Interface", name, "ofport")
		s.tags[name] = s.number(t, "Port", name, "tag")
		if s.links != nil {
			s.links.open(t, name)
		}
	}
	return s
}

func (s *separated) ensure(t *testing.T) []ovsdb.Change {
	t.Helper()
	changes, err := s.db.EnsureBridge(t.Context(), ovsdb.BridgeSpec{Name: "fk0", DatapathType: s.datapath})
	if err != nil {
		t.Fatal(err)
	}
	return changes
}

// configure changes the database, and has the switch use nothing that it has derived from what was there before.
func (s *separated) configure(t *testing.T, change ...string) {
	t.Helper()
	s.sw.VSCtl(t, change...)
	s.sw.AppCtl(t, "revalidator/purge")
}

func (s *separated) number(t *testing.T, table, name, column string) int {
	t.Helper()
	text := strings.TrimSpace(s.sw.VSCtl(t, "get", table, name, column))
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s of %s: %v", column, name, err)
	}
	return n
}

// columns returns the VLAN columns of a port.
func (s *separated) columns(t *testing.T, name string) string {
	t.Helper()
	return strings.TrimSpace(s.sw.VSCtl(t, "--no-headings", "--format=csv", "--columns=vlan_mode,tag,trunks,cvlans",
		"list", "Port", name))
}

// counts returns the packets that ports of fk0 have received and sent, by number.
func (s *separated) counts(t *testing.T) (received, sent map[int]int) {
	t.Helper()
	text := s.ofctl(t, "dump-ports")
	received, sent = map[int]int{}, map[int]int{}
	for _, m := range portCounts.FindAllStringSubmatch(text, -1) {
		number, err := strconv.Atoi(m[1])
		if err != nil {
			number = 0xfffe // LOCAL
		}
		received[number], _ = strconv.Atoi(m[2])
		sent[number], _ = strconv.Atoi(m[3])
	}
	if s.links != nil {
		s.links.swapInternal(s.numbers, received, sent)
	}
	return received, sent
}

var portCounts = regexp.MustCompile(`port +"?(\S+?)"?: rx pkts=(\d+)[^\n]*\n +tx pkts=(\d+)`)

func (s *separated) ofctl(t *testing.T, command string, args ...string) string {
	t.Helper()
	all := append([]string{"-OOpenFlow13", "--no-names", command, "unix:" + filepath.Join(s.sw.Dir, "fk0.mgmt")}, args...)
	out, err := exec.Command("ovs-ofctl", all...).CombinedOutput()
	if err != nil {
		t.Fatalf("ovs-ofctl %q: %v: %s", all, err, out)
	}
	return string(out)
}

// receive has the switch receive frames by a port.
func (s *separated) receive(t *testing.T, from string, frames []string) {
	t.Helper()
	if s.links != nil {
		s.links.send(t, from, frames)
		return
	}
	s.sw.AppCtl(t, append([]string{"netdev-dummy/receive", from}, frames...)...)
}

// missed returns the number of packets for which the kernel's datapath had no flow. Open vSwitch forwards such packets
// some time later, and packets of the dummy datapath before it responds again.
func (s *separated) missed(t *testing.T) uint64 {
	t.Helper()
	if s.links == nil {
		return 0
	}
	var lookups appctl.Lookups
	socket, err := appctl.Socket(s.sw.Dir)
	if err == nil {
		var text string
		if text, err = appctl.Call(t.Context(), socket, "dpctl/show", "system@ovs-system"); err == nil {
			lookups, err = appctl.ParseLookups(text)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return lookups.Missed
}

// forwards has the switch receive frames by a port until its datapath misses none of them, and returns the number of
// frames that have left by other ports, rounded up, for each time.
func (s *separated) forwards(t *testing.T, from string, frames ...string) int {
	t.Helper()
	received, before := s.counts(t)
	var after map[int]int
	times, misses := 0, true
	for misses {
		if times++; times > 20 {
			t.Fatalf("the datapath still misses frames of %s", from)
		}
		missed := s.missed(t)
		s.receive(t, from, frames)
		until(t, from+" has received the frames", func() bool {
			var now map[int]int
			now, after = s.counts(t)
			return now[s.numbers[from]] >= received[s.numbers[from]]+times*len(frames)
		})
		misses = s.missed(t) > missed
	}
	left := 0
	for number := range after {
		left += after[number] - before[number]
	}
	return (left + times - 1) / times
}

// expectSeparate sends frames from one port to another, and reports those that leave by any port.
func (s *separated) expectSeparate(t *testing.T, from, to string) {
	t.Helper()
	frames := s.framesBetween(from, to)
	if s.forwards(t, from, slices.Collect(maps.Values(frames))...) == 0 {
		return
	}
	for name, f := range frames {
		if n := s.forwards(t, from, f); n != 0 {
			t.Errorf("%s to %s: %s: a frame left by %d ports", from, to, name, n)
		}
	}
	t.Errorf("frames of %s have left by other ports", from)
}

// frame returns a broadcast of 60 bytes with VLAN tags, as hexadecimal digits.
func frame(tags ...vlanTag) string {
	data := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1}
	for _, tag := range tags {
		data = append(data, byte(tag.protocol>>8), byte(tag.protocol), byte(tag.vlan>>8), byte(tag.vlan))
	}
	data = append(data, 0x88, 0xb5) // IEEE 802: local experimental EtherType 1
	return hex.EncodeToString(append(data, make([]byte, 60-len(data))...))
}

// vlanTag is a VLAN tag of a frame.
type vlanTag struct{ protocol, vlan int }

// Tag protocols.
const (
	dot1q  = 0x8100
	dot1ad = 0x88a8
)

// framesBetween returns frames that a port may send to reach another.
func (s *separated) framesBetween(from, to string) map[string]string {
	frames := map[string]string{"untagged": frame()}
	for name, vlan := range map[string]int{
		"priority":            0,
		"the sender's tag":    s.tags[from],
		"the receiver's tag":  s.tags[to],
		"the reserved tag":    4095,
		"another port's tag":  1,
		"a tag of no port":    4094,
		"priority 7, no VLAN": 7 << 13,
	} {
		frames["802.1Q "+name] = frame(vlanTag{dot1q, vlan})
		frames["802.1ad "+name] = frame(vlanTag{dot1ad, vlan})
		for _, inner := range []int{0, s.tags[from], s.tags[to], 4095} {
			key := fmt.Sprintf("%s, inner %d", name, inner)
			frames["802.1ad "+key] = frame(vlanTag{dot1ad, vlan}, vlanTag{dot1q, inner})
			frames["802.1Q "+key] = frame(vlanTag{dot1q, vlan}, vlanTag{dot1q, inner})
		}
	}
	return frames
}

// TestEnsureBridge_SeparatesPorts: when another program deletes fail_mode, ovs-vswitchd deletes all flows and forwards
// as a learning switch until netplugin corrects it; while netplugin is away it stays so. No frame passes between two ports
// meanwhile, whatever VLAN tags it has.
func TestEnsureBridge_SeparatesPorts(t *testing.T) {
	s := newSeparated(t)
	s.configure(t, "del-fail-mode", "fk0")
	if flows := s.sw.AppCtl(t, "bridge/dump-flows", "fk0"); !strings.Contains(flows, "NORMAL") {
		t.Fatalf("Open vSwitch does not forward by itself:\n%s", flows)
	}
	for _, limit := range []string{"1", "2"} {
		s.configure(t, "set", "Open_vSwitch", ".", "other_config:vlan-limit="+limit)
		for _, from := range separatedPorts {
			for _, to := range separatedPorts {
				if from != to {
					s.expectSeparate(t, from, to)
				}
			}
		}
	}
	s.configure(t, "set", "Port", "fkp2", fmt.Sprintf("tag=%d", s.tags["fkp1"]))
	for name, tags := range map[string][]vlanTag{"untagged": nil, "802.1Q": {{dot1q, 0}}, "802.1ad": {{dot1ad, 0}}} {
		if n := s.forwards(t, "fkp1", frame(tags...)); n != 1 {
			t.Errorf("with equal tags a frame, %s, left by %d ports: the test shows nothing", name, n)
		}
	}
	for _, name := range separatedPorts {
		s.configure(t, "clear", "Port", name, "tag", "vlan_mode")
	}
	for _, from := range separatedPorts {
		if n := s.forwards(t, from, frame()); n != len(separatedPorts)-1 {
			t.Errorf("without tags a frame of %s left by %d ports: the test shows nothing", from, n)
		}
	}
	for _, tag := range []vlanTag{{dot1q, 4095}, {dot1q, s.tags["fkp2"]}, {dot1ad, 7}} {
		if n := s.forwards(t, "fkp1", frame(tag)); n == 0 {
			t.Errorf("without tags a frame with %+v is dropped too: the test shows nothing", tag)
		}
	}
}

// TestEnsureBridge_FlowsForwardBetweenSeparatePorts: VLANs of ports do not concern the action output.
func TestEnsureBridge_FlowsForwardBetweenSeparatePorts(t *testing.T) {
	s := newSeparated(t)
	s.ofctl(t, "add-flow", fmt.Sprintf("in_port=%d,actions=output:%d", s.numbers["fkp1"], s.numbers["fkp2"]))
	for _, f := range []string{frame(), frame(vlanTag{dot1q, 7}), frame(vlanTag{dot1q, s.tags["fkp1"]})} {
		if n := s.forwards(t, "fkp1", f); n != 1 {
			t.Errorf("a frame that a flow outputs to another port left by %d ports", n)
		}
	}
}

// TestEnsureBridge_CorrectsVLANs: each port has its own tag again after another program changed it. What a version
// before wrote is corrected too, and is no change of another program.
func TestEnsureBridge_CorrectsVLANs(t *testing.T) {
	s := newSeparated(t)
	want := s.columns(t, "fkp2")
	for _, c := range []struct {
		change  []string
		changes string
	}{
		{[]string{"clear", "Port", "fkp2", "tag"}, "tag"},
		{[]string{"set", "Port", "fkp2", fmt.Sprintf("tag=%d", s.tags["fkp1"])}, "tag"},
		{[]string{"set", "Port", "fkp2", "tag=0"}, "tag"},
		{[]string{"clear", "Port", "fkp2", "vlan_mode"}, "vlan_mode"},
		{[]string{"set", "Port", "fkp2", "vlan_mode=trunk"}, "vlan_mode"},
		{[]string{"set", "Port", "fkp2", "vlan_mode=dot1q-tunnel", "cvlans=1,2"}, "vlan_mode cvlans"},
		{[]string{"set", "Port", "fkp2", "vlan_mode=native-untagged", "trunks=1,2"}, "vlan_mode trunks"},
		{strings.Fields("-- clear Port fkp2 tag -- set Port fkp2 vlan_mode=trunk trunks=4095"), ""},
	} {
		s.sw.VSCtl(t, append([]string{"--no-wait"}, c.change...)...)
		var columns []string
		until(t, fmt.Sprintf("the correction of %q", c.change), func() bool {
			for _, change := range s.ensure(t) {
				columns = append(columns, change.Column)
			}
			return s.columns(t, "fkp2") == want
		})
		if got := strings.Join(columns, " "); got != c.changes {
			t.Errorf("after %q the changes of %q are reported, want %q", c.change, got, c.changes)
		}
	}
}

// TestEnsureBridge_SeparatesOtherProgramsPorts: a port that another program adds to the bridge has a tag of its own.
func TestEnsureBridge_SeparatesOtherProgramsPorts(t *testing.T) {
	s := newSeparated(t)
	s.sw.VSCtl(t, "add-port", "fk0", "other", "--", "set", "Interface", "other", "type=internal")
	until(t, "a tag of the port", func() bool {
		s.ensure(t)
		return strings.HasPrefix(s.columns(t, "other"), "access,")
	})
	s.numbers["other"] = s.number(t, "Interface", "other", "ofport")
	s.tags["other"] = s.number(t, "Port", "other", "tag")
	s.configure(t, "del-fail-mode", "fk0")
	s.expectSeparate(t, "fkp1", "other")
}

// until waits until a condition is true, and ends the test where it stays false.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
