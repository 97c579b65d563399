package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
	bolt "go.etcd.io/bbolt"
)

// load reads everything, and fails on anything that write cannot have written.
func load(db *bolt.DB) (out *Contents, err error) {
	defer guard(&err)()
	out = &Contents{Rules: map[policy.Key]*policy.Rule{}, Groups: map[policy.Key][]netip.Addr{}}
	err = db.View(func(tx *bolt.Tx) error { return readAll(tx, out) })
	if err != nil {
		return nil, err
	}
	return out, nil
}

func readAll(tx *bolt.Tx, out *Contents) error {
	for _, name := range buckets {
		if tx.Bucket(name) == nil {
			return fmt.Errorf("%s are missing", name)
		}
	}
	found := sums{}
	err := errors.Join(
		loadMap(found.table(tx, bucketNamespaces), &out.Namespaces, func(n *policy.Namespace) string { return n.Name }),
		loadMap(found.table(tx, bucketEndpoints), &out.Endpoints, (*policy.Endpoint).ID),
		loadMap(found.table(tx, bucketPolicies), &out.Policies, (*policy.Policy).ID),
		loadMap(found.table(tx, bucketNodes), &out.Nodes, nil),
		loadMap(found.table(tx, bucketAnnounced), &out.Announced, (*Announcement).Key),
		loadRules(found.table(tx, bucketRules), out), loadGroups(found.table(tx, bucketGroups), out),
		loadState(found.table(tx, bucketState), out))
	if err != nil {
		return err
	}
	return compareSums(tx, found)
}

func compareSums(tx *bolt.Tx, found sums) error {
	want, err := readSums(tx)
	if err != nil {
		return err
	}
	for _, name := range buckets { // others are a later version's
		if n := string(name); want[n] != found[n] {
			return fmt.Errorf("the checksum of the %s is wrong", n)
		}
	}
	return nil
}

func loadState(t *table, out *Contents) error {
	return t.b.ForEach(func(k, v []byte) error {
		t.count(k, v)
		switch string(k) {
		case string(keyRevision):
			return json.Unmarshal(v, &out.Revision)
		case string(keyInfos):
			return json.Unmarshal(v, &out.Infos)
		}
		return fmt.Errorf("%q is unknown", k)
	})
}

// loadMap holds each key against what the value says it is.
func loadMap[T any](t *table, to *map[string]*T, id func(*T) string) error {
	out := map[string]*T{}
	*to = out
	return t.b.ForEach(func(k, v []byte) error {
		t.count(k, v)
		value := new(T)
		if err := json.Unmarshal(v, value); err != nil {
			return fmt.Errorf("%s %q: %w", t.name, k, err)
		}
		if id != nil && id(value) != string(k) {
			return fmt.Errorf("%s %q holds %q", t.name, k, id(value))
		}
		out[string(k)] = value
		return nil
	})
}

func loadRules(t *table, to *Contents) error {
	return t.b.ForEach(func(k, v []byte) error {
		t.count(k, v)
		r := new(policy.Rule)
		if err := json.Unmarshal(v, r); err != nil {
			return fmt.Errorf("rule %x: %w", k, err)
		}
		if string(k) != string(r.Key[:]) {
			return fmt.Errorf("rule %x holds rule %s", k, r.Key)
		}
		to.Rules[r.Key] = r
		return nil
	})
}

func loadGroups(t *table, to *Contents) error {
	return t.b.ForEach(func(k, v []byte) error {
		b := t.b.Bucket(k)
		if len(k) != len(policy.Key{}) || v != nil || b == nil {
			return fmt.Errorf("group %x: bad key", k)
		}
		t.count(k, nil)
		members := &table{b: b, prefix: k, name: t.name, sums: t.sums}
		list := []netip.Addr{}
		err := b.ForEach(func(a, v []byte) error {
			members.count(a, v)
			addr, ok := netip.AddrFromSlice(a)
			if !ok {
				return fmt.Errorf("group %x: %x is no address", k, a)
			}
			list = append(list, addr)
			return nil
		})
		to.Groups[policy.Key(k)] = list
		return err
	})
}

// Check finds what cannot be, sorted: rules whose key is not that of their content, rules that refer to groups or
// policies that are not there, groups that nothing refers to, endpoints of namespaces that are not there.
func (c *Contents) Check() []string {
	var problems []string
	say := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	used := map[policy.Key]bool{}
	for key, r := range c.Rules {
		c.checkRule(key, r, say)
		for _, p := range r.Peers {
			used[p] = true
		}
	}
	for key := range c.Groups {
		if !used[key] {
			say("group %s: no rule refers to it", key)
		}
	}
	for id, e := range c.Endpoints {
		if e.ID() != id {
			say("endpoint %s holds %s", id, e.ID())
		}
	}
	for id, p := range c.Policies {
		if p.ID() != id {
			say("policy %s holds %s", id, p.ID())
		}
	}
	slices.Sort(problems)
	return problems
}

func (c *Contents) checkRule(key policy.Key, r *policy.Rule, say func(string, ...any)) {
	if r.Key != key || policy.RuleKey(r) != key {
		say("rule %s: its key is not that of its content", key)
	}
	for _, p := range r.Peers {
		if _, ok := c.Groups[p]; !ok {
			say("rule %s: peer group %s is missing", key, p)
		}
	}
	for _, o := range r.Origins {
		if c.Policies[o.Policy] == nil {
			say("rule %s: policy %s is missing", key, o.Policy)
		}
	}
}
