package fleet

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
)

// Verb is what is done to a work.
type Verb string

// Verbs, in the order in which a plan has them: what is added is there before something goes.
const (
	Create Verb = "create"
	Update Verb = "update"
	Delete Verb = "delete"
)

// Write is one of a plan.
type Write struct {
	Verb
	Cluster, Name string
	Bundle        Source
	// ResourceVersion of the work as the plan saw it; empty for Create.
	ResourceVersion string
	// Live: to render it the work is needed as the hub has it, since something in it stays as it is.
	Live bool
	// Drops are manifests that the spoke may have by this work, and has no more when it is written.
	Drops []Sent

	controller string
	entries    []entry
	// left is the value of AnnotationLeft, and unleft is set where the work has one and is to have none.
	left   string
	unleft bool
	// changed are the entries that an Update makes others, if all else stays as it is and where it is; otherwise the whole is written.
	changed []int
	whole   bool
	// generation is that of the spec as the plan saw it, if the write goes by nothing else of the work: copies that were written there are
	// written in another version. What spokes report meanwhile is then no reason to decide again.
	generation int64
}

// Plan returns the writes that bring the existing works closer to the desired ones. It returns none if no
// write is possible or needed now. Some writes depend on reports of the spoke, so call Plan again when the status of a
// work changes:
//
//   - A new copy is first requested as read-only.
//   - A new gateway waits until its policies are applied.
//   - A copy that moves to another work, or gets another name on the spoke, stays at the old place until it is applied
//     at the new one.
//
// If copies of several hub objects have the same name on a spoke, only one is written: the existing one, or else the
// oldest. A gateway with policies that can't be written comes last. The others are requested as read-only, so that the
// spoke reports the conflict.
//
// Desired and existing are all works of some bundles. A copy may move between bundles, so pass these bundles too:
//
//   - bundles with works that contain a source of this bundle
//   - bundles of which a source is still in this bundle's works (Strays)
//   - bundles with a copy of the same Key in a work
//   - bundles that a new gateway waits for (Awaited)
//   - the gateways of a policy that gets another name (Beside)
//
// Plan deletes an existing work without a desired one. Do not pass the works of a bundle if its desired works are
// unknown.
func Plan(controller string, desired []*Work, existing []*Existing) []Write {
	p := planner{controller: controller, clusters: map[string]*clusterPlan{}}
	for _, w := range desired {
		p.cluster(w.Cluster).wanted[w.Name] = w
	}
	for _, e := range existing {
		p.cluster(e.Cluster).there[e.Name] = e
	}
	var writes []Write
	for _, c := range p.clusters {
		c.index()
		writes = append(writes, c.plan()...)
	}
	slices.SortFunc(writes, func(a, b Write) int {
		return cmp.Or(cmp.Compare(a.Verb.order(), b.Verb.order()), strings.Compare(a.Cluster, b.Cluster), strings.Compare(a.Name, b.Name))
	})
	return writes
}

func (v Verb) order() int { return slices.Index([]Verb{Create, Update, Delete}, v) }

// Strays are the sources that works have something of and that are not wanted in them.
func Strays(desired []*Work, existing []*Existing) (sources []Source) {
	type in struct {
		cluster, work string
		Key
	}
	wanted := map[in]bool{}
	for _, w := range desired {
		for _, c := range w.Copies {
			wanted[in{w.Cluster, w.Name, c.Key()}] = true
		}
	}
	for _, e := range existing {
		for _, s := range e.Sent {
			if !s.Orphan && !wanted[in{e.Cluster, e.Name, s.Key}] {
				sources = append(sources, s.Source)
			}
		}
	}
	slices.SortFunc(sources, Source.Compare)
	return slices.Compact(sources)
}

type planner struct {
	controller string
	clusters   map[string]*clusterPlan
}

func (p *planner) cluster(name string) *clusterPlan {
	c := p.clusters[name]
	if c == nil {
		c = &clusterPlan{controller: p.controller, wanted: map[string]*Work{}, there: map[string]*Existing{}}
		p.clusters[name] = c
	}
	return c
}

// clusterPlan is what is wanted of a cluster, and what is there.
type clusterPlan struct {
	controller string

	wanted map[string]*Work
	there  map[string]*Existing

	copies map[Key][]placed
	sent   map[Key][]at
	held   map[Source]bool // sources that are held and something is there of
	// names are the copies that are wanted of a source in a kind, whatever their names; nil until the first
	// call. Renaming are bundles of whose copies some are not there yet under the names that they are to have.
	names    map[sourceKind][]placed
	renaming map[Source]bool
	// going are gateways that are in a work still, and are not to be there any more.
	going map[Source]bool
	// former are gateways that are in a work under a name that they are not to have any more.
	former map[Source]bool
	// holders are the sources that have the names that several want.
	holders map[Key]Source
}

type placed struct {
	*Copy
	work string
}

// sourceKind is a source and the kind of a copy, without a name.
type sourceKind struct {
	Source
	group, resource string
}

type at struct {
	*Sent
	work *Existing
}

func (c *clusterPlan) index() {
	c.copies, c.sent, c.held = map[Key][]placed{}, map[Key][]at{}, map[Source]bool{}
	c.renaming, c.going, c.former = map[Source]bool{}, map[Source]bool{}, map[Source]bool{}
	for _, name := range slices.Sorted(maps.Keys(c.wanted)) {
		w := c.wanted[name]
		for _, one := range w.Copies {
			c.copies[one.Key()] = append(c.copies[one.Key()], placed{one, name})
		}
		for source := range w.Held {
			c.held[source] = false
		}
	}
	for _, e := range c.there {
		for i := range e.Sent {
			s := &e.Sent[i]
			c.sent[s.Key] = append(c.sent[s.Key], at{s, e})
			if _, held := c.held[s.Source]; held && !s.Asked && !e.Deleting {
				c.held[s.Source] = true
			}
		}
	}
	for _, gateways := range []bool{false, true} { // gateways come last, as their order depends on their policies
		for key, wanted := range c.copies {
			if isGateway(key) != gateways || !slices.ContainsFunc(wanted, func(one placed) bool {
				return !one.Orphan && one.Source != wanted[0].Source
			}) {
				continue
			}
			if c.holders == nil {
				c.holders = map[Key]Source{}
			}
			c.holders[key] = slices.MinFunc(wanted, c.before).Source
		}
	}
	for _, e := range c.there {
		for i := range e.Sent {
			if _, waits := c.renamed(&e.Sent[i], e); waits && !e.Deleting {
				c.renaming[e.Bundle] = true
			}
		}
	}
	for _, e := range c.there {
		if slices.ContainsFunc(e.Dropped, func(k Key) bool { return c.unwantedGateway(k, e.Bundle) }) {
			c.former[e.Bundle], c.going[e.Bundle] = true, true
		}
		for i := range e.Sent {
			s := &e.Sent[i]
			if c.isFormer(s, e) {
				c.former[e.Bundle] = true
				c.going[e.Bundle] = c.going[e.Bundle] || c.goes(s, e)
			}
		}
	}
}

// isFormer reports whether a work has a gateway which is not to be there, or not to have that name.
func (c *clusterPlan) isFormer(s *Sent, e *Existing) bool {
	return s.Source == e.Bundle && (!s.Asked || s.Withdrawn) && !s.Lost && c.unwantedGateway(s.Key, e.Bundle)
}

// isGateway reports whether a name on a spoke is that of a gateway.
func isGateway(k Key) bool {
	return k.Group == gatewayKind.Group && k.Resource == gatewayKind.Resource
}

// unwantedGateway reports whether a gateway's bundle is not to have a gateway of that name.
func (c *clusterPlan) unwantedGateway(k Key, bundle Source) bool {
	return isGateway(k) && bundle.Group == gatewayKind.Group && bundle.Kind == kindGateway &&
		!slices.ContainsFunc(c.copies[k], func(one placed) bool { return one.Source == bundle })
}

// goes reports whether a work has a gateway which is not to be there any more. Its policies stay until it is gone, so
// that it never serves without them.
func (c *clusterPlan) goes(s *Sent, e *Existing) bool {
	if !c.isFormer(s, e) || c.held[s.Source] {
		return false
	}
	other, _ := c.renamed(s, e)
	return e.Deleting || !other || !c.renaming[e.Bundle]
}

// waitsToGo reports whether a work that is not wanted stays until a gateway is gone that is in another.
func (c *clusterPlan) waitsToGo(e *Existing) bool {
	return c.wanted[e.Name] == nil && c.going[e.Bundle] && !slices.ContainsFunc(e.Sent, func(s Sent) bool { return c.goes(&s, e) })
}

// before orders two copies: the first has the name that both want. A blocked gateway comes after one that is not,
// or neither would be made.
func (c *clusterPlan) before(a, b placed) int {
	if there := c.isThere(a.Copy); there != c.isThere(b.Copy) {
		if there {
			return -1
		}
		return 1
	}
	blocked := index(c.blocked(a)) - index(c.blocked(b))
	return cmp.Or(blocked, strings.Compare(a.created, b.created), a.Source.Compare(b.Source))
}

// isThere reports whether a copy has been sent to be written.
func (c *clusterPlan) isThere(one *Copy) bool {
	return slices.ContainsFunc(c.sent[one.Key()], func(s at) bool { return s.Source == one.Source && !s.Asked && !s.Lost && !s.work.Deleting })
}

// gives reports whether a copy gives way to that of another source.
func (c *clusterPlan) gives(s Source, key Key) bool {
	holder, several := c.holders[key]
	return several && holder != s
}

func (c *clusterPlan) plan() (writes []Write) {
	for name, w := range c.wanted {
		e := c.there[name]
		entries := append(c.own(w, e), c.leaving(name, e)...)
		switch {
		case e == nil && len(entries) > 0:
			writes = append(writes, Write{
				Verb:       Create,
				Cluster:    w.Cluster,
				Name:       name,
				Bundle:     w.Bundle,
				controller: c.controller,
				entries:    entries,
				left:       w.Left,
			})
		case e != nil && !e.Deleting:
			writes = append(writes, c.change(e, w.Bundle, w.Left, entries)...)
		}
	}
	for name, e := range c.there {
		if c.wanted[name] == nil && !e.Deleting {
			writes = append(writes, c.change(e, e.Bundle, e.Left, c.leaving(name, e))...)
		}
	}
	return writes
}

// own are the entries of a work for what is wanted in it.
func (c *clusterPlan) own(w *Work, e *Existing) (entries []entry) {
	for _, one := range w.Copies {
		if c.held[one.Source] || c.gives(one.Source, one.Key()) && e.writes(one) {
			continue // a copy that gives way is first removed from the work, and then read
		}
		asked := c.asks(one, w, e)
		if s := e.withdrawn(one); s != nil && asked && !s.Noted {
			entries = append(entries, entry{sent: s}) // its report answers for the copy too
			continue
		}
		entries = append(entries, entry{copy: one, asked: asked})
	}
	return entries
}

// withdrawn returns what a work has left of a copy that was withdrawn, or nil.
func (e *Existing) withdrawn(one *Copy) *Sent {
	if e == nil {
		return nil
	}
	at := slices.IndexFunc(e.Sent, func(s Sent) bool {
		return s.Withdrawn && s.Key == one.Key() && s.Source == one.Source
	})
	if at < 0 {
		return nil
	}
	return &e.Sent[at]
}

// withdrawing returns entries for the copies that a work has, that the given entries lack, and that the agent has not
// noted. The agent may have written one since its last report, and deletes only copies that it has noted
// (open-cluster-management-io/ocm#632). When the whole work goes, the spoke's garbage collector deletes them.
func withdrawing(e *Existing, entries []entry) (all []entry) {
	stays := map[Key]bool{}
	for _, one := range entries {
		stays[one.key()] = true
	}
	for i := range e.Sent {
		s := &e.Sent[i]
		if s.Orphan || s.Lost || s.Noted || stays[s.Key] || s.Source == (Source{}) || s.Asked && !s.Withdrawn {
			continue
		}
		all = append(all, entry{sent: s, withdraws: !s.Withdrawn})
	}
	return all
}

// writes reports whether a work has a copy written.
func (e *Existing) writes(one *Copy) bool {
	return e != nil && slices.ContainsFunc(e.Sent, func(s Sent) bool { return s.Key == one.Key() && s.Source == one.Source && !s.Asked })
}

// asks reports whether a copy is only asked for: until it is known that nothing else has its name, in a namespace that
// is there. What was sent once is ours, unless it is lost: as long as it is not there, something else may come in its
// place, which the agent would write over. A gateway that is not there is also asked for until its policies have been
// applied.
func (c *clusterPlan) asks(one *Copy, w *Work, own *Existing) bool {
	if one.Orphan {
		return false
	}
	if c.gives(one.Source, one.Key()) {
		return true
	}
	if c.isThere(one) {
		return false
	}
	free, ours := false, false
	for _, s := range c.sent[one.Key()] {
		if s.Source != one.Source && !s.Asked && s.work != own && !s.work.Deleting {
			return true // another is about to be there, whatever is reported
		}
		if s.Source == one.Source && s.work == own && !own.Deleting && own.has(one.Namespace) {
			free, ours = free || s.Free, ours || s.Ours
		}
	}
	return !free || !ours && one.Source == w.Bundle && c.waits(w)
}

// has reports whether a namespace that a work makes or asks for is there. It is reported together with what lies in it:
// of what is looked for in a namespace before there is one, nothing is known.
func (e *Existing) has(namespace string) bool {
	return slices.ContainsFunc(e.Sent, func(s Sent) bool { return s.There && s.Key == namespaceKey(namespace) })
}

// leaving are entries for what a work has and is not to have, as long as it can't go.
func (c *clusterPlan) leaving(name string, e *Existing) (entries []entry) {
	if e == nil {
		return nil
	}
	waits := c.waitsToGo(e)
	for i := range e.Sent {
		s := &e.Sent[i]
		if s.Orphan && waits {
			entries = append(entries, entry{sent: s})
		}
		if s.Orphan || s.Asked || s.Lost || c.gives(s.Source, s.Key) {
			continue
		}
		to, moves := c.moves(s, name)
		other, _ := c.renamed(s, e)
		switch {
		case c.held[s.Source]:
			entries = append(entries, entry{sent: s})
		case moves:
			entries = append(entries, entry{copy: to})
		case slices.ContainsFunc(c.copies[s.Key], func(one placed) bool { return one.Source == s.Source }): // it is in another work, or in this one
		case other && (c.renaming[e.Bundle] || c.besideFormer(c.wanted[name])), waits, s.Source != e.Bundle && c.going[e.Bundle] && c.wanted[name] != nil:
			entries = append(entries, entry{sent: s, late: true})
		}
	}
	return entries
}

// besideFormer reports whether one of a policy's gateways has a former name still.
func (c *clusterPlan) besideFormer(w *Work) bool {
	return w != nil && slices.ContainsFunc(w.With, func(g Source) bool { return c.former[g] })
}

// renamed reports whether what a work has is wanted under another name, and whether it is not there yet under that. All
// of a bundle stays under the old names until all is there under the new ones: a gateway is not without its policies in
// between. A name that something else is to have is given up at once. What sets send counts for each set alone, as
// another set's is not in its place.
func (c *clusterPlan) renamed(s *Sent, e *Existing) (other, waits bool) {
	if s.Orphan || s.Asked || s.Lost || s.Source == (Source{}) || len(c.copies[s.Key]) > 0 {
		return false, false
	}
	for _, one := range c.named(sourceKind{s.Source, s.Group, s.Resource}) {
		if s.Source.Kind == networkPolicyKind.Kind && s.Source.Group == networkPolicyKind.Group && c.wanted[one.work].Bundle != e.Bundle {
			continue
		}
		other, waits = true, waits || !c.applied(one)
	}
	return other, waits
}

func (c *clusterPlan) named(of sourceKind) []placed {
	if c.names == nil {
		c.names = map[sourceKind][]placed{}
		for key, wanted := range c.copies {
			for _, one := range wanted {
				of := sourceKind{one.Source, key.Group, key.Resource}
				c.names[of] = append(c.names[of], one)
			}
		}
	}
	return c.names[of]
}

// applied reports whether a copy is there from the work that it is wanted in.
func (c *clusterPlan) applied(one placed) bool {
	e := c.there[one.work]
	return e != nil && !e.Deleting && slices.ContainsFunc(e.Sent, func(s Sent) bool {
		return s.Key == one.Key() && s.Hash == one.Hash && s.Applied
	})
}

// moves reports whether what a work has is wanted in another, and not there yet. As it is there in both for a while, it
// is what is wanted in both, or the two would undo each other's.
func (c *clusterPlan) moves(s *Sent, from string) (to *Copy, moves bool) {
	for _, one := range c.copies[s.Key] {
		if one.Source != s.Source {
			continue
		}
		if one.work == from {
			return nil, false
		}
		if to == nil {
			to = one.Copy
		}
		if c.applied(one) {
			return nil, false
		}
	}
	return to, to != nil
}

// change returns the write of a work that differs from the desired one. What would be too large does without what has
// another name now, and waits until something has moved away.
func (c *clusterPlan) change(e *Existing, bundle Source, left string, entries []entry) []Write {
	if tooLarge(entries) {
		entries = slices.DeleteFunc(entries, func(one entry) bool { return one.late })
	}
	w := Write{
		Verb:            Update,
		Cluster:         e.Cluster,
		Name:            e.Name,
		Bundle:          bundle,
		ResourceVersion: e.ResourceVersion,
		controller:      c.controller,
		entries:         entries,
		left:            left,
		unleft:          left == "" && e.Left != "",
	}
	if !slices.ContainsFunc(entries, func(one entry) bool { return !one.orphan() }) && c.wanted[e.Name] == nil || len(entries) == 0 {
		w.Verb, w.entries = Delete, nil
		w.Drops = drops(e, nil)
		return []Write{w}
	}
	entries = append(entries, withdrawing(e, entries)...)
	w.entries = entries
	if w.hash() == e.Hash {
		return nil
	}
	if tooLarge(entries) {
		return nil
	}
	w.changed, w.whole = changes(e, entries)
	if !w.whole && len(w.changed) > 0 && !slices.ContainsFunc(w.changed, func(i int) bool { return entries[i].asked || e.Sent[i].Asked }) {
		w.generation = e.Generation
	}
	w.Live = w.whole && slices.ContainsFunc(entries, func(one entry) bool { return one.copy == nil })
	w.Drops = drops(e, entries)
	return []Write{w}
}

// changes are the entries that differ from what a work has in their places, if nothing else of it differs.
func changes(e *Existing, entries []entry) (changed []int, whole bool) {
	if e.other || len(entries) != len(e.Sent) {
		return nil, true
	}
	for i, one := range entries {
		switch s := &e.Sent[i]; {
		case one.key() != s.Key || one.orphan() != s.Orphan:
			return nil, true
		case one.digest() == s.digest:
		case one.copy == nil:
			return nil, true
		default:
			changed = append(changed, i)
		}
	}
	return changed, false
}

func tooLarge(entries []entry) bool {
	return (&Write{entries: entries}).Bytes() > mostBytes || len(entries) > mostManifests
}

// drops are what goes from a spoke with a work's entries: what stays there, and what was only asked for, does not.
func drops(e *Existing, entries []entry) (gone []Sent) {
	stays := map[Key]bool{}
	for _, one := range entries {
		stays[one.key()] = stays[one.key()] || !one.withdraws
	}
	for _, s := range e.Sent {
		if !s.Orphan && (!s.Asked || s.Withdrawn) && !stays[s.Key] {
			gone = append(gone, s)
		}
	}
	return gone
}

// Bytes returns how many bytes of manifests the work is to have.
func (w *Write) Bytes() (size int) {
	for _, one := range w.entries {
		size += one.bytes()
	}
	return size
}

// Sources returns the sources of the copies that the work is to have.
func (w *Write) Sources() (sources []Source) {
	for _, one := range w.entries {
		if one.copy != nil && !one.orphan() && !slices.Contains(sources, one.copy.Source) {
			sources = append(sources, one.copy.Source)
		}
	}
	return sources
}

func (w *Write) labels() map[string]string {
	return map[string]string{LabelController: ControllerLabel(w.controller), LabelBundle: BundleLabel(w.Bundle)}
}

func (w *Write) annotations() map[string]string {
	all := map[string]string{AnnotationBundle: w.Bundle.String()}
	if w.left != "" {
		all[AnnotationLeft] = w.left
	}
	return all
}

func (w *Write) hash() string {
	return hashEntries(w.entries, ControllerLabel(w.controller), BundleLabel(w.Bundle), w.Bundle.String(), w.left)
}

// Work returns the desired work. Live is the work as the hub has it; it may be nil for a Create, or if Live is not
// needed.
func (w *Write) Work(live *workv1.ManifestWork) (*workv1.ManifestWork, error) {
	spec, err := render(w.entries, live)
	if err != nil {
		return nil, fmt.Errorf("work %s in cluster %s: %w", w.Name, w.Cluster, err)
	}
	return &workv1.ManifestWork{
		TypeMeta: metav1.TypeMeta{APIVersion: workv1.GroupVersion.String(), Kind: "ManifestWork"},
		ObjectMeta: metav1.ObjectMeta{
			Name: w.Name, Namespace: w.Cluster, ResourceVersion: w.ResourceVersion,
			Labels: w.labels(), Annotations: w.annotations(),
		},
		Spec: spec,
	}, nil
}

// operation is one of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

var pointer = strings.NewReplacer("~", "~0", "/", "~1")

// Patch is an Update as a JSON patch, which leaves what others have in the work's metadata; annotated reports whether
// it has annotations at all. It fails if the work has changed, or if its spec has where that is all that counts;
// without annotations that is not all, as others' may have come, which are not to be replaced. Of an edit it has no
// more than the manifests that are others now. A merge patch would not do: a null in a copy would take away what it is
// the value of.
func (w *Write) Patch(live *workv1.ManifestWork, annotated bool) ([]byte, error) {
	patch := []operation{{"replace", "/metadata/resourceVersion", w.ResourceVersion}}
	if w.generation > 0 && annotated {
		patch = []operation{{"test", "/metadata/generation", w.generation}}
	}
	if w.whole {
		spec, err := render(w.entries, live)
		if err != nil {
			return nil, fmt.Errorf("work %s in cluster %s: %w", w.Name, w.Cluster, err)
		}
		patch = append(patch, operation{"replace", "/spec", spec})
	}
	for _, i := range w.changed {
		one := w.entries[i]
		patch = append(patch,
			operation{"replace", fmt.Sprintf("/spec/workload/manifests/%d", i), json.RawMessage(one.copy.JSON)},
			operation{"replace", fmt.Sprintf("/spec/manifestConfigs/%d", i), one.copy.configs[index(one.asked)]})
	}
	if !annotated {
		patch = append(patch, operation{"add", "/metadata/annotations", Object{}})
	}
	for key, value := range w.annotations() {
		patch = append(patch, operation{"add", "/metadata/annotations/" + pointer.Replace(key), value})
	}
	if w.unleft {
		patch = append(patch, operation{"remove", "/metadata/annotations/" + pointer.Replace(AnnotationLeft), nil})
	}
	for key, value := range w.labels() {
		patch = append(patch, operation{"add", "/metadata/labels/" + pointer.Replace(key), value})
	}
	return json.Marshal(append(patch, untracked))
}

// untracked has the API server keep no record of who set which of a work's fields
// (https://kubernetes.io/docs/reference/using-api/server-side-apply/#clearing-managedfields): a client that applies
// nothing has no use for it, and it costs the API server a good part of each write, also of each status that the work
// agent writes.
var untracked = operation{"add", "/metadata/managedFields", []Object{{}}}
