package server

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/api/wellknown"
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
		unknown := false
		err := s.Do(ctx, func(*resolve.Engine) {
			s.connected(ev.Node, ev.Connected.Announced)
			if l := s.now.Load(); l != nil {
				l.came(ev.Node)
			}
			unknown = len(s.strangers.said[ev.Node]) > 0
		})
		if err != nil {
			return err
		}
		if err := s.holdUnknown(ctx, ev.Node, unknown); err != nil {
			return err
		}
		return s.awaitOthers(ctx)
	case ev.Announce != nil:
		return s.Do(ctx, func(*resolve.Engine) { s.announce(ev.Node, ev.Announce) })
	case ev.Withdraw != nil:
		return s.Do(ctx, func(*resolve.Engine) { s.withdraw(ev.Node, ev.Withdraw) })
	case ev.Ack != nil:
		return s.acknowledged(ctx, ev.Node, ev.Ack)
	case ev.Drift != nil:
		s.drifted(ev.Node, ev.Drift, time.Now())
	case ev.Gone:
		return s.Do(ctx, func(*resolve.Engine) {
			if !s.nodes[ev.Node] { // else it is away, as thousands may be at once, and not gone
				s.forgetGoneNodes()
			}
		})
	}
	return nil
}

// hold keeps a node waiting that holds more than the policy DB had at the start: what the DB lacks may be a policy that
// denies. The node goes on with what it has until the API server has told everything.
func (s *server) hold(ctx context.Context, node string, revision uint64) error {
	if revision <= s.storedRevision {
		return nil
	}
	return s.awaitAPI(ctx, func() {
		s.log.Warn("a node holds more than the policy DB: it keeps its rules until the API server has been asked", "node", node, "revision", revision, "stored", s.storedRevision)
	})
}

// holdUnknown keeps a node waiting that has wired a pod that the policy DB does not know: it may be one that is gone from the API server, or one that has
// just come.
func (s *server) holdUnknown(ctx context.Context, node string, unknown bool) error {
	if !unknown {
		return nil
	}
	return s.awaitAPI(ctx, func() {
		s.log.Warn("a node has wired pods that the policy DB does not know: it keeps its rules until the API server has been asked", "node", node)
	})
}

// awaitAPI returns when the API server has told everything; waits is called if it has not.
func (s *server) awaitAPI(ctx context.Context, waits func()) error {
	select {
	case <-s.inStep:
		return nil
	default:
		waits()
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
		a := s.announcement(node, &announced[i])
		s.tellForeign(&a)
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
	s.strangers.hello(node, all.All)
	s.apply(resolve.Batch{NodeAnnounced: []resolve.NodeAnnouncements{all}}, change)
}

func (s *server) announce(node string, in *wire.Announcement) {
	a := s.announcement(node, in)
	s.tellForeign(&a)
	record := recordOf(&a)
	s.remember(record)
	s.apply(resolve.Batch{Announced: []resolve.Announcement{a}}, store.Change{Announced: map[string]*store.Announcement{record.Key(): record}})
}

// withdraw forgets the record only if it is of the same pod, not of a successor of its name.
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

func (s *server) setNodes(infos []policy.NodeInfo) {
	clear(s.nodes)
	for _, n := range infos {
		s.nodes[n.Name] = true
	}
	s.setCIDRs(infos)
	s.feed.SetNodes(infos)
}

// setCIDRs has what nodes have announced count as is due to it by their podCIDRs, as these are known now.
func (s *server) setCIDRs(infos []policy.NodeInfo) {
	before := s.podCIDRs
	s.podCIDRs = make(map[string][]netip.Prefix, len(infos))
	var changed resolve.Batch
	for _, n := range infos {
		s.podCIDRs[n.Name] = n.PodCIDRs
		if slices.Equal(before[n.Name], n.PodCIDRs) {
			continue
		}
		for _, a := range s.engine.Wired(n.Name) {
			a.Foreign = s.foreignOf(n.Name, a.Addresses)
			s.tellForeign(&a)
			changed.Reassessed = append(changed.Reassessed, a)
		}
	}
	if len(changed.Reassessed) > 0 {
		s.apply(changed, store.Change{})
	}
}

// sayForeign is how often it is told of a node that it announces what is not its own.
const sayForeign = time.Minute

// foreignOf are the addresses that are not of a Node's podCIDRs, out of which netplugin takes all that it gives to pods: whoever has a node's certificate
// could else make any address one of a pod there, with all that this may, or take it from the pod that has it. Pods may have such addresses all the same,
// where the podCIDRs were others when they were started, so that their own node is not to open them. A node of which no podCIDRs are known is believed: it
// has been given none to take addresses from.
func (s *server) foreignOf(node string, addresses []netip.Addr) (out []netip.Addr) {
	own := s.podCIDRs[node]
	for _, a := range addresses {
		if len(own) > 0 && !slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Contains(a) }) {
			out = append(out, a)
		}
	}
	return out
}

// tellForeign tells users of an announcement with an address that is not the node's.
func (s *server) tellForeign(a *resolve.Announcement) {
	now := time.Now()
	if len(a.Foreign) == 0 || now.Sub(s.foreign[a.Node]) < sayForeign {
		return
	}
	s.foreign[a.Node] = now
	s.log.Error("a node announces an address that is not of its podCIDRs: it is no peer's, and the pod stays isolated on the node", "node", a.Node, "pod", a.ID(), "address", a.Foreign[0], "podCIDRs", s.podCIDRs[a.Node])
	s.cfg.Report.Tell(wellknown.EventForeignAddress, "", a.Node, a.Node, fmt.Sprintf("its netplugin announces %s as an address of pod %s, which is not of the node's podCIDRs: no rule that allows this pod allows it, and the pod's policies hold on the node", a.Foreign[0], a.ID()))
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
	maps.DeleteFunc(s.foreign, func(node string, _ time.Time) bool { return !there(node) })
	for node, pods := range s.announced {
		if !s.nodes[node] && !live[node] && len(pods) > 0 {
			s.log.Info("a node is gone: what it wired counts no more", "node", node, "endpoints", len(pods))
			s.connected(node, nil)
		}
	}
}

func (s *server) announcement(node string, a *wire.Announcement) resolve.Announcement {
	return resolve.Announcement{Node: node, Namespace: a.Namespace, Name: a.Name, UID: a.UID, Addresses: a.Addresses, Foreign: s.foreignOf(node, a.Addresses)}
}

func recordOf(a *resolve.Announcement) *store.Announcement {
	return &store.Announcement{Node: a.Node, Namespace: a.Namespace, Name: a.Name, UID: a.UID, Addresses: a.Addresses}
}
