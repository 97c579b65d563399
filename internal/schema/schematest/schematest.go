// Package schematest has a next version for tests: one in whose schema a bucket has another name, and its entries
// other keys and values.
package schematest

import (
	"bytes"
	"cmp"
	"encoding"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/schema"
	bolt "go.etcd.io/bbolt"
)

// mark begins keys and values in the next schema.
var mark = []byte("next ")

// Versions returns two layouts: a program that writes schema n and reads n+1, and the next version, which writes n+1
// and reads n.
func Versions(n int, bucket string) (now, next schema.Layout) {
	from, to := []byte(bucket), []byte("next "+bucket)
	up := func(b []byte) ([]byte, error) { return append(bytes.Clone(mark), b...), nil }
	down := func(b []byte) ([]byte, error) {
		rest, ok := bytes.CutPrefix(b, mark)
		if !ok {
			return nil, fmt.Errorf("%q is of no next version", b)
		}
		return bytes.Clone(rest), nil
	}
	return schema.Layout{Writes: n, After: move(to, from, down)}, schema.Layout{Writes: n + 1,
		Before: move(from, to, up)}
}

func move(from, to []byte, change func([]byte) ([]byte, error)) func(*bolt.Tx) error {
	return func(tx *bolt.Tx) error {
		old := tx.Bucket(from)
		if old == nil {
			return fmt.Errorf("%s are missing", from)
		}
		fresh, err := tx.CreateBucket(to)
		if err != nil {
			return err
		}
		if err := copyChanged(fresh, old, change); err != nil {
			return err
		}
		return tx.DeleteBucket(from)
	}
}

func copyChanged(to, from *bolt.Bucket, change func([]byte) ([]byte, error)) error {
	return from.ForEach(func(k, v []byte) error {
		key, err := change(k)
		if err != nil {
			return err
		}
		if nested := from.Bucket(k); nested != nil {
			fresh, err := to.CreateBucket(key)
			if err != nil {
				return err
			}
			return copyChanged(fresh, nested, change)
		}
		value, err := change(v)
		if err != nil {
			return err
		}
		return to.Put(key, value)
	})
}

// Settle migrates a file to a program's schema, as opening it does.
func Settle(t testing.TB, path string, by schema.Layout) {
	t.Helper()
	db := open(t, path)
	defer db.Close()
	if err := db.Update(by.Settle); err != nil {
		t.Fatal(err)
	}
}

// Claim sets the schema version of a file to one that it does not have.
func Claim(t testing.TB, path string, n string) {
	t.Helper()
	db := open(t, path)
	defer db.Close()
	if err := db.Update(
		func(tx *bolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("schema"), []byte(n)) }); err != nil {
		t.Fatal(err)
	}
}

// Contents returns a file's whole content as text; the file must not be open elsewhere.
func Contents(t testing.TB, path string) string {
	t.Helper()
	db := open(t, path)
	defer db.Close()
	var out bytes.Buffer
	err := db.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			fmt.Fprintf(&out, "%q\n", name)
			return write(&out, "  ", b)
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func write(out *bytes.Buffer, indent string, b *bolt.Bucket) error {
	return b.ForEach(func(k, v []byte) error {
		fmt.Fprintf(out, "%s%q: %q\n", indent, k, v)
		if nested := b.Bucket(k); nested != nil {
			return write(out, indent+"  ", nested)
		}
		return nil
	})
}

// SetAside returns the files that were moved aside from a path.
func SetAside(t testing.TB, path string) []string {
	t.Helper()
	list, err := filepath.Glob(path + ".corrupt-*")
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func open(t testing.TB, path string) *bolt.DB {
	t.Helper()
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// Shape returns the JSON form of a type: the names and types of its fields, recursively. A test that pins it fails
// when a stored type changes, so that the author considers the previous version, which ignores unknown fields.
func Shape(of any) string {
	return shape(reflect.TypeOf(of), map[reflect.Type]bool{})
}

func shape(t reflect.Type, within map[reflect.Type]bool) string {
	text := reflect.TypeFor[encoding.TextMarshaler]()
	switch {
	case t.Implements(text) || reflect.PointerTo(t).Implements(text):
		return "text"
	case within[t]:
		return "again"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return shape(t.Elem(), within)
	case reflect.Slice, reflect.Array:
		return "[" + shape(t.Elem(), within) + "]"
	case reflect.Map:
		return "map[" + shape(t.Key(), within) + " " + shape(t.Elem(), within) + "]"
	case reflect.Struct:
		within[t] = true
		defer delete(within, t)
		return "{" + strings.Join(fields(t, within), " ") + "}"
	}
	return t.Kind().String()
}

func fields(t reflect.Type, within map[reflect.Type]bool) (list []string) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
		case f.Anonymous && name == "":
			list = append(list, fields(f.Type, within)...)
		default:
			list = append(list, cmp.Or(name, f.Name)+":"+shape(f.Type, within))
		}
	}
	return list
}
