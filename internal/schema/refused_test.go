package schema_test

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"github.com/flowkeep/flowkeep/internal/schema"
	"github.com/flowkeep/flowkeep/internal/schema/schematest"
	bolt "go.etcd.io/bbolt"
)

func TestRefused(t *testing.T) {
	for _, number := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO, syscall.EFBIG} {
		whole := &fs.PathError{Op: "truncate", Path: "/a: b/c.db", Err: number}
		for _, err := range []error{whole, fmt.Errorf("file resize error: %s", whole), fmt.Errorf("file sync error: %s", number), //nolint:errorlint // as bbolt does
			fmt.Errorf("mmap allocate error: %s", whole), errors.Join(errors.New("first"), fmt.Errorf("from schema 1 to 2: file sync error: %s", whole), errors.New("last"))} { //nolint:errorlint // as bbolt does
			if got := schema.Refused(err); !errors.Is(got, number) || !errors.Is(got, err) || got.Error() != err.Error() {
				t.Errorf("%v: %v", err, got)
			}
		}
	}
	if got := schema.Refused(errors.New("file sync error: as never heard of")); !errors.Is(got, syscall.EIO) {
		t.Errorf("%v", got)
	}
	for _, err := range []error{nil, errors.New("page 3: no space left on device")} {
		if got := schema.Refused(err); got != nil {
			t.Errorf("%v: %v", err, got)
		}
	}
}

// What bbolt says of a file that may not grow is not lost.
func TestRefusedByBbolt(t *testing.T) {
	path := file(t, map[string]string{"a": "1"})
	schematest.NoGrowth(t, path)
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.Update(func(tx *bolt.Tx) error { return tx.Bucket([]byte("rules")).Put([]byte("b"), make([]byte, 1<<20)) })
	if _, told := errors.AsType[syscall.Errno](err); told {
		t.Errorf("bbolt tells the number now (%v): schema.Refused need not look for it", err)
	}
	if got := schema.Refused(err); !errors.Is(got, syscall.EFBIG) {
		t.Errorf("%v: %v", err, got)
	}
}
