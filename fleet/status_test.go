package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	fleetv1alpha1 "github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const ours = "flowkeep.io/gateway-sync"

var (
	noon  = metav1.NewTime(time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC))
	later = metav1.NewTime(noon.Add(time.Hour))
)

// answerOf is a cluster's state in which the copy is there and tells this of itself, as "Type=Status/Reason/message@generation"; the object
// there is at generation 7.
func answerOf(cluster string, said ...string) State {
	a := &Answer{Cluster: cluster, Source: "x", Hash: "abc", Generation: 7}
	a.Applied.Status, a.Available.Status = "True", "True"
	for _, text := range said {
		a.Conditions = append(a.Conditions, saidOf(text))
	}
	return State{Cluster: cluster, Phase: Answered, Answer: a}
}

func saidOf(text string) (s Said) {
	text, generation, ok := strings.Cut(text, "@")
	if ok {
		g := int64(0)
		fmt.Sscan(generation, &g)
		s.Generation = &g
	}
	s.Type, text, _ = strings.Cut(text, "=")
	parts := strings.SplitN(text, "/", 3)
	parts = append(parts, "", "")
	s.Status, s.Reason, s.Message = metav1.ConditionStatus(parts[0]), parts[1], parts[2]
	return s
}

// quiet is a state that is not Answered; it may have been told something before.
func quiet(cluster string, phase Phase, said ...string) State {
	s := State{Cluster: cluster, Phase: phase, Reason: string(phase), Message: "it is " + strings.ToLower(string(phase))}
	if len(said) > 0 {
		s.Answer = answerOf(cluster, said...).Answer
	}
	return s
}

func gatewayObject() Object {
	return Object{
		"metadata": map[string]any{"namespace": "shop", "name": "web", "generation": int64(3)},
		"spec":     map[string]any{"listeners": []any{map[string]any{"name": "http"}}},
	}
}

// reportOf is a policy's that targets the gateway shop/web.
func reportOf(kind Kind, states ...State) PolicyReport {
	for i := range states {
		if a := states[i].Answer; a != nil && kind.Ancestors && len(a.Ancestors) == 0 {
			own := *a
			own.Ancestors, own.Conditions = []Ancestor{{Gateway: Name{"", "spoke-web"}, Conditions: a.Conditions}}, nil
			states[i].Answer = &own
		}
	}
	return PolicyReport{
		Policy:  Policy{Kind: kind, Name: Name{"shop", "limit"}, Object: Object{"metadata": map[string]any{"namespace": "shop", "name": "limit", "generation": int64(5)}}},
		Targets: []Target{{Gateway: Name{"shop", "web"}, Spoke: Name{"edge", "spoke-web"}, States: states}},
	}
}

// conditionsOf are "Type=Status/Reason/message", in order.
func conditionsOf(t testing.TB, list []any) (lines []string) {
	t.Helper()
	for _, c := range list {
		m := c.(map[string]any)
		lines = append(lines, fmt.Sprintf("%s=%s/%s/%s", m["type"], m["status"], m["reason"], m["message"]))
	}
	return lines
}

func conditionNamed(list []any, typ string) Object {
	for _, c := range list {
		if typeOf(c) == typ {
			return c.(map[string]any)
		}
	}
	return nil
}

var (
	typeForm   = regexp.MustCompile(`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$`)
	reasonForm = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`)
)

// holds reports whether an API server takes a status: Gateway API's limits, and those of conditions.
func holds(t testing.TB, status Object, controller string) {
	t.Helper()
	held := func(where string, list []any, most int) {
		if len(list) > most {
			t.Errorf("%s: %d conditions", where, len(list))
		}
		seen := map[string]bool{}
		for _, c := range list {
			m := c.(map[string]any)
			typ, reason, message := textOf(m, "type"), textOf(m, "reason"), textOf(m, "message")
			if seen[typ] || len(typ) > 316 || !typeForm.MatchString(typ) {
				t.Errorf("%s: type %q", where, typ)
			}
			if seen[typ] = true; len(reason) > 1024 || !reasonForm.MatchString(reason) {
				t.Errorf("%s: reason %q", where, reason)
			}
			if len(message) > 32768 || !slices.Contains([]string{"True", "False", "Unknown"}, textOf(m, "status")) {
				t.Errorf("%s: %v", where, m)
			}
			if _, err := time.Parse(time.RFC3339, textOf(m, "lastTransitionTime")); err != nil {
				t.Errorf("%s: %v", where, err)
			}
		}
	}
	most := mostConditions
	if controller != "" {
		most = 100
	}
	held("conditions", listOf(status, "conditions"), most)
	for _, field := range []string{"ancestors", "listeners", "addresses"} {
		entries := listOf(status, field)
		if field != "listeners" && len(entries) > 16 {
			t.Errorf("%d %s", len(entries), field)
		}
		for _, e := range entries {
			held(field, listOf(e.(map[string]any), "conditions"), mostConditions)
		}
	}
	if _, err := json.Marshal(status); err != nil {
		t.Error(err)
	}
	runtime.DeepCopyJSON(status) // takes no types but JSON's
}

func TestPolicyConditions(t *testing.T) {
	for _, test := range []struct {
		name   string
		states []State
		want   []string
	}{
		{"all is well", []State{answerOf("c1", "Accepted=True/Accepted", "Enforced=True/Enforced@7"), answerOf("c2", "Enforced=True/Enforced", "Accepted=True/Accepted")}, []string{
			"fleet.flowkeep.io/Synced=True/Synced/in 2 clusters",
			"fleet.flowkeep.io/Accepted=True/Accepted/in 2 clusters",
			"fleet.flowkeep.io/Enforced=True/Enforced/in 2 clusters",
			"c1.fleet.flowkeep.io/Enforced=True/Enforced/",
			"c2.fleet.flowkeep.io/Enforced=True/Enforced/",
		}},
		{"one says no, one has not answered", []State{answerOf("c1", "Accepted=True"), answerOf("c2", "Accepted=False/Invalid/bad spec"), quiet("c3", Waiting)}, []string{
			"fleet.flowkeep.io/Synced=Unknown/Waiting/not in 1 of 3 clusters: c3: it is waiting",
			"fleet.flowkeep.io/Accepted=False/Invalid/not in 2 of 3 clusters: c2: bad spec; c3: it is waiting",
			"c2.fleet.flowkeep.io/Accepted=False/Invalid/bad spec",
			"c3.fleet.flowkeep.io/Accepted=Unknown/Waiting/it is waiting",
			"c1.fleet.flowkeep.io/Accepted=True/Accepted/",
		}},
		{"one is silent, though it was well", []State{answerOf("c1", "Enforced=True"), quiet("c2", Silent, "Enforced=True")}, []string{
			"fleet.flowkeep.io/Synced=Unknown/Silent/not in 1 of 2 clusters: c2: it is silent",
			"fleet.flowkeep.io/Enforced=Unknown/Silent/not in 1 of 2 clusters: c2: it is silent",
			"c2.fleet.flowkeep.io/Enforced=Unknown/Silent/it is silent",
			"c1.fleet.flowkeep.io/Enforced=True/Enforced/",
		}},
		{"one refuses, one is not sent", []State{quiet("c1", Refused), quiet("c2", NotSent), answerOf("c3", "Accepted=True")}, []string{
			"fleet.flowkeep.io/Synced=False/Refused/not in 2 of 3 clusters: c1: it is refused; c2: it is notsent",
			"fleet.flowkeep.io/Accepted=Unknown/Refused/not in 2 of 3 clusters: c1: it is refused; c2: it is notsent",
			"c1.fleet.flowkeep.io/Accepted=Unknown/Refused/it is refused",
			"c2.fleet.flowkeep.io/Accepted=Unknown/NotSent/it is notsent",
			"c3.fleet.flowkeep.io/Accepted=True/Accepted/",
		}},
		{"an answer about an earlier version", []State{answerOf("c1", "Enforced=True/Enforced@6")}, []string{
			"fleet.flowkeep.io/Synced=True/Synced/in 1 cluster",
			"fleet.flowkeep.io/Enforced=Unknown/Stale/not in 1 of 1 cluster: c1: Enforced is reported for generation 6, the object has 7",
			"c1.fleet.flowkeep.io/Enforced=Unknown/Stale/Enforced is reported for generation 6, the object has 7",
		}},
		{"one tells less than another", []State{answerOf("c1", "Enforced=True"), answerOf("c2", "Accepted=True")}, []string{
			"fleet.flowkeep.io/Synced=True/Synced/in 2 clusters",
			"fleet.flowkeep.io/Accepted=Unknown/NotTold/not in 1 of 2 clusters: c1: no report of Accepted",
			"fleet.flowkeep.io/Enforced=Unknown/NotTold/not in 1 of 2 clusters: c2: no report of Enforced",
			"c2.fleet.flowkeep.io/Enforced=Unknown/NotTold/no report of Enforced",
			"c1.fleet.flowkeep.io/Enforced=True/Enforced/",
		}},
		{"several copies in a cluster", []State{answerOf("c1", "Enforced=True"), answerOf("c1", "Enforced=False/Overridden/by x"), quiet("c1", Waiting), answerOf("c2", "Enforced=True")}, []string{
			"fleet.flowkeep.io/Synced=Unknown/Waiting/not in 1 of 2 clusters: c1: it is waiting",
			"fleet.flowkeep.io/Enforced=False/Overridden/not in 1 of 2 clusters: c1: by x",
			"c1.fleet.flowkeep.io/Enforced=False/Overridden/by x",
			"c2.fleet.flowkeep.io/Enforced=True/Enforced/",
		}},
		{"nobody tells anything", []State{answerOf("c1")}, []string{
			"fleet.flowkeep.io/Synced=True/Synced/in 1 cluster",
			"c1.fleet.flowkeep.io/Synced=True/Synced/",
		}},
		{"no cluster", nil, []string{"fleet.flowkeep.io/Synced=Unknown/NoClusters/it goes to no cluster"}},
		{"words that are none", []State{answerOf("c1", "Accepted=maybe/no reason/"), answerOf("c2", "Accepted=False/-/x")}, []string{
			"fleet.flowkeep.io/Synced=True/Synced/in 2 clusters",
			"fleet.flowkeep.io/Accepted=False/NotAccepted/not in 2 of 2 clusters: c2: x; c1: no reason",
			"c2.fleet.flowkeep.io/Accepted=False/NotAccepted/x",
			"c1.fleet.flowkeep.io/Accepted=Unknown/NotAccepted/",
		}},
	} {
		r := reportOf(conditionsKind, test.states...)
		status, changed := PolicyStatus(ours, &r, noon)
		if got := conditionsOf(t, listOf(status, "conditions")); !changed || !slices.Equal(got, test.want) {
			t.Errorf("%s:\n%s\nwanted:\n%s", test.name, strings.Join(got, "\n"), strings.Join(test.want, "\n"))
		}
		holds(t, status, ours)
	}
}

// A policy's entry for a gateway tells what clusters tell with regard to that gateway, of all its sections the worst.
func TestPolicyAncestors(t *testing.T) {
	s := answerOf("c1")
	s.Answer.Ancestors = []Ancestor{
		{Gateway: Name{"", "one"}, Section: "http", Conditions: []Said{saidOf("Accepted=True")}},
		{Gateway: Name{"edge", "one"}, Section: "https", Conditions: []Said{saidOf("Accepted=False/Conflicted/of two")}},
		{Gateway: Name{"elsewhere", "one"}, Conditions: []Said{saidOf("Enforced=False/X")}},
		{Gateway: Name{"", "two"}, Conditions: []Said{saidOf("Accepted=True/Accepted")}},
	}
	r := reportOf(ancestorsKind)
	r.Targets = []Target{
		{Gateway: Name{"shop", "a"}, Spoke: Name{"edge", "one"}, States: []State{s}},
		{Gateway: Name{"shop", "b"}, Spoke: Name{"edge", "two"}, States: []State{s}},
	}
	other := map[string]any{"controllerName": "another.example/x", "ancestorRef": map[string]any{"name": "a", "weird": int64(1)}, "conditions": []any{}}
	gone := map[string]any{"controllerName": ours, "ancestorRef": map[string]any{"name": "gone", "namespace": "shop"}}
	r.Policy.Object["status"] = map[string]any{"ancestors": []any{gone, other}, "more": "kept"}
	status, changed := PolicyStatus(ours, &r, noon)
	entries := listOf(status, "ancestors")
	if !changed || len(entries) != 3 || !reflect.DeepEqual(entries[0], any(other)) || status["more"] != "kept" {
		t.Fatalf("%v", status)
	}
	for i, want := range []string{"a Accepted=False/Conflicted/not in 1 of 1 cluster: c1: of two", "b Accepted=True/Accepted/in 1 cluster"} {
		e := entries[i+1].(map[string]any)
		ref := e["ancestorRef"].(map[string]any)
		got := fmt.Sprintf("%s %s", ref["name"], conditionsOf(t, listOf(e, "conditions"))[1])
		if got != want || e["controllerName"] != ours || ref["namespace"] != "shop" || ref["kind"] != "Gateway" {
			t.Errorf("%s: %v", got, e)
		}
	}
	r.Policy.Object["status"] = status
	r.Targets = nil
	if status, _ := PolicyStatus(ours, &r, later); !reflect.DeepEqual(listOf(status, "ancestors"), []any{other}) {
		t.Errorf("a policy that targets nothing has %v", status)
	}
}

func TestKindsWithoutAStatusAreLeftAlone(t *testing.T) {
	r := reportOf(statuslessKind, answerOf("c1", "Accepted=True"))
	if status, changed := PolicyStatus(ours, &r, noon); changed || len(status) != 0 {
		t.Errorf("%v", status)
	}
}

func TestGatewayStatus(t *testing.T) {
	there := func(cluster string, programmed string, routes int64, a ...string) State {
		s := answerOf(cluster, "Accepted=True/Accepted@7", "Programmed="+programmed+"@7")
		s.Answer.Addresses = addresses(a...)
		s.Answer.Listeners = []Listener{{"http", routes, []Said{saidOf("Programmed=" + programmed)}}, {"unknown", 9, nil}}
		return s
	}
	silent := there("c3", "True/Programmed", 4, "Hostname c.example")
	silent.Phase, silent.Reason, silent.Message = Silent, "Silent", "not heard of"
	r := &GatewayReport{Gateway: gatewayObject(), States: []State{
		there("c1", "True/Programmed", 1, "IPAddress 192.0.2.2", "192.0.2.1"), there("c2", "False/Pending/no address", 2, "192.0.2.1"), silent,
	}}
	r.Gateway["status"] = map[string]any{
		"addresses": []any{map[string]any{"type": "IPAddress", "value": "203.0.113.1"}},
		"conditions": []any{
			map[string]any{"type": "Accepted", "status": "Unknown", "reason": "Pending", "message": "Waiting for controller", "lastTransitionTime": "1970-01-01T00:00:00Z"},
			map[string]any{"type": "example.com/Theirs", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
			map[string]any{"type": "gone.fleet.flowkeep.io/Programmed", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
		},
	}
	status, changed := GatewayStatus(r, noon)
	want := []string{
		"Accepted=Unknown/Silent/not in 1 of 3 clusters: c3: not heard of",
		"example.com/Theirs=True/R/",
		"Programmed=False/Pending/not in 2 of 3 clusters: c2: no address; c3: not heard of",
		"fleet.flowkeep.io/Synced=Unknown/Silent/not in 1 of 3 clusters: c3: not heard of",
		"fleet.flowkeep.io/PolicyConflicts=False/NoConflicts/no cluster reports a conflict",
		"c2.fleet.flowkeep.io/Programmed=False/Pending/no address",
		"c3.fleet.flowkeep.io/Programmed=Unknown/Silent/not heard of",
		"c1.fleet.flowkeep.io/Programmed=True/Programmed/",
	}
	if got := conditionsOf(t, listOf(status, "conditions")); !changed || !slices.Equal(got, want) {
		t.Errorf("%s", strings.Join(got, "\n"))
	}
	if got := fmt.Sprint(status["addresses"]); got != "[map[type:Hostname value:c.example] map[type:IPAddress value:192.0.2.1] map[type:IPAddress value:192.0.2.2]]" {
		t.Error(got)
	}
	listener := listOf(status, "listeners")[0].(map[string]any)
	if got := conditionsOf(t, listOf(listener, "conditions")); len(listOf(status, "listeners")) != 1 || listener["name"] != "http" || listener["attachedRoutes"] != int64(7) ||
		!slices.Equal(got, []string{"Programmed=False/Pending/not in 2 of 3 clusters: c2: no address; c3: not heard of"}) {
		t.Errorf("%v", listener)
	}
	if accepted := conditionNamed(listOf(status, "conditions"), "Accepted"); accepted["lastTransitionTime"] != "1970-01-01T00:00:00Z" || accepted["observedGeneration"] != int64(3) {
		t.Errorf("%v", accepted)
	}
	holds(t, status, "")
	r.Problem = &Problem{Reason: "InvalidParameters", Message: "no downstreamClass"}
	status, _ = GatewayStatus(r, noon)
	if c := conditionNamed(listOf(status, "conditions"), "Accepted"); c["status"] != "False" || c["reason"] != "InvalidParameters" || c["message"] != "no downstreamClass" {
		t.Errorf("%v", c)
	}
	for i := range r.States {
		r.States[i] = there(r.States[i].Cluster, "True/Programmed", 1, "192.0.2.1")
	}
	status, _ = GatewayStatus(r, noon)
	for _, c := range append(listOf(status, "conditions"), listOf(listOf(status, "listeners")[0].(map[string]any), "conditions")...) {
		if m := c.(map[string]any); m["status"] == "True" && m["type"] != "example.com/Theirs" {
			t.Errorf("what is not sent is said to be there: %v", m)
		}
	}
	if len(listOf(status, "addresses")) != 1 {
		t.Errorf("the gateways that there are have no addresses: %v", status)
	}
}

func TestHierarchy(t *testing.T) {
	kinds := []Kind{conditionsKind, ancestorsKind}
	for _, kind := range kinds {
		for _, test := range []struct {
			said       string
			overridden string
			conflicted bool
		}{
			{"Accepted=True", "", false},
			{"Enforced=False/Overridden/by route x", `{"KIND/shop/limit":{"c1":"by route x"}}`, false},
			{"Accepted=False/Overridden", `{"KIND/shop/limit":{"c1":"overridden"}}`, false},
			{"Overridden=True/R/by y", `{"KIND/shop/limit":{"c1":"by y"}}`, false},
			{"Overridden=False/R/by none", "", false},
			{"Overridden=True/R/by y@6", "", false},
			{"Accepted=False/Conflicted/older one", "", true},
			{"Accepted=True/Conflicted/older one", "", false},
			{"Conflicted=True/X/older one", "", true},
			{"Accepted=False/Invalid/older one", "", false},
		} {
			r := reportOf(kind, answerOf("c1", test.said), quiet("c2", Waiting, test.said))
			want := strings.ReplaceAll(test.overridden, "KIND", kind.Kind)
			if got := OverriddenAnnotation(Name{"shop", "web"}, []PolicyReport{r}); got != want {
				t.Errorf("%s: %s", test.said, got)
			}
			if got := OverriddenAnnotation(Name{"shop", "other"}, []PolicyReport{r}); got != "" {
				t.Errorf("another gateway has %s", got)
			}
			status, _ := GatewayStatus(&GatewayReport{Gateway: gatewayObject(), Policies: []PolicyReport{r}}, noon)
			c := conditionNamed(listOf(status, "conditions"), ConditionPolicyConflicts)
			if (c["status"] == "True") != test.conflicted || test.conflicted && c["message"] != kind.Kind+"/shop/limit in c1: older one" {
				t.Errorf("%s: %v", test.said, c)
			}
			status, _ = PolicyStatus(ours, &r, noon)
			if raw, _ := json.Marshal(status); test.overridden+fmt.Sprint(test.conflicted) != "false" && strings.HasPrefix(test.said, "Accepted=False") && !strings.Contains(string(raw), "c1: ") {
				t.Errorf("%s: the policy does not name the cluster: %s", test.said, raw)
			}
		}
	}
}

func TestClassStatus(t *testing.T) {
	class := Object{"metadata": map[string]any{"name": "hub", "generation": int64(4)}, "status": map[string]any{"supportedFeatures": []any{"x"}, "conditions": []any{
		map[string]any{"type": "Accepted", "status": "Unknown", "reason": "Pending", "message": "Waiting for controller", "lastTransitionTime": "1970-01-01T00:00:00Z"},
		map[string]any{"type": "SupportedVersion", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
	}}}
	for _, test := range []struct {
		name string
		c    Class
		want []string
	}{
		{"well", Class{Kinds: []Kind{conditionsKind, ancestorsKind}, Note: "one key is passed by"}, []string{
			"Accepted=True/Accepted/its parameters are taken; one key is passed by", "fleet.flowkeep.io/KindsSynced=True/Synced/policies of the kinds RateLimitPolicy, SecurityPolicy go along"}},
		{"no kinds", Class{}, []string{"Accepted=True/Accepted/its parameters are taken", "fleet.flowkeep.io/KindsSynced=True/Synced/no kinds of policies are listed: gateways go alone"}},
		{"no parameters", Class{Err: errors.New("downstreamClass is missing")}, []string{
			"Accepted=False/InvalidParameters/downstreamClass is missing; what was sent before stays as it is in the clusters",
			"fleet.flowkeep.io/KindsSynced=Unknown/InvalidParameters/the list of kinds is not known"}},
		{"kinds", Class{Kinds: []Kind{conditionsKind}, Problems: []Problem{{Reason: "NotAPolicy", Message: "b: none"}, {Reason: "KindAbsent", Message: "a: absent"}}}, []string{
			"Accepted=True/Accepted/its parameters are taken", "fleet.flowkeep.io/KindsSynced=False/KindAbsent/a: absent; b: none"}},
		{"unreadable", Class{Kinds: []Kind{conditionsKind}, Frozen: "forbidden"}, []string{
			"Accepted=True/Accepted/its parameters are taken", "fleet.flowkeep.io/KindsSynced=False/KindUnreadable/forbidden; what was sent before stays as it is in the clusters"}},
	} {
		status, changed := ClassStatus(class, &test.c, noon)
		got := conditionsOf(t, listOf(status, "conditions"))
		if !changed || len(got) != 3 || got[0] != test.want[0] || got[1] != "SupportedVersion=True/R/" || got[2] != test.want[1] || status["supportedFeatures"] == nil {
			t.Errorf("%s: %s", test.name, strings.Join(got, "\n"))
		}
		if _, changed := ClassStatus(Object{"metadata": class["metadata"], "status": status}, &test.c, later); changed {
			t.Errorf("%s: it would be written again", test.name)
		}
		if conditionNamed(listOf(status, "conditions"), "Accepted")["observedGeneration"] != int64(4) {
			t.Errorf("%s: no generation", test.name)
		}
		holds(t, status, "")
	}
}

func TestSetStatus(t *testing.T) {
	there := func(cluster string) State { return answerOf(cluster) }
	enforced := func(cluster, said string, set ...func(*Answer)) State {
		s := answerOf(cluster, said)
		s.Answer.PolicyCopy, s.Answer.PolicyGeneration, s.Answer.Nodes, s.Answer.NodesEnforcing = "abc", 7, 3, 2
		for _, one := range set {
			one(s.Answer)
		}
		return s
	}
	for _, test := range []struct {
		name        string
		r           SetReport
		distributed string
		enforced    string
		lacking     string
	}{
		{"in force", SetReport{Clusters: []string{"c2", "c1"}, Policies: []SetPolicy{{Name{"shop", "deny"}, []State{there("c1"), there("c2")}, []State{enforced("c1", "Enforced=True/InForce"), enforced("c2", "Enforced=True/NoPods")}}}},
			"True/Distributed/in 2 clusters", "True/Enforced/in 2 clusters", ""},
		{"not everywhere", SetReport{Clusters: []string{"c1", "c2", "c3", "c4"}, Policies: []SetPolicy{
			{Name{"shop", "deny"}, []State{there("c1"), there("c2"), there("c3"), quiet("c4", Silent)}, []State{
				enforced("c1", "Enforced=False/Failed/2 of 3 nodes"), quiet("c2", Refused), enforced("c3", "Enforced=True/InForce", func(a *Answer) { a.PolicyCopy = "old" }), enforced("c4", "Enforced=True/InForce")}},
			{Name{"shop", "dns"}, []State{there("c1"), quiet("c2", Waiting), there("c3"), quiet("c4", Silent)}, []State{
				enforced("c1", "Enforced=True/InForce"), enforced("c2", "Enforced=True/InForce"), enforced("c3", "Enforced=True/InForce", func(a *Answer) { a.PolicyGeneration = 6 }), enforced("c4", "Enforced=True/InForce")}},
		}},
			"Unknown/Waiting/not in 2 of 4 clusters: c2: dns: it is waiting; c4: deny: it is silent; dns: it is silent",
			"False/Failed/not in 4 of 4 clusters: c1: deny: 2 of 3 nodes; c2: deny: it is refused; dns: it is waiting; c3: deny: the cluster's report is of another version; dns: the cluster's report is of another version; c4: deny: it is silent; dns: it is silent",
			"c1 Failed deny: 2 of 3 nodes\nc2 Refused deny: it is refused; dns: it is waiting\nc3 Stale deny: the cluster's report is of another version; dns: the cluster's report is of another version\nc4 Silent deny: it is silent; dns: it is silent\n"},
		{"nothing asks", SetReport{Clusters: []string{"c1"}, Policies: []SetPolicy{{Name{"shop", "deny"}, []State{there("c1")}, nil}}},
			"True/Distributed/in 1 cluster", "Unknown/NotSent/not in 1 of 1 cluster: c1: deny: nothing asks the cluster whether it is in force", "c1 NotSent deny: nothing asks the cluster whether it is in force\n"},
		{"a policy without a state", SetReport{Clusters: []string{"c1"}, Policies: []SetPolicy{{Name{"shop", "deny"}, nil, nil}}},
			"Unknown/NotSent/not in 1 of 1 cluster: c1: 1 of 1 policies are not sent", "Unknown/NotSent/not in 1 of 1 cluster: c1: 1 of 1 policies are not sent", "c1 NotSent 1 of 1 policies are not sent\n"},
		{"no clusters", SetReport{Policies: []SetPolicy{{Name{"shop", "deny"}, nil, nil}}}, "Unknown/NoClusters/it goes to no cluster", "Unknown/NoClusters/it goes to no cluster", ""},
		{"no policies", SetReport{Clusters: []string{"c1"}}, "Unknown/NoPolicies/it selects no NetworkPolicy", "Unknown/NoPolicies/it selects no NetworkPolicy", ""},
		{"no placement", SetReport{Problem: &Problem{Reason: "PlacementNotFound", Message: "no Placement p"}}, "False/PlacementNotFound/no Placement p", "False/PlacementNotFound/no Placement p", ""},
	} {
		set := &fleetv1alpha1.NetworkPolicySet{ObjectMeta: metav1.ObjectMeta{Generation: 2}}
		status, changed := SetStatus(set, &test.r, noon)
		var lacking strings.Builder
		for _, l := range status.Lacking {
			fmt.Fprintln(&lacking, l.Cluster, l.Reason, l.Message)
		}
		text := func(c metav1.Condition) string { return fmt.Sprintf("%s/%s/%s", c.Status, c.Reason, c.Message) }
		if !changed || text(status.Conditions[0]) != test.distributed || text(status.Conditions[1]) != test.enforced || lacking.String() != test.lacking ||
			int(status.Clusters) != len(test.r.Clusters) || int(status.Policies) != len(test.r.Policies) {
			t.Errorf("%s:\n%+v\n%s", test.name, status, lacking.String())
		}
		if _, changed := SetStatus(&fleetv1alpha1.NetworkPolicySet{ObjectMeta: set.ObjectMeta, Status: status}, &test.r, later); changed {
			t.Errorf("%s: it would be written again", test.name)
		}
	}
}

func TestOverrideStatus(t *testing.T) {
	o := &fleetv1alpha1.PolicyOverride{ObjectMeta: metav1.ObjectMeta{Generation: 2}}
	status, changed := OverrideStatus(o, []string{"c2", "c1", "c2"}, nil, noon)
	if !changed || !slices.Equal(status.Clusters, []string{"c1", "c2"}) || status.Conditions[0].Message != "put into the policy in 2 clusters" {
		t.Errorf("%+v", status)
	}
	o.Status = status
	if _, changed := OverrideStatus(o, []string{"c1", "c2"}, nil, later); changed {
		t.Error("it would be written again")
	}
	if status, changed := OverrideStatus(o, nil, &Problem{Reason: "Invalid", Message: "it may not touch targetRef"}, later); !changed || status.Conditions[0].Status != "False" || status.Clusters != nil {
		t.Errorf("%+v", status)
	}
}

// randomState is any, with any of the words that spokes use.
func randomState(r *rand.Rand, cluster string) State {
	var said []string
	for _, typ := range slices.Concat(summedTypes, lossTypes) {
		if r.IntN(2) == 0 {
			continue
		}
		said = append(said, typ+"="+[]string{"True", "True", "True", "False", "Unknown", "", "x"}[r.IntN(7)]+"/"+[]string{"Accepted", "Overridden", "Conflicted", "", "not a word"}[r.IntN(5)]+
			[]string{"", "/why", "/" + strings.Repeat("long ", 200)}[r.IntN(3)]+[]string{"", "@7", "@6"}[r.IntN(3)])
	}
	if r.IntN(2) == 0 {
		return answerOf(cluster, said...)
	}
	return quiet(cluster, []Phase{NotSent, Waiting, Refused, Silent}[r.IntN(4)], said...)
}

func randomOld(r *rand.Rand, clusters int) []any {
	var all []any
	for i := range r.IntN(10) {
		typ := []string{fmt.Sprintf("example.com/Theirs%d", i), fmt.Sprintf("c%d.%s/Enforced", r.IntN(clusters+2), Group), ConditionSynced, Group + "/Accepted", fmt.Sprintf("Plain%d", i), "Accepted", "Programmed"}[r.IntN(7)]
		if conditionNamed(all, typ) == nil {
			all = append(all, map[string]any{"type": typ, "status": "True", "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z", "extra": int64(i)})
		}
	}
	return all
}

// theirs are the entries of a list that are not ours, as text.
func theirs(list []any, own func(any) bool) (texts []string) {
	for _, e := range list {
		if !own(e) {
			texts = append(texts, fmt.Sprint(e))
		}
	}
	return texts
}

// TestStatusesHold holds for any states and whatever is in the old status: a sum is True only if every cluster says True of this version;
// clusters that do not are named, or counted; others' entries stay, in their order; limits hold; a status with the report in it does not
// change again; what was given is not changed; a condition whose status is as it was keeps its time.
func TestStatusesHold(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		clusters := r.IntN(14)
		var states []State
		for i := range clusters {
			states = append(states, randomState(r, fmt.Sprintf("c%d", i)))
		}
		conditions := reportOf(conditionsKind, slices.Clone(states)...)
		conditions.Policy.Object["status"] = map[string]any{"conditions": randomOld(r, clusters)}
		ancestors := reportOf(ancestorsKind, slices.Clone(states)...)
		for i := range r.IntN(20) {
			ancestors.Targets = append(ancestors.Targets, Target{Gateway: Name{"shop", fmt.Sprintf("g%d", i)}, Spoke: Name{"edge", fmt.Sprintf("s%d", i)}, States: states})
		}
		var old []any
		writers := []string{"another.example/x", ours}[:1+r.IntN(2)]
		for i := range r.IntN(17) {
			old = append(old, map[string]any{"controllerName": writers[r.IntN(len(writers))], "ancestorRef": map[string]any{"name": fmt.Sprintf("g%d", i)}, "conditions": randomOld(r, clusters)})
		}
		ancestors.Policy.Object["status"] = map[string]any{"ancestors": old}
		gateway := &GatewayReport{Gateway: gatewayObject(), States: states, Policies: []PolicyReport{conditions, ancestors}}
		written := randomOld(r, clusters)
		gateway.Gateway["status"] = map[string]any{"conditions": written[:min(8, len(written))]}
		ownType := func(c any) bool { return domain(Group).owns(typeOf(c)) }
		ownOfGateway := func(c any) bool { return ownType(c) || typeOf(c) == "Accepted" || typeOf(c) == "Programmed" }
		ownEntry := func(e any) bool { return e.(map[string]any)["controllerName"] == ours }
		for _, one := range []struct {
			name, field, prefix string
			object              Object
			own                 func(any) bool
			said                func(*State) []Said
			update              func(metav1.Time) (Object, bool)
		}{
			{"conditions", "conditions", Group + "/", conditions.Policy.Object, ownType, (*State).top, func(now metav1.Time) (Object, bool) { return PolicyStatus(ours, &conditions, now) }},
			{"ancestors", "ancestors", "", ancestors.Policy.Object, ownEntry, nil, func(now metav1.Time) (Object, bool) { return PolicyStatus(ours, &ancestors, now) }},
			{"gateway", "conditions", "", gateway.Gateway, ownOfGateway, (*State).top, func(now metav1.Time) (Object, bool) { return GatewayStatus(gateway, now) }},
		} {
			before := fmt.Sprint(one.object)
			had := listOf(statusOf(one.object), one.field)
			status, _ := one.update(noon)
			if after := fmt.Sprint(one.object); after != before {
				t.Fatalf("%d: %s: what was given was changed", seed, one.name)
			}
			have := listOf(status, one.field)
			if !slices.Equal(theirs(had, one.own), theirs(have, one.own)) {
				t.Fatalf("%d: %s: others' entries were touched:\n%v\n%v", seed, one.name, had, have)
			}
			controller := ours
			if one.name == "gateway" {
				controller = ""
			}
			held(t, status, controller, one.own)
			if one.said != nil {
				for _, complaint := range untrue(have, one.prefix, states, one.said) {
					t.Fatalf("%d: %s: %s", seed, one.name, complaint)
				}
				for _, c := range have {
					if was := conditionNamed(had, typeOf(c)); was != nil && one.own(c) && was["status"] == c.(map[string]any)["status"] && was["lastTransitionTime"] != c.(map[string]any)["lastTransitionTime"] {
						t.Fatalf("%d: %s: the time of %v was lost", seed, one.name, c)
					}
				}
			}
			one.object["status"] = status
			if again, changed := one.update(later); changed || !reflect.DeepEqual(again, status) {
				t.Fatalf("%d: %s: it would be written again:\n%v\n%v", seed, one.name, status, again)
			}
			raw, err := json.Marshal(one.object)
			if err != nil {
				t.Fatal(err)
			}
			var read Object
			if err := json.Unmarshal(raw, &read); err != nil {
				t.Fatal(err)
			}
			one.object["status"] = read["status"] // numbers are floats now
			if _, changed := one.update(later); changed {
				t.Fatalf("%d: %s: read from JSON it would be written again", seed, one.name)
			}
		}
	}
}

// held is holds of a status in which others may have written anything.
func held(t *testing.T, status Object, controller string, own func(any) bool) {
	t.Helper()
	mine := Object{}
	for field, v := range status {
		if list, ok := v.([]any); ok && field != "listeners" && field != "addresses" {
			mine[field] = slices.DeleteFunc(slices.Clone(list), func(e any) bool { return !own(e) })
		} else {
			mine[field] = v
		}
	}
	holds(t, mine, controller)
	if n := len(listOf(status, "ancestors")); n > 16 {
		t.Fatalf("%d ancestors", n)
	}
	if n, others := len(listOf(status, "conditions")), len(theirs(listOf(status, "conditions"), own)); controller == "" && n > max(8, others) {
		t.Fatalf("%d conditions, %d of others", n, others)
	}
}

// untrue is what is wrong with sums: the slow way to say what is right.
func untrue(list []any, prefix string, states []State, said func(*State) []Said) (wrong []string) {
	for _, typ := range toldOfPolicies {
		c := conditionNamed(list, prefix+typ)
		if c == nil || prefix == "" && c["reason"] == "R" {
			continue
		}
		all, anyFalse, named, not := len(states) > 0, false, 0, 0
		for i := range states {
			says := map[metav1.ConditionStatus]bool{}
			if s := &states[i]; s.Phase == Answered {
				for _, one := range said(s) {
					if one.Type == typ && (one.Generation == nil || *one.Generation == 7) {
						says[one.Status] = true
					}
				}
			}
			anyFalse = anyFalse || says[metav1.ConditionFalse]
			if !says[metav1.ConditionTrue] {
				all = false
				not++
				if strings.Contains(textOf(c, "message"), states[i].Cluster+": ") {
					named++
				}
			}
		}
		want := "Unknown"
		if all {
			want = "True"
		} else if anyFalse {
			want = "False"
		}
		if c["status"] != want {
			wrong = append(wrong, fmt.Sprintf("%s is %s, not %s", typ, c["status"], want))
		}
		if named < min(not, mostNamed) || not > mostNamed && !strings.Contains(textOf(c, "message"), fmt.Sprintf("and %d more", not-mostNamed)) {
			wrong = append(wrong, fmt.Sprintf("%s names %d of %d clusters: %s", typ, named, not, c["message"]))
		}
	}
	return wrong
}
