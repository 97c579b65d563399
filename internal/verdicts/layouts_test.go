package verdicts

import (
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/netplugin/datapath"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/fake"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// another is the same flows in another layout: all tables but the first are others, and so are the cookies.
func another(flows []ofctl.Flow, by uint8) []ofctl.Flow {
	flows = slices.Clone(flows)
	move := func(table uint8) uint8 {
		if table == 0 || table == ofctl.NoTable {
			return table
		}
		return table + by
	}
	for i := range flows {
		f := &flows[i]
		f.Table, f.Cookie = move(f.Table), f.Cookie^0xff<<48
		f.Actions = slices.Clone(f.Actions)
		for j := range f.Actions {
			f.Actions[j].Table = move(f.Actions[j].Table)
		}
	}
	return flows
}

// layouts is a switch that has the flows of one layout, and packets of connections that began there.
type layouts struct {
	*bridge
	old, now []ofctl.Flow
	sent     []fake.Packet
	passed   []bool
}

func newLayouts(t *testing.T, seed uint64, back bool) *layouts {
	t.Helper()
	g := policytest.New(seed)
	w := g.World(pods, 5)
	onOneNode(w)
	l := &layouts{bridge: newBridge(t, w)}
	l.old, l.now = another(l.compiler.Flows(), 100), l.compiler.Flows()
	if back {
		l.old, l.now = l.now, l.old
	}
	must(t, l.sw.Commit(t.Context(), append([]ofctl.FlowMod{{Command: ofctl.DeleteAll}}, mods(ofctl.Add, l.old)...)))
	for range 60 {
		if p := g.Packet(pods); l.traceable(p) {
			l.begin(p, uint16(1024+g.IntN(60000)))
		}
	}
	return l
}

// begin sends a request, and where that passes an answer.
func (l *layouts) begin(p policy.Packet, port uint16) {
	request := packetOf(p)
	request.SrcPort = port
	passes, _ := l.send(request)
	request.MidStream = passes
	l.sent, l.passed = append(l.sent, request), append(l.passed, passes)
	if passes {
		l.expect(request.Reply(), true, "the answer")
		l.sent, l.passed = append(l.sent, request.Reply()), append(l.passed, true)
	}
}

func (l *layouts) sameVerdicts(when string) {
	l.t.Helper()
	for i, p := range l.sent {
		l.expect(p, l.passed[i], when)
	}
}

// holds is what the switch has, by table.
func (l *layouts) holds() map[uint8]int {
	n := map[uint8]int{}
	_ = l.sw.Dump(context.Background(), func(f ofctl.Flow, _ error) error { n[f.Table]++; return nil })
	return n
}

func byTable(flows []ofctl.Flow) map[uint8]int {
	n := map[uint8]int{}
	for i := range flows {
		n[flows[i].Table]++
	}
	return n
}

func (l *layouts) compare() datapath.Difference {
	d, err := datapath.Compare(l.t.Context(), l.sw, l.now)
	must(l.t, err)
	return d
}

// TestStages_OtherLayoutIsAddedFirst: up and down, the new layout's flows come beside the old, and then the old go; every packet of
// every connection has the same verdict all the way, also where netplugin ends in the midst and begins anew.
func TestStages_OtherLayoutIsAddedFirst(t *testing.T) {
	passed := 0
	for seed := range uint64(6) {
		for ended := range 3 { // after so many stages
			l := newLayouts(t, seed, seed%2 == 1)
			d := l.compare()
			stages := d.Stages()
			if len(stages) != 2 || stages[0].Drained || !stages[1].Drained {
				t.Fatalf("%d stages", len(stages))
			}
			for i, s := range stages[:ended] {
				must(t, l.sw.Commit(t.Context(), s.Mods))
				l.sameVerdicts("after a stage")
				l.bothThere(i)
			}
			d = l.compare()
			if left := d.Stages(); ended == 1 && (len(left) != 1 || !left[0].Drained) {
				t.Errorf("begun anew between the two: %d stages, which wait for nobody", len(left))
			}
			for _, s := range d.Stages() {
				must(t, l.sw.Commit(t.Context(), s.Mods))
				l.sameVerdicts("begun anew")
			}
			if d := l.compare(); !d.Empty() {
				t.Errorf("%d flows are not as they should be", len(d.Mods))
			}
			for _, p := range l.passed {
				if p {
					passed++
				}
			}
		}
	}
	if passed < 100 {
		t.Errorf("only %d packets passed: nothing is shown", passed)
	}
}

// bothThere: what a packet may meet in the midst of either layout's tables is whole until the last stage.
func (l *layouts) bothThere(stage int) {
	l.t.Helper()
	want := byTable(l.now)
	if stage == 0 {
		maps.Copy(want, byTable(l.old))
	}
	have := l.holds()
	delete(want, 0)
	delete(have, 0)
	if !maps.Equal(have, want) {
		l.t.Errorf("after stage %d the tables hold %v, want %v", stage, have, want)
	}
}

// TestLayoutsWithTablesInCommon are replaced in one bundle: flows of both in one table would be neither layout.
func TestLayoutsWithTablesInCommon(t *testing.T) {
	l := newLayouts(t, 3, false)
	l.old = another(l.now, 10)
	must(t, l.sw.Commit(t.Context(), append([]ofctl.FlowMod{{Command: ofctl.DeleteAll}}, mods(ofctl.Add, l.old)...)))
	d := l.compare()
	stages := d.Stages()
	if len(stages) != 1 || stages[0].Drained {
		t.Fatalf("%d stages", len(stages))
	}
	must(t, l.sw.Commit(t.Context(), stages[0].Mods))
	l.sameVerdicts("after it")
	if d := l.compare(); !d.Empty() {
		t.Errorf("%d flows are not as they should be", len(d.Mods))
	}
}
