package nodeconfig

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// What follows lays whole documents over each other, all of them each time: the slow and obvious form of layers and aggregate,
// which they are held to.

// plainLayers is state documents laid over each other, each attribute with whose it is and who else wanted it otherwise. It is
// nmstate.Overlay, one after the other, without copying what is below; a test holds both together.
type plainLayers struct {
	interfaces map[string]*plainEntry
	items      map[plainItem]*plainEntry
	rest       plainEntry // all other keys
}

// plainItem is one route or rule: the section that lists it, and its key there.
type plainItem struct{ section, key string }

// plainEntry is an attribute: a value, or further attributes.
type plainEntry struct {
	set   bool
	value any
	kids  map[string]*plainEntry
	by    int // the layer that the value is from
	lost  []plainLoss
}

// plainLoss is what a layer wanted where a later one wanted otherwise.
type plainLoss struct {
	by    int
	value any
}

func newPlainLayers() *plainLayers {
	return &plainLayers{interfaces: map[string]*plainEntry{}, items: map[plainItem]*plainEntry{}, rest: plainEntry{kids: map[string]*plainEntry{}}}
}

func (l *plainLayers) layDocument(doc nmstate.State, by int) {
	for _, i := range doc.Interfaces() {
		l.layInterface(i.Key(), without(i, "name"), by)
	}
	items := map[plainItem]map[string]any{}
	for _, section := range lists {
		for _, one := range doc.Config(section) {
			items[plainItem{section, nmstate.EntryKey(one)}] = one
		}
	}
	l.layItems(items, by)
	for key, value := range doc {
		if section, ok := value.(map[string]any); ok && slices.Contains(lists, key) {
			value = without(section, "config")
		}
		if key != "interfaces" {
			l.rest.layAll(map[string]any{key: value}, by)
		}
	}
}

func (l *plainLayers) layItems(items map[plainItem]map[string]any, by int) {
	var absent []plainItem
	for key, value := range items {
		l.item(key).replace(value, by)
		if value["state"] == nmstate.Absent {
			absent = append(absent, key)
		}
	}
	slices.SortFunc(absent, plainItem.compare)
	for _, key := range absent {
		l.withdraw(key, items[key], by)
	}
}

func (l *plainLayers) item(key plainItem) *plainEntry {
	e := l.items[key]
	if e == nil {
		e = new(plainEntry)
		l.items[key] = e
	}
	return e
}

// withdraw takes away what a route or rule wants absent of the plainLayers below; what its own layer wants besides stays. The order
// is always the same.
func (l *plainLayers) withdraw(key plainItem, value map[string]any, by int) {
	var gone []plainItem
	for other, below := range l.items {
		attributes, _ := below.value.(map[string]any)
		if other != key && other.section == key.section && below.by != by && nmstate.Withdraws(value, attributes) {
			gone = append(gone, other)
		}
	}
	slices.SortFunc(gone, plainItem.compare)
	for _, other := range gone {
		below := l.items[other]
		l.items[key].lost = append(l.items[key].lost, plainLoss{below.by, below.value})
		delete(l.items, other)
	}
}

func (l *plainLayers) layInterface(key string, attributes map[string]any, by int) {
	if len(attributes) == 0 {
		return // a name alone wants nothing
	}
	e := l.interfaces[key]
	if e == nil {
		e = &plainEntry{kids: map[string]*plainEntry{}}
		l.interfaces[key] = e
	}
	e.layAll(attributes, by)
}

func (e *plainEntry) layAll(attributes map[string]any, by int) {
	for key, value := range attributes {
		kid := e.kids[key]
		if kid == nil {
			kid = new(plainEntry)
			e.kids[key] = kid
		}
		kid.lay(value, by)
	}
}

func (e *plainEntry) lay(value any, by int) {
	attributes, isMap := value.(map[string]any)
	switch {
	case !isMap:
		e.loseAll(e)
		e.replace(value, by)
	case e.kids != nil:
		e.layAll(attributes, by)
	case len(attributes) > 0:
		if e.set {
			e.lost = append(e.lost, plainLoss{e.by, e.value})
		}
		*e = plainEntry{kids: map[string]*plainEntry{}, by: by, lost: e.lost}
		e.layAll(attributes, by)
	}
}

// replace sets a value that has nothing below it.
func (e *plainEntry) replace(value any, by int) {
	if e.set && !equal(e.value, value) {
		e.lost = append(e.lost, plainLoss{e.by, e.value})
	}
	*e = plainEntry{set: true, value: value, by: by, lost: e.lost}
}

// loseAll takes what is below for lost, in an order that is always the same.
func (e *plainEntry) loseAll(below *plainEntry) {
	for _, key := range slices.Sorted(maps.Keys(below.kids)) {
		kid := below.kids[key]
		e.lost = append(e.lost, kid.lost...)
		if kid.set {
			e.lost = append(e.lost, plainLoss{kid.by, map[string]any{key: kid.value}})
		}
		e.loseAll(kid)
	}
}

// document is what the plainLayers that are kept have won.
func (l *plainLayers) document(kept func(by int) bool) nmstate.State {
	doc := nmstate.State(l.rest.attributes(kept))
	var list []any
	for _, key := range slices.Sorted(maps.Keys(l.interfaces)) {
		if attributes := l.interfaces[key].attributes(kept); len(attributes) > 0 {
			list = append(list, named(key, attributes))
		}
	}
	if list != nil {
		doc["interfaces"] = list
	}
	for _, key := range slices.SortedFunc(maps.Keys(l.items), plainItem.compare) {
		if e := l.items[key]; kept(e.by) {
			section, _ := doc[key.section].(map[string]any)
			if section == nil {
				section = map[string]any{}
				doc[key.section] = section
			}
			config, _ := section["config"].([]any)
			section["config"] = append(config, e.value)
		}
	}
	return doc
}

func (e *plainEntry) attributes(kept func(by int) bool) map[string]any {
	all := map[string]any{}
	for key, kid := range e.kids {
		if kid.kids != nil {
			if below := kid.attributes(kept); len(below) > 0 {
				all[key] = below
			}
		} else if kid.set && kept(kid.by) {
			all[key] = kid.value
		}
	}
	return all
}

func (i plainItem) compare(other plainItem) int {
	if c := strings.Compare(i.section, other.section); c != 0 {
		return c
	}
	return strings.Compare(i.key, other.key)
}

// disputes are sorted by path and then loser, each pair once.
func (l *plainLayers) disputes() (list []dispute) {
	for key, e := range l.interfaces {
		list = e.disputes(&crumb{text: "interfaces[" + key + "]"}, list)
	}
	for key, e := range l.items {
		if e.lost == nil {
			continue
		}
		list = e.disputes(&crumb{text: key.section + ".config[" + key.key + "]"}, list)
	}
	list = l.rest.disputes(new(crumb), list)
	slices.SortFunc(list, func(a, b dispute) int {
		return cmp.Or(strings.Compare(a.path, b.path), cmp.Compare(a.loser, b.loser))
	})
	return list
}

func (e *plainEntry) disputes(at *crumb, list []dispute) []dispute {
	for n, lost := range e.lost {
		again := slices.ContainsFunc(e.lost[n+1:], func(later plainLoss) bool { return later.by == lost.by }) // what a layer wanted last counts
		if again || lost.by == e.by {
			continue
		}
		won := e.value
		if e.kids != nil {
			won = e.attributes(func(int) bool { return true })
		}
		if !equal(lost.value, won) {
			list = append(list, dispute{at.String(), e.by, lost.by, shown(won), shown(lost.value)})
		}
	}
	for key, kid := range e.kids {
		if kid.lost != nil || kid.kids != nil {
			list = kid.disputes(&crumb{at, key}, list)
		}
	}
	return list
}
