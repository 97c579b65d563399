package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
	bolt "go.etcd.io/bbolt"
)

func write(db *bolt.DB, p *pending) (err error) {
	defer guard(&err)()
	err = db.Update(func(tx *bolt.Tx) error {
		s, err := readSums(tx)
		if err != nil {
			return err
		}
		if err := s.write(tx, p); err != nil {
			return err
		}
		text, err := json.Marshal(s)
		if err != nil {
			return err
		}
		return tx.Bucket(bucketMeta).Put(keySums, text)
	})
	if err != nil {
		return fmt.Errorf("write the policy DB: %w", err)
	}
	return nil
}

func (s sums) write(tx *bolt.Tx, p *pending) error {
	if p.whole {
		if err := s.recreate(tx, bucketRules, bucketGroups); err != nil {
			return err
		}
	}
	return errors.Join(putAll(s.table(tx, bucketNamespaces), p.namespaces),
		putAll(s.table(tx, bucketEndpoints), p.endpoints),
		putAll(s.table(tx, bucketPolicies), p.policies), putAll(s.table(tx, bucketNodes), p.nodes),
		putAll(s.table(tx, bucketAnnounced), p.announced),
		writeRules(s.table(tx, bucketRules), p.rules), writeGroups(s.table(tx, bucketGroups), p.groups),
		writeState(s.table(tx, bucketState), p))
}

func (s sums) recreate(tx *bolt.Tx, names ...[]byte) error {
	for _, name := range names {
		if err := tx.DeleteBucket(name); err != nil {
			return err
		}
		if _, err := tx.CreateBucket(name); err != nil {
			return err
		}
		s[string(name)] = 0
	}
	return nil
}

// putAll goes in the order of the keys: bbolt takes each new key of a transaction into one array.
func putAll[T any](t *table, values map[string]*T) error {
	for _, k := range slices.Sorted(maps.Keys(values)) {
		if err := putJSON(t, []byte(k), values[k]); err != nil {
			return err
		}
	}
	return nil
}

func writeRules(t *table, rules map[policy.Key]*policy.Rule) error {
	for _, k := range slices.SortedFunc(maps.Keys(rules), compareKeys) {
		if err := putJSON(t, k[:], rules[k]); err != nil {
			return err
		}
	}
	return nil
}

func compareKeys(a, b policy.Key) int { return bytes.Compare(a[:], b[:]) }

func writeState(t *table, p *pending) error {
	if p.infos != nil {
		if err := putJSON(t, keyInfos, p.infos); err != nil {
			return err
		}
	}
	if p.revision == 0 {
		return nil
	}
	return putJSON(t, keyRevision, &p.revision)
}

func writeGroups(t *table, groups map[policy.Key]*patch) error {
	for _, k := range slices.SortedFunc(maps.Keys(groups), compareKeys) {
		if err := writeGroup(t, k[:], groups[k]); err != nil {
			return err
		}
	}
	return nil
}

func writeGroup(all *table, key []byte, g *patch) error {
	if g.fresh {
		if err := deleteGroup(all, key); err != nil {
			return err
		}
	}
	if g.gone {
		return nil
	}
	b := all.b.Bucket(key)
	isNew := b == nil
	if isNew {
		var err error
		if b, err = all.b.CreateBucket(key); err != nil {
			return err
		}
		all.count(key, nil)
	}
	members := &table{b: b, prefix: key, name: all.name, sums: all.sums, isNew: isNew}
	for _, a := range slices.Compact(slices.SortedFunc(slices.Values(g.list), netip.Addr.Compare)) {
		if err := writeMember(members, a, true); err != nil {
			return err
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(g.members), netip.Addr.Compare) {
		if err := writeMember(members, a, g.members[a]); err != nil {
			return err
		}
	}
	return nil
}

func writeMember(t *table, a netip.Addr, in bool) error {
	if in {
		return t.put(a.AsSlice(), []byte{1})
	}
	return t.delete(a.AsSlice())
}

func deleteGroup(all *table, key []byte) error {
	b := all.b.Bucket(key)
	if b == nil {
		return nil
	}
	members := &table{b: b, prefix: key, name: all.name, sums: all.sums}
	_ = b.ForEach(func(a, v []byte) error {
		members.count(a, v)
		return nil
	})
	all.count(key, nil)
	return all.b.DeleteBucket(key)
}

// prune takes out what would delete things that are not on disk, so that what waits while the disk is full stays
// bounded.
func prune(db *bolt.DB, p *pending) {
	var err error
	defer guard(&err)()
	_ = db.View(func(tx *bolt.Tx) error {
		pruneMap(tx, bucketNamespaces, p.namespaces)
		pruneMap(tx, bucketEndpoints, p.endpoints)
		pruneMap(tx, bucketPolicies, p.policies)
		pruneMap(tx, bucketNodes, p.nodes)
		pruneMap(tx, bucketAnnounced, p.announced)
		rules, groups := tx.Bucket(bucketRules), tx.Bucket(bucketGroups)
		for k, r := range p.rules {
			if r == nil && rules.Get(k[:]) == nil {
				delete(p.rules, k)
			}
		}
		for k, g := range p.groups {
			if onDisk := groups.Bucket(k[:]); g.gone && onDisk == nil {
				delete(p.groups, k)
			} else {
				pruneMembers(g, onDisk)
			}
		}
		return nil
	})
}

func pruneMap[T any](tx *bolt.Tx, bucket []byte, values map[string]*T) {
	b := tx.Bucket(bucket)
	for k, v := range values {
		if v == nil && b.Get([]byte(k)) == nil {
			delete(values, k)
		}
	}
}

func pruneMembers(g *patch, onDisk *bolt.Bucket) {
	for a, in := range g.members {
		if !in && (g.fresh || onDisk == nil || onDisk.Get(a.AsSlice()) == nil) {
			delete(g.members, a)
		}
	}
}
