package feed

import (
	"slices"
	"sync/atomic"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Standing is how far a node is with a policy.
type Standing struct {
	NodeStatus
	// Needs: the policy applies to pods there; else the node only has to drop what it has of it.
	Needs bool
	// Behind: it has not acknowledged the present form of something that is the policy's, its groups' members included.
	Behind bool
}

// Standing tells of the nodes that need a policy, and after them of others that have yet to acknowledge a change of it. It costs
// the nodes of the extent, and its rules where something is on its way to a node.
func (s *Server) Standing(id string, e *policy.Extent) []Standing {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.standing(id, e)
}

func (s *Server) standing(id string, e *policy.Extent) []Standing {
	late := s.rollouts.nodesOf(id)
	out := make([]Standing, 0, len(e.Nodes)+len(late))
	for _, name := range e.Nodes {
		st := Standing{NodeStatus: s.statusOf(name), Needs: true}
		_, st.Behind = slices.BinarySearch(late, name)
		if v := s.mirror.nodes[name]; v != nil && v.pending != nil {
			st.Behind = st.Behind || v.pending.behind(e)
		}
		out = append(out, st)
	}
	for _, name := range late {
		if _, twice := slices.BinarySearch(e.Nodes, name); !twice {
			out = append(out, Standing{NodeStatus: s.statusOf(name), Behind: true})
		}
	}
	return out
}

// statusOf is what is known of a node, which may be nothing.
func (s *Server) statusOf(name string) NodeStatus {
	if c := s.conns[name]; c != nil {
		return s.status(c)
	}
	st := s.last[name]
	st.Name, st.Connected = name, false
	if r, ok := s.refusals[name]; ok {
		st.Refused = r.message
	}
	return st
}

// about is what a watch can be told of.
type about struct{ policy, node string }

func aboutPolicy(id string) about { return about{policy: id} }
func aboutNode(name string) about { return about{node: name} }

// watches are told of what concerns them; to tell costs as many as it concerns.
type watches map[about]map[*Watch]struct{}

func (w watches) tell(a about) {
	for one := range w[a] {
		select {
		case one.changed <- struct{}{}:
		default:
		}
	}
}

// edited tells that a policy itself has changed.
func (w watches) edited(id string) {
	for one := range w[aboutPolicy(id)] {
		one.edits.Add(1)
	}
	w.tell(aboutPolicy(id))
}

func (w watches) add(a about, one *Watch) {
	if w[a] == nil {
		w[a] = map[*Watch]struct{}{}
	}
	w[a][one] = struct{}{}
}

func (w watches) remove(a about, one *Watch) {
	if delete(w[a], one); len(w[a]) == 0 {
		delete(w, a)
	}
}

// Watch is told when a policy itself changes, and when the nodes that it looks at acknowledge something, come or go. It is
// for one goroutine, and must be closed.
type Watch struct {
	server  *Server
	id      string
	changed chan struct{}
	edits   atomic.Uint64
	nodes   []string
}

// Watch begins to watch a policy, which need not be there.
func (s *Server) Watch(id string) *Watch {
	w := &Watch{server: s, id: id, changed: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches.add(aboutPolicy(id), w)
	return w
}

// Changed can be read after something changed; several changes may be told as one.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// Edits counts the changes of the policy itself since the watch began.
func (w *Watch) Edits() uint64 { return w.edits.Load() }

// Standing is Server.Standing; from now on these nodes are looked at, and no others.
func (w *Watch) Standing(e *policy.Extent) []Standing {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	out := w.server.standing(w.id, e)
	w.lookAway()
	for i := range out {
		w.nodes = append(w.nodes, out[i].Name)
		w.server.watches.add(aboutNode(out[i].Name), w)
	}
	return out
}

func (w *Watch) lookAway() {
	for _, name := range w.nodes {
		w.server.watches.remove(aboutNode(name), w)
	}
	w.nodes = w.nodes[:0]
}

// Close ends the watch.
func (w *Watch) Close() {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	w.lookAway()
	w.server.watches.remove(aboutPolicy(w.id), w)
}
