package controller

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/flowkeep/flowkeep/fleet"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/metadata"
)

// observer is a watcher that keeps which versions of objects its watches have brought.
type observer struct {
	watcher
	mu    sync.Mutex
	feeds map[feed]*observed
}

func (o *observer) start(f feed, to sink) {
	one := &observed{sink: to}
	o.mu.Lock()
	o.feeds[f] = one
	o.mu.Unlock()
	o.watcher.start(f, one)
}

func (o *observer) stop(f feed) {
	o.mu.Lock()
	delete(o.feeds, f)
	o.mu.Unlock()
	o.watcher.stop(f)
}

// observed is a sink that keeps the versions of the objects that the next one has taken.
type observed struct {
	sink
	mu       sync.Mutex
	versions map[fleet.Name]string // nil: there was no list yet
}

// versioned is an object as the next sink keeps it, and its version.
type versioned struct {
	value   any
	version string
}

func (o *observed) slim(u *unstructured.Unstructured) any {
	version := u.GetResourceVersion()
	return &versioned{o.sink.slim(u), version}
}

func (o *observed) all(values map[fleet.Name]any) {
	versions := map[fleet.Name]string{}
	for name, value := range values {
		v := value.(*versioned)
		values[name], versions[name] = v.value, v.version
	}
	o.sink.all(values)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.versions = versions
}

func (o *observed) put(name fleet.Name, value any) {
	v := value.(*versioned)
	o.sink.put(name, v.value)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.versions[name] = v.version
}

func (o *observed) remove(name fleet.Name) {
	o.sink.remove(name)
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.versions, name)
}

// differs returns an error unless the sink has taken these versions, and no other objects.
func (o *observed) differs(f feed, versions map[fleet.Name]string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.versions == nil || !maps.Equal(o.versions, versions) {
		return fmt.Errorf("the watch of %s has brought %v, the hub has %v", f, o.versions, versions)
	}
	return nil
}

// versions returns the objects of each feed that is watched, and their versions, as the API server has them now. Feeds
// that contain one of the texts are left out: the controller can't read them.
func (r *running) versions(but []string) (map[feed]map[fleet.Name]string, error) {
	found := map[feed]map[fleet.Name]string{}
	for _, f := range r.feeds(but) {
		var in metadata.ResourceInterface = r.names.Resource(f.resource)
		if f.namespace != "" {
			in = r.names.Resource(f.resource).Namespace(f.namespace)
		}
		list, err := in.List(r.Context(), f.options(metav1.ListOptions{}))
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", f, err)
		}
		found[f] = map[fleet.Name]string{}
		for i := range list.Items {
			o := &list.Items[i]
			found[f][fleet.Name{Namespace: o.Namespace, Name: o.Name}] = o.ResourceVersion
		}
	}
	return found, nil
}

// feeds returns what is watched, but for feeds that contain one of the texts.
func (r *running) feeds(but []string) []feed {
	r.watches.mu.Lock()
	defer r.watches.mu.Unlock()
	all := slices.Collect(maps.Keys(r.watches.feeds))
	return slices.DeleteFunc(all, func(f feed) bool {
		return slices.ContainsFunc(but, func(text string) bool { return strings.Contains(f.String(), text) })
	})
}

// delivered returns an error unless the controller and the agents have what the API server has, and the agents have
// answered all of it.
func (r *running) delivered(hub map[feed]map[fleet.Name]string, but []string) error {
	for _, f := range r.feeds(but) {
		r.watches.mu.Lock()
		one := r.watches.feeds[f]
		r.watches.mu.Unlock()
		if one == nil || hub[f] == nil {
			return fmt.Errorf("what is watched changes: %s", f)
		}
		if err := one.differs(f, hub[f]); err != nil {
			return err
		}
	}
	r.hubWorld.mu.Lock()
	agents, asleep := r.spokes[r.name], r.asleep
	r.hubWorld.mu.Unlock()
	if agents == nil || asleep {
		return nil
	}
	for f, versions := range hub {
		if f.resource == works.resource {
			return agents.unanswered(versions)
		}
	}
	return nil
}

// caughtUp waits until the controller and the agents have what the API server has, and the agents have answered all of
// it.
func (r *running) caughtUp() {
	r.Helper()
	r.eventually(func() error {
		hub, err := r.versions(nil)
		return cmp.Or(err, r.delivered(hub, nil))
	})
}

// idle waits until nothing is left to do: the controller and the agents have what the API server has, and have acted on
// it. The controller can't read the feeds that contain one of the texts.
func (r *running) idle(but ...string) {
	r.Helper()
	r.ready()
	r.eventually(func() error { return r.busy(but) })
}

// busy returns why the controller is not idle. All that the API server has was brought before the queues were empty,
// and it is the same afterwards: so nothing was written meanwhile, and no event is on its way.
func (r *running) busy(but []string) error {
	before, err := r.versions(but)
	if err != nil {
		return err
	}
	if err := r.delivered(before, but); err != nil {
		return err
	}
	bundles, statuses := r.inner.world.bundles.outstanding(), r.inner.world.statuses.tells.outstanding()
	if bundles+statuses > 0 {
		return fmt.Errorf("%d bundles and %d statuses are to be processed", bundles, statuses)
	}
	after, err := r.versions(but)
	if err != nil {
		return err
	}
	if !reflect.DeepEqual(before, after) {
		return fmt.Errorf("the hub had %v and has %v", before, after)
	}
	return nil
}
