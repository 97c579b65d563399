package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/macvtap"
	"golang.org/x/sys/unix"
)

// Intent is what the API server says that a node should expose.
type Intent struct {
	Policies []macvtap.Policy
	Labels   map[string]string
	// Absent: the API server knows of no such policies at all, as one that has just started, or has not had the CRDs applied.
	Absent bool `json:"-"`
}

// memory is what a start without the API server, or with a broken configuration, goes by.
type memory struct {
	Intent *Intent                `json:"intent,omitempty"` // nil: it was never known
	Config string                 `json:"config,omitempty"` // the last good one
	Known  map[string][]string    `json:"known,omitempty"`  // resources' parents exposed before
	Missed map[string]missedSince `json:"missed,omitempty"` // parents among them that are not there
}

// missedSince is by parent.
type missedSince map[string]time.Time

const memoryFile = "agent.json"

// load reads what was kept; nothing was, or it is damaged, means that nothing is known.
func load(dir string) (m memory, err error) {
	text, err := os.ReadFile(filepath.Join(dir, memoryFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return m, nil
	case err != nil:
		return m, fmt.Errorf("read what was last known: %w", err)
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return memory{}, fmt.Errorf("what was last known is damaged, and forgotten: %w", err)
	}
	return m, nil
}

// claim has the directory be this process's until release is called: two agents on a node would take each other's sockets away, and write two
// memories over each other. It does not wait.
func claim(dir string) (release func(), err error) {
	lock, err := os.OpenFile(filepath.Join(dir, "agent.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another netplugin macvtap uses %s: one a node", dir)
		}
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	return func() { lock.Close() }, nil
}

// save is whole or not at all, also when the machine goes down.
func save(dir string, m memory) (err error) {
	text, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("write the memory: %w", err)
	}
	next := filepath.Join(dir, memoryFile+".new") // what a process left there that died is written over
	f, err := os.OpenFile(next, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write the memory: %w", err)
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(next, filepath.Join(dir, memoryFile))
	}
	if err != nil {
		return fmt.Errorf("write the memory: %w", errors.Join(err, os.Remove(next)))
	}
	return nil
}

// missedFor is how long a parent that vanished and of which no pod holds a device stays, unhealthy: one that is made again within that time
// has never been away, as far as the kubelet knows.
const missedFor = 10 * time.Minute

// remember what is exposed now. held reports whether a pod holds a device of a resource's parent.
func (m memory) remember(e macvtap.Exposure, links []macvtap.Link, held func(resource, parent string) bool, now time.Time) memory {
	there := map[string]bool{}
	for _, l := range links {
		there[l.Name] = true
	}
	known, missed := map[string][]string{}, map[string]missedSince{}
	for _, r := range e.Resources {
		for _, p := range r.Parents {
			since, missing := m.Missed[r.Name][p.Link]
			switch {
			case there[p.Link]:
				known[r.Name] = append(known[r.Name], p.Link)
				continue
			case !missing:
				since = now
			case now.Sub(since) >= missedFor && !held(r.Name, p.Link):
				continue
			}
			if missed[r.Name] == nil {
				missed[r.Name] = missedSince{}
			}
			known[r.Name], missed[r.Name][p.Link] = append(known[r.Name], p.Link), since
		}
	}
	m.Known, m.Missed = known, missed
	return m
}

// forgetAt is when a parent may be forgotten next; zero: never.
func (m memory) forgetAt() (at time.Time) {
	for _, parents := range m.Missed {
		for _, since := range parents {
			if end := since.Add(missedFor); at.IsZero() || end.Before(at) {
				at = end
			}
		}
	}
	return at
}

func sameKnown(a, b memory) bool {
	return maps.EqualFunc(a.Known, b.Known, slices.Equal) &&
		maps.EqualFunc(a.Missed, b.Missed, func(x, y missedSince) bool { return maps.EqualFunc(x, y, time.Time.Equal) })
}
