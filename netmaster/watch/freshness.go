package watch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// ref identifies an object of a resource.
type ref struct{ namespace, name string }

// listed is a consistent list of the API server's objects with their versions, and the version of the list.
type listed struct {
	objects map[ref]uint64
	version uint64
}

// seen holds the versions of a resource's objects that were delivered or are about to be.
type seen struct {
	held map[ref]uint64
	gone map[ref]uint64 // versions of deletions, recorded only during comparisons
}

// lack is a difference between a list and what was delivered. The zero lack is none.
type lack struct {
	object  ref
	version uint64 // 0: the object is not in the list
}

// String describes the lack for logs.
func (l lack) String() string {
	switch {
	case l == lack{}:
		return ""
	case l.version == 0:
		return fmt.Sprintf("that %s/%s is gone", l.object.namespace, l.object.name)
	}
	return fmt.Sprintf("version %d of %s/%s", l.version, l.object.namespace, l.object.name)
}

// behind returns one difference to a list. What was delivered may be newer than the list.
func (s *seen) behind(l *listed) lack {
	for r, version := range l.objects {
		if s.held[r] < version && s.gone[r] < version {
			return lack{r, version}
		}
	}
	for r, version := range s.held {
		if _, there := l.objects[r]; !there && version <= l.version {
			return lack{object: r}
		}
	}
	return lack{}
}

// lacks reports whether a difference to a list still exists.
func (s *seen) lacks(what lack, l *listed) bool {
	held, there := s.held[what.object]
	if what.version == 0 {
		return there && held <= l.version
	}
	return held < what.version && s.gone[what.object] < what.version
}

// freshness records the resourceVersion of every delivered object, so that a new leader can check its caches against
// a consistent list (CatchUp). It takes about 100 bytes an object. Safe for concurrent use.
type freshness struct {
	mu       sync.Mutex
	of       map[string]*seen // by resource; nil: not recorded
	changed  chan struct{}    // closed at the next change; nil: no waiters
	compares int              // comparisons in progress
	lags     map[string]lag   // by resource: the difference that a comparison waits for
}

// lag is a difference and the time when it was first found.
type lag struct {
	what  lack
	since time.Time
}

// Keep makes the watcher record versions, which CatchUp needs. Call it before Run.
func (w *Watcher) Keep() {
	w.fresh.of, w.fresh.lags = map[string]*seen{}, map[string]lag{}
	for resource := range watched {
		w.fresh.of[resource] = &seen{held: map[ref]uint64{}}
	}
}

func (f *freshness) put(resource string, o metav1.Object) {
	f.note(resource, o, func(s *seen, r ref, version uint64) {
		s.held[r] = version
		delete(s.gone, r)
	})
}

func (f *freshness) remove(resource string, o metav1.Object) {
	f.note(resource, o, func(s *seen, r ref, version uint64) {
		delete(s.held, r)
		if s.gone != nil {
			s.gone[r] = version
		}
	})
}

func (f *freshness) note(resource string, o metav1.Object, change func(*seen, ref, uint64)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.of[resource]
	if s == nil {
		return
	}
	version, _ := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	change(s, ref{o.GetNamespace(), o.GetName()}, version)
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// behind returns a difference to a list, and a channel that is closed when to check again. The argument before is
// the previous result.
func (f *freshness) behind(resource string, l *listed, before lack) (what lack, again <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed == nil {
		f.changed = make(chan struct{})
	}
	s := f.of[resource]
	if what = before; what == (lack{}) || !s.lacks(what, l) {
		what = s.behind(l)
	}
	f.keepLag(resource, what)
	return what, f.changed
}

// keepLag records since when a watch has been late.
func (f *freshness) keepLag(resource string, what lack) {
	if what == (lack{}) {
		delete(f.lags, resource)
		return
	}
	since := time.Now()
	if was, lags := f.lags[resource]; lags {
		since = was.since
	}
	f.lags[resource] = lag{what, since}
}

// compare records deletions while do runs.
func (f *freshness) compare(do func() error) error {
	f.mu.Lock()
	if f.compares++; f.compares == 1 {
		for _, s := range f.of {
			s.gone = map[ref]uint64{}
		}
	}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.compares--; f.compares > 0 {
			return
		}
		clear(f.lags)
		for _, s := range f.of {
			s.gone = nil
		}
	}()
	return do()
}

// Lister returns a consistent list of a resource's objects, not served from a cache that may be stale.
type Lister func(ctx context.Context, resource string) (*listed, error)

type metadataList = metav1.PartialObjectMetadataList

// NewLister returns a Lister that requests only metadata. It has its own rate limit, and bypasses Link, as a list
// that succeeds does not prove that watches work.
func NewLister(api *rest.Config) (Lister, error) {
	own := metadata.ConfigFor(api)
	own.WrapTransport, own.QPS, own.Burst = nil, 20, 20
	client, err := metadata.NewForConfig(own)
	if err != nil {
		return nil, err
	}
	return ListerOf(func(ctx context.Context, kind schema.GroupVersionResource) (*metadataList, error) {
		var options metav1.ListOptions
		if slices.Contains(serviceResources, kind.Resource) {
			options.LabelSelector = translated
		}
		return client.Resource(kind).List(ctx, options)
	}), nil
}

// ListerOf returns a Lister based on the function list.
func ListerOf(list func(context.Context, schema.GroupVersionResource) (*metadataList, error)) Lister {
	return func(ctx context.Context, resource string) (*listed, error) {
		kind := schema.GroupVersionResource{Version: "v1", Resource: resource}
		switch resource {
		case "networkpolicies":
			kind.Group = "networking.k8s.io"
		case "endpointslices":
			kind.Group = "discovery.k8s.io"
		}
		all, err := list(ctx, kind)
		if err != nil {
			return nil, fmt.Errorf("list %s from the API server: %w", resource, err)
		}
		return listOf(all)
	}
}

func listOf(all *metav1.PartialObjectMetadataList) (*listed, error) {
	out := &listed{objects: make(map[ref]uint64, len(all.Items))}
	var err error
	if out.version, err = strconv.ParseUint(all.ResourceVersion, 10, 64); err != nil {
		return nil, fmt.Errorf("%w: %w", errVersions, err)
	}
	for i := range all.Items {
		o := &all.Items[i]
		version, err := strconv.ParseUint(o.ResourceVersion, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errVersions, err)
		}
		out.objects[ref{o.Namespace, o.Name}] = version
	}
	return out, nil
}

// Errors of comparisons with the API server.
var (
	ErrBehind   = errors.New("the watches are behind")
	errVersions = errors.New("the API server's versions cannot be compared")
)

const (
	retryInterval  = 200 * time.Millisecond // after a failed request
	listInterval   = time.Second            // the list is repeated if the watches have not caught up by then
	catchUpTimeout = 20 * time.Second
)

// CatchUp waits until the batches of Take contain what the API server had when CatchUp was called, or newer. It
// returns ErrBehind after catchUpTimeout. Keep must have been called.
func (w *Watcher) CatchUp(ctx context.Context, list Lister) error {
	ctx, cancel := context.WithTimeout(ctx, catchUpTimeout)
	defer cancel()
	return w.fresh.catchUpAll(ctx, enforced(), list)
}

// enforced returns the resources that determine what is enforced.
func enforced() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(watched)), func(resource string) bool {
		return slices.Contains(serviceResources, resource)
	})
}

// catchUpAll compares several resources concurrently.
func (f *freshness) catchUpAll(ctx context.Context, resources []string, list Lister) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return f.compare(func() error {
		came := make(chan error, len(resources))
		for _, resource := range resources {
			go func() { came <- f.catchUp(ctx, resource, list) }()
		}
		var failed error
		for range resources {
			if err := <-came; err != nil && failed == nil {
				failed = err
				cancel()
			}
		}
		return failed
	})
}

func (f *freshness) catchUp(ctx context.Context, resource string, list Lister) error {
	for {
		l, err := list(ctx, resource)
		switch {
		case err == nil:
		case errors.Is(err, errVersions):
			return err
		default: // the API server may be away for a moment
			select {
			case <-time.After(retryInterval):
				continue
			case <-ctx.Done():
				return errors.Join(ErrBehind, err)
			}
		}
		anew := time.NewTimer(listInterval)
		var what lack
		for waiting := true; waiting; {
			var changed <-chan struct{}
			if what, changed = f.behind(resource, l, what); what == (lack{}) {
				anew.Stop()
				return nil
			}
			select {
			case <-changed:
			case <-anew.C:
				waiting = false
			case <-ctx.Done():
				anew.Stop()
				return fmt.Errorf("%w: the watch of %s lacks %s", ErrBehind, resource, what)
			}
		}
	}
}
