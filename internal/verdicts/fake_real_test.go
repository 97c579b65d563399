package verdicts

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/fake"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// TestTheFakeJudgesAsTheRealOne: the same random packets through the same flows, on both.
func TestTheFakeJudgesAsTheRealOne(t *testing.T) {
	sw := ovstest.Start(t, firstPod+pods)
	s := connect(t, sw)
	for seed := range 4 {
		g := policytest.New(uint64(5000 + seed))
		w := g.World(pods, 5)
		onOneNode(w)
		b := newBridge(t, w)
		flows := b.compiler.Flows()
		must(t, s.Commit(t.Context(), mods(ofctl.Add, flows)))
		for range 40 {
			p := g.Packet(pods)
			if !b.traceable(p) {
				continue
			}
			out, _ := b.port(p.To, true)
			probe, err := b.compiler.Probe(p)
			must(t, err)
			text := sw.AppCtl(t, "ofproto/trace", sw.Bridge, probe.Judged)
			if got, r := b.send(packetOf(p)); got != outputs(text, out) {
				t.Fatalf("%sseed %d: %+v: the fake lets it pass: %v\n%s\nthe real one:\n%s", leak(!got), seed, p, got, r, text)
			}
		}
		must(t, s.Commit(t.Context(), mods(ofctl.Delete, flows)))
	}
}

// TestTheFakeRefusesWhatTheRealOneRefuses.
func TestTheFakeRefusesWhatTheRealOneRefuses(t *testing.T) {
	s := connect(t, ovstest.Start(t, 2))
	conj := func(id uint32, clause, of uint8) ofctl.Action {
		return ofctl.Action{Kind: ofctl.Conjunction, Value: id, Clause: clause, Clauses: of}
	}
	tracked := ofctl.U32{Value: ofctl.CtTrk, Mask: ofctl.CtTrk | ofctl.CtInv}
	one := netip.MustParsePrefix("10.0.0.1/32")
	for name, f := range map[string]ofctl.Flow{
		"plain":                          {Match: ofctl.Match{EtherType: ofctl.EtherIPv4, NwSrc: one}, Actions: []ofctl.Action{{Kind: ofctl.Output, Port: 1}}},
		"goto itself":                    {Table: 3, Actions: []ofctl.Action{{Kind: ofctl.GotoTable, Table: 3}}},
		"goto back":                      {Table: 3, Actions: []ofctl.Action{{Kind: ofctl.GotoTable, Table: 2}}},
		"goto on":                        {Table: 3, Actions: []ofctl.Action{{Kind: ofctl.GotoTable, Table: 4}}},
		"original tuple":                 {Match: ofctl.Match{EtherType: ofctl.EtherIPv4, CtState: tracked, CtNwSrc: one}},
		"original tuple, not tracked":    {Match: ofctl.Match{EtherType: ofctl.EtherIPv4, CtNwSrc: one}},
		"original tuple, maybe invalid":  {Match: ofctl.Match{EtherType: ofctl.EtherIPv4, CtState: ofctl.U32{Value: ofctl.CtTrk, Mask: ofctl.CtTrk}, CtNwSrc: one}},
		"original port":                  {Match: ofctl.Match{EtherType: ofctl.EtherIPv4, CtState: tracked, CtProto: 6, CtTpDst: ofctl.U16{Value: 80, Mask: 0xffff}}},
		"original port, no protocol":     {Match: ofctl.Match{EtherType: ofctl.EtherIPv4, CtState: tracked, CtTpDst: ofctl.U16{Value: 80, Mask: 0xffff}}},
		"conjunction":                    {Match: ofctl.Match{EtherType: ofctl.EtherIPv4}, Actions: []ofctl.Action{conj(1, 1, 2)}},
		"conjunction of one":             {Match: ofctl.Match{EtherType: ofctl.EtherIPv4}, Actions: []ofctl.Action{conj(1, 1, 1)}},
		"conjunction and output":         {Match: ofctl.Match{EtherType: ofctl.EtherIPv4}, Actions: []ofctl.Action{conj(1, 1, 2), {Kind: ofctl.Output, Port: 1}}},
		"conjunction of too many":        {Match: ofctl.Match{EtherType: ofctl.EtherIPv4}, Actions: []ofctl.Action{conj(1, 1, 65)}},
		"the largest that fits":          {Match: ofctl.Match{EtherType: ofctl.EtherIPv4}, Actions: slices.Repeat([]ofctl.Action{conj(1, 1, 2)}, 4000)},
		"a connection that makes way":    {Match: ofctl.Match{EtherType: ofctl.EtherIPv4}, Actions: []ofctl.Action{{Kind: ofctl.Ct, Zone: 1, Table: 3, Commit: true, Force: true}}},
		"one that makes way for none":    {Match: ofctl.Match{EtherType: ofctl.EtherIPv4}, Actions: []ofctl.Action{{Kind: ofctl.Ct, Zone: 1, Table: 3, Force: true}}},
		"ICMP type without its protocol": {Match: ofctl.Match{EtherType: ofctl.EtherIPv4, ICMPType: ofctl.U8{Value: 8, Mask: 0xff}}},
	} {
		mod := []ofctl.FlowMod{{Command: ofctl.Add, Flow: f}}
		switchErr := s.Commit(t.Context(), mod)
		if fakeErr := fake.New().Commit(t.Context(), mod); (fakeErr == nil) != (switchErr == nil) {
			t.Errorf("%s: the fake says %v, the switch %v", name, fakeErr, switchErr)
		}
	}
}
