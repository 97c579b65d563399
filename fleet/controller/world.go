package controller

import (
	"log/slog"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/fleet"
	"k8s.io/apimachinery/pkg/runtime/schema"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// world is the watched part of the hub, and the queues of what its changes concern. Safe for concurrent use.
type world struct {
	settings
	log      *slog.Logger
	metrics  *metrics
	bundles  *queue // bundles to write
	statuses statuses

	mu     sync.RWMutex
	tables map[feed]*table
	// current is the table of each of the inputs, while there is one.
	current map[*input]*table
	subs    subscriptions

	indexes
	departures departures
	views
	// parked are bundles of which something could not be written, as neither ManagedCluster nor namespace was there.
	parked index[string, fleet.Source]
	limit  hubLimit
}

// settings are what the controller was started with.
type settings struct {
	controller string
	shared     bool // what has no controllerName is ours: sets, and statuses of overrides
	namespaces fleet.Namespaces
	grace      time.Duration // of clusters that leave a Placement
}

// indexes find objects by others that they belong to.
type indexes struct {
	gatewaysOf  index[string, fleet.Name]                        // by class
	gatewaysAt  index[fleet.Name, fleet.Name]                    // by Placement
	decisionsOf index[fleet.Name, fleet.Name]                    // by Placement
	policiesOf  index[fleet.Name, policyID]                      // by gateway
	overridesOf index[fleet.Source, fleet.Name]                  // by policy
	worksOf     index[fleet.Source, fleet.Name]                  // by bundle
	holdersOf   map[fleet.Source]index[fleet.Source, fleet.Name] // by source and bundle: works that carry it
}

// views read the world for one purpose each, and hold nothing of their own.
type views struct {
	gatherer gatherer
	planner  planner
	hub      hubView
	evidence evidence
}

// policyID is where a policy is found.
type policyID struct {
	resource schema.GroupResource
	fleet.Name
}

// watcher is what the world has watch: taps.
type watcher interface {
	start(feed, sink)
	stop(feed)
}

// index finds what goes with a key.
type index[K, V comparable] map[K]map[V]bool

func (i index[K, V]) set(key K, value V, is bool) {
	switch {
	case is && i[key] == nil:
		i[key] = map[V]bool{value: true}
	case is:
		i[key][value] = true
	default:
		if delete(i[key], value); len(i[key]) == 0 {
			delete(i, key)
		}
	}
}

// nameSource stands for the name that a copy has on spokes among the sources that works carry: of several sources that have one name there
// only one is written.
func nameSource(k fleet.Key) fleet.Source {
	return fleet.Source{Group: k.Group, Kind: "/" + k.Resource, Name: k.Name}
}

// holds notes that a work of a bundle carries a source, or does no more. Namespaces are of no source: what shares one shares nothing.
func (w *world) holds(s, bundle fleet.Source, at fleet.Name, is bool) {
	if s.Kind == "" {
		return
	}
	by := w.holdersOf[s]
	if by == nil {
		by = index[fleet.Source, fleet.Name]{}
		w.holdersOf[s] = by
	}
	if by.set(bundle, at, is); len(by) == 0 {
		delete(w.holdersOf, s)
	}
}

// park has a bundle looked at when its cluster is imported again. It reports false where the ManagedCluster is there:
// its namespace comes or goes without an event of the ManagedCluster.
func (w *world) park(cluster string, b fleet.Source) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.current[clusters]
	if t == nil || !t.synced || t.rows[fleet.Name{Name: cluster}] != nil {
		return false
	}
	w.parked.set(cluster, b, true)
	return true
}

func (w *world) sync(b fleet.Source) { w.bundles.press(b) }

// answered has a bundle looked at for what a cluster says of its works: others will say so too.
func (w *world) answered(b fleet.Source) { w.bundles.mark(b) }

func (ss *statuses) tell(s fleet.Source) { ss.tells.mark(s) }

// table is what is known of one feed. It belongs to the world's lock.
type table struct {
	*world
	feed   feed
	role   *input
	kind   fleet.Kind // of policies
	rows   map[fleet.Name]any
	synced bool
	err    error // why the API server does not give it
	over   bool  // it is not watched any more
}

// input is something of the hub that what is sent depends on.
type input struct {
	name string
	// resource is that of an input of which there is one watch, if its kind is served.
	resource schema.GroupVersionResource
	// needed is set where nothing can be decided without it.
	needed bool
}

func (w *world) gatewayController() gatewayv1.GatewayController {
	return gatewayv1.GatewayController(w.controller)
}

func newWorld(controller string, log *slog.Logger, m *metrics) *world {
	w := &world{
		settings: settings{controller: controller, grace: DefaultGrace},
		indexes: indexes{
			gatewaysOf:  index[string, fleet.Name]{},
			gatewaysAt:  index[fleet.Name, fleet.Name]{},
			decisionsOf: index[fleet.Name, fleet.Name]{},
			policiesOf:  index[fleet.Name, policyID]{},
			overridesOf: index[fleet.Source, fleet.Name]{},
			worksOf:     index[fleet.Source, fleet.Name]{},
			holdersOf:   map[fleet.Source]index[fleet.Source, fleet.Name]{},
		},
		log:     log,
		metrics: m,
		bundles: newQueue(answeredAfter, answeredWithin),
		tables:  map[feed]*table{},
		current: map[*input]*table{},
		parked:  index[string, fleet.Source]{},
	}
	w.evidence.w, w.gatherer.w, w.hub.w, w.planner.w = w, w, w, w
	w.statuses = statuses{w: w, tells: newQueue(tellAfter, tellWithin)}
	w.subs = subscriptions{
		w:       w,
		absent:  map[*input]string{},
		classes: map[string]*fleet.Class{},
		kinds:   map[schema.GroupResource]fleet.Kind{},
		swept:   map[schema.GroupResource]bool{},
	}
	w.departures = departures{w: w, leaving: map[fleet.Name]fleet.Left{}, resumed: map[*input]bool{}}
	return w
}

func (t *table) all(values map[fleet.Name]any) {
	t.change(func() {
		for name := range t.rows {
			if _, there := values[name]; !there {
				t.have(name, nil)
			}
		}
		for name, value := range values {
			t.have(name, value)
		}
		t.synced, t.err = true, nil
	})
}

func (t *table) put(name fleet.Name, value any) {
	t.change(func() {
		now, isWork := value.(*work)
		if before, ok := t.rows[name].(*work); ok && isWork && now.older(before) {
			return
		}
		t.have(name, value)
	})
}

func (t *table) remove(name fleet.Name) { t.change(func() { t.have(name, nil) }) }

func (t *table) trouble(err error) {
	t.mu.RLock()
	same := (err == nil) == (t.err == nil) && (err == nil || err.Error() == t.err.Error())
	t.mu.RUnlock()
	if !same {
		t.change(func() { t.err = err })
	}
}

// change makes one, and takes up what follows for what is watched.
func (t *table) change(how func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return
	}
	was, wasErr := t.synced, t.err
	how()
	if wasErr == nil && t.err != nil {
		t.log.Warn("watch failed", "resource", t.feed, "error", t.err)
	}
	if wasErr != nil && t.err == nil {
		t.log.Info("watch recovered", "resource", t.feed)
	}
	healthy := was == t.synced && (wasErr == nil) == (t.err == nil)
	if t.role == secrets {
		if !healthy {
			t.subs.touchSecret(fleet.Name{Namespace: t.feed.namespace, Name: t.feed.name})
		}
		return
	}
	if !healthy || t.role == definitions || t.role == classes || t.role == parameters || t.role == sets ||
		t.subs.unsettled {
		t.subs.settle()
	}
	if !healthy {
		t.touchAll()
	}
}

// have puts a value in, or takes it out.
func (t *table) have(name fleet.Name, value any) {
	old := t.rows[name]
	switch {
	case value == nil && old == nil:
		return
	case value == nil:
		delete(t.rows, name)
	default:
		t.rows[name] = value
	}
	t.changed(name, old, value)
}

// touchAll has everything looked at: something is known that was not, or the other way round.
func (w *world) touchAll() {
	w.adopt()
	w.departures.resume()
	w.eachRow(gateways, func(name fleet.Name, _ any) { w.touchGateway(name) })
	w.eachRow(works, func(_ fleet.Name, row any) { w.touchWork(row.(*work), w.sync) })
	w.touchSets("")
	for name := range w.subs.classes {
		w.statuses.tell(classSource(name))
	}
	w.eachRow(overrides, func(_ fleet.Name, row any) { w.touchOverride(row.(*override)) })
}
