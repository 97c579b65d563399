package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/internal/schema"
	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// layout is the file's. One of a schema that is further away is not touched: see ErrNewer.
var layout = schema.Layout{Writes: 1}

var (
	bucketMeta       = []byte("meta")
	bucketNamespaces = []byte("namespaces")
	bucketEndpoints  = []byte("endpoints")
	bucketPolicies   = []byte("policies")
	bucketRules      = []byte("rules")
	bucketGroups     = []byte("groups") // key → bucket of addresses
	bucketNodes      = []byte("nodes")
	bucketAnnounced  = []byte("announced")
	bucketState      = []byte("state")
	// buckets are all but meta, which holds the schema and the checksums of the others.
	buckets = [][]byte{bucketNamespaces, bucketEndpoints, bucketPolicies, bucketRules, bucketGroups, bucketNodes,
		bucketAnnounced, bucketState}

	keySums     = []byte("sums")
	keyRevision = []byte("revision")
	keyInfos    = []byte("infos")
)

// ErrNewer is returned for a file that a newer netmaster than the next one wrote.
var ErrNewer = errors.New(
	"a newer netmaster wrote this policy DB: start that one, or move the file away to rebuild it from the API server")

// openOrSetAside moves only a file away that was read and made no sense; what the system refuses is an error.
func openOrSetAside(path string, layout *schema.Layout) (db *bolt.DB, c *Contents, aside string, err error) {
	db, c, err = tryOpen(path, layout)
	refused := schema.Refused(err)
	switch {
	case err == nil:
		return db, c, "", nil
	case errors.Is(err, ErrNewer):
		return nil, nil, "", fmt.Errorf("%s: %w", path, err)
	case errors.Is(err, berrors.ErrTimeout):
		return nil, nil, "", fmt.Errorf("%s is in use: does another netmaster run with this --state-dir?", path)
	case refused != nil:
		return nil, nil, "",
			fmt.Errorf("open the policy DB: %w (give another directory with --state-dir, or make this one usable)",
				refused)
	}
	kept := path + ".corrupt-" + time.Now().UTC().Format("20060102T150405.000000")
	if renamed := os.Rename(path, kept); renamed != nil {
		return nil, nil, "", errors.Join(err, renamed)
	}
	forgetOldest(path)
	aside = fmt.Sprintf("the policy DB %s could not be read (%v): it was set aside as %s and a new one created", path,
		err, kept)
	db, c, err = tryOpen(path, layout)
	return db, c, aside, err
}

// maxKept is how many broken files are kept for analysis.
const maxKept = 3

func forgetOldest(path string) {
	kept, _ := filepath.Glob(path + ".corrupt-*")
	slices.Sort(kept)
	for len(kept) > maxKept {
		_ = os.Remove(kept[0])
		kept = kept[1:]
	}
}

func tryOpen(path string, layout *schema.Layout) (db *bolt.DB, c *Contents, err error) {
	defer guard(&err)()
	db, err = bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second, FreelistType: bolt.FreelistMapType})
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			closeQuietly(db)
		}
	}()
	have, err := schemaOf(db, layout)
	if err == nil && have == 0 {
		err = create(db, layout)
	}
	if err == nil {
		err = checkLength(db)
	}
	if err == nil && have != 0 && have != layout.Writes {
		err = migrate(db, layout)
	}
	if err == nil {
		c, err = load(db)
	}
	if err == nil {
		err = checkPages(db)
	}
	return db, c, err
}

// schemaOf returns the schema version of the file, which this netmaster can migrate to its own, or 0 for a new file.
// It writes nothing.
func schemaOf(db *bolt.DB, layout *schema.Layout) (have int, err error) {
	defer guard(&err)()
	err = db.View(func(tx *bolt.Tx) (err error) {
		if k, _ := tx.Cursor().First(); k == nil {
			return nil
		}
		if have, err = schema.Of(tx); err != nil {
			return err
		}
		if have == 0 {
			return errors.New("not a policy DB")
		}
		far, is := errors.AsType[*schema.FarError](layout.Reads(have))
		switch {
		case is && far.Newer:
			return fmt.Errorf("%w (%w)", ErrNewer, far)
		case is:
			return far
		}
		return nil
	})
	return have, err
}

func create(db *bolt.DB, layout *schema.Layout) error {
	return db.Update(func(tx *bolt.Tx) error {
		for _, name := range buckets {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		return layout.Settle(tx)
	})
}

// migrate brings a file of a neighbouring schema to this netmaster's, in one transaction, if it is as it was written.
func migrate(db *bolt.DB, layout *schema.Layout) (err error) {
	defer guard(&err)()
	if err := checkPages(db); err != nil {
		return err
	}
	return db.Update(func(tx *bolt.Tx) error {
		want, err := readSums(tx)
		if err == nil {
			err = want.differ(sumAll(tx))
		}
		if err == nil {
			err = layout.Settle(tx)
		}
		if err != nil {
			return err
		}
		text, err := json.Marshal(sumAll(tx))
		if err != nil {
			return err
		}
		return tx.Bucket(bucketMeta).Put(keySums, text)
	})
}

// checkLength holds the file's length against its pages: beyond the end there is no memory to look at.
func checkLength(db *bolt.DB) (err error) {
	defer guard(&err)()
	return db.View(func(tx *bolt.Tx) error {
		info, err := os.Stat(db.Path())
		if err != nil {
			return err
		}
		if info.Size() < tx.Size() {
			return fmt.Errorf("truncated: %d bytes of %d", info.Size(), tx.Size())
		}
		return nil
	})
}

// checkPages finds pages that are lost or used twice: writing would overwrite others. It runs in a goroutine of
// bbolt's, so it comes after load, which has walked the pages where a fault can be caught.
func checkPages(db *bolt.DB) (err error) {
	defer guard(&err)()
	return db.View(func(tx *bolt.Tx) error {
		var first error
		for err := range tx.Check() {
			if first == nil {
				first = err
			}
		}
		return first
	})
}

func closeQuietly(db *bolt.DB) {
	var err error
	defer guard(&err)()
	_ = db.Close()
}

// guard turns bbolt's panics on broken pages, and faults of reading beyond the end of the file, into errors. Use:
// defer guard(&err)().
func guard(err *error) func() {
	before := debug.SetPanicOnFault(true)
	return func() {
		debug.SetPanicOnFault(before)
		if p := recover(); p != nil {
			*err = fmt.Errorf("it is broken: %v", p)
		}
	}
}
