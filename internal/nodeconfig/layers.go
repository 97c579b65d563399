package nodeconfig

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/internal/nmstate"
)

// layers is state documents laid over each other, each attribute with whose it is and who else wanted it otherwise. It is
// nmstate.Overlay, one after the other, without copying what is below; a test holds both together.
type layers struct {
	interfaces map[string]*entry
	items      map[item]*entry // routes and rules are there or not; nobody disagrees
	rest       entry           // all other keys
}

// item is one route or rule: the section that lists it, and itself as JSON.
type item struct{ section, text string }

// entry is an attribute: a value, or further attributes.
type entry struct {
	set   bool
	value any
	kids  map[string]*entry
	by    int // the layer that the value is from
	lost  []loss
}

// loss is what a layer wanted where a later one wanted otherwise.
type loss struct {
	by    int
	value any
}

// sections are the lists of routes and rules.
var sections = []string{"routes", "route-rules"}

func newLayers() *layers {
	return &layers{interfaces: map[string]*entry{}, items: map[item]*entry{}, rest: entry{kids: map[string]*entry{}}}
}

// pieces is a canonical document taken apart, so that laying it is quick. Laying does not change it.
type pieces struct {
	interfaces []namedInterface
	items      map[item]any
	rest       map[string]any
}

type namedInterface struct {
	key        string         // nmstate.Interface.Key
	attributes map[string]any // without the name
}

// takeApart splits a canonical document.
func takeApart(doc nmstate.State) pieces {
	p := pieces{items: map[item]any{}, rest: map[string]any{}}
	for _, i := range doc.Interfaces() {
		p.interfaces = append(p.interfaces, namedInterface{i.Key(), without(i, "name")})
	}
	for key, value := range doc {
		section, isMap := value.(map[string]any)
		switch {
		case key == "interfaces":
		case isMap && slices.Contains(sections, key):
			list, _ := section["config"].([]any)
			for _, one := range list {
				p.items[item{key, jsonOf(one)}] = one
			}
		default:
			p.rest[key] = value
		}
	}
	return p
}

func without(m map[string]any, key string) map[string]any {
	m = maps.Clone(m)
	delete(m, key)
	return m
}

func (l *layers) lay(p pieces, by int) {
	for _, i := range p.interfaces {
		l.layInterface(i.key, i.attributes, by)
	}
	for key, value := range p.items {
		l.items[key] = &entry{set: true, value: value, by: by}
	}
	l.rest.layAll(p.rest, by)
}

func (l *layers) layInterface(key string, attributes map[string]any, by int) {
	if len(attributes) == 0 {
		return // a name alone wants nothing
	}
	e := l.interfaces[key]
	if e == nil {
		e = &entry{kids: map[string]*entry{}}
		l.interfaces[key] = e
	}
	e.layAll(attributes, by)
}

func (e *entry) layAll(attributes map[string]any, by int) {
	for key, value := range attributes {
		kid := e.kids[key]
		if kid == nil {
			kid = new(entry)
			e.kids[key] = kid
		}
		kid.lay(value, by)
	}
}

func (e *entry) lay(value any, by int) {
	attributes, isMap := value.(map[string]any)
	if isMap = isMap && len(attributes) > 0; isMap && e.kids != nil {
		e.layAll(attributes, by)
		return
	}
	switch {
	case e.kids != nil:
		e.loseAll(e)
	case e.set && (isMap || !reflect.DeepEqual(e.value, value)):
		e.lost = append(e.lost, loss{e.by, e.value})
	}
	*e = entry{set: !isMap, by: by, lost: e.lost}
	if isMap {
		e.kids = map[string]*entry{}
		e.layAll(attributes, by)
	} else {
		e.value = value
	}
}

// loseAll takes what is below for lost, in an order that is always the same.
func (e *entry) loseAll(below *entry) {
	for _, key := range slices.Sorted(maps.Keys(below.kids)) {
		kid := below.kids[key]
		e.lost = append(e.lost, kid.lost...)
		if kid.set {
			e.lost = append(e.lost, loss{kid.by, map[string]any{key: kid.value}})
		}
		e.loseAll(kid)
	}
}

// document is what the layers that are kept have won.
func (l *layers) document(kept func(by int) bool) nmstate.State {
	doc := l.rest.attributes(kept)
	var list []any
	for _, name := range slices.Sorted(maps.Keys(l.interfaces)) {
		if attributes := l.interfaces[name].attributes(kept); len(attributes) > 0 {
			attributes["name"] = name
			list = append(list, attributes)
		}
	}
	if list != nil {
		doc["interfaces"] = list
	}
	for _, key := range slices.SortedFunc(maps.Keys(l.items), item.compare) {
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

func (e *entry) attributes(kept func(by int) bool) map[string]any {
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

func (i item) compare(other item) int {
	if c := strings.Compare(i.section, other.section); c != 0 {
		return c
	}
	return strings.Compare(i.text, other.text)
}

// dispute is an attribute on which layers disagree: the loser wanted something else than the winner.
type dispute struct {
	path             string
	winner, loser    int
	won, wantedValue any
}

// disputes are sorted by path and loser, each pair once.
func (l *layers) disputes() (list []dispute) {
	for _, name := range slices.Sorted(maps.Keys(l.interfaces)) {
		list = l.interfaces[name].disputes("interfaces["+name+"]", list)
	}
	return l.rest.disputes("", list)
}

func (e *entry) disputes(path string, list []dispute) []dispute {
	told := map[int]bool{}
	for _, lost := range slices.Backward(e.lost) { // what a layer wanted last counts
		won := e.value
		if e.kids != nil {
			won = e.attributes(func(int) bool { return true })
		}
		if !told[lost.by] && lost.by != e.by && !reflect.DeepEqual(lost.value, won) {
			told[lost.by] = true
			list = append(list, dispute{path, e.by, lost.by, won, lost.value})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(e.kids)) {
		list = e.kids[key].disputes(strings.TrimPrefix(path+"."+key, "."), list)
	}
	return list
}

// jsonOf is the value as JSON, keys sorted.
func jsonOf(value any) string {
	raw, err := json.Marshal(value)
	if err != nil {
		return "?" // documents come from JSON: this does not happen
	}
	return string(raw)
}
