package feed

import (
	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Parts of an update have at most this many rules, or addresses, so that a message stays far below feed.MaxMessage.
const (
	partRules     = 500
	partAddresses = 10000
)

// split cuts an update into parts that fit messages; a large group goes in several patches.
func split(u *feed.Update) []feed.MasterMessage {
	var out []feed.MasterMessage
	part := feed.Update{Revision: u.Revision}
	flush := func() {
		full := part
		out = append(out, feed.MasterMessage{Update: &full})
		part = feed.Update{Revision: u.Revision}
	}
	for _, r := range u.Rules {
		if len(part.Rules) == partRules {
			flush()
		}
		part.Rules = append(part.Rules, r)
	}
	addresses := 0
	for _, g := range u.Groups {
		for _, piece := range pieces(g) {
			n := len(piece.Added) + len(piece.Removed) + 1
			if addresses += n; addresses > partAddresses {
				flush()
				addresses = n
			}
			part.Groups = append(part.Groups, piece)
		}
	}
	part.Settled, part.Last = u.Settled, true
	flush()
	return out
}

// pieces cuts a group's update into a first one that may replace, and patches that follow.
func pieces(g policy.GroupUpdate) []policy.GroupUpdate {
	var out []policy.GroupUpdate
	for len(g.Added)+len(g.Removed) > partAddresses {
		piece := g
		n := min(len(g.Removed), partAddresses)
		piece.Removed, g.Removed = g.Removed[:n], g.Removed[n:]
		m := min(len(g.Added), partAddresses-n)
		piece.Added, g.Added = g.Added[:m], g.Added[m:]
		out = append(out, piece)
		g.Replace = false
	}
	return append(out, g)
}
