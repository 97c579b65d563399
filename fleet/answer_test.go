package fleet

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// addresses are such as "IPAddress 192.0.2.1", or without a type.
func addresses(texts ...string) (all []gatewayv1.GatewayStatusAddress) {
	for _, text := range texts {
		a := gatewayv1.GatewayStatusAddress{Value: text}
		if typ, v, ok := strings.Cut(text, " "); ok {
			t := gatewayv1.AddressType(typ)
			a = gatewayv1.GatewayStatusAddress{Type: &t, Value: v}
		}
		all = append(all, a)
	}
	return all
}

var wantedCopy = &Copy{
	Resource: schema.GroupVersionResource{Group: "kuadrant.io", Version: "v1", Resource: "ratelimitpolicies"}, Kind: "RateLimitPolicy", Name: Name{"shop", "web"}, Hash: "abc",
	Object:   Object{"metadata": map[string]any{"annotations": map[string]any{AnnotationSource: "RateLimitPolicy.kuadrant.io/shop/web", AnnotationCopy: "abc"}}},
	Feedback: []workv1.JsonPath{{Name: toldCopy}},
}

// answered is a work's status in which the copy is there.
func answered(set ...func(w *workv1.ManifestWork, m *workv1.ManifestCondition)) *workv1.ManifestWork {
	w := &workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{Namespace: "c1", Name: "w", Generation: 2}}
	w.Status.Conditions = []metav1.Condition{{Type: workv1.WorkApplied, Status: "True", ObservedGeneration: 2}}
	w.Status.ResourceStatus.Manifests = []workv1.ManifestCondition{{
		ResourceMeta: workv1.ManifestResourceMeta{Group: "kuadrant.io", Version: "v1", Kind: "RateLimitPolicy", Resource: "ratelimitpolicies", Namespace: "shop", Name: "web"},
		Conditions:   []metav1.Condition{{Type: workv1.ManifestApplied, Status: "True"}, {Type: workv1.ManifestAvailable, Status: "True"}},
	}}
	m := &w.Status.ResourceStatus.Manifests[0]
	tells(toldSource, "RateLimitPolicy.kuadrant.io/shop/web")(w, m)
	tells(toldCopy, "abc")(w, m)
	for _, one := range set {
		one(w, m)
	}
	return w
}

// tells sets a value that the spoke tells; an empty one is not told.
func tells(name string, v any) func(*workv1.ManifestWork, *workv1.ManifestCondition) {
	return func(_ *workv1.ManifestWork, m *workv1.ManifestCondition) {
		values := []workv1.FeedbackValue{}
		for _, one := range m.StatusFeedbacks.Values {
			if one.Name != name {
				values = append(values, one)
			}
		}
		switch v := v.(type) {
		case string:
			if v != "" {
				values = append(values, workv1.FeedbackValue{Name: name, Value: workv1.FieldValue{Type: workv1.String, String: &v}})
			}
		case int:
			n := int64(v)
			values = append(values, workv1.FeedbackValue{Name: name, Value: workv1.FieldValue{Type: workv1.Integer, Integer: &n}})
		}
		m.StatusFeedbacks.Values = values
	}
}

func failed(message string) func(*workv1.ManifestWork, *workv1.ManifestCondition) {
	return func(_ *workv1.ManifestWork, m *workv1.ManifestCondition) {
		m.Conditions[0] = metav1.Condition{Type: workv1.ManifestApplied, Status: "False", Reason: "AppliedManifestFailed", Message: "Failed to apply manifest: " + message}
	}
}

func notSeen(w *workv1.ManifestWork, _ *workv1.ManifestCondition) { w.Generation = 3 }

func available(status metav1.ConditionStatus) func(*workv1.ManifestWork, *workv1.ManifestCondition) {
	return func(_ *workv1.ManifestWork, m *workv1.ManifestCondition) { m.Conditions[1].Status = status }
}

func TestStates(t *testing.T) {
	well := Cluster{Name: "c1", Known: true, Available: true}
	nothing := func(w *workv1.ManifestWork, _ *workv1.ManifestCondition) { w.Status = workv1.ManifestWorkStatus{} }
	other := func(_ *workv1.ManifestWork, m *workv1.ManifestCondition) { m.ResourceMeta.Name = "other" }
	unknownKind := func(_ *workv1.ManifestWork, m *workv1.ManifestCondition) { m.ResourceMeta.Resource = "" }
	for _, test := range []struct {
		name    string
		cluster Cluster
		wanted  *Copy
		problem *Problem
		works   []*workv1.ManifestWork
		phase   Phase
		reason  string
		says    string
	}{
		{"there", well, wantedCopy, nil, []*workv1.ManifestWork{answered()}, Answered, "", ""},
		{"there, while the work has got another copy", well, wantedCopy, nil, []*workv1.ManifestWork{answered(notSeen)}, Answered, "", ""},
		{"no work", well, wantedCopy, nil, nil, Waiting, "Waiting", "not said anything"},
		{"a work that nobody has taken up", well, wantedCopy, nil, []*workv1.ManifestWork{answered(nothing)}, Waiting, "Waiting", "not said anything"},
		{"another copy's answer", well, wantedCopy, nil, []*workv1.ManifestWork{answered(other)}, Waiting, "Waiting", "not said anything"},
		{"another cluster's answer", Cluster{Name: "c2", Known: true, Available: true}, wantedCopy, nil, []*workv1.ManifestWork{answered()}, Waiting, "Waiting", "not said"},
		{"another version", well, wantedCopy, nil, []*workv1.ManifestWork{answered(tells(toldCopy, "old"))}, Waiting, "Waiting", "another version"},
		{"deleted on the spoke, told values stay", well, wantedCopy, nil, []*workv1.ManifestWork{answered(available("False"))}, Waiting, "Waiting", "not there"},
		{"not to be read", well, wantedCopy, nil, []*workv1.ManifestWork{answered(available("Unknown"))}, Waiting, "Waiting", "not reported"},
		{"a user's object", well, wantedCopy, nil, []*workv1.ManifestWork{answered(tells(toldSource, ""), tells(toldCopy, ""))}, Refused, "NameTaken", "RateLimitPolicy shop/web that is not this one"},
		{"another source's copy", well, wantedCopy, nil, []*workv1.ManifestWork{answered(tells(toldSource, "RateLimitPolicy.kuadrant.io/a/b"))}, Refused, "NameTaken", "not this one"},
		{"no kind", well, wantedCopy, nil, []*workv1.ManifestWork{answered(unknownKind, failed(`the server doesn't have a resource type "RateLimitPolicy"`))}, Refused, "KindAbsent", "knows no RateLimitPolicy of kuadrant.io/v1"},
		{"forbidden", well, wantedCopy, nil, []*workv1.ManifestWork{answered(failed(`ratelimitpolicies.kuadrant.io "web" is forbidden: User "agent" cannot patch`))}, Refused, "Forbidden", "may not write it"},
		{"conflict", well, wantedCopy, nil, []*workv1.ManifestWork{answered(failed(`Apply failed with 1 conflict: conflict with "kubectl"`))}, Refused, "NameTaken", "of its own"},
		{"no namespace", well, wantedCopy, nil, []*workv1.ManifestWork{answered(failed(`namespaces "shop" not found`))}, Refused, "NamespaceAbsent", "no namespace shop"},
		{"invalid", well, wantedCopy, nil, []*workv1.ManifestWork{answered(failed(`RateLimitPolicy.kuadrant.io "web" is invalid: spec: bad`))}, Refused, "Invalid", "spec: bad"},
		{"other trouble", well, wantedCopy, nil, []*workv1.ManifestWork{answered(failed(`etcd is full`))}, Refused, "NotApplied", "etcd is full"},
		{"refused in an earlier version", well, wantedCopy, nil, []*workv1.ManifestWork{answered(failed("x"), notSeen)}, Waiting, "Waiting", "not taken it up"},
		{"moves, and the old work has it", well, wantedCopy, nil, []*workv1.ManifestWork{answered(failed("x")), answered(), answered(nothing)}, Answered, "", ""},
		{"silent", Cluster{Name: "c1", Known: true}, wantedCopy, nil, []*workv1.ManifestWork{answered()}, Silent, "Silent", "does not hear"},
		{"no cluster", Cluster{Name: "c1", Available: true}, wantedCopy, nil, []*workv1.ManifestWork{answered()}, Silent, "Unknown", "no such ManagedCluster"},
		{"too large", well, wantedCopy, &Problem{Reason: "TooLarge", Message: "it is too large"}, []*workv1.ManifestWork{answered()}, NotSent, "TooLarge", "it is too large"},
		{"nothing wanted", well, nil, nil, []*workv1.ManifestWork{answered()}, NotSent, "NotSent", "not sent"},
	} {
		var answers []Answer
		for _, w := range test.works {
			answers = append(answers, Answers(w)...)
		}
		s := StateOf(test.cluster, test.wanted, test.problem, answers)
		if s.Cluster != test.cluster.Name || s.Phase != test.phase || s.Reason != test.reason || !strings.Contains(s.Message, test.says) || (s.Message == "") != (test.says == "") {
			t.Errorf("%s: %+v", test.name, s)
		}
	}
	own := &Copy{Resource: schema.GroupVersionResource{Group: Group, Version: "v1alpha1", Resource: "networkpolicyenforcements"}, Kind: kindEnforcement, Name: Name{"shop", "web"}}
	if reason, words := refusal(own, `the server doesn't have a resource type "NetworkPolicyEnforcement"`); reason != "NotInstalled" || !strings.Contains(words, "Flowkeep is not installed there") {
		t.Error(reason, words)
	}
}

// What nobody asked for is not read.
func TestUnknownNamesArePassedBy(t *testing.T) {
	plain := Answers(answered())
	for _, name := range []string{"", "x", "top", "top.Accepted", "top..status", "top.notTrue", "top.notTrue.type", "address.16.value", "address.-1.value", "address.1.x", "ancestor.4.name", "ancestor.1000000000.name", "ancestor.x.name", "listener", "listener.a", "listener.b"} {
		if got := Answers(answered(tells(name, "x"))); !reflect.DeepEqual(got, plain) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// Whatever is in a work's status, reading it ends, and what comes of it is a status.
func FuzzAnswers(f *testing.F) {
	seeds := []*workv1.ManifestWork{answered(), answered(failed("x")), {}}
	for _, w := range seeds {
		raw, err := json.Marshal(w.Status)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	for _, name := range []string{"top", "top.Accepted", "top..status", "address.-1.value", "address.99999999999.value", "address.3.type", "ancestor.1000.name", "ancestor.1.x.y", "listener.", "listener.a", "listener.a.b", "listener..Accepted.status", "nodes.x"} {
		raw, err := json.Marshal(answered(tells(name, "x")).Status)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	now := metav1.Now()
	f.Fuzz(func(t *testing.T, raw []byte) {
		w := &workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{Namespace: "c1"}}
		if json.Unmarshal(raw, &w.Status) != nil {
			return
		}
		answers := Answers(w)
		s := StateOf(Cluster{Name: "c1", Known: true, Available: true}, wantedCopy, nil, answers)
		for _, kind := range []Kind{ancestorsKind, conditionsKind} {
			r := reportOf(kind, s)
			status, _ := PolicyStatus("ours", &r, now)
			holds(t, status, "ours")
			g := GatewayReport{Gateway: gatewayObject(), States: []State{s}, Policies: []PolicyReport{r}}
			status, _ = GatewayStatus(&g, now)
			holds(t, status, "")
			OverriddenAnnotation(Name{"shop", "web"}, g.Policies)
		}
	})
}
