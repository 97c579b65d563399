package fleet

import (
	"cmp"
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// GatewayReport is what there is to say of a hub Gateway.
type GatewayReport struct {
	// Controller is that of its class; empty: the default one.
	Controller gatewayv1.GatewayController

	Gateway  Object         // as the hub has it
	Problem  *Problem       // in the way of all of it, if there is one
	States   []State        // of its copies, one per cluster, with what is Awaiting there
	Policies []PolicyReport // of policies that target it
	Left     Left           // clusters that no decision names any more
}

// GatewayStatus is the Gateway's status with the report in it; changed is false when it says so already. The old status is not changed.
func GatewayStatus(r *GatewayReport, now metav1.Time) (status Object, changed bool) {
	r = r.held()
	old := statusOf(r.Gateway)
	generation := generationOf(r.Gateway)
	own := domainOf(r.Controller)
	conditions := append(r.conditions(generation), r.conflicts(generation))
	conditions = append(conditions, own.perCluster(conditionProgrammed, r.verdicts(conditionProgrammed), generation)...)
	ours := func(typ string) bool { return typ == conditionAccepted || typ == conditionProgrammed || own.owns(typ) }
	status = with(old, "conditions", mergeConditions(listOf(old, "conditions"), conditions, ours, mostConditions, now))
	status = with(status, "addresses", r.addresses())
	status = with(status, "listeners", r.listeners(listOf(old, "listeners"), generation, now))
	return status, !same(old, status) && len(old)+len(status) > 0
}

// held: where something is in the way clusters have what was sent before, and what they say is of no more than that.
func (r *GatewayReport) held() *GatewayReport {
	if r.Problem == nil {
		return r
	}
	h := *r
	h.States = slices.Clone(r.States)
	for i := range h.States {
		if s := &h.States[i]; s.Phase == Answered {
			s.Phase, s.Reason, s.Message = Waiting, reasonOr(r.Problem.Reason, "Invalid"), "it has what was sent before"
		}
	}
	return &h
}

func (r *GatewayReport) conditions(generation int64) (conditions []metav1.Condition) {
	for _, typ := range []string{conditionAccepted, conditionProgrammed} {
		c := sum(typ, r.verdicts(typ), generation)
		if r.Problem != nil {
			c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonOr(r.Problem.Reason, "Invalid"), cut(r.Problem.Message, mostMessage)
		}
		conditions = append(conditions, c)
	}
	return append(conditions, sum(domainOf(r.Controller).of(plainSynced), syncedIn(r.States), generation))
}

func (r *GatewayReport) verdicts(typ string) (verdicts []verdict) {
	for i := range r.States {
		verdicts = append(verdicts, r.States[i].verdict(typ, r.States[i].top()))
	}
	return verdicts
}

func syncedIn(states []State) (verdicts []verdict) {
	for i := range states {
		verdicts = append(verdicts, states[i].synced())
	}
	return verdicts
}

// top returns the conditions of the object itself that a cluster reported last.
func (s *State) top() []Said {
	if s.Answer == nil {
		return nil
	}
	return s.Answer.Conditions
}

// addresses returns those of all clusters, as last reported: a cluster that is silent, or has not taken up an edit yet,
// may serve all the same.
func (r *GatewayReport) addresses() (all []any) {
	for _, a := range r.union() {
		all = append(all, map[string]any{"type": string(addressType(a)), "value": a.Value})
	}
	return all
}

// Addresses returns the addresses in the status.
func (r *GatewayReport) Addresses() []string {
	values := []string{}
	for _, a := range r.union() {
		values = append(values, a.Value)
	}
	return values
}

func (r *GatewayReport) union() (union []gatewayv1.GatewayStatusAddress) {
	for _, s := range r.States {
		if !s.lastTold() {
			continue
		}
		for _, a := range s.Answer.Addresses {
			if !slices.ContainsFunc(union, func(o gatewayv1.GatewayStatusAddress) bool { return sameAddress(o, a) }) {
				union = append(union, a)
			}
		}
	}
	slices.SortFunc(union, func(a, b gatewayv1.GatewayStatusAddress) int {
		return cmp.Or(cmp.Compare(addressType(a), addressType(b)), cmp.Compare(a.Value, b.Value))
	})
	return union[:min(len(union), mostAddresses)]
}

// clusterReport is what a cluster reports of its copy of a Gateway.
type clusterReport struct {
	Addresses      []gatewayv1.GatewayStatusAddress `json:"addresses"`
	AttachedRoutes map[string]int64                 `json:"attachedRoutes"`
	// Leaving is set for a cluster that no decision names any more, which has the Gateway until its grace period ends.
	Leaving bool `json:"leaving,omitempty"`
}

// ClustersAnnotation returns the value of AnnotationClusters: what each cluster reported last, whether it is available
// or not. It is empty where no cluster has reported anything. Clusters with no room in the annotation are left out, the
// last ones first.
func (r *GatewayReport) ClustersAnnotation() string {
	all, size := map[string]clusterReport{}, 0
	for i := range r.States {
		s := &r.States[i]
		if !s.lastTold() {
			continue
		}
		_, leaving := r.Left[s.Cluster]
		one := clusterReport{
			Addresses:      append([]gatewayv1.GatewayStatusAddress{}, s.Answer.Addresses...),
			AttachedRoutes: map[string]int64{},
			Leaving:        leaving,
		}
		for _, name := range listeners(r.Gateway) {
			if l := s.listener(name); l != nil {
				one.AttachedRoutes[name] = l.AttachedRoutes
			}
		}
		text, err := json.Marshal(one)
		if size += len(s.Cluster) + len(text) + 4; err != nil || size > mostAnnotation {
			break
		}
		all[s.Cluster] = one
	}
	if len(all) == 0 {
		return ""
	}
	text, err := json.Marshal(all)
	if err != nil {
		return "" // texts and numbers always can be
	}
	return string(text)
}

// lastTold reports whether the object is there as a copy of some version, with a status.
func (s *State) lastTold() bool {
	return s.Answer != nil && s.Answer.Hash != "" && s.Phase != Refused && s.Answer.Available.Status != metav1.ConditionFalse
}

// listeners returns the listeners of the Gateway's spec, in its order.
func (r *GatewayReport) listeners(old []any, generation int64, now metav1.Time) (all []any) {
	for _, name := range listeners(r.Gateway) {
		have := entryNamed(old, name)
		routes := int64(0)
		for _, s := range r.States {
			if l := s.listener(name); l != nil && s.lastTold() {
				routes += l.AttachedRoutes
			}
		}
		var conditions []metav1.Condition
		for _, typ := range []string{conditionAccepted, conditionProgrammed, conditionResolvedRefs} {
			if verdicts, told := r.ofListener(name, typ); told {
				conditions = append(conditions, sum(typ, verdicts, generation))
			}
		}
		merged := mergeConditions(listOf(have, "conditions"), conditions, func(string) bool { return true }, mostConditions, now)
		entry := map[string]any{"name": name, "attachedRoutes": routes, "conditions": append([]any{}, merged...), "supportedKinds": append([]any{}, listOf(have, "supportedKinds")...)}
		all = append(all, entry)
	}
	return all
}

func (r *GatewayReport) ofListener(name, typ string) (verdicts []verdict, told bool) {
	for i := range r.States {
		var said []Said
		if l := r.States[i].listener(name); l != nil {
			said = l.Conditions
		}
		told = told || find(said, typ) != nil
		verdicts = append(verdicts, r.States[i].verdict(typ, said))
	}
	return verdicts, told
}

func (s *State) listener(name string) *Listener {
	if s.Answer == nil {
		return nil
	}
	for i := range s.Answer.Listeners {
		if s.Answer.Listeners[i].Name == name {
			return &s.Answer.Listeners[i]
		}
	}
	return nil
}

func entryNamed(list []any, name string) Object {
	for _, e := range list {
		if entry, _ := e.(map[string]any); textOf(entry, "name") == name {
			return entry
		}
	}
	return nil
}
