package hostnet

import (
	"os"
	"testing"
)

func TestRecord(t *testing.T) {
	dir := t.TempDir()
	if n, ok, err := ReadRecord(dir); ok || err != nil {
		t.Errorf("no record: %v, %v (%v)", n, ok, err)
	}
	for _, want := range []Numbers{{Table: 102, Priority: 50}, {Table: 70000, Priority: 7}, {Table: 70000, Priority: 7},
		{Table: 249, Priority: 32714}} {
		if err := WriteRecord(dir, want); err != nil {
			t.Fatal(err)
		}
		if n, ok, err := ReadRecord(dir); n != want || !ok || err != nil {
			t.Errorf("recorded %v: %v, %v (%v)", want, n, ok, err)
		}
	}
	for _, text := range []string{"", "table", "table 254, first priority 50\n"} {
		if err := os.WriteFile(RecordPath(dir), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if n, ok, err := ReadRecord(dir); n != (Numbers{}) || !ok || err != nil {
			t.Errorf("%q: %v, %v (%v)", text, n, ok, err)
		}
	}
	if _, ok, err := ReadRecord(RecordPath(dir)); ok || err == nil {
		t.Errorf("a directory that is a file: %v (%v)", ok, err)
	}
}
