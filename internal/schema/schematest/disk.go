package schematest

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// SmallDisk returns a directory on a file system of 512 KiB, which is removed when the test ends.
func SmallDisk(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=512k")
	if errors.Is(err, syscall.EPERM) {
		t.Skip("needs root to mount a small file system")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Fill leaves no room on the directory's file system, until it is called.
func Fill(t testing.TB, dir string) (empty func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// Grows migrates a file to a version that needs more room than the file has.
func Grows(tx *bolt.Tx) error {
	b, err := tx.CreateBucket([]byte("grown"))
	if err != nil {
		return err
	}
	return b.Put([]byte("x"), make([]byte, 1<<20))
}

// NoGrowth limits the size of this process's files to that of the given one (RLIMIT_FSIZE), until end is called or the
// test ends. A write beyond it fails with EFBIG, which bbolt returns as text, not as a wrapped error.
func NoGrowth(t testing.TB, path string) (end func()) {
	t.Helper()
	db := open(t, path)
	var size int64
	if err := errors.Join(db.View(func(tx *bolt.Tx) error { size = tx.Size(); return nil }), db.Close(),
		os.Truncate(path, size)); err != nil {
		t.Fatal(err)
	}
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	limit := func(most uint64) {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: most, Max: before.Max}); err != nil {
			t.Error(err)
		}
	}
	limit(uint64(size))
	end = func() { limit(before.Cur) }
	t.Cleanup(end)
	return end
}
