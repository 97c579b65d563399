// Package watch converts Kubernetes objects to the structs of policydb/policy and delivers changes in batches. On
// the path of policies, only this package imports client-go.
package watch

import (
	"context"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flowkeep/flowkeep/policydb/kube"
	"github.com/flowkeep/flowkeep/policydb/policy"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Batch is the changes since the last batch, with the latest state of each object.
type Batch struct {
	Namespaces   map[string]*policy.Namespace // nil: deleted
	Endpoints    map[string]*policy.Endpoint  // by ID; nil: deleted
	Policies     map[string]*policy.Policy    // by ID; nil: deleted
	Nodes        []policy.NodeInfo            // all of them, if NodesChanged
	NodesChanged bool
	// Received is the time of the first change of each policy in the batch.
	Received map[string]time.Time
	// Complete marks the first batch, which contains all objects.
	Complete bool
}

func newBatch() *Batch {
	return &Batch{
		Namespaces: map[string]*policy.Namespace{},
		Endpoints:  map[string]*policy.Endpoint{},
		Policies:   map[string]*policy.Policy{},
		Received:   map[string]time.Time{},
	}
}

// Empty reports whether nothing changed.
func (b *Batch) Empty() bool {
	return len(b.Namespaces)+len(b.Endpoints)+len(b.Policies) == 0 && !b.NodesChanged && !b.Complete
}

// Watcher watches the API server. Use Take and Wake from one consumer.
type Watcher struct {
	// Budgets limit objects. New sets the defaults. Set them before Run.
	Budgets policy.Budgets
	// Served watches Services.
	Served *ServiceWatch

	log     *slog.Logger
	client  kubernetes.Interface
	factory informers.SharedInformerFactory
	synced  []cache.InformerSynced
	wake    chan struct{}
	events  atomic.Uint64
	link    *Link
	fresh   freshness

	mu    sync.Mutex
	ready bool
	next  *Batch
	nodes map[string]policy.NodeInfo
}

// New returns a watcher, which Run starts. The link, which may be nil, must wrap the client's transport: it notices
// that the API server is back even if no object changes.
func New(client kubernetes.Interface, link *Link, log *slog.Logger) (*Watcher, error) {
	if link == nil {
		link = NewLink()
	}
	w := &Watcher{
		log:     log,
		client:  client,
		link:    link,
		factory: informers.NewSharedInformerFactory(client, 0),
		wake:    make(chan struct{}, 1),
		next:    newBatch(),
		nodes:   map[string]policy.NodeInfo{},
		Budgets: policy.DefaultBudgets,
	}
	w.Served = newServiceWatch(w)
	for _, f := range []func() error{
		w.namespaces, w.pods, w.policies, w.nodeInfos, w.Served.services, w.Served.endpointSlices,
	} {
		if err := f(); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// Run watches until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	w.factory.Start(ctx.Done())
	w.Served.factory.Start(ctx.Done())
	go w.Served.await(ctx)
	if cache.WaitForCacheSync(ctx.Done(), w.synced...) {
		w.mu.Lock()
		w.ready, w.next.Complete = true, true
		w.mu.Unlock()
		w.signal()
	}
	<-ctx.Done()
	w.factory.Shutdown()
	w.Served.factory.Shutdown()
}

// Wake returns a channel that is signalled when Take has something to return.
func (w *Watcher) Wake() <-chan struct{} { return w.wake }

// Take returns the changes; an empty batch before everything was listed.
func (w *Watcher) Take() *Batch {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ready {
		return newBatch()
	}
	out := w.next
	w.next = newBatch()
	if out.NodesChanged {
		for _, n := range w.nodes {
			out.Nodes = append(out.Nodes, n)
		}
	}
	return out
}

// Events returns the number of object changes so far.
func (w *Watcher) Events() uint64 { return w.events.Load() }

// Problem returns why the API server cannot be watched; empty if it can.
func (w *Watcher) Problem() string { return w.link.Problem() }

// Synced reports whether everything was listed.
func (w *Watcher) Synced() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ready
}

func (w *Watcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// note records one change.
func (w *Watcher) note(change func(b *Batch)) {
	w.events.Add(1)
	w.mu.Lock()
	change(w.next)
	ready := w.ready
	w.mu.Unlock()
	if ready {
		w.signal()
	}
}

// source is a kind of object: how it is converted, and the handlers of its changes.
type source[T any, S any] struct {
	resource string // as in the API's paths
	late     bool   // policies do not wait for it
	strip    func(*T) *S
	put      func(*S)
	remove   func(namespace, name string)
}

func add[T any, S any](w *Watcher, informer cache.SharedIndexInformer, src source[T, S]) error {
	err := informer.SetTransform(func(obj any) (any, error) {
		if o, ok := obj.(*T); ok {
			return keep(o, src.strip(o)), nil
		}
		return obj, nil
	})
	if err != nil {
		return err
	}
	err = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		w.link.failed(src.resource, err)
		cache.DefaultWatchErrorHandler(ctx, r, err)
	})
	if err != nil {
		return err
	}
	h, err := informer.AddEventHandler(handler(w, src))
	if err == nil {
		synced := &w.synced
		if src.late {
			synced = &w.Served.synced
		}
		*synced = append(*synced, h.HasSynced)
	}
	return err
}

// handler ignores updates that do not change the converted value, such as a pod's readiness.
func handler[T any, S any](w *Watcher, src source[T, S]) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			w.link.worked(src.resource)
			k := obj.(*kept[S])
			src.put(k.value)
			w.fresh.put(src.resource, k)
		},
		UpdateFunc: func(before, now any) {
			w.link.worked(src.resource)
			defer w.fresh.put(src.resource, now.(*kept[S]))
			if value := now.(*kept[S]).value; !reflect.DeepEqual(before.(*kept[S]).value, value) {
				src.put(value)
			}
		},
		DeleteFunc: func(obj any) {
			w.link.worked(src.resource)
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if k, ok := obj.(*kept[S]); ok {
				src.remove(k.Namespace, k.Name)
				w.fresh.remove(src.resource, k)
			}
		},
	}
}

func (w *Watcher) namespaces() error {
	return add(w, w.factory.Core().V1().Namespaces().Informer(), source[corev1.Namespace, policy.Namespace]{
		resource: "namespaces",
		strip: func(ns *corev1.Namespace) *policy.Namespace {
			n := kube.NamespaceWithin(ns, &w.Budgets)
			return &n
		},
		put:    func(n *policy.Namespace) { w.note(func(b *Batch) { b.Namespaces[n.Name] = n }) },
		remove: func(_, name string) { w.note(func(b *Batch) { b.Namespaces[name] = nil }) },
	})
}

func (w *Watcher) pods() error {
	return add(w, w.factory.Core().V1().Pods().Informer(), source[corev1.Pod, policy.Endpoint]{
		resource: "pods",
		strip:    func(p *corev1.Pod) *policy.Endpoint { return kube.EndpointWithin(p, &w.Budgets) },
		put:      func(e *policy.Endpoint) { w.note(func(b *Batch) { b.Endpoints[e.ID()] = e }) },
		remove:   func(ns, name string) { w.note(func(b *Batch) { b.Endpoints[ns+"/"+name] = nil }) },
	})
}

func (w *Watcher) policies() error {
	return add(
		w,
		w.factory.Networking().V1().NetworkPolicies().Informer(),
		source[networkingv1.NetworkPolicy, policy.Policy]{
			resource: "networkpolicies", strip: func(np *networkingv1.NetworkPolicy) *policy.Policy {
				p := kube.Policy(np)
				w.Budgets.Trim(p)
				return p
			},
			put:    func(p *policy.Policy) { w.notePolicy(p.ID(), p) },
			remove: func(ns, name string) { w.notePolicy(ns+"/"+name, nil) },
		},
	)
}

func (w *Watcher) notePolicy(id string, p *policy.Policy) {
	now := time.Now()
	w.note(func(b *Batch) {
		b.Policies[id] = p
		if _, earlier := b.Received[id]; !earlier {
			b.Received[id] = now
		}
	})
}

func (w *Watcher) nodeInfos() error {
	return add(w, w.factory.Core().V1().Nodes().Informer(), source[corev1.Node, policy.NodeInfo]{
		resource: "nodes", strip: func(n *corev1.Node) *policy.NodeInfo { i := kube.Node(n); return &i },
		put:    func(n *policy.NodeInfo) { w.noteNode(n.Name, n) },
		remove: func(_, name string) { w.noteNode(name, nil) },
	})
}

func (w *Watcher) noteNode(name string, n *policy.NodeInfo) {
	w.Served.noteNode(name, n)
	w.mu.Lock()
	if n == nil {
		delete(w.nodes, name)
	} else {
		w.nodes[name] = *n
	}
	w.mu.Unlock()
	w.note(func(b *Batch) { b.NodesChanged = true })
}
