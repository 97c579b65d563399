// Package schema keeps a bbolt file readable to the version before and the version after the one that wrote it.
// Readers come one version before writers: a program that writes schema n may know how n+1 becomes n, and must know
// how n-1 becomes n, so that by one version up or down no file is set aside. docs/decisions/021 has the rule, and
// defines a schema.
package schema

import (
	"fmt"
	"strconv"

	bolt "go.etcd.io/bbolt"
)

// Places of the schema's number in a file.
var (
	bucket = []byte("meta")
	key    = []byte("schema")
)

// Layout is what a program knows of a file's schemas. It is safe for concurrent use.
type Layout struct {
	// Writes is the schema that the program writes, from 1 on.
	Writes int
	// Before leads to Writes from the schema before; After leads back to it from the one after. Each changes the
	// content in a transaction, but not the recorded schema. nil: there is no such schema, or no conversion.
	Before, After func(*bolt.Tx) error
}

// FarError is of a schema from which no step leads to the one that the program writes.
type FarError struct {
	Have, Writes int
	// Newer: a later version than the one after wrote it; else an earlier one than the one before.
	Newer bool
}

func (e *FarError) Error() string {
	if e.Newer {
		return fmt.Sprintf(
			"schema %d is of a newer version than the next: this one writes %d; upgrade and downgrade by one version at a time", e.Have, e.Writes)
	}
	return fmt.Sprintf(
		"schema %d is of an older version than the one before: this one writes %d; upgrade and downgrade by one version at a time", e.Have, e.Writes)
}

// Of returns the schema version in a file, or 0 for a new file.
func Of(tx *bolt.Tx) (int, error) {
	meta := tx.Bucket(bucket)
	if meta == nil {
		return 0, nil
	}
	text := meta.Get(key)
	if text == nil {
		return 0, nil
	}
	have, err := strconv.Atoi(string(text))
	if err != nil || have < 1 || strconv.Itoa(have) != string(text) {
		return 0, fmt.Errorf("schema %.40q is none", text)
	}
	return have, nil
}

// step returns the migration from a schema to the one that the program writes, or nil if none is needed.
func (l *Layout) step(have int) (func(*bolt.Tx) error, error) {
	switch {
	case have == l.Writes:
		return nil, nil
	case have == l.Writes-1 && l.Before != nil:
		return l.Before, nil
	case have == l.Writes+1 && l.After != nil:
		return l.After, nil
	}
	return nil, &FarError{Have: have, Writes: l.Writes, Newer: have > l.Writes}
}

// Reads fails with a FarError on a schema that the program cannot bring to its own.
func (l *Layout) Reads(have int) error {
	_, err := l.step(have)
	return err
}

// Settle gives a file the schema that the program writes: it records the schema in a new file, and converts a file of
// the schema before or after. Call it in the transaction that opens the file: a crash then leaves the file as it was.
func (l *Layout) Settle(tx *bolt.Tx) error {
	have, err := Of(tx)
	if err != nil {
		return err
	}
	if have != 0 {
		step, err := l.step(have)
		if err != nil || step == nil {
			return err
		}
		if err := step(tx); err != nil {
			return fmt.Errorf("from schema %d to %d: %w", have, l.Writes, err)
		}
	}
	meta, err := tx.CreateBucketIfNotExists(bucket)
	if err != nil {
		return err
	}
	return meta.Put(key, []byte(strconv.Itoa(l.Writes)))
}
