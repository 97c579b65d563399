package lldp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// mostRecord is the size of the largest record that is read, in bytes.
const mostRecord = 16 << 20

// readRecord returns the recorded neighbours by name of the port. A record that cannot be read is empty: neighbours
// send again soon.
func readRecord(path string) map[string][]Heard {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, mostRecord+1))
	var known map[string][]Heard
	if err != nil || len(raw) > mostRecord || json.Unmarshal(raw, &known) != nil {
		return nil
	}
	return known
}

// writeRecord replaces the record; at "" there is none.
func writeRecord(path string, known map[string][]Heard) error {
	if path == "" {
		return nil
	}
	raw, err := json.Marshal(known)
	if err != nil {
		return fmt.Errorf("write the record of neighbours: %w", err)
	}
	next := path + ".new"
	if err := errors.Join(os.WriteFile(next, raw, 0o600), os.Rename(next, path)); err != nil {
		return fmt.Errorf("write the record of neighbours: %w", err)
	}
	return nil
}
