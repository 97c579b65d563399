package schema

import (
	"errors"
	"io/fs"
	"os"
	"time"

	bolt "go.etcd.io/bbolt"
)

// openTimeout is how long Open waits for another process that has the file open.
const openTimeout = 2 * time.Second

// Open opens or creates a file for writing. It writes to no file that exists, and does not open such a file with
// O_CREATE: both wait for a disk that hangs (O_CREATE before Linux 6.12). A file that was not there before stays only
// if it is whole.
func Open(path string) (*bolt.DB, error) {
	_, err := os.Lstat(path)
	absent := errors.Is(err, fs.ErrNotExist)
	db, err := bolt.Open(path, 0o600, &bolt.Options{
		Timeout: openTimeout,
		OpenFile: func(path string, flag int, mode os.FileMode) (*os.File, error) {
			if !absent {
				flag &^= os.O_CREATE
			}
			return os.OpenFile(path, flag, mode)
		},
	})
	if err != nil && absent {
		_ = os.Remove(path)
	}
	return db, err
}

// OpenReadOnly opens a file for reading, also on a read-only file system.
func OpenReadOnly(path string) (*bolt.DB, error) {
	return bolt.Open(path, 0o600, &bolt.Options{Timeout: openTimeout, ReadOnly: true})
}
