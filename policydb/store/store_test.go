package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/schema"
	"github.com/flowkeep/flowkeep/internal/schema/schematest"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"
	"go.uber.org/goleak"
)

// TestMain keeps the files in memory where it can: thousands are written, and no test asks what a power cut leaves.
func TestMain(m *testing.M) {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		_ = os.Setenv("TMPDIR", "/dev/shm")
	}
	goleak.VerifyTestMain(m)
}

func open(t testing.TB, path string) *Store {
	t.Helper()
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func flush(t testing.TB, s *Store) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
}

// same compares contents without regard to the order of members, and nil with empty.
func same(t testing.TB, got, want *Contents) {
	t.Helper()
	if diff := difference(got, want); diff != "" {
		t.Fatalf("LEAK: data was lost or changed:\n%s", diff)
	}
}

func difference(got, want *Contents) string {
	return cmp.Diff(normal(want), normal(got), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }))
}

func normal(c *Contents) *Contents {
	out := *c
	out.Groups = map[policy.Key][]netip.Addr{}
	for k, members := range c.Groups {
		m := slices.Clone(members)
		slices.SortFunc(m, netip.Addr.Compare)
		out.Groups[k] = m[:len(m):len(m)]
		if len(m) == 0 {
			out.Groups[k] = nil
		}
	}
	if len(c.Infos) == 0 {
		out.Infos = nil
	}
	return &out
}

func empty() *Contents {
	return &Contents{Namespaces: map[string]*policy.Namespace{}, Endpoints: map[string]*policy.Endpoint{}, Policies: map[string]*policy.Policy{},
		Rules: map[policy.Key]*policy.Rule{}, Groups: map[policy.Key][]netip.Addr{}, Nodes: map[string]*NodeRecord{}, Announced: map[string]*Announcement{}}
}

// history makes random changes, and sums up what should be stored.
type history struct {
	*rand.Rand
	want *Contents
}

func newHistory(seed uint64) *history {
	h := &history{rand.New(rand.NewPCG(seed, 1)), empty()}
	return h
}

func address(n int) netip.Addr {
	if n%2 == 0 {
		return netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)})
	}
	return netip.AddrFrom16([16]byte{0xfd, 14: byte(n >> 8), 15: byte(n)})
}

func group(n int) policy.Key { return policy.Key{byte(n), 0xaa} }

func rule(n, port int) *policy.Rule {
	r := &policy.Rule{Direction: policy.Ingress, AppliedTo: policy.Key{1}, Peers: []policy.Key{group(n)},
		DryRun: n%2 == 1, Ports: []policy.PortRange{{Protocol: policy.TCP, First: uint16(n), Last: uint16(n)}}, Origins: []policy.Origin{{Policy: "ns0/p0", Rule: port}}}
	r.Key = policy.RuleKey(r)
	return r
}

// putOrDelete decides about one key of a map, in the change and in what is wanted.
func putOrDelete[T any](h *history, change *map[string]*T, want map[string]*T, key string, v *T) {
	if *change == nil {
		*change = map[string]*T{}
	}
	if h.IntN(3) == 0 {
		v = nil
		delete(want, key)
	} else {
		want[key] = v
	}
	(*change)[key] = v
}

func (h *history) next() Change {
	var c Change
	w := h.want
	for range h.IntN(4) {
		n, label := h.IntN(5), map[string]string{"app": fmt.Sprint(h.IntN(3))}
		name := fmt.Sprintf("ns%d", n)
		putOrDelete(h, &c.Namespaces, w.Namespaces, name, &policy.Namespace{Name: name, Labels: label})
		e := &policy.Endpoint{Namespace: name, Name: "a", UID: "u", Labels: label, Addresses: []netip.Addr{address(n)}, Node: "n1"}
		putOrDelete(h, &c.Endpoints, w.Endpoints, e.ID(), e)
		p := &policy.Policy{Namespace: name, Name: "p", Generation: int64(h.IntN(9)), IsolatesIngress: true, DryRun: n == 1}
		putOrDelete(h, &c.Policies, w.Policies, p.ID(), p)
		putOrDelete(h, &c.Nodes, w.Nodes, name, &NodeRecord{Realised: h.Uint64N(9), Errors: 1})
		a := &Announcement{Node: "n1", Namespace: name, Name: "a", Addresses: []netip.Addr{address(n)}}
		putOrDelete(h, &c.Announced, w.Announced, a.Key(), a)
	}
	if h.IntN(4) == 0 {
		infos := []policy.NodeInfo{{Name: fmt.Sprint(h.IntN(9))}}
		c.Infos = &infos
		w.Infos = slices.Clone(infos)
	}
	h.resolved(&c)
	return c
}

func (h *history) resolved(c *Change) {
	w := h.want
	w.Revision++
	c.Resolved = &policy.Changes{Revision: w.Revision}
	if c.Whole = h.IntN(10) == 0; c.Whole {
		clear(w.Rules)
		clear(w.Groups)
	}
	for range h.IntN(4) {
		r := rule(h.IntN(6), h.IntN(3))
		if h.IntN(3) == 0 {
			delete(w.Rules, r.Key)
			c.Resolved.Rules = append(c.Resolved.Rules, policy.RuleChange{Key: r.Key})
		} else {
			w.Rules[r.Key] = r
			c.Resolved.Rules = append(c.Resolved.Rules, policy.RuleChange{Key: r.Key, Rule: r})
		}
	}
	for range h.IntN(4) {
		c.Resolved.Groups = append(c.Resolved.Groups, h.group(group(h.IntN(4))))
	}
}

func (h *history) group(k policy.Key) policy.GroupChange {
	g := policy.GroupChange{Key: k}
	if h.IntN(5) == 0 {
		delete(h.want.Groups, k)
		g.Gone = true
		return g
	}
	has := map[netip.Addr]bool{}
	for _, a := range h.want.Groups[k] {
		has[a] = true
	}
	for range h.IntN(6) {
		a := address(h.IntN(8))
		if slices.Contains(g.Added, a) || slices.Contains(g.Removed, a) {
			continue
		}
		if has[a] {
			g.Removed = append(g.Removed, a)
		} else {
			g.Added = append(g.Added, a)
		}
		has[a] = !has[a]
	}
	maps.DeleteFunc(has, func(_ netip.Addr, in bool) bool { return !in })
	h.want.Groups[k] = slices.Collect(maps.Keys(has))
	return g
}

// Random histories, written at once or one by one, and read back from a new process.
func TestRandomHistories(t *testing.T) {
	for seed := range uint64(60) {
		path := filepath.Join(t.TempDir(), "policy.db")
		h := newHistory(seed)
		s := open(t, path)
		for range 20 {
			s.Write(h.next())
			if h.IntN(4) == 0 {
				flush(t, s)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		again := open(t, path)
		got, err := again.Load()
		if err != nil {
			t.Fatal(err)
		}
		if again.SetAside() != "" {
			t.Fatal(again.SetAside())
		}
		same(t, got, h.want)
		if got, err = again.Load(); err != nil {
			t.Fatal(err)
		}
		same(t, got, h.want)
		_ = again.Close()
	}
}

func TestWhatWaitsIsOnTopOfWhatFailed(t *testing.T) {
	for seed := range uint64(60) {
		s := open(t, filepath.Join(t.TempDir(), "policy.db"))
		h := newHistory(seed)
		for range 6 {
			s.Write(h.next())
		}
		flush(t, s)
		s.mu.Lock()
		batch := newPending()
		for range 6 {
			c := h.next()
			batch.add(&c)
		}
		prune(s.db, batch)
		for range 6 {
			c := h.next()
			s.next.add(&c)
		}
		batch.absorb(s.next)
		s.next = batch
		s.mu.Unlock()
		flush(t, s)
		got, err := s.Load()
		if err != nil {
			t.Fatal(err)
		}
		same(t, got, h.want)
		_ = s.Close()
	}
}

// filled is a file with a few dozen pages, and what is in it.
func filled(t testing.TB, path string) *Contents {
	t.Helper()
	s := open(t, path)
	c := Change{Namespaces: map[string]*policy.Namespace{}, Endpoints: map[string]*policy.Endpoint{}, Policies: map[string]*policy.Policy{}, Resolved: &policy.Changes{Revision: 9}}
	for i := range 60 {
		ns := fmt.Sprintf("namespace-%d", i%10)
		c.Namespaces[ns] = &policy.Namespace{Name: ns}
		e := &policy.Endpoint{Namespace: ns, Name: fmt.Sprintf("pod-%d", i), Labels: map[string]string{"app": "x"}, Addresses: []netip.Addr{address(i)}}
		c.Endpoints[e.ID()] = e
		p := &policy.Policy{Namespace: ns, Name: fmt.Sprintf("policy-%d", i), IsolatesIngress: true}
		c.Policies[p.ID()] = p
		r := rule(i, i)
		c.Resolved.Rules = append(c.Resolved.Rules, policy.RuleChange{Key: r.Key, Rule: r})
		g := policy.GroupChange{Key: group(i)}
		for n := range 3 + i%3*i {
			g.Added = append(g.Added, address(n))
		}
		c.Resolved.Groups = append(c.Resolved.Groups, g)
	}
	s.Write(c)
	flush(t, s)
	s.Write(Change{Endpoints: map[string]*policy.Endpoint{"namespace-0/pod-0": nil}})
	flush(t, s)
	got, err := s.Load()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return got
}

// whole opens a damaged file: it holds everything, or it was set aside and the new one is empty.
func whole(t *testing.T, path string, want *Contents, damage string) (aside bool) {
	t.Helper()
	s, err := Open(path)
	if err != nil {
		t.Fatalf("%s: %v", damage, err)
	}
	defer s.Close()
	got, err := s.Load()
	if err != nil {
		t.Fatalf("%s: %v", damage, err)
	}
	if s.SetAside() == "" {
		if diff := difference(got, want); diff != "" {
			t.Fatalf("%s: served although something is missing:\n%s", damage, diff)
		}
		return false
	}
	if !got.Empty() || len(got.Policies) > 0 {
		t.Fatalf("%s: the new file is not empty", damage)
	}
	if kept, _ := filepath.Glob(path + ".corrupt-*"); len(kept) == 0 || !strings.Contains(s.SetAside(), "set aside as "+kept[0]) {
		t.Fatalf("%s: %q was not kept, or is not told: %q", damage, kept, s.SetAside())
	}
	s.Write(Change{Namespaces: map[string]*policy.Namespace{"ns": {Name: "ns"}}})
	flush(t, s)
	return true
}

func TestTruncatedAtEveryPage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.db")
	want := filled(t, path)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pages := len(text) / os.Getpagesize()
	if pages < 20 {
		t.Fatalf("only %d pages", pages)
	}
	set := 0
	for page := 1; page < pages; page++ {
		for _, more := range []int{0, 123} {
			cut := filepath.Join(t.TempDir(), "policy.db")
			if err := os.WriteFile(cut, text[:page*os.Getpagesize()+more], 0o600); err != nil {
				t.Fatal(err)
			}
			if whole(t, cut, want, fmt.Sprintf("cut after page %d and %d bytes", page, more)) {
				set++
			}
		}
	}
	if set == 0 {
		t.Error("nothing was ever set aside")
	}
}

// Bytes that the disk has changed are found wherever they are, or do not matter.
func TestChangedBytes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.db")
	want := filled(t, path)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	set := 0
	for i := range 150 {
		broken := slices.Clone(text)
		at, length := random.IntN(len(broken)), 1
		if i%3 == 0 { // a page that was never written, or belongs elsewhere
			at, length = at/os.Getpagesize()*os.Getpagesize(), os.Getpagesize()
		}
		for n := at; n < at+length; n++ {
			broken[n] = byte(random.Uint32())
			if i%6 == 0 {
				broken[n] = 0
			}
		}
		file := filepath.Join(t.TempDir(), "policy.db")
		if err := os.WriteFile(file, broken, 0o600); err != nil {
			t.Fatal(err)
		}
		if whole(t, file, want, fmt.Sprintf("%d bytes at %d", length, at)) {
			set++
		}
	}
	if set < 25 {
		t.Errorf("only %d of 150 were set aside", set)
	}
}

func TestForeignFiles(t *testing.T) {
	foreign := filepath.Join(t.TempDir(), "foreign.db")
	db, err := bolt.Open(foreign, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("somebody else's")); return err })
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(t.TempDir(), "text.db")
	if err := os.WriteFile(text, []byte(strings.Repeat("these are no pages\n", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{foreign, text} {
		if !whole(t, path, empty(), path) {
			t.Errorf("%s was taken over", path)
		}
	}
}

func TestEmptyFileIsNew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.db")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if s := open(t, path); s.SetAside() != "" {
		t.Error(s.SetAside())
	}
}

func TestNewerSchemaIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.db")
	filled(t, path)
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketMeta).Put([]byte("schema"), []byte("7")) })
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); !errors.Is(err, ErrNewer) || !strings.Contains(err.Error(), "schema 7") {
		t.Errorf("error %v", err)
	}
	if kept, _ := filepath.Glob(path + "*"); len(kept) != 1 {
		t.Errorf("files %v", kept)
	}
}

// TestTheNextVersionsFile is read as this version wrote it, and the other way round; one that was damaged is not changed, but set aside.
func TestTheNextVersionsFile(t *testing.T) {
	now, next := schematest.Versions(layout.Writes, string(bucketPolicies))
	for _, damaged := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "policy.db")
		want := filled(t, path)
		before := schematest.Contents(t, path)
		db, err := bolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = migrate(db, &next)
		if damaged {
			err = errors.Join(err, db.Update(func(tx *bolt.Tx) error {
				return tx.Bucket([]byte("next policies")).Delete([]byte("next namespace-1/policy-1"))
			}))
		}
		if err = errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
		if schematest.Contents(t, path) == before {
			t.Fatal("the next version writes the same")
		}
		s, err := openAs(path, &now)
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.Load()
		if err := errors.Join(err, s.Close()); err != nil {
			t.Fatal(err)
		}
		switch after := schematest.Contents(t, path); {
		case damaged:
			if !strings.Contains(s.SetAside(), "checksum of the next policies is wrong") || !got.Empty() {
				t.Errorf("set aside %q", s.SetAside())
			}
		case s.SetAside() != "" || after != before:
			t.Errorf("set aside %q; before:\n%s\nafter:\n%s", s.SetAside(), before, after)
		default:
			same(t, got, want)
		}
	}
}

// TestWhatThePolicyDBHolds is known to the version before, which serves from it at once and passes over what it does not know. So a field that takes
// something away raises layout; then this text is changed (docs/decisions/021).
func TestWhatThePolicyDBHolds(t *testing.T) {
	const (
		selector  = "{requirements:[{key:string operator:uint8 values:[string]}]}"
		direction = "[{anyPeer:bool peers:[{namespaces:" + selector + " pods:" + selector + " block:{cidr:text except:[text]}}] anyPort:bool " +
			"ports:[{protocol:uint8 name:string first:uint16 last:uint16}]}]"
	)
	for _, c := range []struct{ have, want string }{
		{schematest.Shape(policy.Policy{}), "{namespace:string name:string uid:string generation:int64 appliedTo:" + selector + " createdAt:int64 isolatesIngress:bool isolatesEgress:bool " +
			"ingress:" + direction + " egress:" + direction + " audit:bool copy:string problems:[string]}"},
		{schematest.Shape(policy.Endpoint{}), "{namespace:string name:string uid:string labels:map[string string] node:string addresses:[text] " +
			"ports:[{name:string protocol:uint8 number:uint16}] labelsLeftOut:int portsLeftOut:int " +
			"hostNetwork:bool finished:bool terminating:bool noSandbox:bool hasSandbox:bool createdAt:int64 noPeer:bool}"}, // the version before has no pods that are no peers
		{schematest.Shape(policy.Namespace{}), "{name:string labels:map[string string]}"},
		{schematest.Shape(policy.Rule{}), "{key:text direction:uint8 appliedTo:text anyPeer:bool peers:[text] blocks:[{cidr:text except:[text]}] anyPort:bool " +
			"ports:[{protocol:uint8 first:uint16 last:uint16}] audit:bool origins:[{policy:string rule:int}]}"},
		{schematest.Shape(Announcement{}), "{node:string namespace:string name:string uid:string addresses:[text]}"},
		{schematest.Shape(NodeRecord{}), "{realised:uint64 errors:int}"},
	} {
		if c.have != c.want {
			t.Errorf("a file holds\n%s\nwhere the version before has\n%s", c.have, c.want)
		}
	}
}

// TestAnOlderSchemaThanTheOneBefore is set aside: what is in it is told by the API server too.
func TestAnOlderSchemaThanTheOneBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.db")
	filled(t, path)
	s, err := openAs(path, &schema.Layout{Writes: layout.Writes + 2})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !strings.Contains(s.SetAside(), "older version than the one before") {
		t.Errorf("set aside %q", s.SetAside())
	}
}

func TestSystemErrorsSetNothingAside(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "policy.db"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "policy.db"), filepath.Join(dir, "missing", "policy.db")} {
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), "--state-dir") {
			t.Errorf("%s: error %v", path, err)
		}
	}
	if kept, _ := filepath.Glob(filepath.Join(dir, "*.corrupt-*")); len(kept) > 0 {
		t.Errorf("set aside: %v", kept)
	}
}

func TestInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.db")
	open(t, path)
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("error %v", err)
	}
}

func TestOnlySomeBrokenFilesAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.db")
	for range maxKept + 2 {
		if err := os.WriteFile(path, []byte(strings.Repeat("x", 9999)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := open(t, path).Close(); err != nil {
			t.Fatal(err)
		}
	}
	if kept, _ := filepath.Glob(path + ".corrupt-*"); len(kept) != maxKept {
		t.Errorf("kept %v", kept)
	}
}

func TestCheck(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.db")
	c := filled(t, path)
	for _, p := range c.Rules {
		c.Policies[p.Origins[0].Policy] = &policy.Policy{Namespace: "ns0", Name: "p0"}
	}
	if problems := c.Check(); len(problems) > 0 {
		t.Fatalf("%q", problems)
	}
	delete(c.Groups, group(3))
	c.Groups[group(200)] = nil
	wrong := *rule(5, 5)
	wrong.AnyPort = true
	c.Rules[wrong.Key] = &wrong
	delete(c.Policies, "ns0/p0")
	problems := strings.Join(c.Check(), "\n")
	for _, want := range []string{"peer group " + group(3).String() + " is missing", "group " + group(200).String() + ": no rule", "rule " + wrong.Key.String() + ": its key", "policy ns0/p0 is missing"} {
		if !strings.Contains(problems, want) {
			t.Errorf("no %q in\n%s", want, problems)
		}
	}
}

// FuzzLoad puts any bytes as values into a file whose checksums are right.
func FuzzLoad(f *testing.F) {
	f.Add([]byte("ns/a"), []byte(`{"namespace":"ns","name":"a"}`))
	f.Add([]byte("0123456789abcdef"), []byte(`{"key":"30313233343536373839616263646566"}`))
	f.Add([]byte("revision"), []byte(`18446744073709551616`))
	f.Add([]byte(""), []byte(`null`))
	path := filepath.Join(f.TempDir(), "policy.db")
	db, _, _, err := openOrSetAside(path, &layout)
	if err != nil {
		f.Fatal(err)
	}
	db.NoSync = true
	f.Cleanup(func() { _ = db.Close() })
	f.Fuzz(func(t *testing.T, key, value []byte) {
		if len(key) == 0 || len(key) > bolt.MaxKeySize {
			return
		}
		for _, name := range buckets {
			tx, err := db.Begin(true)
			if err != nil {
				t.Fatal(err)
			}
			if err := tx.Bucket(name).Put(key, value); err != nil {
				t.Fatal(err)
			}
			_ = tx.Rollback()
			if err := db.Update(func(tx *bolt.Tx) error { return fuzzValue(t, tx, name, key, value) }); !errors.Is(err, errRollBack) {
				t.Fatal(err)
			}
		}
	})
}

var errRollBack = errors.New("roll back")

func fuzzValue(t *testing.T, tx *bolt.Tx, name, key, value []byte) error {
	if err := tx.Bucket(name).Put(key, value); err != nil {
		return err
	}
	out := &Contents{Rules: map[policy.Key]*policy.Rule{}, Groups: map[policy.Key][]netip.Addr{}}
	if err := readAll(tx, out); err == nil {
		for id, e := range out.Endpoints {
			if e.ID() != id {
				t.Errorf("endpoint %q under %q", e.ID(), id)
			}
		}
	}
	return errRollBack
}

func BenchmarkHundredThousandPods(b *testing.B) {
	c := Change{Namespaces: map[string]*policy.Namespace{}, Endpoints: map[string]*policy.Endpoint{}}
	for i := range 100000 {
		ns := fmt.Sprintf("namespace-%d", i%1000)
		c.Namespaces[ns] = &policy.Namespace{Name: ns}
		e := &policy.Endpoint{Namespace: ns, Name: fmt.Sprintf("deployment-7d4b9c%d", i), UID: "0e0c1a2b-3c4d-4e5f-8a9b-0123456789ab", Node: "node-17", CreatedAt: 1700000000,
			Labels: map[string]string{"app": "shop", "pod-template-hash": "7d4b9c", "tier": "web"}, Addresses: []netip.Addr{address(i)},
			Ports: []policy.NamedPort{{Name: "http", Protocol: policy.TCP, Number: 8080}}}
		c.Endpoints[e.ID()] = e
	}
	for b.Loop() {
		path := filepath.Join(b.TempDir(), "policy.db")
		s := open(b, path)
		began := time.Now()
		s.Write(c)
		flush(b, s)
		b.ReportMetric(time.Since(began).Seconds(), "s/write")
		_ = s.Close()
		began = time.Now()
		s = open(b, path)
		if got, err := s.Load(); err != nil || len(got.Endpoints) != 100000 {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(began).Seconds(), "s/open")
		began = time.Now()
		s.Write(Change{Endpoints: map[string]*policy.Endpoint{"namespace-1/deployment-7d4b9c1": nil}})
		flush(b, s)
		b.ReportMetric(time.Since(began).Seconds(), "s/change")
		_ = s.Close()
	}
}
