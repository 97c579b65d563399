package watch

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/flowkeep/flowkeep/policydb/kube"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// ServiceBatch is the changes of Services since the last batch, with the latest state of each object. The first
// batch is complete.
type ServiceBatch struct {
	Services map[string]*service.Service // by namespace/name; nil: deleted
	Slices   map[string]*service.Slice   // by namespace/name; nil: deleted
	Zones    map[string]string           // of nodes; empty: no zone, or the node was deleted
}

func newServiceBatch() *ServiceBatch {
	return &ServiceBatch{
		Services: map[string]*service.Service{},
		Slices:   map[string]*service.Slice{},
		Zones:    map[string]string{},
	}
}

// IsEmpty reports whether nothing changed.
func (b *ServiceBatch) IsEmpty() bool { return len(b.Services)+len(b.Slices)+len(b.Zones) == 0 }

// ServiceWatch is the part of a Watcher for Services, EndpointSlices and zones of nodes. Policies do not wait for it.
type ServiceWatch struct {
	// Budgets limit Services, and NoExternalIPs ignores spec.externalIPs. Set them before Run.
	Budgets       service.Budgets
	NoExternalIPs bool

	watcher *Watcher
	factory informers.SharedInformerFactory
	synced  []cache.InformerSynced
	wake    chan struct{}

	mu    sync.Mutex
	ready bool
	next  *ServiceBatch
	zones map[string]string
}

// translated is the label selector of Services and EndpointSlices that kube-proxy translates.
const translated = "!service.kubernetes.io/service-proxy-name,!" + corev1.IsHeadlessService

// serviceResources are watched independently of policies.
var serviceResources = []string{"services", "endpointslices"}

func newServiceWatch(w *Watcher) *ServiceWatch {
	selects := informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = translated })
	return &ServiceWatch{
		Budgets: service.DefaultBudgets,
		watcher: w,
		factory: informers.NewSharedInformerFactoryWithOptions(w.client, 0, selects),
		wake:    make(chan struct{}, 1),
		next:    newServiceBatch(),
		zones:   map[string]string{},
	}
}

func (b *ServiceWatch) services() error {
	informer := b.factory.Core().V1().Services().Informer()
	return add(b.watcher, informer, source[corev1.Service, service.Service]{
		resource: "services",
		late:     true,
		strip: func(in *corev1.Service) *service.Service {
			s := kube.Service(in, !b.NoExternalIPs)
			b.Budgets.Trim(s)
			return s
		},
		put:    func(s *service.Service) { b.note(func(to *ServiceBatch) { to.Services[s.ID()] = s }) },
		remove: func(ns, name string) { b.note(func(to *ServiceBatch) { to.Services[ns+"/"+name] = nil }) },
	})
}

func (b *ServiceWatch) endpointSlices() error {
	informer := b.factory.Discovery().V1().EndpointSlices().Informer()
	return add(b.watcher, informer, source[discoveryv1.EndpointSlice, service.Slice]{
		resource: "endpointslices",
		late:     true,
		strip:    kube.EndpointSlice,
		put:      func(s *service.Slice) { b.note(func(to *ServiceBatch) { to.Slices[s.ID()] = s }) },
		remove:   func(ns, name string) { b.note(func(to *ServiceBatch) { to.Slices[ns+"/"+name] = nil }) },
	})
}

// note records one change.
func (b *ServiceWatch) note(change func(*ServiceBatch)) {
	b.watcher.events.Add(1)
	b.mu.Lock()
	defer b.mu.Unlock()
	change(b.next)
	b.signal()
}

// noteNode records the zone of a node, or its deletion.
func (b *ServiceWatch) noteNode(name string, n *policy.NodeInfo) {
	zone := ""
	if n != nil {
		zone = n.Zone
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.zones[name] == zone {
		return
	}
	if b.zones[name] = zone; zone == "" {
		delete(b.zones, name)
	}
	b.next.Zones[name] = zone
	b.signal()
}

// signal wakes the consumer once everything was listed. The caller holds the lock.
func (b *ServiceWatch) signal() {
	if !b.ready {
		return
	}
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// await waits until everything was listed, and marks the first batch as complete.
func (b *ServiceWatch) await(ctx context.Context) {
	if !cache.WaitForCacheSync(ctx.Done(), slices.Concat(b.watcher.synced, b.synced)...) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ready = true
	b.signal()
}

// Problem returns why Services cannot be watched; empty if they can.
func (b *ServiceWatch) Problem() string { return b.watcher.link.ServicesProblem() }

// Wake returns a channel that is signalled when Take has something to return.
func (b *ServiceWatch) Wake() <-chan struct{} { return b.wake }

// Take returns the changes; nil before everything was listed.
func (b *ServiceWatch) Take() *ServiceBatch {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.ready {
		return nil
	}
	out := b.next
	b.next = newServiceBatch()
	return out
}

// CatchUp waits until the batches of Take contain what the API server had when it was called, or newer. Keep must
// have been called.
func (b *ServiceWatch) CatchUp(ctx context.Context, list Lister) error {
	if err := b.watcher.fresh.catchUpAll(ctx, serviceResources, list); err != nil {
		return fmt.Errorf("wait until the watches of Services are up to date: %w", err)
	}
	return nil
}
