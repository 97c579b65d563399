package dirwatch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// patience only ends tests that would wait forever.
const patience = time.Minute

// seen gives what is in a directory at each look; looks come by the kernel's news, or by beats that the test sends.
func seen(t *testing.T, dir string, beat <-chan time.Time) <-chan string {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	looks, ended := make(chan string, 1000), make(chan error)
	go func() { ended <- follow(ctx, dir, beat, func() { looks <- list(dir) }) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return looks
}

// list is what a directory holds: "name=text" of each file.
func list(dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "no directory"
	}
	var all []string
	for _, e := range entries {
		text, _ := os.ReadFile(filepath.Join(dir, e.Name()))
		all = append(all, e.Name()+"="+string(text))
	}
	return strings.Join(all, " ")
}

// await waits until a look sees what is wanted.
func await(t *testing.T, looks <-chan string, want string) {
	t.Helper()
	last := "no look came"
	for late := time.After(patience); last != want; {
		select {
		case last = <-looks:
		case <-late:
			t.Fatalf("the last look saw %q, want %q", last, want)
		}
	}
}

// News are told of without any beat. Each is one event of the kernel's, so that none can stand in for another.
func TestNewsAreTold(t *testing.T) {
	for _, c := range []struct {
		what   string
		do     func(dir, elsewhere string) error
		before string
		after  string
	}{
		{"a file comes", func(dir, _ string) error { return os.Symlink("nowhere", filepath.Join(dir, "b")) }, "a=1", "a=1 b="},
		{"a file is written", func(dir, _ string) error { return os.WriteFile(filepath.Join(dir, "a"), []byte("2"), 0o644) }, "a=1", "a=2"},
		{"a file is moved here", func(dir, elsewhere string) error {
			return os.Rename(filepath.Join(elsewhere, "c"), filepath.Join(dir, "c"))
		}, "a=1", "a=1 c=3"},
		{"a file is moved away", func(dir, elsewhere string) error {
			return os.Rename(filepath.Join(dir, "a"), filepath.Join(elsewhere, "a"))
		}, "a=1", ""},
		{"a file is removed", func(dir, _ string) error { return os.Remove(filepath.Join(dir, "a")) }, "a=1", ""},
		{"the directory is moved", func(dir, _ string) error { return os.Rename(dir, dir+"2") }, "a=1", "no directory"},
		{"the directory is removed", func(dir, _ string) error { return os.Remove(dir) }, "", "no directory"},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir, elsewhere := filepath.Join(t.TempDir(), "watched"), t.TempDir()
			if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(elsewhere, "c"), []byte("3"), 0o644)); err != nil {
				t.Fatal(err)
			}
			if c.before != "" {
				if err := os.WriteFile(filepath.Join(dir, "a"), []byte("1"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			looks := seen(t, dir, nil)
			await(t, looks, c.before)
			if err := c.do(dir, elsewhere); err != nil {
				t.Fatal(err)
			}
			await(t, looks, c.after)
		})
	}
}

// A directory that is removed and recreated at once may get the old inode number. It is watched again, and files that
// were created in it meanwhile are reported.
func TestDirectory_Recreated(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "watched")
	looks := seen(t, dir, nil)
	await(t, looks, "no directory")
	for i := range 20 {
		if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, fmt.Sprint("kubelet.sock", i))
		if err := os.Symlink("nowhere", file); err != nil {
			t.Fatal(err)
		}
		await(t, looks, filepath.Base(file)+"=")
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		await(t, looks, "")
	}
}

// A directory that comes when it was long known to be away is seen as it comes, wherever the way to it begins, and then watched itself.
func TestDirectoryComes(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "a", "b", "watched")
	looks := seen(t, dir, nil)
	for _, away := range []string{dir, filepath.Join(top, "a", "b"), filepath.Join(top, "a")} {
		await(t, looks, "no directory")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		await(t, looks, "")
		if err := os.Symlink("nowhere", filepath.Join(dir, "file")); err != nil {
			t.Fatal(err)
		}
		await(t, looks, "file=")
		if err := os.RemoveAll(away); err != nil {
			t.Fatal(err)
		}
	}
	await(t, looks, "no directory")
}

// Where the kernel tells of nothing, each beat brings a look.
func TestBeats(t *testing.T) {
	beat := make(chan time.Time)
	looks := seen(t, t.TempDir(), beat)
	for range 3 {
		await(t, looks, "")
		beat <- time.Time{}
	}
	await(t, looks, "")
}
