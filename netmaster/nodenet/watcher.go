package nodenet

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/netmaster/feed"
)

const (
	interval = time.Second
	// perRound is the number of nodes queried in a round, and queryTimeout the limit for one.
	perRound     = 16
	queryTimeout = 2 * time.Second
	// offLinkGrace is how long a new Node's netplugin may take to connect.
	offLinkGrace = 2 * time.Minute
)

// Nodes returns and queries the nodes of the feed.
type Nodes interface {
	Nodes() []feed.NodeStatus
	Query(ctx context.Context, node string, body []byte) ([]byte, error)
}

// Conditions writes a condition of Nodes.
type Conditions interface {
	// Marked returns the Nodes with the condition.
	Marked(ctx context.Context) ([]string, error)
	// Set writes the condition; an empty reason clears it.
	Set(ctx context.Context, node, reason, message string) error
}

// Config configures a Watcher.
type Config struct {
	Nodes Nodes
	// Changes increases with each change of the set of Nodes.
	Changes    func() uint64
	Emit       func(reason wellknown.EventReason, node, message string)
	Conditions Conditions // nil: disabled
	Logger     *slog.Logger
}

// Watcher queries nodes for problems of the network, a few each second: newly connected ones first, and all after a
// change of Nodes.
type Watcher struct {
	cfg      Config
	reports  map[string][]inspect.NetworkProblem
	since    map[string]time.Time // start of the stream in which a node was last queried
	changes  uint64               // value at the last round
	next     int                  // index in the list of nodes
	first    map[string]time.Time // when a Node was first found off the link
	reported map[string]string    // kind of the last reported problem, by Node
	marked   map[string]string    // the condition's message, by Node
	failed   string               // last logged
}

// New returns a watcher.
func New(cfg Config) *Watcher {
	return &Watcher{
		cfg:      cfg,
		reports:  map[string][]inspect.NetworkProblem{},
		since:    map[string]time.Time{},
		first:    map[string]time.Time{},
		reported: map[string]string{},
		marked:   map[string]string{},
	}
}

// Run queries nodes until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	w.readMarked(ctx)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			w.round(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// readMarked reads the conditions of an earlier leader, so that obsolete ones are cleared.
func (w *Watcher) readMarked(ctx context.Context) {
	if w.cfg.Conditions == nil {
		return
	}
	nodes, err := w.cfg.Conditions.Marked(ctx)
	w.logFailure(err)
	for _, node := range nodes {
		w.marked[node] = "of an earlier leader"
	}
}

// round queries some nodes, and reports changes.
func (w *Watcher) round(ctx context.Context) {
	all := w.cfg.Nodes.Nodes()
	connected, known, came := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for i := range all {
		n := &all[i]
		known[n.Name], connected[n.Name], came[n.Name] = true, n.Connected, !n.Since.IsZero()
	}
	maps.DeleteFunc(w.reports, func(node string, _ []inspect.NetworkProblem) bool { return !known[node] })
	maps.DeleteFunc(w.since, func(node string, _ time.Time) bool { return !connected[node] })
	if now := w.cfg.Changes(); now != w.changes {
		w.changes = now
		clear(w.since)
	}
	w.query(ctx, w.choose(all))
	whole := true
	for i := range all {
		_, queried := w.reports[all[i].Name]
		whole = whole && (queried || !all[i].Connected)
	}
	if ctx.Err() == nil {
		w.report(ctx, w.ripe(Merge(w.reports, func(node string) bool { return came[node] }), time.Now()), whole)
	}
}

// choose returns the nodes of a round with the start of their streams: those not queried in this stream first.
func (w *Watcher) choose(all []feed.NodeStatus) map[string]time.Time {
	chosen := map[string]time.Time{}
	for i := range all {
		if n := &all[i]; n.Connected && !w.since[n.Name].Equal(n.Since) && len(chosen) < perRound {
			chosen[n.Name] = n.Since
		}
	}
	for range all {
		if len(chosen) == perRound {
			break
		}
		w.next = (w.next + 1) % len(all)
		if n := &all[w.next]; n.Connected {
			chosen[n.Name] = n.Since
		}
	}
	return chosen
}

func (w *Watcher) query(ctx context.Context, nodes map[string]time.Time) {
	body, err := json.Marshal(inspect.NodeQuery{Kind: inspect.QueryStatus})
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var mu sync.Mutex
	var wait sync.WaitGroup
	for node, since := range nodes {
		wait.Go(func() {
			var st inspect.NodeStatus
			answer, err := w.cfg.Nodes.Query(ctx, node, body)
			if err != nil || json.Unmarshal(answer, &st) != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			w.reports[node], w.since[node] = st.Network, since
		})
	}
	wait.Wait()
}

// ripe omits Nodes in other segments that may be about to start their netplugin.
func (w *Watcher) ripe(findings []Finding, now time.Time) (out []Finding) {
	first := map[string]time.Time{}
	for _, f := range findings {
		if f.Kind == inspect.NetworkOffLink {
			at, ok := w.first[f.Node]
			if !ok {
				at = now
			}
			if first[f.Node] = at; now.Sub(at) < offLinkGrace {
				continue
			}
		}
		out = append(out, f)
	}
	w.first = first
	return out
}

// report writes an Event for each Node with a new kind of problem, and changed conditions. With whole, all nodes
// have reported, so conditions of other Nodes are cleared.
func (w *Watcher) report(ctx context.Context, findings []Finding, whole bool) {
	current := map[string]string{}
	for i := range findings {
		f := &findings[i]
		if _, more := current[f.Node]; more { // one problem of a Node at a time
			continue
		}
		if current[f.Node] = f.Kind; w.reported[f.Node] != f.Kind {
			w.cfg.Logger.Warn("the cluster's network is not right",
				"node", f.Node, "kind", f.Kind, "problem", f.Message())
			w.cfg.Emit(f.Reason(), f.Node, f.Message())
		}
		if w.marked[f.Node] != f.Text {
			w.mark(ctx, f.Node, f.Text, string(f.Reason()), f.Message())
		}
	}
	w.reported = current
	for node := range w.marked {
		if _, still := current[node]; !still && whole {
			w.mark(ctx, node, "", "", "")
		}
	}
}

// mark writes the condition of a Node. A failed write is retried in a later round.
func (w *Watcher) mark(ctx context.Context, node, text, reason, message string) {
	if w.cfg.Conditions == nil {
		return
	}
	err := w.cfg.Conditions.Set(ctx, node, reason, message)
	w.logFailure(err)
	switch {
	case err != nil:
	case reason == "":
		delete(w.marked, node)
	default:
		w.marked[node] = text
	}
}

func (w *Watcher) logFailure(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != w.failed {
		w.cfg.Logger.Error("could not write a condition of a Node", "error", err)
	}
	w.failed = text
}
