package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/fleet"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
)

// feed is what is watched: a resource, or of it one object, or those with a label.
type feed struct {
	resource        schema.GroupVersionResource
	namespace, name string
	selector        string
}

func (f feed) String() string {
	text := f.resource.GroupResource().String()
	if f.name != "" {
		text += " " + f.namespace + "/" + f.name
	}
	return text
}

// sink takes what one watch brings, from one goroutine at a time.
type sink interface {
	// slim makes of an object what is kept of it. It must not fail: what it can't read it keeps as nothing.
	slim(o *unstructured.Unstructured) any
	// all is everything there is.
	all(values map[fleet.Name]any)
	put(name fleet.Name, value any)
	remove(name fleet.Name)
	// trouble is why the API server does not give them; nil: it does.
	trouble(err error)
}

// kept is what a watch keeps of an object: the value that counts, and the little of the metadata that client-go asks for.
type kept struct {
	metav1.ObjectMeta
	value any
}

// GetObjectKind has it pass for an object of Kubernetes.
func (k *kept) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns the same object: it is not changed.
func (k *kept) DeepCopyObject() runtime.Object { return k }

// page is one of a list.
type page struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []runtime.Object
}

// DeepCopyObject returns the same object: it is not changed.
func (p *page) DeepCopyObject() runtime.Object { return p }

// mostListed is how many objects are listed at a time. Works are so large that all of them as they come would be many
// times what is kept.
const mostListed = 100

// tap is one watch that runs. It implements cache.ReflectorStore.
type tap struct {
	feed feed
	sink sink
}

func (t *tap) keep(o any) (any, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return o, nil // it is kept already
	}
	return &kept{
		ObjectMeta: metav1.ObjectMeta{Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion()},
		value:      t.sink.slim(u),
	}, nil
}

// page keeps what the API server gives.
func (t *tap) page(list *unstructured.UnstructuredList) (*page, error) {
	p := &page{ListMeta: metav1.ListMeta{ResourceVersion: list.GetResourceVersion(), Continue: list.GetContinue(), RemainingItemCount: list.GetRemainingItemCount()}}
	for i := range list.Items {
		k, _, err := t.kept(&list.Items[i])
		if err != nil {
			return nil, err
		}
		p.Items = append(p.Items, k)
	}
	return p, nil
}

// Transformer has lists kept small while they come in.
func (t *tap) Transformer() cache.TransformFunc { return t.keep }

func (t *tap) kept(o any) (*kept, fleet.Name, error) {
	o, err := t.keep(o)
	if err != nil {
		return nil, fleet.Name{}, err
	}
	k, ok := o.(*kept)
	if !ok {
		return nil, fleet.Name{}, fmt.Errorf("the API server sends %T for %s", o, t.feed)
	}
	return k, fleet.Name{Namespace: k.Namespace, Name: k.Name}, nil
}

// Add takes an object that is new.
func (t *tap) Add(o any) error { return t.Update(o) }

// Update takes an object that has changed.
func (t *tap) Update(o any) error {
	k, name, err := t.kept(o)
	if err != nil {
		return err
	}
	t.sink.put(name, k.value)
	return nil
}

// Delete takes an object that is gone.
func (t *tap) Delete(o any) error {
	_, name, err := t.kept(o)
	if err != nil {
		return err
	}
	t.sink.remove(name)
	return nil
}

// Replace takes everything there is.
func (t *tap) Replace(list []any, _ string) error {
	values := make(map[fleet.Name]any, len(list))
	for _, o := range list {
		k, name, err := t.kept(o)
		if err != nil {
			return err
		}
		values[name] = k.value
	}
	t.sink.all(values)
	return nil
}

// Resync does nothing: nothing is done again for time's sake.
func (t *tap) Resync() error { return nil }

// taps run the watches that are wanted. Safe for concurrent use.
type taps struct {
	client dynamic.Interface
	patron context.Context

	mu      sync.Mutex
	running map[feed]context.CancelFunc
	all     sync.WaitGroup
}

func newTaps(ctx context.Context, client dynamic.Interface) *taps {
	return &taps{client: client, patron: ctx, running: map[feed]context.CancelFunc{}}
}

// start watches, unless that is watched already.
func (t *taps) start(f feed, to sink) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running[f] != nil || t.patron.Err() != nil {
		return
	}
	ctx, stop := context.WithCancel(t.patron)
	t.running[f] = stop
	t.all.Go(func() { t.run(ctx, f, to) })
}

// stop ends a watch. What it brings may come for a moment yet.
func (t *taps) stop(f feed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if stop := t.running[f]; stop != nil {
		stop()
		delete(t.running, f)
	}
}

// wait until all have ended, which they do with their context.
func (t *taps) wait() { t.all.Wait() }

// tapBackoff is the time until another attempt where the API server refuses a list or a watch.
var tapBackoff = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 5, Cap: 10 * time.Second}

func (t *taps) run(ctx context.Context, f feed, to sink) {
	backoff := tapBackoff
	cache.NewReflectorWithOptions(t.source(ctx, f, to), &unstructured.Unstructured{}, &tap{f, to},
		cache.ReflectorOptions{Name: f.String(), TypeDescription: f.String(), Backoff: &backoff}).RunWithContext(ctx)
}

// source calls the sink with errors of the API server.
func (t *taps) source(ctx context.Context, f feed, to sink) cache.ListerWatcher {
	var from dynamic.ResourceInterface = t.client.Resource(f.resource)
	if f.namespace != "" {
		from = t.client.Resource(f.resource).Namespace(f.namespace)
	}
	tell := func(err error) {
		if ctx.Err() == nil && (err == nil || isTrouble(err)) {
			to.trouble(err)
		}
	}
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{ // the reflector's own contexts may outlive the watch
		ListWithContextFunc: func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.Limit = min(o.Limit, mostListed)
			list, err := from.List(ctx, f.options(o))
			tell(err)
			if err != nil {
				return nil, err
			}
			return (&tap{f, to}).page(list)
		},
		WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := from.Watch(ctx, f.options(o))
			tell(err)
			return w, err
		},
	}, t.client)
}

func (f *feed) options(o metav1.ListOptions) metav1.ListOptions {
	o.LabelSelector = f.selector
	if f.name != "" {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, f.name).String()
	}
	if o.ResourceVersion == "0" {
		o.ResourceVersion = "" // any version would do for the reflector; but what is not in the list is taken for gone
	}
	return o
}

// isTrouble leaves out what passes by itself: a version that is too old is listed again; a busy server gets another
// request later; and while the API server does not respond nothing can be written either.
func isTrouble(err error) bool {
	if _, answered := errors.AsType[*apierrors.StatusError](err); !answered {
		return false
	}
	return !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) && !apierrors.IsTooManyRequests(err) && !apierrors.IsInvalid(err) && !apierrors.IsTimeout(err)
}
