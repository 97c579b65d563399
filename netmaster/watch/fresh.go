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

// ref is an object of a resource.
type ref struct{ namespace, name string }

// listed is what the API server says that there is, with versions, and of which version that is.
type listed struct {
	objects map[ref]uint64
	version uint64
}

// seen are the versions of the objects of a resource that the batches given out, and the one that waits, hold.
type seen struct {
	held map[ref]uint64
	gone map[ref]uint64 // when objects went, for as long as it is compared
}

// behind says what of a list was not seen, one thing of it; empty if nothing. What was seen may be newer.
func (s *seen) behind(l *listed) string {
	for r, version := range l.objects {
		if s.held[r] < version && s.gone[r] < version {
			return fmt.Sprintf("version %d of %s/%s", version, r.namespace, r.name)
		}
	}
	for r, version := range s.held {
		if _, there := l.objects[r]; !there && version <= l.version {
			return fmt.Sprintf("that %s/%s is gone", r.namespace, r.name)
		}
	}
	return ""
}

// freshness compares what was seen with what the API server has. It costs a little of every event, and some 100 bytes an object: whoever has lost the
// Lease may lead again.
type freshness struct {
	mu      sync.Mutex
	of      map[string]*seen // by resource; nil: not kept
	changed chan struct{}    // closed at the next change; nil: nobody waits
}

// Keep has the watcher know the versions that it gives out, which CatchUp needs. It is called before Run.
func (w *Watcher) Keep() {
	w.fresh.of = map[string]*seen{}
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

// lacks says what of a list was not seen, and when to look again.
func (f *freshness) lacks(resource string, l *listed) (what string, again <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed == nil {
		f.changed = make(chan struct{})
	}
	return f.of[resource].behind(l), f.changed
}

// Lister asks the API server what there is of a resource now: not of a cache that may lag behind.
type Lister func(ctx context.Context, resource string) (*listed, error)

// NewLister makes one. It asks for no more than metadata.
func NewLister(api *rest.Config) (Lister, error) {
	client, err := metadata.NewForConfig(metadata.ConfigFor(api))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, resource string) (*listed, error) {
		kind := schema.GroupVersionResource{Version: "v1", Resource: resource}
		if resource == "networkpolicies" {
			kind.Group = "networking.k8s.io"
		}
		all, err := client.Resource(kind).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("ask the API server for all %s: %w", resource, err)
		}
		return listOf(all)
	}, nil
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

// Why a netmaster does not know that its watches are up to date.
var (
	ErrBehind   = errors.New("the watches are behind")
	errVersions = errors.New("the API server's versions cannot be compared")
)

const (
	askAgain  = 200 * time.Millisecond // after the API server did not answer
	listAgain = time.Second            // a list that was not caught up with by then is asked for anew
	mostLate  = 20 * time.Second
)

// CatchUp returns when what Take gives, or gave, is what the API server had when CatchUp was called, or newer; it fails with ErrBehind if that takes
// too long. Keep must have been called.
func (w *Watcher) CatchUp(ctx context.Context, list Lister) error {
	ctx, cancel := context.WithTimeout(ctx, mostLate)
	defer cancel()
	f := &w.fresh
	f.mu.Lock()
	for _, s := range f.of {
		s.gone = map[ref]uint64{}
	}
	f.mu.Unlock()
	type result struct {
		resource string
		err      error
	}
	came := make(chan result, len(watched))
	for _, resource := range slices.Sorted(maps.Keys(watched)) {
		go func() { came <- result{resource, f.catchUp(ctx, resource, list)} }()
	}
	var failed error
	for range watched {
		if r := <-came; r.err != nil && failed == nil {
			failed = r.err
			cancel()
		}
	}
	f.mu.Lock()
	for _, s := range f.of {
		s.gone = nil
	}
	f.mu.Unlock()
	return failed
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
			case <-time.After(askAgain):
				continue
			case <-ctx.Done():
				return errors.Join(ErrBehind, err)
			}
		}
		anew := time.NewTimer(listAgain)
		for waiting := true; waiting; {
			lacks, changed := f.lacks(resource, l)
			if lacks == "" {
				anew.Stop()
				return nil
			}
			select {
			case <-changed:
			case <-anew.C:
				waiting = false
			case <-ctx.Done():
				anew.Stop()
				return fmt.Errorf("%w: that of %s lacks %s", ErrBehind, resource, lacks)
			}
		}
	}
}
