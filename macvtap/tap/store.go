package tap

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/macvtap"
	"golang.org/x/sys/unix"
)

// DefaultDir is where records are by default.
const DefaultDir = "/var/lib/flowkeep-macvtap"

// Errors that repeating does not mend.
var (
	// ErrRefused is of what cannot be had as it was asked for.
	ErrRefused = errors.New("refused")
	// ErrNoNetNS is of a network namespace that is not there.
	ErrNoNetNS = errors.New("no network namespace")
	// ErrTorn is of a record that is damaged. It is set aside and reported once.
	ErrTorn = errors.New("damaged")
)

// refusal is ErrRefused with a sentence of its own.
type refusal string

func (r refusal) Error() string        { return string(r) }
func (r refusal) Is(target error) bool { return target == ErrRefused }

func refuse(format string, args ...any) error { return refusal(fmt.Sprintf(format, args...)) }

// Store is the devices of a node. It may be used by many goroutines and processes at once: each call locks the directory. Its calls are about the
// network namespace of the calling process, which is the node's.
type Store struct {
	dir      string
	patience time.Duration
	step     func(name string) error // before each step of an attachment; for tests
}

// Open opens the store in dir, which it makes if necessary.
func Open(dir string) (*Store, error) {
	if !filepath.IsAbs(dir) {
		return nil, refuse("the state directory %q is no absolute path", dir)
	}
	s := &Store{dir: dir, patience: 30 * time.Second, step: func(string) error { return nil }}
	for _, d := range []string{dir, s.path("devices"), s.path("attached"), s.path("dev")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, fmt.Errorf("make the state directory: %w", err)
		}
	}
	return s, nil
}

func (s *Store) path(elements ...string) string {
	return filepath.Join(append([]string{s.dir}, elements...)...)
}

func (s *Store) devicePath(id string) string   { return s.path("devices", key(id)+".json") }
func (s *Store) attachedPath(id string) string { return s.path("attached", key(id)+".json") }

// Node is where the device node of a device is while it is attached.
func (s *Store) Node(id string) string { return s.path("dev", key(id)) }

// Device is what a container is given.
type Device struct {
	HostPath      string // the device node; it is there while the device is attached to the pod
	ContainerPath string
	Index         int // of the interface in the pod's network namespace
	// Pending is why an allocated device could not be made yet; nil: it is there. Ensure makes it, and so does Attach.
	Pending error
}

func (s *Store) device(r Record) Device {
	return Device{HostPath: s.Node(r.ID), ContainerPath: "/dev/tap" + strconv.Itoa(r.Index), Index: r.Index}
}

// Allocate writes down that a device is given away, for the first time or again, and makes it in the node's network
// namespace: the pod may have no attachment by the CNI plugin. It keeps the index it had, unless another link of the
// node has that by now.
func (s *Store) Allocate(resource, parent string, mode macvtap.Mode, id string) (Device, error) {
	release, err := s.hold()
	if err != nil {
		return Device{}, err
	}
	defer release()
	r, _, err := load(s.devicePath(id), decodeRecord)
	if err != nil && !errors.Is(err, ErrTorn) { // a damaged one is set aside, and recreated
		return Device{}, err
	}
	p, err := ownNode()
	if err != nil {
		return Device{}, err
	}
	defer p.close()
	before := r
	r = Record{ID: id, Resource: resource, Parent: parent, Mode: mode, Index: r.Index, Generation: r.Generation + 1}
	if taken, err := p.taken(r.Index); err != nil {
		return Device{}, err
	} else if r.Index == 0 || taken {
		if r.Index, err = s.freeIndex(); err != nil {
			return Device{}, err
		}
	}
	if err := r.validate(); err != nil {
		return Device{}, refuse("cannot allocate %q: %v", id, err)
	}
	if err := save(s.devicePath(id), r); err != nil {
		return Device{}, fmt.Errorf("write the record of device %s: %w", id, err)
	}
	d := s.device(r)
	if d.Pending = s.vacate(r); d.Pending == nil {
		if before.ID != "" {
			d.Pending = dropOnNode(s, p, before)
		}
		d.Pending = errors.Join(d.Pending, makeOnNode(s, p, r))
	}
	return d, nil
}

// Release removes the record of a device that no pod has any more, unless it was allocated again since it had that
// generation; there may be none. A pod's that is still attached goes with the pod.
func (s *Store) Release(id string, generation int64) error {
	release, err := s.hold()
	if err != nil {
		return err
	}
	defer release()
	r, there, err := load(s.devicePath(id), decodeRecord)
	if !there || r.Generation != generation {
		return err
	}
	if err := drop(s, r); err != nil {
		return err
	}
	if err := remove(s.devicePath(id)); err != nil {
		return fmt.Errorf("remove the record of device %s: %w", id, err)
	}
	return nil
}

// State is a device as the disk has it.
type State struct {
	Record
	Allocated bool        // there is a record of the device plugin's
	Attached  *Attachment // nil if no pod has it by the CNI plugin
	OnNode    bool        // its link is in the node's network namespace, or it has a device node and is not attached
}

// Devices are all devices, by id, and what was damaged (and set aside).
func (s *Store) Devices() ([]State, error) {
	release, err := s.hold()
	if err != nil {
		return nil, err
	}
	defer release()
	records, errR := list(s.path("devices"), decodeRecord)
	attachments, errA := list(s.path("attached"), decodeAttachment)
	states := map[string]State{}
	for _, r := range records {
		states[r.ID] = State{Record: r, Allocated: true}
	}
	for _, a := range attachments {
		st, ok := states[a.ID]
		if !ok {
			st.Record = a.Record
		}
		st.Attached = &a
		states[a.ID] = st
	}
	links, errL := onNode()
	for id, st := range states {
		st.OnNode = links[st.Index] || st.Attached == nil && exists(s.Node(id))
		states[id] = st
	}
	sorted := slices.SortedFunc(maps.Values(states), func(a, b State) int { return strings.Compare(a.ID, b.ID) })
	return sorted, errors.Join(errR, errA, errL)
}

// Torn returns the paths of damaged records that were set aside.
func (s *Store) Torn() (paths []string, err error) {
	for _, dir := range []string{"devices", "attached"} {
		entries, err := os.ReadDir(s.path(dir))
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), torn) {
				paths = append(paths, s.path(dir, e.Name()))
			}
		}
	}
	return paths, nil
}

// freeIndex is the lowest that neither a device nor a link of the node's has.
func (s *Store) freeIndex() (int, error) {
	taken := map[int]bool{}
	records, err := list(s.path("devices"), decodeRecord)
	if err != nil && !errors.Is(err, ErrTorn) {
		return 0, err
	}
	attachments, err := list(s.path("attached"), decodeAttachment)
	if err != nil && !errors.Is(err, ErrTorn) {
		return 0, err
	}
	for _, r := range records {
		taken[r.Index] = true
	}
	for _, a := range attachments {
		taken[a.Index] = true
	}
	for i := FirstIndex; i <= lastIndex; i++ {
		if taken[i] {
			continue
		}
		there, err := hostHas(i)
		if err != nil || !there {
			return i, err
		}
	}
	return 0, errors.New("no interface index is free")
}

// hold locks the directory until release is called.
func (s *Store) hold() (release func(), err error) {
	f, err := os.OpenFile(s.path("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	var locked error
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			if locked = unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(locked, unix.EINTR) {
				return
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(s.patience):
		go func() { <-done; f.Close() }() // it may have got the lock by then
		return nil, fmt.Errorf("another process has held the lock of %s for %s", s.dir, s.patience)
	}
	if locked != nil {
		f.Close()
		return nil, fmt.Errorf("lock the state directory: %w", locked)
	}
	return func() { f.Close() }, nil
}

// torn ends the names of damaged records that were set aside.
const torn = ".torn"

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// load reads a file; there may be none. A damaged one is set aside, and is ErrTorn once.
func load[T any](path string, decode func([]byte) (T, error)) (v T, there bool, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return v, false, nil
	}
	if err != nil {
		return v, false, err
	}
	value, why := decode(text)
	if why == nil {
		return value, true, nil
	}
	if err := os.Rename(path, path+torn); err != nil {
		return v, false, fmt.Errorf("set a damaged record aside: %w", err)
	}
	return v, false, fmt.Errorf("a record is %w, and kept as %s: %w", ErrTorn, path+torn, why)
}

// list reads all files of a directory. What is damaged is in the error, and the others are read all the same.
func list[T any](dir string, decode func([]byte) (T, error)) (values []T, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		v, there, err := load(filepath.Join(dir, e.Name()), decode)
		if there {
			values = append(values, v)
		}
		errs = append(errs, err)
	}
	return values, errors.Join(errs...)
}

// save replaces a file. When it returns nil the content is on disk, whatever happens to the power; when it fails the old one is there still.
func save(path string, v any) (err error) {
	text, err := encode(v)
	if err != nil {
		return err
	}
	next := path + ".new"
	defer func() {
		if err != nil {
			_ = os.Remove(next)
		}
	}()
	f, err := os.OpenFile(next, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(next, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// remove is for files that may not be there.
func remove(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
