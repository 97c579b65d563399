package feed

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/keyed"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/protobuf/proto"
)

// nodeHandler keeps the lists of nodes that it is given.
type nodeHandler struct {
	Handler
	lists [][]policy.NodeInfo
}

// Nodes implements Handler.
func (h *nodeHandler) Nodes(_ context.Context, infos []policy.NodeInfo) error {
	h.lists = append(h.lists, infos)
	return nil
}

// nodeSource is netmaster's list of nodes.
type nodeSource struct {
	*testing.T
	keyed.Source
}

func (s *nodeSource) put(name string) {
	s.Helper()
	addresses := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	value, err := wire.NodeValue(&policy.NodeInfo{Name: name, Addresses: addresses})
	if err != nil {
		s.Fatal(err)
	}
	s.Put(name, value)
}

// messages returns a delta as a node receives it.
func (s *nodeSource) messages(d *keyed.Delta) (out []*feed.Keyed) {
	s.Helper()
	all, err := wire.FromKeyed(feed.KeyedSet_KEYED_SET_NODES, d)
	if err != nil {
		s.Fatal(err)
	}
	for _, m := range all {
		text, err := proto.Marshal(m)
		if err != nil {
			s.Fatal(err)
		}
		m = new(feed.MasterMessage)
		if err := proto.Unmarshal(text, m); err != nil {
			s.Fatal(err)
		}
		out = append(out, m.GetKeyed())
	}
	return out
}

// TestListOfNodes: a node takes changes over, requests the whole where it holds something else, keeps the list of
// before until that comes, and ends a session in which the whole itself is wrong.
func TestListOfNodes(t *testing.T) {
	h := new(nodeHandler)
	c := New(Config{Handler: h, Logger: slog.New(slog.DiscardHandler)})
	s := &session{client: c, posts: make(chan *feed.NodeMessage, 9)}
	source := &nodeSource{T: t}
	var cursor keyed.Cursor
	send := func(change func(*keyed.Delta)) error {
		var d keyed.Delta
		d, cursor = source.Since(cursor)
		change(&d)
		for _, m := range source.messages(&d) {
			if err := s.keyed(t.Context(), m); err != nil {
				return err
			}
		}
		return nil
	}
	right, wrong := func(*keyed.Delta) {}, func(d *keyed.Delta) { d.Sum[0]++ }
	expect := func(err error, lists, names, requests int) {
		t.Helper()
		if err != nil || len(h.lists) != lists || len(h.lists[lists-1]) != names || len(s.posts) != requests {
			t.Fatalf("%d lists, %d requests (%v)", len(h.lists), len(s.posts), err)
		}
	}
	source.put("a")
	expect(send(right), 1, 1, 0)
	source.put("b")
	expect(send(right), 2, 2, 0)
	source.put("c")
	expect(send(wrong), 2, 2, 1)
	if r := (<-s.posts).GetResend(); r.GetSet() != feed.KeyedSet_KEYED_SET_NODES {
		t.Errorf("it requests %v", r)
	}
	source.put("d")
	expect(send(right), 2, 2, 0)
	cursor = 0
	expect(send(right), 3, 4, 0)
	expect(s.keyed(t.Context(), &feed.Keyed{Set: 99}), 3, 4, 0)
	cursor = 0
	if err := send(wrong); err == nil || len(c.nodes.Sums()) != 0 {
		t.Errorf("a whole list of another sum: %v", err)
	}
	if err := s.keyed(t.Context(), &feed.Keyed{Set: feed.KeyedSet_KEYED_SET_NODES, Sum: []byte{1}}); err == nil {
		t.Error("nonsense is taken over")
	}
}

// TestServicesOfSession checks that a session stores Services next to the list of nodes, sends them in the hello, and
// requests a full copy of them separately. A node without Services ignores them.
func TestServicesOfSession(t *testing.T) {
	var held keyed.Set
	h := new(nodeHandler)
	c := New(Config{Handler: h, Logger: slog.New(slog.DiscardHandler), Services: &held})
	s := &session{client: c, posts: make(chan *feed.NodeMessage, 9)}
	var source keyed.Source
	source.Put("service/a/b", []byte("x"))
	send := func(s *session, from keyed.Cursor, change func(*keyed.Delta)) (keyed.Cursor, error) {
		d, cursor := source.Since(from)
		change(&d)
		all, err := wire.FromKeyed(feed.KeyedSet_KEYED_SET_SERVICES, &d)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			text, err := proto.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			m = new(feed.MasterMessage)
			if err := proto.Unmarshal(text, m); err != nil {
				t.Fatal(err)
			}
			if err := s.keyed(t.Context(), m.GetKeyed()); err != nil {
				return cursor, err
			}
		}
		return cursor, nil
	}
	right, wrong := func(*keyed.Delta) {}, func(d *keyed.Delta) { d.Sum[0]++ }
	cursor, err := send(s, 0, right)
	if err != nil || held.Len() != 1 || len(h.lists) != 0 {
		t.Fatalf("it holds %d, %v", held.Len(), err)
	}
	source.Put("service/a/c", []byte("x"))
	if _, err := send(s, cursor, wrong); err != nil || len(s.posts) != 1 {
		t.Fatalf("%d requests, %v", len(s.posts), err)
	}
	if r := (<-s.posts).GetResend(); r.GetSet() != feed.KeyedSet_KEYED_SET_SERVICES || s.nodes.stale {
		t.Errorf("it requests %v", r)
	}
	if _, err := send(s, 0, wrong); err == nil || held.Len() != 0 {
		t.Errorf("a whole set of another sum: %v", err)
	}
	none := &session{client: New(Config{Handler: h, Logger: c.cfg.Logger}), posts: s.posts}
	if _, err := send(none, 0, wrong); err != nil || len(s.posts) != 0 {
		t.Errorf("a node without Services: %v, %d requests", err, len(s.posts))
	}
}
