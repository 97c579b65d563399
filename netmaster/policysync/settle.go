package policysync

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/internal/fleet"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// begin watches what is watched first; the rest follows from what it brings.
func (w *world) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open(feed{resource: definitions.resource}, definitions, fleet.Kind{})
}

// settle takes up what follows for what is watched: which inputs there are, what classes say, which kinds they list.
func (w *world) settle() {
	crds := w.current[definitions]
	if crds == nil || !crds.synced {
		return
	}
	w.definitions = w.definitions[:0:0]
	w.eachRow(definitions, func(_ fleet.Name, row any) { w.definitions = append(w.definitions, *row.(*fleet.Definition)) })
	want := map[feed]bool{{resource: definitions.resource}: true}
	for _, in := range single[1:] {
		if in == sets && !w.shared && w.defined(sets.resource.GroupResource()) {
			w.miss(in, "they are left to the controller with the default controllerName")
			continue
		}
		if why := w.served(in.resource); why != "" {
			w.miss(in, why)
			continue
		}
		f := feed{resource: in.resource}
		if in == works {
			f.selector = fleet.LabelController + "=" + fleet.ControllerLabel(w.controller)
		}
		w.found(in)
		want[f] = true
		w.open(f, in, fleet.Kind{})
	}
	if t := w.current[sets]; t != nil && len(t.rows) > 0 {
		f := feed{resource: networkPolicyResource}
		want[f] = true
		w.open(f, networkPolicies, fleet.Kind{})
	}
	w.settleClasses(want)
	for f, t := range w.tables {
		if !want[f] {
			w.shut(t)
		}
	}
}

// served says why a resource is not; empty: it is.
func (w *world) served(r schema.GroupVersionResource) string {
	for i := range w.definitions {
		d := &w.definitions[i]
		if d.Group != r.Group || d.Resource != r.Resource {
			continue
		}
		if slices.ContainsFunc(d.Versions, func(v fleet.DefinedVersion) bool { return v.Name == r.Version }) {
			return ""
		}
		return fmt.Sprintf("the hub does not serve %s of %s", r.Version, r.GroupResource())
	}
	return fmt.Sprintf("the hub has no CustomResourceDefinition %s", r.GroupResource())
}

func (w *world) miss(in *input, why string) {
	if w.absent[in] == why {
		return
	}
	w.absent[in] = why
	if in.needed {
		w.log.Warn("nothing is sent until the hub has it; what was sent stays", "lacks", in.name, "why", why)
	} else {
		w.log.Info("the hub does without", "lacks", in.name, "why", why)
	}
}

func (w *world) found(in *input) {
	if w.absent[in] != "" {
		w.log.Info("the hub has it now", "found", in.name)
	}
	delete(w.absent, in)
}

// open watches, unless that is watched already.
func (w *world) open(f feed, in *input, kind fleet.Kind) {
	if w.tables[f] != nil {
		return
	}
	t := &table{world: w, feed: f, role: in, kind: kind, rows: map[fleet.Name]any{}}
	w.tables[f] = t
	if in != policies && in != parameters {
		w.current[in] = t
	}
	w.taps.start(f, t)
}

// shut ends a watch; what it brought is there no more.
func (w *world) shut(t *table) {
	w.taps.stop(t.feed)
	t.over = true
	delete(w.tables, t.feed)
	for name := range t.rows {
		t.have(name, nil)
	}
	if w.current[t.role] == t {
		delete(w.current, t.role)
	}
}

// settleClasses reads classes and their parameters anew, and adds what is to be watched for them.
func (w *world) settleClasses(want map[feed]bool) {
	found := map[string]*fleet.Class{}
	w.eachRow(classes, func(_ fleet.Name, row any) {
		if o := row.(*gatewayClass).typed; string(o.Spec.ControllerName) == w.controller && o.DeletionTimestamp == nil {
			found[o.Name] = w.readClass(o, want)
		}
	})
	w.settleKinds(found, want)
	for name, c := range found {
		if !reflect.DeepEqual(c, w.classes[name]) {
			w.classChanged(name, c)
		}
	}
	for name := range w.classes {
		if found[name] == nil {
			w.classChanged(name, nil)
		}
	}
	w.classes = found
	w.markUnlisted()
}

func (w *world) classChanged(name string, c *fleet.Class) {
	if c != nil {
		w.classes[name] = c // those that are touched are looked at when all is settled
	}
	w.tell(classSource(name))
	for g := range w.gatewaysOf[name] {
		w.touchGateway(g)
	}
}

// readClass reads a class with its ConfigMap, as far as that is known.
func (w *world) readClass(o *gatewayv1.GatewayClass, want map[feed]bool) *fleet.Class {
	name, err := fleet.ParametersRef(o)
	if err != nil {
		return fleet.ReadClass(o, nil, w.definitions)
	}
	f := feed{resource: configMapResource, namespace: name.Namespace, name: name.Name}
	want[f] = true
	w.open(f, parameters, fleet.Kind{})
	t := w.tables[f]
	if row, ok := t.rows[name].(*corev1.ConfigMap); ok && t.err == nil {
		return fleet.ReadClass(o, row, w.definitions)
	}
	c := fleet.ReadClass(o, nil, w.definitions)
	switch {
	case t.err != nil:
		c.Err = fmt.Errorf("ConfigMap %s cannot be read: %w", name, t.err)
	case !t.synced:
		c.Err = errNotRead
	}
	return c
}

// errNotRead: the ConfigMap is on its way.
var errNotRead = errors.New("its ConfigMap has not been read yet")

// settleKinds has each kind that a class lists watched once, in one version.
func (w *world) settleKinds(found map[string]*fleet.Class, want map[feed]bool) {
	var listed []fleet.Kind
	for _, c := range found {
		listed = append(listed, c.Kinds...)
	}
	kinds := map[schema.GroupResource]fleet.Kind{}
	for _, k := range fleet.OneVersion(listed) {
		resource := schema.GroupVersionResource{Group: k.Group, Version: k.Version, Resource: k.Resource}
		kinds[resource.GroupResource()] = k
		want[feed{resource: resource}] = true
	}
	w.kinds = kinds
	for resource, k := range kinds {
		w.open(feed{resource: resource.WithVersion(k.Version)}, policies, k)
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		w.settleClass(found[name])
	}
	w.metrics.watched.Set(float64(len(kinds)))
}

// settleClass says which of a class's kinds can't be read, or have not been yet.
func (w *world) settleClass(c *fleet.Class) {
	var unread []string
	for i, k := range c.Kinds {
		resource := schema.GroupResource{Group: k.Group, Resource: k.Resource}
		c.Kinds[i] = w.kinds[resource]
		t := w.tables[feed{resource: resource.WithVersion(c.Kinds[i].Version)}]
		switch {
		case t.err != nil:
			text := fmt.Sprintf("%s.%s: the hub's API server does not give them: %v", k.Kind, k.Group, t.err)
			unread = append(unread, text)
			c.Problems = append(c.Problems, fleet.Problem{Source: classSource(c.Name), Reason: fleet.ReasonKindUnreadable, Message: text})
		case !t.synced:
			unread = append(unread, fmt.Sprintf("%s.%s: they have not been read yet", k.Kind, k.Group))
		}
	}
	slices.SortStableFunc(c.Problems, func(a, b fleet.Problem) int { return cmp.Compare(a.Message, b.Message) })
	c.Frozen = strings.Join(unread, "; ")
}
