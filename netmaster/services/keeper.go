// Package services keeps Services and EndpointSlices within budgets, and encodes them for nodes as a keyed set. No
// policy depends on it, and it works off the owner goroutine.
package services

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netmaster/budget"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/service"
)

// Watcher delivers changes of Services (netmaster/watch).
type Watcher interface {
	Wake() <-chan struct{}
	// Take returns the changes since the last call; nil before everything was listed.
	Take() *watch.ServiceBatch
	CatchUp(ctx context.Context, list watch.Lister) error
}

// Feed sends Services to nodes (netmaster/feed).
type Feed interface {
	// PutServices sets values of the keyed set; nil removes one.
	PutServices(changes map[string][]byte)
	// PublishServices sends pending changes without delay.
	PublishServices()
}

// Reporter writes Events (netmaster/watch). It does not block.
type Reporter interface {
	Emit(reason wellknown.EventReason, namespace, name, uid, message string)
}

// Keeper holds all Services as nodes receive them. Safe for concurrent use.
type Keeper struct {
	watcher Watcher
	feed    Feed
	events  Reporter
	log     *slog.Logger

	mu      sync.Mutex
	known   bool // everything was listed
	ledger  *budget.Services
	served  map[string]budget.Served // by namespace/name
	zones   map[string]string        // by node
	leftOut int                      // number of Services with parts over budget
}

// New returns an empty Keeper.
func New(watcher Watcher, feed Feed, events Reporter, budgets service.Budgets, log *slog.Logger) *Keeper {
	return &Keeper{
		watcher: watcher,
		feed:    feed,
		events:  events,
		log:     log,
		ledger:  budget.NewServices(budgets),
		served:  map[string]budget.Served{},
		zones:   map[string]string{},
	}
}

// Run processes changes until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	for {
		select {
		case <-k.watcher.Wake():
			k.take()
		case <-ctx.Done():
			return
		}
	}
}

// maxCatchUp bounds how long a takeover waits for the watches of Services.
const maxCatchUp = 5 * time.Second

// CatchUp waits until the present Services of the API server are sent to nodes. After maxCatchUp it sends what is
// known, and the rest later, as policies do not depend on Services.
func (k *Keeper) CatchUp(ctx context.Context, list watch.Lister) {
	ctx, cancel := context.WithTimeout(ctx, maxCatchUp)
	defer cancel()
	if err := k.watcher.CatchUp(ctx, list); err != nil {
		k.log.Warn("took over before all Services are known: nodes may receive older endpoints for a moment",
			"error", err)
	}
	k.take()
	k.feed.PublishServices()
}

// take processes the watcher's changes, and passes them to the feed.
func (k *Keeper) take() {
	k.mu.Lock()
	defer k.mu.Unlock()
	b := k.watcher.Take()
	if b == nil || k.known && b.IsEmpty() {
		return
	}
	k.known = true
	changes := make(map[string][]byte, len(b.Services)+len(b.Slices))
	over := map[exceeded]*excess{}
	for id, s := range k.ledger.Take(b.Services, b.Slices) {
		k.report(k.served[id].Service, s.Service, over)
		k.put(id, s, changes)
	}
	for at, e := range over {
		k.log.Warn("parts of Services are over a budget and ignored", "namespace", at.namespace, "services", e.services,
			"one", e.one, "problem", e.problem)
	}
	for node, zone := range b.Zones {
		if zone == "" {
			delete(k.zones, node)
			changes[wire.ZoneKey(node)] = nil
		} else {
			k.zones[node] = zone
			changes[wire.ZoneKey(node)] = []byte(zone)
		}
	}
	k.feed.PutServices(changes)
}

// put replaces a Service. Slices with unchanged pointers are not encoded again.
func (k *Keeper) put(id string, now budget.Served, changes map[string][]byte) {
	before := k.served[id]
	if before.LeftOut() {
		k.leftOut--
	}
	if now.LeftOut() {
		k.leftOut++
	}
	if now.Service == nil {
		delete(k.served, id)
	} else {
		k.served[id] = now
	}
	changes[wire.ServiceKey(id)] = nil
	if now.Service != nil && now.Service.Unserved == "" {
		changes[wire.ServiceKey(id)] = k.encoded(id, func() ([]byte, error) { return wire.ServiceValue(now.Service) })
	}
	for _, s := range before.Slices {
		same := func(t *service.Slice) bool { return t.Name == s.Name }
		if _, set := changes[wire.SliceKey(s.ID())]; !set && !slices.ContainsFunc(now.Slices, same) {
			changes[wire.SliceKey(s.ID())] = nil
		}
	}
	for _, s := range now.Slices {
		if !slices.Contains(before.Slices, s) {
			changes[wire.SliceKey(s.ID())] = k.encoded(s.ID(), func() ([]byte, error) { return wire.SliceValue(s) })
		}
	}
}

// exceeded is a budget that Services of a namespace exceed, and excess what one change has of it.
type (
	exceeded struct{ namespace, budget string }
	excess   struct {
		one, problem string // of one Service
		services     int
	}
)

// report writes an Event about each budget that a Service exceeds now and did not before, and counts it in over. A
// namespace's budget may concern all of its Services, so that the log has one line for them.
func (k *Keeper) report(before, now *service.Service, over map[exceeded]*excess) {
	if now == nil {
		return
	}
	for _, problem := range now.Problems {
		budget := service.ExceededBudget(problem)
		known := before != nil && before.UID == now.UID && slices.ContainsFunc(before.Problems,
			func(p string) bool { return service.ExceededBudget(p) == budget })
		if budget == "" || known {
			continue
		}
		at := exceeded{now.Namespace, budget}
		if over[at] == nil {
			over[at] = &excess{one: now.Name, problem: problem}
		}
		over[at].services++
		k.events.Emit(wellknown.EventServiceOverBudget, now.Namespace, now.Name, now.UID, problem)
	}
}

// encoded returns the encoded value; nil if it cannot be encoded.
func (k *Keeper) encoded(id string, encode func() ([]byte, error)) []byte {
	value, err := encode()
	if err != nil { // invalid UTF-8 in a name, which the API server rejects
		k.log.Error("a Service cannot be encoded: no node gets it", "id", id, "error", err)
		return nil
	}
	if value == nil {
		value = []byte{}
	}
	return value
}

// All returns all Services sorted by namespace and name; false before they are known. Do not modify the result.
func (k *Keeper) All() ([]budget.Served, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := slices.SortedFunc(maps.Values(k.served), func(a, b budget.Served) int {
		x, y := a.Service, b.Service
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	return out, k.known
}

// Get returns a Service by namespace/name, with a nil Service if it does not exist; false before Services are known.
func (k *Keeper) Get(id string) (budget.Served, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.served[id], k.known
}

// IsKnown reports whether everything was listed.
func (k *Keeper) IsKnown() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.known
}

// Zone returns the zone of a node; empty if it has none.
func (k *Keeper) Zone(node string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.zones[node]
}

// LeftOut returns the number of Services with parts over budget.
func (k *Keeper) LeftOut() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.leftOut
}
