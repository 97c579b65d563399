package fleet

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	workv1 "open-cluster-management.io/api/work/v1"
)

// ReasonTooLarge is that of a copy that is larger than any work may be.
const ReasonTooLarge = "TooLarge"

// Limits of a work, which has a status too, in which the agent answers for each manifest. OCM's own limit is 500 KiB of manifests.
const (
	workBytes     = 400 << 10 // manifests and their feedback rules
	workManifests = 100
	// namespaceBytes is the most that the manifest of a namespace has, which goes with each copy.
	namespaceBytes = 256
	copyBytes      = workBytes - 16<<10 // of one, as namespaces and the gateway may be in the work too
	// workPolicies bounds what an edit costs, for a work is read and written as a whole, several times until it is answered. With 20 policies in each work
	// (94 kB) an edit took the hub's API server 11.7 s of CPU over 50 clusters, with four at most 2.4 s, with two 1.9 s. A gateway with 20 policies then
	// has about 13 works in a cluster, and all works together are a sixth larger than with four.
	workPolicies = 2
	// mostBytes of manifests a work has while copies move from it to others; mostManifests likewise.
	mostBytes     = 480 << 10
	mostManifests = 2 * workManifests
)

// fieldManager writes copies on spokes, whichever work they are in. Agents take none that begins otherwise.
const fieldManager = "work-agent-flowkeep"

// toldSource is the feedback value with the source of the object that has a copy's name.
const toldSource = "source"

var sourcePath = workv1.JsonPath{Name: toldSource, Path: ".metadata.annotations." + strings.ReplaceAll(AnnotationSource, ".", `\.`)}

// String returns text like gateways.gateway.networking.k8s.io/shop/web.
func (k Key) String() string {
	return schema.GroupResource{Group: k.Group, Resource: k.Resource}.String() + "/" + k.Name.String()
}

// Work is what one cluster is to get of a bundle, or a part of it.
type Work struct {
	Cluster, Name string
	Bundle        Source
	Copies        []*Copy
	Held          map[Source]bool
	// After are the policies that a gateway in it waits for where it is new.
	After []Await
	// With are the gateways of a policy, which stays under a former name as long as one of them does.
	With []Source
	// Left is the value of AnnotationLeft; empty: it has none.
	Left string
}

// ControllerLabel returns the value of LabelController on works of a controller.
func ControllerLabel(controller string) string { return hashOf(16, controller) }

// BundleLabel returns the value of LabelBundle on works of a bundle.
func BundleLabel(bundle Source) string { return hashOf(16, bundle.String()) }

// Works are those of all clusters, in order. A cluster's copies are spread over parts by hash, so that most stay where they are when there are
// more of them, or one of them grows. The gateway, its Secrets and the namespaces that are made are always in the
// first; each has the namespaces that its copies lie in.
func (b *Bundle) Works(controller string) []*Work {
	bytes := workBytes
	if b.limit > 0 {
		bytes = min(bytes, b.limit)
	}
	return b.works(controller, limits{bytes, workManifests, workPolicies})
}

// Restrict keeps a bundle's works within a limit of the hub, in bytes of manifests; 0: it has none. Larger copies are
// sent in works of their own. Copies above the limit alone are not sent, and what was sent of them stays; words are
// those of the hub.
func (b *Bundle) Restrict(limit, alone int, words string) {
	if b.limit = limit; limit == 0 {
		return
	}
	for i := range b.Clusters {
		c, over := &b.Clusters[i], map[Source]bool{}
		for _, one := range c.Copies {
			size := len(one.JSON) + namespaceBytes
			if size <= alone || one.Orphan || over[one.Source] {
				continue
			}
			over[one.Source] = true
			c.hold(one.Source)
			b.Problems = append(b.Problems, Problem{
				Source:  one.Source,
				Cluster: c.Cluster,
				Reason:  ReasonTooLarge,
				Message: fmt.Sprintf("its copy has %d bytes, and the hub takes %d: %s; what was sent before stays",
					size, alone, words),
			})
		}
		if len(over) > 0 { // clusters may share the slice
			c.Copies = slices.DeleteFunc(slices.Clone(c.Copies), func(one *Copy) bool {
				return !one.Orphan && over[one.Source]
			})
		}
	}
}

// IsTooLarge reports whether a copy is larger than any work may be.
func (p Problem) IsTooLarge() bool { return p.Reason == ReasonTooLarge }

// limits of a work.
type limits struct{ bytes, manifests, policies int }

func (b *Bundle) works(controller string, most limits) (works []*Work) {
	var copies []*Copy
	var parts []part
	for _, c := range b.Clusters {
		if parts == nil || !slices.Equal(c.Copies, copies) { // most clusters have the same
			copies, parts = c.Copies, split(c.Copies, b.Source, most)
		}
		if len(parts) == 0 {
			parts = []part{{}}
		}
		for i, p := range parts {
			w := &Work{
				Cluster: c.Cluster,
				Name:    workName(controller, b.Source, p.number),
				Bundle:  b.Source,
				Copies:  p.copies,
				Held:    c.Held,
				After:   b.After,
				With:    b.With,
			}
			if i == 0 {
				w.Left = b.Left.text(c.Cluster)
			}
			works = append(works, w)
		}
	}
	return works
}

// workName is at most 63 characters long: as many of the bundle's name as fit, and a hash.
func workName(controller string, bundle Source, part uint64) string {
	stem := strings.ToLower(bundle.Namespace + "-" + bundle.Name.Name)
	stem = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, stem)
	const hashed = 16
	if most := 63 - 1 - hashed; len(stem) > most {
		stem = stem[:most]
	}
	if stem = strings.Trim(stem, "-"); stem == "" {
		stem = "work"
	}
	return stem + "-" + hashOf(hashed, controller, bundle.String(), fmt.Sprint(part))
}

type part struct {
	number uint64
	copies []*Copy
}

// split divides what is not within the limits by one more bit of the copies' hashes, and nothing else. So what is added moves at most some copies of
// one part.
func split(copies []*Copy, bundle Source, most limits) []part {
	d := divider{bundle: bundle, most: most, namespaces: map[string]*Copy{}}
	var own []*Copy
	for _, c := range copies {
		if c.Orphan {
			d.namespaces[c.Name.Name] = c
		}
		if !c.ReadOnly {
			own = append(own, c)
		}
	}
	d.divide(0, 1, own)
	slices.SortFunc(d.parts, func(a, b part) int { return cmp.Compare(a.number, b.number) })
	return d.parts
}

type divider struct {
	bundle     Source
	most       limits
	namespaces map[string]*Copy
	parts      []part
}

// divide makes parts of copies whose hashes have the number as remainder when divided by n. What stays keeps the number, and what goes has a bit more
// than any before it, so no two parts have the same.
func (d *divider) divide(number, n uint64, copies []*Copy) {
	if len(copies) == 0 {
		return
	}
	p, fits := d.part(number, copies)
	if fits || len(copies) == 1 || n == 1<<63 || !slices.ContainsFunc(copies, d.moves) {
		d.parts = append(d.parts, p)
		return
	}
	goes := func(c *Copy) bool { return d.moves(c) && c.spread&n != 0 }
	d.divide(number, 2*n, slices.DeleteFunc(slices.Clone(copies), goes))
	d.divide(number+n, 2*n, slices.DeleteFunc(slices.Clone(copies), func(c *Copy) bool { return !goes(c) }))
}

// moves reports whether a copy may be in another part than the first.
func (d *divider) moves(c *Copy) bool { return !c.CreateOnly && c.Source != d.bundle && !isSecret(c) }

// part is copies, each behind the namespace that it lies in.
func (d *divider) part(number uint64, copies []*Copy) (p part, fits bool) {
	p.number = number
	size, policies := 0, 0
	put := func(c *Copy) {
		if !c.Orphan || !slices.Contains(p.copies, c) {
			p.copies = append(p.copies, c)
			size += c.size()
		}
	}
	for _, c := range copies {
		if in := d.namespaces[c.Namespace]; in != nil && !c.Orphan {
			put(in)
		}
		put(c)
		if d.moves(c) && c.Kind != kindEnforcement {
			policies++
		}
	}
	return p, size <= d.most.bytes && len(p.copies) <= d.most.manifests && policies <= d.most.policies
}

// finish makes of a copy what is the same in all works.
func (c *Copy) finish() *Copy {
	sum := sha256.Sum256([]byte(c.Key().String()))
	c.spread = binary.BigEndian.Uint64(sum[:8])
	for i, asked := range []bool{false, true} {
		c.configs[i] = c.config(asked)
		raw, _ := json.Marshal(c.configs[i]) // texts and numbers always can be
		c.configBytes = len(raw)
		c.digests[i] = digestOf(c.JSON, c.configs[i])
	}
	return c
}

// digestOf returns a digest of a manifest of a work and of how an agent treats it. Of what
// the agent is to report only the names count: where a version asks for the same by another path, works are not
// rewritten for that alone, or its start would write those of a whole fleet.
func digestOf(manifest []byte, config workv1.ManifestConfigOption) string {
	h := sha256.New()
	h.Write(manifest)
	h.Write([]byte{0})
	var names []string
	for _, rule := range config.FeedbackRules {
		names = append(names, string(rule.Type))
		for _, p := range rule.JsonPaths {
			names = append(names, p.Name, p.Version)
		}
	}
	config.FeedbackRules = nil
	raw, _ := json.Marshal(struct {
		workv1.ManifestConfigOption
		Told []string
	}{config, names})
	h.Write(raw)
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// size is what a copy takes of a work's limit.
func (c *Copy) size() int { return len(c.JSON) + c.configBytes }

// config is how a spoke's agent treats a copy: it asks what is there, or writes it, whatever was made of it there by hand.
func (c *Copy) config(asked bool) workv1.ManifestConfigOption {
	o := workv1.ManifestConfigOption{ResourceIdentifier: workv1.ResourceIdentifier{
		Group: c.Resource.Group, Resource: c.Resource.Resource, Name: c.Name.Name, Namespace: c.Namespace,
	}}
	switch {
	case c.CreateOnly:
		o.UpdateStrategy = &workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeCreateOnly}
		return o
	case c.ReadOnly:
		o.UpdateStrategy = &workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeReadOnly}
		return o
	case asked:
		o.UpdateStrategy = &workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeReadOnly}
	default:
		o.UpdateStrategy = &workv1.UpdateStrategy{
			Type:            workv1.UpdateStrategyTypeServerSideApply,
			ServerSideApply: &workv1.ServerSideApplyConfig{Force: true, FieldManager: fieldManager},
		}
	}
	paths := c.Feedback
	if !slices.ContainsFunc(paths, func(p workv1.JsonPath) bool { return p.Name == toldSource }) {
		paths = append(slices.Clip(paths), sourcePath)
	}
	o.FeedbackRules = []workv1.FeedbackRule{{Type: workv1.JSONPathsType, JsonPaths: paths}}
	return o
}

// Existing is what matters of a work that is there.
type Existing struct {
	Cluster, Name   string
	Bundle          Source
	ResourceVersion string
	Generation      int64 // of its spec
	// Deleting: its copies are going.
	Deleting bool
	// Left is the value of AnnotationLeft.
	Left string
	// Dropped are copies that it has no more, and that the agent has not let go yet, as far as it has reported.
	Dropped []Key
	// Hash is that of its spec and of its labels and annotations that are ours.
	Hash string
	Sent []Sent

	other bool // there is something in its spec that we did not put there
}

// Sent is a manifest of a work that is there.
type Sent struct {
	Key
	Source Source
	// Hash is the copy's.
	Hash string
	// Asked: it is only asked for what is there.
	Asked bool
	// Orphan: it stays when the work goes.
	Orphan bool
	// Applied: the agent has applied it, in the version that the work has.
	Applied bool
	// Free: it was asked for, and nothing of that name is there, or a copy of the same source.
	Free bool
	// Ours: it was asked for, and a copy of the same source is there.
	Ours bool
	// There: of what is the spoke's own (namespaces), that there is one.
	There bool
	// Lost: it was to be written, and is not there any more: its namespace, which is not ours to make, is gone, or something else has its name
	// and the spoke does not let it be written.
	Lost bool
	// Noted: the agent has reported it there as ours, in any version of the work. The agent has noted it as the work's
	// then, and deletes it when the work drops it. Of a Withdrawn one: the agent has reported on it.
	Noted bool
	// Withdrawn: it was written and is wanted no more. The work has its name alone until it is Noted.
	Withdrawn bool

	digest string
	bytes  int
}

// ReadExisting reads a work of ours.
func ReadExisting(w *workv1.ManifestWork) *Existing {
	e := &Existing{Cluster: w.Namespace, Name: w.Name, ResourceVersion: w.ResourceVersion, Generation: w.Generation, Deleting: w.DeletionTimestamp != nil}
	e.Bundle, _ = ParseSource(shared(w.Annotations[AnnotationBundle]))
	e.Left = w.Annotations[AnnotationLeft]
	orphans := orphansOf(w.Spec.DeleteOption)
	matched := len(w.Spec.ManifestConfigs) == len(w.Spec.Workload.Manifests)
	e.Sent = make([]Sent, 0, len(w.Spec.Workload.Manifests))
	for i, m := range w.Spec.Workload.Manifests {
		var config workv1.ManifestConfigOption
		if i < len(w.Spec.ManifestConfigs) {
			config = w.Spec.ManifestConfigs[i]
		}
		e.Sent = append(e.Sent, readSent(m.Raw, config, orphans))
	}
	readManifestStates(w, e.Sent)
	e.Dropped = dropped(w, e.Sent)
	e.Hash = e.hash(w, matched)
	return e
}

func orphansOf(option *workv1.DeleteOption) map[workv1.ResourceIdentifier]bool {
	orphans := map[workv1.ResourceIdentifier]bool{}
	if option != nil && option.SelectivelyOrphan != nil {
		for _, rule := range option.SelectivelyOrphan.OrphaningRules {
			orphans[workv1.ResourceIdentifier(rule)] = true
		}
	}
	return orphans
}

func readSent(raw []byte, config workv1.ManifestConfigOption, orphans map[workv1.ResourceIdentifier]bool) Sent {
	id := config.ResourceIdentifier
	s := Sent{Key: Key{shared(id.Group), shared(id.Resource), Name{shared(id.Namespace), shared(id.Name)}}, Orphan: orphans[id], bytes: len(raw)}
	s.Asked = config.UpdateStrategy != nil && config.UpdateStrategy.Type == workv1.UpdateStrategyTypeReadOnly
	var o Object
	if utiljson.Unmarshal(raw, &o) == nil {
		annotations := object(o, "metadata", "annotations")
		s.Source, _ = ParseSource(shared(textOf(annotations, AnnotationSource)))
		s.Hash = shared(textOf(annotations, AnnotationCopy))
		raw, _ = json.Marshal(o)
	}
	s.Withdrawn = s.Asked && !s.Orphan && s.Hash == "" && s.Source != (Source{})
	s.digest = shared(digestOf(raw, config))
	return s
}

// shared is the same text in one place: works of many clusters have much in common.
func shared(text string) string { return unique.Make(text).Value() }

// readNoted reads which manifests the agent has reported there as ours, in whichever version of the work.
func readNoted(w *workv1.ManifestWork, sent []Sent) {
	for i := range w.Status.ResourceStatus.Manifests {
		m := &w.Status.ResourceStatus.Manifests[i]
		source := sourceTold(m)
		if source == "" || !statusIs(m.Conditions, workv1.ManifestAvailable, metav1.ConditionTrue, "") {
			continue
		}
		key := Key{m.ResourceMeta.Group, m.ResourceMeta.Resource, Name{m.ResourceMeta.Namespace, m.ResourceMeta.Name}}
		at := slices.IndexFunc(sent, func(s Sent) bool { return s.Key == key })
		if at >= 0 && !sent[at].Withdrawn && sent[at].Source.String() == source {
			sent[at].Noted = true
		}
	}
}

// readManifestStates reads the states of a work's manifests from its status into sent.
func readManifestStates(w *workv1.ManifestWork, sent []Sent) {
	readNoted(w, sent)
	if !observed(w, workv1.WorkApplied) {
		return
	}
	available := observed(w, workv1.WorkAvailable)
	var gone []string // namespaces
	for i := range w.Status.ResourceStatus.Manifests {
		m := &w.Status.ResourceStatus.Manifests[i]
		at := int(m.ResourceMeta.Ordinal)
		if at < 0 || at >= len(sent) || sent[at].Key.Name != (Name{m.ResourceMeta.Namespace, m.ResourceMeta.Name}) || sent[at].Group != m.ResourceMeta.Group {
			continue
		}
		s := &sent[at]
		applied := statusIs(m.Conditions, workv1.ManifestApplied, metav1.ConditionTrue, "")
		s.Applied = applied && !s.Asked
		s.Noted = s.Noted || s.Withdrawn && available && statusIs(m.Conditions, workv1.ManifestAvailable, "", "")
		s.There = applied && s.Orphan && available && statusIs(m.Conditions, workv1.ManifestAvailable, metav1.ConditionTrue, "")
		s.Ours = applied && s.Asked && available && statusIs(m.Conditions, workv1.ManifestAvailable, metav1.ConditionTrue, "") && sourceTold(m) == s.Source.String()
		s.Free = s.Ours || applied && s.Asked && available && statusIs(m.Conditions, workv1.ManifestAvailable, metav1.ConditionFalse, "ResourceNotAvailable")
		s.Lost = !s.Orphan && !s.Asked && available && statusIs(m.Conditions, workv1.ManifestApplied, metav1.ConditionFalse, "") &&
			statusIs(m.Conditions, workv1.ManifestAvailable, metav1.ConditionTrue, "") && sourceTold(m) != s.Source.String()
		if applied && s.Orphan && s.Asked && available && statusIs(m.Conditions, workv1.ManifestAvailable, metav1.ConditionFalse, "ResourceNotAvailable") {
			gone = append(gone, s.Name.Name)
		}
	}
	for i := range sent {
		if s := &sent[i]; !s.Orphan && !s.Asked && slices.Contains(gone, s.Namespace) {
			s.Lost = true
		}
	}
}

// dropped are the manifests that a work's status is about and that it has no more: until the agent has seen that, they may be there.
func dropped(w *workv1.ManifestWork, sent []Sent) (keys []Key) {
	for i := range w.Status.ResourceStatus.Manifests {
		m := &w.Status.ResourceStatus.Manifests[i].ResourceMeta
		if !slices.ContainsFunc(sent, func(s Sent) bool {
			return s.Group == m.Group && s.Key.Name == Name{m.Namespace, m.Name} && (s.Resource == m.Resource || m.Resource == "")
		}) {
			keys = append(keys, Key{shared(m.Group), shared(m.Resource), Name{shared(m.Namespace), shared(m.Name)}})
		}
	}
	return keys
}

// observed reports whether a condition of a work is about its spec as it is.
func observed(w *workv1.ManifestWork, typ string) bool {
	return slices.ContainsFunc(w.Status.Conditions, func(c metav1.Condition) bool { return c.Type == typ && c.ObservedGeneration == w.Generation })
}

// statusIs reports whether there is a condition of a type, with this status and reason; an empty one stands for any.
func statusIs(conditions []metav1.Condition, typ string, status metav1.ConditionStatus, reason string) bool {
	return slices.ContainsFunc(conditions, func(c metav1.Condition) bool {
		return c.Type == typ && (status == "" || c.Status == status) && (reason == "" || c.Reason == reason)
	})
}

func sourceTold(m *workv1.ManifestCondition) string {
	for _, v := range m.StatusFeedbacks.Values {
		if v.Name == toldSource && v.Value.String != nil {
			return *v.Value.String
		}
	}
	return ""
}

// hash returns the hash that a plan's is compared with. Anything in the work that we did not put there changes it.
func (e *Existing) hash(w *workv1.ManifestWork, matched bool) string {
	entries := make([]entry, len(e.Sent))
	for i := range e.Sent {
		entries[i] = entry{sent: &e.Sent[i]}
	}
	hash := hashEntries(entries, w.Labels[LabelController], w.Labels[LabelBundle], w.Annotations[AnnotationBundle], e.Left)
	option, _ := json.Marshal(w.Spec.DeleteOption)
	own, _ := json.Marshal(deleteOption(entries))
	if e.other = !matched || w.Spec.Executor != nil || !bytes.Equal(option, own); e.other {
		return "other " + hash
	}
	return hash
}

// entry is a manifest of a desired work: a copy, or a manifest that the work has already.
type entry struct {
	copy  *Copy
	asked bool
	sent  *Sent
	late  bool // it has another name now
	// withdraws: of sent only the name is left, for the agent to report on.
	withdraws bool
}

func (e entry) digest() string {
	if e.withdraws {
		return "withdraws " + e.sent.digest
	}
	if e.copy == nil {
		return e.sent.digest
	}
	return e.copy.digests[index(e.asked)]
}

func (e entry) key() Key {
	if e.copy == nil {
		return e.sent.Key
	}
	return e.copy.Key()
}

func (e entry) orphan() bool {
	if e.copy == nil {
		return e.sent.Orphan
	}
	return e.copy.Orphan
}

func (e entry) bytes() int {
	if e.withdraws {
		return 0
	}
	if e.copy == nil {
		return e.sent.bytes
	}
	return len(e.copy.JSON)
}

func index(asked bool) int {
	if asked {
		return 1
	}
	return 0
}

// hashEntries is that of a work of these entries, with its labels and annotations.
func hashEntries(entries []entry, meta ...string) string {
	for _, e := range entries {
		meta = append(meta, e.digest(), fmt.Sprint(e.orphan()))
	}
	return hashOf(32, meta...)
}

// deleteOption leaves on the spoke what is its own.
func deleteOption(entries []entry) *workv1.DeleteOption {
	var rules []workv1.OrphaningRule
	for _, e := range entries {
		if e.orphan() {
			k := e.key()
			rules = append(rules, workv1.OrphaningRule{Group: k.Group, Resource: k.Resource, Name: k.Name.Name, Namespace: k.Namespace})
		}
	}
	if rules == nil {
		return &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeForeground}
	}
	return &workv1.DeleteOption{
		PropagationPolicy: workv1.DeletePropagationPolicyTypeSelectivelyOrphan,
		SelectivelyOrphan: &workv1.SelectivelyOrphan{OrphaningRules: rules},
	}
}

// render is the work's spec. What stays as it is is taken from the work that is there.
func render(entries []entry, live *workv1.ManifestWork) (spec workv1.ManifestWorkSpec, err error) {
	var there map[string]int
	for _, e := range entries {
		manifest := workv1.Manifest{}
		if e.copy != nil {
			manifest.RawExtension = runtime.RawExtension{Raw: e.copy.JSON}
			spec.ManifestConfigs = append(spec.ManifestConfigs, e.copy.configs[index(e.asked)])
		} else {
			if there == nil {
				there = digestsOf(live)
			}
			i, has := there[e.sent.digest]
			if !has {
				return spec, fmt.Errorf("%v is not in the work as it was", e.sent.Key)
			}
			config := live.Spec.ManifestConfigs[i]
			if manifest = live.Spec.Workload.Manifests[i]; e.withdraws {
				if manifest.Raw, err = nameOnly(manifest.Raw); err != nil {
					return spec, fmt.Errorf("%v: %w", e.sent.Key, err)
				}
				config.UpdateStrategy = &workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeReadOnly}
				paths := []workv1.JsonPath{sourcePath}
				config.FeedbackRules = []workv1.FeedbackRule{{Type: workv1.JSONPathsType, JsonPaths: paths}}
			}
			spec.ManifestConfigs = append(spec.ManifestConfigs, config)
		}
		spec.Workload.Manifests = append(spec.Workload.Manifests, manifest)
	}
	spec.DeleteOption = deleteOption(entries)
	return spec, nil
}

// nameOnly returns a manifest without its content: its kind, its name and its source.
func nameOnly(raw []byte) ([]byte, error) {
	var o Object
	if err := utiljson.Unmarshal(raw, &o); err != nil {
		return nil, err
	}
	meta := object(o, "metadata")
	source := textOf(object(meta, "annotations"), AnnotationSource)
	return json.Marshal(Object{"apiVersion": o["apiVersion"], "kind": o["kind"], "metadata": Object{
		"namespace": meta["namespace"], "name": meta["name"], "annotations": Object{AnnotationSource: source},
	}})
}

// digestsOf are where which manifest of a work is.
func digestsOf(live *workv1.ManifestWork) map[string]int {
	there := map[string]int{}
	if live == nil {
		return there
	}
	for i, s := range ReadExisting(live).Sent {
		if i < len(live.Spec.ManifestConfigs) {
			there[s.digest] = i
		}
	}
	return there
}
