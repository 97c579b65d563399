package server

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/store"
)

// event handles a message from a node.
func (s *server) event(ctx context.Context, ev feed.Event) error {
	switch {
	case ev.Connected != nil:
		if err := s.hold(ctx, ev.Node, ev.Connected.Revision); err != nil {
			return err
		}
		unknown := false
		var refused error
		err := s.Do(ctx, func(*resolve.Engine) {
			if refused = s.admit(ev.Node); refused != nil { // the Node was deleted after the stream began
				return
			}
			s.connected(ev.Node, ev.Connected.Announced)
			s.setLinks(ev.Node, ev.Connected.Links)
			if l := s.now.Load(); l != nil {
				l.noteArrival(ev.Node)
			}
			unknown = len(s.unknownPods.announced[ev.Node]) > 0
		})
		if err = cmp.Or(err, refused); err != nil {
			return err
		}
		if err := s.holdUnknown(ctx, ev.Node, unknown); err != nil {
			return err
		}
		return s.awaitOthers(ctx)
	case ev.Announce != nil:
		return s.admitted(ctx, ev.Node, func() { s.announce(ev.Node, ev.Announce) })
	case ev.Withdraw != nil:
		return s.admitted(ctx, ev.Node, func() { s.withdraw(ev.Node, ev.Withdraw) })
	case ev.Links != nil:
		return s.admitted(ctx, ev.Node, func() { s.setLinks(ev.Node, ev.Links) })
	case ev.Ack != nil:
		return s.acknowledged(ctx, ev.Node, ev.Ack)
	case ev.Drift != nil:
		s.drifted(ev.Node, ev.Drift, time.Now())
	case ev.Gone:
		return s.Do(ctx, func(*resolve.Engine) {
			if !s.nodes[ev.Node] { // an existing node is only disconnected, as thousands may be at once
				s.forgetGoneNodes()
			}
		})
	}
	return nil
}

// hold delays a node whose revision is newer than that of the restored policy DB, which may lack a denying policy.
// The node keeps its rules until caches are synced.
func (s *server) hold(ctx context.Context, node string, revision uint64) error {
	if revision <= s.storedRevision {
		return nil
	}
	return s.awaitAPI(ctx, func() {
		s.log.Warn("a node has a newer revision than the policy DB: it keeps its rules until caches are synced",
			"node", node, "revision", revision, "stored", s.storedRevision)
	})
}

// holdUnknown delays a node that has attached a pod missing in the policy DB: the pod may be new or already deleted.
func (s *server) holdUnknown(ctx context.Context, node string, unknown bool) error {
	if !unknown {
		return nil
	}
	return s.awaitAPI(ctx, func() {
		s.log.Warn(
			"a node has attached pods that the policy DB does not know: it keeps its rules until caches are synced",
			"node", node)
	})
}

// awaitAPI waits until caches are synced. It calls waits first if they are not.
func (s *server) awaitAPI(ctx context.Context, waits func()) error {
	select {
	case <-s.synced:
		return nil
	default:
		waits()
	}
	select {
	case <-s.synced:
		return nil
	case <-s.stopped:
		return errStopping
	case <-ctx.Done():
		return ctx.Err()
	}
}

// connected replaces all announcements of the node.
func (s *server) connected(node string, announced []wire.Announcement) {
	s.gate.drop(node)
	before := s.announced[node]
	delete(s.announced, node)
	change := store.Change{Announced: map[string]*store.Announcement{}}
	for key := range before {
		change.Announced[key] = nil
	}
	all := resolve.NodeAnnouncements{Node: node}
	for i := range announced {
		a := s.announcement(node, &announced[i])
		if s.refuseAnnouncement(&a) {
			continue
		}
		s.reportForeign(&a)
		all.All = append(all.All, a)
		record := recordOf(&a)
		s.remember(record)
		change.Announced[record.Key()] = record
	}
	for key, old := range before {
		if now := s.announced[node][key]; now != nil && now.UID == old.UID &&
			slices.Equal(now.Addresses, old.Addresses) {
			delete(change.Announced, key)
		}
	}
	s.unknownPods.hello(node, all.All)
	s.apply(resolve.Batch{NodeAnnounced: []resolve.NodeAnnouncements{all}}, change)
}

func (s *server) announce(node string, in *wire.Announcement) {
	a := s.announcement(node, in)
	if s.refuseAnnouncement(&a) {
		return
	}
	s.reportForeign(&a)
	record := recordOf(&a)
	s.remember(record)
	s.apply(resolve.Batch{Announced: []resolve.Announcement{a}},
		store.Change{Announced: map[string]*store.Announcement{record.Key(): record}})
}

// withdraw removes an announcement, unless the record belongs to a newer pod of the same name.
func (s *server) withdraw(node string, in *wire.Announcement) {
	a := s.announcement(node, in)
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

// Limits of logging ignored announcements, of which a hello can have thousands: one a refusalInterval, node and kind.
const (
	refusalInterval = time.Minute
	maxRefusals     = 1 << 17 // remembered nodes and kinds
)

// reportForeign reports an announcement with an address outside the node's podCIDRs.
func (s *server) reportForeign(a *resolve.Announcement) {
	if len(a.Foreign) == 0 || !s.refusals.Allow(a.Node+" address", time.Now()) {
		return
	}
	s.metrics.refusedClaims.WithLabelValues(refusedAddress).Inc()
	s.log.Error("a node announces an address outside its podCIDRs: it matches no peer, and the pod stays isolated",
		"node", a.Node, "pod", a.ID(), "address", a.Foreign[0], "podCIDRs", s.podCIDRs[a.Node])
	s.cfg.Report.Emit(wellknown.EventForeignAddress, "", a.Node, a.Node, fmt.Sprintf(
		"its netplugin announces %s as an address of pod %s, which is not of the node's podCIDRs: no rule that "+
			"allows this pod allows it, and the pod's policies hold on the node",
		a.Foreign[0],
		a.ID(),
	))
}

// forgetGoneNodes revokes the announcements, and ends the streams, of nodes that do not exist or are refused.
func (s *server) forgetGoneNodes() {
	select {
	case <-s.synced:
	default:
		return
	}
	there := func(node string) bool { return s.nodes[node] }
	s.feed.ForgetGone()
	s.failures.retain(there)
	s.drifts.retain(there)
	for node, pods := range s.announced {
		if !there(node) && len(pods) > 0 {
			s.log.Info("a node was deleted: its announcements are revoked", "node", node, "endpoints", len(pods))
			s.connected(node, nil)
		}
	}
	s.feed.Expel(s.admit)
}

func (s *server) announcement(node string, a *wire.Announcement) resolve.Announcement {
	return resolve.Announcement{
		Node:      node,
		Namespace: a.Namespace,
		Name:      a.Name,
		UID:       a.UID,
		Addresses: a.Addresses,
		Foreign:   s.foreignOf(node, a.Addresses),
	}
}

func recordOf(a *resolve.Announcement) *store.Announcement {
	return &store.Announcement{Node: a.Node, Namespace: a.Namespace, Name: a.Name, UID: a.UID, Addresses: a.Addresses}
}
