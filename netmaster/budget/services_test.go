package budget

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/service"
)

func narrow() service.Budgets {
	return service.Budgets{
		Service:   service.Budget{Frontends: 10, Ranges: 10, Endpoints: 6},
		Namespace: service.Budget{Frontends: 8, Ranges: 20, Endpoints: 14},
		Services:  4,
	}
}

// services is what the API server has.
type services struct {
	services map[string]*service.Service
	slices   map[string]*service.Slice
}

func randomServiceOf(r *rand.Rand, name string) *service.Service {
	s := &service.Service{
		Namespace:  []string{"a", "b"}[r.IntN(2)],
		Name:       name,
		CreatedAt:  int64(r.IntN(3)),
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(r.IntN(255))})},
	}
	if r.IntN(5) == 0 {
		s.Unserved = "headless"
	}
	for i := range r.IntN(4) {
		s.Ports = append(s.Ports, service.Port{Port: uint16(80 + i)})
	}
	return s
}

func randomSliceOf(r *rand.Rand, name string) *service.Slice {
	s := &service.Slice{
		Namespace: []string{"a", "b"}[r.IntN(2)],
		Name:      name,
		CreatedAt: int64(r.IntN(3)),
		Ports:     []service.SlicePort{{Port: 80}},
	}
	if r.IntN(6) > 0 {
		s.Service = fmt.Sprint("s", r.IntN(8))
	}
	for i := range r.IntN(6) {
		s.Endpoints = append(s.Endpoints, service.Endpoint{Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})})
	}
	return s
}

// change changes, adds or removes some objects, and returns them.
func (w *services) change(r *rand.Rand) (out services) {
	out = services{map[string]*service.Service{}, map[string]*service.Slice{}}
	for range 1 + r.IntN(3) {
		s := randomServiceOf(r, fmt.Sprint("s", r.IntN(8)))
		slice := randomSliceOf(r, fmt.Sprint("e", r.IntN(12)))
		out.services[s.ID()], out.slices[slice.ID()] = s, slice
		if r.IntN(3) == 0 {
			out.services[s.ID()] = nil
		}
		if r.IntN(3) == 0 {
			out.slices[slice.ID()] = nil
		}
	}
	for id, s := range out.services {
		if w.services[id] = s; s == nil {
			delete(w.services, id)
		}
	}
	for id, s := range out.slices {
		if w.slices[id] = s; s == nil {
			delete(w.slices, id)
		}
	}
	return out
}

// served is a plain reading of the budgets: which Services of a namespace have frontends, and how many endpoints.
func (w *services) served(b service.Budgets) map[string]int {
	var all []*service.Service
	for _, s := range w.services {
		if s.Unserved == "" {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *service.Service) int {
		byAge := cmp.Or(cmp.Compare(a.CreatedAt, b.CreatedAt), cmp.Compare(a.Name, b.Name))
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), byAge)
	})
	out := map[string]int{}
	for i, s := range all {
		frontends, endpoints, n := 0, 0, 0
		for _, t := range all[:i+1] {
			if t.Namespace != s.Namespace {
				continue
			}
			n++
			frontends += len(t.Ports)
			endpoints += min(w.endpoints(t), b.Service.Endpoints)
		}
		if n <= b.Services && frontends <= b.Namespace.Frontends && endpoints <= b.Namespace.Endpoints {
			out[s.ID()] = min(w.endpoints(s), b.Service.Endpoints)
		}
	}
	return out
}

func (w *services) endpoints(s *service.Service) (n int) {
	for _, slice := range w.slices {
		if slice.ServiceID() == s.ID() {
			n += len(slice.Endpoints)
		}
	}
	return n
}

// TestServices_RandomHistories: whatever came before, a ledger has given out what a plain reading of the budgets leaves,
// and what a new ledger gives out.
func TestServices_RandomHistories(t *testing.T) {
	withheld, trimmed := 0, 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 7))
		w := services{map[string]*service.Service{}, map[string]*service.Slice{}}
		l, given := NewServices(narrow()), map[string]Served{}
		for step := range 60 {
			changed := w.change(r)
			for id, s := range l.Take(changed.services, changed.slices) {
				if given[id] = s; s.Service == nil {
					delete(given, id)
				}
			}
			want := w.served(narrow())
			for id, s := range given {
				endpoints, is := want[id]
				got := 0
				for _, slice := range s.Slices {
					got += len(slice.Endpoints)
				}
				if w.services[id] == nil || is != (s.Service.Unserved == "") || got != endpoints {
					t.Fatalf("seed %d, step %d: %s is %+v with %d endpoints, want %v with %d",
						seed, step, id, s.Service, got, is, endpoints)
				}
				if is && s.LeftOut() != (w.endpoints(w.services[id]) > endpoints) {
					t.Fatalf("seed %d, step %d: %s has problems %q", seed, step, id, s.Service.Problems)
				}
				if s.LeftOut() && is {
					trimmed++
				} else if s.LeftOut() {
					withheld++
				}
			}
			again := NewServices(narrow()).Take(w.services, w.slices)
			if len(given) != len(w.services) || !same(given, again) {
				t.Fatalf("seed %d, step %d: a new ledger gives %+v", seed, step, again)
			}
		}
	}
	if withheld < 100 || trimmed < 100 {
		t.Errorf("%d withheld, %d trimmed: that is not all", withheld, trimmed)
	}
}

func same(given, again map[string]Served) bool {
	for id, s := range again {
		if s.Service != nil && !reflect.DeepEqual(given[id], s) {
			return false
		}
	}
	return true
}
