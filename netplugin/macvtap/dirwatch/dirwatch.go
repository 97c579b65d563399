// Package dirwatch tells that something in a directory is another: a file came, went, was written or renamed, or the directory itself was
// removed and made anew.
package dirwatch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Beat is how often watchers are told even if nothing is known to have changed: where the kernel tells of nothing (a directory that is not
// there yet, a file system of another machine) they find out by looking.
const Beat = time.Second

const events = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_CLOSE_WRITE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// Follow calls look when something in the directory may be another, and at every beat, until ctx ends. It calls look once at the start.
// look is never called twice at once. An error: the kernel has no inotify left for this user.
func Follow(ctx context.Context, dir string, look func()) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch %s: %w (raise fs.inotify.max_user_instances)", dir, err)
	}
	news := os.NewFile(uintptr(fd), "inotify")
	defer news.Close()
	w := watch{fd: fd, dir: dir}
	told := make(chan struct{}, 1)
	go read(news, told)
	beat := time.NewTicker(Beat)
	defer beat.Stop()
	for {
		w.renew()
		look()
		select {
		case <-ctx.Done():
			return nil
		case <-beat.C:
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

// renew watches what the name stands for now: for the same directory the kernel gives the same watch. Where that is nothing, the next beat
// tries again.
func (w *watch) renew() {
	wd, err := unix.InotifyAddWatch(w.fd, w.dir, events)
	if err != nil {
		wd = none
	}
	if w.wd != wd && w.wd != none {
		_, _ = unix.InotifyRmWatch(w.fd, uint32(w.wd)) // the kernel may have done so, for a directory that is no more
	}
	w.wd = wd
}

// none is no watch: the kernel's begin with 1.
const none = 0
