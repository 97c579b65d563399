package kube

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/policydb/policy"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
)

// madeUp has the prefixes of addresses for pods without one. They are reserved for benchmarks (RFC 2544) and for
// documentation (RFC 3849).
var madeUp = []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("2001:db8:198:18::/64")}

// nameLabel is what the API server labels every namespace with.
const nameLabel = "kubernetes.io/metadata.name"

// World returns the cluster that manifests describe: namespaces, pods and NetworkPolicies, the latter as objects too.
// A Deployment or another workload without pods gets one pod, or two if it has several replicas. Pods without an
// address get one. Notes list missing objects that the policies depend on. If several objects have the same name, the
// last one is used.
func World(objects []Object, o Options) (*policy.World, []*networkingv1.NetworkPolicy, []string, error) {
	w := &worldReader{
		options:    o,
		namespaces: map[string]map[string]string{},
		pods:       map[string]*policy.Endpoint{},
		others:     map[string]int{},
	}
	var policies []Object
	for i := range objects {
		if is, err := isPolicy(&objects[i]); is || err != nil { // Policies reports the error
			policies = append(policies, objects[i])
		} else if err := w.read(&objects[i]); err != nil {
			w.bad.add(objects[i].wrap(err))
		}
	}
	o.Lenient = true
	list, notes, err := Policies(policies, o)
	w.notes = append(w.notes, notes...)
	w.bad.add(err)
	if err := w.bad.err(); err != nil {
		return nil, nil, nil, err
	}
	world, err := w.world(list)
	return world, list, w.notes, err
}

// worldReader collects what a world is made of.
type worldReader struct {
	options    Options
	namespaces map[string]map[string]string
	pods       map[string]*policy.Endpoint // by ID
	workloads  []workload
	others     map[string]int // kinds that do not count
	notes      []string
	bad        failures
}

// workload is what makes pods.
type workload struct {
	Kind     string            `json:"kind"`
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Replicas    *int32                 `json:"replicas"`
		Template    corev1.PodTemplateSpec `json:"template"`
		JobTemplate struct {
			Spec struct {
				Template corev1.PodTemplateSpec `json:"template"`
			} `json:"spec"`
		} `json:"jobTemplate"`
	} `json:"spec"`
}

var workloads = []string{"apps Deployment", "apps StatefulSet", "apps DaemonSet", "apps ReplicaSet",
	"v1 ReplicationController", "batch Job", "batch CronJob"}

func (w *worldReader) read(obj *Object) error {
	group, _, _ := strings.Cut(obj.APIVersion, "/")
	switch {
	case obj.APIVersion == "v1" && obj.Kind == "Namespace":
		return w.namespace(obj)
	case obj.APIVersion == "v1" && obj.Kind == "Pod":
		return w.pod(obj)
	case slices.Contains(workloads, group+" "+obj.Kind):
		return w.workload(obj)
	}
	w.others[obj.Kind]++
	return nil
}

// lenient reads an object that may be newer than this program.
func lenient(obj *Object, into any, meta *metav1.ObjectMeta) error {
	if err := kjson.UnmarshalCaseSensitivePreserveInts(obj.JSON, into); err != nil {
		return errors.New(shorten(strings.TrimPrefix(err.Error(), "json: ")))
	}
	if meta.Name == "" {
		return errors.New("metadata.name: it has none")
	}
	return nil
}

func (w *worldReader) namespace(obj *Object) error {
	ns := &corev1.Namespace{}
	if err := lenient(obj, ns, &ns.ObjectMeta); err != nil {
		return err
	}
	w.namespaces[ns.Name] = labelled(ns.Name, ns.Labels)
	return nil
}

func labelled(name string, labels map[string]string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, labels)
	all[nameLabel] = name
	return all
}

func (w *worldReader) pod(obj *Object) error {
	pod := &corev1.Pod{}
	if err := lenient(obj, pod, &pod.ObjectMeta); err != nil {
		return err
	}
	pod.Namespace = w.options.namespaceOf(pod.Namespace)
	e := Endpoint(pod)
	w.pods[e.ID()] = e
	return nil
}

func (w *worldReader) workload(obj *Object) error {
	var l workload
	if err := lenient(obj, &l, &l.Metadata); err != nil {
		return err
	}
	l.Metadata.Namespace = w.options.namespaceOf(l.Metadata.Namespace)
	if len(l.Metadata.OwnerReferences) == 0 {
		w.workloads = append(w.workloads, l)
	}
	return nil
}

func (o *Options) namespaceOf(named string) string {
	switch {
	case named != "":
		return named
	case o.Namespace != "":
		return o.Namespace
	}
	return "default"
}

// template returns the template of the workload's pods.
func (l *workload) template() *corev1.PodTemplateSpec {
	if l.Kind == "CronJob" {
		return &l.Spec.JobTemplate.Spec.Template
	}
	return &l.Spec.Template
}

// replicas returns the number of pods that stand for all that the workload creates, at most maxReplicas.
func (l *workload) replicas() int {
	switch n := l.Spec.Replicas; {
	case n != nil:
		return min(max(int(*n), 0), maxReplicas)
	case l.Kind == "DaemonSet":
		return maxReplicas
	}
	return 1
}

// pods returns pods that represent all pods of the workload, or none if pods that it may have created exist.
func (l *workload) pods(there map[string]*policy.Endpoint) (list []*policy.Endpoint) {
	template := l.template()
	for _, e := range there {
		if e.Namespace == l.Metadata.Namespace && len(template.Labels) > 0 && contains(e.Labels, template.Labels) {
			return nil
		}
	}
	replicas := l.replicas()
	for n := range replicas {
		suffix := ""
		if replicas > 1 {
			suffix = fmt.Sprintf("#%d", n+1)
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: l.Metadata.Namespace,
			Name: strings.ToLower(l.Kind) + "/" + l.Metadata.Name + suffix, Labels: template.Labels},
			Spec: template.Spec}
		list = append(list, Endpoint(pod))
	}
	return list
}

func contains(labels, all map[string]string) bool {
	for k, v := range all {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

func (w *worldReader) world(policies []*networkingv1.NetworkPolicy) (*policy.World, error) {
	made := map[string]*policy.Endpoint{}
	for i := range w.workloads {
		for _, e := range w.workloads[i].pods(w.pods) {
			made[e.ID()] = e
		}
	}
	maps.Copy(w.pods, made)
	out := &policy.World{}
	for _, id := range slices.Sorted(maps.Keys(w.pods)) {
		out.Endpoints = append(out.Endpoints, w.pods[id])
	}
	last := map[string]*policy.Policy{}
	for _, np := range policies {
		p := Policy(np)
		last[p.ID()] = p
	}
	for _, id := range slices.Sorted(maps.Keys(last)) {
		out.Policies = append(out.Policies, last[id])
	}
	out.IsolateOverBudget()
	w.supposeNamespaces(out)
	for _, name := range slices.Sorted(maps.Keys(w.namespaces)) {
		out.Namespaces = append(out.Namespaces, policy.Namespace{Name: name, Labels: w.namespaces[name]})
	}
	if len(w.others) > 0 {
		w.notes = append(w.notes, "do not count in the cluster: "+kinds(w.others))
	}
	return out, w.address(out.Endpoints)
}

func kinds(counts map[string]int) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s (%d)", k, counts[k]))
	}
	return strings.Join(parts, ", ")
}

// supposeNamespaces adds those that are only spoken of.
func (w *worldReader) supposeNamespaces(out *policy.World) {
	var supposed []string
	suppose := func(name string) {
		if w.namespaces[name] == nil {
			w.namespaces[name] = labelled(name, nil)
			supposed = append(supposed, name)
		}
	}
	for _, e := range out.Endpoints {
		suppose(e.Namespace)
	}
	for _, p := range out.Policies {
		suppose(p.Namespace)
	}
	if len(supposed) > 0 {
		w.notes = append(w.notes, "no Namespace object tells the labels of "+strings.Join(supposed, ", "))
	}
}

// address gives addresses to those pods that have none and should: of the families that other pods have, or IPv4.
func (w *worldReader) address(pods []*policy.Endpoint) error {
	used, families := map[netip.Addr]bool{}, [2]bool{}
	var without []*policy.Endpoint
	for _, e := range pods {
		for _, a := range e.Addresses {
			used[a] = true
			families[0], families[1] = families[0] || a.Is4(), families[1] || a.Is6()
		}
		if len(e.Addresses) == 0 && !e.HostNetwork && !e.Finished {
			without = append(without, e)
		}
	}
	if families == [2]bool{} {
		families[0] = true
	}
	var from []string
	for i, prefix := range madeUp {
		if !families[i] {
			continue
		}
		from = append(from, prefix.String())
		next := prefix.Addr().Next()
		for _, e := range without {
			for used[next] {
				next = next.Next()
			}
			if !prefix.Contains(next) {
				return fmt.Errorf("more pods without an address than %s has", prefix)
			}
			e.Addresses = append(e.Addresses, next)
			next = next.Next()
		}
	}
	if n := len(without); n > 0 {
		w.notes = append(w.notes,
			fmt.Sprintf(
				"%d of %d pods have no address in the manifests: they get addresses of %s, which an ipBlock for "+
					"them may not contain", n, len(pods), strings.Join(from, " and ")))
	}
	return nil
}
