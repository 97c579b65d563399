package fleet

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/jsonpath"
	workv1 "open-cluster-management.io/api/work/v1"
	"sigs.k8s.io/yaml"
)

// tell finds what a spoke's work agent finds by the paths: the first value of each.
func tell(t testing.TB, paths []workv1.JsonPath, o Object) (values []workv1.FeedbackValue) {
	t.Helper()
	for _, p := range paths {
		j := jsonpath.New(p.Name).AllowMissingKeys(true)
		if err := j.Parse("{" + p.Path + "}"); err != nil {
			t.Fatalf("%s: %v", p.Path, err)
		}
		found, err := j.FindResults(o)
		if err != nil {
			t.Errorf("%s: %v", p.Path, err)
		}
		if len(found) == 0 || len(found[0]) == 0 || found[0][0].Interface() == nil {
			continue
		}
		v := workv1.FieldValue{}
		switch is := found[0][0].Interface().(type) {
		case string:
			v.Type, v.String = workv1.String, &is
		case int64:
			v.Type, v.Integer = workv1.Integer, &is
		case bool:
			v.Type, v.Boolean = workv1.Boolean, &is
		default:
			t.Errorf("%s is a %T", p.Path, is)
		}
		values = append(values, workv1.FeedbackValue{Name: p.Name, Value: v})
	}
	return values
}

// parsed is an object with whole numbers as they come from an API server.
func parsed(t testing.TB, text string) Object {
	t.Helper()
	var o Object
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(text, "\t", "  ")), &o); err != nil {
		t.Fatal(err)
	}
	return whole(o).(Object)
}

func whole(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, one := range v {
			v[key] = whole(one)
		}
	case []any:
		for i, one := range v {
			v[i] = whole(one)
		}
	case float64:
		return int64(v)
	}
	return v
}

var (
	conditionsKind = Kind{GroupVersionKind: schema.GroupVersionKind{Group: "kuadrant.io", Version: "v1", Kind: "RateLimitPolicy"}, Resource: "ratelimitpolicies", Status: true, Subresource: true}
	ancestorsKind  = Kind{GroupVersionKind: schema.GroupVersionKind{Group: "gateway.envoyproxy.io", Version: "v1alpha1", Kind: "SecurityPolicy"}, Resource: "securitypolicies", Status: true, Ancestors: true, Subresource: true}
	statuslessKind = Kind{GroupVersionKind: schema.GroupVersionKind{Group: "test.example", Version: "v1", Kind: "QuietPolicy"}, Resource: "quietpolicies"}
)

const copied = `
metadata:
	name: web
	namespace: shop
	generation: 7
	annotations: {fleet.flowkeep.io/copy: abc, fleet.flowkeep.io/from-hub: Kind.group/shop/web}
`

// What is asked for by paths, found as a work agent finds it, is what is read from the answer.
func TestWhatIsAskedForIsRead(t *testing.T) {
	seven, six := int64(7), int64(6)
	about := func(a Answer) Answer {
		a.Source, a.Hash, a.Generation = "Kind.group/shop/web", "abc", 7
		return a
	}
	for _, test := range []struct {
		name  string
		kind  Kind
		there string
		want  Answer
	}{
		{"nothing but the metadata", networkPolicyKind, copied, about(Answer{})},
		{"a kind without a status", statuslessKind, copied + "status: {conditions: [{type: Accepted, status: 'True'}]}", about(Answer{})},
		{"no status yet", conditionsKind, copied, about(Answer{})},
		{"an empty status", ancestorsKind, copied + "status: {ancestors: []}", about(Answer{})},
		{"an object of the spoke's own", conditionsKind, "metadata: {name: web, generation: 7}", Answer{Generation: 7}},
		{"conditions", conditionsKind, copied + `
status:
	conditions:
	- {type: Accepted, status: "True", reason: Accepted, message: fine, observedGeneration: 7}
	- {type: Enforced, status: "False", reason: Overridden, message: "by route/x", observedGeneration: 6}
	- {type: Others, status: "True", reason: X}
`, about(Answer{Conditions: []Said{
			{"Accepted", "True", "", "", &seven},
			{"Enforced", "False", "Overridden", "by route/x", &six},
		}})},
		{"several that are not True", conditionsKind, copied + `
status:
	conditions:
	- {type: Programmed, status: "True", reason: Programmed}
	- {type: Accepted, status: "False", reason: TargetNotFound, message: there is no such gateway}
	- {type: Enforced, status: Unknown, reason: Waiting}
	- {type: Conflicted, status: "True", message: with shop/other}
`, about(Answer{Conditions: []Said{
			{"Accepted", "False", "TargetNotFound", "there is no such gateway", nil},
			{"Enforced", "Unknown", "", "Accepted is not True: there is no such gateway", nil},
			{"Programmed", "True", "", "", nil},
			{"Conflicted", "True", "", "with shop/other", nil},
		}})},
		{"not True for want of something else", conditionsKind, copied + `
status:
	conditions:
	- {type: Healthy, status: "False", reason: NoRecords}
	- {type: Enforced, status: "False", reason: Failed}
`, about(Answer{Conditions: []Said{{"Enforced", "False", "", "Healthy is not True: NoRecords", nil}}})},
		{"a loss that is none explains nothing", conditionsKind, copied + `
status:
	conditions:
	- {type: Overridden, status: "False", reason: NotOverridden, message: by nothing}
	- {type: Enforced, status: "False", reason: Failed}
`, about(Answer{Conditions: []Said{{"Enforced", "False", "", "", nil}, {"Overridden", "False", "", "by nothing", nil}}})},
		{"a loss that is not the first that is not True", conditionsKind, copied + `
status:
	conditions:
	- {type: Accepted, status: "False", reason: Invalid, message: no limits}
	- {type: Enforced, status: "False", reason: Overridden, message: by shop/own}
`, about(Answer{Conditions: []Said{{"Accepted", "False", "Invalid", "no limits", nil}, {"Enforced", "False", "Overridden", "by shop/own", nil}}})},
		{"a loss that is not that of the likeliest", conditionsKind, copied + `
status:
	conditions:
	- {type: Enforced, status: "False", reason: NotReady, message: no limitador}
	- {type: Accepted, status: "False", reason: Overridden, message: by shop/own}
`, about(Answer{Conditions: []Said{{"Accepted", "False", "Overridden", "by shop/own", nil}, {"Enforced", "False", "NotReady", "no limitador", nil}}})},
		{"a conflict behind others", conditionsKind, copied + `
status:
	conditions:
	- {type: Enforced, status: Unknown, reason: Waiting, message: for it to be accepted}
	- {type: Programmed, status: "False", reason: Pending}
	- {type: Accepted, status: "False", reason: Conflicted, message: ""}
`, about(Answer{Conditions: []Said{
			{"Accepted", "False", "Conflicted", "", nil},
			{"Enforced", "Unknown", "Waiting", "for it to be accepted", nil},
			{"Programmed", "False", "", "Enforced is not True: for it to be accepted", nil},
		}})},
		{"a loss that is told in both ways", conditionsKind, copied + `
status:
	conditions:
	- {type: Accepted, status: "False", reason: Invalid, message: ""}
	- {type: Enforced, status: "False", reason: Overridden, message: by the reason}
	- {type: Overridden, status: "True", reason: HasRoutes, message: by the condition}
`, about(Answer{Conditions: []Said{
			{"Accepted", "False", "Invalid", "", nil},
			{"Enforced", "False", "", "Accepted is not True: Invalid", nil},
			{"Overridden", "True", "", "by the condition", nil},
		}})},
		{"a loss of nothing that is summed up", conditionsKind, copied + `
status:
	conditions:
	- {type: Accepted, status: "True", reason: Accepted}
	- {type: Cached, status: "False", reason: Overridden, message: by a newer one}
`, about(Answer{Conditions: []Said{{"Accepted", "True", "", "", nil}}})},
		{"an ancestor's loss that is not the first that is not True", ancestorsKind, copied + `
spec:
	targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: one}]
status:
	ancestors:
	- ancestorRef: {name: other}
		conditions: [{type: Accepted, status: "False", reason: Conflicted, message: of another}]
	- ancestorRef: {name: one}
		conditions:
		- {type: Programmed, status: "False", reason: Pending, message: soon}
		- {type: Accepted, status: "False", reason: Conflicted, message: with shop/first}
`, about(Answer{Ancestors: []Ancestor{{Gateway: Name{"", "one"}, Conditions: []Said{
			{"Accepted", "False", "Conflicted", "with shop/first", nil}, {"Programmed", "False", "Pending", "soon", nil},
		}}}})},
		{"ancestors of gateways that it targets", ancestorsKind, copied + `
spec:
	targetRefs:
	- {group: gateway.networking.k8s.io, kind: Gateway, name: one}
	- {group: gateway.networking.k8s.io, kind: Gateway, name: two, sectionName: http}
	- {group: gateway.networking.k8s.io, kind: Gateway, name: two, sectionName: https}
	- {group: gateway.networking.k8s.io, kind: HTTPRoute, name: three}
status:
	ancestors:
	- ancestorRef: {name: other}
		conditions: [{type: Accepted, status: "False"}]
	- ancestorRef: {name: two, namespace: shop, sectionName: https}
		conditions: [{type: Accepted, status: "False", reason: Conflicted}]
	- ancestorRef: {name: two, sectionName: http}
		conditions: [{type: Accepted, status: "True", observedGeneration: 7}]
	- ancestorRef: {name: one}
		conditions: [{type: Overridden, status: "True", message: by a route}]
`, about(Answer{Ancestors: []Ancestor{
			{Gateway: Name{"", "one"}, Conditions: []Said{{"Overridden", "True", "", "by a route", nil}}},
			{Gateway: Name{"", "two"}, Section: "http", Conditions: []Said{{"Accepted", "True", "", "", &seven}}},
			{Gateway: Name{"shop", "two"}, Section: "https", Conditions: []Said{{"Accepted", "False", "Conflicted", "", nil}}},
		}})},
		{"a gateway", gatewayKind, copied + `
spec:
	listeners: [{name: http}, {name: a.b}, {name: unknown}]
status:
	addresses: [{type: IPAddress, value: 192.0.2.1}, {type: IPAddress, value: 192.0.2.2}, {type: Hostname, value: a.example}]
	conditions: [{type: Programmed, status: "True"}, {type: Accepted, status: "True", reason: Accepted}]
	listeners:
	- {name: a.b, attachedRoutes: 3, conditions: [{type: ResolvedRefs, status: "False", reason: RefNotPermitted}, {type: Programmed, status: "True"}]}
	- {name: http, attachedRoutes: 0, conditions: []}
`, about(Answer{
			Conditions: []Said{{"Accepted", "True", "", "", nil}, {"Programmed", "True", "", "", nil}},
			Addresses:  addresses("IPAddress 192.0.2.1", "IPAddress 192.0.2.2", "Hostname a.example"),
			Listeners: []Listener{
				{Name: "http"},
				{"a.b", 3, []Said{{"Programmed", "True", "", "", nil}, {"ResolvedRefs", "False", "RefNotPermitted", "", nil}}},
			},
		})},
		{"a gateway with one address", gatewayKind, copied + `status: {addresses: [{type: IPAddress, value: "2001:db8::1"}]}`, about(Answer{Addresses: addresses("IPAddress 2001:db8::1")})},
		{"an enforcement", enforcementKind, copied + `
status:
	conditions: [{type: Enforced, status: "False", reason: Failed, message: node n2 has not, observedGeneration: 7}]
	policyGeneration: 3
	copy: def
	nodes: 4
	nodesEnforcing: 3
`, about(Answer{Conditions: []Said{{"Enforced", "False", "Failed", "node n2 has not", &seven}}, PolicyGeneration: 3, PolicyCopy: "def", Nodes: 4, NodesEnforcing: 3})},
	} {
		o := parsed(t, test.there)
		w := &workv1.ManifestWork{}
		w.Status.ResourceStatus.Manifests = []workv1.ManifestCondition{{StatusFeedbacks: workv1.StatusFeedbackResult{Values: tell(t, Feedback(test.kind, o), o)}}}
		if got := Answers(w)[0]; !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s:\n%+v\nwanted:\n%+v", test.name, got, test.want)
		}
	}
}

// Names of what is told are told apart, and a copy's paths do not grow beyond measure.
func TestPathsHaveNamesOfTheirOwn(t *testing.T) {
	gateway := Object{"spec": map[string]any{"listeners": []any{}}}
	policy := Object{"spec": map[string]any{}}
	var all, refs []any
	for i := range 64 {
		all = append(all, map[string]any{"name": fmt.Sprintf("listener-%d", i)})
		refs = append(refs, map[string]any{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": fmt.Sprintf("a-gateway-with-a-name-%d", i)})
	}
	gateway["spec"].(map[string]any)["listeners"] = all
	policy["spec"].(map[string]any)["targetRefs"] = refs
	for _, test := range []struct {
		kind Kind
		o    Object
		most int
	}{{gatewayKind, gateway, 80 << 10}, {ancestorsKind, policy, 20 << 10}, {conditionsKind, policy, 4 << 10}, {enforcementKind, nil, 2 << 10}, {networkPolicyKind, nil, 1 << 10}} {
		names, size := map[string]bool{}, 0
		for _, p := range Feedback(test.kind, test.o) {
			if names[p.Name] {
				t.Errorf("%s: %s comes twice", test.kind.Kind, p.Name)
			}
			names[p.Name] = true
			size += len(p.Name) + len(p.Path) + len(`{"name":"","path":""},`)
		}
		if size > test.most {
			t.Errorf("%s: %d bytes of paths", test.kind.Kind, size)
		}
	}
}
