package controller

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/fleet"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// subscriptions decides which inputs are watched, by what those that are watched contain. The world's mutex guards it.
type subscriptions struct {
	w    *world
	taps watcher
	// absent has the reasons why inputs that are needed are not watched.
	absent      map[*input]string
	definitions []fleet.Definition
	classes     map[string]*fleet.Class
	// kinds are the kinds of policies that are watched.
	kinds map[schema.GroupResource]fleet.Kind
	// swept are kinds that are not watched and have no conditions of ours any more.
	swept map[schema.GroupResource]bool
	// unsettled is set when Gateways have changed that may name other Secrets.
	unsettled bool
}

// begin watches what is watched first; the rest follows from what it brings.
func (st *subscriptions) begin() {
	st.w.mu.Lock()
	defer st.w.mu.Unlock()
	st.open(feed{resource: definitions.resource}, definitions, fleet.Kind{})
}

// settle takes up what follows for what is watched: which inputs there are, what classes say, which kinds they list.
func (st *subscriptions) settle() {
	crds := st.w.current[definitions]
	if crds == nil || !crds.synced {
		return
	}
	st.definitions = st.definitions[:0:0]
	st.w.eachRow(definitions, func(_ fleet.Name, row any) {
		st.definitions = append(st.definitions, *row.(*fleet.Definition))
	})
	want := map[feed]bool{{resource: definitions.resource}: true}
	for _, in := range single[1:] {
		if in == sets && !st.w.shared && st.w.hub.defined(sets.resource.GroupResource()) {
			st.miss(in, "they are left to the controller with the default controllerName")
			continue
		}
		if why := st.served(in.resource); why != "" {
			st.miss(in, why)
			continue
		}
		f := feed{resource: in.resource}
		if in == works {
			f.selector = fleet.LabelController + "=" + fleet.ControllerLabel(st.w.controller)
		}
		st.found(in)
		want[f] = true
		st.open(f, in, fleet.Kind{})
	}
	if t := st.w.current[sets]; t != nil && len(t.rows) > 0 {
		f := feed{resource: networkPolicyResource}
		want[f] = true
		st.open(f, networkPolicies, fleet.Kind{})
	}
	st.settleClasses(want)
	st.settleSecrets(want)
	for f, t := range st.w.tables {
		if !want[f] {
			st.shut(t)
		}
	}
}

// served says why a resource is not; empty: it is.
func (st *subscriptions) served(r schema.GroupVersionResource) string {
	for i := range st.definitions {
		d := &st.definitions[i]
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

func (st *subscriptions) miss(in *input, why string) {
	if st.absent[in] == why {
		return
	}
	st.absent[in] = why
	if in.needed {
		st.w.log.Warn("nothing is sent until the hub has it; what was sent stays", "lacks", in.name, "why", why)
	} else {
		st.w.log.Info("the hub does without", "lacks", in.name, "why", why)
	}
}

func (st *subscriptions) found(in *input) {
	if st.absent[in] != "" {
		st.w.log.Info("the hub has it now", "found", in.name)
	}
	delete(st.absent, in)
}

// open watches, unless that is watched already.
func (st *subscriptions) open(f feed, in *input, kind fleet.Kind) {
	if st.w.tables[f] != nil {
		return
	}
	t := &table{world: st.w, feed: f, role: in, kind: kind, rows: map[fleet.Name]any{}}
	st.w.tables[f] = t
	if in != policies && in != parameters && in != secrets {
		st.w.current[in] = t
	}
	st.taps.start(f, t)
}

// shut ends a watch; what it brought is there no more.
func (st *subscriptions) shut(t *table) {
	st.taps.stop(t.feed)
	t.over = true
	delete(st.w.tables, t.feed)
	for name := range t.rows {
		t.have(name, nil)
	}
	if st.w.current[t.role] == t {
		delete(st.w.current, t.role)
	}
}

// settleClasses reads classes and their parameters, and adds the feeds that they need.
func (st *subscriptions) settleClasses(want map[feed]bool) {
	found := map[string]*fleet.Class{}
	st.w.eachRow(classes, func(_ fleet.Name, row any) {
		if o := row.(*gatewayClass).typed; string(o.Spec.ControllerName) == st.w.controller && o.DeletionTimestamp == nil {
			found[o.Name] = st.readClass(o, want)
		}
	})
	st.settleKinds(found, want)
	for name, c := range found {
		if !reflect.DeepEqual(c, st.classes[name]) {
			st.classChanged(name, c)
		}
	}
	for name := range st.classes {
		if found[name] == nil {
			st.classChanged(name, nil)
		}
	}
	st.classes = found
	st.markUnlisted()
}

func (st *subscriptions) classChanged(name string, c *fleet.Class) {
	if c != nil {
		st.classes[name] = c // those that are touched are looked at when all is settled
	}
	st.w.statuses.tell(classSource(name))
	for g := range st.w.gatewaysOf[name] {
		st.w.touchGateway(g)
	}
}

// readClass reads a class with its ConfigMap, as far as that is known.
func (st *subscriptions) readClass(o *gatewayv1.GatewayClass, want map[feed]bool) *fleet.Class {
	name, err := fleet.ParametersRef(o)
	if err != nil {
		return fleet.ReadClass(o, nil, st.definitions)
	}
	f := feed{resource: configMapResource, namespace: name.Namespace, name: name.Name}
	want[f] = true
	st.open(f, parameters, fleet.Kind{})
	t := st.w.tables[f]
	if row, ok := t.rows[name].(*corev1.ConfigMap); ok && t.err == nil {
		return fleet.ReadClass(o, row, st.definitions)
	}
	c := fleet.ReadClass(o, nil, st.definitions)
	switch {
	case t.err != nil:
		c.Err = fmt.Errorf("ConfigMap %s cannot be read: %w", name, t.err)
	case !t.synced:
		c.Err, c.Pending = errNotRead, true
	}
	return c
}

// errNotRead: the ConfigMap is on its way.
var errNotRead = errors.New("its ConfigMap has not been read yet")

// settleKinds has each kind that a class lists watched once, in one version.
func (st *subscriptions) settleKinds(found map[string]*fleet.Class, want map[feed]bool) {
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
	st.kinds = kinds
	for resource, k := range kinds {
		st.open(feed{resource: resource.WithVersion(k.Version)}, policies, k)
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		st.settleClass(found[name])
	}
	st.w.metrics.watched.Set(float64(len(kinds)))
}

// settleClass says which of a class's kinds can't be read, or have not been yet.
func (st *subscriptions) settleClass(c *fleet.Class) {
	var unread []string
	failed := false
	for i, k := range c.Kinds {
		resource := schema.GroupResource{Group: k.Group, Resource: k.Resource}
		c.Kinds[i] = st.kinds[resource]
		t := st.w.tables[feed{resource: resource.WithVersion(c.Kinds[i].Version)}]
		switch {
		case t.err != nil:
			text := fmt.Sprintf("%s.%s: the hub's API server does not give them: %v", k.Kind, k.Group, t.err)
			unread, failed = append(unread, text), true
			c.Problems = append(c.Problems, fleet.Problem{Source: classSource(c.Name), Reason: fleet.ReasonKindUnreadable, Message: text})
		case !t.synced:
			unread = append(unread, fmt.Sprintf("%s.%s: they have not been read yet", k.Kind, k.Group))
			c.Pending = true
		}
	}
	slices.SortStableFunc(c.Problems, func(a, b fleet.Problem) int { return cmp.Compare(a.Message, b.Message) })
	c.Frozen = strings.Join(unread, "; ")
	c.Pending = c.Pending && !failed // an error is reported at once
}
