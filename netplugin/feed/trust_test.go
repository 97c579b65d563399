package feed

import (
	"testing"
	"time"
)

func TestMayObey(t *testing.T) {
	for _, c := range []struct {
		obeyed, offered uint64
		unelected, may  bool
	}{
		{0, 0, false, true}, {0, 7, false, true}, {7, 7, false, true}, {7, 8, false, true}, {7, 6, false, false}, {7, 6, true, false},
		{7, 0, false, false}, {7, 0, true, true}, {1, 0, false, false},
	} {
		if err := mayObey(c.obeyed, c.offered, c.unelected); (err == nil) != c.may {
			t.Errorf("after epoch %d, of %d, unelected %v: %v", c.obeyed, c.offered, c.unelected, err)
		}
	}
}

func TestTrust(t *testing.T) {
	const s = time.Second
	tr := welcomed(3, 10*s, 3*s)
	if !tr.holds(12*s) || tr.holds(13*s) {
		t.Error("a welcome counts from the hello, and for as long as it says")
	}
	one, two, three := tr.ask(11*s), tr.ask(12*s), tr.ask(13*s)
	for _, step := range []struct {
		number uint64
		valid  time.Duration
		until  time.Duration
		fails  bool
	}{
		{two, 3 * s, 15 * s, false},
		{one, 9 * s, 15 * s, false}, // late, and of a question that a later one has answered
		{two, 9 * s, 15 * s, false}, // twice
		{three, s, 15 * s, false},   // takes nothing back
		{three + 1, s, 15 * s, true},
		{0, s, 15 * s, true},
	} {
		if err := tr.answered(step.number, step.valid); (err != nil) != step.fails || tr.until != step.until {
			t.Errorf("answer to %d of %s: until %s, %v; want %s", step.number, step.valid, tr.until, err, step.until)
		}
	}
	for i := range 3 * mostBeats {
		tr.ask(time.Duration(100+i) * s)
	}
	if len(tr.asked) != mostBeats {
		t.Errorf("%d beats are kept", len(tr.asked))
	}
	if tr := welcomed(0, 0, 0); !tr.holds(1000 * s) {
		t.Error("a netmaster without an election is not obeyed")
	}
}

func TestRetries(t *testing.T) {
	var r retries
	now := time.Unix(1000, 0)
	var waits []time.Duration
	for range 9 {
		w := r.failed(time.Time{}, now, 3, false)
		waits, now = append(waits, w), now.Add(w)
	}
	if waits[0] != firstRetry || waits[2] != firstRetry || waits[3] != 2*firstRetry || waits[8] != 4*firstRetry {
		t.Errorf("three servers are asked after %v: each once soon", waits)
	}
	for range 60 {
		w := r.failed(time.Time{}, now, 3, false)
		if w > soonRetry && now.Sub(r.since) < takeOver {
			t.Errorf("%s after %s of search: another may be about to lead", w, now.Sub(r.since))
		}
		now = now.Add(w)
	}
	if w := r.failed(time.Time{}, now, 3, false); w != lastRetry || r.patience() != firstPatience {
		t.Errorf("after long: %s, patience %s: who is refused at once need not wait longer", w, r.patience())
	}
	for range 8 {
		r.failed(time.Time{}, now, 3, true)
	}
	if r.patience() != lastPatience {
		t.Errorf("where nobody answers: patience %s", r.patience())
	}
	if r.reach() != lastPatience {
		t.Errorf("where nobody stood still a connection may take %s", r.reach())
	}
	s := retries{}
	s.ended(now, errSilent)
	for i, want := range []time.Duration{silentReach, silentReach, 2 * silentReach, 2 * silentReach, 4 * silentReach} {
		s.failed(time.Time{}, now, 1, i > 0)
		if s.ended(time.Time{}, errLate); s.reach() != want {
			t.Errorf("after %d connections to who stands still one may take %s, want %s", i, s.reach(), want)
		}
	}
	if s.ended(now, errLate); s.reach() != s.patience() {
		t.Error("who was served since still hurries")
	}
	if w := r.failed(now.Add(-time.Minute), now, 3, false); w != firstRetry {
		t.Errorf("after a session of a minute: %s", w)
	}
}
