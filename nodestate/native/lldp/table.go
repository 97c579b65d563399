package lldp

import (
	"errors"
	"maps"
	"slices"
	"time"
)

// MostNeighbours is how many are kept of a port: those that were there first.
const MostNeighbours = 16

// A port may change what is known this often: at once, and then one change more each time.
const (
	changesAtOnce = 40
	changeEvery   = time.Minute
)

// Why a frame that can be read changes nothing.
var (
	ErrFull     = errors.New("the port has as many neighbours as are kept")
	ErrRestless = errors.New("the port's neighbours change too often")
)

// Table keeps the neighbours of ports, which are known by numbers. The zero value is empty. It is for one goroutine, and has no clock.
type Table struct {
	ports map[int]*port
}

type port struct {
	entries map[string]entry
	changes time.Time // when the changes so far would have been due, one by one
}

type entry struct {
	Heard
	until time.Time
}

func (t *Table) port(number int) *port {
	if t.ports == nil {
		t.ports = map[int]*port{}
	}
	if t.ports[number] == nil {
		t.ports[number] = &port{entries: map[string]entry{}}
	}
	return t.ports[number]
}

// Hear stores a frame, and reports whether the table has changed. A neighbour that changes too soon keeps its former
// content.
func (t *Table) Hear(number int, h Heard, now time.Time) (changed bool, err error) {
	p, key := t.port(number), h.Neighbour.key()
	have, known := p.entries[key]
	if h.TTL == 0 {
		delete(p.entries, key)
		return known, nil
	}
	switch same := known && have.Neighbour.equal(h.Neighbour); {
	case !known && len(p.entries) >= MostNeighbours:
		return false, ErrFull
	case !same && !p.mayChange(now) && known:
		have.until = now.Add(h.TTL)
		p.entries[key] = have
		return false, ErrRestless
	case !same && !p.mayChange(now):
		return false, ErrRestless
	case !same:
		p.changes = later(p.changes, now).Add(changeEvery)
		changed = true
	}
	p.entries[key] = entry{Heard: h, until: now.Add(h.TTL)}
	return changed, nil
}

func (p *port) mayChange(now time.Time) bool {
	return later(p.changes, now).Sub(now) <= (changesAtOnce-1)*changeEvery
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Expire forgets who was silent for too long, and says whether there was anybody.
func (t *Table) Expire(now time.Time) (changed bool) {
	for _, p := range t.ports {
		maps.DeleteFunc(p.entries, func(_ string, e entry) bool {
			gone := !now.Before(e.until)
			changed = changed || gone
			return gone
		})
	}
	return changed
}

// Next returns the time of the next expiry, zero if there are no neighbours.
func (t *Table) Next() (next time.Time) {
	for _, p := range t.ports {
		for _, e := range p.entries {
			if next.IsZero() || e.until.Before(next) {
				next = e.until
			}
		}
	}
	return next
}

// Known returns the neighbours of a port in a stable order.
func (t *Table) Known(number int) []Heard {
	if t.ports[number] == nil {
		return nil
	}
	entries := t.ports[number].entries
	out := make([]Heard, 0, len(entries))
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		out = append(out, entries[key].Heard)
	}
	return out
}

// Forget drops a port, and says whether it had neighbours.
func (t *Table) Forget(number int) bool {
	had := t.ports[number] != nil && len(t.ports[number].entries) > 0
	delete(t.ports, number)
	return had
}
