package nodestate

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func anEntry() Entry {
	return Entry{
		State: EntryOpen, UID: "u", Desire: "{}", Generation: 3, Boot: "b", Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Change: Change{Backend: "fake", Before: json.RawMessage(`{"a":[1]}`), Steps: []string{"set mtu of eth1 to 1450 (was 1500)"}},
	}
}

func TestJournalKeepsItsEntry(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "here")
	j, err := OpenJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	if e, err := j.Read(); e != nil || err != nil {
		t.Errorf("an empty journal: %v, %v", e, err)
	}
	if err := j.Clear(); err != nil {
		t.Error(err)
	}
	want := anEntry()
	if err := j.Write(want); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenJournal(dir); err == nil || !strings.Contains(err.Error(), "another node-state agent") {
		t.Errorf("two at once: %v", err)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
	if j, err = OpenJournal(dir); err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if got, err := j.Read(); err != nil || !reflect.DeepEqual(*got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if err := j.Clear(); err != nil {
		t.Error(err)
	}
	if e, err := j.Read(); e != nil || err != nil {
		t.Errorf("a cleared journal: %v, %v", e, err)
	}
}

// Whatever is left of an entry, or put in it: the journal says that it is damaged, keeps it, and serves again.
func TestTornEntries(t *testing.T) {
	whole, err := encodeEntry(anEntry())
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(whole)
	flipped[len(flipped)/2] ^= 1
	torn := [][]byte{nil, []byte("\n"), flipped, append(bytes.Clone(whole), 'x')}
	for cut := 1; cut < len(whole); cut += 7 {
		torn = append(torn, whole[:cut])
	}
	for _, text := range torn {
		j, err := OpenJournal(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(j.path(), text, 0o600); err != nil {
			t.Fatal(err)
		}
		if e, err := j.Read(); e != nil || !errors.Is(err, ErrTorn) {
			t.Errorf("%q: %v, %v", text, e, err)
		}
		if kept, err := os.ReadFile(j.path() + ".torn"); err != nil || !bytes.Equal(kept, text) {
			t.Errorf("%q is kept as %q, %v", text, kept, err)
		}
		if e, err := j.Read(); e != nil || err != nil {
			t.Errorf("and then: %v, %v", e, err)
		}
		_ = j.Close()
	}
}

// What a crash leaves of the next entry does not matter to the one that is there.
func TestHalfWrittenNextEntry(t *testing.T) {
	j, err := OpenJournal(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if err := j.Write(anEntry()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(j.path()+".new", []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if e, err := j.Read(); err != nil || e.Generation != 3 {
		t.Errorf("%+v, %v", e, err)
	}
}

func TestJournalThatCannotBeWrittenIsAnError(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	j, err := OpenJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := j.Write(anEntry()); err == nil || !strings.Contains(err.Error(), "write the journal") {
		t.Error(err)
	}
}

func FuzzDecodeEntry(f *testing.F) {
	whole, err := encodeEntry(anEntry())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:70])
	f.Add([]byte("0\n{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		e, err := decodeEntry(text)
		if err != nil {
			return
		}
		again, err := encodeEntry(e)
		if err != nil {
			t.Fatal(err)
		}
		if e2, err := decodeEntry(again); err != nil || !reflect.DeepEqual(e, e2) {
			t.Errorf("%+v became %+v, %v", e, e2, err)
		}
	})
}
