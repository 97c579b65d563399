package lease

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// server is a Lease at an API server: whoever writes must have read the version that is there.
type server struct {
	claim   Claim
	there   bool
	version int
}

// instance is a netmaster: it stands still at times, and its clock goes faster or slower than the world's.
type instance struct {
	name    string
	rate    float64
	frozen  int // until then, in steps
	away    int // until then the API server does not answer it, in steps
	fenced  bool
	view    View
	read    int // the version that it read
	leads   bool
	session int // counts the times that it came to lead: streams of one are not those of another
	term    int32
	renewed time.Time // by its own clock
	inbox   []question
}

type question struct {
	node    int
	session int
	asked   time.Time // by the node's clock
}

type promise struct {
	from, session int
	term          int32
	asked         time.Time
	valid         time.Duration
	arrive        int
}

// update is on its way to a node.
type update struct {
	from, session int
	term          int32
	arrive        int
}

type follower struct {
	rate     float64
	obeyed   int32
	leader   int
	session  int       // of the leader
	until    time.Time // it is obeyed
	patience time.Time // it is waited for
	held     time.Time // until then a fenced leader has it keep the stream
	promises []promise
	updates  []update
}

// TestOnlyTheHolderIsObeyed plays netmasters that freeze, whose requests take long, whose clocks differ, that stand by when they have lost the Lease, which
// somebody deletes now and then, and nodes that ask them: no node takes an update over unless who sent it was the last to take the Lease.
func TestOnlyTheHolderIsObeyed(t *testing.T) {
	taken, terms, again, deleted, fenced, regained, late := 0, 0, 0, 0, 0, 0, 0
	for seed := range uint64(300) {
		w := &simulation{T: t, seed: seed, r: rand.New(rand.NewPCG(seed, 2))}
		w.run()
		taken, terms, again, deleted = taken+w.taken, terms+w.terms, again+w.again, deleted+w.deleted
		fenced, regained, late = fenced+w.fenced, regained+w.regained, late+w.late
	}
	if fenced < 700 || regained < 150 || late < 1000 {
		t.Errorf("fenced %d times, %d of these led again, %d updates after a fence: nothing was shown",
			fenced, regained, late)
	}
	if taken < 10000 || terms < 300 || again < 100 || deleted < 300 {
		t.Errorf("%d updates taken over, %d changes of the leader, %d to one that had led before, %d times no Lease: nothing was shown", taken, terms, again, deleted)
	}
}

const (
	stepTime = 100 * time.Millisecond
	simLasts = 40 * stepTime
	// simGivesUp is how long a holder tries to renew.
	simGivesUp = 25 * stepTime
	// simFenced is after how long without a renewal a term is over, and simHold how long a node keeps a stream for a
	// fenced leader.
	simFenced = 100 * stepTime
	simHold   = 30 * stepTime
)

type simulation struct {
	*testing.T
	seed    uint64
	r       *rand.Rand
	step    int
	lease   server
	masters []*instance
	nodes   []*follower
	last    *instance // who took the Lease last
	session int       // and in which of its times as the leader
	taken   int
	terms   int
	again   int // of these, of one that had led before
	deleted int

	fenced, regained int // leaders, and those of them that went on
	late             int // updates that were taken over after the stream was held
}

func (w *simulation) clock(rate float64) time.Time {
	return time.Unix(1000, 0).Add(time.Duration(float64(w.step) * rate * float64(stepTime)))
}

func (w *simulation) run() {
	for i := range 3 {
		w.masters = append(w.masters, &instance{name: fmt.Sprint(i), rate: 1 + 0.05*w.r.Float64()})
		w.nodes = append(w.nodes, &follower{rate: 1 + 0.05*w.r.Float64(), obeyed: -1, leader: -1})
	}
	for w.step = range 1500 {
		if w.lease.there && w.r.IntN(200) == 0 { // by a person
			w.lease.there = false
			w.lease.version++
			w.deleted++
		}
		if w.r.IntN(150) == 0 { // the API server stalls, for one or for all
			hit, until := w.r.IntN(2*len(w.masters)), w.step+w.r.IntN(120)
			for i, m := range w.masters {
				if hit == i || hit >= len(w.masters) {
					m.away = until
				}
			}
		}
		for i, m := range w.masters {
			if m.frozen > w.step {
				continue
			}
			if w.r.IntN(150) == 0 { // it stands still, or its machine does
				m.frozen = w.step + w.r.IntN(100)
			}
			w.master(i, m)
		}
		for i, n := range w.nodes {
			w.node(i, n)
		}
	}
}

// master does what an instance does in a step: each request is read and write of one step, or of two with a pause between.
func (w *simulation) master(i int, m *instance) {
	now := w.clock(m.rate)
	if !m.leads {
		w.candidate(m, now)
		return
	}
	if w.step%5 == 0 {
		w.renewal(i, m, now)
	}
	if !m.leads {
		return
	}
	if m.fenced { // nodes get the message to keep their streams, and nothing else
		for _, n := range w.nodes {
			if n.leader == i && n.session == m.session && w.step%10 == 0 {
				n.held = w.clock(n.rate).Add(simHold)
			}
		}
		return
	}
	if now.Sub(m.renewed) < Trust(simLasts) {
		for _, n := range w.nodes {
			if n.leader == i && n.session == m.session && w.r.IntN(3) == 0 {
				n.updates = append(n.updates, update{i, m.session, m.term, w.step + w.r.IntN(60)})
			}
		}
	}
}

// renewal is a leader's attempt to renew. One that is late is fenced; it goes on if there was no other write since its
// own.
func (w *simulation) renewal(i int, m *instance, now time.Time) {
	late := now.Sub(m.renewed) > simGivesUp
	lost := m.away <= w.step && w.lease.there && m.read != w.lease.version
	if late && m.away <= w.step && !w.lease.there || now.Sub(m.renewed) > simFenced {
		lost = true
	}
	switch {
	case lost: // it stands by
		last := Claim{Holder: m.name, Term: m.term, Renewed: m.renewed, Lasts: simLasts}
		m.leads, m.fenced, m.inbox = false, false, nil
		m.view.Saw(&last, now)
		return
	case m.away > w.step:
		if late && !m.fenced {
			m.fenced = true
			w.fenced++
		}
		return
	}
	if m.fenced {
		w.regained++
	}
	w.write(m, m.term, now) // recreates it where it was deleted
	m.renewed, m.fenced = now, false
	for _, q := range m.inbox { // answered by a renewal that began after they had come
		n := w.nodes[q.node]
		n.promises = append(n.promises, promise{
			from:    i,
			session: q.session,
			term:    m.term,
			asked:   q.asked,
			valid:   Trust(simLasts),
			arrive:  w.step + w.r.IntN(30),
		})
	}
	m.inbox = nil
}

func (w *simulation) candidate(m *instance, now time.Time) {
	if m.away > w.step {
		m.view.Missed()
		return
	}
	if w.step%3 == 0 { // it looks
		m.read = w.lease.version
		if w.lease.there {
			c := w.lease.claim
			m.view.Saw(&c, now)
		} else {
			m.view.Saw(nil, now)
		}
		return
	}
	if !m.view.looked || m.read != w.lease.version {
		return
	}
	if !w.lease.there {
		if c, from := m.view.Make(simLasts, 5*stepTime); !now.Before(from) {
			w.lease.version++
			w.lease.there, w.lease.claim = true, c
		}
		return
	}
	if now.Before(m.view.FreeAt(simLasts)) {
		return
	}
	if term, ok := m.view.Next(); ok {
		w.write(m, term, now)
		if w.terms++; m.session > 0 {
			w.again++
		}
		m.session++
		m.leads, m.term, m.renewed = true, term, now
		w.last, w.session = m, m.session
	}
}

func (w *simulation) write(m *instance, term int32, now time.Time) {
	w.lease.version++
	w.lease.there, w.lease.claim = true, Claim{Holder: m.name, Term: term, Renewed: now, Lasts: simLasts}
	m.read = w.lease.version
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (w *simulation) node(i int, n *follower) {
	now := w.clock(n.rate)
	if n.leader < 0 || now.After(n.until) && now.After(n.patience) && now.After(n.held) {
		// it asks any of them; an answer may come late, or from one that woke up
		n.leader = w.r.IntN(len(w.masters))
		n.session = w.masters[n.leader].session
		n.updates, n.promises, n.until, n.patience, n.held = nil, nil, time.Time{}, now.Add(simLasts), time.Time{}
	}
	if m := w.masters[n.leader]; w.step%10 == 0 && m.leads && m.session == n.session {
		m.inbox = append(m.inbox, question{node: i, session: n.session, asked: now})
	}
	var pending []promise
	for _, p := range n.promises {
		switch {
		case p.arrive > w.step:
			pending = append(pending, p)
		case p.from == n.leader && p.session == n.session && p.term >= n.obeyed:
			n.obeyed = p.term
			n.until = later(n.until, p.asked.Add(p.valid))
		}
	}
	n.promises = pending
	var waiting []update
	for _, u := range n.updates {
		switch {
		case u.arrive > w.step:
			waiting = append(waiting, u)
		case !now.Before(n.until) && now.Before(n.held): // it waits until its leader is certain again
			waiting = append(waiting, u)
		case now.Before(n.until) && u.from == n.leader && u.session == n.session:
			w.taken++
			if !n.held.IsZero() {
				w.late++
			}
			if w.masters[u.from] != w.last || u.session != w.session {
				w.Fatalf("seed %d, step %d: node %d takes over an update of term %d by %s, after %s took the Lease", w.seed, w.step, i, u.term, w.masters[u.from].name, w.last.name)
			}
		}
	}
	n.updates = waiting
}

func TestView(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	held := &Claim{Holder: "a", Term: 4, Renewed: at(100), Lasts: 4 * time.Second}
	again := &Claim{Holder: "a", Term: 4, Renewed: at(101), Lasts: 4 * time.Second}
	type look struct {
		claim *Claim
		at    int
	}
	for name, c := range map[string]struct {
		looks []look
		free  time.Time
		next  int32
	}{
		"held":                   {[]look{{held, 1}}, at(5), 5},
		"held as before":         {[]look{{held, 1}, {held, 3}}, at(5), 5},
		"renewed":                {[]look{{held, 1}, {again, 3}}, at(7), 5},
		"by another's clock":     {[]look{{again, 1}, {held, 3}}, at(7), 5},
		"given back":             {[]look{{held, 1}, {&Claim{Term: 4, Lasts: time.Second}, 2}}, time.Time{}, 5},
		"nobody holds it":        {[]look{{held, 1}, {&Claim{Term: 4, Lasts: 4 * time.Second}, 2}}, at(6), 5},
		"lasts longer":           {[]look{{&Claim{Holder: "a", Lasts: 30 * time.Second}, 1}}, at(31), 1},
		"deleted and begun anew": {[]look{{held, 1}, {nil, 3}, {&Claim{Holder: "b", Lasts: 4 * time.Second}, 4}}, at(8), 5},
	} {
		var v View
		for _, l := range c.looks {
			v.Saw(l.claim, at(l.at))
		}
		next, ok := v.Next()
		if free := v.FreeAt(4 * time.Second); !free.Equal(c.free) || next != c.next || !ok {
			t.Errorf("%s: free at %v, next term %d (%v); want %v, %d", name, free, next, ok, c.free, c.next)
		}
	}
	v := View{}
	v.Saw(nil, at(1))
	v.Saw(nil, at(2))
	if c, from := v.Make(4*time.Second, time.Second); from != at(3) || c.Holder == "" || c.Term != 0 {
		t.Errorf("where there never was one, from %v: %+v", from, c)
	}
	v.Saw(held, at(5))
	v.Saw(nil, at(6))
	c, from := v.Make(4*time.Second, time.Second)
	if from != at(8) || c.Term != 4 {
		t.Errorf("where one was deleted, from %v: %+v", from, c)
	}
	v.Saw(&c, at(9))
	if next, _ := v.Next(); next != 5 || v.FreeAt(time.Second) != at(13) || v.Holder() != "" {
		t.Errorf("one that was made is free at %v, for term %d, and held by %q", v.FreeAt(time.Second), next, v.Holder())
	}
	v = View{}
	v.Saw(&Claim{Term: 1<<31 - 1}, at(1))
	if _, ok := v.Next(); ok {
		t.Error("there is a term after the last")
	}
}
