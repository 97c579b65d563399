package check

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Labels are those of all objects.
var Labels = map[string]string{"app.kubernetes.io/name": "flowkeep-check", "app.kubernetes.io/managed-by": "netctl"}

// Selector selects the namespaces of checks.
const Selector = "app.kubernetes.io/name=flowkeep-check"

// ServiceName is the name of the Service.
const ServiceName = "server"

// userID is the user of the image, who is not root.
const userID = 65532

// maxLife bounds how long a pod runs that is not removed, in seconds.
const maxLife = 3600

func meta(name string, more ...string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: name, Labels: map[string]string{}}
	for k, v := range Labels {
		m.Labels[k] = v
	}
	for i := 0; i < len(more); i += 2 {
		m.Labels[more[i]] = more[i+1]
	}
	return m
}

// Namespace returns the namespace of a check, in which pods have the least privileges.
func Namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: meta(name, "pod-security.kubernetes.io/enforce", "restricted"),
	}
}

// Server returns a pod that serves on a node.
func Server(name, node, image string) *corev1.Pod {
	return pod(name, node, image, "serve", strconv.Itoa(Port), strconv.Itoa(OpenPort))
}

// Client returns a pod that tries probes from a node.
func Client(name, node, image string, probes []Probe) (*corev1.Pod, error) {
	text, err := json.Marshal(probes)
	if err != nil {
		return nil, err
	}
	return pod(name, node, image, "probe", string(text)), nil
}

func pod(name, node, image string, args ...string) *corev1.Pod {
	no, yes, user, life, grace := false, true, int64(userID), int64(maxLife), int64(1)
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: meta(name, RoleLabel, name),
		Spec: corev1.PodSpec{
			NodeName:                      node,
			RestartPolicy:                 corev1.RestartPolicyNever,
			AutomountServiceAccountToken:  &no,
			EnableServiceLinks:            &no,
			ActiveDeadlineSeconds:         &life,
			TerminationGracePeriodSeconds: &grace,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot:   &yes,
				RunAsUser:      &user,
				RunAsGroup:     &user,
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name:                     "check",
				Image:                    image,
				ImagePullPolicy:          corev1.PullIfNotPresent,
				Command:                  append([]string{"netctl", "check"}, args...),
				TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{
						corev1.ResourceCPU:    resource.MustParse("10m"),
						corev1.ResourceMemory: resource.MustParse("32Mi"),
					},
					Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")},
				},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: &no,
					ReadOnlyRootFilesystem:   &yes,
					Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

// Service returns a Service with a server behind it, of both address families if the cluster has them.
func Service(server string) *corev1.Service {
	both := corev1.IPFamilyPolicyPreferDualStack
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: meta(ServiceName),
		Spec: corev1.ServiceSpec{
			Selector:       map[string]string{RoleLabel: server},
			IPFamilyPolicy: &both,
			Ports:          []corev1.ServicePort{{Port: ServicePort, TargetPort: intstr.FromInt32(Port)}},
		},
	}
}

// Policy returns the NetworkPolicy that a stage adds; nil if it adds none.
func Policy(s Stage) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{}
	p.TypeMeta = metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"}
	switch s {
	case IngressPolicy:
		p.ObjectMeta = meta("servers")
		p.Spec = networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: RoleLabel, Operator: metav1.LabelSelectorOpIn, Values: []string{Near, Far}},
			}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{
				{From: []networkingv1.NetworkPolicyPeer{{PodSelector: role(Friend)}}, Ports: ports(Port)},
				{Ports: ports(OpenPort)},
			},
		}
	case EgressPolicy:
		p.ObjectMeta = meta("stranger")
		p.Spec = networkingv1.NetworkPolicySpec{
			PodSelector: *role(Stranger),
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		}
	default:
		return nil
	}
	return p
}

func role(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{RoleLabel: name}}
}

func ports(number int32) []networkingv1.NetworkPolicyPort {
	port := intstr.FromInt32(number)
	return []networkingv1.NetworkPolicyPort{{Port: &port}}
}

// Nodes returns the nodes that pods of a check can run on, in the order given: at most two.
func Nodes(all []*corev1.Node) (names []string) {
	for _, n := range all {
		if takesPods(n) {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return names[:min(len(names), 2)]
}

func takesPods(n *corev1.Node) bool {
	ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	tainted := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule
	})
	os := n.Status.NodeInfo.OperatingSystem
	return ready && !tainted && !n.Spec.Unschedulable && (os == "" || os == "linux")
}

// Running reports whether a pod runs and has addresses; an error if it never will.
func Running(p *corev1.Pod) (bool, error) {
	name := fmt.Sprintf("pod %s on %s", p.Name, p.Spec.NodeName)
	for i := range p.Status.ContainerStatuses {
		s := &p.Status.ContainerStatuses[i]
		if w := s.State.Waiting; w != nil && slices.Contains(hopeless, w.Reason) {
			return false, fmt.Errorf("%s does not start: %s: %s", name, w.Reason, w.Message)
		}
		if t := s.State.Terminated; t != nil {
			return false, fmt.Errorf("%s ended with code %d: %s", name, t.ExitCode, t.Message)
		}
	}
	if p.Status.Phase == corev1.PodFailed {
		return false, fmt.Errorf("%s failed: %s: %s", name, p.Status.Reason, p.Status.Message)
	}
	return p.Status.Phase == corev1.PodRunning && len(p.Status.PodIPs) > 0, nil
}

// hopeless are reasons of a container that waits for what does not come by itself.
var hopeless = []string{
	"ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError",
}
