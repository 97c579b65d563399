package labelcache

import (
	"bytes"
	"path/filepath"
	"slices"
	"testing"
)

// opens reports whether parts are the value of a query at a stamp.
func (s sealer) opens(query string, of Stamp, parts ...[]byte) (value []byte, ok bool) {
	o := opening{query: query, at: of}
	for _, p := range parts {
		if s.open(&o, p) != nil {
			return nil, false
		}
	}
	return o.value, o.parts == len(parts)
}

func TestOpen_NothingElse(t *testing.T) {
	s, value := sealer("secret"), bytes.Repeat([]byte("x"), partSize+10)
	parts := s.seal("q", at(1), value)
	if got, ok := s.opens("q", at(1), parts...); !ok || !bytes.Equal(got, value) || len(parts) != 2 {
		t.Fatalf("%d parts, %d bytes", len(parts), len(got))
	}
	if bytes.Contains(parts[1], []byte("xxxx")) {
		t.Error("the value can be read")
	}
	again := s.seal("q", at(1), value)
	for name, ok := range map[string]func() ([]byte, bool){
		"another query":    func() ([]byte, bool) { return s.opens("p", at(1), parts...) },
		"another key":      func() ([]byte, bool) { return sealer("other").opens("q", at(1), parts...) },
		"another revision": func() ([]byte, bool) { return s.opens("q", at(2), parts...) },
		"another epoch": func() ([]byte, bool) {
			return s.opens("q", Stamp{Epoch: 2, Term: at(1).Term, Revision: 1}, parts...)
		},
		"another term": func() ([]byte, bool) {
			return s.opens("q", Stamp{Epoch: at(1).Epoch, Term: 99, Revision: 1}, parts...)
		},
		"another standing": func() ([]byte, bool) {
			return s.opens("q", Stamp{Term: at(1).Term, Revision: 1, Standing: 1}, parts...)
		},
		"parts in another order":  func() ([]byte, bool) { return s.opens("q", at(1), parts[1], parts[0]) },
		"one part twice":          func() ([]byte, bool) { return s.opens("q", at(1), parts[0], parts[0]) },
		"a part of another value": func() ([]byte, bool) { return s.opens("q", at(1), parts[0], again[1]) },
	} {
		if _, opened := ok(); opened {
			t.Errorf("%s opens", name)
		}
	}
	small := s.seal("q", at(1), []byte("value"))[0]
	for i := range small {
		for bit := range 8 {
			changed := slices.Clone(small)
			changed[i] ^= 1 << bit
			if _, ok := s.opens("q", at(1), changed); ok {
				t.Errorf("opens with bit %d of byte %d changed", bit, i)
			}
		}
	}
	for n := range small {
		if _, ok := s.opens("q", at(1), small[:n]); ok {
			t.Errorf("the first %d bytes open", n)
		}
	}
}

func FuzzOpen(f *testing.F) {
	s := sealer("secret")
	f.Add([]byte{})
	f.Add(s.seal("q", at(2), []byte("v"))[0])
	f.Fuzz(func(t *testing.T, sealed []byte) {
		if v, ok := s.opens("q", at(1), sealed); ok {
			t.Errorf("%q opens as %q", sealed, v)
		}
	})
}

// TestFalseEntries writes what others can write into a real memcached: each is a miss, and no outage.
func TestFalseEntries(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "m")
	memcached(t, socket)
	c := patient(shared(socket))
	run(t, c)
	s := c.sealer()
	raw := func(query string, value []byte) {
		t.Helper()
		if err := c.servers[0].set(s.name(query, 0), value); err != nil {
			t.Fatal(err)
		}
	}
	c.Put("k", at(1), []byte("ns/genuine"), true)
	c.Put("l", at(2), []byte("ns/l"), true)
	until(t, "both are in memcached", func() bool { return c.has("k", at(1))() && c.has("l", at(2))() })
	genuine, _ := c.servers[0].get(s.name("k", 0))
	if bytes.Contains(genuine, []byte("genuine")) || s.name("k", 0) == s.name("l", 0) {
		t.Error("the value can be read")
	}
	refused := c.Stats().Refused
	for _, fake := range [][]byte{{}, []byte("x"), []byte(`{"revision":2,"endpoints":["ns/evil"]}`), genuine,
		sealer("another secret").seal("l", at(2), []byte("ns/evil"))[0], genuine[:len(genuine)-1], make([]byte, 100)} {
		raw("l", fake)
		if c.has("l", at(2))() {
			t.Errorf("%q is used", fake)
		}
		if refused++; c.Stats().Refused != refused {
			t.Errorf("%q is not counted", fake)
		}
	}
	raw("k", genuine)
	if c.has("k", at(2))() {
		t.Error("a value of an earlier state is used")
	}
	if st := c.Stats(); !st.Connected || st.Refused != refused || st.Errors > 0 {
		t.Errorf("%+v", st)
	}
	mustGet(t, c, "l", 2, refuse, "ns/l", InProcess)
}
