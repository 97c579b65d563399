package nodestate

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// EntryState is how far a change in the journal has come.
type EntryState string

// An entry is open from before the first change to the node until the change is committed or rolled back. One that
// was rolled back stays until the object's status has it.
const (
	EntryOpen       EntryState = "open"
	EntryRolledBack EntryState = "rolled-back"
)

// Entry is the journal's one entry: a change that is under way, or one that was rolled back and is not reported yet.
type Entry struct {
	State      EntryState `json:"state"`
	Change     Change     `json:"change"`
	UID        string     `json:"uid,omitempty"` // of the object whose desire it is
	Desire     string     `json:"desire,omitempty"`
	Generation int64      `json:"generation,omitempty"`
	Boot       string     `json:"boot,omitempty"` // of the node: a change of an earlier one is gone with it
	Started    time.Time  `json:"started"`
	Message    string     `json:"message,omitempty"` // why it was rolled back
}

// ErrTorn is of a journal that holds no whole entry. As an entry is on disk before its change begins, a torn one has changed nothing.
var ErrTorn = errors.New("the journal is damaged")

// maxEntry is the size of the largest entry that is read, in bytes.
const maxEntry = 64 << 20

// Journal is a directory that keeps at most one Entry, so that it outlives the process. It is for one goroutine, and by a lock on the
// directory for one process.
type Journal struct {
	dir  string
	lock *os.File
}

// OpenJournal creates the directory, if needed, and locks it until Close. It does not wait for the lock.
func OpenJournal(dir string) (*Journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("another node-state agent uses %s: one a node (stop it, or give this one another --state-dir if it is for another network namespace)", dir)
		}
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	return &Journal{dir: dir, lock: lock}, nil
}

// Close releases the journal's lock, so that another process can open it.
func (j *Journal) Close() error { return j.lock.Close() }

func (j *Journal) path() string { return filepath.Join(j.dir, "change.json") }

// Write replaces the entry. When it returns nil the entry is on disk, whatever happens to the power.
func (j *Journal) Write(e Entry) error {
	text, err := encodeEntry(e)
	if err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	next := j.path() + ".new"
	if err := writeSynced(next, text); err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	if err := os.Rename(next, j.path()); err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	return j.sync("write the journal")
}

// Clear removes the entry; there may be none.
func (j *Journal) Clear() error {
	if err := os.Remove(j.path()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("clear the journal: %w", err)
	}
	return j.sync("clear the journal")
}

// Read is the entry, or nil. One that is torn is set aside, as change.json.torn, and is ErrTorn once.
func (j *Journal) Read() (*Entry, error) {
	info, err := os.Stat(j.path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	if info.Size() > maxEntry {
		return nil, j.setAside(fmt.Errorf("it has %d bytes", info.Size()))
	}
	text, err := os.ReadFile(j.path())
	if err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	e, err := decodeEntry(text)
	if err != nil {
		return nil, j.setAside(err)
	}
	return &e, nil
}

func (j *Journal) setAside(why error) error {
	aside := j.path() + ".torn"
	if err := os.Rename(j.path(), aside); err != nil {
		return fmt.Errorf("set the damaged journal aside: %w", err)
	}
	return fmt.Errorf("%w, and kept as %s: %w", ErrTorn, aside, why)
}

func (j *Journal) sync(what string) error {
	dir, err := os.Open(j.dir)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func writeSynced(path string, text []byte) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Write(text); err != nil {
		return err
	}
	return f.Sync()
}

// An entry in the file is a line with the SHA-256 of the rest, in hex, and the rest: JSON.
func encodeEntry(e Entry) ([]byte, error) {
	body, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	return fmt.Appendf(nil, "%x\n%s", sum, body), nil
}

func decodeEntry(text []byte) (Entry, error) {
	sum, body, found := bytes.Cut(text, []byte("\n"))
	if !found {
		return Entry{}, errors.New("it has no second line")
	}
	if want := sha256.Sum256(body); hex.EncodeToString(want[:]) != string(sum) {
		return Entry{}, errors.New("its checksum is another")
	}
	var e Entry
	if err := json.Unmarshal(body, &e); err != nil {
		return Entry{}, err
	}
	if e.State != EntryOpen && e.State != EntryRolledBack {
		return Entry{}, fmt.Errorf("its state is %q", e.State)
	}
	return e, nil
}
