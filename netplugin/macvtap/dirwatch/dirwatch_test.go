package dirwatch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// follow gives what tells of each look.
func follow(t *testing.T, dir string) <-chan struct{} {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	looks, ended := make(chan struct{}, 1000), make(chan error)
	go func() { ended <- Follow(ctx, dir, func() { looks <- struct{}{} }) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	<-looks
	return looks
}

// soon: the look because of it comes before the beat would have brought one.
func soon(t *testing.T, looks <-chan struct{}, what string, do func() error) {
	t.Helper()
	for again := true; again; again = len(looks) > 0 { // a beat is just over, so that the next is far
		<-looks
	}
	began := time.Now()
	if err := do(); err != nil {
		t.Fatal(err)
	}
	<-looks
	if late := time.Since(began); late > Beat/2 {
		t.Errorf("%s was told of after %v", what, late)
	}
}

// Looks because of news come at once: well before the beat would have brought them.
func TestNewsAreTold(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "watched")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	looks := follow(t, dir)
	file := filepath.Join(dir, "file")
	soon(t, looks, "a file", func() error { return os.WriteFile(file, []byte("x"), 0o644) })
	soon(t, looks, "a rename", func() error { return os.Rename(file, file+"2") })
	soon(t, looks, "a removal", func() error { return os.Remove(file + "2") })
	soon(t, looks, "the end of the directory", func() error { return os.RemoveAll(dir) })
}

// A directory that is removed and made anew at once, so that its number may be the old one's, is watched again.
func TestDirectoryMadeAnew(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "watched")
	looks := follow(t, dir)
	for i := range 3 {
		if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)); err != nil {
			t.Fatal(err)
		}
		<-looks // a beat: there it is
		<-looks
		soon(t, looks, fmt.Sprintf("a file in directory %d", i), func() error { return os.WriteFile(filepath.Join(dir, "kubelet.sock"), nil, 0o644) })
	}
}
