package kube

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Cluster is a set of manifests as an API server, a scheduler and the controllers of workloads would leave it. Each
// list is in order of namespace and name.
type Cluster struct {
	Namespaces     []*corev1.Namespace
	Nodes          []*corev1.Node
	Pods           []*corev1.Pod
	Policies       []*networkingv1.NetworkPolicy
	Services       []*corev1.Service
	EndpointSlices []*discoveryv1.EndpointSlice
	// Notes name what the manifests have and a Cluster has not.
	Notes []string
}

// impliedNamespaces exist in every cluster.
var impliedNamespaces = []string{"default", "kube-system"}

// maxReplicas bounds the pods of a workload: a policy cannot distinguish the third from the second.
const maxReplicas = 2

// ClusterOf returns the cluster of manifests. Its error names every object that an API server would refuse, with its
// file and line. Workloads get pods, at most two; pods without a node are spread over the nodes. Of several objects
// with one name the last counts.
func ClusterOf(objects []Object) (*Cluster, error) {
	r := clusterReader{objects: map[string]metav1.Object{}, others: map[string]int{}}
	var policies []Object
	for i := range objects {
		obj := &objects[i]
		if is, err := isPolicy(obj); is || err != nil { // Policies reports the error
			policies = append(policies, *obj)
		} else if err := r.read(obj); err != nil {
			r.bad.add(obj.wrap(err))
		}
	}
	list, _, err := Policies(policies, Options{})
	r.bad.add(err)
	for _, np := range list {
		r.put("NetworkPolicy", np)
	}
	r.workloadPods()
	r.namespaces(objects)
	r.schedule()
	if err := r.bad.err(); err != nil {
		return nil, err
	}
	return r.cluster(), nil
}

type clusterReader struct {
	objects   map[string]metav1.Object // by kind, namespace and name
	workloads []workload
	others    map[string]int
	bad       failures
}

func (r *clusterReader) read(obj *Object) error {
	group, _, _ := strings.Cut(obj.APIVersion, "/")
	switch {
	case slices.Contains(workloads, group+" "+obj.Kind):
		var l workload
		if err := lenient(obj, &l, &l.Metadata); err != nil {
			return err
		}
		l.Metadata.Namespace = cmp.Or(l.Metadata.Namespace, "default")
		if len(l.Metadata.OwnerReferences) == 0 {
			r.workloads = append(r.workloads, l)
		}
		return nil
	case obj.APIVersion == "v1" && obj.Kind == "Namespace":
		return readObject(r, obj, &corev1.Namespace{}, false)
	case obj.APIVersion == "v1" && obj.Kind == "Node":
		return readObject(r, obj, &corev1.Node{}, false)
	case obj.APIVersion == "v1" && obj.Kind == "Pod":
		return readObject(r, obj, &corev1.Pod{}, true)
	case obj.APIVersion == "v1" && obj.Kind == "Service":
		return readObject(r, obj, &corev1.Service{}, true)
	case obj.APIVersion == "discovery.k8s.io/v1" && obj.Kind == "EndpointSlice":
		return readObject(r, obj, &discoveryv1.EndpointSlice{}, true)
	}
	r.others[obj.Kind]++
	return nil
}

// readObject decodes and validates an object, and keeps it.
func readObject(r *clusterReader, obj *Object, into metav1.Object, namespaced bool) error {
	if err := decode(obj.JSON, into, false); err != nil {
		return err
	}
	if into.GetName() == "" {
		return errors.New("metadata.name: it has none")
	}
	if namespaced {
		into.SetNamespace(cmp.Or(into.GetNamespace(), "default"))
	} else if into.GetNamespace() != "" {
		return errors.New("metadata.namespace: not allowed on this type")
	}
	check := apivalidation.NameIsDNSSubdomain
	switch o := into.(type) {
	case *corev1.Namespace:
		check = apivalidation.ValidateNamespaceName
		o.Labels = labelled(o.Name, o.Labels)
	case *corev1.Service:
		check = apivalidation.NameIsDNS1035Label
	}
	errs := apivalidation.ValidateObjectMetaAccessor(into, namespaced, check, field.NewPath("metadata"))
	if pod, ok := into.(*corev1.Pod); ok {
		errs = append(errs, validatePod(pod)...)
	}
	if err := combine(errs); err != nil {
		return err
	}
	r.put(obj.Kind, into)
	return nil
}

// validatePod checks the fields that count for policies.
func validatePod(pod *corev1.Pod) (errs field.ErrorList) {
	at := field.NewPath("spec", "containers")
	if len(pod.Spec.Containers) == 0 {
		errs = append(errs, field.Required(at, "a pod has at least one"))
	}
	for i := range pod.Spec.Containers {
		for j, p := range pod.Spec.Containers[i].Ports {
			port := at.Index(i).Child("ports").Index(j)
			if p.ContainerPort < 1 || p.ContainerPort > 65535 {
				errs = append(errs,
					field.Invalid(port.Child("containerPort"), p.ContainerPort, "must be between 1 and 65535"))
			}
			protocol := p.Protocol
			if _, ok := protocolOf(&protocol); !ok && protocol != "" {
				known := []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
				errs = append(errs, field.NotSupported(port.Child("protocol"), protocol, known))
			}
		}
	}
	return errs
}

// put keeps an object with what an API server adds.
func (r *clusterReader) put(kind string, o metav1.Object) {
	key := kind + " " + o.GetNamespace() + "/" + o.GetName()
	if o.GetUID() == "" {
		o.SetUID(uidFrom(key))
	}
	r.objects[key] = o
}

// uidFrom returns the UID of an object whose manifest names none: always the same of one name.
func uidFrom(key string) types.UID {
	sum := sha256.Sum256([]byte(key))
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16]))
}

// of returns the objects of a kind by key, in order.
func of[T metav1.Object](r *clusterReader) (list []T) {
	for _, key := range slices.Sorted(maps.Keys(r.objects)) {
		if o, ok := r.objects[key].(T); ok {
			list = append(list, o)
		}
	}
	return list
}

// workloadPods adds the pods of workloads, unless the manifests have pods with a workload's labels.
func (r *clusterReader) workloadPods() {
	pods := of[*corev1.Pod](r)
	for i := range r.workloads {
		l := &r.workloads[i]
		template := l.template()
		if slices.ContainsFunc(pods, func(p *corev1.Pod) bool {
			return p.Namespace == l.Metadata.Namespace && len(template.Labels) > 0 &&
				contains(p.Labels, template.Labels)
		}) {
			continue
		}
		for n := range l.replicas() {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: l.Metadata.Namespace,
					Name:      fmt.Sprintf("%s-%d", l.Metadata.Name, n),
					Labels:    template.Labels,
				},
				Spec: *template.Spec.DeepCopy(),
			}
			r.put("Pod", pod)
		}
	}
}

// namespaces adds the ones that every cluster has, and reports objects in others that the manifests do not have.
func (r *clusterReader) namespaces(objects []Object) {
	for _, name := range impliedNamespaces {
		if r.objects["Namespace /"+name] == nil {
			r.put("Namespace",
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labelled(name, nil)}})
		}
	}
	for i := range objects {
		obj := &objects[i]
		if obj.Namespace != "" && r.objects["Namespace /"+obj.Namespace] == nil {
			r.bad.add(obj.wrap(fmt.Errorf("namespaces %q not found: add a Namespace object", obj.Namespace)))
		}
	}
}

// schedule gives pods without a node one, in turn, and refuses a node that is not there.
func (r *clusterReader) schedule() {
	nodes := of[*corev1.Node](r)
	next := 0
	for _, pod := range of[*corev1.Pod](r) {
		switch {
		case pod.Spec.NodeName == "" && len(nodes) > 0:
			pod.Spec.NodeName = nodes[next%len(nodes)].Name
			next++
		case pod.Spec.NodeName != "" && r.objects["Node /"+pod.Spec.NodeName] == nil:
			r.bad.add(fmt.Errorf("Pod %s/%s: spec.nodeName: there is no node %s", pod.Namespace, pod.Name,
				pod.Spec.NodeName))
		}
	}
}

func (r *clusterReader) cluster() *Cluster {
	c := &Cluster{
		Namespaces:     of[*corev1.Namespace](r),
		Nodes:          of[*corev1.Node](r),
		Pods:           of[*corev1.Pod](r),
		Policies:       of[*networkingv1.NetworkPolicy](r),
		Services:       of[*corev1.Service](r),
		EndpointSlices: of[*discoveryv1.EndpointSlice](r),
	}
	if len(r.others) > 0 {
		c.Notes = append(c.Notes, "do not count for policies: "+kinds(r.others))
	}
	return c
}

// Ports returns the ports that a pod's containers name, in order and each once.
func Ports(pod *corev1.Pod) (list []corev1.ContainerPort) {
	for i := range pod.Spec.Containers {
		for _, p := range pod.Spec.Containers[i].Ports {
			p.Protocol = cmp.Or(p.Protocol, corev1.ProtocolTCP)
			if !slices.ContainsFunc(list, func(o corev1.ContainerPort) bool {
				return o.Protocol == p.Protocol && o.ContainerPort == p.ContainerPort
			}) {
				list = append(list, p)
			}
		}
	}
	return list
}
