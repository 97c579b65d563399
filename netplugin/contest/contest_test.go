package contest

import (
	"slices"
	"strconv"
	"testing"
	"time"
)

var (
	start = time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	rule  = Object{"rule", "59"}
)

// repairsWithin lets another program change an object every interval for some time. It returns the times of repairs,
// of which each comes as soon as the tracker allows it, and the numbers to log.
func repairsWithin(t *Tracker, o Object, interval, limit time.Duration) (at []time.Duration, logged []int) {
	for now := start; now.Sub(start) < limit; now = now.Add(interval) {
		if t.Postpone(o, now) {
			continue
		}
		at = append(at, now.Sub(start))
		if n := t.AddRepair(o, now); n > 0 {
			logged = append(logged, n)
		}
	}
	return at, logged
}

// TestTracker_Pauses: the pause between repairs of an object that is changed each time grows to 30 s, and there is one
// log line a minute, which counts all repairs.
func TestTracker_Pauses(t *testing.T) {
	var tracker Tracker
	at, logged := repairsWithin(&tracker, rule, 100*time.Millisecond, 5*time.Minute)
	var gaps []time.Duration
	for i := range at[1:] {
		gaps = append(gaps, at[i+1]-at[i])
	}
	want := slices.Repeat([]time.Duration{100 * time.Millisecond}, minRepairs-1)
	for _, s := range []int{1, 2, 4, 8, 16, 30, 30, 30, 30, 30, 30, 30} {
		want = append(want, time.Duration(s)*time.Second)
	}
	if !slices.Equal(gaps[:len(want)], want) {
		t.Errorf("gaps %v, want %v", gaps, want)
	}
	if len(logged) != 5 {
		t.Errorf("%d log lines %v in 5 minutes, want 5", len(logged), logged)
	}
	end := start.Add(5 * time.Minute)
	if got := tracker.Contested(end, 9); !slices.Equal(got, []Object{rule}) {
		t.Errorf("contested: %v", got)
	}
	if due := tracker.Due(end); due <= 0 || due > MaxPause {
		t.Errorf("the next repair is due in %v", due)
	}
}

// TestTracker_Rare: changes that are seconds apart are repaired at once each time, and are no contest.
func TestTracker_Rare(t *testing.T) {
	var tracker Tracker
	interval := maxGap + time.Second
	at, _ := repairsWithin(&tracker, rule, interval, 100*interval)
	if len(at) != 100 {
		t.Errorf("%d repairs of 100", len(at))
	}
	if got := tracker.Contested(start.Add(at[99]), 9); got != nil {
		t.Errorf("contested: %v", got)
	}
	if due := tracker.Due(start.Add(at[99])); due != MaxPause {
		t.Errorf("a repair is due in %v, though none waits", due)
	}
}

// TestTracker_Ends: after the other program has stopped, the object is not contested, and the next change of it is
// repaired at once.
func TestTracker_Ends(t *testing.T) {
	var tracker Tracker
	at, _ := repairsWithin(&tracker, rule, 100*time.Millisecond, time.Minute)
	last := start.Add(at[len(at)-1])
	other := Object{"rule", "60"}
	if tracker.Postpone(other, last) || tracker.AddRepair(other, last) != 1 {
		t.Error("another object waits, or is not logged")
	}
	later := last.Add(MaxPause + maxGap + time.Second)
	if got := tracker.Contested(later, 9); got != nil || tracker.Postpone(rule, later) {
		t.Errorf("contested: %v", got)
	}
	tracker.AddRepair(rule, later)
	if tracker.Postpone(rule, later) {
		t.Error("the repair after the first change waits")
	}
	tracker.AddRepair(other, later.Add(time.Hour))
	if len(tracker.objects) != 1 {
		t.Errorf("%d objects are kept", len(tracker.objects))
	}
}

// TestTracker_Contested: the list is sorted and bounded.
func TestTracker_Contested(t *testing.T) {
	var tracker Tracker
	objects := []Object{{"route", "b"}, {"address", "z"}, {"route", "a"}}
	for range minRepairs {
		for _, o := range objects {
			tracker.AddRepair(o, start)
		}
	}
	want := []Object{{"address", "z"}, {"route", "a"}}
	if got := tracker.Contested(start, 2); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestTracker_TakeSuppressed: repairs without a log line are returned when the last line is a minute old, once.
func TestTracker_TakeSuppressed(t *testing.T) {
	var tracker Tracker
	for i := range 4 {
		tracker.AddRepair(rule, start.Add(time.Duration(i)*10*time.Second))
	}
	if got := tracker.TakeSuppressed(start.Add(logInterval - 1)); len(got) != 0 {
		t.Errorf("%v within a minute", got)
	}
	if got := tracker.TakeSuppressed(start.Add(logInterval)); len(got) != 1 || got[rule] != 3 {
		t.Errorf("%v after a minute, want 3 repairs of %v", got, rule)
	}
	if got := tracker.TakeSuppressed(start.Add(2 * logInterval)); len(got) != 0 {
		t.Errorf("%v again", got)
	}
}

// TestTracker_Contest: an object is contested at once, until it has not been repaired for some time.
func TestTracker_Contest(t *testing.T) {
	var tracker Tracker
	tracker.Contest(rule, start)
	if !tracker.IsContested(rule, start.Add(maxGap)) {
		t.Error("not contested")
	}
	if tracker.IsContested(rule, start.Add(maxGap+1)) {
		t.Error("contested for good")
	}
}

// TestTracker_DropsOncePerInterval: repairs search for expired objects once per dropInterval at most. Their cost does
// not grow with the number of objects.
func TestTracker_DropsOncePerInterval(t *testing.T) {
	const (
		count  = 3000
		step   = 10 * time.Millisecond // between two repairs
		expiry = MaxPause + logInterval
	)
	var tracker Tracker
	for i := range count {
		tracker.AddRepair(Object{"route", strconv.Itoa(i)}, start.Add(time.Duration(i)*step))
	}
	searches := 0
	for now := start.Add(expiry); now.Before(start.Add(expiry + count*step + 2*dropInterval)); now = now.Add(step) {
		before := len(tracker.objects)
		tracker.AddRepair(rule, now)
		if len(tracker.objects) < before {
			searches++
		}
	}
	if limit := int(count*step/dropInterval) + 1; searches > limit {
		t.Errorf("%d searches deleted objects, want at most %d", searches, limit)
	}
	if len(tracker.objects) != 1 {
		t.Errorf("%d objects are kept", len(tracker.objects))
	}
}

// TestTracker_Programs: an object keeps the first two programs that changed it, each with what started it once that is
// known, until a while after the last repair or change.
func TestTracker_Programs(t *testing.T) {
	var tracker Tracker
	for _, program := range []string{
		"iptables-nft", "ip", "ip, started by sh", "ip", "nft", "iptables-nft, started by foo",
	} {
		tracker.AddProgram(rule, program, start)
		if program == "ip" && len(tracker.Programs(rule)) != 2 {
			t.Errorf("programs %q behind %s", tracker.Programs(rule), program)
		}
	}
	want := []string{"ip, started by sh", "iptables-nft, started by foo"}
	if tracker.IsContested(rule, start) || len(tracker.TakeSuppressed(start)) > 0 || tracker.Due(start) != MaxPause {
		t.Error("a change alone counts as a repair")
	}
	tracker.AddRepair(Object{"rule", "60"}, start.Add(2*dropInterval))
	if got := tracker.Programs(rule); !slices.Equal(got, want) {
		t.Errorf("programs %q, want %q", got, want)
	}
	for i := range minRepairs {
		tracker.AddRepair(rule, start.Add(time.Duration(i)*time.Second))
	}
	end := start.Add((minRepairs - 1) * time.Second)
	tracker.AddRepair(Object{"rule", "60"}, end.Add(MaxPause))
	if got := tracker.Programs(rule); !tracker.IsContested(rule, end) || !slices.Equal(got, want) {
		t.Errorf("programs %q of a contested object, want %q", got, want)
	}
	tracker.AddRepair(Object{"rule", "60"}, end.Add(2*MaxPause+logInterval))
	if got := tracker.Programs(rule); len(got) > 0 {
		t.Errorf("programs %q long after the last repair", got)
	}
}

// TestTracker_BoundsChanges: changes alone do not let the tracker grow without bounds.
func TestTracker_BoundsChanges(t *testing.T) {
	var tracker Tracker
	for i := range 2 * maxObjects {
		tracker.AddProgram(Object{"route", strconv.Itoa(i)}, "ip", start)
	}
	if n := len(tracker.objects); n > maxObjects {
		t.Errorf("%d objects", n)
	}
	tracker.AddRepair(rule, start)
	tracker.AddProgram(rule, "ip", start)
	if got := tracker.Programs(rule); len(got) != 1 {
		t.Errorf("programs %q of an object that was repaired", got)
	}
}
