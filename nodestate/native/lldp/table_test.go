package lldp

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/nodestate/native/lldp/lldptest"
)

func heard(t testing.TB, name string, last byte, ttl time.Duration) Heard {
	t.Helper()
	h, err := Parse(lldptest.Switch(name, "1/1", last, ttl))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// For any history: who is known is exactly who was heard last less than its time to live ago and did not leave; what changed is said, and a
// refresh is no change.
func TestHistories(t *testing.T) {
	type last struct {
		name  string
		until time.Time
	}
	steps := 0
	for seed := range uint64(200) {
		d := rand.New(rand.NewPCG(seed, 1))
		var table Table
		now := time.Unix(1000, 0)
		model := map[string]last{}
		shown := func() (out []string) {
			for p := range 3 {
				for _, h := range table.Known(p) {
					out = append(out, fmt.Sprintf("%d %s %s", p, h.Neighbour[1].ChassisID, h.Neighbour[0].SystemName))
				}
			}
			slices.Sort(out)
			return out
		}
		var before []string
		check := func(what string, changed bool) {
			t.Helper()
			var want []string
			for key, l := range model {
				want = append(want, key+" "+l.name)
			}
			slices.Sort(want)
			if got := shown(); !slices.Equal(got, want) {
				t.Fatalf("seed %d, %s: known are %v, not %v", seed, what, got, want)
			}
			if changed == slices.Equal(before, want) {
				t.Fatalf("seed %d, %s: %v became %v, and a change was said: %v", seed, what, before, want, changed)
			}
			before = want
		}
		for step := range 300 {
			now = now.Add(time.Duration(d.IntN(90)) * time.Second)
			changed := table.Expire(now)
			for key, l := range model {
				if !now.Before(l.until) {
					delete(model, key)
				}
			}
			check(fmt.Sprintf("step %d, expired", step), changed)
			h := heard(t, "tor-"+pick(d, "a", "b"), byte(d.IntN(MostNeighbours/2)), time.Duration(d.IntN(4)*60)*time.Second)
			p := d.IntN(3)
			changed, err := table.Hear(p, h, now)
			if errors.Is(err, ErrRestless) {
				break // a test of its own
			} else if err != nil {
				t.Fatal(err)
			}
			key := fmt.Sprintf("%d %s", p, h.Neighbour[1].ChassisID)
			if model[key] = (last{h.Neighbour[0].SystemName, now.Add(h.TTL)}); h.TTL == 0 {
				delete(model, key)
			}
			check(fmt.Sprintf("step %d, heard", step), changed)
			if next := table.Next(); next.IsZero() != (len(model) == 0) || !next.IsZero() && !next.After(now) {
				t.Fatalf("seed %d, step %d: the next to go goes at %v, with %d known", seed, step, next, len(model))
			}
			steps++
		}
	}
	if steps < 50*200 {
		t.Errorf("only %d steps were made: they test too little", steps)
	}
}

func pick(d *rand.Rand, from ...string) string { return from[d.IntN(len(from))] }

func TestRefreshIsNoChange(t *testing.T) {
	var table Table
	now := time.Unix(0, 0)
	for i := range 1000 {
		now = now.Add(30 * time.Second)
		if changed, err := table.Hear(1, heard(t, "tor", 1, 2*time.Minute), now); changed != (i == 0) || err != nil {
			t.Fatalf("the %dth time: %v, %v", i, changed, err)
		}
		if table.Expire(now.Add(29 * time.Second)) {
			t.Fatal("forgotten while it was heard")
		}
	}
	if table.Expire(now.Add(2*time.Minute - 1)) {
		t.Error("forgotten too early")
	}
	if !table.Expire(now.Add(2*time.Minute)) || len(table.Known(1)) > 0 {
		t.Error("not forgotten")
	}
}

// A port with more neighbours than are kept keeps those that it has.
func TestFull(t *testing.T) {
	var table Table
	now := time.Unix(0, 0)
	for i := range byte(MostNeighbours) {
		if _, err := table.Hear(1, heard(t, "tor", i, time.Minute), now); err != nil {
			t.Fatal(err)
		}
	}
	if changed, err := table.Hear(1, heard(t, "intruder", 99, time.Minute), now); changed || !errors.Is(err, ErrFull) {
		t.Errorf("one more: %v, %v", changed, err)
	}
	if changed, err := table.Hear(1, heard(t, "tor-5", 5, time.Minute), now); !changed || err != nil {
		t.Errorf("one that is known, renamed: %v, %v", changed, err)
	}
	if changed, err := table.Hear(2, heard(t, "tor", 99, time.Minute), now); !changed || err != nil {
		t.Errorf("another port: %v, %v", changed, err)
	}
	if len(table.Known(1)) != MostNeighbours {
		t.Errorf("%d are known", len(table.Known(1)))
	}
	table.Expire(now.Add(time.Minute))
	if changed, err := table.Hear(1, heard(t, "intruder", 99, time.Minute), now.Add(time.Minute)); !changed || err != nil {
		t.Errorf("once there is room: %v, %v", changed, err)
	}
}

// Who tells something else with every frame, or comes and goes, changes what is known, and so what is written, once a minute.
func TestRestless(t *testing.T) {
	for name, frame := range map[string]func(i int) Heard{
		"renamed":        func(i int) Heard { return heard(t, fmt.Sprint("tor-", i), 1, time.Hour) },
		"others":         func(i int) Heard { return heard(t, "tor", byte(i), time.Second) },
		"comes and goes": func(i int) Heard { return heard(t, "tor", 1, time.Duration(i%2)*time.Hour) },
		"two in turns":   func(i int) Heard { return heard(t, fmt.Sprint("tor-", i%2), byte(i%2), time.Duration(i%3)*time.Hour) },
	} {
		var table Table
		now, changes := time.Unix(0, 0), 0
		const hours, perHour = 10, 3600
		for i := range hours * perHour {
			now = now.Add(time.Second)
			if table.Expire(now) {
				changes++
			}
			if changed, _ := table.Hear(1, frame(i), now); changed {
				changes++
			}
		}
		if most := 2 * (changesAtOnce + hours*60); changes > most || changes < hours*60 {
			t.Errorf("%s: %d changes in %d hours, at most %d", name, changes, hours, most)
		}
	}
	var table Table
	now := time.Unix(0, 0)
	for i := range changesAtOnce + 10 {
		_, _ = table.Hear(1, heard(t, fmt.Sprint("tor-", i), 1, time.Minute), now)
	}
	_, _ = table.Hear(1, heard(t, "tor-other", 1, time.Minute), now.Add(30*time.Second))
	if table.Expire(now.Add(89 * time.Second)); len(table.Known(1)) != 1 {
		t.Error("a neighbour that changes too often is forgotten while it is there")
	}
}
