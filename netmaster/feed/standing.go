package feed

import (
	"slices"
	"sync/atomic"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Standing is a node's progress with a policy.
type Standing struct {
	NodeStatus
	// Needs reports whether the policy applies to pods on the node; otherwise the node only has to remove it.
	Needs bool
	// Behind reports whether the node has not acknowledged the present form of the policy's rules and groups.
	Behind bool
}

// Standing returns the nodes that need a policy, followed by others that have not acknowledged a change of it. The
// cost is proportional to the nodes of the extent, and to its rules while updates are unacknowledged.
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

// statusOf returns the status of a node; only the name is set if it is unknown.
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

// about is the subject of a watch: a policy or a node.
type about struct{ policy, node string }

func aboutPolicy(id string) about { return about{policy: id} }
func aboutNode(name string) about { return about{node: name} }

// watches signals watches by subject. The cost is proportional to the watches of the subject.
type watches struct {
	by map[about]map[*Watch]struct{}
	// changes counts everything that can change a Standing. Server.mu is held for changes.
	changes atomic.Uint64
}

// Standings returns a number that changes with everything that can change a Standing.
func (s *Server) Standings() uint64 { return s.watches.changes.Load() }

func (w *watches) signal(a about) {
	w.changes.Add(1)
	for one := range w.by[a] {
		select {
		case one.changed <- struct{}{}:
		default:
		}
	}
}

// edited signals a change of the policy itself.
func (w *watches) edited(id string) {
	for one := range w.by[aboutPolicy(id)] {
		one.edits.Add(1)
	}
	w.signal(aboutPolicy(id))
}

func (w *watches) add(a about, one *Watch) {
	if w.by[a] == nil {
		w.by[a] = map[*Watch]struct{}{}
	}
	w.by[a][one] = struct{}{}
}

func (w *watches) remove(a about, one *Watch) {
	if delete(w.by[a], one); len(w.by[a]) == 0 {
		delete(w.by, a)
	}
}

// Watch signals changes of a policy, and acknowledgements, connects and disconnects of its nodes. Use it from one
// goroutine, and close it.
type Watch struct {
	server  *Server
	id      string
	changed chan struct{}
	edits   atomic.Uint64
	nodes   []string
}

// Watch starts watching a policy, which need not exist.
func (s *Server) Watch(id string) *Watch {
	w := &Watch{server: s, id: id, changed: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches.add(aboutPolicy(id), w)
	return w
}

// Changed returns a channel that is readable after one or more changes.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// Edits returns the number of changes of the policy itself since the watch began.
func (w *Watch) Edits() uint64 { return w.edits.Load() }

// Standing returns Server.Standing, and watches exactly these nodes from now on.
func (w *Watch) Standing(e *policy.Extent) []Standing {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	out := w.server.standing(w.id, e)
	w.clearNodes()
	for i := range out {
		w.nodes = append(w.nodes, out[i].Name)
		w.server.watches.add(aboutNode(out[i].Name), w)
	}
	return out
}

func (w *Watch) clearNodes() {
	for _, name := range w.nodes {
		w.server.watches.remove(aboutNode(name), w)
	}
	w.nodes = w.nodes[:0]
}

// Close ends the watch.
func (w *Watch) Close() {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	w.clearNodes()
	w.server.watches.remove(aboutPolicy(w.id), w)
}
