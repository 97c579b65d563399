package stats

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Place is what is counted for: a rule of a policy or, with Isolation as Rule, what a policy denies in a direction because no rule
// lets it through. A node knows only the first few policies of those that have one rule: the others are counted together, in a
// place of the rule's Key without a Policy.
type Place struct {
	Policy    string           `json:"policy,omitempty"` // namespace/name
	Direction policy.Direction `json:"direction"`
	Rule      int              `json:"rule"`
	Key       policy.Key       `json:"key,omitzero"`
	// DryRun is of a policy in a dry run: what it would have let through or denied.
	DryRun bool `json:"audit,omitempty"`
}

func (p *Place) dryRun() int {
	if p.DryRun {
		return 1
	}
	return 0
}

// Isolation is the Rule of the place of what a policy denies.
const Isolation = -1

// Count is a sum since counting began. Of denied packets there are connections in a dry run only.
type Count struct {
	Packets     uint64 `json:"packets"`
	Bytes       uint64 `json:"bytes"`
	Connections uint64 `json:"connections"`
}

// Rate is a Count a second.
type Rate struct{ Packets, Bytes, Connections float64 }

// State is a place with its count.
type State struct {
	Place
	Count
	Rate    Rate
	Since   time.Time // from when on the place, with the rule it has now, is counted
	Last    time.Time // of the last reading that counted something; zero: none
	InForce bool
}

// mostGone is how many places are kept that are not in force: of policies that have left the node, for some time or for good.
const mostGone = 20_000

// flowID is a flow over restarts: its cookie, and whether it counts connections.
type flowID struct {
	cookie      uint64
	connections bool
}

// reading is what a flow had counted when it was read last.
type reading struct {
	packets, bytes uint64
	created        time.Duration // on the clock that runs since the machine started
}

// record is what is known of a place.
type record struct {
	count   Count
	since   time.Time
	last    time.Time
	gone    time.Time    // since when it is not in force; zero: it is
	keys    []policy.Key // of the rules in it now or, where it is gone, last
	inForce map[policy.Key]struct{}
	marked  Count // at the last tick
	rate    Rate
}

// Ledger adds up. Its methods are safe for concurrent use.
type Ledger struct {
	mu          sync.Mutex
	since       time.Time
	began       time.Duration // on the machine's clock; 0: the ledger is older than this process
	flows       map[flowID]reading
	places      map[Place]*record
	rules       map[policy.Key][]Place
	ticked      time.Time
	dirtyFlows  map[flowID]struct{}
	dirtyPlaces map[Place]struct{}
}

// NewLedger returns an empty ledger that begins to count now. What flows counted before is left out.
func NewLedger(now time.Time, clock time.Duration) *Ledger {
	return &Ledger{since: now, began: clock, flows: map[flowID]reading{}, places: map[Place]*record{}, rules: map[policy.Key][]Place{},
		dirtyFlows: map[flowID]struct{}{}, dirtyPlaces: map[Place]struct{}{}}
}

// Since returns the time at which this node began to count.
func (l *Ledger) Since() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.since
}

// placesOf returns the places in policies where a rule counts: its origins, or their isolation.
func placesOf(r *policy.Rule) []Place {
	out := make([]Place, 0, len(r.Origins))
	rule := Isolation
	for _, o := range r.Origins {
		out = append(out, Place{Policy: o.Policy, Direction: r.Direction, Rule: o.Rule, DryRun: r.DryRun})
		rule = max(rule, o.Rule)
	}
	if len(r.Origins) >= policy.BriefOrigins {
		out = append(out, Place{Direction: r.Direction, Rule: min(rule, 0), Key: r.Key, DryRun: r.DryRun})
	}
	return out
}

// Rules takes over which rules are in force from now on.
func (l *Ledger) Rules(now time.Time, changes []policy.RuleChange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range changes { // first, to distinguish an edit from an unchanged rule
		l.leave(now, c.Key, c.Rule)
	}
	for _, c := range changes {
		if c.Rule != nil {
			l.enter(now, c.Rule)
		}
	}
}

// leave ends what a rule no longer is.
func (l *Ledger) leave(now time.Time, key policy.Key, next *policy.Rule) {
	var stays []Place
	if next != nil {
		stays = placesOf(next)
	}
	for _, p := range l.rules[key] {
		if slices.Contains(stays, p) {
			continue
		}
		r := l.places[p]
		if delete(r.inForce, key); len(r.inForce) == 0 {
			r.gone = now
			l.dirtyPlaces[p] = struct{}{}
		}
	}
	delete(l.rules, key)
}

func (l *Ledger) enter(now time.Time, rule *policy.Rule) {
	places := placesOf(rule)
	l.rules[rule.Key] = places
	for _, p := range places {
		r := l.places[p]
		if r == nil {
			r = &record{since: now, inForce: map[policy.Key]struct{}{}}
			l.places[p] = r
		}
		if !slices.Contains(r.keys, rule.Key) { // another rule than before
			r.keys = slices.DeleteFunc(r.keys, func(k policy.Key) bool { _, in := r.inForce[k]; return !in })
			r.keys, r.since = append(r.keys, rule.Key), now
			l.dirtyPlaces[p] = struct{}{}
		}
		if !r.gone.IsZero() {
			r.gone = time.Time{}
			l.dirtyPlaces[p] = struct{}{}
		}
		r.inForce[rule.Key] = struct{}{}
	}
}

// slack is how far the moment in which a flow was made may seem to move between two readings of it.
const slack = 2 * time.Second

// Book adds what flows have counted since the last reading. Clock is the machine's at the time of the reading; rules
// returns the rules of a flow.
func (l *Ledger) Book(now time.Time, clock time.Duration, flows []ofctl.Counted, rules func(cookie uint64) []*policy.Rule) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range flows {
		f := &flows[i]
		meter, ok := pipeline.MeterOf(f)
		if !ok {
			continue
		}
		id := flowID{f.Cookie, meter.Connections()}
		more, moved := l.read(id, reading{f.Packets, f.Bytes, clock - f.Age})
		if !moved {
			continue
		}
		for _, p := range booked(meter, rules(f.Cookie)) {
			l.add(now, p, meter, more)
		}
	}
}

// read stores a reading and returns the increase since the last.
func (l *Ledger) read(id flowID, is reading) (more reading, moved bool) {
	was, known := l.flows[id]
	same := known && (is.created-was.created).Abs() <= slack && is.packets >= was.packets && is.bytes >= was.bytes
	if same && is.packets == was.packets {
		return more, false
	}
	before := !known && l.began > 0 && is.created < l.began // before there was a ledger
	if !known && is.packets == 0 && !before {
		return more, false
	}
	l.flows[id] = is
	l.dirtyFlows[id] = struct{}{}
	switch {
	case same:
		is.packets, is.bytes = is.packets-was.packets, is.bytes-was.bytes
	case before:
		return more, false
	}
	return is, is.packets > 0
}

// booked returns the places that a flow's packets count for, each once.
func booked(meter pipeline.Meter, rules []*policy.Rule) []Place {
	var out []Place
	for _, r := range rules {
		for _, p := range placesOf(r) {
			if meter.Denied() {
				p.Rule = Isolation
			} else if p.Rule < 0 {
				continue
			}
			out = append(out, p)
		}
	}
	if len(rules) < 2 {
		return out
	}
	slices.SortFunc(out, comparePlaces)
	return slices.Compact(out)
}

func comparePlaces(a, b Place) int {
	return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Direction, b.Direction), cmp.Compare(a.Rule, b.Rule), slices.Compare(a.Key[:], b.Key[:]), a.dryRun()-b.dryRun())
}

func (l *Ledger) add(now time.Time, p Place, meter pipeline.Meter, more reading) {
	r := l.places[p]
	if r == nil {
		return
	}
	if meter.Connections() {
		r.count.Connections += more.packets
	} else {
		r.count.Packets += more.packets
		r.count.Bytes += more.bytes
	}
	r.last = now
	l.dirtyPlaces[p] = struct{}{}
}

// Only forgets the readings of flows that are not among these, which are all there are.
func (l *Ledger) Only(flows []ofctl.Counted) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.flows) == 0 {
		return
	}
	there := make(map[flowID]struct{}, len(flows))
	for i := range flows {
		meter, _ := pipeline.MeterOf(&flows[i])
		there[flowID{flows[i].Cookie, meter.Connections()}] = struct{}{}
	}
	for id := range l.flows {
		if _, ok := there[id]; !ok {
			delete(l.flows, id)
			l.dirtyFlows[id] = struct{}{}
		}
	}
}

// Tick works the rates out, since the last tick, and forgets the oldest of too many places that are gone.
func (l *Ledger) Tick(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seconds := now.Sub(l.ticked).Seconds()
	known := !l.ticked.IsZero() && seconds > 0
	l.ticked = now
	gone := 0
	for _, r := range l.places {
		if r.rate = (Rate{}); known {
			r.rate = Rate{float64(r.count.Packets-r.marked.Packets) / seconds, float64(r.count.Bytes-r.marked.Bytes) / seconds, float64(r.count.Connections-r.marked.Connections) / seconds}
		}
		r.marked = r.count
		if !r.gone.IsZero() {
			gone++
		}
	}
	if gone > mostGone {
		l.bury(gone - mostGone)
	}
}

func (l *Ledger) bury(n int) {
	var gone []Place
	for p, r := range l.places {
		if !r.gone.IsZero() {
			gone = append(gone, p)
		}
	}
	slices.SortFunc(gone, func(a, b Place) int { return l.places[a].gone.Compare(l.places[b].gone) })
	for _, p := range gone[:n] {
		delete(l.places, p)
		l.dirtyPlaces[p] = struct{}{}
	}
}

// States returns the states of all places that keep accepts, in a fixed order.
func (l *Ledger) States(keep func(*Place) bool) []State {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []State
	for p, r := range l.places {
		if keep(&p) {
			out = append(out, State{Place: p, Count: r.count, Rate: r.rate, Since: r.since, Last: r.last, InForce: r.gone.IsZero()})
		}
	}
	slices.SortFunc(out, func(a, b State) int { return comparePlaces(a.Place, b.Place) })
	return out
}

// restored takes over what a Store has kept.
func (l *Ledger) restored(now time.Time, kept *Kept) {
	l.since, l.began = kept.Since, 0
	maps.Copy(l.flows, kept.flows)
	for p, r := range kept.places {
		r.inForce, r.marked = map[policy.Key]struct{}{}, r.count
		if r.gone.IsZero() { // until Rules says that it is in force
			r.gone = now
		}
		l.places[p] = r
	}
}
