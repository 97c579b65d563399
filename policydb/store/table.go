package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc64"

	bolt "go.etcd.io/bbolt"
)

// sums has a checksum for each bucket: the XOR over its entries of a hash of key and value. It is cheap to maintain
// and detects entries that were changed, lost or added outside of netmaster. bbolt does not detect these.
type sums map[string]uint64

var crcTable = crc64.MakeTable(crc64.ECMA)

func sumOf(parts ...[]byte) uint64 {
	var sum uint64
	for _, p := range parts {
		sum = crc64.Update(sum, crcTable, p)
		sum = crc64.Update(sum, crcTable, []byte{0xff, byte(len(p)), byte(len(p) >> 8), byte(len(p) >> 16)})
	}
	return sum
}

func readSums(tx *bolt.Tx) (sums, error) {
	out := sums{}
	text := tx.Bucket(bucketMeta).Get(keySums)
	if text == nil {
		return out, nil
	}
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, fmt.Errorf("checksums: %w", err)
	}
	return out, nil
}

// differ fails unless both say the same of all buckets; one without entries has 0.
func (s sums) differ(found sums) error {
	for _, of := range []sums{s, found} {
		for name := range of {
			if s[name] != found[name] {
				return fmt.Errorf("the checksum of the %s is wrong", name)
			}
		}
	}
	return nil
}

// sumAll returns the checksums of all buckets but meta, in any schema.
func sumAll(tx *bolt.Tx) sums {
	out := sums{}
	_ = tx.ForEach(func(name []byte, b *bolt.Bucket) error {
		if !bytes.Equal(name, bucketMeta) {
			(&table{b: b, name: string(name), sums: out}).countAll()
		}
		return nil
	})
	return out
}

// countAll counts the table's entries, and those of the buckets in it.
func (t *table) countAll() {
	_ = t.b.ForEach(func(k, v []byte) error {
		t.count(k, v)
		if b := t.b.Bucket(k); v == nil && b != nil {
			(&table{b: b, prefix: k, name: t.name, sums: t.sums}).countAll()
		}
		return nil
	})
}

// table is a bucket, or a bucket in one, with its checksum.
type table struct {
	b      *bolt.Bucket
	prefix []byte
	name   string
	sums   sums
	isNew  bool // and no key is put twice
}

func (s sums) table(tx *bolt.Tx, name []byte) *table {
	return &table{b: tx.Bucket(name), name: string(name), sums: s}
}

func (t *table) count(key, value []byte) { t.sums[t.name] ^= sumOf(t.prefix, key, value) }

// put writes nothing if that is already there.
func (t *table) put(key, value []byte) error {
	var old []byte
	if !t.isNew {
		old = t.b.Get(key)
	}
	if old != nil && bytes.Equal(old, value) {
		return nil
	}
	if old != nil {
		t.count(key, old)
	}
	t.count(key, value)
	return t.b.Put(key, value)
}

func (t *table) delete(key []byte) error {
	old := t.b.Get(key)
	if old == nil {
		return nil
	}
	t.count(key, old)
	return t.b.Delete(key)
}

// putJSON deletes where v is nil.
func putJSON[T any](t *table, key []byte, v *T) error {
	if v == nil {
		return t.delete(key)
	}
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return t.put(key, text)
}
