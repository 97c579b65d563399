package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// markName is the name of the staleMark in the directory of the CNI socket.
const markName = "rules.stale"

// markPath returns the path of the staleMark. /run, the usual place, is in memory: a file can be made there while the
// disk of the state directory is full, read-only or hangs. It outlives netplugin, but not the node's pods.
func markPath(cfg *Config) string {
	if cfg.CNISocket == "" {
		return filepath.Join(cfg.StateDir, markName)
	}
	return filepath.Join(filepath.Dir(cfg.CNISocket), markName)
}

// staleMark is a file that exists while rules.db may miss changes that are in the switch. A netplugin that finds it at
// its start leaves the switch's flows as they are until netmaster has sent the rules.
type staleMark struct {
	path   string
	exists bool
	held   marked
}

// marked is the content of a staleMark: what a restart needs to know that rules.db may not have.
type marked struct {
	Epoch    uint64 `json:"epoch"`
	Revision uint64 `json:"revision"`
}

// readMark reports whether the mark exists. One without content, or one that cannot be read, counts as well.
func readMark(path string) (m staleMark) {
	m.path = path
	text, err := os.ReadFile(path)
	if m.exists = !errors.Is(err, fs.ErrNotExist); err == nil {
		_ = json.Unmarshal(text, &m.held) // empty where there was no room
	}
	return m
}

// try returns why the mark could not be set; nil: it exists, or it could be.
func (m *staleMark) try() error {
	if m.exists {
		return nil
	}
	next := m.path + ".new"
	f, err := os.OpenFile(next, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("try to mark the rule set on disk as stale: %w", err)
	}
	return errors.Join(f.Close(), os.Remove(next))
}

// set makes the file, or replaces its content. Where there is no room for the content, the file alone has to do.
func (m *staleMark) set(v marked) error {
	if m.exists && m.held == v {
		return nil
	}
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	next := m.path + ".new"
	if err = errors.Join(os.WriteFile(next, text, 0o600), os.Rename(next, m.path)); err == nil {
		m.exists, m.held = true, v
		return nil
	}
	if m.exists {
		return nil
	}
	f, err := os.OpenFile(m.path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("mark the rule set on disk as stale: %w", err)
	}
	m.exists = true
	return f.Close()
}

// remove removes the file. One that stays only has the next start wait for netmaster.
func (m *staleMark) remove() error {
	if !m.exists {
		return nil
	}
	if err := os.Remove(m.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the mark of a stale rule set: %w", err)
	}
	m.exists = false
	return nil
}
