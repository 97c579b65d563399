package wire

import (
	"testing"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
)

func seed(f *testing.F, m proto.Message) {
	f.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:len(b)/2])
}

// FuzzHello: whatever a node sends is refused, or means the same when it is sent on.
func FuzzHello(f *testing.F) {
	g := gen{policytest.New(6)}
	for n := range 4 {
		h := Hello{Node: "node1", Program: "v1", Versions: Versions{2, 2}, Revision: 9}
		for kind := range policy.GroupKind(3) {
			h.Held = append(h.Held, Held{kind, g.key(), g.key()})
		}
		for range n {
			h.Announced = append(h.Announced, Announcement{Namespace: "ns", Name: string(rune('a' + n)), Addresses: g.addresses(2)})
		}
		for m := range HelloParts(&h) {
			seed(f, m)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(feed.NodeMessage)
		if proto.Unmarshal(b, m) != nil {
			return
		}
		part := m.GetHello()
		if part == nil {
			return
		}
		hello, whole, err := new(HelloAssembler).Add(part)
		if err != nil || !whole {
			return
		}
		for i := range hello.Announced {
			if err := hello.Announced[i].Validate(); err != nil {
				t.Fatal(err)
			}
		}
		var again Hello
		var all HelloAssembler
		for part := range HelloParts(&hello) {
			if again, _, err = all.Add(part.GetHello()); err != nil {
				t.Fatal(err)
			}
		}
		if d := gocmp.Diff(hello, again, asValues...); d != "" {
			t.Fatal(d)
		}
	})
}

// FuzzUp: acks, announcements and all else a node says after its hello.
func FuzzUp(f *testing.F) {
	g := gen{policytest.New(7)}
	seed(f, FromAck(&Ack{Revision: 1, Errors: []RuleError{{Rules: g.keys(2), Origins: g.rule(9).Origins, Message: "no"}}}))
	a := FromAnnouncement(&Announcement{Namespace: "ns", Name: "a", UID: "u", Addresses: g.addresses(2)})
	seed(f, &feed.NodeMessage{Message: &feed.NodeMessage_Announce{Announce: a}})
	seed(f, &feed.NodeMessage{Message: &feed.NodeMessage_Withdraw{Withdraw: a}})
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(feed.NodeMessage)
		if proto.Unmarshal(b, m) != nil {
			return
		}
		if in := m.GetAck(); in != nil {
			a, err := ToAck(in)
			if err != nil {
				return
			}
			again, err := ToAck(FromAck(&a).GetAck())
			if d := gocmp.Diff(a, again, asValues...); d != "" || err != nil {
				t.Fatal(err, d)
			}
		}
		if in := m.GetAnnounce(); in != nil {
			a, err := ToAnnouncement(in)
			if err != nil {
				return
			}
			again, err := ToAnnouncement(FromAnnouncement(&a))
			if d := gocmp.Diff(a, again, asValues...); d != "" || err != nil {
				t.Fatal(err, d)
			}
		}
	})
}

// FuzzDown: whatever netmaster sends is refused, or means the same when it is sent on; a rule's key is that of its content.
func FuzzDown(f *testing.F) {
	g := gen{policytest.New(8)}
	for n := range 8 {
		u := g.update(n, n, 2+n)
		for m := range Parts(&u) {
			seed(f, m)
		}
	}
	seed(f, FromNodes([]policy.NodeInfo{{Name: "a", Addresses: g.addresses(2)}}))
	seed(f, FromWelcome(2, "v1", 0, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(feed.MasterMessage)
		if proto.Unmarshal(b, m) != nil {
			return
		}
		if in := m.GetNodes(); in != nil {
			infos, err := ToNodes(in)
			if err != nil {
				return
			}
			again, err := ToNodes(FromNodes(infos).GetNodes())
			if d := gocmp.Diff(infos, again, asValues...); d != "" || err != nil {
				t.Fatal(err, d)
			}
		}
		in := m.GetUpdate()
		if in == nil {
			return
		}
		u, whole, err := new(UpdateAssembler).Add(in)
		if err != nil || !whole {
			return
		}
		for _, c := range u.Rules {
			if c.Rule != nil && policy.RuleKey(c.Rule) != c.Key {
				t.Fatalf("rule %s was taken with another content", c.Key)
			}
		}
		again, _ := send(t, &u)
		if d := gocmp.Diff(u, again, asValues...); d != "" {
			t.Fatal(d)
		}
	})
}
