package nodeconfig

import (
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	scheduling "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// conditions are the taints that Kubernetes puts on a node by itself. A policy tolerates them as a DaemonSet's pods do: the
// network of a node in trouble is not taken apart because of it, nor does a drain change it.
var conditions = []corev1.Toleration{
	{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists},
	{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists},
	{Key: corev1.TaintNodeDiskPressure, Operator: corev1.TolerationOpExists},
	{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists},
	{Key: corev1.TaintNodePIDPressure, Operator: corev1.TolerationOpExists},
	{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists},
	{Key: corev1.TaintNodeNetworkUnavailable, Operator: corev1.TolerationOpExists},
	{Key: "node.cloudprovider.kubernetes.io/uninitialized", Operator: corev1.TolerationOpExists},
}

// selector is which nodes a policy chooses.
type selector struct {
	affinity    nodeaffinity.RequiredNodeAffinity
	tolerations []corev1.Toleration
}

// newSelector fails on terms that the scheduler would not understand. What is only preferred chooses nothing.
func newSelector(labels map[string]string, affinity *corev1.Affinity, tolerated []corev1.Toleration) (selector, error) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: labels, Affinity: affinity}}
	if affinity != nil && affinity.NodeAffinity != nil {
		if required := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
			if _, err := nodeaffinity.NewNodeSelector(required); err != nil {
				return selector{}, fmt.Errorf("affinity: %w", err)
			}
		}
	}
	return selector{
		affinity:    nodeaffinity.GetRequiredNodeAffinity(pod),
		tolerations: append(conditions[:len(conditions):len(conditions)], tolerated...),
	}, nil
}

// chooses reports whether the policy selects the node, and if not, why.
func (s selector) chooses(node *corev1.Node) (why string, ok bool) {
	if ok, err := s.affinity.Match(node); err != nil {
		return "affinity: " + err.Error(), false
	} else if !ok {
		return "the node's labels do not fit nodeSelector and affinity", false
	}
	taint, found := scheduling.FindMatchingUntoleratedTaint(logr.Discard(), node.Spec.Taints, s.tolerations, repels, true)
	if found {
		return "the taint " + taint.ToString() + " is not tolerated", false
	}
	return "", true
}

// repels: PreferNoSchedule is a preference only.
func repels(t *corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
}
