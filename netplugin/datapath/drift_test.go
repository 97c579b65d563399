package datapath

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl"
)

// memory is a switch that keeps flows by what identifies them, takes a bundle whole or not at all, and refuses what it is told
// to.
type memory struct {
	flows   map[Key]ofctl.Flow
	refuses map[Key]bool
	strange int  // flows that carry what cannot be read
	twice   bool // each flow is told twice
	bundles int
	broken  error
}

func newMemory(flows ...ofctl.Flow) *memory {
	m := &memory{flows: map[Key]ofctl.Flow{}, refuses: map[Key]bool{}}
	for _, f := range flows {
		m.flows[KeyOf(&f)] = f
	}
	return m
}

func (m *memory) Commit(_ context.Context, mods []ofctl.FlowMod) error {
	m.bundles++
	if m.broken != nil {
		return m.broken
	}
	next, strange := maps.Clone(m.flows), m.strange
	for i := range mods {
		f := mods[i].Flow
		switch mods[i].Command {
		case ofctl.DeleteAll:
			clear(next)
			strange = 0
		case ofctl.Delete:
			delete(next, KeyOf(&f))
		default:
			if m.refuses[KeyOf(&f)] {
				return fmt.Errorf("commit: %w", &ofctl.SwitchError{Flow: &f})
			}
			if _, there := next[KeyOf(&f)]; there || mods[i].Command == ofctl.Add {
				next[KeyOf(&f)] = f
			}
		}
	}
	m.flows, m.strange = next, strange
	return nil
}

func (m *memory) Dump(_ context.Context, visit func(ofctl.Flow, error) error) error {
	for range m.strange {
		if err := visit(ofctl.Flow{}, errors.New("an action that nobody knows")); err != nil {
			return err
		}
	}
	for _, f := range m.flows {
		f.Packets, f.Bytes = 7, 700
		for range map[bool]int{false: 1, true: 2}[m.twice] {
			if err := visit(f, nil); err != nil {
				return err
			}
		}
	}
	return m.broken
}

func flow(table uint8, priority uint16, port uint32, to uint8) ofctl.Flow {
	return ofctl.Flow{Table: table, Priority: priority, Cookie: 0xf1, Match: ofctl.Match{InPort: port}, Actions: []ofctl.Action{{Kind: ofctl.GotoTable, Table: to}}}
}

func wanted() []ofctl.Flow {
	return []ofctl.Flow{{Table: 0, Priority: 0, Cookie: 0xf1}, flow(0, 10, 1, 5), flow(0, 10, 2, 5), flow(5, 10, 1, 9)}
}

func change(f func(*ofctl.Flow)) func(*memory) {
	return func(m *memory) {
		w := wanted()[1]
		f(&w)
		m.flows[KeyOf(&w)] = w
	}
}

// Each way to drift is counted for what it is, and mended by as many mods; the packets that a flow has counted are no drift.
func TestDrift(t *testing.T) {
	for name, test := range map[string]struct {
		drift                         func(*memory)
		missing, changed, extra, mods int
	}{
		"none":                 {func(*memory) {}, 0, 0, 0, 0},
		"missing":              {func(m *memory) { w := wanted(); delete(m.flows, KeyOf(&w[1])) }, 1, 0, 0, 1},
		"all missing":          {func(m *memory) { clear(m.flows) }, 4, 0, 0, 4},
		"other actions":        {change(func(f *ofctl.Flow) { f.Actions = []ofctl.Action{{Kind: ofctl.GotoTable, Table: 50}} }), 0, 1, 0, 1},
		"an action more":       {change(func(f *ofctl.Flow) { f.Actions = slices.Repeat(f.Actions, 2) }), 0, 1, 0, 1},
		"no actions":           {change(func(f *ofctl.Flow) { f.Actions = nil }), 0, 1, 0, 1},
		"a foreign cookie":     {change(func(f *ofctl.Flow) { f.Cookie = 0xbad }), 0, 1, 0, 1},
		"extra, by priority":   {change(func(f *ofctl.Flow) { f.Priority = 65535 }), 0, 0, 1, 1},
		"extra, by match":      {change(func(f *ofctl.Flow) { f.Match.EtherType = 0x800 }), 0, 0, 1, 1},
		"extra, foreign table": {change(func(f *ofctl.Flow) { f.Table, f.Cookie = 200, 0 }), 0, 0, 1, 1},
		"moved": {func(m *memory) {
			w := wanted()
			delete(m.flows, KeyOf(&w[1]))
			w[1].Table = 7
			m.flows[KeyOf(&w[1])] = w[1]
		}, 1, 0, 1, 2},
		"told twice":          {func(m *memory) { m.twice = true }, 0, 0, 0, 0},
		"strange":             {func(m *memory) { m.strange = 2 }, 0, 0, 2, 5},
		"strange and missing": {func(m *memory) { clear(m.flows); m.strange = 1 }, 0, 0, 1, 5},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory(wanted()...)
			test.drift(m)
			d, err := Compare(t.Context(), m, wanted())
			if err != nil || d.Missing != test.missing || d.Changed != test.changed || d.Extra != test.extra || len(d.Mods) != test.mods || d.Empty() != (test.mods == 0) {
				t.Fatalf("found %+v, %v", d, err)
			}
			if refused, err := CommitAll(t.Context(), m, d.Mods, never); err != nil || len(refused) > 0 || m.bundles != 1 {
				t.Errorf("refused %v, error %v in %d bundles", refused, err, m.bundles)
			}
			if d, err := Compare(t.Context(), m, wanted()); err != nil || !d.Empty() {
				t.Errorf("mended, and yet %+v, %v", d, err)
			}
		})
	}
}

func never(*ofctl.Flow) Without  { return Fails }
func always(*ofctl.Flow) Without { return DeniesMore }

// What is missing comes before what is too much goes: at no instant is there less than both tables have in common.
func TestAddsComeFirst(t *testing.T) {
	d, err := Compare(t.Context(), newMemory(flow(0, 99, 1, 5), flow(0, 98, 1, 5)), wanted())
	if err != nil {
		t.Fatal(err)
	}
	first := slices.IndexFunc(d.Mods, func(m ofctl.FlowMod) bool { return m.Command == ofctl.Delete })
	if first != 4 || len(d.Mods) != 6 {
		t.Errorf("the first deletion is mod %d of %d", first, len(d.Mods))
	}
}

// From any table to any other.
func TestDrift_RandomIsRepaired(t *testing.T) {
	some := func(r *rand.Rand) (out []ofctl.Flow) {
		for i := range 40 {
			if f := flow(uint8(i%3), uint16(i%5), uint32(i), uint8(10+r.IntN(2))); r.IntN(2) == 0 {
				f.Cookie = r.Uint64N(2)
				out = append(out, f)
			}
		}
		return out
	}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		m, want := newMemory(some(r)...), some(r)
		d, err := Compare(t.Context(), m, want)
		if err == nil {
			_, err = CommitAll(t.Context(), m, d.Mods, never)
		}
		if err != nil || len(m.flows) != len(want) || d.Missing+d.Changed+d.Extra != len(d.Mods) {
			t.Fatalf("seed %d: %v; %+v", seed, err, d)
		}
		if again, err := Compare(t.Context(), m, want); err != nil || !again.Empty() {
			t.Fatalf("seed %d: %+v, %v", seed, again, err)
		}
	}
}

func TestASwitchThatCannotBeRead(t *testing.T) {
	m := newMemory()
	m.broken = errors.New("connection reset")
	if d, err := Compare(t.Context(), m, wanted()); !errors.Is(err, m.broken) || !d.Empty() || d.Missing > 0 {
		t.Errorf("half a dump was taken for the whole: %+v, %v", d, err)
	}
	if refused, err := CommitAll(t.Context(), m, nil, always); !errors.Is(err, m.broken) || len(refused) > 0 || m.bundles != 1 {
		t.Errorf("refused %v, error %v in %d bundles", refused, err, m.bundles)
	}
}

func adds(flows []ofctl.Flow) (out []ofctl.FlowMod) {
	for _, f := range flows {
		out = append(out, ofctl.FlowMod{Command: ofctl.Add, Flow: f})
	}
	return out
}

// Refused flows that could only allow are taken away, also where an older version of them was in force; the rest goes in.
func TestRefusalsTakeAwayAndGoOn(t *testing.T) {
	w := wanted()
	m := newMemory(w[1])
	m.refuses[KeyOf(&w[1])], m.refuses[KeyOf(&w[3])] = true, true
	mods := adds(w)
	refused, err := CommitAll(t.Context(), m, mods, always)
	if err != nil || len(refused) != 2 || m.bundles != 3 {
		t.Fatalf("refused %v, error %v in %d bundles", refused, err, m.bundles)
	}
	var why *ofctl.SwitchError
	for i, f := range []ofctl.Flow{w[1], w[3]} {
		if KeyOf(&refused[i].Flow) != KeyOf(&f) || !errors.As(refused[i].Err, &why) {
			t.Errorf("refusal %d: %+v", i, refused[i])
		}
		if _, there := m.flows[KeyOf(&f)]; there {
			t.Errorf("%v is in force", f)
		}
	}
	if len(m.flows) != 2 {
		t.Errorf("in force: %v", m.flows)
	}
	if !slices.EqualFunc(mods, adds(w), func(a, b ofctl.FlowMod) bool { return a.Command == b.Command }) {
		t.Error("the caller's mods were changed")
	}
}

// One that isolates is refused after others were given up: nothing of the bundle is in force.
func TestARefusalThatOpensFailsAll(t *testing.T) {
	w := wanted()
	m := newMemory(w[2])
	m.refuses[KeyOf(&w[1])], m.refuses[KeyOf(&w[3])] = true, true
	refused, err := CommitAll(t.Context(), m, adds(w), func(f *ofctl.Flow) Without { return map[bool]Without{true: DeniesMore}[f.Table == 0] })
	if err == nil || !strings.Contains(err.Error(), "refused") || len(refused) != 1 {
		t.Errorf("refused %v, error %v", refused, err)
	}
	if len(m.flows) != 1 {
		t.Errorf("in force: %v", m.flows)
	}
}

// A wipe is a wipe, even if the flow that it looks like (table 0, priority 0, any packet) is refused.
func TestARefusedDefaultKeepsTheWipe(t *testing.T) {
	w := wanted()
	m := newMemory(flow(9, 9, 9, 10))
	m.strange = 1
	m.refuses[KeyOf(&w[0])] = true
	d, err := Compare(t.Context(), m, w)
	if err != nil {
		t.Fatal(err)
	}
	refused, err := CommitAll(t.Context(), m, d.Mods, always)
	if err != nil || len(refused) != 1 || len(m.flows) != 3 || m.strange != 0 {
		t.Errorf("refused %v, error %v; in force: %v and %d strange ones", refused, err, m.flows, m.strange)
	}
}

// A switch that refuses everything is given up.
func TestRefusalsEnd(t *testing.T) {
	m := newMemory()
	var flows []ofctl.Flow
	for i := range uint32(2 * maxRefused) {
		f := flow(0, 1, i+1, 5)
		m.refuses[KeyOf(&f)] = true
		flows = append(flows, f)
	}
	if refused, err := CommitAll(t.Context(), m, adds(flows), always); err == nil || len(refused) != maxRefused || m.bundles != maxRefused+1 || len(m.flows) > 0 {
		t.Errorf("%d refused, error %v in %d bundles", len(refused), err, m.bundles)
	}
	// an error about a flow that was never sent, or about none
	for _, f := range []*ofctl.Flow{nil, {Table: 99}} {
		m = newMemory()
		m.broken = &ofctl.SwitchError{Flow: f}
		if refused, err := CommitAll(t.Context(), m, adds(flows), always); err == nil || len(refused) > 0 || m.bundles != 1 {
			t.Errorf("refused %v, error %v in %d bundles", refused, err, m.bundles)
		}
	}
}

// However many flows that only count a switch refuses, the others are in force after few bundles; those of them that it would take are
// left out too where it refuses many.
func TestWhatOnlyCountsNeverFailsTheRest(t *testing.T) {
	for refuses, bundles := range map[int]int{0: 1, 3: 4, maxUncounted: maxUncounted + 1, 40 * maxUncounted: maxUncounted + 2} {
		m := newMemory()
		flows := wanted()
		judging := len(flows)
		for i := range 50 * maxUncounted {
			f := flow(37, 1, uint32(i+1), 5)
			m.refuses[KeyOf(&f)] = i < refuses
			flows = append(flows, f)
		}
		left := refuses
		if refuses > maxUncounted {
			left = 50 * maxUncounted
		}
		refused, err := CommitAll(t.Context(), m, adds(flows), func(f *ofctl.Flow) Without { return map[bool]Without{true: CountsLess}[f.Table == 37] })
		if err != nil || len(refused) != left || m.bundles != bundles || len(m.flows) != judging+50*maxUncounted-left {
			t.Errorf("of %d refused, %d are left out in %d bundles, want %d in %d; %d are in force (%v)", refuses, len(refused), m.bundles, left, bundles, len(m.flows), err)
		}
	}
}

// TestCommitAll_LeavesOutServicesByTable: of a table with many refused flows of Services all such flows are left out,
// and those of other tables stay.
func TestCommitAll_LeavesOutServicesByTable(t *testing.T) {
	for refuses, bundles := range map[int]int{0: 1, 3: 4, maxRejecting: maxRejecting + 1, 300: maxRejecting + 2} {
		m := newMemory()
		flows := wanted()
		for i := range 300 {
			refused, other := flow(22, 1, uint32(i+1), 40), flow(23, 1, uint32(i+1), 40)
			m.refuses[KeyOf(&refused)] = i < refuses
			flows = append(flows, refused, other)
		}
		left := refuses
		if refuses > maxRejecting {
			left = 300
		}
		refused, err := CommitAll(t.Context(), m, adds(flows), func(f *ofctl.Flow) Without {
			if f.Table == 22 || f.Table == 23 {
				return RejectsMore
			}
			return Fails
		})
		if err != nil || len(refused) != left || m.bundles != bundles || len(m.flows) != len(flows)-left {
			t.Errorf("of %d refused, %d are left out in %d bundles, want %d in %d; %d are in force (%v)",
				refuses, len(refused), m.bundles, left, bundles, len(m.flows), err)
		}
	}
}
