package agent

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// quiet fails if netmaster was told more.
func (d *diary) quiet(t *testing.T) {
	t.Helper()
	select {
	case got := <-d.told:
		t.Errorf("netmaster was told %q", got)
	default:
	}
}

func (a *agent) settles(t *testing.T, u policy.NodeUpdate) {
	t.Helper()
	if _, err := updated(t, a, u); err != nil {
		t.Fatal(err)
	}
}

// opens tells that an ADD came to its end, and with the port open.
func (a *agent) opens(t *testing.T, s *pickySwitch, port uint32, done chan error) {
	t.Helper()
	if !a.isOpen(t, s, port) {
		t.Fatal("the port is shut")
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func (a *agent) forgets(t *testing.T, e endpoints.Endpoint) {
	t.Helper()
	if err := a.pods.Forget(t.Context(), e); err != nil {
		t.Fatal(err)
	}
}

// The kubelet makes a pod's sandbox anew while netmaster's answer to the first is on its way: that says nothing of the second one's address.
func TestAnAnswerToAnEarlierSandboxOpensNothing(t *testing.T) {
	ends := map[string]func(t *testing.T, a *agent){
		"with its DEL":   func(t *testing.T, a *agent) { a.forgets(t, wired("1", "c1", 7)) },
		"before its DEL": func(*testing.T, *agent) {},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			a, s, d := running(t)
			realize(t, a, wired("1", "c1", 7))
			d.await(t, "announced 1")
			end(t, a)
			second := realize(t, a, wired("1", "c2", 8))
			d.await(t, "withdrawn 1, shut")
			d.await(t, "announced 1")
			a.settles(t, settle(1, "1"))
			if a.isOpen(t, s, 7) || a.isOpen(t, s, 8) {
				t.Fatal("an answer that may be to the first sandbox opened a port")
			}
			d.await(t, "announced 1") // again: it may have been to both
			a.settles(t, settle(2, "1"))
			a.opens(t, s, 8, second)
			a.settles(t, settle(3, "1"))
			d.quiet(t)
		})
	}
}

// netmaster never had the pod: that its ADD was tried for hours does not keep the sandbox waiting that it answers at last.
func TestAnnouncements_UnansweredPodStartsANewSession(t *testing.T) {
	a, _, l := testAgent(t)
	for n := range mostEarlier + 1 {
		if len(l.anew) > 0 {
			t.Fatalf("%d attempts, and all begins anew", n)
		}
		e := wired("1", fmt.Sprint("c", n), uint32(10+n))
		p := &pod{endpoint: e}
		a.pods.byID[e.ID()] = p
		a.pods.announce(&e)
		_ = a.pods.shut(t.Context(), p)
	}
	if len(l.anew) != 1 {
		t.Errorf("after %d attempts: %v", mostEarlier+1, l.anew)
	}
}

// Each sandbox that was not answered may be answered yet.
func TestAnswersToSeveralSandboxesOpenNothing(t *testing.T) {
	a, s, d := running(t)
	for port := range uint32(3) {
		e := wired("1", fmt.Sprint("c", port), 10+port)
		realize(t, a, e)
		d.await(t, "announced 1")
		a.forgets(t, e)
		d.await(t, "withdrawn 1, shut")
	}
	last := realize(t, a, wired("1", "c7", 7))
	d.await(t, "announced 1")
	for i := range uint64(3) {
		a.settles(t, settle(i, "1"))
		if a.isOpen(t, s, 7) {
			t.Fatalf("open after %d answers", i+1)
		}
		d.await(t, "announced 1")
	}
	a.settles(t, settle(4, "1"))
	a.opens(t, s, 7, last)
}

// Where nothing is due to an earlier sandbox any more, nothing is asked twice.
func TestALaterSandboxIsOpenedByItsFirstAnswer(t *testing.T) {
	first, second := wired("1", "c1", 7), wired("1", "c2", 8)
	for name, between := range map[string]func(t *testing.T, a *agent, d *diary){
		"the first was answered": func(t *testing.T, a *agent, d *diary) {
			a.settles(t, settle(1, "1"))
			a.forgets(t, first)
			d.await(t, "withdrawn 1, shut")
		},
		"the answer came after its DEL": func(t *testing.T, a *agent, d *diary) {
			a.forgets(t, first)
			d.await(t, "withdrawn 1, shut")
			a.settles(t, settle(1, "1"))
		},
		"the stream is another": func(t *testing.T, a *agent, d *diary) {
			a.forgets(t, first)
			d.await(t, "withdrawn 1, shut")
			if _, err := a.State(t.Context(), func() {}); err != nil {
				t.Fatal(err)
			}
		},
		"a pod that was announced after it was answered": func(t *testing.T, a *agent, d *diary) {
			a.forgets(t, first)
			d.await(t, "withdrawn 1, shut")
			other := wired("3", "c3", 9)
			other.Name = "web"
			done := realize(t, a, other)
			d.await(t, "announced 3")
			u := settle(1, "3")
			u.Settled[0].ID = "shop/web"
			a.settles(t, u)
			if err := <-done; err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, s, d := running(t)
			realize(t, a, first)
			d.await(t, "announced 1")
			between(t, a, d)
			done := realize(t, a, second)
			d.await(t, "announced 1")
			a.settles(t, settle(2, "1"))
			a.opens(t, s, 8, done)
			if a.isOpen(t, s, 7) {
				t.Error("the first sandbox's port is open")
			}
			d.quiet(t)
		})
	}
}

// resolver is netmaster as far as one node's announcements go: it takes them one after another, and an update has all that is due by then.
type resolver struct {
	known     map[life]bool // the API server has the pod
	waiting   map[life]int
	announced map[life]int // sandboxes
	pending   map[string]policy.SettledEndpoint
}

func (r *resolver) take(m said) {
	switch {
	case m.withdrawn:
		delete(r.waiting, m.life)
		delete(r.announced, m.life)
	case r.known[m.life]:
		r.announced[m.life] = m.sandbox
		r.pending[m.id] = policy.SettledEndpoint{ID: m.id, UID: m.uid}
	default:
		r.waiting[m.life] = m.sandbox
	}
}

// learn is told of a pod by the API server.
func (r *resolver) learn(l life) {
	r.known[l] = true
	if sandbox, ok := r.waiting[l]; ok {
		delete(r.waiting, l)
		r.take(said{life: l, sandbox: sandbox})
	}
}

type said struct {
	life
	sandbox   int
	withdrawn bool
}

// TestAnnouncements_AnyOrder: in any order of responses a port opens with its own sandbox's rules, and all open at last.
func TestAnnouncements_AnyOrder(t *testing.T) {
	for seed := range uint64(3000) {
		x := exchange{rnd: rand.New(rand.NewPCG(seed, 0)), node: map[life]int{}, open: map[life]bool{},
			master: resolver{known: map[life]bool{}, waiting: map[life]int{}, announced: map[life]int{}, pending: map[string]policy.SettledEndpoint{}}}
		for range 60 {
			x.step()
		}
		for _, l := range lives {
			x.master.learn(l)
		}
		for i := 0; len(x.up)+len(x.down)+len(x.master.pending) > 0; i++ {
			if i > 1000 {
				t.Fatalf("seed %d: they do not come to an end", seed)
			}
			x.hear()
			x.send()
			x.receive()
		}
		for l := range x.node {
			if !x.open[l] {
				x.wrong = append(x.wrong, fmt.Sprintf("%v stays shut", l))
			}
		}
		if len(x.asked.lives) > len(lives) || len(x.wrong) > 0 {
			t.Fatalf("seed %d: %v, asked %v", seed, x.wrong, x.asked.lives)
		}
	}
}

var lives = []life{{"shop/db", "1"}, {"shop/db", "2"}, {"shop/web", "3"}}

// exchange is a node's with netmaster.
type exchange struct {
	rnd    *rand.Rand
	asked  asked
	node   map[life]int // the sandbox that is wired
	open   map[life]bool
	last   int
	up     []said
	master resolver
	down   []update
	wrong  []string
}

// update is what settles pods, and the sandboxes that it has rules of.
type update struct {
	settled []policy.SettledEndpoint
	rules   map[life]int
}

func (x *exchange) step() {
	l := lives[x.rnd.IntN(len(lives))]
	switch x.rnd.IntN(6) {
	case 0:
		for other := range x.node { // a name is of one life at a time
			if other.id == l.id {
				x.unwire(other)
			}
		}
		x.last++
		x.node[l] = x.last
		x.say(l)
	case 1:
		if _, ok := x.node[l]; ok {
			x.unwire(l)
		}
	case 2:
		x.hear()
	case 3:
		x.send()
	case 4:
		x.receive()
	case 5:
		if x.rnd.IntN(3) == 0 {
			x.master.learn(l)
		}
	}
}

func (x *exchange) say(l life) {
	x.asked.announce(l)
	x.up = append(x.up, said{life: l, sandbox: x.node[l]})
}

func (x *exchange) unwire(l life) {
	x.asked.end(l)
	x.up = append(x.up, said{life: l, withdrawn: true})
	delete(x.node, l)
	delete(x.open, l)
}

func (x *exchange) hear() {
	if len(x.up) > 0 {
		x.master.take(x.up[0])
		x.up = x.up[1:]
	}
}

func (x *exchange) send() {
	if len(x.master.pending) == 0 {
		return
	}
	u := update{rules: map[life]int{}}
	for l, sandbox := range x.master.announced {
		u.rules[l] = sandbox
	}
	for id, s := range x.master.pending {
		u.settled = append(u.settled, s)
		delete(x.master.pending, id)
	}
	x.down = append(x.down, u)
}

func (x *exchange) receive() {
	if len(x.down) == 0 {
		return
	}
	u := x.down[0]
	x.down = x.down[1:]
	certain := x.asked.answered(u.settled)
	for _, s := range u.settled {
		l := life{s.ID, s.UID}
		sandbox, wired := x.node[l]
		switch {
		case !wired || x.open[l]:
		case !certain[l]:
			x.say(l)
		case u.rules[l] != sandbox:
			x.wrong = append(x.wrong, fmt.Sprintf("%v: opened sandbox %d with the rules of %d", l, sandbox, u.rules[l]))
		default:
			x.open[l] = true
		}
	}
}
