package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Types of conditions that are Flowkeep's own, under the Domain of the controller that writes them.
const (
	plainSynced          = "Synced"
	plainPolicyConflicts = "PolicyConflicts"
	plainKindsSynced     = "KindsSynced"
)

// Types of conditions of the default controller.
const (
	ConditionSynced          = Group + "/" + plainSynced
	ConditionPolicyConflicts = Group + "/" + plainPolicyConflicts
	ConditionKindsSynced     = Group + "/" + plainKindsSynced
)

// Domain is what the types of a controller's conditions, and its annotation of overridden policies, are under, so that two controllers on a
// hub leave each other's alone.
func Domain(controller gatewayv1.GatewayController) string { return string(domainOf(controller)) }

// ClustersKey returns the annotation of what clusters report, which a controller writes.
func ClustersKey(controller gatewayv1.GatewayController) string {
	return string(domainOf(controller)) + strings.TrimPrefix(AnnotationClusters, Group)
}

// OverriddenKey is the annotation of overridden policies that a controller writes.
func OverriddenKey(controller gatewayv1.GatewayController) string {
	return domainOf(controller).of("overridden")
}

type domain string

// othersDomain ends those of other controllers than the default one. No name of a cluster has a dot, so none is between it and a hash.
const othersDomain = ".by." + Group

func domainOf(controller gatewayv1.GatewayController) domain {
	if controller == DefaultController || controller == "" {
		return Group
	}
	return domain(hashOf(8, string(controller)) + othersDomain)
}

func (d domain) of(plain string) string { return string(d) + "/" + plain }

// Limits of statuses.
const (
	mostNamed        = 10   // clusters that a message names
	mostOfACluster   = 300  // characters of what a cluster says, in a message
	mostConditions   = 8    // that Gateway API allows in one list
	mostOwnOfAPolicy = 64   // conditions of ours where a kind has them without ancestors
	mostMessage      = 4096 // characters of a condition's message; Kubernetes allows 32768
)

// ofCluster returns the type of the condition of one cluster.
func (d domain) ofCluster(cluster, typ string) string { return cluster + "." + string(d) + "/" + typ }

// owns reports whether a type of conditions is the controller's.
func (d domain) owns(typ string) bool {
	whole, _, ok := strings.Cut(typ, "/")
	cluster, of := strings.CutSuffix(whole, "."+string(d))
	return ok && (whole == string(d) || of && !strings.Contains(cluster, "."))
}

// verdict is what one cluster says of one thing.
type verdict struct {
	cluster         string
	status          metav1.ConditionStatus
	reason, message string
}

// text names the cluster and says why.
func (v *verdict) text() string {
	if v.message == "" {
		return v.cluster + ": " + cmp.Or(v.reason, string(v.status))
	}
	return v.cluster + ": " + cut(v.message, mostOfACluster)
}

// verdict is what the cluster says of a type of condition; said are the conditions that count, of its answer.
func (s *State) verdict(typ string, said []Said) verdict {
	v := verdict{s.Cluster, metav1.ConditionUnknown, s.Reason, s.Message}
	if s.Phase != Answered {
		return v
	}
	c := find(said, typ)
	switch {
	case c == nil:
		v.reason, v.message = "NotTold", "no report of "+typ
	case c.Generation != nil && s.Answer.Generation != 0 && *c.Generation != s.Answer.Generation:
		v.reason, v.message = "Stale", fmt.Sprintf("%s is reported for generation %d, the object has %d", typ, *c.Generation, s.Answer.Generation)
	case c.Status == metav1.ConditionTrue, c.Status == metav1.ConditionFalse:
		v.status, v.reason, v.message = c.Status, c.Reason, c.Message
	default:
		v.reason, v.message = c.Reason, c.Message
	}
	return v
}

// synced: a copy is there in the version that is wanted, or it is said why not.
func (s *State) synced() verdict {
	v := verdict{s.Cluster, metav1.ConditionUnknown, s.Reason, s.Message}
	switch s.Phase {
	case Answered:
		v.status = metav1.ConditionTrue
	case Refused, NotSent:
		v.status = metav1.ConditionFalse
	}
	return v
}

func find(said []Said, typ string) *Said {
	for i := range said {
		if said[i].Type == typ && said[i].Status != "" {
			return &said[i]
		}
	}
	return nil
}

// sum is True only if all say so; else False if one does, else Unknown. Its message names clusters that do not say True: those that say
// False first.
func sum(typ string, verdicts []verdict, generation int64) metav1.Condition {
	c := metav1.Condition{Type: typ, Status: metav1.ConditionTrue, ObservedGeneration: generation}
	if len(verdicts) == 0 {
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, "NoClusters", "it goes to no cluster"
		return c
	}
	var not []verdict
	reasons := map[string]bool{}
	for _, v := range verdicts {
		reasons[v.reason] = true
		if v.status != metav1.ConditionTrue {
			not = append(not, v)
		}
	}
	_, plain, ours := strings.Cut(typ, "/")
	if !ours {
		plain = typ
	}
	if len(not) == 0 {
		c.Reason, c.Message = plain, "in "+plural(len(verdicts), "cluster", "clusters")
		if len(reasons) == 1 {
			c.Reason = reasonOr(verdicts[0].reason, plain)
		}
		return c
	}
	slices.SortStableFunc(not, func(a, b verdict) int {
		return cmp.Or(cmp.Compare(severity(a), severity(b)), cmp.Compare(a.cluster, b.cluster))
	})
	c.Status, c.Reason = not[0].status, reasonOr(not[0].reason, "Not"+plain)
	c.Message = fmt.Sprintf("not in %d of %s: %s", len(not), plural(len(verdicts), "cluster", "clusters"), named(not))
	return c
}

func severity(v verdict) int {
	if v.status == metav1.ConditionFalse {
		return 0
	}
	return 1
}

func named(all []verdict) string {
	var parts []string
	for _, v := range all[:min(len(all), mostNamed)] {
		parts = append(parts, v.text())
	}
	if more := len(all) - mostNamed; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return cut(strings.Join(parts, "; "), mostMessage)
}

// perCluster are conditions about one cluster each: those that are not True first.
func (d domain) perCluster(typ string, verdicts []verdict, generation int64) (conditions []metav1.Condition) {
	sorted := slices.Clone(verdicts)
	slices.SortStableFunc(sorted, func(a, b verdict) int {
		return cmp.Or(cmp.Compare(rankOf(a), rankOf(b)), cmp.Compare(a.cluster, b.cluster))
	})
	for _, v := range sorted {
		c := metav1.Condition{Type: d.ofCluster(v.cluster, typ), Status: v.status, Message: cut(v.message, mostMessage), ObservedGeneration: generation}
		c.Reason = reasonOr(v.reason, typ)
		if v.status != metav1.ConditionTrue {
			c.Reason = reasonOr(v.reason, "Not"+typ)
		}
		conditions = append(conditions, c)
	}
	return conditions
}

func rankOf(v verdict) int {
	if v.status == metav1.ConditionTrue {
		return 2
	}
	return severity(v)
}

var reasons = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`)

// reasonOr is a reason that Kubernetes takes.
func reasonOr(reason, otherwise string) string {
	if len(reason) <= 1024 && reasons.MatchString(reason) {
		return reason
	}
	return otherwise
}

// cut shortens a text to so many bytes, between characters.
func cut(text string, most int) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-len("…")], "") + "…"
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// mergeConditions puts conditions of ours, the most important first, into a list: others' stay as they are and where they are, ours that
// are not wanted go, and as many of those that are wanted as the limit leaves room for are there, at their old places. What has not
// changed is the same, its lastTransitionTime too.
func mergeConditions(old []any, wanted []metav1.Condition, ours func(typ string) bool, most int, now metav1.Time) (merged []any) {
	others := 0
	for _, c := range old {
		if !ours(typeOf(c)) {
			others++
		}
	}
	left := map[string]metav1.Condition{}
	wanted = wanted[:min(len(wanted), max(0, most-others))]
	for _, c := range wanted {
		left[c.Type] = c
	}
	for _, c := range old {
		typ := typeOf(c)
		if !ours(typ) {
			merged = append(merged, c)
			continue
		}
		if want, ok := left[typ]; ok {
			merged = append(merged, renewed(c, want, now))
			delete(left, typ)
		}
	}
	for _, c := range wanted {
		if _, ok := left[c.Type]; ok {
			merged = append(merged, renewed(nil, c, now))
			delete(left, c.Type)
		}
	}
	return merged
}

func typeOf(c any) string {
	m, _ := c.(map[string]any)
	return textOf(m, "type")
}

// renewed is a condition as JSON has it; the old one itself where it says the same.
func renewed(old any, want metav1.Condition, now metav1.Time) any {
	have, _ := old.(map[string]any)
	since := textOf(have, "lastTransitionTime")
	if _, err := time.Parse(time.RFC3339, since); err != nil || textOf(have, "status") != string(want.Status) {
		since = now.UTC().Format(time.RFC3339)
	}
	c := map[string]any{
		"type": want.Type, "status": string(want.Status), "reason": want.Reason, "message": want.Message, "lastTransitionTime": since,
	}
	if want.ObservedGeneration != 0 {
		c["observedGeneration"] = want.ObservedGeneration
	}
	if same(have, c) {
		return old
	}
	return c
}

// same compares what JSON has, numbers by their value.
func same(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, same)
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, same)
	case int64, float64, int:
		return numberOf(a) == numberOf(b) && reflect.TypeOf(b) != nil
	}
	return reflect.DeepEqual(a, b)
}

// numberOf is a whole number of JSON's, -1 where there is none.
func numberOf(v any) int64 {
	switch v := v.(type) {
	case int64:
		return v
	case int:
		return int64(v)
	case float64:
		return int64(v)
	}
	return -1
}

// generationOf is an object's.
func generationOf(o Object) int64 {
	metadata, _ := o["metadata"].(map[string]any)
	return max(0, numberOf(metadata["generation"]))
}

func statusOf(o Object) Object {
	status, _ := o["status"].(map[string]any)
	return status
}

func listOf(o Object, field string) []any {
	list, _ := o[field].([]any)
	return list
}

// with is a copy of the object with another value in a field; without a value it has the field no more.
func with(o Object, field string, value any) Object {
	o = maps.Clone(o)
	if o == nil {
		o = Object{}
	}
	if list, ok := value.([]any); ok && len(list) == 0 || value == nil {
		delete(o, field)
		return o
	}
	o[field] = value
	return o
}
