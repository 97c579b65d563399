package server

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// A pod that was deleted from the API server may still run: it was deleted by force, or its node is cut off. While
// netmaster runs, such a pod keeps its rules. After a restart or takeover these are unknown, so the pod's node must
// deny all its traffic.

// unknownPodsKey is the key of the group of such pods. No selector has it.
var unknownPodsKey = policy.Key([]byte("pods of no name "))

// unknownPodsOrigin takes the place of a policy in explanations. No namespace has this name.
var unknownPodsOrigin = policy.Origin{Policy: "-/wired-but-deleted", Rule: -1}

// unknownPodsRules isolate unknown pods in both directions, independently of all other state.
func unknownPodsRules() (out []policy.RuleChange) {
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		r := &policy.Rule{Direction: d, AppliedTo: unknownPodsKey, Origins: []policy.Origin{unknownPodsOrigin}}
		r.Key = policy.RuleKey(r)
		out = append(out, policy.RuleChange{Key: r.Key, Rule: r})
	}
	return out
}

// unknownPods are pods that nodes announced in their hello and that the API server does not have. It belongs to the
// owner.
type unknownPods struct {
	announced map[string][]resolve.Announcement  // candidates by node
	denied    map[string]map[netip.Addr]struct{} // denied addresses by node, as sent
	due       map[string]struct{}                // nodes with a pod that may be known or withdrawn now
}

func newUnknownPods() unknownPods {
	return unknownPods{
		announced: map[string][]resolve.Announcement{},
		denied:    map[string]map[netip.Addr]struct{}{},
		due:       map[string]struct{}{},
	}
}

// hello records the announcements of a node, to be checked with the next changes.
func (s *unknownPods) hello(node string, all []resolve.Announcement) {
	s.announced[node], s.due[node] = slices.Clone(all), struct{}{}
}

// note marks the nodes that a batch concerns, so that the other nodes' announcements need not be checked.
func (s *unknownPods) note(b *resolve.Batch) {
	due := func(node string) {
		if _, said := s.announced[node]; said {
			s.due[node] = struct{}{}
		}
	}
	if b.ForgetAnnouncements {
		for node := range s.announced {
			due(node)
		}
	}
	for _, e := range b.Endpoints {
		due(e.Node)
	}
	for i := range b.Withdrawn {
		due(b.Withdrawn[i].Node)
	}
}

// changes returns the changes for nodes, and the pods that became unknown.
func (s *unknownPods) changes(e *resolve.Engine) (out []policy.NodeChange, found []resolve.Announcement) {
	for node := range s.due {
		all := slices.DeleteFunc(s.announced[node], func(a resolve.Announcement) bool { return !e.Waits(a) })
		if s.announced[node] = all; len(all) == 0 {
			delete(s.announced, node)
		}
		before, now := s.denied[node], map[netip.Addr]struct{}{}
		change := policy.AppliedToChange{Key: unknownPodsKey, Gone: len(all) == 0}
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
		for _, r := range unknownPodsRules() {
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
	clear(s.due)
	return out, found
}

// maxUnknownLogged limits the log lines of one change, as a hello can have thousands of unknown pods.
const maxUnknownLogged = 10

// logUnknown logs the first unknown pods, and the number of the others.
func (s *server) logUnknown(found []resolve.Announcement) {
	const text = "a node has attached an unknown pod: all its traffic is denied"
	for _, a := range found[:min(len(found), maxUnknownLogged)] {
		s.log.Warn(text, "node", a.Node, "pod", a.ID(), "uid", a.UID)
	}
	if more := len(found) - maxUnknownLogged; more > 0 {
		s.log.Warn("nodes have attached more unknown pods", "pods", more)
	}
}
