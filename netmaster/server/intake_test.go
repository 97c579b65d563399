package server

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

func noLabels(string) int { return 0 }

func putPolicies(namespace string, n int) *watch.Batch {
	b := newPart()
	for i := range n {
		p := &policy.Policy{Namespace: namespace, Name: fmt.Sprint("p", i)}
		b.Policies[p.ID()] = p
	}
	return b
}

// takePart takes a part as the owner does. Each policy has so many addresses that are new to nodes.
func takePart(q *intake, members int, now time.Time) *watch.Batch {
	part, _, last := q.part(noLabels)
	for room := maxPartPolicies; last && room > 0; {
		p := q.next(part, room)
		if p == nil {
			break
		}
		room -= policyWork(p)
		q.charge(p, members, now)
	}
	q.taken(1)
	return part
}

// A namespace with one edited policy does not wait for another one that has hundreds of them, each of which is many
// addresses: these are taken as their nodes acknowledge them, or at the latest after a time.
func TestIntake_QuietNamespaceIsNotQueuedBehindABurst(t *testing.T) {
	var q intake
	now := time.Unix(0, 0)
	q.add(putPolicies("busy", 300))
	taken := len(takePart(&q, 5000, now).Policies)
	if taken != 1 {
		t.Fatalf("%d policies of 5,000 addresses are taken at once", taken)
	}
	q.add(putPolicies("quiet", 1))
	part := takePart(&q, 10, now)
	if len(part.Policies) != 1 || part.Policies["quiet/p0"] == nil {
		t.Errorf("the next part has %d policies", len(part.Policies))
	}
	if q.due() || q.waits() == 0 {
		t.Error("the burst does not wait for nodes")
	}
	awaited := func(all []string) bool { return len(all) == 1 && strings.HasPrefix(all[0], "busy/") }
	if q.acknowledge(awaited, 1, now); q.due() {
		t.Error("the burst goes on while nodes have not acknowledged it")
	}
	nothing := func([]string) bool { return false }
	if q.acknowledge(nothing, 0, now); q.due() {
		t.Error("the burst goes on while it is not on disk")
	}
	if q.acknowledge(nothing, 1, now); !q.due() {
		t.Error("the burst does not go on when nodes have acknowledged it")
	}
	takePart(&q, 5000, now)
	if q.acknowledge(awaited, 1, now.Add(ackTimeout)); !q.due() {
		t.Error("a node that acknowledges nothing holds the namespace up for ever")
	}
	rounds := 0
	for ; q.waits() > 0; rounds++ {
		takePart(&q, 5000, now)
		q.acknowledge(nothing, 1, now)
	}
	if rounds != 298 {
		t.Errorf("the rest is taken in %d rounds", rounds)
	}
	if q.tidy(now.Add(ackTimeout)); len(q.spaces)+len(q.turns) > 0 {
		t.Errorf("%d namespaces are left", len(q.spaces))
	}
}

// Policies that are much work are taken one at a time, and from each namespace in turn.
func TestIntake_PartsAreBounded(t *testing.T) {
	var q intake
	for _, namespace := range []string{"a", "b"} {
		b := putPolicies(namespace, 4)
		for _, p := range b.Policies {
			p.Ingress = make([]policy.PolicyRule, 1500)
		}
		q.add(b)
	}
	for i := range 8 {
		part := takePart(&q, 0, time.Time{})
		if len(part.Policies) != 1 {
			t.Fatalf("a part has %d policies", len(part.Policies))
		}
		id := slices.Collect(maps.Keys(part.Policies))[0]
		if want := []string{"a", "b"}[i%2]; !strings.HasPrefix(id, want) {
			t.Errorf("part %d has %s", i, id)
		}
	}
	if q.due() {
		t.Error("something is left")
	}
}

// Many pods are taken in parts of bounded work, first those that give an address away. Deleted policies come after all
// pods, the policy that isolates pods over the budget before them.
func TestIntake_ManyPods(t *testing.T) {
	var q intake
	b := newPart()
	labels := map[string]string{}
	for i := range 500 {
		labels[fmt.Sprint("l", i)] = ""
	}
	for i := range 1000 {
		e := &policy.Endpoint{Namespace: "ns", Name: fmt.Sprint("p", i), Labels: labels}
		if b.Endpoints[e.ID()] = e; i%2 == 0 {
			e.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})}
		}
	}
	isolate := policy.IsolateOverBudget("ns")
	b.Policies[isolate.ID()], b.Policies["ns/gone"] = isolate, nil
	q.add(b)
	q.seal(7)
	giving, parts := true, 0
	for ; q.due(); parts++ {
		part, confirms, last := q.part(noLabels)
		work := 0
		for _, e := range part.Endpoints {
			work += podWork(e)
		}
		if work > maxPartPods+600 {
			t.Errorf("part %d is %d work", parts, work)
		}
		if _, there := part.Policies[isolate.ID()]; there != (parts == 0) {
			t.Errorf("part %d has the policy that isolates: %v", parts, there)
		}
		if _, there := part.Policies["ns/gone"]; there != last {
			t.Errorf("part %d has the deleted policy: %v", parts, there)
		}
		for _, e := range part.Endpoints {
			if gives(e) && !giving {
				t.Fatal("a pod that gives an address away comes after the others")
			}
		}
		for _, e := range part.Endpoints {
			giving = giving && gives(e)
		}
		if (confirms == 7) != last {
			t.Errorf("part %d confirms list %d", parts, confirms)
		}
	}
	if parts < 10 {
		t.Errorf("%d parts", parts)
	}
}

// However batches come and parts are taken, in the end the objects are as the batches left them.
func TestIntake_RandomHistories(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 2))
		var q intake
		want, got := newPart(), newPart()
		keep := func(into, b *watch.Batch) {
			maps.Copy(into.Namespaces, b.Namespaces)
			maps.Copy(into.Endpoints, b.Endpoints)
			maps.Copy(into.Policies, b.Policies)
			if b.NodesChanged {
				into.Nodes = b.Nodes
			}
		}
		for step := range 60 {
			b := newPart()
			for range r.IntN(4) {
				id := fmt.Sprint("ns", r.IntN(3), "/p", r.IntN(4))
				namespace, name, _ := strings.Cut(id, "/")
				switch r.IntN(5) {
				case 0:
					b.Policies[id] = nil
				case 1, 2:
					b.Policies[id] = &policy.Policy{Namespace: namespace, Name: name, CreatedAt: int64(step)}
				case 3:
					b.Endpoints[id] = &policy.Endpoint{Namespace: namespace, Name: name, UID: fmt.Sprint(step)}
				case 4:
					b.Endpoints[id], b.Namespaces[namespace] = nil, &policy.Namespace{Name: namespace}
					b.NodesChanged, b.Nodes = true, []policy.NodeInfo{{Name: fmt.Sprint(step)}}
				}
			}
			q.add(b)
			keep(want, b)
			switch r.IntN(6) {
			case 0:
				q.seal(uint64(step + 1))
			case 1, 2:
				keep(got, takePart(&q, r.IntN(2*maxUnacknowledged), time.Unix(int64(step), 0)))
			case 3:
				q.acknowledge(func([]string) bool { return r.IntN(2) == 0 }, uint64(r.IntN(2)), time.Unix(int64(step), 0))
				q.tidy(time.Unix(int64(step), 0))
			}
		}
		rest, _ := q.all()
		keep(got, rest)
		if q.due() || q.waits() > 0 {
			t.Fatalf("seed %d: something is left", seed)
		}
		same := maps.Equal(got.Endpoints, want.Endpoints) && maps.Equal(got.Namespaces, want.Namespaces)
		for id, p := range want.Policies {
			same = same && got.Policies[id] == p
		}
		if !same || !slices.EqualFunc(got.Nodes, want.Nodes, func(a, b policy.NodeInfo) bool { return a.Name == b.Name }) {
			t.Fatalf("seed %d: got %v, want %v", seed, got, want)
		}
	}
}
