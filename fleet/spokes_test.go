package fleet

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	workv1 "open-cluster-management.io/api/work/v1"
)

// spokes is the works on a hub and the spokes that act on them as OCM's work agent 0.15 does: it applies a work's manifests, owns what it
// has written, and deletes what it owns alone when a work has it no more.
type spokes struct {
	testing.TB
	works   map[Name]*workv1.ManifestWork // by cluster and name
	applied map[Name]map[Key]bool         // what the agent took note of as the work's
	objects map[string]map[Key]*spokeObject
	lacking map[schema.GroupResource]bool // kinds that no spoke knows
	refuses map[Key]bool                  // what no spoke lets be written
	version int
}

// spokeObject is an object on a spoke. The users' have no owners.
type spokeObject struct {
	json   string
	owners map[string]bool
	users  bool
}

func newSpokes(t testing.TB) *spokes {
	return &spokes{
		TB: t, works: map[Name]*workv1.ManifestWork{}, applied: map[Name]map[Key]bool{}, objects: map[string]map[Key]*spokeObject{},
		lacking: map[schema.GroupResource]bool{},
	}
}

func (s *spokes) existing(of func(Source) bool) (existing []*Existing) {
	for _, w := range s.works {
		if e := ReadExisting(w); of(e.Bundle) {
			existing = append(existing, e)
		}
	}
	return existing
}

// answers of all of a cluster's works.
func (s *spokes) answers(cluster string) (all []Answer) {
	for _, at := range s.names() {
		if at.Namespace == cluster {
			all = append(all, Answers(s.works[at])...)
		}
	}
	return all
}

// write does what the hub's API server does with a write.
func (s *spokes) write(w *Write) {
	s.Helper()
	at := Name{w.Cluster, w.Name}
	live := s.works[at]
	if live != nil && (live.ResourceVersion != w.ResourceVersion || live.DeletionTimestamp != nil) {
		s.Fatalf("%s of %v is of another version, or it is being deleted", w.Verb, at)
	}
	switch w.Verb {
	case Create:
		work, err := w.Work(nil)
		if err != nil || live != nil {
			s.Fatal(err, live)
		}
		work.Generation = 1
		s.store(at, work)
	case Update:
		var given *workv1.ManifestWork
		if w.Live {
			given = live
		}
		patch, err := w.Patch(given, len(live.Annotations) > 0)
		if err != nil {
			s.Fatal(err)
		}
		after := s.patched(live, patch)
		for i, config := range after.Spec.ManifestConfigs {
			if w.generation > 0 && config.UpdateStrategy.Type != live.Spec.ManifestConfigs[i].UpdateStrategy.Type {
				s.Fatalf("%v is not only asked for any more, whatever has been told meanwhile", config.ResourceIdentifier)
			}
		}
		s.store(at, after)
	case Delete:
		work := live.DeepCopy()
		work.DeletionTimestamp = &now
		s.store(at, work)
	}
}

// patched is a work after a JSON patch that replaces and adds fields.
func (s *spokes) patched(live *workv1.ManifestWork, patch []byte) *workv1.ManifestWork {
	var after Object
	if err := utiljson.Unmarshal([]byte(jsonOf(s, live)), &after); err != nil {
		s.Fatal(err)
	}
	var operations []operation
	if err := utiljson.Unmarshal(patch, &operations); err != nil {
		s.Fatal(err)
	}
	for _, o := range operations {
		path := strings.Split(strings.TrimPrefix(o.Path, "/"), "/")
		for i := range path {
			path[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(path[i])
		}
		last := len(path) - 1
		if n, err := strconv.Atoi(path[last]); err == nil {
			list := listOf(object(after, path[:last-1]...), path[last-1])
			if o.Op != "replace" || n >= len(list) {
				s.Fatalf("%s %s: there is nothing", o.Op, o.Path)
			}
			list[n] = o.Value
			continue
		}
		into := object(after, path[:last]...)
		if o.Op == "test" {
			if !same(into[path[last]], o.Value) {
				s.Fatalf("%s is %v and not %v", o.Path, into[path[last]], o.Value)
			}
			continue
		}
		if _, has := into[path[last]]; into == nil || o.Op == "replace" && !has {
			s.Fatalf("%s %s: there is nothing", o.Op, o.Path)
		}
		into[path[last]] = o.Value
	}
	work := as[workv1.ManifestWork](s, []byte(jsonOf(s, after)))
	if jsonOf(s, work.Spec) != jsonOf(s, live.Spec) {
		work.Generation++
	}
	return work
}

func (s *spokes) store(at Name, w *workv1.ManifestWork) {
	s.version++
	w.ResourceVersion = fmt.Sprint(s.version)
	if total := manifestBytes(w); total > 500<<10 || len(w.Spec.Workload.Manifests) == 0 {
		s.Fatalf("%v has %d bytes of manifests", at, total)
	}
	s.works[at] = w
}

func manifestBytes(w *workv1.ManifestWork) (total int) {
	for _, m := range w.Spec.Workload.Manifests {
		total += len(m.Raw)
	}
	return total
}

// late has a work's agent apply it, and another write of the work come before its report: it takes no note of what it
// has applied (open-cluster-management-io/ocm#632).
func (s *spokes) late(at Name) {
	w := s.works[at]
	if w.DeletionTimestamp != nil || s.objects[at.Namespace] == nil {
		return
	}
	orphans := orphansOf(w.Spec.DeleteOption)
	for i, m := range w.Spec.Workload.Manifests {
		s.apply(s.objects[at.Namespace], at, m.Raw, w.Spec.ManifestConfigs[i], orphans)
	}
}

// agent has a work's agent look at it.
func (s *spokes) agent(at Name) {
	w := s.works[at].DeepCopy()
	objects := s.objects[at.Namespace]
	if objects == nil {
		objects = map[Key]*spokeObject{}
		s.objects[at.Namespace] = objects
	}
	if w.DeletionTimestamp != nil {
		s.release(at, nil)
		s.collect(at)
		delete(s.works, at)
		delete(s.applied, at)
		return
	}
	orphans := orphansOf(w.Spec.DeleteOption)
	w.Status.ResourceStatus.Manifests = nil
	here, all := map[Key]bool{}, true
	for i, m := range w.Spec.Workload.Manifests {
		c := s.apply(objects, at, m.Raw, w.Spec.ManifestConfigs[i], orphans)
		c.ResourceMeta.Ordinal = int32(i)
		w.Status.ResourceStatus.Manifests = append(w.Status.ResourceStatus.Manifests, c)
		id := w.Spec.ManifestConfigs[i].ResourceIdentifier
		key := Key{id.Group, id.Resource, Name{id.Namespace, id.Name}}
		here[key] = objects[key] != nil
		all = all && statusIs(c.Conditions, workv1.ManifestApplied, metav1.ConditionTrue, "")
	}
	s.release(at, here)
	s.applied[at] = here
	w.Status.Conditions = []metav1.Condition{
		{Type: workv1.WorkApplied, Status: conditionStatus(all), ObservedGeneration: w.Generation},
		{Type: workv1.WorkAvailable, Status: metav1.ConditionUnknown, ObservedGeneration: w.Generation},
	}
	s.store(at, w)
}

func conditionStatus(is bool) metav1.ConditionStatus {
	if is {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}

// release deletes what a work owned and has no more, if no other owns it.
func (s *spokes) release(at Name, keep map[Key]bool) {
	for key, noted := range s.applied[at] {
		o := s.objects[at.Namespace][key]
		if _, kept := keep[key]; kept || !noted || o == nil || !o.owners[at.Name] {
			continue
		}
		if delete(o.owners, at.Name); len(o.owners) == 0 {
			if o.users {
				s.Errorf("%v of a user in %s was deleted", key, at.Namespace)
			}
			delete(s.objects[at.Namespace], key)
		}
	}
}

// collect does what the spoke's garbage collector does when a work is gone of which the agent took no note of all.
func (s *spokes) collect(at Name) {
	for key, o := range s.objects[at.Namespace] {
		if o.owners[at.Name] {
			if delete(o.owners, at.Name); len(o.owners) == 0 {
				delete(s.objects[at.Namespace], key)
			}
		}
	}
}

// apply does what a manifest asks for, and tells of it.
func (s *spokes) apply(objects map[Key]*spokeObject, at Name, raw []byte, config workv1.ManifestConfigOption, orphans map[workv1.ResourceIdentifier]bool) (c workv1.ManifestCondition) {
	id := config.ResourceIdentifier
	key := Key{id.Group, id.Resource, Name{id.Namespace, id.Name}}
	c.ResourceMeta = workv1.ManifestResourceMeta{Group: id.Group, Resource: id.Resource, Namespace: id.Namespace, Name: id.Name}
	if s.lacking[schema.GroupResource{Group: id.Group, Resource: id.Resource}] {
		c.ResourceMeta.Resource = ""
		c.ResourceMeta.Kind = textOf((&spokeObject{json: string(raw)}).tree(), "kind")
		c.Conditions = []metav1.Condition{
			{Type: workv1.ManifestApplied, Status: metav1.ConditionFalse, Message: fmt.Sprintf(`Failed to apply manifest: the server doesn't have a resource type %q`, c.ResourceMeta.Kind)},
			{Type: workv1.ManifestAvailable, Status: metav1.ConditionUnknown},
		}
		return c
	}
	o := objects[key]
	if key.Namespace != "" && objects[namespaceKey(key.Namespace)] == nil && config.UpdateStrategy.Type != workv1.UpdateStrategyTypeReadOnly {
		c.Conditions = []metav1.Condition{
			{Type: workv1.ManifestApplied, Status: metav1.ConditionFalse}, {Type: workv1.ManifestAvailable, Status: metav1.ConditionFalse, Reason: "ResourceNotAvailable"},
		}
		return c
	}
	refused := s.refuses[key] && config.UpdateStrategy.Type != workv1.UpdateStrategyTypeReadOnly
	switch {
	case refused:
	case config.UpdateStrategy.Type == workv1.UpdateStrategyTypeCreateOnly:
		if o == nil {
			o = &spokeObject{json: string(raw), owners: map[string]bool{}}
		}
		if !orphans[id] {
			o.owners[at.Name] = true
		}
	case config.UpdateStrategy.Type == workv1.UpdateStrategyTypeServerSideApply:
		if o == nil {
			o = &spokeObject{owners: map[string]bool{}}
		}
		if o.users {
			s.Errorf("%v of a user in %s was written", key, at.Namespace)
		}
		o.json = string(raw)
		o.owners[at.Name] = true
	}
	if o != nil {
		objects[key] = o
	}
	c.Conditions = []metav1.Condition{{Type: workv1.ManifestApplied, Status: conditionStatus(!refused)}, {Type: workv1.ManifestAvailable, Status: conditionStatus(o != nil)}}
	if o == nil {
		c.Conditions[1].Reason = "ResourceNotAvailable"
	} else if source := o.source(); source != "" {
		c.StatusFeedbacks.Values = []workv1.FeedbackValue{{Name: toldSource, Value: workv1.FieldValue{Type: workv1.String, String: &source}}}
	}
	return c
}

func (o *spokeObject) tree() (t Object) {
	_ = utiljson.Unmarshal([]byte(o.json), &t) // users' are not read
	return t
}

func (o *spokeObject) source() string {
	return textOf(object(o.tree(), "metadata", "annotations"), AnnotationSource)
}

// settle has all agents look and all be planned, until there is nothing to do, also after all agents have seen what the others did.
func (s *spokes) settle(w *wanted, most limits) (writes int) {
	s.Helper()
	done := false
	for range 20 {
		for _, at := range s.names() {
			s.agent(at)
		}
		plan := Plan(controller, w.works(most), s.existing(func(b Source) bool { return !w.frozen[b] }))
		for i := range plan {
			s.write(&plan[i])
		}
		writes += len(plan)
		if done && len(plan) == 0 {
			return writes
		}
		done = len(plan) == 0
	}
	s.Fatal("writes go on and on")
	return 0
}

func (s *spokes) names() []Name { return slices.SortedFunc(maps.Keys(s.works), Name.Compare) }

// missing are objects that are to be on spokes and are not, or not as they are to be. Those that have a user's in their place are not.
func (s *spokes) missing(works []*Work) (missing []string) {
	wanted := map[string]bool{}
	for _, w := range works {
		for _, c := range w.Copies {
			wanted[w.Cluster+" "+c.Key().String()+" "+c.Source.String()] = true
		}
	}
	for _, w := range works {
		for _, c := range w.Copies {
			o := s.objects[w.Cluster][c.Key()]
			switch {
			case o != nil && o.source() != c.Source.String() && wanted[w.Cluster+" "+c.Key().String()+" "+o.source()]: // the other has the name
			case c.Source == w.Bundle && slices.ContainsFunc(w.After, func(a Await) bool { return !s.arrived(w.Cluster, a, works) }): // it waits
			case s.lacking[c.Resource.GroupResource()], w.Held[c.Source], c.ReadOnly, c.Namespace != "" && s.objects[w.Cluster][namespaceKey(c.Namespace)] == nil:
			case o == nil || !o.users && !c.CreateOnly && o.json != string(c.JSON):
				missing = append(missing, fmt.Sprintf("%s: %v", w.Cluster, c.Key()))
			}
		}
	}
	return missing
}

// arrived reports whether a spoke has a policy as it is wanted. Of one that is held that is not known.
func (s *spokes) arrived(cluster string, a Await, works []*Work) bool {
	if slices.ContainsFunc(works, func(w *Work) bool { return w.Cluster == cluster && w.Held[a.Source] }) {
		return false
	}
	o := s.objects[cluster][a.Copy]
	return o != nil && !o.users && slices.ContainsFunc(works, func(w *Work) bool {
		return w.Cluster == cluster && slices.ContainsFunc(w.Copies, func(c *Copy) bool { return c.Key() == a.Copy && c.Source == a.Source && o.json == string(c.JSON) })
	})
}

// leaked are copies on spokes that nothing asks for. What is wanted under another name stays while something of the cluster can't be there.
func (s *spokes) leaked(works []*Work) (leaked []string) {
	wanted, named, lacks := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, w := range works {
		for _, c := range w.Copies {
			wanted[fmt.Sprint(w.Cluster, c.Key())] = true
			named[w.Cluster+c.Source.String()] = true
			if o := s.objects[w.Cluster][c.Key()]; !c.Orphan && (o == nil || o.source() != c.Source.String()) {
				lacks[w.Cluster] = true
			}
		}
	}
	for cluster, objects := range s.objects {
		for key, o := range objects {
			if named[cluster+o.source()] && lacks[cluster] {
				continue
			}
			if !wanted[fmt.Sprint(cluster, key)] && !o.users && key.Resource != "namespaces" {
				leaked = append(leaked, fmt.Sprintf("%s: %v", cluster, key))
			}
		}
	}
	return leaked
}

// hubIdentity is what of a hub's metadata no copy may have.
var hubIdentity = []string{"uid", "resourceVersion", "generation", "creationTimestamp", "ownerReferences", "finalizers", "managedFields", "selfLink", "deletionTimestamp", "generateName"}

func identityIn(t testing.TB, raw []byte) (found []string) {
	var o Object
	if err := json.Unmarshal(raw, &o); err != nil {
		t.Fatal(err)
	}
	for _, key := range hubIdentity {
		if _, has := object(o, "metadata")[key]; has {
			found = append(found, key)
		}
	}
	if _, has := o["status"]; has {
		found = append(found, "status")
	}
	if strings.Contains(string(raw), lastApplied) {
		found = append(found, lastApplied)
	}
	return found
}

// random is a source of choices.
type random struct{ *rand.Rand }

func (r random) one(of ...string) string { return of[r.IntN(len(of))] }

func (r random) some(of ...string) (chosen []string) {
	for _, one := range of {
		if r.IntN(2) == 0 {
			chosen = append(chosen, one)
		}
	}
	return chosen
}
