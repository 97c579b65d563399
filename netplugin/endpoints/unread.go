package endpoints

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"time"
)

// unreadFiles are paths of files that the disk did not give, with container and interface if known. The zero value is
// ready for use.
type unreadFiles struct {
	mu   sync.Mutex
	keys map[string]string
}

func (u *unreadFiles) add(path, key string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.keys == nil {
		u.keys = map[string]string{}
	}
	u.keys[path] = key
}

// remove removes a path, and reports whether it was there.
func (u *unreadFiles) remove(path string) (key string, was bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	key, was = u.keys[path]
	delete(u.keys, path)
	return key, was
}

func (u *unreadFiles) has(path string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, has := u.keys[path]
	return has
}

// hasNameless reports whether there is a file of an unknown interface: any address may be its pod's.
func (u *unreadFiles) hasNameless() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, key := range u.keys {
		if key == "" {
			return true
		}
	}
	return false
}

func (u *unreadFiles) paths() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Collect(maps.Keys(u.keys))
}

// reader reads the files of endpoints.
type reader struct{ *Manager }

// load reads the directory at the start.
func (m reader) load() error {
	list, err := m.files.load()
	if err != nil {
		return err
	}
	for i := range list {
		m.take(&list[i])
	}
	return nil
}

// take makes a file's endpoint known. One that the disk did not give is known by its name: its pod may run.
func (m reader) take(f *loaded) {
	if errors.Is(f.unread, fs.ErrNotExist) {
		return
	}
	if f.corrupt {
		m.cfg.Logger.Error("an endpoint's file is unreadable; its pod stays closed until it is recreated",
			"file", f.path+".corrupt")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	key := ""
	if f.endpoint != nil {
		key = keyOf(f.endpoint.ContainerID, f.endpoint.IfName)
		m.endpoints[key] = f.endpoint
		m.order = max(m.order, f.endpoint.Order)
	}
	if f.unread != nil {
		m.cfg.Logger.Error("an endpoint's file could not be read; its pod is kept and closed until it is",
			"file", f.path, "error", f.unread)
		m.unread.add(f.path, key)
	}
}

// reopenTimeout bounds the wait until a pod's rules are in force once its file was read; it is opened later otherwise.
const reopenTimeout = 5 * time.Second

// readAgain reads the files that the disk did not give, and opens the pods of those that it gives now.
func (m reader) readAgain(ctx context.Context) {
	for _, path := range m.unread.paths() {
		m.readOne(ctx, path)
	}
}

func (m reader) readOne(ctx context.Context, path string) {
	f := m.files.read(path)
	if f.unread != nil && !errors.Is(f.unread, fs.ErrNotExist) {
		return
	}
	container := ""
	if f.endpoint != nil {
		container = f.endpoint.ContainerID
	}
	unlock, err := m.locks.lock(ctx, container)
	if err != nil {
		return
	}
	defer unlock()
	key, still := m.unread.remove(path)
	if still && f.unread != nil { // it is gone
		m.mu.Lock()
		delete(m.endpoints, key)
		m.mu.Unlock()
	}
	if !still || f.unread != nil { // a request has replaced or removed it
		return
	}
	m.take(&f)
	if e := f.endpoint; e != nil && e.Realised && Latest(m.List())[e.ID()].ContainerID == container && !linkGone(e) {
		m.reopen(ctx, e)
	}
}

// reopen puts a pod's rules in force, and opens its port.
func (m reader) reopen(ctx context.Context, e *Endpoint) {
	ctx, cancel := context.WithTimeout(ctx, reopenTimeout)
	defer cancel()
	port, err := m.cfg.Switch.EnsurePort(ctx, e.HostIfName, e)
	if err == nil {
		again := *e
		again.Port = port
		err = m.cfg.Realizer.Realize(ctx, again)
	}
	if err != nil {
		m.cfg.Logger.Warn("could not open the port of a pod after reading its file", "pod", e.ID(), "error", err)
		return
	}
	m.cfg.Logger.Info("opened the port of a pod after reading its file", "pod", e.ID())
}
