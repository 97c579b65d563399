package watch

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Batch is what changed since the last one; of an object that changed several times only the last state is in it.
type Batch struct {
	Namespaces   map[string]*policy.Namespace // nil: deleted
	Endpoints    map[string]*policy.Endpoint  // by ID; nil: deleted
	Policies     map[string]*policy.Policy    // by ID; nil: deleted
	Nodes        []policy.NodeInfo            // all of them, if NodesChanged
	NodesChanged bool
	// Complete: this is the first batch, and it holds everything there is.
	Complete bool
}

func newBatch() *Batch {
	return &Batch{Namespaces: map[string]*policy.Namespace{}, Endpoints: map[string]*policy.Endpoint{}, Policies: map[string]*policy.Policy{}}
}

// Empty tells that nothing changed.
func (b *Batch) Empty() bool {
	return len(b.Namespaces)+len(b.Endpoints)+len(b.Policies) == 0 && !b.NodesChanged && !b.Complete
}

// Watcher follows the API server. Take and Wake belong to one consumer.
type Watcher struct {
	log     *slog.Logger
	factory informers.SharedInformerFactory
	synced  []cache.InformerSynced
	wake    chan struct{}
	events  atomic.Uint64
	last    atomic.Int64 // Unix seconds of the last event or relist
	broken  atomic.Pointer[string]

	mu    sync.Mutex
	ready bool
	next  *Batch
	nodes map[string]policy.NodeInfo
}

// New makes a watcher; Run starts it.
func New(client kubernetes.Interface, log *slog.Logger) (*Watcher, error) {
	w := &Watcher{log: log, factory: informers.NewSharedInformerFactory(client, 0), wake: make(chan struct{}, 1), next: newBatch(), nodes: map[string]policy.NodeInfo{}}
	for _, f := range []func() error{w.namespaces, w.pods, w.policies, w.nodeInfos} {
		if err := f(); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// Run watches until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	w.factory.Start(ctx.Done())
	if cache.WaitForCacheSync(ctx.Done(), w.synced...) {
		w.mu.Lock()
		w.ready, w.next.Complete = true, true
		w.mu.Unlock()
		w.signal()
	}
	<-ctx.Done()
	w.factory.Shutdown()
}

// Wake is signalled when Take has something to give.
func (w *Watcher) Wake() <-chan struct{} { return w.wake }

// Take gives what changed. Before everything was listed once it gives nothing.
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

// Events is how many object changes were seen.
func (w *Watcher) Events() uint64 { return w.events.Load() }

// Problem is why the API server cannot be watched now; empty while it can.
func (w *Watcher) Problem() string {
	if p := w.broken.Load(); p != nil {
		return *p
	}
	return ""
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
	w.last.Store(time.Now().Unix())
	w.broken.Store(nil)
	w.mu.Lock()
	change(w.next)
	ready := w.ready
	w.mu.Unlock()
	if ready {
		w.signal()
	}
}

// add strips objects to what counts before they are kept, and hands every change to put or, for deletions, remove.
func add[T any, S any](w *Watcher, informer cache.SharedIndexInformer, strip func(*T) *S, put func(*S), remove func(namespace, name string)) error {
	err := informer.SetTransform(func(obj any) (any, error) {
		if o, ok := obj.(*T); ok {
			return keep(o, strip(o)), nil
		}
		return obj, nil
	})
	if err != nil {
		return err
	}
	_ = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		text := fmt.Sprintf("watch of %s: %v", r.TypeDescription(), err)
		w.broken.Store(&text)
		cache.DefaultWatchErrorHandler(ctx, r, err)
	})
	h, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { put(obj.(*kept[S]).value) },
		UpdateFunc: func(_, obj any) { put(obj.(*kept[S]).value) },
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if k, ok := obj.(*kept[S]); ok {
				remove(k.Namespace, k.Name)
			}
		},
	})
	if err == nil {
		w.synced = append(w.synced, h.HasSynced)
	}
	return err
}

func (w *Watcher) namespaces() error {
	return add(w, w.factory.Core().V1().Namespaces().Informer(), func(ns *corev1.Namespace) *policy.Namespace { n := Namespace(ns); return &n },
		func(n *policy.Namespace) { w.note(func(b *Batch) { b.Namespaces[n.Name] = n }) },
		func(_, name string) { w.note(func(b *Batch) { b.Namespaces[name] = nil }) })
}

func (w *Watcher) pods() error {
	return add(w, w.factory.Core().V1().Pods().Informer(), Endpoint,
		func(e *policy.Endpoint) { w.note(func(b *Batch) { b.Endpoints[e.ID()] = e }) },
		func(ns, name string) { w.note(func(b *Batch) { b.Endpoints[ns+"/"+name] = nil }) })
}

func (w *Watcher) policies() error {
	return add(w, w.factory.Networking().V1().NetworkPolicies().Informer(), Policy,
		func(p *policy.Policy) { w.note(func(b *Batch) { b.Policies[p.ID()] = p }) },
		func(ns, name string) { w.note(func(b *Batch) { b.Policies[ns+"/"+name] = nil }) })
}

func (w *Watcher) nodeInfos() error {
	return add(w, w.factory.Core().V1().Nodes().Informer(), func(n *corev1.Node) *policy.NodeInfo { i := Node(n); return &i },
		func(n *policy.NodeInfo) { w.noteNode(n.Name, n) }, func(_, name string) { w.noteNode(name, nil) })
}

// noteNode ignores the heartbeats, which change nothing that counts.
func (w *Watcher) noteNode(name string, n *policy.NodeInfo) {
	w.mu.Lock()
	old, known := w.nodes[name]
	same := n != nil && known && sameNode(old, *n) || n == nil && !known
	if n == nil {
		delete(w.nodes, name)
	} else {
		w.nodes[name] = *n
	}
	w.mu.Unlock()
	if !same {
		w.note(func(b *Batch) { b.NodesChanged = true })
	}
}

func sameNode(a, b policy.NodeInfo) bool {
	return fmt.Sprint(a) == fmt.Sprint(b)
}
