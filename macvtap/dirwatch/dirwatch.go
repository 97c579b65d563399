// Package dirwatch reports changes in a directory: a file came, went, was written or renamed, or the directory itself
// was removed and recreated.
package dirwatch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Beat is how often watchers are called without a known change: where the kernel reports nothing (a file system of
// another machine, a directory that was removed while it is open) they find changes by reading.
const Beat = time.Second

// arrivals are what can make a directory of what is not one yet, reported by the one above.
const arrivals = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

const events = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_CLOSE_WRITE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// Follow calls look when something in the directory may be another, and at every beat, until ctx ends. It calls look once at the start.
// look is never called twice at once. An error: the kernel has no inotify left for this user.
func Follow(ctx context.Context, dir string, look func()) error {
	beat := time.NewTicker(Beat)
	defer beat.Stop()
	return follow(ctx, dir, beat.C, look)
}

func follow(ctx context.Context, dir string, beat <-chan time.Time, look func()) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch %s: %w (raise fs.inotify.max_user_instances)", dir, err)
	}
	news := os.NewFile(uintptr(fd), "inotify")
	defer news.Close()
	w := watch{fd: fd, dir: dir}
	told := make(chan struct{}, 1)
	go read(news, told)
	for {
		w.renew()
		look()
		select {
		case <-ctx.Done():
			return nil
		case <-beat:
		case <-told:
		}
	}
}

// read ends with the file.
func read(news *os.File, told chan<- struct{}) {
	buffer := make([]byte, 64<<10)
	for {
		if _, err := news.Read(buffer); err != nil {
			if errors.Is(err, os.ErrClosed) || !errors.Is(err, unix.EINTR) {
				return
			}
			continue
		}
		select {
		case told <- struct{}{}:
		default:
		}
	}
}

// watch is on one directory, as it is called now.
type watch struct {
	fd, wd int
	dir    string
}

// renew watches the current target of the name. It ends when the target was already watched before it looked, so that
// each later change is reported.
func (w *watch) renew() {
	for wd := w.add(); wd != w.wd; wd = w.add() {
		if w.wd != none {
			_, _ = unix.InotifyRmWatch(w.fd, uint32(w.wd)) // the kernel may have done so, for a directory that is no more
		}
		w.wd = wd
	}
}

// add has the kernel watch the directory, or the nearest one above it that is there. For the same directory it gives the same watch.
func (w *watch) add() int {
	wd, err := unix.InotifyAddWatch(w.fd, w.dir, events)
	for at := w.dir; err != nil; {
		above := filepath.Dir(at)
		if above == at {
			return none
		}
		at = above
		wd, err = unix.InotifyAddWatch(w.fd, at, arrivals)
	}
	return wd
}

// none is no watch: the kernel's begin with 1.
const none = 0
