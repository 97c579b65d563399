package query

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/follow"
)

const (
	// responseTimeout is how long a packet's next sighting, or its response, is awaited.
	responseTimeout = 2 * time.Second
	// settleDelay is how long sightings of other nodes are awaited after a packet reached its end.
	settleDelay  = 300 * time.Millisecond
	tickInterval = 100 * time.Millisecond
	// startTimeout is how long a node may take to begin.
	startTimeout = 3 * time.Second
	// silenceTimeout is the time without a report after which a node counts as silent. Nodes report every second.
	silenceTimeout = 1500 * time.Millisecond
	// overrunTimeout is how long after its duration a trace ends at the latest.
	overrunTimeout = 10 * time.Second
	// maxSightings and sightingTTL limit the number and age of the sightings that are kept.
	maxSightings = 20_000
	// maxSightingText bounds each text of a sighting, in bytes. Names of pods have up to 317.
	maxSightingText = 320
	sightingTTL     = 10 * time.Second
)

// tracePlan has the ends, the packets and the nodes of a trace.
type tracePlan struct {
	x        *explanation
	spec     inspect.TraceSpec
	ends     follow.Ends
	query    inspect.SightingsQuery
	nodes    []string // that observe; the source's is the last
	problems []string
}

// traceRun is a trace in progress. Its fields belong to the goroutine of the query; goroutines that read nodes send
// reports to it.
type traceRun struct {
	tracePlan
	send func(any) error

	observers     map[string]*observer
	sightings     []inspect.Hop
	sightedAt     []time.Time          // arrival of each sighting, by the local clock
	ways          []follow.Way         // joined from seen
	unjoined      bool                 // sightings arrived after ways were joined
	packets       map[string]*followed // by startOf
	followedCount int                  // number of packets that are followed or reported
	reportedCount int
	closed        bool // no further packet is followed
	abandoned     bool // a packet was followed, but not to its end
	// fallback is reported only if no better packet is found.
	fallback *inspect.FollowedPacket
}

// observer is a node that reports sightings.
type observer struct {
	started, ended bool
	full           bool // it stopped before the trace did
	lastReport     time.Time
	err            error
	counts         inspect.CaptureCounts
}

// followed is a packet whose start was seen.
type followed struct {
	size  int // number of sightings of it and its response
	news  time.Time
	done  bool
	there bool // its way is among the latest joined ways
}

// nodeReport is a batch of sightings of a node, or the end of its reports.
type nodeReport struct {
	node string
	inspect.Sighted
	over bool
	err  error
}

func (t *traceRun) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	came := make(chan nodeReport)
	if err := t.begin(ctx, came); err != nil {
		return err
	}
	problems := addUnattached(slices.Concat(t.x.out.Problems, t.problems), t.markedWays())
	begun := &inspect.Traced{From: t.x.q.From, To: *t.x.q.To, Nodes: t.nodes, Problems: unique(problems)}
	if err := t.send(begun); err != nil {
		return err
	}
	tick := time.NewTicker(tickInterval)
	defer tick.Stop()
	deadline := time.Now().Add(t.spec.Duration)
	for {
		select {
		case n := <-came:
			t.take(&n)
		case <-tick.C:
			now := time.Now() // the tick's time may be old
			t.closed = t.closed || now.After(deadline) || t.allEnded()
			if err := t.step(ctx, now); err != nil {
				return err
			}
			late := t.waiting() && now.After(deadline.Add(overrunTimeout))
			t.abandoned = t.abandoned || late
			if t.reportedCount >= t.spec.Count || t.closed && !t.waiting() || late {
				return t.end(ctx)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// begin starts the observers, the source's node last: no start of a packet is seen before the other nodes observe.
func (t *traceRun) begin(ctx context.Context, came chan nodeReport) error {
	first := t.nodes
	if from := t.ends.From.Node; from != "" {
		first = t.nodes[:len(t.nodes)-1]
	}
	for _, list := range [][]string{first, t.nodes[len(first):]} {
		for _, node := range list {
			t.observe(ctx, node, came)
		}
		if err := t.await(ctx, list, came); err != nil {
			return err
		}
	}
	var failed []error
	for _, node := range t.nodes {
		if l := t.observers[node]; l.err != nil {
			failed = append(failed, l.err)
			t.problems = append(t.problems, fmt.Sprintf("node %s does not report sightings: %v", node, l.err))
		}
	}
	if len(failed) == len(t.nodes) || t.observers[t.nodes[len(t.nodes)-1]].err != nil && t.ends.From.Node != "" {
		return failed[len(failed)-1]
	}
	return nil
}

// await returns when the nodes observe, or have failed to.
func (t *traceRun) await(ctx context.Context, nodes []string, came <-chan nodeReport) error {
	enough := time.NewTimer(startTimeout)
	defer enough.Stop()
	for _, node := range nodes {
		for l := t.observers[node]; !l.started && l.err == nil && !l.ended; {
			select {
			case n := <-came:
				t.take(&n)
			case <-enough.C:
				for _, silent := range nodes {
					if l := t.observers[silent]; !l.started && !l.ended {
						l.err = fmt.Errorf("it has not answered within %v", startTimeout)
					}
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

func (t *traceRun) observe(ctx context.Context, node string, came chan<- nodeReport) {
	t.observers[node] = &observer{}
	tell := func(n nodeReport) error {
		select {
		case came <- n:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	q := inspect.NodeQuery{Kind: inspect.QuerySightings, Sightings: &t.query}
	go func() {
		err := t.x.s.followNode(ctx, node, q, func(body []byte) error {
			n := nodeReport{node: node}
			if err := json.Unmarshal(body, &n.Sighted); err != nil {
				return fmt.Errorf("node %s: decode its response: %w", node, err)
			}
			return tell(n)
		})
		_ = tell(nodeReport{node: node, over: true, err: err})
	}()
}

func (t *traceRun) take(n *nodeReport) {
	l := t.observers[n.node]
	if n.over {
		l.ended, l.err = true, cmp.Or(n.err, l.err)
		return
	}
	l.started, l.lastReport, l.counts, l.full = true, time.Now(), n.CaptureCounts, l.full || n.End != "" && !t.closed
	for i := range n.Sightings {
		if len(t.sightings) < maxSightings {
			cut(&n.Sightings[i])
			t.sightings = append(t.sightings, inspect.Hop{Node: n.node, Sighting: n.Sightings[i]})
			t.sightedAt = append(t.sightedAt, time.Now())
			t.unjoined = true
		}
	}
}

// cut bounds the memory of a sighting, because a node may send any text.
func cut(s *inspect.Sighting) {
	texts := []*string{&s.Interface, (*string)(&s.Place), &s.Pod}
	for _, p := range []*inspect.SeenPacket{&s.SeenPacket, s.About} {
		if p != nil {
			texts = append(texts, &p.Identity, &p.Text)
			p.Src, p.Dst = p.Src.WithZone(""), p.Dst.WithZone("")
		}
	}
	if s.About != nil {
		s.About.About = nil
	}
	for _, text := range texts {
		if len(*text) > maxSightingText {
			*text = strings.Clone((*text)[:maxSightingText])
		}
	}
}

// forget drops sightings older than sightingTTL.
func (t *traceRun) forget(now time.Time) {
	old, _ := slices.BinarySearchFunc(t.sightedAt, now.Add(-sightingTTL), time.Time.Compare)
	t.sightings, t.sightedAt = slices.Delete(t.sightings, 0, old), slices.Delete(t.sightedAt, 0, old)
}

func (t *traceRun) allEnded() bool {
	for _, l := range t.observers {
		if !l.ended {
			return false
		}
	}
	return true
}

// overflowed reports whether nodes or this trace dropped sightings.
func (t *traceRun) overflowed() bool {
	for _, l := range t.observers {
		if l.counts.Dropped > 0 || l.full {
			return true
		}
	}
	return len(t.sightings) >= maxSightings
}

func (t *traceRun) waiting() bool {
	for _, f := range t.packets {
		if !f.done {
			return true
		}
	}
	return false
}

// step updates the packets that are followed, and reports those that reached their end.
func (t *traceRun) step(ctx context.Context, now time.Time) error {
	if t.forget(now); t.unjoined {
		t.ways, t.unjoined = t.ends.Join(t.sightings), false
		t.release()
	}
	for i := range t.ways {
		w := &t.ways[i]
		if w.Back || !t.ends.Started(w) {
			continue
		}
		f := t.follow(w)
		if f == nil || f.done {
			continue
		}
		answer := t.answer(w)
		if size := len(w.Hops) + len(answer.Hops); size != f.size {
			f.size, f.news = size, now
		}
		whole := !w.Alike && t.ends.Arrived(w) &&
			(!follow.AsksForAnswer(&w.Hops[0].SeenPacket) || len(answer.Hops) > 0 && t.ends.Arrived(answer))
		if quiet := now.Sub(f.news); quiet < settleDelay || !whole && quiet < responseTimeout {
			continue
		}
		f.done = true
		began := time.Now()
		if err := t.report(ctx, w, answer, whole); err != nil {
			return err
		}
		t.pause(time.Since(began))
	}
	return nil
}

// release stops following packets whose presumed start was preceded by a sighting that arrived later.
func (t *traceRun) release() {
	for _, f := range t.packets {
		f.there = false
	}
	for i := range t.ways {
		if f := t.packets[startOf(&t.ways[i])]; f != nil && !t.ways[i].Back && t.ends.Started(&t.ways[i]) {
			f.there = true
		}
	}
	for start, f := range t.packets {
		if !f.done && !f.there {
			delete(t.packets, start)
			t.followedCount--
			t.abandoned = true
		}
	}
}

func startOf(w *follow.Way) string {
	return fmt.Sprint(w.Hops[0].Identity, w.Hops[0].SrcPort, w.Hops[0].Time.UnixNano())
}

// pause shifts all deadlines by the time in which no reports were read because switches were queried.
func (t *traceRun) pause(d time.Duration) {
	for _, f := range t.packets {
		f.news = f.news.Add(d)
	}
	for _, l := range t.observers {
		l.lastReport = l.lastReport.Add(d)
	}
}

// follow returns the state of a packet; nil if it is not followed. It begins with packets that expect a response,
// and accepts others when the duration is over.
func (t *traceRun) follow(w *follow.Way) *followed {
	start := startOf(w)
	f := t.packets[start]
	if f == nil && t.followedCount < t.spec.Count && (follow.AsksForAnswer(&w.Hops[0].SeenPacket) || t.closed) {
		f = &followed{}
		t.packets[start] = f
		t.followedCount++
	}
	return f
}

// answer returns the way of the first response to a packet. It has no hops if there is none.
func (t *traceRun) answer(w *follow.Way) *follow.Way {
	best := &follow.Way{Back: true}
	if !follow.AsksForAnswer(&w.Hops[0].SeenPacket) {
		return best
	}
	for i := range t.ways {
		b := &t.ways[i]
		if follow.Answers(w, b) && (len(best.Hops) == 0 || t.ends.Arrived(b) && !t.ends.Arrived(best)) {
			best = b
		}
	}
	return best
}

// report sends a packet to the client. If sightings were dropped, it keeps an incomplete packet as a fallback.
func (t *traceRun) report(ctx context.Context, w, answer *follow.Way, whole bool) error {
	p := t.packet(ctx, w, answer)
	if !whole && t.overflowed() && !t.closed {
		if t.fallback == nil {
			t.fallback = p
		}
		t.followedCount--
		return nil
	}
	t.reportedCount++
	return t.send(&inspect.Traced{From: t.x.q.From, To: *t.x.q.To, Packet: p})
}

func (t *traceRun) end(ctx context.Context) error {
	out := inspect.Traced{From: t.x.q.From, To: *t.x.q.To, End: "as many packets as were wanted"}
	if t.reportedCount == 0 && t.fallback != nil {
		t.reportedCount, out.Packet = 1, t.fallback
	}
	if t.reportedCount < t.spec.Count {
		out.End = fmt.Sprintf("the time is over (%v)", t.spec.Duration)
	}
	if t.reportedCount == 0 {
		out.End = t.silence(ctx)
	}
	for node, l := range t.observers {
		if l.err != nil && l.started {
			out.Problems = append(out.Problems, fmt.Sprintf("node %s stopped reporting sightings: %v", node, l.err))
		}
		if l.counts.Dropped > 0 {
			out.Problems = append(out.Problems, fmt.Sprintf(
				"%d packets came to %s faster than they could be looked at: say a port, or trace while it is calmer",
				l.counts.Dropped, node))
		}
	}
	slices.Sort(out.Problems)
	return t.send(&out)
}

// markedWays returns the ways between the ends, with the ends that Flowkeep did not attach marked.
func (t *tracePlan) markedWays() []inspect.Way {
	ways := slices.Clone(t.x.out.Ways)
	for i := range ways {
		markUnattached(&ways[i], t.x.s.cfg.Unattached())
	}
	return ways
}

// silence describes why no packet of the source was reported.
func (t *traceRun) silence(ctx context.Context) string {
	from, where := &t.ends.From, "its nodes"
	switch {
	case from.Pod != "":
		where = "the pod's link on " + from.Node
	case from.Node != "":
		where = "the node itself"
	case len(t.nodes) > 0:
		where = strings.Join(t.nodes, ", ")
	}
	if t.abandoned {
		return fmt.Sprintf(
			"NOT CERTAIN: a packet from %s to %s was seen, but nodes reported it for longer than it could be followed",
			t.x.q.From, targetText(t.x.q.To))
	}
	if t.overflowed() {
		return fmt.Sprintf(
			"NOT CERTAIN: no packet from %s to %s was seen at %s, but there were more packets than could be looked "+
				"at: say a port",
			t.x.q.From,
			targetText(t.x.q.To),
			where,
		)
	}
	if t.x.s.cfg.Unattached().Lacks(from.Pod) {
		return fmt.Sprintf("NOT CERTAIN: no packet from %s to %s was seen at %s, but the pod is not wired by Flowkeep",
			t.x.q.From, targetText(t.x.q.To), where)
	}
	if t.changed(ctx) {
		return fmt.Sprintf("NOT CERTAIN: no packet from %s to %s was seen at %s, but %s", t.x.q.From,
			targetText(t.x.q.To), where, changedMeanwhile)
	}
	return fmt.Sprintf("NOT SENT: no packet from %s to %s came by %s within %v", t.x.q.From, targetText(t.x.q.To),
		where, t.spec.Duration)
}

func targetText(to *inspect.Target) string {
	text := to.Name
	if to.Port != "" {
		if strings.Contains(text, ":") {
			text = "[" + text + "]"
		}
		text += ":" + to.Port
	}
	if to.Protocol != "" {
		text += "/" + strings.ToLower(to.Protocol)
	}
	return text
}
