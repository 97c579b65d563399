package nodeconfig

import (
	"cmp"
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
	items      map[item]*entry
	rest       entry // all other keys
}

// item is one route or rule: the section that lists it, and its key there.
type item struct{ section, key string }

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
	items      map[item]map[string]any
	rest       map[string]any
}

type namedInterface struct {
	key        string         // nmstate.Interface.Key
	attributes map[string]any // without the name
}

// takeApart splits a canonical document.
func takeApart(doc nmstate.State) pieces {
	p := pieces{items: map[item]map[string]any{}, rest: map[string]any{}}
	for _, i := range doc.Interfaces() {
		p.interfaces = append(p.interfaces, namedInterface{i.Key(), without(i, "name")})
	}
	for _, section := range sections {
		for _, one := range doc.Config(section) {
			p.items[item{section, nmstate.EntryKey(one)}] = one
		}
	}
	for key, value := range doc {
		if section, ok := value.(map[string]any); ok && slices.Contains(sections, key) {
			value = without(section, "config")
		}
		if key != "interfaces" {
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
	var absent []item
	for key, value := range p.items {
		l.item(key).replace(value, by)
		if value["state"] == nmstate.Absent {
			absent = append(absent, key)
		}
	}
	slices.SortFunc(absent, item.compare)
	for _, key := range absent {
		l.withdraw(key, p.items[key], by)
	}
	l.rest.layAll(p.rest, by)
}

func (l *layers) item(key item) *entry {
	e := l.items[key]
	if e == nil {
		e = new(entry)
		l.items[key] = e
	}
	return e
}

// withdraw takes away what a route or rule wants absent of the layers below; what its own layer wants besides stays. The order
// is always the same.
func (l *layers) withdraw(key item, value map[string]any, by int) {
	var gone []item
	for other, below := range l.items {
		attributes, _ := below.value.(map[string]any)
		if other != key && other.section == key.section && below.by != by && nmstate.Withdraws(value, attributes) {
			gone = append(gone, other)
		}
	}
	slices.SortFunc(gone, item.compare)
	for _, other := range gone {
		below := l.items[other]
		l.items[key].lost = append(l.items[key].lost, loss{below.by, below.value})
		delete(l.items, other)
	}
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
	switch {
	case !isMap:
		e.loseAll(e)
		e.replace(value, by)
	case e.kids != nil:
		e.layAll(attributes, by)
	case len(attributes) > 0:
		if e.set {
			e.lost = append(e.lost, loss{e.by, e.value})
		}
		*e = entry{kids: map[string]*entry{}, by: by, lost: e.lost}
		e.layAll(attributes, by)
	}
}

// replace sets a value that has nothing below it.
func (e *entry) replace(value any, by int) {
	if e.set && !equal(e.value, value) {
		e.lost = append(e.lost, loss{e.by, e.value})
	}
	*e = entry{set: true, value: value, by: by, lost: e.lost}
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

// named gives an interface's attributes what its key says: the name, and of an OVS bridge the type.
func named(key string, attributes map[string]any) map[string]any {
	name, bridge := strings.CutSuffix(key, " "+nmstate.OVSBridge)
	attributes["name"] = name
	if bridge {
		attributes["type"] = nmstate.OVSBridge
	}
	return attributes
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
	return strings.Compare(i.key, other.key)
}

// dispute is an attribute on which layers disagree: the loser wanted something else than the winner.
type dispute struct {
	path          string
	winner, loser int
	won, wanted   any
}

// crumb is a place in a document, written out only where it is needed.
type crumb struct {
	above *crumb
	text  string
}

func (c *crumb) String() string {
	if c.above == nil || c.above.text == "" {
		return c.text
	}
	return c.above.String() + "." + c.text
}

// disputes are sorted by path and then loser, each pair once.
func (l *layers) disputes() (list []dispute) {
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

func (e *entry) disputes(at *crumb, list []dispute) []dispute {
	for n, lost := range e.lost {
		again := slices.ContainsFunc(e.lost[n+1:], func(later loss) bool { return later.by == lost.by }) // what a layer wanted last counts
		if again || lost.by == e.by {
			continue
		}
		won := e.value
		if e.kids != nil {
			won = e.attributes(func(int) bool { return true })
		}
		if !equal(lost.value, won) {
			list = append(list, dispute{at.String(), e.by, lost.by, won, lost.value})
		}
	}
	for key, kid := range e.kids {
		if kid.lost != nil || kid.kids != nil {
			list = kid.disputes(&crumb{at, key}, list)
		}
	}
	return list
}

// walk visits all attributes, routes and rules that one of two documents has; the other's entry is nil where it has none.
func walk(a, b *layers, visit func(a, b *entry)) {
	walkAll(a.interfaces, b.interfaces, visit)
	walkAll(a.items, b.items, visit)
	walkAll(a.rest.kids, b.rest.kids, visit)
}

func walkAll[K comparable](a, b map[K]*entry, visit func(a, b *entry)) {
	for key, one := range a {
		walkEntry(one, b[key], visit)
	}
	for key, other := range b {
		if _, both := a[key]; !both {
			walkEntry(nil, other, visit)
		}
	}
}

func walkEntry(a, b *entry, visit func(a, b *entry)) {
	if isLeaf(a) || isLeaf(b) {
		visit(leafOnly(a), leafOnly(b))
	}
	if kidsOf(a) != nil || kidsOf(b) != nil {
		walkAll(kidsOf(a), kidsOf(b), visit)
	}
}

func isLeaf(e *entry) bool { return e != nil && e.set }

func leafOnly(e *entry) *entry {
	if isLeaf(e) {
		return e
	}
	return nil
}

func kidsOf(e *entry) map[string]*entry {
	if e == nil {
		return nil
	}
	return e.kids
}

// equal is reflect.DeepEqual, quicker for what values mostly are.
func equal(a, b any) bool {
	switch a := a.(type) {
	case string, int64, bool:
		return a == b
	}
	return reflect.DeepEqual(a, b)
}

// jsonOf is the value as JSON, keys sorted.
func jsonOf(value any) string {
	raw, err := json.Marshal(value)
	if err != nil {
		return "?" // documents come from JSON: this does not happen
	}
	return string(raw)
}
