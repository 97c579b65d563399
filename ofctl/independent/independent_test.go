package independent_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/independent"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/google/go-cmp/cmp"
)

// actAs is set where this program is started as the process that reads; its value is what it does.
const actAs = "FLOWKEEP_TEST_READER"

// memoryFile is set to the file to which the process that reads writes its status and limits, of proc(5), at its end.
const memoryFile = "FLOWKEEP_TEST_READER_MEMORY"

func TestMain(m *testing.M) {
	switch os.Getenv(actAs) {
	case "":
		os.Exit(m.Run())
	case "reader":
		var err error
		if !isRace {
			err = independent.LimitProcess()
		}
		if err == nil {
			err = independent.Read(context.Background(), os.Args[1], os.Stdout)
		}
		if path := os.Getenv(memoryFile); path != "" && err == nil {
			err = copyStatus(path)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case "crash":
		fmt.Println("nothing that a Reader knows")
		panic("a fault of libOpenflow")
	case "hang":
		time.Sleep(time.Hour)
	}
}

func copyStatus(path string) error {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	limits, err := os.ReadFile("/proc/self/limits")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(status, limits...), 0o600)
}

func reader(t *testing.T, as string, args ...string) *independent.Reader {
	t.Setenv(actAs, as)
	return &independent.Reader{Command: append([]string{os.Args[0]}, args...)}
}

func mac(n byte) ofctl.MAC { return ofctl.MAC{2, 0, 0, 0, 0, n} }

// samples returns flows with each field and each action that Flowkeep sends.
func samples() (flows []ofctl.Flow) {
	exact := func(v uint16) ofctl.U16 { return ofctl.U16{Value: v, Mask: 0xffff} }
	trk := ofctl.U32{Value: ofctl.CtTrk, Mask: ofctl.CtTrk | ofctl.CtInv}
	p, a := netip.MustParsePrefix, netip.MustParseAddr
	add := func(m ofctl.Match, actions ...ofctl.Action) {
		n := len(flows)
		flows = append(flows, ofctl.Flow{
			Table:    uint8(n % 5),
			Priority: uint16(100 + n),
			Cookie:   0xf1<<56 + uint64(n),
			Match:    m,
			Actions:  actions,
		})
	}
	out := ofctl.Action{Kind: ofctl.Output, Port: 1}
	add(ofctl.Match{})
	add(ofctl.Match{InPort: 2, EthSrc: mac(1), EthDst: mac(2)}, out)
	add(ofctl.Match{EthSrc: mac(0), EthSrcMask: mac(0), EthDst: mac(3), EthDstMask: mac(7), Untagged: true}, out)
	add(ofctl.Match{EtherType: ofctl.EtherARP, ArpOp: 1, NwSrc: p("10.0.0.1/32"), NwDst: p("10.0.0.0/24"), ArpSHA: mac(3)}, out)
	add(ofctl.Match{EtherType: ofctl.EtherIPv4, NwSrc: p("10.0.0.1/32"), NwDst: p("10.0.0.0/23"), IPProto: 6,
		TpSrc: exact(80), TpDst: ofctl.U16{Value: 0x1000, Mask: 0xf000}, TCPFlags: ofctl.U16{Value: 2, Mask: 6}}, out)
	add(ofctl.Match{EtherType: ofctl.EtherIPv6, NwSrc: p("fd00::1/128"), NwDst: p("fd00::/61"), IPProto: 17, TpDst: exact(53)}, out)
	add(ofctl.Match{EtherType: ofctl.EtherIPv4, IPProto: 132, TpDst: exact(9)}, out)
	ping, code := ofctl.U8{Value: 8, Mask: 0xff}, ofctl.U8{Mask: 0xff}
	add(ofctl.Match{EtherType: ofctl.EtherIPv4, IPProto: 1, ICMPType: ping, ICMPCode: code}, out)
	for i, kind := range []uint8{135, 136} {
		m := ofctl.Match{EtherType: ofctl.EtherIPv6, IPProto: 58, ICMPType: ofctl.U8{Value: kind, Mask: 0xff}, ICMPCode: code}
		m.NDTarget = a("fd00::2")
		*[]*ofctl.MAC{&m.NDSLL, &m.NDTLL}[i] = mac(4)
		add(m, out)
	}
	add(ofctl.Match{EtherType: ofctl.EtherIPv4, CtState: trk, CtNwSrc: p("10.0.0.1/32"), CtNwDst: p("10.0.0.0/8"),
		CtProto: 6, CtTpDst: exact(8080), CtTpSrc: ofctl.U16{Value: 0x8000, Mask: 0x8000}}, out)
	add(ofctl.Match{EtherType: ofctl.EtherIPv6, CtState: trk, CtNwSrc: p("fd00::/64"), CtNwDst: p("fd00::5/128"),
		CtProto: 17, CtZone: 7, CtMark: ofctl.U32{Value: 1, Mask: 0xffffffff}}, out)
	for i := range ofctl.NumRegs {
		m := ofctl.Match{CtMark: ofctl.U32{Value: 1, Mask: 3}}
		m.Reg[i] = ofctl.U32{Value: 0x100, Mask: 0xff00}
		add(m, ofctl.Action{Kind: ofctl.SetReg, Reg: uint8(i), Value: 5})
	}
	for _, f := range []ofctl.U8{ofctl.Fragments, ofctl.LaterFragments, ofctl.Unfragmented} {
		add(ofctl.Match{EtherType: ofctl.EtherIPv4, IPFrag: f}, out)
	}
	for _, ends := range [][2]netip.Addr{{a("10.0.0.1"), a("10.0.0.2")}, {a("fd00::1"), a("fd00::2")}} {
		add(ofctl.Match{TunSrc: ends[0], TunDst: ends[1]}, append(ofctl.SetTunnel(ends[1], ends[0]), out)...)
	}
	add(ofctl.Match{EtherType: ofctl.EtherIPv4, ConjID: 77}, ofctl.Action{Kind: ofctl.GotoTable, Table: 9})
	add(ofctl.Match{EtherType: ofctl.EtherIPv4, CtState: trk, CtProto: 6},
		ofctl.Action{Kind: ofctl.Conjunction, Value: 77, Clause: 1, Clauses: 2},
		ofctl.Action{Kind: ofctl.Conjunction, Value: 78, Clause: 3, Clauses: 3})
	add(ofctl.Match{EtherType: ofctl.EtherIPv4}, ofctl.Action{Kind: ofctl.Metered, Value: 1},
		ofctl.Action{Kind: ofctl.SetEthSrc, MAC: mac(5)}, ofctl.Action{Kind: ofctl.SetEthDst, MAC: mac(6)},
		ofctl.Action{Kind: ofctl.SetMark, Value: 9}, ofctl.Action{Kind: ofctl.DecTTL}, ofctl.Action{Kind: ofctl.Resubmit, Table: 8},
		ofctl.Action{Kind: ofctl.Output, Port: ofctl.PortInPort}, ofctl.Action{Kind: ofctl.Controller, Value: 128},
		ofctl.Action{Kind: ofctl.Controller, Value: 160, Port: 1}, ofctl.Action{Kind: ofctl.Controller, Value: 100, Zone: 7},
		ofctl.Action{Kind: ofctl.GotoTable, Table: 9})
	add(ofctl.Match{EtherType: ofctl.EtherIPv6, IPProto: 6}, ofctl.Action{Kind: ofctl.Ct, Zone: 65521, Table: 20})
	add(ofctl.Match{EtherType: ofctl.EtherIPv6, IPProto: 17},
		ofctl.Action{Kind: ofctl.Ct, Zone: 65521, Table: 20, Commit: true, Force: true, Value: 1, Mask: 0xffffffff})
	for _, s := range translations() {
		add(s.match, s.actions...)
	}
	return flows
}

var sameFlow = cmp.Comparer(func(a, b ofctl.Flow) bool {
	return a.Table == b.Table && a.Priority == b.Priority && a.Cookie == b.Cookie && a.Match == b.Match &&
		slices.Equal(a.Actions, b.Actions)
})

func commit(t *testing.T, sw *ovstest.Switch, flows []ofctl.Flow) {
	t.Helper()
	s, err := ofctl.Connect(t.Context(), sw.Management())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.EnsureMeters(t.Context(), meters); err != nil {
		t.Fatal(err)
	}
	if err := s.EnsureGroups(t.Context(), groups()); err != nil {
		t.Fatal(err)
	}
	mods := make([]ofctl.FlowMod, len(flows))
	for i := range flows {
		mods[i] = ofctl.FlowMod{Command: ofctl.Add, Flow: flows[i]}
	}
	if err := s.Commit(t.Context(), mods); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, r *independent.Reader) (flows []ofctl.Flow) {
	t.Helper()
	err := r.Dump(t.Context(), func(f ofctl.Flow, err error) error {
		flows = append(flows, f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(flows, func(a, b ofctl.Flow) int { return int(a.Priority) - int(b.Priority) })
	return flows
}

// TestReader_EachField: what ofctl writes, libOpenflow reads from a real switch, each field and each action.
func TestReader_EachField(t *testing.T) {
	sw := ovstest.Start(t, 2)
	commit(t, sw, samples())
	r := reader(t, "reader", sw.Management())
	if diff := cmp.Diff(samples(), read(t, r), sameFlow); diff != "" {
		t.Errorf("sent (-), read (+):\n%s", diff)
	}
	if got := strings.TrimSpace(sw.OFCtl(t, "get-frags")); got != "nx-match" { // as ofctl's sessions set it
		t.Errorf("the reader leaves the switch with fragments handled as %s", got)
	}
	if len(r.Unread) > 0 || !slices.Equal(r.Tables, []uint8{0, 1, 2, 3, 4}) {
		t.Errorf("tables %v, unread %v", r.Tables, r.Unread)
	}
	var m ofctl.Match
	kinds := map[ofctl.ActionKind]bool{}
	for _, f := range samples() {
		for _, a := range f.Actions {
			kinds[a.Kind] = true
		}
		v, all := reflect.ValueOf(f.Match), reflect.ValueOf(&m).Elem()
		for i := range v.NumField() {
			if !v.Field(i).IsZero() {
				all.Field(i).Set(v.Field(i))
			}
		}
	}
	for i := range reflect.TypeFor[ofctl.Match]().NumField() {
		if reflect.ValueOf(m).Field(i).IsZero() {
			t.Errorf("no sample has %s", reflect.TypeFor[ofctl.Match]().Field(i).Name)
		}
	}
	for kind := ofctl.Output; kind <= ofctl.Pop; kind++ {
		if !kinds[kind] {
			t.Errorf("no sample has an action of kind %d", kind)
		}
	}
}

// TestReader_ForeignFlow: a flow with a field or an action that is not read costs that flow alone.
func TestReader_ForeignFlow(t *testing.T) {
	sw := ovstest.Start(t, 2)
	commit(t, sw, samples()[:3])
	for _, f := range []string{
		"cookie=7,table=1,priority=9,ip,nw_ttl=3,actions=drop",
		"cookie=8,table=1,priority=9,tcp,actions=fin_timeout(idle_timeout=5)",
		"cookie=9,table=1,priority=8,ip,actions=learn(table=2)",
		"cookie=10,table=1,priority=7,idle_timeout=600,ip,actions=drop",
	} {
		sw.OFCtl(t, "add-flow", f)
	}
	r := reader(t, "reader", sw.Management())
	if got := read(t, r); len(got) != 3 {
		t.Errorf("%d flows", len(got))
	}
	var cookies []uint64
	for _, u := range r.Unread {
		cookies = append(cookies, u.Cookie)
		if !strings.Contains(u.String(), "table 1 priority") || u.Has(&ofctl.Flow{Table: 1, Priority: 1, Cookie: u.Cookie}) ||
			!u.Has(&ofctl.Flow{Table: 1, Priority: u.Priority, Cookie: u.Cookie}) {
			t.Errorf("%s", &u)
		}
	}
	slices.Sort(cookies)
	if fmt.Sprint(cookies) != "[8 9 10]" && fmt.Sprint(cookies) != "[7 8 9 10]" {
		t.Errorf("unread %v", r.Unread)
	}
}

var memoryLine = regexp.MustCompile(`(?m)^(VmHWM|VmData|Max data size).*$`)

func isLimit(line string) bool {
	fields := strings.Fields(line)
	return strings.HasPrefix(line, "Max data size") && len(fields) > 4 && fields[3] == fmt.Sprint(512<<20)
}

// TestReader_LargeTable: a table of many parts is read whole, whatever order the parts come in, and without
// the race detector within the memory limit.
func TestReader_LargeTable(t *testing.T) {
	const n = 100_000
	sw := ovstest.Start(t, 1)
	flows := make([]ofctl.Flow, n)
	for i := range flows {
		addr := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 10<<24+uint32(i))))
		flows[i] = ofctl.Flow{Table: 31, Priority: 1, Match: ofctl.Match{EtherType: ofctl.EtherIPv4, NwSrc: netip.PrefixFrom(addr, 32)}}
	}
	commit(t, sw, flows)
	memory := filepath.Join(t.TempDir(), "status")
	t.Setenv(memoryFile, memory)
	began := time.Now()
	seen := map[ofctl.Match]int{}
	for _, f := range read(t, reader(t, "reader", sw.Management())) {
		seen[f.Match]++
	}
	t.Logf("%d flows in %s", n, time.Since(began).Round(time.Millisecond))
	status, err := os.ReadFile(memory)
	if err != nil {
		t.Fatal(err)
	}
	memoryOf := memoryLine.FindAllString(string(status), -1)
	t.Logf("memory of the reading process: %q", memoryOf)
	if !isRace && !slices.ContainsFunc(memoryOf, isLimit) {
		t.Errorf("the reading process has no limit of 512 MB: %q", memoryOf)
	}
	for i := range flows {
		if seen[flows[i].Match] != 1 {
			t.Fatalf("%s was read %d times", flows[i], seen[flows[i].Match])
		}
	}
}

// TestReader_Fails: a process that panics, hangs or finds no switch is an error, which names the cause.
func TestReader_Fails(t *testing.T) {
	dump := func(ctx context.Context, r *independent.Reader) error {
		return r.Dump(ctx, func(ofctl.Flow, error) error { return nil })
	}
	if err := dump(t.Context(), reader(t, "crash")); err == nil {
		t.Error("a process that panics is no error")
	}
	if err := dump(t.Context(), reader(t, "reader", "/nowhere")); err == nil || !strings.Contains(err.Error(), "/nowhere") {
		t.Errorf("without a switch: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	if err := dump(ctx, reader(t, "hang")); err == nil {
		t.Error("a process that hangs is no error")
	}
	hanging := reader(t, "hang")
	hanging.Timeout = 100 * time.Millisecond
	err := dump(t.Context(), hanging)
	if err == nil || !strings.Contains(err.Error(), "has not read all within 100ms") {
		t.Errorf("a process that takes too long: %v", err)
	}
	sw := ovstest.Start(t, 1)
	commit(t, sw, samples()[:3])
	stop := errors.New("enough")
	r := reader(t, "reader", sw.Management())
	if err := r.Dump(t.Context(), func(ofctl.Flow, error) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("a visit that fails: %v", err)
	}
}
