package fleet_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/fleet"
)

// agents are the work agents of many clusters, simulated: they see works and answer as Open Cluster Management's of v0.15 does, whose
// spokes do at once what they are told.
type agents struct {
	hub *fleet.Server

	mu    sync.Mutex
	works map[string]seen // by cluster and name
}

// seen is what the agents have seen of a work.
type seen struct {
	generation int64 // of its spec: how often it was written
	version    string
	bundle     string
	at         time.Time // when this generation was seen
	bytes      int
	manifests  int             // bytes
	holds      map[string]bool // sources, of the generation that was answered last
	answered   int64           // generation
	asks       bool            // something in it is only asked for
}

// workObject is what an agent reads of a work.
type workObject struct {
	Metadata struct {
		Name, Namespace, ResourceVersion string
		Generation                       int64
		Finalizers                       []string
		DeletionTimestamp                string
		Annotations                      map[string]string
	}
	Status struct {
		Conditions []struct {
			Type               string
			ObservedGeneration int64
		}
	}
	Spec struct {
		Workload struct {
			Manifests []json.RawMessage
		}
		ManifestConfigs []struct {
			ResourceIdentifier struct{ Group, Resource, Name, Namespace string }
			UpdateStrategy     struct{ Type string }
			FeedbackRules      []struct{ JSONPaths []struct{ Name string } }
		}
	}
}

// answered tells whether an agent has told all of a work as it is.
func (w *workObject) answered() bool {
	told := 0
	for _, c := range w.Status.Conditions {
		if c.ObservedGeneration == w.Metadata.Generation {
			told++
		}
	}
	return told == 2
}

// manifest is what an agent reads of one.
type manifest struct {
	APIVersion, Kind string
	Metadata         struct{ Annotations map[string]string }
}

// agent is that of one cluster.
type agent struct {
	*agents
	cluster string
	objects map[string]*spokeObject // by key
	told    map[string]object       // by work and key: what was said of a manifest last
	said    map[string][]any        // by work: of all

	mu      sync.Mutex
	pending map[string]json.RawMessage // works, by name
	news    chan struct{}
}

type spokeObject struct {
	source, copy string
	generation   int64
}

// run has the agents of these clusters work until ctx ends.
func (a *agents) run(ctx context.Context, clusters []string) {
	var all sync.WaitGroup
	for _, name := range clusters {
		one := &agent{agents: a, cluster: name, objects: map[string]*spokeObject{}, told: map[string]object{}, said: map[string][]any{}, pending: map[string]json.RawMessage{}, news: make(chan struct{}, 1)}
		all.Go(func() { one.watch(ctx) })
		all.Go(func() { one.work(ctx) })
	}
	all.Wait()
}

// watch sees works: also those that are too many to be answered as quickly.
func (a *agent) watch(ctx context.Context) {
	for ctx.Err() == nil {
		_ = a.hub.Watch(ctx, worksPath(a.cluster), func(kind string, raw json.RawMessage) { // it begins anew
			var w struct{ Metadata workMeta }
			if kind == "BOOKMARK" || json.Unmarshal(raw, &w) != nil {
				return
			}
			a.see(kind, &w.Metadata, len(raw))
			if kind == "DELETED" {
				return
			}
			a.mu.Lock()
			a.pending[w.Metadata.Name] = raw
			a.mu.Unlock()
			select {
			case a.news <- struct{}{}:
			default:
			}
		})
	}
}

type workMeta struct {
	Name, Namespace, ResourceVersion string
	Generation                       int64
	Annotations                      map[string]string
}

func (a *agents) see(kind string, m *workMeta, bytes int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := m.Namespace + "/" + m.Name
	if kind == "DELETED" {
		delete(a.works, key)
		return
	}
	s := a.works[key]
	if m.Generation != s.generation {
		s.at = time.Now()
	}
	s.generation, s.version, s.bundle, s.bytes = m.Generation, m.ResourceVersion, m.Annotations["fleet.flowkeep.io/bundle"], bytes
	a.works[key] = s
}

// all are the works as they are now.
func (a *agents) all() map[string]seen {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.works)
}

// some are those of these names.
func (a *agents) some(names []string) map[string]seen {
	a.mu.Lock()
	defer a.mu.Unlock()
	some := make(map[string]seen, len(names))
	for _, name := range names {
		some[name] = a.works[name]
	}
	return some
}

// holding are the names of those works that carry a source.
func (a *agents) holding(source string) (names []string) {
	for name, s := range a.all() {
		if s.holds[source] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (a *agent) work(ctx context.Context) {
	answered := map[string]int64{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.news:
		}
		a.mu.Lock()
		pending := a.pending
		a.pending = map[string]json.RawMessage{}
		a.mu.Unlock()
		for name, raw := range pending {
			var m struct{ Metadata workMeta }
			if json.Unmarshal(raw, &m) != nil || answered[name] == m.Metadata.Generation && !strings.Contains(string(raw), `"deletionTimestamp"`) {
				continue
			}
			switch err := a.answer(ctx, raw); {
			case err == nil:
				answered[name] = m.Metadata.Generation
			case cluster.NotFound(err), ctx.Err() != nil:
			default:
				a.again(name, raw)
			}
		}
	}
}

func (a *agent) again(name string, raw json.RawMessage) {
	a.mu.Lock()
	if a.pending[name] == nil {
		a.pending[name] = raw
	}
	a.mu.Unlock()
	select {
	case a.news <- struct{}{}:
	default:
	}
}

const workFinalizer = "cluster.open-cluster-management.io/manifest-work-cleanup"

// answer does what a work says, and tells so: that it is applied, and then what there is.
func (a *agent) answer(ctx context.Context, raw json.RawMessage) error {
	var w workObject
	if err := json.Unmarshal(raw, &w); err != nil {
		return err
	}
	path := worksPath(a.cluster) + "/" + w.Metadata.Name
	if w.Metadata.DeletionTimestamp != "" {
		return a.hub.Patch(ctx, path, `{"metadata":{"finalizers":null}}`)
	}
	if len(w.Metadata.Finalizers) == 0 {
		if err := a.hub.Patch(ctx, path, fmt.Sprintf(`{"metadata":{"finalizers":[%q]}}`, workFinalizer)); err != nil {
			return err
		}
	}
	if len(w.Spec.ManifestConfigs) != len(w.Spec.Workload.Manifests) {
		return errors.New("a manifest has no configuration")
	}
	s := seen{holds: map[string]bool{}}
	var applied, available []any
	for i, raw := range w.Spec.Workload.Manifests {
		var one manifest
		if err := json.Unmarshal(raw, &one); err != nil {
			return err
		}
		s.manifests += len(raw)
		s.holds[one.Metadata.Annotations["fleet.flowkeep.io/from-hub"]] = true
		s.asks = s.asks || w.Spec.ManifestConfigs[i].UpdateStrategy.Type == "ReadOnly"
		first, then, key := a.apply(&w, &one, i)
		if before := a.told[w.Metadata.Name+" "+key]; before != nil { // it stays until it is looked for anew
			meta := first["resourceMeta"]
			first = maps.Clone(before)
			first["resourceMeta"] = meta
		}
		a.told[w.Metadata.Name+" "+key] = then
		applied, available = append(applied, first), append(available, then)
	}
	first := statusOf(&w, applied, "Applied")
	if reflect.DeepEqual(applied, a.said[w.Metadata.Name]) { // agents patch what is new
		delete(first, "resourceStatus")
	}
	a.said[w.Metadata.Name] = available
	steps := []any{first, statusOf(&w, available, "Applied", "Available")}
	if w.answered() {
		steps = nil
	}
	for _, step := range steps {
		text, err := json.Marshal(map[string]any{"status": step})
		if err != nil {
			return err
		}
		if err := a.hub.Patch(ctx, path+"/status", string(text)); err != nil {
			return err
		}
	}
	a.agents.mu.Lock()
	defer a.agents.mu.Unlock()
	if now, there := a.works[a.cluster+"/"+w.Metadata.Name]; there {
		now.holds, now.asks, now.manifests, now.answered = s.holds, s.asks, s.manifests, w.Metadata.Generation
		a.works[a.cluster+"/"+w.Metadata.Name] = now
	}
	return nil
}

type object = map[string]any

func said(kind, status, reason, message string, generation int64) object {
	c := object{"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"}
	if generation > 0 {
		c["observedGeneration"] = generation
	}
	return c
}

func statusOf(w *workObject, manifests []any, kinds ...string) object {
	var conditions []any
	for _, kind := range kinds {
		conditions = append(conditions, said(kind, "True", kind+"ManifestWorkComplete", kind+" manifest work complete", w.Metadata.Generation))
	}
	return object{"conditions": conditions, "resourceStatus": object{"manifests": manifests}}
}

// apply does what is asked of one manifest, and tells of it before and after the agent has looked for what there is.
func (a *agent) apply(w *workObject, m *manifest, i int) (first, then object, key string) {
	config := &w.Spec.ManifestConfigs[i]
	id := config.ResourceIdentifier
	key = strings.Join([]string{id.Group, id.Resource, id.Namespace, id.Name}, "/")
	there := a.objects[key]
	if config.UpdateStrategy.Type != "ReadOnly" || m.Kind == "Namespace" { // each spoke has all
		if there == nil {
			there = &spokeObject{}
			a.objects[key] = there
		}
		if version := m.Metadata.Annotations["fleet.flowkeep.io/copy"]; there.copy != version || there.generation == 0 {
			there.generation++
			there.copy, there.source = version, m.Metadata.Annotations["fleet.flowkeep.io/from-hub"]
		}
	}
	group, version, _ := strings.Cut(m.APIVersion, "/")
	if version == "" {
		group, version = "", group
	}
	meta := object{"ordinal": i, "group": group, "version": version, "kind": m.Kind, "resource": id.Resource, "namespace": id.Namespace, "name": id.Name}
	done := said("Applied", "True", "AppliedManifestComplete", "Apply manifest complete", 0)
	first = object{"resourceMeta": meta, "conditions": []any{done}}
	if there == nil {
		return first, object{"resourceMeta": meta, "conditions": []any{done, said("Available", "False", "ResourceNotAvailable", "Resource is not available", 0)}}, key
	}
	var values []any
	for _, rule := range config.FeedbackRules {
		for _, path := range rule.JSONPaths {
			if v := there.value(m.Kind, path.Name); v != nil {
				values = append(values, object{"name": path.Name, "fieldValue": v})
			}
		}
	}
	return first, object{"resourceMeta": meta, "statusFeedback": object{"values": values}, "conditions": []any{
		done, said("Available", "True", "ResourceAvailable", "Resource is available", 0), said("StatusFeedbackSynced", "True", "StatusFeedbackSynced", "", 0),
	}}, key
}

// value is what there is at the path that is asked for under a name: gateways are accepted and programmed, policies accepted and enforced.
func (o *spokeObject) value(kind, name string) object {
	parts := strings.Split(name, ".")
	text := func(s string) object { return object{"type": "String", "string": s} }
	number := func(n int64) object { return object{"type": "Integer", "integer": n} }
	other := "Enforced"
	if kind == "Gateway" {
		other = "Programmed"
	}
	switch {
	case len(parts) > 2 && parts[0] == "top" && parts[1] != "Accepted" && parts[1] != other:
		return nil
	case name == "source":
		return text(o.source)
	case name == "copy":
		return text(o.copy)
	case name == "generation", parts[len(parts)-1] == "observedGeneration":
		return number(o.generation)
	case name == "address.0.type":
		return text("IPAddress")
	case name == "address.0.value":
		return text("192.0.2.1")
	case parts[len(parts)-1] == "attachedRoutes":
		return number(3)
	case len(parts) < 3:
		return nil
	}
	switch kind := parts[len(parts)-2]; parts[len(parts)-1] {
	case "status":
		return text("True")
	case "reason":
		return text(kind)
	case "message":
		return text("it has been " + strings.ToLower(kind) + ", and all that belongs to it")
	}
	return nil
}
