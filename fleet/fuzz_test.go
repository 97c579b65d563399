package fleet

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	fleetv1alpha1 "github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation"
	workv1 "open-cluster-management.io/api/work/v1"
)

// FuzzParameters: a ConfigMap's data is refused with words, or makes parameters that copies can be made with.
func FuzzParameters(f *testing.F) {
	f.Add("envoy", "edge", "[{group: kuadrant.io, kind: RateLimitPolicy}]", "", true)
	f.Add("", "", "", `{"downstreamClass": "istio", "policiesToSync": [{"group": "kuadrant.io", "version": "v1", "resource": "authpolicies"}]}`, false)
	f.Add(" a ", "A", "- {group: a}\n- {kind: b, resource: c}", "{}", true)
	f.Add("a", "", "&a [*a]", "[", true)
	f.Add("a", "", "{group: x}", `{"downstreamClass": 7}`, false)
	f.Fuzz(func(t *testing.T, class, namespace, policies, older string, newer bool) {
		data := map[string]string{keyOlder: older}
		if newer {
			data = map[string]string{keyClass: class, keyNamespace: namespace, keyPolicies: policies, keyOlder: older}
		}
		p, _, err := ParseParameters(data)
		again, _, errAgain := ParseParameters(data)
		if !reflect.DeepEqual(p, again) || (err == nil) != (errAgain == nil) || err != nil && err.Error() != errAgain.Error() {
			t.Errorf("%+v, %v and then %+v, %v", p, err, again, errAgain)
		}
		if err != nil {
			if err.Error() == "" || !reflect.DeepEqual(p, Parameters{}) {
				t.Errorf("refused with %q and %+v", err, p)
			}
			return
		}
		if p.Class == "" || len(p.Kinds) > kindsLimit || p.Namespace != "" && len(validation.IsDNS1123Label(p.Namespace)) > 0 {
			t.Errorf("%+v", p)
		}
		for _, k := range p.Kinds {
			if (k.Kind == "") == (k.Resource == "") || k.String() == "" {
				t.Errorf("%+v", k)
			}
		}
	})
}

// FuzzOverride: any patch is refused, or merged as RFC 7386 says, and neither the policy nor the patch is changed.
func FuzzOverride(f *testing.F) {
	f.Add(`{"a": {"b": 1, "c": [1]}}`, `{"a": {"b": null, "d": {"e": null}}}`)
	f.Add(`{"targetRef": {}}`, `{"targetRef": null}`)
	f.Add(`{}`, `[]`)
	f.Add(`{"a": 1}`, `{"a": {"b": -0.0, "c": 1e30}}`)
	f.Fuzz(func(t *testing.T, spec, patch string) {
		var into Object
		if utiljson.Unmarshal([]byte(spec), &into) != nil {
			return
		}
		v := ReadOverride(&fleetv1alpha1.PolicyOverride{Spec: fleetv1alpha1.PolicyOverrideSpec{Merge: fleetv1alpha1.Patch{Raw: []byte(patch)}}})
		if v.Err != nil {
			return
		}
		before, patchBefore := jsonOf(t, into), jsonOf(t, v.merge)
		merged := merge(into, v.merge)
		if jsonOf(t, into) != before || jsonOf(t, v.merge) != patchBefore {
			t.Error("it was changed")
		}
		if got, want := jsonOf(t, merged), jsonOf(t, plainMerge(into, v.merge)); got != want {
			t.Errorf("%s\nand not\n%s", got, want)
		}
		if got := jsonOf(t, merge(merged, v.merge)); got != jsonOf(t, merged) {
			t.Errorf("again: %s", got)
		}
		for _, key := range []string{"targetRef", "targetRefs"} {
			if !reflect.DeepEqual(merged[key], into[key]) {
				t.Errorf("%s is %v", key, merged[key])
			}
		}
	})
}

// plainMerge is RFC 7386, section 2, as it is written there.
func plainMerge(target, patch any) any {
	changes, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	var into Object
	if was, ok := target.(map[string]any); ok {
		_ = utiljson.Unmarshal([]byte(mustJSON(was)), &into) // what was read can be read again
	}
	if into == nil {
		into = Object{}
	}
	for key, value := range changes {
		if value == nil {
			delete(into, key)
		} else {
			into[key] = plainMerge(into[key], value)
		}
	}
	return into
}

func mustJSON(o any) string {
	raw, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return string(raw)
}

// FuzzObject: whatever JSON a policy, a Gateway and a NetworkPolicy are, nothing panics, nothing is changed, and what goes out has nothing of
// the hub's, can be read back, and settles.
func FuzzObject(f *testing.F) {
	for _, spec := range []string{
		`{"targetRef": {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "web"}}`,
		`{"targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "web", "namespace": "shop", "sectionName": 7}, 7]}`,
		`{"targetRef": {"group": ["x"], "kind": {}, "name": null}, "a": -0.0, "b": 1e400}`, `"text"`, `[]`, `null`,
		`{"targetRef": {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "web", "namespace": {}}, "listeners": {"name": "x"}}`,
		`{"targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "web"}], "listeners": [{"name": "a\"b"}, 7], "x": "<&>\u2028", "y": -0.0}`,
	} {
		f.Add(spec, `{"name": "p", "namespace": "shop", "uid": "u", "labels": {"a": "b", "c": 7}, "annotations": {"x": "y"}}`)
	}
	f.Add(`{}`, `{"name": 7, "labels": []}`)
	f.Add(`{}`, `7`)
	f.Fuzz(func(t *testing.T, spec, meta string) {
		var o Object
		if utiljson.Unmarshal([]byte(`{"apiVersion": "x/v1", "kind": "X", "status": {}, "metadata": `+meta+`, "spec": `+spec+`}`), &o) != nil {
			return
		}
		before := jsonOf(t, o)
		h := everythingIs(t, o)
		w, s := h.bundles(), newSpokes(t)
		if jsonOf(t, o) != before {
			t.Error("it was changed")
		}
		if textOf(object(o, "metadata"), "name") != "" && len(w.bundles) > 0 && slices.ContainsFunc(w.works(small), func(w *Work) bool { return len(w.Copies) > 0 }) {
			s.end(w)
		}
		for _, p := range w.problems {
			if p.Message == "" || p.Reason == "" {
				t.Errorf("a problem without a word: %+v", p)
			}
		}
	})
}

// everythingIs is a hub where a gateway, a policy and a NetworkPolicy are of one content.
func everythingIs(t *testing.T, o Object) *hub {
	h := randomHubOf(t)
	h.gateways = append(h.gateways, o)
	h.policies["RateLimitPolicy"] = append(h.policies["RateLimitPolicy"], o)
	h.networkPolicies = append(h.networkPolicies, o)
	h.sets = append(h.sets, &fleetv1alpha1.NetworkPolicySet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "all"}, Spec: fleetv1alpha1.NetworkPolicySetSpec{Placement: "all"},
	})
	return h
}

// FuzzWork: a work that anybody may have written is read without a panic, and rewritten.
func FuzzWork(f *testing.F) {
	f.Add(`{"workload": {"manifests": [{"a": 1}, 7]}, "manifestConfigs": [{"resourceIdentifier": {"name": "x"}}]}`, `{"resourceStatus": {"manifests": [{"resourceMeta": {"ordinal": -7}}]}}`)
	f.Add(`{}`, `{"conditions": [{"type": "Applied"}], "resourceStatus": {"manifests": [{"resourceMeta": {"ordinal": 99}}]}}`)
	f.Fuzz(func(t *testing.T, spec, status string) {
		raw := `{"metadata": {"name": "w", "namespace": "c1"}, "spec": ` + spec + `, "status": ` + status + `}`
		w, ok := readWork(raw)
		if !ok {
			return
		}
		e := ReadExisting(w)
		if again := ReadExisting(w); !reflect.DeepEqual(e, again) {
			t.Error("it is read otherwise each time")
		}
		copies := []*Copy{namespaceCopy("a", true)}
		plan := Plan(controller, []*Work{{Cluster: "c1", Name: "w", Copies: copies}}, []*Existing{e})
		if len(plan) != 1 || plan[0].Verb != Update {
			t.Fatalf("%+v", plan)
		}
		if _, err := plan[0].Patch(nil, false); err != nil && !strings.Contains(err.Error(), "as it was") {
			t.Error(err)
		}
	})
}

func readWork(raw string) (*workv1.ManifestWork, bool) {
	w := new(workv1.ManifestWork)
	return w, json.Unmarshal([]byte(raw), w) == nil
}
