package server

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// A pod that the API server has deleted may run on: deleted by force, or for a node that it does not hear of. While netmaster runs, such a pod keeps the
// rules it had. One that was started, or has taken over, since then does not know what these were: on the pod's own node nothing may reach it, and it may
// reach nothing.

// strangersKey is of the group of such pods, which no selector has.
var strangersKey = policy.Key([]byte("pods of no name "))

// strangersOrigin is what tells why, in the place of a policy. No namespace is called so.
var strangersOrigin = policy.Origin{Policy: "-/wired-but-deleted", Rule: -1}

// strangersRules isolate them in both directions. Who goes by these, and who has written them, need not change with anything else.
func strangersRules() (out []policy.RuleChange) {
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		r := &policy.Rule{Direction: d, AppliedTo: strangersKey, Origins: []policy.Origin{strangersOrigin}}
		r.Key = policy.RuleKey(r)
		out = append(out, policy.RuleChange{Key: r.Key, Rule: r})
	}
	return out
}

// strangers are the pods that nodes said in their hellos to have wired, and that the API server does not have. They belong to the owner.
type strangers struct {
	said   map[string][]resolve.Announcement  // by node: those that may be
	denied map[string]map[netip.Addr]struct{} // by node: what it was told
}

// hello notes what a node says: it is looked at with the next changes.
func (s *strangers) hello(node string, all []resolve.Announcement) { s.said[node] = slices.Clone(all) }

// changes are those that follow from what the engine does not know; found are the pods that were not among them before.
func (s *strangers) changes(e *resolve.Engine) (out []policy.NodeChange, found []resolve.Announcement) {
	for node, all := range s.said {
		all = slices.DeleteFunc(all, func(a resolve.Announcement) bool { return !e.Waits(a) })
		if s.said[node] = all; len(all) == 0 {
			delete(s.said, node)
		}
		before, now := s.denied[node], map[netip.Addr]struct{}{}
		change := policy.AppliedToChange{Key: strangersKey, Gone: len(all) == 0}
		for _, a := range all {
			fresh := false
			for _, addr := range a.Addresses {
				now[addr] = struct{}{}
				if _, there := before[addr]; !there {
					change.Added, fresh = append(change.Added, addr), true
				}
			}
			if fresh {
				found = append(found, a)
			}
		}
		for addr := range before {
			if _, there := now[addr]; !there {
				change.Removed = append(change.Removed, addr)
			}
		}
		if len(change.Added)+len(change.Removed) == 0 {
			continue
		}
		nc := policy.NodeChange{Node: node, AppliedTo: []policy.AppliedToChange{change}}
		for _, r := range strangersRules() {
			switch {
			case len(before) == 0:
				nc.AddRules = append(nc.AddRules, r.Key)
			case len(now) == 0:
				nc.RemoveRules = append(nc.RemoveRules, r.Key)
			}
		}
		if s.denied[node] = now; len(now) == 0 {
			delete(s.denied, node)
		}
		out = append(out, nc)
	}
	return out, found
}

// publish hands changes on to nodes, with what follows of pods that nobody knows.
func (s *server) publish(changes *policy.Changes, before uint64) {
	if len(s.strangers.said) == 0 {
		s.feed.Publish(changes)
		return
	}
	more, found := s.strangers.changes(s.engine)
	if len(more) == 0 {
		s.feed.Publish(changes)
		return
	}
	for _, a := range found {
		s.log.Warn("a node has wired a pod that is not known: nothing reaches it there, and it reaches nothing", "node", a.Node, "pod", a.ID(), "uid", a.UID)
	}
	all := *changes
	all.Rules = append(slices.Clone(all.Rules), strangersRules()...)
	all.Nodes = append(slices.Clone(all.Nodes), more...)
	if all.Revision == before {
		s.engine.Advance(before + 1)
		all.Revision = before + 1
	}
	s.feed.Publish(&all)
}
