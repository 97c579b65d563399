// Package history keeps past states of the cluster, to explain what was in force. It stores the present state and,
// for each change, the values before it; a past state is computed by undoing changes. Values are shared with the
// engine, so that the memory is proportional to the changes.
package history

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Config limits what is kept. The limit that is reached first applies.
type Config struct {
	Most  int // changes; 0: nothing is kept
	Bytes int // estimated memory of the former values
}

// DefaultBytes suffices for about 100,000 changed pods.
const DefaultBytes = 64 << 20

// History is safe for concurrent use.
type History struct {
	cfg Config

	mu         sync.Mutex
	endpoints  []held // by resolve.Held.Place
	policies   map[string]*policy.Policy
	namespaces map[string]*policy.Namespace
	steps      []step // oldest first
	bytes      int
	used       map[string]int // part of bytes, by namespace
	gaps       map[string]int // number of the last step with dropped entries, by namespace
	number     int            // of the newest step
	first      Moment         // before all steps
	begun      bool
}

type held struct {
	endpoint *policy.Endpoint
	orphan   bool
}

// step is the state before a change, as far as it differs.
type step struct {
	number       int
	after        Moment
	endpoints    []endpointWas
	policies     []policyWas
	namespaces   []namespaceWas
	namespacesOf []string // namespaces of all entries
	bytes        int
}

type endpointWas struct {
	place     uint32
	namespace string // of the pod, or of its replacement
	held
}

type policyWas struct {
	id     string
	policy *policy.Policy
}

type namespaceWas struct {
	name      string
	namespace *policy.Namespace
}

// Moment is a revision and its start.
type Moment struct {
	Revision uint64
	At       time.Time
}

// Kept is the range of states that are kept.
type Kept struct {
	Oldest, Newest Moment
	Changes, Bytes int
}

// New returns an empty history.
func New(cfg Config) *History {
	return &History{
		cfg:        cfg,
		policies:   map[string]*policy.Policy{},
		namespaces: map[string]*policy.Namespace{},
		used:       map[string]int{},
		gaps:       map[string]int{},
	}
}

// Record stores what the engine's last Apply changed for a batch. The first recorded batch is the initial state.
func (h *History) Record(e *resolve.Engine, b *resolve.Batch, at time.Time) {
	if h == nil || h.cfg.Most <= 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s := step{after: Moment{e.Revision(), at}}
	for v := range e.Moved() {
		h.putEndpoint(&s, v)
	}
	for _, id := range b.DeletedPolicies {
		h.putPolicy(&s, id, nil)
	}
	for _, p := range b.Policies {
		h.putPolicy(&s, p.ID(), p)
	}
	for _, name := range b.DeletedNamespaces {
		h.putNamespace(&s, name, nil)
	}
	for i := range b.Namespaces {
		h.putNamespace(&s, b.Namespaces[i].Name,
			&policy.Namespace{Name: b.Namespaces[i].Name, Labels: b.Namespaces[i].Labels})
	}
	h.add(s)
}

// add appends a step, and drops what exceeds the limits.
func (h *History) add(s step) {
	if !h.begun {
		h.begun, h.first = true, s.after
		clear(h.used)
		return
	}
	changed := len(s.endpoints)+len(s.policies)+len(s.namespaces) > 0
	if !changed && s.after.Revision == h.newest().Revision {
		return
	}
	h.number++
	s.number = h.number
	h.steps = append(h.steps, s)
	h.bytes += s.bytes
	h.curtail(s.namespacesOf)
	n := 0
	for ; len(h.steps)-n > h.cfg.Most || h.bytes > h.cfg.Bytes && n < len(h.steps); n++ {
		h.first = h.steps[n].after
		h.release(&h.steps[n])
	}
	clear(h.steps[:n])
	if h.steps = h.steps[n:]; n > 0 {
		h.forgetGaps()
	}
}

func (h *History) newest() Moment {
	if n := len(h.steps); n > 0 {
		return h.steps[n-1].after
	}
	return h.first
}

func (h *History) putEndpoint(s *step, v resolve.Held) {
	if n := int(v.Place) + 1; n > len(h.endpoints) {
		h.endpoints = append(h.endpoints, make([]held, n-len(h.endpoints))...)
	}
	before := h.endpoints[v.Place]
	now := held{v.Endpoint, v.Orphan}
	if before == now || before.orphan == now.orphan && reflect.DeepEqual(before.endpoint, now.endpoint) {
		return
	}
	h.endpoints[v.Place] = now
	was := endpointWas{place: v.Place, held: before}
	if before.endpoint != nil {
		was.namespace = before.endpoint.Namespace
	} else if now.endpoint != nil {
		was.namespace = now.endpoint.Namespace
	}
	s.endpoints = append(s.endpoints, was)
	h.charge(s, was.namespace, sizeOfEndpoint(before.endpoint))
}

func (h *History) putPolicy(s *step, id string, p *policy.Policy) {
	before := h.policies[id]
	if before == p {
		return
	}
	if p == nil {
		delete(h.policies, id)
	} else {
		h.policies[id] = p
	}
	s.policies = append(s.policies, policyWas{id, before})
	h.charge(s, namespaceOf(id), sizeOfPolicy(before))
}

func (h *History) putNamespace(s *step, name string, ns *policy.Namespace) {
	before := h.namespaces[name]
	if before == nil && ns == nil || before != nil && ns != nil && maps.Equal(before.Labels, ns.Labels) {
		return
	}
	if ns == nil {
		delete(h.namespaces, name)
	} else {
		h.namespaces[name] = ns
	}
	s.namespaces = append(s.namespaces, namespaceWas{name, before})
	h.charge(s, name, sizeOfNamespace(before))
}

// namespaceOf returns the namespace of "namespace/name".
func namespaceOf(id string) string {
	namespace, _, _ := strings.Cut(id, "/")
	return namespace
}

// Kept returns what is kept; false if that is nothing, by Config or because nothing was recorded yet.
func (h *History) Kept() (Kept, bool) {
	if h == nil {
		return Kept{}, false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return Kept{h.first, h.newest(), len(h.steps), h.bytes}, h.begun
}

// AtRevision returns the last state of a revision. Errors state what is kept.
func (h *History) AtRevision(revision uint64) (*State, error) {
	return h.at(func(m Moment) bool { return m.Revision > revision }, func(k Kept) error {
		if revision > k.Newest.Revision {
			return fmt.Errorf("revision %d is not there yet: the newest is %d", revision, k.Newest.Revision)
		}
		return fmt.Errorf("revision %d is not kept: the oldest that is, is %d, of %s", revision, k.Oldest.Revision,
			k.Oldest.At.UTC().Format(time.RFC3339))
	}, func(k Kept) bool { return revision >= k.Oldest.Revision && revision <= k.Newest.Revision })
}

// AtTime returns the state at a time, by the local clock. Errors state what is kept.
func (h *History) AtTime(t time.Time) (*State, error) {
	return h.at(func(m Moment) bool { return m.At.After(t) }, func(k Kept) error {
		return fmt.Errorf("what was in force at %s is not kept: the oldest revision that is, is %d, of %s",
			t.UTC().Format(time.RFC3339), k.Oldest.Revision, k.Oldest.At.UTC().Format(time.RFC3339))
	}, func(k Kept) bool { return !t.Before(k.Oldest.At) })
}

// at returns the state before all steps for which after is true.
func (h *History) at(after func(Moment) bool, missing func(Kept) error, kept func(Kept) bool) (*State, error) {
	k, ok := h.Kept()
	switch {
	case !ok:
		return nil, fmt.Errorf("this netmaster keeps no earlier revisions (--history)")
	case !kept(k):
		return nil, missing(k)
	}
	h.mu.Lock()
	if !kept(Kept{Oldest: h.first, Newest: h.newest()}) { // dropped meanwhile
		k.Oldest = h.first
		h.mu.Unlock()
		return nil, missing(k)
	}
	i := sort.Search(len(h.steps), func(i int) bool { return after(h.steps[i].after) })
	s := &State{
		Moment:     h.first,
		endpoints:  slices.Clone(h.endpoints),
		policies:   maps.Clone(h.policies),
		namespaces: maps.Clone(h.namespaces),
	}
	if i > 0 {
		s.Moment = h.steps[i-1].after
	}
	undo := slices.Clone(h.steps[i:])
	gaps := h.missing(undo)
	h.mu.Unlock()
	if len(undo) > 0 {
		s.Until = undo[0].after.At
	}
	for _, step := range slices.Backward(undo) {
		s.undo(&step)
	}
	s.leaveOut(gaps)
	return s, nil
}

// Estimated sizes, in bytes.
const (
	small = 64
	large = 320
)

func sizeOfLabels(labels map[string]string) int {
	n := 0
	for k, v := range labels {
		n += small + len(k) + len(v)
	}
	return n
}

func sizeOfNamespace(ns *policy.Namespace) int {
	if ns == nil {
		return small
	}
	return small + sizeOfLabels(ns.Labels)
}

func sizeOfEndpoint(e *policy.Endpoint) int {
	if e == nil {
		return small
	}
	return large + sizeOfLabels(e.Labels) + small*(len(e.Addresses)+len(e.Ports))
}

func sizeOfPolicy(p *policy.Policy) int {
	if p == nil {
		return small
	}
	n := large + sizeOfSelector(&p.AppliedTo)
	for _, rules := range [][]policy.PolicyRule{p.Ingress, p.Egress} {
		for i := range rules {
			n += small + small*len(rules[i].Ports)
			for _, peer := range rules[i].Peers {
				n += small + sizeOfSelector(peer.Namespaces) + sizeOfSelector(peer.Pods)
				if peer.Block != nil {
					n += small + small*len(peer.Block.Except)
				}
			}
		}
	}
	return n
}

func sizeOfSelector(s *policy.Selector) int {
	if s == nil {
		return 0
	}
	n := small
	for i := range s.Requirements {
		r := &s.Requirements[i]
		n += small + len(r.Key)
		for _, v := range r.Values {
			n += small/2 + len(v)
		}
	}
	return n
}
