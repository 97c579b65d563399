package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Types of conditions that spokes report.
const (
	conditionAccepted     = "Accepted"
	conditionProgrammed   = "Programmed"
	conditionEnforced     = "Enforced"
	conditionOverridden   = "Overridden"
	conditionConflicted   = "Conflicted"
	conditionResolvedRefs = "ResolvedRefs"
)

// Key names a copy on a spoke.
type Key struct {
	Group, Resource string
	Name
}

// mostAddresses is Gateway API's limit.
const mostAddresses = 16

func namespaceKey(name string) Key { return Key{"", "namespaces", Name{"", name}} }

// Key returns the copy's key.
func (c *Copy) Key() Key { return Key{c.Resource.Group, c.Resource.Resource, c.Name} }

// Answer is what a spoke says of a copy: what is in the status of the work that carries it.
type Answer struct {
	Cluster, Work string
	Copy          Key
	Kind          string
	// Seen: the agent has taken up the work as it is now. What it says of whether it could apply it is of an earlier one otherwise.
	Seen bool
	// Applied, and whether the object is there now; empty without a report. Where it is gone, its last report
	// stays in the work.
	Applied, Available metav1.Condition
	// Source and Hash are AnnotationSource and AnnotationCopy of the object that is there, empty where it is no
	// copy or there is no report.
	Source     string
	Hash       string
	Generation int64 // 0: not reported
	Conditions []Said
	Ancestors  []Ancestor
	Addresses  []gatewayv1.GatewayStatusAddress
	Listeners  []Listener
	// Of NetworkPolicyEnforcements: the version of the NetworkPolicy that is spoken of, and the nodes that there are and that enforce it.
	PolicyCopy            string
	PolicyGeneration      int64
	Nodes, NodesEnforcing int64
}

// Said is a condition as far as a spoke reports it.
type Said struct {
	Type            string
	Status          metav1.ConditionStatus
	Reason, Message string
	Generation      *int64 // nil: not reported
}

// Ancestor is what is said of a copy with regard to a gateway on the spoke.
type Ancestor struct {
	Gateway    Name // Namespace "": the copy's
	Section    string
	Conditions []Said
}

// Listener is what is said of one of a Gateway's.
type Listener struct {
	Name           string
	AttachedRoutes int64
	Conditions     []Said
}

// Answers returns those in a work's status. Whatever else is in there is passed by. A work that is being deleted has
// none, as its copies go.
func Answers(w *workv1.ManifestWork) []Answer {
	if w.DeletionTimestamp != nil {
		return nil
	}
	applied := meta.FindStatusCondition(w.Status.Conditions, workv1.WorkApplied)
	seen := applied != nil && applied.ObservedGeneration >= w.Generation
	var answers []Answer
	for i := range w.Status.ResourceStatus.Manifests {
		m := &w.Status.ResourceStatus.Manifests[i]
		a := Answer{
			Cluster: w.Namespace, Work: w.Name, Seen: seen, Kind: m.ResourceMeta.Kind,
			Copy: Key{m.ResourceMeta.Group, m.ResourceMeta.Resource, Name{m.ResourceMeta.Namespace, m.ResourceMeta.Name}},
		}
		if c := meta.FindStatusCondition(m.Conditions, workv1.ManifestApplied); c != nil {
			a.Applied = *c
		}
		if c := meta.FindStatusCondition(m.Conditions, workv1.ManifestAvailable); c != nil {
			a.Available = *c
		}
		for _, v := range m.StatusFeedbacks.Values {
			a.take(v.Name, valueOf(v.Value))
		}
		a.explain(m.StatusFeedbacks.Values)
		a.dropEmpty()
		answers = append(answers, a)
	}
	return answers
}

// value is what was fed back, in whichever type.
type value struct {
	text   string
	number int64
}

func valueOf(v workv1.FieldValue) value {
	switch {
	case v.String != nil:
		n, _ := strconv.ParseInt(*v.String, 10, 64)
		return value{*v.String, n}
	case v.Integer != nil:
		return value{strconv.FormatInt(*v.Integer, 10), *v.Integer}
	case v.Boolean != nil:
		return value{fmt.Sprint(*v.Boolean), 0}
	}
	return value{}
}

// take puts a value where it belongs by its name; an unknown name is passed by.
func (a *Answer) take(name string, v value) {
	about, field, _ := strings.Cut(name, ".")
	switch about {
	case toldSource:
		a.Source = v.text
	case toldCopy:
		a.Hash = v.text
	case toldGeneration:
		a.Generation = v.number
	case toldPolicyCopy:
		a.PolicyCopy = v.text
	case toldPolicyGeneration:
		a.PolicyGeneration = v.number
	case toldNodes:
		a.Nodes = v.number
	case toldNodesEnforcing:
		a.NodesEnforcing = v.number
	case toldTop:
		a.Conditions = takeCondition(a.Conditions, field, v)
	case toldAddress:
		a.takeAddress(field, v)
	case toldAncestor:
		a.takeAncestor(field, v)
	case toldListener:
		a.takeListener(field, v)
	}
}

func (a *Answer) takeAddress(name string, v value) {
	number, field, _ := strings.Cut(name, ".")
	i, err := strconv.Atoi(number)
	if err != nil || i < 0 || i >= mostAddresses {
		return
	}
	for len(a.Addresses) <= i {
		a.Addresses = append(a.Addresses, gatewayv1.GatewayStatusAddress{})
	}
	switch field {
	case "type":
		t := gatewayv1.AddressType(v.text)
		a.Addresses[i].Type = &t
	case "value":
		a.Addresses[i].Value = v.text
	}
}

func (a *Answer) takeAncestor(name string, v value) {
	number, field, _ := strings.Cut(name, ".")
	i, err := strconv.Atoi(number)
	if err != nil || i < 0 || i >= mostAncestors {
		return
	}
	for len(a.Ancestors) <= i {
		a.Ancestors = append(a.Ancestors, Ancestor{})
	}
	n := &a.Ancestors[i]
	switch field {
	case "name":
		n.Gateway.Name = v.text
	case "namespace":
		n.Gateway.Namespace = v.text
	case "sectionName":
		n.Section = v.text
	default:
		n.Conditions = takeCondition(n.Conditions, field, v)
	}
}

// takeListener: a listener's name may have dots in it, the names of its fields have none.
func (a *Answer) takeListener(name string, v value) {
	at := strings.LastIndex(name, ".")
	if at < 0 {
		return
	}
	listener, field := name[:at], name[at+1:]
	if field == "attachedRoutes" {
		a.listener(listener).AttachedRoutes = v.number
		return
	}
	if at = strings.LastIndex(listener, "."); at < 0 {
		return
	}
	l := a.listener(listener[:at])
	l.Conditions = takeCondition(l.Conditions, name[at+1:], v)
}

func (a *Answer) listener(name string) *Listener {
	for i := range a.Listeners {
		if a.Listeners[i].Name == name {
			return &a.Listeners[i]
		}
	}
	a.Listeners = append(a.Listeners, Listener{Name: name})
	return &a.Listeners[len(a.Listeners)-1]
}

// takeCondition: name is the condition's type and its field.
func takeCondition(said []Said, name string, v value) []Said {
	typ, field, ok := strings.Cut(name, ".")
	if !ok || typ == "" || typ == toldNotTrue {
		return said
	}
	at := -1
	for i := range said {
		if said[i].Type == typ {
			at = i
		}
	}
	if at < 0 {
		said, at = append(said, Said{Type: typ}), len(said)
	}
	switch c := &said[at]; field {
	case "status":
		c.Status = metav1.ConditionStatus(v.text)
	case "reason":
		c.Reason = v.text
	case "message":
		c.Message = v.text
	case "observedGeneration":
		c.Generation = &v.number
	}
	return said
}

// explain adds reasons to conditions that are not True; a spoke reports that of the first only.
func (a *Answer) explain(values []workv1.FeedbackValue) {
	text := func(about, field string) string {
		name := about + "." + toldNotTrue + "." + field
		if at := slices.IndexFunc(values, func(v workv1.FeedbackValue) bool { return v.Name == name }); at >= 0 {
			return valueOf(values[at].Value).text
		}
		return ""
	}
	all := func(about string, said []Said) []Said {
		typ, reason, message := text(about, "type"), text(about, "reason"), text(about, "message")
		said = lossesByReason(said, typ, reason)
		explain(said, typ, reason, message)
		return said
	}
	a.Conditions = all(toldTop, a.Conditions)
	for i := range a.Ancestors {
		n := &a.Ancestors[i]
		n.Conditions = all(fmt.Sprintf("%s.%d", toldAncestor, i), n.Conditions)
	}
}

// lossesByReason gives the reason and the message of a loss that is no condition of its own to the first condition that is False and of which no
// other reason is reported, without its condition. Type and reason are those of the first that is not True.
func lossesByReason(said []Said, typ, reason string) []Said {
	for _, loss := range []string{reasonConflicted, reasonOverridden} {
		types := lossReasons[loss]
		at := slices.IndexFunc(said, func(c Said) bool { return c.Type == loss && c.Status == "" })
		if at < 0 {
			continue
		}
		message := said[at].Message
		said = slices.Delete(said, at, at+1)
		if reason == loss && slices.Contains(types, typ) {
			continue // it is explained by it
		}
		for _, t := range types {
			if c := find(said, t); c != nil && c.Status == metav1.ConditionFalse && t != typ && c.Reason == "" {
				c.Reason, c.Message = loss, message
				break
			}
		}
	}
	return said
}

func explain(said []Said, typ, reason, message string) {
	for i := range said {
		switch c := &said[i]; {
		case typ == "" || slices.Contains(lossTypes, typ) || c.Status == metav1.ConditionTrue || c.Reason != "" || c.Message != "":
		case c.Type == typ:
			c.Reason, c.Message = reason, message
		default: // most likely it is for the same reason
			c.Message = strings.TrimSuffix(fmt.Sprintf("%s is not True: %s", typ, cmp.Or(message, reason)), ": ")
		}
	}
}

// dropEmpty leaves out what came without the one thing that says what it is, and keeps the rest once.
func (a *Answer) dropEmpty() {
	a.Ancestors = slices.DeleteFunc(a.Ancestors, func(n Ancestor) bool { return n.Gateway.Name == "" })
	var addresses []gatewayv1.GatewayStatusAddress
	for _, one := range a.Addresses {
		if one.Value != "" && !slices.ContainsFunc(addresses, func(o gatewayv1.GatewayStatusAddress) bool { return sameAddress(o, one) }) {
			addresses = append(addresses, one)
		}
	}
	a.Addresses = addresses
}

func sameAddress(a, b gatewayv1.GatewayStatusAddress) bool {
	return a.Value == b.Value && addressType(a) == addressType(b)
}

func addressType(a gatewayv1.GatewayStatusAddress) gatewayv1.AddressType {
	if a.Type == nil || *a.Type == "" {
		return gatewayv1.IPAddressType
	}
	return *a.Type
}
