package server

import (
	"context"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/store"
)

// event takes over what a node said.
func (s *server) event(ctx context.Context, ev feed.Event) error {
	switch {
	case ev.Connected != nil:
		if err := s.hold(ctx, ev.Node, ev.Connected.Revision); err != nil {
			return err
		}
		return s.Do(ctx, func(*resolve.Engine) { s.connected(ev.Node, ev.Connected.Announced) })
	case ev.Announce != nil:
		return s.Do(ctx, func(*resolve.Engine) { s.announce(ev.Node, ev.Announce) })
	case ev.Withdraw != nil:
		return s.Do(ctx, func(*resolve.Engine) { s.withdraw(ev.Node, ev.Withdraw) })
	case ev.Ack != nil:
		return s.acknowledged(ctx, ev.Node, ev.Ack)
	case ev.Drift != nil:
		s.drifted(ev.Node, ev.Drift, time.Now())
	case ev.Gone:
		return s.Do(ctx, func(*resolve.Engine) { s.forgetGoneNodes() })
	}
	return nil
}

// hold keeps a node waiting that holds more than the policy DB had at the start: what the DB lacks may be a policy that
// denies. The node goes on with what it has until the API server has told everything.
func (s *server) hold(ctx context.Context, node string, revision uint64) error {
	if revision <= s.storedRevision {
		return nil
	}
	select {
	case <-s.inStep:
		return nil
	default:
		s.log.Warn("a node holds more than the policy DB: it keeps its rules until the API server has been asked", "node", node, "revision", revision, "stored", s.storedRevision)
	}
	select {
	case <-s.inStep:
		return nil
	case <-s.stopped:
		return errStopping
	case <-ctx.Done():
		return ctx.Err()
	}
}

// connected replaces all that was known of what the node has wired.
func (s *server) connected(node string, announced []wire.Announcement) {
	before := s.announced[node]
	delete(s.announced, node)
	change := store.Change{Announced: map[string]*store.Announcement{}}
	for key := range before {
		change.Announced[key] = nil
	}
	all := resolve.NodeAnnouncements{Node: node}
	for i := range announced {
		a := announcement(node, &announced[i])
		all.All = append(all.All, a)
		record := recordOf(&a)
		s.remember(record)
		change.Announced[record.Key()] = record
	}
	for key, old := range before {
		if now := s.announced[node][key]; now != nil && now.UID == old.UID && slices.Equal(now.Addresses, old.Addresses) {
			delete(change.Announced, key)
		}
	}
	s.apply(resolve.Batch{NodeAnnounced: []resolve.NodeAnnouncements{all}}, change)
}

func (s *server) announce(node string, in *wire.Announcement) {
	a := announcement(node, in)
	record := recordOf(&a)
	s.remember(record)
	s.apply(resolve.Batch{Announced: []resolve.Announcement{a}}, store.Change{Announced: map[string]*store.Announcement{record.Key(): record}})
}

// withdraw forgets the record only if it is of the same pod, not of a successor of its name.
func (s *server) withdraw(node string, in *wire.Announcement) {
	a := announcement(node, in)
	key := recordOf(&a).Key()
	var change store.Change
	if r := s.announced[node][key]; r != nil && (r.UID == "" || a.UID == "" || r.UID == a.UID) {
		delete(s.announced[node], key)
		change.Announced = map[string]*store.Announcement{key: nil}
	}
	s.apply(resolve.Batch{Withdrawn: []resolve.Announcement{a}}, change)
}

func (s *server) remember(a *store.Announcement) {
	if s.announced[a.Node] == nil {
		s.announced[a.Node] = map[string]*store.Announcement{}
	}
	s.announced[a.Node][a.Key()] = a
}

func (s *server) setNodes(infos []policy.NodeInfo) {
	clear(s.nodes)
	for _, n := range infos {
		s.nodes[n.Name] = true
	}
	s.feed.SetNodes(infos)
}

// forgetGoneNodes takes back what nodes announced that are neither in the API nor connected: their word no longer counts
// more than the API's.
func (s *server) forgetGoneNodes() {
	select {
	case <-s.inStep:
	default:
		return
	}
	live := map[string]bool{}
	for _, n := range s.feed.Nodes() {
		live[n.Name] = n.Connected
	}
	there := func(node string) bool { return s.nodes[node] || live[node] }
	s.failures.forgetBut(there)
	s.drifts.forgetBut(there)
	for node, pods := range s.announced {
		if !s.nodes[node] && !live[node] && len(pods) > 0 {
			s.log.Info("a node is gone: what it wired counts no more", "node", node, "endpoints", len(pods))
			s.connected(node, nil)
		}
	}
}

func announcement(node string, a *wire.Announcement) resolve.Announcement {
	return resolve.Announcement{Node: node, Namespace: a.Namespace, Name: a.Name, UID: a.UID, Addresses: a.Addresses}
}

func recordOf(a *resolve.Announcement) *store.Announcement {
	return &store.Announcement{Node: a.Node, Namespace: a.Namespace, Name: a.Name, UID: a.UID, Addresses: a.Addresses}
}
