package feed

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/keyed"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Links of one node are a change of one entry. A node of an older version gets the list as ever.
func TestLinks_SentWithTheListOfNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveNobody(t)
		infos := []policy.NodeInfo{cloudNode(0), cloudNode(1)}
		s.SetNodes(infos)
		l := dial(s, infos[0].Name, 99)
		l.hello(infos[0].Name)
		old := dial(s, infos[1].Name, 99)
		for part := range wire.HelloParts(&wire.Hello{Node: infos[1].Name, Versions: wire.Versions{Min: 2, Max: 4}}) {
			old.in <- part
		}
		time.Sleep(time.Minute)
		links := &policy.Links{OnLink: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}}
		for range 3 {
			s.SetLinks(infos[1].Name, links)
			s.SetLinks("nobody", links)
			time.Sleep(time.Minute)
		}
		var set keyed.Set
		got := l.holds(t, &set, 0)
		if len(got) != 2 || got[0].Links != nil || got[1].Links == nil || got[1].Links.OnLink[0] != links.OnLink[0] {
			t.Errorf("it holds %+v", got)
		}
		if n := len(l.nodeMessages(0)); n != 2 {
			t.Errorf("%d messages", n)
		}
		all := old.nodeMessages(0)
		if list, err := wire.ToNodes(all[len(all)-1].GetNodes()); err != nil || len(list) != 2 {
			t.Errorf("an older node holds %+v (%v)", list, err)
		}
		close(l.in)
		close(old.in)
	})
}

// What a node announces without prefixes, or with too many, is no pod's announcement.
func TestLinks_Announced(t *testing.T) {
	c := &conn{hello: wire.Hello{Node: "n"}, announcements: newAnnouncements()}
	if is, err := c.announced(&feed.NodeMessage{Message: &feed.NodeMessage_Links{}}); !is || err != nil {
		t.Errorf("%v, %v", is, err)
	}
	if a := c.announcements.list[0]; a.links == nil || len(a.links.OnLink) != 0 {
		t.Errorf("%+v", a)
	}
	many := &feed.Links{OnLink: make([]*feed.Prefix, policy.MaxOnLink+1)}
	if is, err := c.announced(&feed.NodeMessage{Message: &feed.NodeMessage_Links{Links: many}}); !is || err == nil {
		t.Errorf("too many: %v, %v", is, err)
	}
}
