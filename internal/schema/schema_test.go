package schema_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/schema"
	"github.com/flowkeep/flowkeep/internal/schema/schematest"
	bolt "go.etcd.io/bbolt"
)

// upAndDown, in the environment, is a file that this program, in place of its tests, brings to the next schema and back until it is killed.
const upAndDown = "FLOWKEEP_UP_AND_DOWN"

func TestMain(m *testing.M) {
	if path := os.Getenv(upAndDown); path != "" {
		now, next := schematest.Versions(1, "rules")
		fmt.Fprintln(os.Stderr, goUpAndDown(path, &now, &next))
		os.Exit(1)
	}
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() { // no test asks what a power cut leaves
		_ = os.Setenv("TMPDIR", "/dev/shm")
	}
	os.Exit(m.Run())
}

func goUpAndDown(path string, layouts ...*schema.Layout) error {
	for i := 0; ; i++ {
		db, err := bolt.Open(path, 0o600, nil)
		if err != nil {
			return err
		}
		if err := errors.Join(db.Update(layouts[(i+1)%2].Settle), db.Close()); err != nil {
			return err
		}
		fmt.Println(i)
	}
}

// file is a new one with the entries, of schema 1.
func file(t testing.TB, entries map[string]string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file.db")
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.NoSync = true
	err = db.Update(func(tx *bolt.Tx) error {
		if err := (&schema.Layout{Writes: 1}).Settle(tx); err != nil {
			return err
		}
		rules, err := tx.CreateBucket([]byte("rules"))
		if err != nil {
			return err
		}
		for k, v := range entries {
			if err := rules.Put([]byte(k), []byte(v)); err != nil {
				return err
			}
		}
		nested, err := rules.CreateBucket([]byte("\x00nested"))
		if err != nil {
			return err
		}
		return nested.Put([]byte("member"), nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func settle(t testing.TB, path string, l schema.Layout) error {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.NoSync = true
	return db.Update(l.Settle)
}

func TestByOneVersion(t *testing.T) {
	now, next := schematest.Versions(1, "rules")
	path := file(t, map[string]string{"a": "1"})
	one := schematest.Contents(t, path)
	for _, l := range []schema.Layout{now, next, next, now, now} {
		if err := settle(t, path, l); err != nil {
			t.Fatal(err)
		}
		text := schematest.Contents(t, path)
		if !strings.Contains(text, fmt.Sprintf(`"schema": "%d"`, l.Writes)) || (text == one) != (l.Writes == 1) {
			t.Errorf("by the one that writes %d:\n%s", l.Writes, text)
		}
	}
}

func TestFurtherThanOneVersion(t *testing.T) {
	now, next := schematest.Versions(5, "rules")
	for _, c := range []struct {
		told string
		by   schema.Layout
		want string
	}{
		{"7", now, "newer version than the next"}, {"3", next, "older version than the one before"}, {"4", now, "older version than the one before"}, {"7", next, "newer version than the next"},
		{"x", now, "none"}, {"0", now, "none"}, {"-5", now, "none"}, {"05", now, "none"}, {"5 ", now, "none"}, {"", now, "none"},
	} {
		path := file(t, nil)
		schematest.Claim(t, path, c.told)
		before := schematest.Contents(t, path)
		err := settle(t, path, c.by)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("schema %q by the one that writes %d: %v", c.told, c.by.Writes, err)
		}
		far, is := errors.AsType[*schema.FarError](err)
		if is != (c.want != "none") || is && far.Newer != strings.Contains(c.want, "newer") {
			t.Errorf("schema %q: %#v", c.told, err)
		}
		if after := schematest.Contents(t, path); after != before {
			t.Errorf("schema %q: the file was changed:\n%s", c.told, after)
		}
	}
}

func TestAStepThatFailsLeavesTheFile(t *testing.T) {
	path := file(t, map[string]string{"a": "1", "b": "2"})
	before := schematest.Contents(t, path)
	_, next := schematest.Versions(1, "rules")
	whole := next.Before
	next.Before = func(tx *bolt.Tx) error { return errors.Join(whole(tx), errors.New("the disk is full")) }
	if err := settle(t, path, next); err == nil || !strings.Contains(err.Error(), "from schema 1 to 2: the disk is full") {
		t.Error(err)
	}
	if after := schematest.Contents(t, path); after != before {
		t.Errorf("the file was changed:\n%s", after)
	}
}

// FuzzUpThenDown: whatever is in a file, the next version and this one again leave just that.
func FuzzUpThenDown(f *testing.F) {
	f.Add(uint64(1), 20)
	now, next := schematest.Versions(1, "rules")
	f.Fuzz(func(t *testing.T, seed uint64, count int) {
		rng := rand.New(rand.NewPCG(seed, 0))
		entries := map[string]string{}
		for range min(max(count, 0), 40) {
			entries[random(rng, 1, 40)] = random(rng, 0, 200)
		}
		path := file(t, entries)
		before := schematest.Contents(t, path)
		if err := errors.Join(settle(t, path, next), settle(t, path, now)); err != nil {
			t.Fatal(err)
		}
		if after := schematest.Contents(t, path); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
	})
}

// random begins with a letter: the nested bucket of each file does not.
func random(rng *rand.Rand, least, most int) string {
	b := make([]byte, least+rng.IntN(most-least+1))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	if len(b) > 0 {
		b[0] = 'a' + b[0]%26
	}
	return string(b)
}

// TestKilledInTheMidst: a program that is killed while it changes a file leaves it in the one schema or the other, whole.
func TestKilledInTheMidst(t *testing.T) {
	entries := map[string]string{}
	for i := range 2000 {
		entries[fmt.Sprintf("k%05d", i)] = strings.Repeat("v", 100)
	}
	path := file(t, entries)
	now, next := schematest.Versions(1, "rules")
	one := schematest.Contents(t, path)
	schematest.Settle(t, path, next)
	two := schematest.Contents(t, path)
	rng := rand.New(rand.NewPCG(1, 2))
	seen := map[string]int{}
	for range 20 {
		killed(t, path, 1+rng.IntN(4), time.Duration(rng.IntN(8_000))*time.Microsecond)
		text := schematest.Contents(t, path)
		if text != one && text != two {
			t.Fatalf("neither the one nor the other: %d bytes, want %d or %d", len(text), len(one), len(two))
		}
		seen[text]++
		schematest.Settle(t, path, now)
		if schematest.Contents(t, path) != one {
			t.Fatal("this version does not read it")
		}
	}
	t.Logf("killed in schema 1 %d times, in schema 2 %d times", seen[one], seen[two])
}

// killed has the program go up and down so many times, and a moment longer.
func killed(t *testing.T, path string, times int, longer time.Duration) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), upAndDown+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for range times {
		if !lines.Scan() {
			t.Fatal("it ended by itself")
		}
	}
	time.Sleep(longer) // in which the next one is under way
	_ = cmd.Process.Kill()
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait()
}
