package services

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/flowkeep/flowkeep/internal/schema"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// layout is that of the file. A file of a schema that is further away is set aside: netmaster sends all of it.
var layout = schema.Layout{Writes: 1}

var bucketSet = []byte("set") // key → value

// file is the keyed set of Services on disk, as it was after some delta.
type file struct {
	path string
	db   *bolt.DB // nil: the system refuses to open it
}

// load opens the file and returns its content. A file that cannot be read is renamed to NAME.corrupt-TIME, and returned
// in setAside. Where the system refuses to open it, as on a full disk, it is empty, and save tries again.
func (f *file) load() (values map[string][]byte, setAside string, err error) {
	if values, err = f.tryLoad(); err == nil || schema.Refused(err) != nil {
		return values, "", nil //nolint:nilerr // save reports it
	}
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, "", fmt.Errorf("%s is in use: is another netplugin running on this node?", f.path)
	}
	aside := fmt.Sprintf("%s.corrupt-%s", f.path, time.Now().UTC().Format("20060102T150405.000"))
	setAside = fmt.Sprintf("%s: %v; kept as %s", f.path, err, aside)
	if err := os.Rename(f.path, aside); err != nil {
		return nil, setAside, nil //nolint:nilerr // the disk refuses: save reports it
	}
	values, err = f.tryLoad()
	if schema.Refused(err) != nil {
		err = nil
	}
	return values, setAside, err
}

func (f *file) tryLoad() (values map[string][]byte, err error) {
	defer func() { // bbolt panics on some broken pages
		if p := recover(); p != nil {
			err = fmt.Errorf("open %s: %v", f.path, p)
		}
	}()
	if err := f.open(); err != nil {
		return nil, err
	}
	values = map[string][]byte{}
	err = f.db.View(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketSet).ForEach(func(k, v []byte) error {
			values[string(k)] = append([]byte{}, v...)
			return nil
		})
	})
	if err != nil {
		_ = f.close()
	}
	return values, err
}

func (f *file) open() error {
	if f.db != nil {
		return nil
	}
	db, err := schema.Open(f.path)
	if err != nil {
		return err
	}
	if err := settle(db); err != nil {
		return errors.Join(err, db.Close())
	}
	f.db = db
	return nil
}

// settle writes only to a file that needs it: a start writes nothing on a disk that is full.
func settle(db *bolt.DB) error {
	current := false
	err := db.View(func(tx *bolt.Tx) error {
		have, err := schema.Of(tx)
		current = err == nil && have == layout.Writes && tx.Bucket(bucketSet) != nil
		return err
	})
	if err != nil || current {
		return err
	}
	return db.Update(func(tx *bolt.Tx) error {
		if err := layout.Settle(tx); err != nil {
			return err
		}
		_, err := tx.CreateBucketIfNotExists(bucketSet)
		return err
	})
}

// save writes values in one transaction; nil: they are gone.
func (f *file) save(changes map[string][]byte) error {
	if err := f.open(); err != nil {
		return err
	}
	return f.db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketSet)
		for key, value := range changes {
			var err error
			if value == nil {
				err = b.Delete([]byte(key))
			} else {
				err = b.Put([]byte(key), value)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (f *file) close() error {
	if f.db == nil {
		return nil
	}
	db := f.db
	f.db = nil
	return db.Close()
}
