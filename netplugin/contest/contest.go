// Package contest finds objects on a node that another program changes again each time netplugin repairs them, and
// decides when they are repaired and logged.
package contest

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// minRepairs is the number of repairs in a row after which an object is contested.
	minRepairs = 10
	// maxGap is the time within which a repair counts as the next in a row. The pause of the object comes on top. With
	// rarer changes a repair at once costs less than a pause.
	maxGap = 2 * time.Second
	// minPause is the first time between two repairs of a contested object that waits.
	minPause = time.Second
	// MaxPause is the greatest time between two repairs of a contested object that waits.
	MaxPause = 30 * time.Second
	// logInterval is the time between two log lines about an object.
	logInterval = time.Minute
	// maxPrograms is the maximum number of programs that are kept of an object.
	maxPrograms = 2
	// maxObjects is the maximum number of objects that are kept because of a change alone.
	maxObjects = 1000
	// dropInterval is the time between two searches for objects that have not been repaired for long.
	dropInterval = time.Second
)

// Object is a thing on the node that netplugin repairs, such as a policy rule.
type Object struct {
	Kind string // as in the metric of repairs
	Name string
}

// Tracker has the repairs of objects. The zero value has none. It is safe for concurrent use. It keeps an object for
// 90 s after its last repair or change.
type Tracker struct {
	mu       sync.Mutex
	objects  map[Object]*repairs
	lastDrop time.Time
}

// repairs is a record of the repairs of one object.
type repairs struct {
	inRow         int // the number of the last ones in a row
	lastRepair    time.Time
	isPostponable bool // while contested
	lastLog       time.Time
	suppressed    int       // repairs since lastLog
	lastChange    time.Time // by a program that is known
	programs      []string  // that changed it, sorted
}

// pause returns the time between the last repair and the next one.
func (r *repairs) pause() time.Duration {
	if !r.isPostponable || r.inRow < minRepairs {
		return 0
	}
	return min(minPause<<min(r.inRow-minRepairs, 10), MaxPause)
}

func (r *repairs) goesOn(now time.Time) bool { return now.Sub(r.lastRepair) <= r.pause()+maxGap }

func (r *repairs) isContested(now time.Time) bool { return r.inRow >= minRepairs && r.goesOn(now) }

// AddRepair adds a repair of an object. It returns the number of repairs to log, which includes those since the last
// log line; 0 within a minute of that.
func (t *Tracker) AddRepair(o Object, now time.Time) (logged int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.of(o, now)
	r.inRow++
	r.lastRepair = now
	r.suppressed++
	return r.log(now)
}

// log returns the number of repairs to log, and counts them as logged.
func (r *repairs) log(now time.Time) (logged int) {
	if !r.lastLog.IsZero() && now.Sub(r.lastLog) < logInterval {
		return 0
	}
	logged, r.suppressed, r.lastLog = r.suppressed, 0, now
	return logged
}

// TakeSuppressed returns the numbers of repairs that were not logged when they were made, of objects of which the last
// log line is a minute old, and counts them as logged.
func (t *Tracker) TakeSuppressed(now time.Time) map[Object]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[Object]int{}
	for o, r := range t.objects {
		if r.suppressed == 0 {
			continue
		}
		if n := r.log(now); n > 0 {
			out[o] = n
		}
	}
	return out
}

// Contest makes an object contested, of which another program undid several repairs at once.
func (t *Tracker) Contest(o Object, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.of(o, now)
	r.inRow, r.lastRepair = max(r.inRow, minRepairs), now
}

// AddProgram adds a program that changed an object. The program's name may have what started it behind a comma; a name
// without that is no other program.
func (t *Tracker) AddProgram(o Object, program string, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(now)
	if t.objects[o] == nil && len(t.objects) >= maxObjects {
		return
	}
	r := t.of(o, now)
	r.lastChange = now
	for i, known := range r.programs {
		if strings.HasPrefix(known+",", program+",") {
			return
		}
		if strings.HasPrefix(program, known+",") {
			r.programs[i] = program
			return
		}
	}
	if len(r.programs) < maxPrograms {
		r.programs = append(r.programs, program)
		slices.Sort(r.programs)
	}
}

// IsKnown reports whether an object was repaired, or another program is known to have changed it.
func (t *Tracker) IsKnown(o Object) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.objects[o] != nil
}

// Programs returns the programs that changed an object, sorted. The first that were added stay, so that the list does
// not change all the time.
func (t *Tracker) Programs(o Object) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.objects[o]; r != nil {
		return slices.Clone(r.programs)
	}
	return nil
}

// of returns the repairs of an object.
func (t *Tracker) of(o Object, now time.Time) *repairs {
	t.drop(now)
	r := t.objects[o]
	if r == nil {
		r = new(repairs)
		t.objects[o] = r
	}
	if !r.goesOn(now) {
		r.inRow = 0
	}
	return r
}

// drop deletes objects that have not been repaired for long.
func (t *Tracker) drop(now time.Time) {
	if t.objects == nil {
		t.objects = map[Object]*repairs{}
	}
	if now.Sub(t.lastDrop) < dropInterval {
		return
	}
	t.lastDrop = now
	maps.DeleteFunc(t.objects, func(_ Object, r *repairs) bool {
		return min(now.Sub(r.lastRepair), now.Sub(r.lastChange)) > MaxPause+logInterval
	})
}

// Postpone lets the repairs of an object wait while it is contested, and reports whether the next one is not due yet.
// Repairs of objects for which it is never called do not wait.
func (t *Tracker) Postpone(o Object, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.objects[o]
	if r == nil {
		return false
	}
	r.isPostponable = true
	return now.Sub(r.lastRepair) < r.pause()
}

// IsContested reports whether an object is contested.
func (t *Tracker) IsContested(o Object, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.objects[o]
	return r != nil && r.isContested(now)
}

// Due returns the time until the next repair of an object is due that waits, MaxPause if none waits.
func (t *Tracker) Due(now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	due := MaxPause
	for _, r := range t.objects {
		if rest := r.pause() - now.Sub(r.lastRepair); rest > 0 {
			due = min(due, rest)
		}
	}
	return due
}

// Contested returns the contested objects, at most limit of them, sorted.
func (t *Tracker) Contested(now time.Time, limit int) (out []Object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for o, r := range t.objects {
		if r.isContested(now) {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b Object) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	return out[:min(len(out), limit)]
}
