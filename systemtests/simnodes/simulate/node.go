package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netplugin/feed"
	"github.com/flowkeep/flowkeep/netplugin/groups"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// node holds what a node would: of rules their hashes, of groups their members.
type node struct {
	name   string
	seen   *seen
	client *feed.Client
	delay  time.Duration

	mu       sync.Mutex
	revision uint64
	epoch    uint64
	rules    map[policy.Key]policy.Key
	groups   *groups.Replica
	wired    map[string]wire.Announcement
	since    time.Time // of the first update of this connection; zero: none came
	taken    State
}

func newNode(name string, seen *seen) *node {
	return &node{name: name, seen: seen, rules: map[policy.Key]policy.Key{}, groups: groups.New(), wired: map[string]wire.Announcement{}}
}

// State begins a connection.
func (n *node) State(_ context.Context, begin func()) (feed.Holding, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	begin()
	n.since = time.Time{}
	held := make([]wire.Held, 0, len(n.rules)+n.groups.Len())
	for k, hash := range n.rules {
		held = append(held, wire.Held{Key: k, Hash: hash})
	}
	for id, set := range n.groups.All() {
		held = append(held, wire.Held{Group: id.Kind, Key: id.Key, Hash: set.Hash()})
	}
	announced := make([]wire.Announcement, 0, len(n.wired))
	for _, a := range n.wired {
		announced = append(announced, a)
	}
	return feed.Holding{Revision: n.revision, Epoch: n.epoch, Held: held, Announced: announced}, nil
}

// Obey keeps the highest epoch.
func (n *node) Obey(_ context.Context, epoch uint64) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.epoch = max(n.epoch, epoch)
	return nil
}

// Update takes one over.
func (n *node) Update(
	ctx context.Context, u policy.NodeUpdate, led func() error, acknowledge func([]wire.RuleError),
) error {
	if n.delay > 0 {
		select {
		case <-time.After(n.delay):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := led(); err != nil {
		return err
	}
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.since.IsZero() {
		n.since = now
	}
	n.revision = u.Revision
	n.taken.Updates++
	n.taken.TakenRules += uint64(len(u.Rules))
	n.taken.TakenGroups += uint64(len(u.Groups))
	saw := n.seen.at(now)
	for _, r := range u.Rules {
		if r.Rule == nil {
			delete(n.rules, r.Key)
			continue
		}
		n.rules[r.Key] = r.Rule.Hash()
		applied := policy.AppliedToGroup.ID(r.Rule.AppliedTo)
		if n.groups.Set(applied) != nil { // else it comes with a pod
			saw.rule(r.Rule)
		}
	}
	for i := range u.Groups {
		n.takeGroup(&u.Groups[i], saw)
	}
	for _, s := range u.Settled {
		saw.settled(s.ID)
	}
	acknowledge(nil)
	return nil
}

func (n *node) takeGroup(u *policy.GroupUpdate, saw glance) {
	n.taken.TakenMembers += uint64(len(u.Added) + len(u.Removed))
	id := u.ID()
	had := map[*groups.Set]struct{}{n.groups.Set(id): {}} // by the groups of the update
	for _, k := range u.Alike {
		had[n.groups.Set(u.Kind.ID(k))] = struct{}{}
	}
	changes := n.groups.Apply(u)
	has := n.groups.Set(id)
	for _, c := range changes {
		if _, there := had[has]; there && c.Set == has {
			saw.moved(c.Added, c.Removed)
		}
	}
	delete(had, has)
	for set := range had { // groups have another one now
		saw.changed(set, has)
	}
}

// Nodes is counted.
func (n *node) Nodes(_ context.Context, infos []policy.NodeInfo) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.taken.TakenNodes += uint64(len(infos))
	return nil
}

var errNoSwitch = errors.New("this node is simulated: it has no switch, and no answer")

// Query answers nothing.
func (n *node) Query(context.Context, []byte) ([]byte, error) { return nil, errNoSwitch }

// Stream answers nothing.
func (n *node) Stream(context.Context, []byte, func([]byte) error) error { return errNoSwitch }

func (n *node) wire(p *Pod) error {
	a := wire.Announcement{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
	for _, text := range p.Addresses {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return fmt.Errorf("pod %s: %w", a.ID(), err)
		}
		a.Addresses = append(a.Addresses, addr)
	}
	if err := a.Validate(); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if p.Gone {
		delete(n.wired, a.ID())
		n.client.Withdraw(a)
	} else {
		n.wired[a.ID()] = a
		n.client.Announce(a)
	}
	return nil
}

func (n *node) addTo(s *State) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.client.Connected() {
		s.Connected++
		if !n.since.IsZero() {
			s.Current++
			s.Since = max(s.Since, n.since.UnixNano())
		}
	}
	s.Wired += len(n.wired)
	s.Rules += len(n.rules)
	s.Groups += n.groups.Len()
	for _, set := range n.groups.Sets() {
		s.Members += set.Len()
	}
	s.Updates += n.taken.Updates
	s.TakenRules += n.taken.TakenRules
	s.TakenGroups += n.taken.TakenGroups
	s.TakenMembers += n.taken.TakenMembers
	s.TakenNodes += n.taken.TakenNodes
}
