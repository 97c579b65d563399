package nodeconfig

import (
	"cmp"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unique"

	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// layers is state documents laid over each other, each attribute with whose it is and who else wanted it otherwise. It is
// nmstate.Overlay, one after the other, without copying what is below; a test holds both together. It falls into parts that do
// not depend on each other.
type layers map[place]*part

// place is where a part is: an interface by its nmstate.Interface.Key, one of the lists of routes and rules, or all other keys.
// The same place is always the same handle, which is quick to look up.
type place struct{ unique.Handle[spot] }

type spot struct{ section, key string }

func placeOf(section, key string) place { return place{unique.Make(spot{section, key})} }

func (p place) section() string { return p.Value().section }
func (p place) key() string     { return p.Value().key }

const interfaces = "interfaces"

// lists are the sections of routes and rules.
var lists = []string{"routes", "route-rules"}

func (p place) isList() bool { return slices.Contains(lists, p.section()) }

func (p place) compare(other place) int {
	return cmp.Or(strings.Compare(p.section(), other.section()), strings.Compare(p.key(), other.key()))
}

// part is an interface's attributes, routes or rules by nmstate.EntryKey, or all other keys of the document.
type part struct {
	place
	kids map[string]*entry
}

// entry is an attribute, route or rule: a value, or further attributes.
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

// pieces is a canonical document taken apart, so that laying it is quick. It is immutable.
type pieces []piece

// piece is what a document says of a place: attributes without the name, or routes or rules by nmstate.EntryKey.
type piece struct {
	place
	content map[string]any
}

// takeApart splits a canonical document.
func takeApart(doc nmstate.State) (p pieces) {
	doc = nmstate.Unrepeated(doc)
	for _, i := range doc.Interfaces() {
		p = append(p, piece{placeOf(interfaces, i.Key()), without(i, "name")})
	}
	rest := without(doc, interfaces)
	for _, section := range lists {
		if all, ok := rest[section].(map[string]any); ok {
			rest[section] = without(all, "config")
		}
		entries := map[string]any{}
		for _, one := range doc.Config(section) {
			entries[nmstate.EntryKey(one)] = one
		}
		p = append(p, piece{placeOf(section, ""), entries})
	}
	p = append(p, piece{placeOf("", ""), rest})
	return slices.DeleteFunc(p, func(one piece) bool { return one.section() != interfaces && len(one.content) == 0 })
}

func without(m map[string]any, key string) map[string]any {
	m = maps.Clone(m)
	delete(m, key)
	return m
}

// layersOf is one document alone.
func layersOf(doc nmstate.State) layers {
	l := layers{}
	l.lay(takeApart(nmstate.Canonical(doc)), 0)
	return l
}

func (l layers) lay(p pieces, by int) {
	for _, one := range p {
		if len(one.content) == 0 {
			continue // a name alone wants nothing
		}
		if l[one.place] == nil {
			l[one.place] = newPart(one.place)
		}
		l[one.place].lay(one.content, by)
	}
}

func newPart(at place) *part { return &part{at, map[string]*entry{}} }

func (p *part) lay(content map[string]any, by int) {
	if p.isList() {
		p.layList(content, by)
	} else {
		layAll(p.kids, content, by)
	}
}

func (p *part) layList(entries map[string]any, by int) {
	var absent []string
	for key, value := range entries {
		kidOf(p.kids, key).replace(value, by)
		if attributes, _ := value.(map[string]any); attributes["state"] == nmstate.Absent {
			absent = append(absent, key)
		}
	}
	slices.Sort(absent)
	for _, key := range absent {
		p.withdraw(key, by)
	}
}

// withdraw takes away what a route or rule wants absent of the layers below; what its own layer wants besides stays. The order
// is always the same.
func (p *part) withdraw(key string, by int) {
	absent := p.kids[key]
	wanted, _ := absent.value.(map[string]any)
	var gone []string
	for other, below := range p.kids {
		attributes, _ := below.value.(map[string]any)
		if other != key && below.by != by && nmstate.Withdraws(wanted, attributes) {
			gone = append(gone, other)
		}
	}
	slices.Sort(gone)
	for _, other := range gone {
		absent.lost = append(absent.lost, loss{p.kids[other].by, p.kids[other].value})
		delete(p.kids, other)
	}
}

func layAll(kids map[string]*entry, attributes map[string]any, by int) {
	for key, value := range attributes {
		kidOf(kids, key).lay(value, by)
	}
}

func kidOf(kids map[string]*entry, key string) *entry {
	kid := kids[key]
	if kid == nil {
		kid = new(entry)
		kids[key] = kid
	}
	return kid
}

func (e *entry) lay(value any, by int) {
	attributes, isMap := value.(map[string]any)
	switch {
	case !isMap:
		e.loseAll(e)
		e.replace(value, by)
	case e.kids != nil:
		layAll(e.kids, attributes, by)
	case len(attributes) > 0:
		if e.set {
			e.lost = append(e.lost, loss{e.by, e.value})
		}
		*e = entry{kids: map[string]*entry{}, by: by, lost: e.lost}
		layAll(e.kids, attributes, by)
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
	if len(below.kids) == 0 { // as most are: there is nothing to sort
		return
	}
	for _, key := range slices.Sorted(maps.Keys(below.kids)) {
		kid := below.kids[key]
		e.lost = append(e.lost, kid.lost...)
		if kid.set {
			e.lost = append(e.lost, loss{kid.by, map[string]any{key: kid.value}})
		}
		e.loseAll(kid)
	}
}

// content is a piece again, of what the layers that are kept have won.
func (p *part) content(kept func(by int) bool) map[string]any { return attributesOf(p.kids, kept) }

// together makes a document of pieces, one a place, whose content it takes over.
func together(p pieces) nmstate.State {
	slices.SortFunc(p, func(a, b piece) int { return a.compare(b.place) })
	doc := nmstate.State{}
	var list []any
	for _, one := range p { // all else comes first: it may have something of the sections of routes and rules
		switch {
		case len(one.content) == 0:
		case one.section() == interfaces:
			list = append(list, named(one.key(), one.content))
		case one.isList():
			section, _ := doc[one.section()].(map[string]any)
			doc[one.section()] = with(section, "config", inOrderOfKeys(one.content))
		default:
			maps.Copy(doc, one.content)
		}
	}
	if list != nil {
		doc[interfaces] = list
	}
	return doc
}

func with(m map[string]any, key string, value any) map[string]any {
	if m == nil {
		m = map[string]any{}
	}
	m[key] = value
	return m
}

func inOrderOfKeys(m map[string]any) (list []any) {
	for _, key := range slices.Sorted(maps.Keys(m)) {
		list = append(list, m[key])
	}
	return list
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

func attributesOf(kids map[string]*entry, kept func(by int) bool) map[string]any {
	all := map[string]any{}
	for key, kid := range kids {
		if kid.kids != nil {
			if below := attributesOf(kid.kids, kept); len(below) > 0 {
				all[key] = below
			}
		} else if kid.set && kept(kid.by) {
			all[key] = kid.value
		}
	}
	return all
}

// dispute is an attribute on which layers disagree: the loser wanted something else than the winner.
type dispute struct {
	path          string
	winner, loser int
	won, wanted   string
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

// disputes are in no order, each pair once.
func (p *part) disputes() (list []dispute) {
	above := new(crumb)
	if p.section() == interfaces {
		above.text = interfaces + "[" + p.key() + "]"
	}
	for key, kid := range p.kids {
		switch {
		case kid.lost == nil && kid.kids == nil:
		case p.isList():
			list = kid.disputes(&crumb{text: p.section() + ".config[" + key + "]"}, list)
		default:
			list = kid.disputes(&crumb{above, key}, list)
		}
	}
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
			won = attributesOf(e.kids, func(int) bool { return true })
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

// walk visits all attributes, routes or rules that one of two parts has; the other's entry is nil where it has none.
func walk(a, b *part, visit func(a, b *entry)) { walkAll(kidsAt(a), kidsAt(b), visit) }

func kidsAt(p *part) map[string]*entry {
	if p == nil {
		return nil
	}
	return p.kids
}

func walkAll(a, b map[string]*entry, visit func(a, b *entry)) {
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

// jsonOf returns the value as JSON with sorted keys.
func jsonOf(value any) string {
	raw, err := json.Marshal(value)
	if err != nil {
		return "?" // documents come from JSON: this does not happen
	}
	return string(raw)
}

// valueLimit is how much of a value a conflict shows, in bytes.
const valueLimit = 200

func shown(value any) string {
	text := jsonOf(value)
	if len(text) > valueLimit {
		return strings.ToValidUTF8(text[:valueLimit], "") + "…"
	}
	return text
}
