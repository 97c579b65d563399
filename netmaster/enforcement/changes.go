package enforcement

import (
	"maps"
	"sync"

	"github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
)

// News queues changes of objects, with the latest state of each. Safe for concurrent use.
type News struct {
	signal chan struct{}

	mu      sync.Mutex
	changed map[string]*v1alpha1.NetworkPolicyEnforcement // by namespace/name; nil: deleted
	known   map[string]struct{}
}

func newNews() *News {
	return &News{
		signal:  make(chan struct{}, 1),
		changed: map[string]*v1alpha1.NetworkPolicyEnforcement{},
		known:   map[string]struct{}{},
	}
}

// Put queues a new or changed object. The caller must not modify it afterwards.
func (n *News) Put(o *v1alpha1.NetworkPolicyEnforcement) {
	key := o.Namespace + "/" + o.Name
	n.note(func() { n.changed[key], n.known[key] = o, struct{}{} })
}

// Gone queues the deletion of an object, namespace/name.
func (n *News) Gone(key string) {
	n.note(func() {
		n.changed[key] = nil
		delete(n.known, key)
	})
}

// Clear queues the deletion of all known objects.
func (n *News) Clear() {
	n.note(func() {
		for key := range n.known {
			n.changed[key] = nil
		}
		clear(n.known)
	})
}

func (n *News) note(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
	select {
	case n.signal <- struct{}{}:
	default:
	}
}

func (n *News) take() map[string]*v1alpha1.NetworkPolicyEnforcement {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := maps.Clone(n.changed)
	clear(n.changed)
	return out
}
