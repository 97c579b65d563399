package services

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
)

// world is the API server and the nodes of a Keeper.
type world struct {
	batch     *watch.ServiceBatch // nil: Services are not known
	wake      chan struct{}
	late      error
	changes   map[string][]byte // of the last call
	held      map[string][]byte
	published int
	events    []string
}

func (w *world) Emit(reason wellknown.EventReason, namespace, name, uid, message string) {
	w.events = append(w.events, fmt.Sprintf("%s %s/%s %s: %s", reason, namespace, name, uid, message))
}

func (w *world) Wake() <-chan struct{} { return w.wake }

func (w *world) Take() *watch.ServiceBatch {
	b := w.batch
	if b != nil {
		w.batch = &watch.ServiceBatch{}
	}
	return b
}

func (w *world) CatchUp(context.Context, watch.Lister) error { return w.late }

func (w *world) PutServices(changes map[string][]byte) {
	w.changes = changes
	for key, value := range changes {
		if w.held[key] = value; value == nil {
			delete(w.held, key)
		}
	}
}

func (w *world) PublishServices() { w.published++ }

func (w *world) keys() []string { return slices.Sorted(maps.Keys(w.held)) }

func (w *world) changed() []string { return slices.Sorted(maps.Keys(w.changes)) }

func newWorld(budgets service.Budgets) (*world, *Keeper) {
	w := &world{wake: make(chan struct{}, 1), held: map[string][]byte{}}
	return w, New(w, w, w, budgets, slog.New(slog.DiscardHandler))
}

func web(name string) *service.Service {
	return &service.Service{
		Namespace:  "shop",
		Name:       name,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports:      []service.Port{{Protocol: policy.TCP, Port: 80}},
	}
}

func sliceOf(of, name string, endpoints int) *service.Slice {
	s := &service.Slice{
		Namespace: "shop",
		Name:      name,
		Service:   of,
		Ports:     []service.SlicePort{{Protocol: policy.TCP, Port: 8080}},
	}
	for i := range endpoints {
		s.Endpoints = append(s.Endpoints, service.Endpoint{Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), Ready: true})
	}
	return s
}

func (w *world) give(k *Keeper, services []*service.Service, all []*service.Slice, gone ...string) {
	w.batch = &watch.ServiceBatch{
		Services: map[string]*service.Service{},
		Slices:   map[string]*service.Slice{},
		Zones:    map[string]string{},
	}
	for _, s := range services {
		w.batch.Services[s.ID()] = s
	}
	for _, s := range all {
		w.batch.Slices[s.ID()] = s
	}
	for _, id := range gone {
		w.batch.Services[id], w.batch.Slices[id] = nil, nil
	}
	k.take()
}

// TestKeeper_SendsWhatChanged: a change of one slice is one slice; what loses its Service goes.
func TestKeeper_SendsWhatChanged(t *testing.T) {
	w, k := newWorld(service.DefaultBudgets)
	headless := &service.Service{Namespace: "shop", Name: "db", Unserved: "headless"}
	w.give(k, []*service.Service{web("web"), headless}, []*service.Slice{
		sliceOf("web", "web-1", 2), sliceOf("web", "web-2", 2), sliceOf("db", "db-1", 1), sliceOf("none", "n-1", 1),
	})
	want := []string{wire.ServiceKey("shop/web"), wire.SliceKey("shop/web-1"), wire.SliceKey("shop/web-2")}
	if !slices.Equal(w.keys(), want) {
		t.Fatalf("nodes hold %q, want %q", w.keys(), want)
	}
	if got, known := k.Get("shop/db"); !known || got.Service != headless {
		t.Errorf("the headless Service is %+v", got)
	}
	w.give(k, nil, []*service.Slice{sliceOf("web", "web-2", 3)})
	if got := w.changed(); !slices.Equal(got, []string{wire.ServiceKey("shop/web"), wire.SliceKey("shop/web-2")}) {
		t.Errorf("one slice changed, and %q are sent", got)
	}
	w.give(k, nil, []*service.Slice{sliceOf("none", "web-1", 2)})
	if got := w.keys(); !slices.Equal(got, []string{wire.ServiceKey("shop/web"), wire.SliceKey("shop/web-2")}) {
		t.Errorf("a slice became another Service's, and nodes hold %q", got)
	}
	w.give(k, nil, nil, "shop/web")
	if len(w.held) != 0 {
		t.Errorf("nodes hold %q after the Service was deleted", w.keys())
	}
	w.give(k, []*service.Service{web("none")}, nil)
	want = []string{wire.ServiceKey("shop/none"), wire.SliceKey("shop/n-1"), wire.SliceKey("shop/web-1")}
	if !slices.Equal(w.keys(), want) {
		t.Errorf("nodes hold %q, want %q", w.keys(), want)
	}
}

// TestKeeper_SlicesChangeOwner: a slice that becomes another Service's in the same batch as that changes is not lost.
func TestKeeper_SlicesChangeOwner(t *testing.T) {
	for range 20 { // of any order of a map
		w, k := newWorld(service.DefaultBudgets)
		w.give(k, []*service.Service{web("a"), web("b")}, []*service.Slice{sliceOf("a", "s", 1)})
		w.give(k, []*service.Service{web("a"), web("b")}, []*service.Slice{sliceOf("b", "s", 1)})
		e, err := wire.ToServiceEntry(wire.SliceKey("shop/s"), w.held[wire.SliceKey("shop/s")])
		if err != nil || e.Slice == nil || e.Slice.Service != "b" {
			t.Fatalf("nodes hold %+v, %v", e.Slice, err)
		}
	}
}

// TestKeeper_Budgets: what is left out is not sent, is counted, and comes back.
func TestKeeper_Budgets(t *testing.T) {
	budgets := service.DefaultBudgets
	budgets.Services, budgets.Service.Endpoints = 1, 3
	w, k := newWorld(budgets)
	w.give(k, []*service.Service{web("a"), web("b")}, []*service.Slice{sliceOf("a", "s", 5), sliceOf("b", "u", 5)})
	want := []string{wire.ServiceKey("shop/a"), wire.SliceKey("shop/s")}
	if got := w.keys(); !slices.Equal(got, want) || k.LeftOut() != 2 {
		t.Errorf("nodes hold %q, of %d something is left out", got, k.LeftOut())
	}
	w.give(k, nil, nil, "shop/a")
	want = []string{wire.ServiceKey("shop/b"), wire.SliceKey("shop/u")}
	if got := w.keys(); !slices.Equal(got, want) || k.LeftOut() != 1 {
		t.Errorf("nodes hold %q, of %d something is left out", got, k.LeftOut())
	}
}

// TestKeeper_BudgetEvents: each exceeded budget has one Event at its Service, and another one only after the Service was
// within it, or is another object of that name.
func TestKeeper_BudgetEvents(t *testing.T) {
	budgets := service.DefaultBudgets
	budgets.Services, budgets.Service.Endpoints = 1, 3
	w, k := newWorld(budgets)
	a, b := web("a"), web("b")
	a.UID, b.UID, b.CreatedAt = "u1", "u2", 1
	step := func(what string, want ...string) {
		t.Helper()
		slices.Sort(w.events)
		if !slices.Equal(w.events, want) {
			t.Errorf("%s: Events %q, want %q", what, w.events, want)
		}
		w.events = nil
	}
	const endpoints = "ServiceOverBudget shop/a u1: 2 endpoints: over the budget of 3 endpoints times ports"
	w.give(k, []*service.Service{a, b}, []*service.Slice{sliceOf("a", "s", 5)})
	step("both exceed one", endpoints,
		"ServiceOverBudget shop/b u2: the Service: over the budget of 1 Services of a namespace")
	w.give(k, nil, []*service.Slice{sliceOf("a", "s", 6)})
	step("more endpoints")
	w.give(k, nil, []*service.Slice{sliceOf("a", "s", 3)})
	step("within the budget")
	w.give(k, nil, []*service.Slice{sliceOf("a", "s", 5)})
	step("above it again", endpoints)
	again := web("a")
	again.UID = "u3"
	w.give(k, []*service.Service{again}, nil)
	step("created again", strings.Replace(endpoints, "u1", "u3", 1))
	w.give(k, nil, nil, "shop/a")
	step("the other one is within the budget")
}

// TestKeeper_BudgetLog: a Service that brings a namespace above its budget, and all Services with it, is one line of the
// log.
func TestKeeper_BudgetLog(t *testing.T) {
	budgets := service.DefaultBudgets
	budgets.Services, budgets.Namespace.Frontends = 4, 5
	w, k := newWorld(budgets)
	var log strings.Builder
	k.log = slog.New(slog.NewTextHandler(&log, nil))
	var all []*service.Service
	for i := range 4 {
		all = append(all, web(fmt.Sprint("web", i)))
		all[i].CreatedAt = 1
	}
	w.give(k, all, nil)
	large := web("large")
	large.Ports = make([]service.Port, 6)
	w.give(k, []*service.Service{large}, nil)
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "services=5") || len(w.events) != 5 {
		t.Errorf("%d lines and %d Events:\n%s", n, len(w.events), &log)
	}
}

// TestKeeper_Zones: zones of nodes are sent, and are gone with the node.
func TestKeeper_Zones(t *testing.T) {
	w, k := newWorld(service.DefaultBudgets)
	w.batch = &watch.ServiceBatch{Zones: map[string]string{"n1": "west", "n2": "east"}}
	k.take()
	w.batch = &watch.ServiceBatch{Zones: map[string]string{"n2": ""}}
	k.take()
	if got := w.keys(); !slices.Equal(got, []string{wire.ZoneKey("n1")}) || k.Zone("n1") != "west" || k.Zone("n2") != "" {
		t.Errorf("nodes hold %q", got)
	}
}

// TestKeeper_CatchUp: nodes are sent everything before this netmaster serves; also where the watches are late.
func TestKeeper_CatchUp(t *testing.T) {
	for _, late := range []error{nil, errors.New("late")} {
		w, k := newWorld(service.DefaultBudgets)
		w.late = late
		if k.CatchUp(t.Context(), nil); w.changes != nil || w.published != 1 {
			t.Errorf("%d entries are sent before Services are known", len(w.changes))
		}
		if _, known := k.All(); known {
			t.Error("Services count as known before they were listed")
		}
		w.batch = &watch.ServiceBatch{}
		if k.CatchUp(t.Context(), nil); w.changes == nil || w.published != 2 {
			t.Error("an empty cluster is not known")
		}
		w.changes = nil
		if k.take(); w.changes != nil {
			t.Error("nothing changed, and something is sent")
		}
	}
}

// TestKeeper_Run takes over what it is woken for, until its context ends.
func TestKeeper_Run(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, k := newWorld(service.DefaultBudgets)
		ctx, cancel := context.WithCancel(t.Context())
		go k.Run(ctx)
		synctest.Wait()
		w.batch = &watch.ServiceBatch{Services: map[string]*service.Service{"shop/web": web("web")}}
		w.wake <- struct{}{}
		synctest.Wait()
		if all, known := k.All(); !known || len(all) != 1 {
			t.Errorf("%d Services", len(all))
		}
		cancel()
	})
}
