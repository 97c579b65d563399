package feed

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// standingsWorld is a server of some nodes and policies, to which a random history happens.
type standingsWorld struct {
	*testing.T
	*rand.Rand
	s        *Server
	revision uint64
	extents  map[string]policy.Extent
	conns    map[string]*conn
}

func (w *standingsWorld) node() string   { return fmt.Sprint("node", w.IntN(3)) }
func (w *standingsWorld) policy() string { return fmt.Sprint("ns/p", w.IntN(3)) }

// standings returns all that Standing returns, as text.
func (w *standingsWorld) standings() string {
	w.Helper()
	all := map[string][]Standing{}
	for n := range 3 {
		id := fmt.Sprint("ns/p", n)
		e := w.extents[id]
		all[id] = w.s.Standing(id, &e)
	}
	text, err := json.Marshal(all)
	if err != nil {
		w.Fatal(err)
	}
	return string(text)
}

func (w *standingsWorld) publish() {
	w.revision++
	group := policy.GroupChange{Key: key(w.IntN(3)), Added: []netip.Addr{addr(w.IntN(200))}}
	node := policy.NodeChange{Node: w.node(), AddGroups: []policy.Key{group.Key}}
	w.s.Publish(&policy.Changes{
		Revision: w.revision,
		Groups:   []policy.GroupChange{group},
		Nodes:    []policy.NodeChange{node},
	})
}

// follow changes a policy, which applies to some nodes before and after.
func (w *standingsWorld) follow() {
	id := w.policy()
	before := w.extents[id]
	after := policy.Extent{Nodes: []string{w.node()}, Peers: []policy.Key{key(w.IntN(3))}}
	w.extents[id] = after
	w.s.Follow([]PolicyChange{{ID: id, Before: before, After: after}})
}

func (w *standingsWorld) attach() {
	name := w.node()
	if w.conns[name] != nil {
		return
	}
	c := &conn{hello: wire.Hello{Node: name, Program: "v1"}}
	w.conns[name] = c
	p, want := w.s.begin(c) // a query may come in between
	before, number := w.standings(), w.s.Standings()
	w.s.compared(c, p, want.compare(c.hello.Held))
	if after := w.standings(); after != before && w.s.Standings() == number {
		w.Fatalf("the comparison with a hello is not counted:\n%s\n%s", before, after)
	}
}

func (w *standingsWorld) detach() {
	name := w.node()
	if c := w.conns[name]; c != nil {
		w.s.detach(c)
		delete(w.conns, name)
	}
}

// send takes what waits for a connected node. It goes nowhere.
func (w *standingsWorld) send() {
	if c := w.conns[w.node()]; c != nil {
		w.s.takeDue(c)
	}
}

func (w *standingsWorld) acknowledge() {
	c := w.conns[w.node()]
	if c == nil {
		return
	}
	ack := &wire.Ack{Revision: c.sent}
	if w.IntN(3) == 0 {
		ack.Errors = []wire.RuleError{{Message: "no room", Rules: []policy.Key{key(w.IntN(3))}}}
	}
	w.s.acknowledged(c, ack)
}

func (w *standingsWorld) refuse() {
	w.s.refuse(w.node(), status.Error(codes.PermissionDenied, fmt.Sprint("reason ", w.IntN(2))))
}

// nodesGo gives the API server other nodes.
func (w *standingsWorld) nodesGo() {
	var infos []policy.NodeInfo
	for n := range w.IntN(3) {
		infos = append(infos, policy.NodeInfo{Name: fmt.Sprint("node", n)})
	}
	w.s.SetNodes(infos)
}

// TestStandings_Counted: nothing that Standing returns changes without the number of Standings.
func TestStandings_Counted(t *testing.T) {
	for seed := range uint64(200) {
		w := &standingsWorld{
			T:       t,
			Rand:    rand.New(rand.NewPCG(seed, 1)),
			s:       NewServer(Config{Logger: slog.New(slog.DiscardHandler)}),
			extents: map[string]policy.Extent{},
			conns:   map[string]*conn{},
		}
		steps := []func(){
			w.publish, w.follow, w.attach, w.detach, w.send, w.acknowledge, w.refuse, w.nodesGo, w.s.ForgetGone,
		}
		for n := range 60 {
			before, number := w.standings(), w.s.Standings()
			which := w.IntN(len(steps))
			steps[which]()
			if after := w.standings(); after != before && w.s.Standings() == number {
				t.Fatalf("seed %d: step %d, of kind %d, is not counted:\n%s\n%s", seed, n, which, before, after)
			}
		}
		for name := range w.conns {
			w.s.detach(w.conns[name])
		}
		before, number := w.standings(), w.s.Standings()
		if w.s.Dismiss(); w.standings() != before && w.s.Standings() == number {
			t.Fatalf("seed %d: the end of a term is not counted", seed)
		}
	}
}
