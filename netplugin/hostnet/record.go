package hostnet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// RecordPath returns the path of the file that netplugin writes to its state directory when it has set up the host's
// network. The file has the numbers.
func RecordPath(stateDir string) string { return filepath.Join(stateDir, "host-network") }

// recordFormat is that of the numbers in the record.
const recordFormat = "table %d, first priority %d\n"

// ReadRecord reads the record of a state directory. ok is false if there is none; n is zero if no version can have
// written it. Numbers of an earlier version may fail Check.
func ReadRecord(stateDir string) (n Numbers, ok bool, err error) {
	data, err := os.ReadFile(RecordPath(stateDir))
	if errors.Is(err, os.ErrNotExist) {
		return n, false, nil
	}
	if err != nil {
		return n, false, fmt.Errorf("read the numbers of the host's network: %w", err)
	}
	if _, err := fmt.Sscanf(string(data), recordFormat, &n.Table, &n.Priority); err == nil && n.mayBeEarlier() {
		return n, true, nil
	}
	return Numbers{}, true, nil
}

// WriteRecord writes the record, if it has other numbers.
func WriteRecord(stateDir string, n Numbers) error {
	if have, ok, err := ReadRecord(stateDir); err == nil && ok && have == n {
		return nil
	}
	path := RecordPath(stateDir)
	next, data := path+".next", fmt.Appendf(nil, recordFormat, n.Table, n.Priority)
	err := os.WriteFile(next, data, 0o600)
	if err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		return fmt.Errorf("record the numbers of the host's network: %w", err)
	}
	return nil
}
