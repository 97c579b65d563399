package stats

import (
	"cmp"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
)

// maxOpened bounds the pairs of a Service and an endpoint that are counted, and maxOfService those of one Service. What
// exceeds them is counted together.
const (
	maxOpened    = 50_000
	maxOfService = 2_000
)

// OpenedCount is the number of packets that opened connections to a Service, by the endpoint that they were led to.
type OpenedCount struct {
	pipeline.Led
	Packets uint64
}

// openedFlow identifies a flow: its match takes ten times as much memory.
type openedFlow struct {
	table    uint8
	priority uint16
	match    uint64
}

type openedReading struct {
	packets uint64
	created time.Duration // on the clock that runs since the machine started
}

// Opened adds up packets that open connections to Services, by Service and endpoint. It is in memory alone. Its methods
// are safe for concurrent use.
type Opened struct {
	seed maphash.Seed

	mu       sync.Mutex
	since    time.Time
	began    time.Duration                // on the machine's clock
	flows    map[openedFlow]openedReading // of those that have counted something
	services map[string]map[pipeline.Led]uint64
	pairs    int    // in services
	left     uint64 // packets of pairs beyond the bounds
}

// NewOpened returns a ledger that begins to count now. What flows had counted before counts for nothing.
func NewOpened(now time.Time, clock time.Duration) *Opened {
	return &Opened{
		seed:     maphash.MakeSeed(),
		since:    now,
		began:    clock,
		flows:    map[openedFlow]openedReading{},
		services: map[string]map[pipeline.Led]uint64{},
	}
}

// OpenedFlow is a flow that was read, and the endpoint that it leads to now.
type OpenedFlow struct {
	ofctl.Counted
	Led pipeline.Led
}

// Book adds what flows have counted since they were read last. Clock is the machine's at that time. What a flow counted
// before it was changed to lead elsewhere counts for the endpoint that it leads to now.
func (o *Opened) Book(clock time.Duration, flows []OpenedFlow) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range flows {
		f := &flows[i]
		if more := o.read(o.idOf(&f.Counted), openedReading{f.Packets, clock - f.Age}); more > 0 {
			o.add(&f.Led, more)
		}
	}
}

func (o *Opened) idOf(f *ofctl.Counted) openedFlow {
	return openedFlow{f.Table, f.Priority, maphash.Comparable(o.seed, f.Match)}
}

// read notes a reading and returns what was counted since the last.
func (o *Opened) read(id openedFlow, is openedReading) (more uint64) {
	was, known := o.flows[id]
	same := known && (is.created-was.created).Abs() <= slack && is.packets >= was.packets
	o.flows[id] = is
	switch {
	case same:
		return is.packets - was.packets
	case !known && is.created < o.began: // it had counted before
		return 0
	}
	return is.packets
}

func (o *Opened) add(led *pipeline.Led, packets uint64) {
	of := o.services[led.Service]
	if _, there := of[*led]; !there {
		if o.pairs >= maxOpened || len(of) >= maxOfService {
			o.left += packets
			return
		}
		if of == nil {
			of = map[pipeline.Led]uint64{}
			o.services[led.Service] = of
		}
		o.pairs++
	}
	of[*led] += packets
}

// Only deletes the readings of flows that are not among these, which are all that have counted something, and the
// counts of Services that do not exist.
func (o *Opened) Only(flows []ofctl.Counted, exists func(service string) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	there := make(map[openedFlow]struct{}, len(flows))
	for i := range flows {
		there[o.idOf(&flows[i])] = struct{}{}
	}
	maps.DeleteFunc(o.flows, func(id openedFlow, _ openedReading) bool {
		_, ok := there[id]
		return !ok
	})
	for id, of := range o.services {
		if !exists(id) {
			o.pairs -= len(of)
			delete(o.services, id)
		}
	}
}

// Since returns when counting began.
func (o *Opened) Since() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.since
}

// Of returns what was opened to a Service, by endpoint.
func (o *Opened) Of(service string) (out []OpenedCount) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for led, packets := range o.services[service] {
		out = append(out, OpenedCount{led, packets})
	}
	slices.SortFunc(out, func(a, b OpenedCount) int {
		return cmp.Or(a.Endpoint.Compare(b.Endpoint), cmp.Compare(a.Protocol, b.Protocol))
	})
	return out
}

// OpenedSum is what was opened to a Service in all.
type OpenedSum struct {
	Service          string // namespace/name
	Opened, Unserved uint64
}

// Sums returns what was opened to each Service, by name, and how many packets exceeded the bounds.
func (o *Opened) Sums() (out []OpenedSum, left uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, of := range o.services {
		s := OpenedSum{Service: id}
		for led, packets := range of {
			if led.Endpoint.IsValid() {
				s.Opened += packets
			} else {
				s.Unserved += packets
			}
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b OpenedSum) int { return cmp.Compare(a.Service, b.Service) })
	return out, o.left
}
