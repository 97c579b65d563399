package pipeline

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
)

func withServices() Config {
	cfg := withEverything()
	cfg.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	cfg.Answers = true
	cfg.Services = Services{
		Translated: true,
		Held:       true,
		Node:       "n1",
		NodeAddrs:  []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")},
	}
	return cfg
}

// aService returns a Service with frontends of every kind and so many endpoints.
func aService(name string, endpoints int) (*service.Service, []*service.Slice) {
	s := &service.Service{
		Namespace:       "ns",
		Name:            name,
		ClusterIPs:      []netip.Addr{netip.MustParseAddr("10.96.0.7")},
		ExternalIPs:     []netip.Addr{netip.MustParseAddr("203.0.113.1")},
		LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("203.0.113.2")},
		SourceRanges:    []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		Ports: []service.Port{
			{Name: "tcp", Protocol: policy.TCP, Port: 80, NodePort: 30080},
			{Name: "udp", Protocol: policy.UDP, Port: 53},
		},
	}
	slice := &service.Slice{Service: name, Ports: []service.SlicePort{
		{Name: "tcp", Protocol: policy.TCP, Port: 8080},
		{Name: "udp", Protocol: policy.UDP, Port: 5353},
	}}
	for i := range endpoints {
		a := netip.AddrFrom4([4]byte{10, 250, byte(i >> 8), byte(i)})
		slice.Endpoints = append(slice.Endpoints, service.Endpoint{Address: a, Ready: true, Serving: true})
	}
	return s, []*service.Slice{slice}
}

// TestServices_NothingIsThereUnlessTheSwitchTranslates.
func TestServices_NothingIsThereUnlessTheSwitchTranslates(t *testing.T) {
	cfg := withServices()
	cfg.Services.Translated = false
	plain := cfg
	plain.Services = Services{}
	c, without := New(cfg, nil), New(plain, nil)
	c.PutService(aService("a", 3))
	if got, want := asTable(c.Flows()), asTable(without.Flows()); !equalTables(got, want) {
		report(t, 0, want, got)
	}
	if c.SetConfig(withServices()); c.Count() <= without.Count() {
		t.Error("no flows of Services, though the switch translates")
	}
	c.SetConfig(cfg)
	if got, want := asTable(c.Flows()), asTable(without.Flows()); !equalTables(got, want) {
		report(t, 1, want, got)
	}
}

// TestServices_NothingLeavesConntrackUnevaluated: where a visit to conntrack goes on, each flow takes valid packets of
// the zones that are visited alone. Behind the last visit of replies and of hairpins, each wants one of its direction.
func TestServices_NothingLeavesConntrackUnevaluated(t *testing.T) {
	cfg := withServices()
	c := New(cfg, nil)
	own := []netip.Addr{netip.MustParseAddr("10.244.1.5")}
	c.PutEndpoint(LocalEndpoint{ID: "ns/a", Port: 7, MAC: ofctl.MAC{2, 1}, Addresses: own})
	c.PutService(aService("a", 3))
	visited, visits := map[uint8][]uint16{}, 0
	for _, f := range c.Flows() {
		for i, a := range f.Actions {
			if a.Kind != ofctl.Ct {
				continue
			}
			visits++
			if visited[a.Table] = append(visited[a.Table], a.Zone); a.Table == ofctl.NoTable || i != len(f.Actions)-1 {
				t.Errorf("after conntrack, and not looked at: %s", &f)
			}
		}
	}
	const valid = ofctl.CtTrk | ofctl.CtInv
	for _, f := range c.Flows() {
		zones := visited[f.Table]
		if len(zones) == 0 || len(f.Actions) == 0 {
			continue
		}
		state := f.Match.CtState
		if !slices.Contains(zones, f.Match.CtZone) || state.Mask&valid != valid || state.Value&valid != ofctl.CtTrk {
			t.Errorf("takes what conntrack of the zones %v has not found valid: %s", zones, &f)
		}
		if f.Table == TableServiceReturn && f.Match.CtState.Value&ofctl.CtRpl == 0 {
			t.Errorf("takes what is no reply: %s", &f)
		}
	}
	if visits < 25 {
		t.Errorf("only %d flows visit conntrack: nothing was shown", visits)
	}
}

// TestServices_NothingIsForTheNode: the tables of packets that the node translates are empty.
func TestServices_NothingIsForTheNode(t *testing.T) {
	cfg := withServices()
	cfg.Meters = 3
	own := []netip.Addr{netip.MustParseAddr("10.244.1.5")}
	for _, translated := range []bool{false, true} {
		cfg.Services.Translated = translated
		c := New(cfg, nil)
		c.PutEndpoint(LocalEndpoint{ID: "ns/a", Port: 7, MAC: ofctl.MAC{2, 1}, Addresses: own})
		flows := 0
		for _, f := range c.Flows() {
			if f.Table == TableServiceNew || f.Table == TableServiceReply {
				flows++
			}
		}
		if flows > 0 == translated {
			t.Errorf("the switch translates: %v; %d flows for packets that the node translates", translated, flows)
		}
	}
}

// TestServices_GotoLeadsOn: goto_table leads to a table of a higher number, or the switch refuses the flow.
func TestServices_GotoLeadsOn(t *testing.T) {
	c := New(withServices(), nil)
	own := []netip.Addr{netip.MustParseAddr("10.244.1.5")}
	c.PutEndpoint(LocalEndpoint{ID: "ns/a", Port: 7, MAC: ofctl.MAC{2, 1}, Addresses: own})
	for _, affinity := range []time.Duration{0, time.Hour} {
		s, all := aService(fmt.Sprint(affinity), 3)
		s.Affinity = affinity
		c.PutService(s, all)
	}
	for _, f := range c.Flows() {
		for _, a := range f.Actions {
			if a.Kind == ofctl.GotoTable && a.Table <= f.Table {
				t.Errorf("leads back: %s", &f)
			}
		}
	}
}

// TestServices_FlowsDoNotDependOnHistory: after random changes the flows are those of a compiler that has only seen the
// end, and its ids; and what Take returned leads there.
func TestServices_FlowsDoNotDependOnHistory(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		c := New(withServices(), nil)
		held := map[flowKey]ofctl.Flow{}
		put := map[string]int{}
		for range 30 {
			name := fmt.Sprint("s", r.IntN(4))
			if r.IntN(4) == 0 {
				c.RemoveService("ns/" + name)
				delete(put, name)
			} else {
				put[name] = r.IntN(6)
				c.PutService(aService(name, put[name]))
			}
			mods, _ := c.Take()
			for _, m := range mods {
				if held[keyOf(&m.Flow)] = m.Flow; m.Command == ofctl.Delete {
					delete(held, keyOf(&m.Flow))
				}
			}
		}
		again := New(withServices(), c.Assignments())
		for name, endpoints := range put {
			again.PutService(aService(name, endpoints))
		}
		want := asTable(again.Flows())
		if got := asTable(c.Flows()); !equalTables(got, want) {
			report(t, seed, want, got)
		}
		var switched []ofctl.Flow
		for _, f := range held {
			switched = append(switched, f)
		}
		if got := asTable(switched); !equalTables(got, want) {
			report(t, seed, want, got)
		}
	}
}

// TestServices_Ends: without an endpoint packets are answered, and one that has endpoints elsewhere alone drops them.
func TestServices_Ends(t *testing.T) {
	c := New(withServices(), nil)
	s, all := aService("a", 0)
	c.PutService(s, all)
	ends := func() (out []string) {
		for _, f := range c.Flows() {
			if f.Table == TableServiceFrontend && f.Match.NwDst == single(s.ClusterIPs[0]) {
				out = append(out, ofctl.ActionsString(f.Actions))
			}
		}
		return slices.Compact(out)
	}
	if got := ends(); !slices.Equal(got, []string{"goto_table:75"}) {
		t.Errorf("without endpoints: %v", got)
	}
	s, all = aService("a", 1)
	s.InternalLocal = true
	all[0].Endpoints[0].Node = "n2"
	c.PutService(s, all)
	if got := ends(); !slices.Equal(got, []string{"drop"}) {
		t.Errorf("endpoints elsewhere alone: %v", got)
	}
}

// TestServices_Refused: what is not translated is reported.
func TestServices_Refused(t *testing.T) {
	c := New(withServices(), nil)
	for _, x := range []struct {
		name, want string
		change     func(*service.Service, *service.Slice)
	}{
		{"an address of pods", "is an address of pods", func(s *service.Service, _ *service.Slice) {
			s.ExternalIPs = []netip.Addr{netip.MustParseAddr("10.244.1.9")}
		}},
		{"SCTP with another port", "does not translate ports of SCTP", func(s *service.Service, l *service.Slice) {
			s.Ports[0].Protocol, l.Ports[0].Protocol = policy.SCTP, policy.SCTP
		}},
	} {
		s, all := aService("a", 2)
		x.change(s, all[0])
		if problems := c.PutService(s, all); len(problems) != 1 || !strings.Contains(problems[0], x.want) {
			t.Errorf("%s: %q", x.name, problems)
		}
	}
	s, all := aService("a", 8000)
	if problems := c.PutService(s, all); len(problems) != 2 || !strings.Contains(problems[0], "7936 of them") {
		t.Errorf("8,000 endpoints: %q", problems)
	}
}

// TestServices_FlowsOfOneService: an update of an endpoint is no more than the slots that move, two flows an endpoint
// and protocol, and what affinity and fragments need.
func TestServices_FlowsOfOneService(t *testing.T) {
	for _, affinity := range []time.Duration{0, time.Hour} {
		c := New(withServices(), nil)
		none := c.Count()
		s, all := aService("a", 10)
		s.Affinity = affinity
		start := time.Now()
		c.PutService(s, all)
		took := time.Since(start)
		c.Take()
		flows := c.Count() - none
		s, all = aService("a", 11)
		s.Affinity = affinity
		c.PutService(s, all)
		mods, _ := c.Take()
		t.Logf("affinity %v: 10 endpoints, 7 frontends: %d flows in %v; one more endpoint: %d flow mods",
			affinity, flows, took, len(mods))
		if flows > 250 || len(mods) > 120 {
			t.Errorf("affinity %v: %d flows, %d flow mods for one more endpoint", affinity, flows, len(mods))
		}
	}
}

// tablesOf returns the endpoint that each slot leads to, of the pools of a Service of aService: of TCP, and of UDP.
func tablesOf(c *Compiler) map[flowKey]uint32 {
	out := map[flowKey]uint32{}
	for _, f := range c.Flows() {
		if f.Table != TableServiceSlot {
			continue
		}
		for _, a := range f.Actions {
			if a.Kind == ofctl.SetReg && a.Reg == regBackend {
				out[keyOf(&f)] = a.Value
			}
		}
	}
	return out
}

// TestServices_ManyEndpoints: each endpoint is used, evenly, and each slot of each table that an action can choose leads
// to one.
func TestServices_ManyEndpoints(t *testing.T) {
	for _, n := range []int{2, 10, 256, 257, 700} {
		for _, affinity := range []time.Duration{0, time.Hour} {
			c := New(withServices(), nil)
			s, all := aService("a", n)
			s.Affinity = affinity
			if problems := c.PutService(s, all); len(problems) > 0 {
				t.Errorf("%d endpoints: %q", n, problems)
			}
			slots, uses := tablesOf(c), map[uint32]int{}
			for _, endpoint := range slots {
				uses[endpoint]++
			}
			share := service.Slots(n) / n
			for endpoint, k := range uses {
				if k < share || k > share+1 {
					t.Errorf("%d endpoints: endpoint %d has %d slots, its share is %d", n, endpoint, k, share)
				}
			}
			if len(uses) != 2*n || len(slots) != 2*service.Slots(n) {
				t.Errorf("%d endpoints of two ports: %d are used, by %d slots", n, len(uses), len(slots))
			}
			for _, f := range c.Flows() {
				if f.Table == TableServiceChoice {
					chosen(t, &f, slots)
				}
			}
		}
	}
}

// chosen fails the test unless what a flow of a choice can choose leads to an endpoint.
func chosen(t *testing.T, f *ofctl.Flow, slots map[flowKey]uint32) {
	t.Helper()
	tables, among := []ofctl.U32{{}}, uint32(0)
	for _, a := range f.Actions {
		switch {
		case a.Kind == ofctl.Multipath && a.Reg == regTable:
			tables = nil
			for i := range a.Value {
				tables = append(tables, exactReg(i))
			}
		case a.Kind == ofctl.Multipath:
			among = a.Value
		case a.Kind == ofctl.Group:
			among = 1 << a.Value
		}
	}
	for _, table := range tables {
		for slot := range among {
			m := ofctl.Match{EtherType: f.Match.EtherType}
			m.Reg[regPool], m.Reg[regTable], m.Reg[regSlot] = f.Match.Reg[regPool], table, exactReg(slot)
			if _, there := slots[flowKey{TableServiceSlot, 50, m}]; !there {
				t.Fatalf("%s: slot %d of table %v leads nowhere", f, slot, table)
			}
		}
	}
}

// TestServices_OneEndpointMovesNoOther: when an endpoint comes or goes, no flow of another one changes, nor a choice or
// a frontend, but few slots: no open connection moves, because conntrack has its endpoint. The groups never change.
func TestServices_OneEndpointMovesNoOther(t *testing.T) {
	groups := ServiceGroups()
	for seed := range uint64(24) {
		r := rand.New(rand.NewPCG(seed, 3))
		n := 2 + r.IntN([]int{12, 100, 400}[seed%3])
		s, all := aService("a", n)
		if r.IntN(2) == 0 {
			s.Affinity = time.Hour
		}
		c := New(withServices(), nil)
		c.PutService(s, all)
		c.Take()
		before := tablesOf(c)
		gone := r.IntN(n)
		address := all[0].Endpoints[gone].Address
		for _, present := range []bool{false, true} {
			fewer := *all[0]
			fewer.Endpoints = slices.Clone(all[0].Endpoints)
			if !present {
				fewer.Endpoints = slices.Delete(fewer.Endpoints, gone, gone+1)
			}
			c.PutService(s, []*service.Slice{&fewer})
			mods, _ := c.Take()
			moved := 0
			for i := range mods {
				m := &mods[i]
				kind, _, _ := ParseCookie(m.Flow.Cookie)
				switch {
				case kind == KindSlot:
					moved++
				case service.Slots(n) != service.Slots(n-1):
				case kind == KindFrontend && n > 2:
					t.Errorf("seed %d: %d endpoints, one more or less: %s", seed, n, &m.Flow)
				case m.Flow.Table == TableServiceCommit && m.Flow.Match.NwDst != single(address):
					t.Errorf("seed %d: another endpoint changes: %s", seed, &m.Flow)
				}
			}
			if most := 12 + len(before)/3; service.Slots(n) == service.Slots(n-1) && moved > most {
				t.Errorf("seed %d: %d of %d slots move for one of %d endpoints", seed, moved, len(before), n)
			}
		}
		if after := tablesOf(c); len(after) != len(before) {
			t.Errorf("seed %d: %d slots, before %d", seed, len(after), len(before))
		}
		if !slices.EqualFunc(groups, ServiceGroups(), ofctl.SelectGroup.Equal) {
			t.Error("groups have changed")
		}
	}
}
