package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/fleet"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	workv1 "open-cluster-management.io/api/work/v1"
)

// agents starts the work agents of all clusters of a test. They answer works as real agents do (docs of the system tests). Every policy is
// Accepted.
func (h *hubWorld) agents() {
	ctx, cancel := context.WithCancel(context.Background())
	a := &agentsOf{
		hubWorld: h,
		has:      map[string]map[string]bool{},
		noted:    map[string]map[string]bool{},
		seen:     map[string]string{},
		there:    map[string]string{},
		pending:  map[string]*unstructured.Unstructured{},
	}
	h.mu.Lock()
	if h.spokes == nil {
		h.spokes = map[string]*agentsOf{}
	}
	h.spokes[h.controller] = a
	h.mu.Unlock()
	selector := fleet.LabelController + "=" + fleet.ControllerLabel(h.controller)
	informer := dynamicinformer.NewFilteredDynamicInformer(h.hub, works.resource, "", 0, nil,
		func(o *metav1.ListOptions) { o.LabelSelector = selector }).Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    a.note,
		UpdateFunc: func(_, o any) { a.note(o) },
		DeleteFunc: a.drop,
	})
	h.must(err)
	var all sync.WaitGroup
	all.Go(func() { informer.RunWithContext(ctx) })
	all.Go(func() { a.run(ctx) })
	h.Cleanup(func() { cancel(); all.Wait() })
}

// agentsOf answers the works that a controller made.
type agentsOf struct {
	*hubWorld
	has map[string]map[string]bool // copies that are on a spoke, by cluster and key: works that carry them
	// noted are the copies that the agents have noted as a work's, by work. They delete no others when a work drops them.
	noted map[string]map[string]bool
	seen  map[string]string // versions of works that were answered
	// late returns whether the agents are too late with their report of a work: it changes between their writes and that.
	late func(*workv1.ManifestWork) bool

	events  sync.Mutex
	there   map[string]string                     // works of the hub, and their versions
	pending map[string]*unstructured.Unstructured // works without an answer
}

func (a *agentsOf) note(o any) {
	u := o.(*unstructured.Unstructured)
	a.events.Lock()
	defer a.events.Unlock()
	name := u.GetNamespace() + "/" + u.GetName()
	a.there[name], a.pending[name] = u.GetResourceVersion(), u
}

func (a *agentsOf) drop(o any) {
	if last, missed := o.(cache.DeletedFinalStateUnknown); missed {
		o = last.Obj
	}
	u := o.(*unstructured.Unstructured)
	a.events.Lock()
	defer a.events.Unlock()
	name := u.GetNamespace() + "/" + u.GetName()
	delete(a.there, name)
	delete(a.pending, name)
}

// run answers what is pending every 50 ms, so that several works of one change get their answers together.
func (a *agentsOf) run(ctx context.Context) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		a.mu.Lock()
		if !a.asleep {
			a.round(ctx)
		}
		a.mu.Unlock()
	}
}

// round answers what is pending.
func (a *agentsOf) round(ctx context.Context) {
	a.events.Lock()
	pending, there := maps.Clone(a.pending), maps.Clone(a.there)
	a.events.Unlock()
	for _, name := range slices.Sorted(maps.Keys(pending)) {
		if !a.answer(ctx, pending[name]) {
			continue
		}
		a.events.Lock()
		if a.pending[name] == pending[name] {
			delete(a.pending, name)
		}
		a.events.Unlock()
	}
	a.forget(there)
}

// unanswered returns an error while a work of the hub has not arrived in its current version, or waits for an answer.
func (a *agentsOf) unanswered(works map[fleet.Name]string) error {
	a.events.Lock()
	defer a.events.Unlock()
	if len(a.pending) > 0 || len(a.there) != len(works) {
		return fmt.Errorf("agents have %d works, of which %d wait for an answer; the hub has %d",
			len(a.there), len(a.pending), len(works))
	}
	for name, version := range works {
		if have := a.there[name.Namespace+"/"+name.Name]; have != version {
			return fmt.Errorf("agents have work %v in version %q, the hub has %q", name, have, version)
		}
	}
	return nil
}

// forget drops the copies whose works are gone.
func (a *agentsOf) forget(there map[string]string) {
	for key, by := range a.has {
		maps.DeleteFunc(by, func(work string, _ bool) bool { return there[work] == "" })
		if len(by) == 0 {
			delete(a.has, key)
		}
	}
}

// answer writes a work's status and reports whether the work has an answer of its generation.
func (a *agentsOf) answer(ctx context.Context, u *unstructured.Unstructured) bool {
	var w workv1.ManifestWork
	if runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &w) != nil {
		return false
	}
	name := w.Namespace + "/" + w.Name
	if a.seen[name] == fmt.Sprint(w.UID, w.Generation) {
		return true
	}
	now := metav1.Now()
	condition := func(typ string, is bool, reason, message string) metav1.Condition {
		status := metav1.ConditionFalse
		if is {
			status = metav1.ConditionTrue
		}
		return metav1.Condition{Type: typ, Status: status, Reason: reason, Message: message, ObservedGeneration: w.Generation, LastTransitionTime: now}
	}
	status, noted := workv1.ManifestWorkStatus{}, map[string]bool{}
	for i, m := range w.Spec.Workload.Manifests {
		var o unstructured.Unstructured
		if json.Unmarshal(m.Raw, &o.Object) != nil {
			continue
		}
		config := w.Spec.ManifestConfigs[i]
		key := fmt.Sprint(w.Namespace, config.ResourceIdentifier)
		asked := config.UpdateStrategy.Type == workv1.UpdateStrategyTypeReadOnly && o.GetKind() != "Namespace" // each spoke has all
		if !asked {
			if a.has[key] == nil {
				a.has[key] = map[string]bool{}
			}
			a.has[key][name] = true
		}
		one := workv1.ManifestCondition{ResourceMeta: workv1.ManifestResourceMeta{
			Ordinal: int32(i), Group: config.ResourceIdentifier.Group, Kind: o.GetKind(), Resource: config.ResourceIdentifier.Resource, Name: o.GetName(), Namespace: o.GetNamespace(),
		}}
		available := len(a.has[key]) > 0
		noted[key] = available
		reason := "ResourceAvailable"
		if !available {
			reason = "ResourceNotAvailable"
		}
		one.Conditions = []metav1.Condition{condition("Applied", true, "AppliedManifestComplete", ""), condition("Available", available, reason, "")}
		if available {
			one.StatusFeedbacks.Values = feedback(o.Object, config)
		}
		status.ResourceStatus.Manifests = append(status.ResourceStatus.Manifests, one)
	}
	if a.late != nil && a.late(&w) {
		return false
	}
	status.Conditions = []metav1.Condition{condition("Applied", true, "Test", ""), condition("Available", true, "Test", "")}
	raw, _ := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": w.ResourceVersion}, "status": status})
	if _, err := a.hub.Resource(works.resource).Namespace(w.Namespace).Patch(ctx, w.Name, types.MergePatchType, raw, metav1.PatchOptions{}, "status"); err != nil {
		return false
	}
	for key, is := range a.noted[name] {
		if _, kept := noted[key]; is && !kept {
			delete(a.has[key], name)
		}
	}
	a.noted[name] = noted
	a.seen[name] = fmt.Sprint(w.UID, w.Generation)
	return true
}

// feedback of an object that is there as it was sent, Accepted in its first generation.
func feedback(o fleet.Object, config workv1.ManifestConfigOption) (values []workv1.FeedbackValue) {
	u := unstructured.Unstructured{Object: o}
	texts := map[string]string{
		"copy": u.GetAnnotations()[fleet.AnnotationCopy], "source": u.GetAnnotations()[fleet.AnnotationSource],
		"top.Accepted.status": "True", "top.Accepted.reason": "Accepted", "top.Programmed.status": "True", "top.Programmed.reason": "Programmed",
	}
	numbers := map[string]int64{"generation": 1, "top.Accepted.observedGeneration": 1, "top.Programmed.observedGeneration": 1}
	for _, rule := range config.FeedbackRules {
		for _, p := range rule.JsonPaths {
			if text, ok := texts[p.Name]; ok && text != "" {
				values = append(values, workv1.FeedbackValue{Name: p.Name, Value: workv1.FieldValue{Type: workv1.String, String: &text}})
			}
			if n, ok := numbers[p.Name]; ok {
				values = append(values, workv1.FeedbackValue{Name: p.Name, Value: workv1.FieldValue{Type: workv1.Integer, Integer: &n}})
			}
		}
	}
	return values
}
