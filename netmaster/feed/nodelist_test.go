package feed

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/keyed"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/protobuf/proto"
)

// cloudNode is a node as a cloud names it.
func cloudNode(i int) policy.NodeInfo {
	return policy.NodeInfo{
		Name:      fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", i>>8, i&255),
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})},
		PodCIDRs:  []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(i >> 8), byte(i), 0}), 24)},
	}
}

// framing of a message: gRPC's prefix, an HTTP/2 frame's header, and a TLS 1.3 record's header, type and tag.
const framing = 5 + 9 + 22

// nodeMessages returns the messages about nodes that a stream was sent after the first skip.
func (l *line) nodeMessages(skip int) (out []*feed.MasterMessage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.took[skip:] {
		text, err := proto.Marshal(m)
		if err != nil {
			panic(err)
		}
		m = new(feed.MasterMessage)
		if err := proto.Unmarshal(text, m); err != nil {
			panic(err)
		}
		if m.GetKeyed() != nil || m.GetNodes() != nil {
			out = append(out, m)
		}
	}
	return out
}

// holds applies what a stream was sent of the keyed set of nodes.
func (l *line) holds(t *testing.T, set *keyed.Set, skip int) []policy.NodeInfo {
	t.Helper()
	for _, m := range l.nodeMessages(skip) {
		d, err := wire.ToKeyed(m.GetKeyed())
		if err != nil {
			t.Fatal(err)
		}
		if err := set.Apply(&d); err != nil {
			t.Fatal(err)
		}
	}
	infos, err := wire.NodeList(set)
	if err != nil {
		t.Fatal(err)
	}
	return infos
}

func serveNobody(t *testing.T) *Server {
	t.Helper()
	s := NewServer(Config{
		Logger: slog.New(slog.DiscardHandler),
		Events: func(context.Context, Event) error { return nil },
	})
	s.Ready()
	return s
}

// TestNodeJoinsLargeCluster counts the bytes that a node costs which joins and leaves a cluster of 5,000, over all
// streams, with the framing of gRPC, HTTP/2 and TLS. The node's object is made, gets a podCIDR and an address seconds
// apart.
func TestNodeJoinsLargeCluster(t *testing.T) {
	const nodes, most = 5000, streams * 2_000_000 / 5000
	synctest.Test(t, func(t *testing.T) {
		s := serveNobody(t)
		var infos []policy.NodeInfo
		var lines []*line
		for i := range nodes {
			infos = append(infos, cloudNode(i))
		}
		s.SetNodes(infos)
		for i := range streams {
			lines = append(lines, dial(s, infos[i].Name, 99))
			lines[i].hello(infos[i].Name)
		}
		synctest.Wait()
		time.Sleep(time.Minute)
		var set keyed.Set
		if got := lines[7].holds(t, &set, 0); len(got) != nodes {
			t.Fatalf("a node holds %d", len(got))
		}
		first := proto.Size(lines[7].nodeMessages(0)[0])
		counts := map[*line]int{}
		cost := func() (bytes int) {
			for _, l := range lines {
				l.mu.Lock()
				for _, m := range l.took[counts[l]:] {
					bytes += proto.Size(m) + framing
				}
				counts[l] = len(l.took)
				l.mu.Unlock()
			}
			return bytes
		}
		cost()
		joined := cloudNode(nodes)
		steps := []policy.NodeInfo{{Name: joined.Name}, {Name: joined.Name, PodCIDRs: joined.PodCIDRs}, joined}
		skip := counts[lines[7]]
		for _, step := range steps {
			s.SetNodes(append(slices.Clone(infos), step))
			time.Sleep(3 * time.Second)
		}
		joins := cost()
		if got := lines[7].holds(t, &set, skip); len(got) != nodes+1 {
			t.Errorf("a node holds %d after one joined", len(got))
		}
		s.SetNodes(infos)
		time.Sleep(3 * time.Second)
		leaves := cost()
		t.Logf("the whole list is %d kB for each node; a node that joins costs %d kB, one that leaves %d kB",
			first>>10, joins>>10, leaves>>10)
		if joins == 0 || joins > most || leaves == 0 || leaves > most {
			t.Errorf("a node that joins costs %d bytes, one that leaves %d; no more than %d", joins, leaves, most)
		}
		for _, l := range lines {
			close(l.in)
		}
	})
}

// TestNodeListIsCoalesced: changes within a moment are one message, and a stream gets no more than one a second,
// whatever changes; one that changes nothing is none.
func TestNodeListIsCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveNobody(t)
		infos := []policy.NodeInfo{cloudNode(0), cloudNode(1)}
		s.SetNodes(infos)
		l := dial(s, infos[0].Name, 999)
		l.hello(infos[0].Name)
		synctest.Wait()
		if n := len(l.nodeMessages(0)); n != 1 {
			t.Fatalf("%d messages at once", n)
		}
		time.Sleep(time.Minute)
		for i := range 1000 {
			s.SetNodes(append(slices.Clone(infos), cloudNode(2+i)))
			s.SetNodes(append(slices.Clone(infos), cloudNode(2+i)))
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		if n := len(l.nodeMessages(0)); n < 10 || n > 12 {
			t.Errorf("%d messages in 10 s", n)
		}
		var set keyed.Set
		if got := l.holds(t, &set, 0); len(got) != 3 {
			t.Errorf("it holds %d", len(got))
		}
		before := l.count()
		s.SetNodes(append([]policy.NodeInfo{cloudNode(1001)}, infos...))
		time.Sleep(time.Minute)
		if l.count() != before {
			t.Error("what is the same was sent")
		}
		close(l.in)
	})
}

// TestNodeRequestsListRepeatedly: a node that requests the list a thousand times a second, while it changes, is sent it
// once a second. The race detector sees that its requests touch nothing of the sender's.
func TestNodeRequestsListRepeatedly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveNobody(t)
		infos := []policy.NodeInfo{cloudNode(0), cloudNode(1)}
		s.SetNodes(infos)
		l := dial(s, infos[0].Name, 9999)
		l.hello(infos[0].Name)
		synctest.Wait()
		for i := range 10_000 {
			l.in <- wire.FromResend(feed.KeyedSet_KEYED_SET_NODES)
			if i%7 == 0 {
				s.SetNodes(append(slices.Clone(infos), cloudNode(2+i)))
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Minute)
		all := l.nodeMessages(0)
		if n := len(all); n < 9 || n > 13 {
			t.Errorf("%d messages in 10 s", n)
		}
		var set keyed.Set
		if got := l.holds(t, &set, 0); len(got) != 3 {
			t.Errorf("it holds %d", len(got))
		}
		close(l.in)
	})
}

// TestListResumes checks that a node that connects again with what it holds is sent the buckets that differ, and a node
// of a version without keyed sets the whole list.
func TestListResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveNobody(t)
		var infos []policy.NodeInfo
		for i := range 1000 {
			infos = append(infos, cloudNode(i))
		}
		s.SetNodes(infos)
		var set keyed.Set
		connect := func(versions wire.Versions) *line {
			l := dial(s, infos[0].Name, 99)
			h := &wire.Hello{Node: infos[0].Name, Program: "test", Versions: versions, Nodes: set.Sums()}
			for part := range wire.HelloParts(h) {
				l.in <- part
			}
			time.Sleep(time.Second)
			return l
		}
		first := connect(wire.Own())
		if got := first.holds(t, &set, 0); len(got) != 1000 {
			t.Fatalf("it holds %d", len(got))
		}
		again := connect(wire.Own())
		size := proto.Size(again.nodeMessages(0)[0])
		if got := again.holds(t, &set, 0); len(got) != 1000 || size > 50 {
			t.Errorf("it holds %d after %d bytes, and nothing has changed", len(got), size)
		}
		s.SetNodes(infos[:999])
		time.Sleep(time.Minute)
		third := connect(wire.Own())
		size = proto.Size(third.nodeMessages(0)[0])
		if got := third.holds(t, &set, 0); len(got) != 999 || size > 2000 {
			t.Errorf("it holds %d after %d bytes, and one node has left", len(got), size)
		}
		old := connect(wire.Versions{Min: feed.MinVersion, Max: feed.KeyedSets - 1})
		if m := old.nodeMessages(0); len(m) != 1 || len(m[0].GetNodes().GetNodes()) != 999 {
			t.Errorf("a node older than version 5 is sent %d messages", len(m))
		}
		close(old.in)
	})
}
