package fleet

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	fleetv1alpha1 "github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	workv1 "open-cluster-management.io/api/work/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// randomNames are alike: short and long ones, with dots and dashes where others have slashes.
func (r random) name() Name {
	part := func() string {
		if r.IntN(5) == 0 {
			return strings.Repeat(r.one("a", "a.b", "a-"), 1+r.IntN(60)) + r.one("x", "y")
		}
		return r.one("a", "a-b", "b", "a.b", "a-b-c", "b-c", "c")
	}
	return Name{strings.ReplaceAll(part(), ".", "-"), part()}
}

func TestNames(t *testing.T) {
	r := random{rand.New(rand.NewPCG(3, 3))}
	works, copies := map[string]string{}, map[Name]Name{}
	to := Parameters{Namespace: "edge"}
	for range 20_000 {
		n := r.name()
		bundle := Source{r.one("", "x.io", "y.x.io"), r.one("Gateway", "NetworkPolicySet", "x"), n}
		part := uint64(r.IntN(4))
		of := r.one("a/b", "a", "b/c")
		name := workName(of, bundle, part)
		what := fmt.Sprint(of, " ", bundle, " ", part)
		if was, has := works[name]; has && was != what {
			t.Fatalf("%s is the name of %s and of %s", name, was, what)
		}
		works[name] = what
		if other := workName("a", Source{"", "b", n}, part); other == workName("ab", Source{"", "", n}, part) {
			t.Fatal(other)
		}
		if wrong := validation.IsDNS1123Label(name); len(wrong) > 0 {
			t.Fatal(name, wrong)
		}
		if back, ok := ParseSource(bundle.String()); !ok || back != bundle {
			t.Fatalf("%s is read as %v", bundle, back)
		}
		there := to.SpokeName(n)
		if was, has := copies[there]; has && was != n {
			t.Fatalf("%s is the name of %s and of %s", there, was, n)
		}
		copies[there] = n
		if wrong := validation.IsDNS1123Subdomain(there.Name); len(wrong) > 0 || there.Namespace != "edge" {
			t.Fatal(there, wrong)
		}
		if own := (Parameters{}).SpokeName(n); own != n {
			t.Fatalf("%s became %s", n, own)
		}
	}
	if len(works) < 5000 || len(copies) < 300 {
		t.Fatal(len(works), len(copies))
	}
}

// copyOf is a copy of so many bytes.
func copyOf(name string, size int) *Copy {
	c := &Copy{
		Source: Source{"kuadrant.io", "RateLimitPolicy", Name{"shop", name}}, Resource: schema.GroupVersionResource{Group: "kuadrant.io", Version: "v1", Resource: "ratelimitpolicies"},
		Name: Name{"shop", name}, JSON: []byte(`"` + strings.Repeat("x", size) + `"`), Hash: fmt.Sprint(size),
	}
	return c.finish()
}

// TestSplit: parts keep the limits, the gateway and the namespaces are in the first, and a copy that grows takes no other with it unless a
// limit is passed.
func TestSplit(t *testing.T) {
	bundle := GatewaySource(Name{"shop", "web"})
	most := limits{bytes: 10_000, manifests: 9, policies: 7}
	for seed := range uint64(200) {
		r := random{rand.New(rand.NewPCG(seed, 1))}
		gateway := copyOf("web", 100)
		gateway.Source = bundle
		copies := []*Copy{namespaceCopy("shop", true)}
		for i := range r.IntN(60) {
			copies = append(copies, copyOf(fmt.Sprint("p", i), r.IntN(4000)))
		}
		copies = append(copies, gateway)
		parts := split(copies, bundle, most)
		total := 0
		for i, p := range parts {
			size, policies := 0, 0
			for _, c := range p.copies {
				size += c.size()
				if !c.Orphan && c != gateway {
					policies++
				}
				if c == gateway && p.number != 0 {
					t.Errorf("seed %d: %s is in part %d", seed, c.Name, p.number)
				}
			}
			if p.copies[0] != copies[0] || slices.Contains(p.copies[1:], copies[0]) {
				t.Errorf("seed %d: part %d has not the namespace once, and first", seed, p.number)
			}
			if total += len(p.copies) - 1; size > most.bytes || len(p.copies) > most.manifests || policies > most.policies {
				t.Errorf("seed %d: part %d has %d bytes in %d manifests, %d policies", seed, p.number, size, len(p.copies), policies)
			}
			if i > 0 && parts[i-1].number >= p.number {
				t.Errorf("seed %d: parts are not in order", seed)
			}
		}
		if total != len(copies)-1 {
			t.Errorf("seed %d: %d of %d copies", seed, total, len(copies))
		}
		grown := slices.Clone(copies)
		at := r.IntN(len(copies)-1) + 1
		if grown[at] == gateway {
			continue
		}
		grown[at] = copyOf(copies[at].Name.Name, len(copies[at].JSON)+1)
		after := split(grown, bundle, most)
		if len(after) != len(parts) {
			continue // a limit was passed
		}
		changed := 0
		for i := range after {
			if !reflect.DeepEqual(after[i], parts[i]) {
				changed++
			}
		}
		if changed != 1 {
			t.Errorf("seed %d: %d of %d parts are other", seed, changed, len(parts))
		}
	}
}

// TestAdded: a policy that is added changes one part, which at most becomes several.
func TestAdded(t *testing.T) {
	bundle := GatewaySource(Name{"shop", "web"})
	for seed := range 50 {
		copies := []*Copy{namespaceCopy("shop", true)}
		before := map[uint64][]*Copy{}
		for i := range 60 {
			copies = append(copies, copyOf(fmt.Sprint(seed, "-", i), 10))
			var other []uint64
			parts := split(copies, bundle, usual)
			for _, p := range parts {
				if len(p.copies) > 1+workPolicies {
					t.Errorf("seed %d: part %d of %d policies has %d manifests", seed, p.number, i+1, len(p.copies))
				}
				if was, has := before[p.number]; has && !slices.Equal(was, p.copies) {
					other = append(other, p.number)
				}
				before[p.number] = p.copies
			}
			if len(other) > 1 {
				t.Errorf("seed %d: with policy %d parts %d are other", seed, i+1, other)
			}
			if i+1 == 20 && (len(parts) < 10 || len(parts) > 17) {
				t.Errorf("seed %d: 20 policies are in %d parts", seed, len(parts))
			}
		}
	}
}

// TestSmallerWorks: the works that were made before policies were counted become smaller ones, and at no time a copy is away.
func TestSmallerWorks(t *testing.T) {
	for seed := range uint64(5) {
		h, s, r := crowd(t, 20, 1), newSpokes(t), random{rand.New(rand.NewPCG(seed, 2))}
		s.settle(h.bundles(), former)
		if len(s.works) != 1 {
			t.Fatalf("%d works", len(s.works))
		}
		h.most = usual
		w, watch := h.bundles(), newPresence()
		for range 40 {
			plan := Plan(controller, w.works(w.most), s.existing(func(Source) bool { return true }))
			for i := range min(len(plan), 3) {
				s.write(&plan[i])
			}
			names := s.names()
			s.agent(names[r.IntN(len(names))])
			if watch.look(t, s, w); len(watch.there) < 2*21 {
				t.Fatalf("%d are there", len(watch.there))
			}
		}
		s.end(w)
		for at, work := range s.works {
			if n := len(work.Spec.Workload.Manifests); n > workPolicies+2 {
				t.Errorf("%v has %d manifests", at, n)
			}
		}
	}
}

// TestRewriteTwice: what is a copy already stays as it is.
func TestRewriteTwice(t *testing.T) {
	for seed := range uint64(300) {
		r := random{rand.New(rand.NewPCG(seed, 9))}
		h := newHub()
		o := h.randomPolicy(t, r, Name{r.one(hubSpaces...), "limits"})
		targets, err := Targets(o)
		if err != nil {
			t.Fatal(err)
		}
		to := aims{}
		for _, target := range targets {
			to[target] = Parameters{Namespace: r.one("", "edge")}.SpokeName(target)
			if r.IntN(3) == 0 {
				to[target] = Name{}
			}
		}
		once, _, err := to.aim(object(o, "spec"), nameOf(o).Namespace)
		if err != nil {
			t.Fatal(err)
		}
		twice, _, err := to.aim(once, nameOf(o).Namespace)
		if err != nil || jsonOf(t, once) != jsonOf(t, twice) {
			t.Errorf("%v\n%v\nand then\n%v", err, once, twice)
		}
		first, raw, hash, err := stamped(o, Source{"x", "X", nameOf(o)}, Name{"edge", "x"}, once)
		if err != nil {
			t.Fatal(err)
		}
		_, again, hashAgain, err := stamped(first, Source{"x", "X", nameOf(o)}, Name{"edge", "x"}, twice)
		if err != nil || string(raw) != string(again) || hash != hashAgain {
			t.Errorf("%v\n%s\nand then\n%s", err, raw, again)
		}
	}
}

// TestEdit: an edit of one policy changes the works that have it, one in each cluster, and after a restart nothing is written.
func TestEdit(t *testing.T) {
	h, s := crowd(t, 20, 6), newSpokes(t)
	s.settle(h.bundles(), small)
	if works := len(s.works); works < 12 {
		t.Fatalf("%d works: they are not split", works)
	}
	if plan := Plan(controller, h.bundles().works(small), s.existing(func(Source) bool { return true })); len(plan) != 0 {
		t.Fatalf("%d writes after a restart", len(plan))
	}
	object(h.policies["RateLimitPolicy"][7], "spec")["limit"] = int64(99)
	plan := Plan(controller, h.bundles().works(small), s.existing(func(Source) bool { return true }))
	clusters := map[string]bool{}
	for _, w := range plan {
		clusters[w.Cluster] = true
		if w.Verb != Update || w.Live || !slices.ContainsFunc(w.entries, func(e entry) bool { return e.copy.Source.Name.Name == "p07" && !e.asked }) {
			t.Errorf("%+v", w)
		}
	}
	if len(plan) != 6 || len(clusters) != 6 {
		t.Errorf("%d writes in %d clusters", len(plan), len(clusters))
	}
	for _, w := range plan {
		if bare, err := w.Patch(nil, false); err != nil || !strings.HasPrefix(string(bare), `[{"op":"replace","path":"/metadata/resourceVersion"`) {
			t.Errorf("annotations that are not known of are replaced: %s, %v", bare, err)
		}
		patch, err := w.Patch(nil, true)
		if err != nil {
			t.Fatal(err)
		}
		var operations []operation
		if err := json.Unmarshal(patch, &operations); err != nil {
			t.Fatal(err)
		}
		var paths []string
		for _, o := range operations {
			paths = append(paths, o.Op+" "+o.Path)
		}
		live := s.works[Name{w.Cluster, w.Name}]
		at := slices.IndexFunc(live.Spec.ManifestConfigs, func(c workv1.ManifestConfigOption) bool { return c.ResourceIdentifier.Name == "p07" })
		if want := []string{"test /metadata/generation", fmt.Sprint("replace /spec/workload/manifests/", at), fmt.Sprint("replace /spec/manifestConfigs/", at)}; !slices.Equal(paths[:3], want) || len(paths) != 7 || paths[6] != "add /metadata/managedFields" {
			t.Errorf("an edit is %v and not %v, and labels, and no record of who set what", paths, want)
		}
	}
}

// TestPathsOfBefore: works that ask by another version's paths are left as they are until something else of them is written, and what is asked under other
// names is asked anew.
func TestPathsOfBefore(t *testing.T) {
	h, s := crowd(t, 3, 2), newSpokes(t)
	s.settle(h.bundles(), usual)
	asked := func(change func(*workv1.JsonPath)) (paths string) {
		for at, w := range s.works {
			other := w.DeepCopy()
			for _, config := range other.Spec.ManifestConfigs {
				for _, rule := range config.FeedbackRules {
					for i := range rule.JsonPaths {
						change(&rule.JsonPaths[i])
						paths += config.ResourceIdentifier.Name + rule.JsonPaths[i].Path + "\n"
					}
				}
			}
			s.works[at] = other
		}
		return paths
	}
	asked(func(p *workv1.JsonPath) { p.Path = strings.ReplaceAll(p.Path, ".status", ".before") })
	if n := s.settle(h.bundles(), usual); n != 0 {
		t.Errorf("%d writes for other paths alone", n)
	}
	object(h.policies["RateLimitPolicy"][1], "spec")["limit"] = int64(99)
	if n := s.settle(h.bundles(), usual); n != 2 {
		t.Errorf("%d writes for an edit in 2 clusters", n)
	}
	if paths := asked(func(*workv1.JsonPath) {}); strings.Contains(paths, "p01.before") || !strings.Contains(paths, "p01.status") || !strings.Contains(paths, "p02.before") {
		t.Errorf("after an edit of p01 is asked\n%s", paths)
	}
	asked(func(p *workv1.JsonPath) { p.Name = strings.ReplaceAll(p.Name, "top.Accepted", "top.Taken") })
	if n := s.settle(h.bundles(), usual); n != len(s.works) {
		t.Errorf("%d writes for what is not asked any more, of %d works", n, len(s.works))
	}
}

// crowd is a hub with one gateway that goes to many clusters with many policies.
func crowd(t testing.TB, policies, clusters int) *hub {
	h := randomHubOf(t)
	h.placements[Name{"shop", "all"}] = nil
	for i := range clusters {
		h.placements[Name{"shop", "all"}] = append(h.placements[Name{"shop", "all"}], fmt.Sprintf("c%02d", i))
	}
	for i := range policies {
		h.policies["RateLimitPolicy"] = append(h.policies["RateLimitPolicy"], tree(t, fmt.Sprintf(`{metadata: {name: p%02d, namespace: shop, uid: u, labels: {app: p}},
			spec: {targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: web}, limit: 1, rates: [{limit: 10, window: 10s}, {limit: 3, window: 1s}], when: [{predicate: "request.path == '/'"}]}}`, i)))
	}
	return h
}

// TestHeld: what can't be told is left as it is: of an override that is broken later, of a copy that grows too large, of a policy that can't
// be read any more.
func TestHeld(t *testing.T) {
	h, s := crowd(t, 3, 2), newSpokes(t)
	all := usual
	s.settle(h.bundles(), all)
	policies := h.policies["RateLimitPolicy"]
	key := func(i int) Key {
		return Key{"kuadrant.io", "ratelimitpolicies", Name{"shop", fmt.Sprintf("p%02d", i)}}
	}
	before := []string{s.objects["c00"][key(0)].json, s.objects["c00"][key(1)].json, s.objects["c00"][key(2)].json}
	h.overrides = []*fleetv1alpha1.PolicyOverride{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "o"},
		Spec: fleetv1alpha1.PolicyOverrideSpec{
			TargetRef: fleetv1alpha1.PolicyTarget{Group: "kuadrant.io", Kind: "RateLimitPolicy", Name: "p00"}, Clusters: []string{"c00"},
			Merge: fleetv1alpha1.Patch{Raw: []byte(`{"targetRefs": []}`)},
		},
	}}
	object(policies[0], "spec")["limit"] = int64(2)
	object(policies[1], "spec")["text"] = strings.Repeat("x", 1<<20)
	object(policies[2], "spec")["targetRef"] = "web"
	w := h.bundles()
	w.bundles[GatewaySource(Name{"shop", "web"})].Hold(Source{"kuadrant.io", "RateLimitPolicy", Name{"shop", "p02"}})
	if s.settle(w, all) == 0 {
		t.Error("c01, for which no override is broken, was not written")
	}
	for i, was := range before {
		if o := s.objects["c00"][key(i)]; o == nil || o.json != was {
			t.Errorf("p%02d is %+v", i, o)
		}
	}
	if !strings.Contains(s.objects["c01"][key(0)].json, `"limit":2`) {
		t.Error(s.objects["c01"][key(0)].json)
	}
	reasons := map[string]bool{}
	for _, p := range w.problems {
		reasons[p.Reason] = true
	}
	if !reasons[ReasonTooLarge] || !reasons[ReasonInvalidOverride] || !reasons[ReasonInvalid] {
		t.Errorf("%+v", w.problems)
	}
	if again := s.settle(w, all); again != 0 {
		t.Errorf("%d writes although nothing has changed", again)
	}
}

// TestBrokenSelector: an override whose selector makes no sense any more is not taken out of the copies that it was in.
func TestBrokenSelector(t *testing.T) {
	h, s := crowd(t, 1, 2), newSpokes(t)
	all := usual
	override := &fleetv1alpha1.PolicyOverride{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "o"},
		Spec: fleetv1alpha1.PolicyOverrideSpec{
			TargetRef:       fleetv1alpha1.PolicyTarget{Group: "kuadrant.io", Kind: "RateLimitPolicy", Name: "p00"},
			ClusterSelector: &metav1.LabelSelector{}, Merge: fleetv1alpha1.Patch{Raw: []byte(`{"limit": 77}`)},
		},
	}
	h.overrides = []*fleetv1alpha1.PolicyOverride{override}
	s.settle(h.bundles(), all)
	override.Spec.ClusterSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "region", Operator: metav1.LabelSelectorOpIn}}
	s.settle(h.bundles(), all)
	for _, cluster := range []string{"c00", "c01"} {
		if o := s.objects[cluster][Key{"kuadrant.io", "ratelimitpolicies", Name{"shop", "p00"}}]; o == nil || !strings.Contains(o.json, `"limit":77`) {
			t.Errorf("%s has %+v", cluster, o)
		}
	}
}

// TestANamespacesOwnComesFirst: an older policy that is sent to a namespace from another does not take the place of the namespace's own.
func TestANamespacesOwnComesFirst(t *testing.T) {
	deny := func(namespace, created string) Object {
		return tree(t, fmt.Sprintf(`{metadata: {name: deny, namespace: %s, creationTimestamp: %q}, spec: {podSelector: {}}}`, namespace, created))
	}
	own := &Set{Name: Name{"shop", "set"}, TargetNamespace: "shop", Clusters: []string{"c1"}, Policies: []Object{deny("shop", "2026-01-02T00:00:00Z")}}
	foreign := &Set{Name: Name{"other", "set"}, TargetNamespace: "shop", Clusters: []string{"c1"}, Policies: []Object{deny("other", "2026-01-01T00:00:00Z")}}
	for _, sets := range [][]*Set{{own, foreign}, {foreign, own}} {
		own.conflicts, foreign.conflicts = nil, nil
		problems := findConflicts(sets)
		if len(own.conflicts) != 0 || len(foreign.conflicts) != 1 || len(problems) != 1 || !strings.Contains(problems[0].Message, "of that namespace") {
			t.Errorf("%v %v %v", own.conflicts, foreign.conflicts, problems)
		}
	}
}

// TestNoNamespace: a set's NetworkPolicy is only asked for until its namespace is there, so that what a team makes there together with the
// namespace stays the team's.
func TestNoNamespace(t *testing.T) {
	policy := tree(t, `{metadata: {name: deny, namespace: shop}, spec: {podSelector: {}}}`)
	w := &wanted{bundles: map[Source]*Bundle{}}
	w.add(SetBundle(&Set{Name: Name{"shop", "base"}, TargetNamespace: "shop", Clusters: []string{"c1", "c2"}, Policies: []Object{policy}}))
	s, all := newSpokes(t), usual
	s.settle(w, all)
	if again := s.settle(w, all); again != 0 || len(s.objects["c1"]) != 0 {
		t.Errorf("%d writes although nothing has changed, %v", again, s.objects["c1"])
	}
	states := func() (found []State) {
		for _, cluster := range []string{"c1", "c2"} {
			wanted := w.bundles[SetSource(Name{"shop", "base"})].copyOf(cluster, networkPolicySource(Name{"shop", "deny"}), "NetworkPolicy", Name{"shop", "deny"})
			found = append(found, StateOf(Cluster{Name: cluster, Known: true, Available: true}, wanted, nil, s.answers(cluster)))
		}
		return found
	}
	for _, is := range states() {
		if is.Phase != Refused || is.Reason != "NamespaceAbsent" || !strings.Contains(is.Message, "has no namespace shop") {
			t.Errorf("%+v", is)
		}
	}
	s.user("c1", Key{"networking.k8s.io", "networkpolicies", Name{"shop", "deny"}})
	s.user("c2", namespaceKey("shop"))
	s.settle(w, all)
	deny := Key{"networking.k8s.io", "networkpolicies", Name{"shop", "deny"}}
	if is := states(); is[0].Reason != reasonTaken || !s.objects["c1"][deny].users || s.objects["c2"][deny] == nil {
		t.Errorf("%+v", is)
	}
	delete(w.bundles, SetSource(Name{"shop", "base"}))
	s.settle(w, all)
	if len(s.objects["c1"]) != 2 || len(s.objects["c2"]) != 1 || len(s.works) != 0 {
		t.Errorf("%v %v, %d works", s.objects["c1"], s.objects["c2"], len(s.works))
	}
}

// TestRename: where class parameters give copies other names, a gateway and its policies stay under the old ones until all are there under the
// new ones. A policy that is deleted meanwhile goes.
func TestRename(t *testing.T) {
	h, s := crowd(t, 3, 1), newSpokes(t)
	all := usual
	in := func(namespace string) (names []string) {
		for key := range s.objects["c00"] {
			if key.Namespace == namespace {
				name, _, _ := strings.Cut(key.Name.Name, "-")
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return names
	}
	object(h.gateways[0], "spec")["gatewayClassName"] = "moved"
	s.settle(h.bundles(), all)
	h.parameters[Name{"hub", "moved"}].Data["downstreamNamespace"] = "edge-new"
	taken := Key{"kuadrant.io", "ratelimitpolicies", Parameters{Namespace: "edge-new"}.SpokeName(Name{"shop", "p01"})}
	s.user("c00", taken)
	s.settle(h.bundles(), all)
	if old, now := in("edge-moved"), in("edge-new"); !slices.Equal(old, []string{"p00", "p01", "p02", "web"}) || !slices.Equal(now, old[:3]) {
		t.Errorf("%s and %s", old, now) // there the gateway waits for p01
	}
	if again := s.settle(h.bundles(), all); again != 0 {
		t.Errorf("%d writes although nothing has changed", again)
	}
	h.policies["RateLimitPolicy"] = h.policies["RateLimitPolicy"][:2]
	s.settle(h.bundles(), all)
	if old, now := in("edge-moved"), in("edge-new"); !slices.Equal(old, []string{"p00", "p01", "web"}) || !slices.Equal(now, old[:2]) {
		t.Errorf("%s and %s", old, now)
	}
	delete(s.objects["c00"], taken)
	s.settle(h.bundles(), all)
	if old, now := in("edge-moved"), in("edge-new"); len(old) != 0 || !slices.Equal(now, []string{"p00", "p01", "web"}) {
		t.Errorf("%s and %s", old, now)
	}
	for i := range 2 { // what would be too large does without
		object(h.policies["RateLimitPolicy"][i], "spec")["text"] = strings.Repeat("x", 150<<10)
	}
	s.settle(h.bundles(), all)
	h.parameters[Name{"hub", "moved"}].Data["downstreamNamespace"] = "edge-moved"
	w := h.bundles()
	s.settle(w, all)
	if missing := s.missing(w.works(all)); len(missing) > 0 || len(in("edge-new")) != 0 {
		t.Errorf("%s, missing: %s", in("edge-new"), missing)
	}
}

// TestRenamedSet: NetworkPolicies of a set that is to send to another namespace stay in the old one until they are in the new one; those of a
// set that is deleted go, although another sends the same ones elsewhere, and cannot.
func TestRenamedSet(t *testing.T) {
	policy := tree(t, `{metadata: {name: deny, namespace: shop}, spec: {podSelector: {}}}`)
	s, all := newSpokes(t), usual
	key := func(namespace string) Key {
		return Key{"networking.k8s.io", "networkpolicies", Name{namespace, "deny"}}
	}
	send := func(to map[string]string) {
		w := &wanted{bundles: map[Source]*Bundle{}}
		for name, namespace := range to {
			w.add(SetBundle(&Set{Name: Name{"shop", name}, TargetNamespace: namespace, Clusters: []string{"c1"}, Policies: []Object{policy}}))
		}
		s.settle(w, all)
	}
	s.user("c1", namespaceKey("a"))
	send(map[string]string{"base": "a"})
	send(map[string]string{"base": "b"})
	if s.objects["c1"][key("a")] == nil {
		t.Error("it is gone before it is there")
	}
	send(map[string]string{"base": "a", "more": "b"})
	send(map[string]string{"more": "b"})
	if s.objects["c1"][key("a")] != nil {
		t.Error("it is there still")
	}
	send(map[string]string{"base": "a"})
	s.user("c1", namespaceKey("b"))
	send(map[string]string{"base": "b"})
	if s.objects["c1"][key("a")] != nil || s.objects["c1"][key("b")] == nil {
		t.Errorf("%v", s.objects["c1"])
	}
}

// TestTwoOfOneName: of two hub gateways that have one name on a spoke the older goes, if both are new, and that which is there otherwise; the
// other is told that the name is taken, and comes when it is free. Of two that were both written the one that gives way does not come back.
func TestTwoOfOneName(t *testing.T) {
	h, s := crowd(t, 0, 1), newSpokes(t)
	all := usual
	to := Parameters{Namespace: "edge-moved"}.SpokeName(Name{"shop", "web"})
	gateway := func(name Name, class, created string) Object {
		h.placements[Name{name.Namespace, "all"}] = []string{"c00"}
		return tree(t, fmt.Sprintf("{metadata: {name: %s, namespace: %s, creationTimestamp: %q, labels: {%s: all}}, spec: {gatewayClassName: %s}}",
			name.Name, name.Namespace, created, LabelPlacement, class))
	}
	moved, plain := gateway(Name{"shop", "web"}, "moved", "2026-01-02T00:00:00Z"), gateway(to, "plain", "2026-01-01T00:00:00Z")
	key := Key{gatewayv1.GroupName, "gateways", to}
	there := func() string {
		if s.objects["c00"][key] == nil {
			return ""
		}
		return s.objects["c00"][key].source()
	}
	goes := func(want Object, gateways ...Object) {
		t.Helper()
		h.gateways = gateways
		w := h.bundles()
		s.settle(w, all)
		if there() != GatewaySource(nameOf(want)).String() {
			t.Errorf("%q is there", there())
		}
		for _, o := range gateways {
			is := StateOf(Cluster{Name: "c00", Known: true, Available: true}, w.bundles[GatewaySource(nameOf(o))].copyOf("c00", GatewaySource(nameOf(o)), kindGateway, to), nil, s.answers("c00"))
			if taken := nameOf(o) != nameOf(want); taken != (is.Reason == reasonTaken) {
				t.Errorf("%s: %+v", nameOf(o), is)
			}
		}
		if again := s.settle(w, all); again != 0 {
			t.Errorf("%d writes although nothing has changed", again)
		}
	}
	goes(plain, moved, plain)
	goes(moved, moved)
	goes(moved, moved, plain)
	goes(plain, plain)
	for _, o := range []Object{moved, plain} { // both were written, each for itself
		h.gateways = []Object{o}
		for _, w := range h.bundles().works(all) {
			if e := s.works[Name{"c00", w.Name}]; e == nil {
				var entries []entry
				for _, one := range w.Copies {
					entries = append(entries, entry{copy: one})
				}
				s.write(&Write{Verb: Create, Cluster: "c00", Name: w.Name, Bundle: w.Bundle, controller: controller, entries: entries})
			}
		}
	}
	for _, at := range s.names() {
		s.agent(at)
	}
	if len(s.objects["c00"][key].owners) != 2 {
		t.Fatalf("%+v", s.objects["c00"][key])
	}
	goes(plain, moved, plain)
	if owners := s.objects["c00"][key].owners; len(owners) != 1 {
		t.Errorf("%v", owners)
	}
	goes(moved, moved)
}

// TestRefNotPermitted: a policy goes with a gateway of another namespace only where spokes can tell that it is of another.
func TestRefNotPermitted(t *testing.T) {
	gateway := func(name, class string) Object {
		return tree(t, fmt.Sprintf("{metadata: {name: %s, namespace: shop, labels: {%s: all}}, spec: {gatewayClassName: %s}}", name, LabelPlacement, class))
	}
	for _, test := range []struct {
		namespace, targets string
		copies             []string
		problems           int
	}{
		{"shop", "moved", []string{"edge-moved/limits-8c3dc32c"}, 0},
		{"a", "plain", []string{"a/limits"}, 0},
		{"a", "moved", nil, 2},
		{"a", "moved plain", []string{"a/limits"}, 2},
	} {
		h := randomHubOf(t)
		h.placements[Name{"shop", "all"}] = []string{"c1", "c2"}
		h.gateways = []Object{gateway("plain", "plain"), gateway("moved", "moved")}
		var refs []string
		for _, name := range strings.Fields(test.targets) {
			refs = append(refs, fmt.Sprintf("{group: gateway.networking.k8s.io, kind: Gateway, name: %s, namespace: shop}", name))
		}
		policy := tree(t, fmt.Sprintf("{metadata: {name: limits, namespace: %s}, spec: {targetRefs: [%s]}}", test.namespace, strings.Join(refs, ", ")))
		h.policies = map[string][]Object{"RateLimitPolicy": {policy}}
		w := h.bundles()
		copies := map[string]int{}
		for _, work := range w.works(small) {
			for _, c := range work.Copies {
				if c.Kind == "RateLimitPolicy" {
					copies[c.Name.String()]++
					if refs := object(c.Object, "spec")["targetRefs"].([]any); len(refs) != len(strings.Fields(test.targets))-test.problems/2 {
						t.Errorf("%+v: %v", test, refs)
					}
				}
			}
		}
		problems := 0
		for _, p := range w.problems {
			if p.Reason == ReasonRefNotPermitted && p.Source.Name == nameOf(policy) && strings.Contains(p.Message, "the Gateway shop/moved, of another namespace") {
				problems++
			}
		}
		if len(copies) != len(test.copies) || problems != test.problems {
			t.Errorf("%+v: %v, %+v", test, copies, w.problems)
		}
		for _, name := range test.copies {
			if copies[name] != 2 {
				t.Errorf("%+v: %v", test, copies)
			}
		}
		view := (&Hub{
			Controller: DefaultController, Definitions: h.definitions, Classes: h.classes, Parameters: h.parameters, Gateways: h.gateways,
			Placements: map[Name]bool{{"shop", "all"}: true}, Policies: map[schema.GroupResource][]Object{{Group: "kuadrant.io", Resource: "ratelimitpolicies"}: h.policies["RateLimitPolicy"]},
			Decisions: h.lookup(nil).Decisions(Name{"shop", "all"}),
		}).View()
		if e := view.Policies[0].Everywhere(); (e.Reason == ReasonRefNotPermitted) != (test.problems > 0) {
			t.Errorf("%+v: %+v", test, e)
		}
	}
}

// TestLost: what a team makes in the place of a copy that is not there any more stays the team's: when its namespace went and came again, and
// while the spoke does not let the copy be written.
func TestLost(t *testing.T) {
	policy := tree(t, `{metadata: {name: deny, namespace: shop}, spec: {podSelector: {}}}`)
	w := &wanted{bundles: map[Source]*Bundle{}}
	w.add(SetBundle(&Set{Name: Name{"shop", "base"}, TargetNamespace: "shop", Clusters: []string{"c1"}, Policies: []Object{policy}}))
	deny, all := Key{"networking.k8s.io", "networkpolicies", Name{"shop", "deny"}}, usual
	for name, happens := range map[string]func(*spokes){
		"namespace": func(s *spokes) {
			s.objects["c1"] = map[Key]*spokeObject{}
			s.settle(w, all)
			s.user("c1", deny)
		},
		"refused": func(s *spokes) {
			s.user("c1", deny)
			s.refuses = map[Key]bool{deny: true}
			s.settle(w, all)
			s.refuses = nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpokes(t)
			s.user("c1", namespaceKey("shop"))
			s.settle(w, all)
			if o := s.objects["c1"][deny]; o == nil || o.users {
				t.Fatal("it is not there")
			}
			happens(s)
			s.settle(w, all)
			if again := s.settle(w, all); again != 0 || !s.objects["c1"][deny].users {
				t.Errorf("%d writes, %+v", again, s.objects["c1"][deny])
			}
			delete(s.objects["c1"], deny)
			s.settle(w, all)
			if o := s.objects["c1"][deny]; o == nil || o.source() == "" {
				t.Errorf("it has not come back: %+v", o)
			}
		})
	}
}

// TestTrackers: what a deployment tool of the hub knows its objects by does not go along.
func TestTrackers(t *testing.T) {
	notes := parsed(t, `{argocd.argoproj.io/tracking-id: "a:b/C:d/e", kustomize.toolkit.fluxcd.io/name: apps, meta.helm.sh/release-name: r, example.com/own: x}`)
	if kept := authors(notes); len(kept) != 1 || kept["example.com/own"] != "x" {
		t.Errorf("%v", kept)
	}
}

// TestFull: a work that is full is not made larger than OCM allows while copies move out of it, and they get out.
func TestFull(t *testing.T) {
	h, s := crowd(t, 12, 1), newSpokes(t)
	all := former
	pad := func(i, size int) {
		object(h.policies["RateLimitPolicy"][i], "spec")["text"] = strings.Repeat("x", size)
	}
	for i := range 12 {
		pad(i, 28<<10)
	}
	s.settle(h.bundles(), all)
	if len(s.works) != 1 {
		t.Fatal(len(s.works))
	}
	for i := range 12 {
		pad(i, 100<<10) // store fails if a work has more than 500 KiB
	}
	s.settle(h.bundles(), all)
	w := h.bundles()
	if missing := s.missing(w.works(all)); len(missing) > 0 || len(s.works) < 4 {
		t.Errorf("%d works, missing: %s", len(s.works), missing)
	}
	for i := range 12 {
		pad(i, 10)
	}
	w = h.bundles()
	s.settle(w, all)
	if missing := s.missing(w.works(all)); len(missing) > 0 || len(s.works) != 1 {
		t.Errorf("%d works, missing: %s", len(s.works), missing)
	}
}

// BenchmarkBundle: a gateway, 20 policies and 50 clusters become works; Plan finds that nothing is to be written.
func BenchmarkBundle(b *testing.B) {
	h, s := crowd(b, 20, 50), newSpokes(b)
	all := usual
	s.settle(h.bundles(), all)
	existing := s.existing(func(Source) bool { return true })
	w := h.bundles()
	along := h.aim(w, h.readClasses(), map[Name]Selection{{"shop", "web"}: SelectGateway(h.gateways[0], h.lookup(h.readClasses()))})
	gateway := SelectGateway(h.gateways[0], h.lookup(h.readClasses())).Gateway
	policies := along[GatewaySource(gateway.Name)]
	b.Run("works", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			GatewayBundle(gateway, policies, nil).Works(controller)
		}
	})
	b.Run("plan", func(b *testing.B) {
		works := GatewayBundle(gateway, policies, nil).Works(controller)
		b.ReportAllocs()
		for b.Loop() {
			if plan := Plan(controller, works, existing); len(plan) != 0 {
				b.Fatal(len(plan))
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		work := s.works[s.names()[0]]
		b.ReportAllocs()
		for b.Loop() {
			ReadExisting(work)
		}
	})
	b.Run("heap", func(b *testing.B) {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		kept := s.existing(func(Source) bool { return true })
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(len(kept)), "B/work")
		runtime.KeepAlive(kept)
	})
}

// TestStaleAnswers: what a status says counts only if the agent has seen the work as it is.
func TestStaleAnswers(t *testing.T) {
	h, s := crowd(t, 1, 1), newSpokes(t)
	s.settle(h.bundles(), small)
	work := s.works[s.names()[0]]
	if e := ReadExisting(work); !e.Sent[1].Applied {
		t.Fatalf("%+v", e.Sent[1])
	}
	work.Generation++
	if e := ReadExisting(work); e.Sent[1].Applied {
		t.Errorf("%+v", e.Sent[1])
	}
	asked := newSpokes(t)
	for _, w := range Plan(controller, h.bundles().works(small), nil) {
		asked.write(&w)
	}
	at := asked.names()[0]
	asked.agent(at)
	if e := ReadExisting(asked.works[at]); !e.Sent[1].Free {
		t.Fatalf("%+v", e.Sent[1])
	}
	asked.works[at].Generation++
	if e := ReadExisting(asked.works[at]); e.Sent[1].Free {
		t.Errorf("%+v", e.Sent[1])
	}
}

// TestRestrict_OneClustersCopy: a copy that an override makes too large is held in its cluster, and sent to the others.
func TestRestrict_OneClustersCopy(t *testing.T) {
	source := Source{Kind: "NetworkPolicy", Name: Name{"shop", "deny"}}
	small, large := &Copy{Source: source, JSON: make([]byte, 100)}, &Copy{Source: source, JSON: make([]byte, 30_000)}
	other := &Copy{Source: Source{Kind: "Gateway", Name: Name{"shop", "web"}}, JSON: make([]byte, 100)}
	shared := []*Copy{small, other}
	b := Bundle{Clusters: []ClusterBundle{
		{Cluster: "c1", Copies: []*Copy{large, other}}, {Cluster: "c2", Copies: shared}, {Cluster: "c3", Copies: shared},
	}}
	b.Restrict(20_000, 20_000, "too large")
	for i, want := range [][]*Copy{{other}, shared, shared} {
		if c := b.Clusters[i]; !slices.Equal(c.Copies, want) || c.Held[source] != (i == 0) {
			t.Errorf("%s has %d copies, want %d; held: %v", c.Cluster, len(c.Copies), len(want), c.Held)
		}
	}
	if len(b.Problems) != 1 || b.Problems[0].Cluster != "c1" || !b.Problems[0].IsTooLarge() {
		t.Errorf("problems: %+v", b.Problems)
	}
}
