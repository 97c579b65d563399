package inspect

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
	// grace is for how long a packet's next sighting, or its answer, is waited for.
	grace = 2 * time.Second
	// settled is for how long those of other nodes may be on their way when a packet is at its end.
	settled = 300 * time.Millisecond
	beat    = 100 * time.Millisecond
	// patience is how long a node may take until it looks.
	patience = 3 * time.Second
	// deaf is a node that has said nothing for so long: it should every second.
	deaf = 1500 * time.Millisecond
	// overtime is how long after its time a trace ends, whatever nodes still tell.
	overtime = 10 * time.Second
	// mostSeen is how many sightings a trace keeps, and for how long.
	mostSeen = 20_000
	seenFor  = 10 * time.Second
)

// journey is a trace on its way. Its goroutine is the one that asked; those that read nodes send it news.
type journey struct {
	x        *explaining
	spec     inspect.TraceSpec
	send     func(any) error
	ends     follow.Ends
	query    inspect.SightingsQuery
	nodes    []string // that look; FROM's is the last
	problems []string

	lookers map[string]*looker
	seen    []inspect.Hop
	seenAt  []time.Time          // of seen: by this clock
	ways    []follow.Way         // of seen
	fresh   bool                 // there is more in seen than in ways
	known   map[string]*followed // by start
	chosen  int                  // of known: to be told
	told    int
	over    bool // no further packet is followed
	givenUp bool // a packet that was followed, but not to its end
	// put is what is told only if nothing better comes.
	put *inspect.FollowedPacket
}

// looker is a node.
type looker struct {
	begun, ended bool
	full         bool // it stopped before the time was over
	heard        time.Time
	err          error
	counts       inspect.CaptureCounts
}

// followed is a packet that was seen at its start.
type followed struct {
	size  int // how often it and its answer were seen
	news  time.Time
	done  bool
	there bool // its way is among those that were put together last
}

// news is from a node: sightings, or its end.
type news struct {
	node string
	inspect.Sighted
	over bool
	err  error
}

func (t *journey) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	came := make(chan news)
	if err := t.begin(ctx, came); err != nil {
		return err
	}
	problems := slices.Concat(t.x.out.Problems, t.problems)
	if err := t.send(&inspect.Traced{From: t.x.q.From, To: *t.x.q.To, Nodes: t.nodes, Problems: unique(problems)}); err != nil {
		return err
	}
	tick := time.NewTicker(beat)
	defer tick.Stop()
	deadline := time.Now().Add(t.spec.Duration)
	for {
		select {
		case n := <-came:
			t.take(&n)
		case <-tick.C:
			now := time.Now() // not the tick's, which may have waited
			t.over = t.over || now.After(deadline) || t.allEnded()
			if err := t.step(ctx, now); err != nil {
				return err
			}
			late := t.waiting() && now.After(deadline.Add(overtime))
			t.givenUp = t.givenUp || late
			if t.told >= t.spec.Count || t.over && !t.waiting() || late {
				return t.end(ctx)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// begin has FROM's node look last: what it sees of a packet's start is seen by the others after.
func (t *journey) begin(ctx context.Context, came chan news) error {
	first := t.nodes
	if from := t.ends.From.Node; from != "" {
		first = t.nodes[:len(t.nodes)-1]
	}
	for _, list := range [][]string{first, t.nodes[len(first):]} {
		for _, node := range list {
			t.look(ctx, node, came)
		}
		if err := t.await(ctx, list, came); err != nil {
			return err
		}
	}
	var failed []error
	for _, node := range t.nodes {
		if l := t.lookers[node]; l.err != nil {
			failed = append(failed, l.err)
			t.problems = append(t.problems, fmt.Sprintf("node %s does not look: %v", node, l.err))
		}
	}
	if len(failed) == len(t.nodes) || t.lookers[t.nodes[len(t.nodes)-1]].err != nil && t.ends.From.Node != "" {
		return failed[len(failed)-1]
	}
	return nil
}

// await returns when nodes look, or have failed to.
func (t *journey) await(ctx context.Context, nodes []string, came <-chan news) error {
	enough := time.NewTimer(patience)
	defer enough.Stop()
	for _, node := range nodes {
		for l := t.lookers[node]; !l.begun && l.err == nil && !l.ended; {
			select {
			case n := <-came:
				t.take(&n)
			case <-enough.C:
				for _, silent := range nodes {
					if l := t.lookers[silent]; !l.begun && !l.ended {
						l.err = fmt.Errorf("it has not answered within %v", patience)
					}
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

func (t *journey) look(ctx context.Context, node string, came chan<- news) {
	t.lookers[node] = &looker{}
	tell := func(n news) error {
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
			n := news{node: node}
			if err := json.Unmarshal(body, &n.Sighted); err != nil {
				return fmt.Errorf("node %s answers what makes no sense: %w", node, err)
			}
			return tell(n)
		})
		_ = tell(news{node: node, over: true, err: err})
	}()
}

func (t *journey) take(n *news) {
	l := t.lookers[n.node]
	if n.over {
		l.ended, l.err = true, cmp.Or(n.err, l.err)
		return
	}
	l.begun, l.heard, l.counts, l.full = true, time.Now(), n.CaptureCounts, l.full || n.End != "" && !t.over
	for i := range n.Sightings {
		if len(t.seen) < mostSeen {
			t.seen, t.seenAt = append(t.seen, inspect.Hop{Node: n.node, Sighting: n.Sightings[i]}), append(t.seenAt, time.Now())
			t.fresh = true
		}
	}
}

// forget drops what is older than any packet that is under way.
func (t *journey) forget(now time.Time) {
	old, _ := slices.BinarySearchFunc(t.seenAt, now.Add(-seenFor), time.Time.Compare)
	t.seen, t.seenAt = slices.Delete(t.seen, 0, old), slices.Delete(t.seenAt, 0, old)
}

func (t *journey) allEnded() bool {
	for _, l := range t.lookers {
		if !l.ended {
			return false
		}
	}
	return true
}

// rushed tells that there were packets that nobody looked at.
func (t *journey) rushed() bool {
	for _, l := range t.lookers {
		if l.counts.Dropped > 0 || l.full {
			return true
		}
	}
	return len(t.seen) >= mostSeen
}

func (t *journey) waiting() bool {
	for _, f := range t.known {
		if !f.done {
			return true
		}
	}
	return false
}

// step looks at the packets that are followed, and tells of those that are at their end.
func (t *journey) step(ctx context.Context, now time.Time) error {
	if t.forget(now); t.fresh {
		t.ways, t.fresh = t.ends.Join(t.seen), false
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
		whole := !w.Alike && t.ends.Arrived(w) && (!follow.AsksForAnswer(&w.Hops[0].SeenPacket) || len(answer.Hops) > 0 && t.ends.Arrived(answer))
		if quiet := now.Sub(f.news); quiet < settled || !whole && quiet < grace {
			continue
		}
		f.done = true
		began := time.Now()
		if err := t.tell(ctx, w, answer, whole); err != nil {
			return err
		}
		t.pause(time.Since(began))
	}
	return nil
}

// release gives up packets whose start turned out to be another, by what was seen before it and told after it: they are followed from there.
func (t *journey) release() {
	for _, f := range t.known {
		f.there = false
	}
	for i := range t.ways {
		if f := t.known[startOf(&t.ways[i])]; f != nil && !t.ways[i].Back && t.ends.Started(&t.ways[i]) {
			f.there = true
		}
	}
	for start, f := range t.known {
		if !f.done && !f.there {
			delete(t.known, start)
			t.chosen--
			t.givenUp = true
		}
	}
}

func startOf(w *follow.Way) string {
	return fmt.Sprint(w.Hops[0].Identity, w.Hops[0].SrcPort, w.Hops[0].Time.UnixNano())
}

// pause is for how long nothing was taken from nodes, as switches were asked: nobody was silent because of that.
func (t *journey) pause(d time.Duration) {
	for _, f := range t.known {
		f.news = f.news.Add(d)
	}
	for _, l := range t.lookers {
		l.heard = l.heard.Add(d)
	}
}

// follow gives what is known of a packet that is followed: of the first that ask for an answer, or, when there will be no more, of any.
func (t *journey) follow(w *follow.Way) *followed {
	start := startOf(w)
	f := t.known[start]
	if f == nil && t.chosen < t.spec.Count && (follow.AsksForAnswer(&w.Hops[0].SeenPacket) || t.over) {
		f = &followed{}
		t.known[start] = f
		t.chosen++
	}
	return f
}

// answer is the first that came back, without hops where there is none, or none was asked for.
func (t *journey) answer(w *follow.Way) *follow.Way {
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

// tell tells of a packet. Where not all was looked at, one whose way is whole is worth more than the first.
func (t *journey) tell(ctx context.Context, w, answer *follow.Way, whole bool) error {
	p := t.packet(ctx, w, answer)
	if !whole && t.rushed() && !t.over {
		if t.put == nil {
			t.put = p
		}
		t.chosen--
		return nil
	}
	t.told++
	return t.send(&inspect.Traced{From: t.x.q.From, To: *t.x.q.To, Packet: p})
}

func (t *journey) end(ctx context.Context) error {
	out := inspect.Traced{From: t.x.q.From, To: *t.x.q.To, End: "as many packets as were wanted"}
	if t.told == 0 && t.put != nil {
		t.told, out.Packet = 1, t.put
	}
	if t.told < t.spec.Count {
		out.End = fmt.Sprintf("the time is over (%v)", t.spec.Duration)
	}
	if t.told == 0 {
		out.End = t.silence(ctx)
	}
	for node, l := range t.lookers {
		if l.err != nil && l.begun {
			out.Problems = append(out.Problems, fmt.Sprintf("node %s has stopped looking: %v", node, l.err))
		}
		if l.counts.Dropped > 0 {
			out.Problems = append(out.Problems, fmt.Sprintf("%d packets came to %s faster than they could be looked at: say a port, or trace while it is calmer", l.counts.Dropped, node))
		}
	}
	slices.Sort(out.Problems)
	return t.send(&out)
}

// silence says that FROM has sent nothing.
func (t *journey) silence(ctx context.Context) string {
	from, where := &t.ends.From, "its nodes"
	switch {
	case from.Pod != "":
		where = "the pod's link on " + from.Node
	case from.Node != "":
		where = "the node itself"
	case len(t.nodes) > 0:
		where = strings.Join(t.nodes, ", ")
	}
	if t.givenUp {
		return fmt.Sprintf("NOT CERTAIN: a packet from %s to %s was seen, but nodes told of it for longer than it could be followed", t.x.q.From, targetText(t.x.q.To))
	}
	if t.rushed() {
		return fmt.Sprintf("NOT CERTAIN: no packet from %s to %s was seen at %s, but there were more packets than could be looked at: say a port", t.x.q.From, targetText(t.x.q.To), where)
	}
	if t.changed(ctx) {
		return fmt.Sprintf("NOT CERTAIN: no packet from %s to %s was seen at %s, but %s", t.x.q.From, targetText(t.x.q.To), where, changedMeanwhile)
	}
	return fmt.Sprintf("NOT SENT: no packet from %s to %s came by %s within %v", t.x.q.From, targetText(t.x.q.To), where, t.spec.Duration)
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
