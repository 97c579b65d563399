package cni

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// ReadyFile is a file in the socket's directory. Its modification time is the last time at which STATUS found netplugin
// ready.
const ReadyFile = "ready"

// NoteReady records that STATUS found netplugin ready.
func NoteReady(socket string) error {
	if err := os.WriteFile(filepath.Join(filepath.Dir(socket), ReadyFile), nil, 0o600); err != nil {
		return fmt.Errorf("record the success of STATUS: %w", err)
	}
	return nil
}

// WasReady reports whether STATUS found netplugin ready within a time. It never did where the clock was set back.
func WasReady(socket string, within time.Duration) bool {
	info, err := os.Stat(filepath.Join(filepath.Dir(socket), ReadyFile))
	if err != nil {
		return false
	}
	age := time.Since(info.ModTime())
	return age >= 0 && age < within
}
