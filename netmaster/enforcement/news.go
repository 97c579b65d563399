package enforcement

import (
	"maps"
	"sync"

	"github.com/flowkeep/flowkeep/api/fleet/v1alpha1"
)

// News are objects that came, changed or went. Of each at most the last is kept. Safe for concurrent use.
type News struct {
	there chan struct{}

	mu      sync.Mutex
	changed map[string]*v1alpha1.NetworkPolicyEnforcement // by namespace/name; nil: gone
	known   map[string]struct{}
}

func newNews() *News {
	return &News{there: make(chan struct{}, 1), changed: map[string]*v1alpha1.NetworkPolicyEnforcement{}, known: map[string]struct{}{}}
}

// Put tells of an object that is there. It is not changed afterwards.
func (n *News) Put(o *v1alpha1.NetworkPolicyEnforcement) {
	key := o.Namespace + "/" + o.Name
	n.note(func() { n.changed[key], n.known[key] = o, struct{}{} })
}

// Gone tells of an object, namespace/name, that is there no more.
func (n *News) Gone(key string) {
	n.note(func() {
		n.changed[key] = nil
		delete(n.known, key)
	})
}

// Clear tells that there are none, as far as anybody knows.
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
	case n.there <- struct{}{}:
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
