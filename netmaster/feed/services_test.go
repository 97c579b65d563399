package feed

import (
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/keyed"
	"github.com/flowkeep/flowkeep/internal/wire"
	"google.golang.org/protobuf/proto"
)

// serviceMessages returns the messages about Services that a stream was sent after the first skip.
func (l *line) serviceMessages(t *testing.T, skip int) (out []*feed.Keyed) {
	t.Helper()
	for _, m := range l.nodeMessages(skip) {
		if k := m.GetKeyed(); k.GetSet() == feed.KeyedSet_KEYED_SET_SERVICES {
			out = append(out, k)
		}
	}
	return out
}

// holdsServices applies what a stream was sent of the keyed set of Services.
func (l *line) holdsServices(t *testing.T, set *keyed.Set, skip int) map[string]string {
	t.Helper()
	for _, m := range l.serviceMessages(t, skip) {
		d, err := wire.ToKeyed(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := set.Apply(&d); err != nil {
			t.Fatal(err)
		}
	}
	out := map[string]string{}
	for key, value := range set.All() {
		out[key] = string(value)
	}
	return out
}

func dialWith(s *Server, node string, h wire.Hello) *line {
	l := dial(s, node, 99_999)
	h.Node, h.Program = node, "test"
	if h.Versions == (wire.Versions{}) {
		h.Versions = wire.Own()
	}
	for part := range wire.HelloParts(&h) {
		l.in <- part
	}
	return l
}

// TestServicesAreCoalesced: of 100 changes a second each stream gets one message a second, all streams the same, and
// holds in the end what was put last.
func TestServicesAreCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveNobody(t)
		want := map[string]string{"service/a/b": "x"}
		s.PutServices(map[string][]byte{"service/a/b": []byte("x")})
		var lines []*line
		for i := range 5 {
			lines = append(lines, dialWith(s, fmt.Sprint("n", i), wire.Hello{}))
			time.Sleep(130 * time.Millisecond) // streams begin at any time
		}
		for i := range 1000 {
			key := fmt.Sprint("slice/a/", i%150)
			if want[key] = fmt.Sprint(i); i%3 == 0 {
				delete(want, key)
				s.PutServices(map[string][]byte{key: nil})
			} else {
				s.PutServices(map[string][]byte{key: []byte(want[key])})
			}
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		for i, l := range lines {
			var set keyed.Set
			if n := len(l.serviceMessages(t, 0)); n < 9 || n > 13 {
				t.Errorf("stream %d: %d messages in 10 s", i, n)
			}
			if got := l.holdsServices(t, &set, 0); !maps.Equal(got, want) {
				t.Errorf("stream %d holds %d entries, want %d", i, len(got), len(want))
			}
			last := func(l *line) *feed.Keyed { all := l.serviceMessages(t, 0); return all[len(all)-1] }
			if !proto.Equal(last(l), last(lines[0])) {
				t.Errorf("stream %d was sent another message than the first", i)
			}
			close(l.in)
		}
	})
}

// TestServicesAreEncodedOnce: a delta is encoded once for all streams that hold the same.
func TestServicesAreEncodedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveNobody(t)
		s.PutServices(map[string][]byte{"service/a/b": []byte("x")})
		var lines []*line
		for i := range min(streams, 50) {
			lines = append(lines, dialWith(s, fmt.Sprint("n", i), wire.Hello{}))
		}
		time.Sleep(time.Minute)
		s.PutServices(map[string][]byte{"service/a/b": []byte("y")})
		time.Sleep(time.Minute)
		sent := map[*feed.MasterMessage]bool{}
		for _, l := range lines {
			l.mu.Lock()
			sent[l.took[len(l.took)-1]] = true
			l.mu.Unlock()
			close(l.in)
		}
		if len(sent) != 1 {
			t.Errorf("%d messages were encoded", len(sent))
		}
		late := dialWith(s, "late", wire.Hello{})
		time.Sleep(time.Minute)
		var set keyed.Set
		if got := late.holdsServices(t, &set, 0); got["service/a/b"] != "y" {
			t.Errorf("a node that comes later holds %v", got)
		}
		close(late.in)
	})
}

// TestServices_NodesKeepWhatTheyHold: a netmaster that does not know the Services yet sends none, also to a node that
// requests them; one that knows of none has nodes drop all.
func TestServices_NodesKeepWhatTheyHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveNobody(t)
		var source keyed.Source
		source.Put("service/a/b", []byte("x"))
		whole, _ := source.Since(0)
		var set keyed.Set
		if err := set.Apply(&whole); err != nil {
			t.Fatal(err)
		}
		l := dialWith(s, "n", wire.Hello{Services: set.Sums()})
		time.Sleep(time.Minute)
		s.PublishServices() // as one that takes over does
		time.Sleep(time.Minute)
		l.in <- wire.FromResend(feed.KeyedSet_KEYED_SET_SERVICES)
		time.Sleep(time.Minute)
		if n := len(l.serviceMessages(t, 0)); n != 0 {
			t.Errorf("%d messages before Services are known", n)
		}
		s.PutServices(nil)
		time.Sleep(keyedDelay)
		synctest.Wait()
		if got := l.holdsServices(t, &set, 0); len(got) != 0 {
			t.Errorf("it holds %v, and there are none", got)
		}
		close(l.in)
	})
}

// TestServicesResume: a node that connects again is sent what differs, at a leader of another time too; one that speaks
// no version 6 nothing.
func TestServicesResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := map[string][]byte{}
		for i := range 1000 {
			all[fmt.Sprint("slice/a/", i)] = []byte(fmt.Sprint("value", i))
		}
		first := serveNobody(t)
		first.PutServices(all)
		var set keyed.Set
		l := dialWith(first, "n", wire.Hello{})
		time.Sleep(time.Minute)
		if got := l.holdsServices(t, &set, 0); len(got) != 1000 {
			t.Fatalf("it holds %d", len(got))
		}
		close(l.in)
		next := serveNobody(t)
		all["slice/a/7"] = []byte("other")
		delete(all, "slice/a/8")
		next.PutServices(all)
		l = dialWith(next, "n", wire.Hello{Services: set.Sums()})
		time.Sleep(time.Minute)
		messages := l.serviceMessages(t, 0)
		if got := l.holdsServices(t, &set, 0); len(got) != 999 || got["slice/a/7"] != "other" {
			t.Errorf("it holds %d", len(got))
		}
		if size := proto.Size(messages[0]); len(messages) != 1 || size > 1000 {
			t.Errorf("%d messages, the first of %d bytes", len(messages), size)
		}
		close(l.in)
		old := dialWith(next, "o", wire.Hello{Versions: wire.Versions{Min: feed.MinVersion, Max: feed.Services - 1}})
		time.Sleep(time.Minute)
		if n := len(old.serviceMessages(t, 0)); n != 0 {
			t.Errorf("a node of version 5 is sent %d messages", n)
		}
		close(old.in)
	})
}

// TestServices_TakeOver: what a netmaster that takes over learns last is sent at once.
func TestServices_TakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveNobody(t)
		s.PutServices(map[string][]byte{"service/a/b": []byte("x")})
		s.PutServices(map[string][]byte{"service/a/b": []byte("y")})
		s.PublishServices()
		l := dialWith(s, "n", wire.Hello{})
		time.Sleep(keyedDelay)
		synctest.Wait()
		var set keyed.Set
		if got := l.holdsServices(t, &set, 0); got["service/a/b"] != "y" || len(l.serviceMessages(t, 0)) != 1 {
			t.Errorf("it holds %v", got)
		}
		close(l.in)
	})
}
