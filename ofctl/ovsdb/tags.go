package ovsdb

import (
	"fmt"
	"maps"
	"slices"
	"sync"
)

// maxTag is the highest VLAN of a port: IEEE 802.1Q reserves 4095.
const maxTag = 4094

// assignTags returns the tag of each port, by the ports' names, so that no two are equal. A port keeps a valid tag that
// no port before it in the alphabet has. Where there are more ports than tags, it returns those that have one, and an
// error.
func assignTags(have map[string]int) (map[string]int, error) {
	tags, taken := map[string]int{}, map[int]bool{}
	names := slices.Sorted(maps.Keys(have))
	for _, name := range names {
		if tag := have[name]; tag >= 1 && tag <= maxTag && !taken[tag] {
			tags[name], taken[tag] = tag, true
		}
	}
	free := 1
	for _, name := range names {
		if tags[name] != 0 {
			continue
		}
		for taken[free] {
			free++
		}
		if free > maxTag {
			return tags, fmt.Errorf("port %s has no VLAN of its own: a bridge has room for %d ports, and there are %d",
				name, maxTag, len(names))
		}
		tags[name], taken[free] = free, true
	}
	return tags, nil
}

// givenTag is a tag that this process has given to a port.
type givenTag struct {
	tag  int
	seen bool // the port was in the database since
}

// tagBook holds the tags that this process has given to the ports of a bridge. With them a port keeps its tag when
// another program changes it, and ports that are created at the same time get different ones. Safe for concurrent use.
type tagBook struct {
	mu    sync.Mutex
	given map[string]givenTag
}

// assign returns the tags of the ports that the database has, and of the ports that are to be created. It returns an
// error as assignTags does.
func (b *tagBook) assign(have map[string]int, created ...string) (map[string]int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	wanted := map[string]int{}
	maps.Copy(wanted, have)
	for name, g := range b.given {
		if _, there := have[name]; there || !g.seen {
			wanted[name] = g.tag
		}
	}
	for _, name := range created {
		wanted[name] = b.given[name].tag
	}
	tags, err := assignTags(wanted)
	given := map[string]givenTag{}
	for name, tag := range tags {
		_, there := have[name]
		given[name] = givenTag{tag, there || b.given[name].seen && !slices.Contains(created, name)}
	}
	b.given = given
	return tags, err
}

// remove returns the tag of a port that was not created.
func (b *tagBook) remove(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.given, name)
}
