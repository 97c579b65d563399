package fleet

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "open-cluster-management.io/api/cluster/v1"
)

// Cluster is what the hub knows of a spoke.
type Cluster struct {
	Name      string
	Labels    map[string]string
	Known     bool // there is a ManagedCluster of the name
	Available bool // the hub hears of it
	// Since is when Available last changed; zero: that is not known.
	Since time.Time
	// Tainted is set while the ManagedCluster has a taint of the hub's for a cluster that it does not hear of.
	Tainted bool
}

// Away reports whether the hub does not hear of a cluster, by the cluster's condition or by a taint.
func (c Cluster) Away() bool { return !c.Available || c.Tainted }

// awayTaints are the keys of the taints that the hub's registration controller sets, and by which Placements pass a
// cluster by.
var awayTaints = []string{clusterv1.ManagedClusterTaintUnreachable, clusterv1.ManagedClusterTaintUnavailable}

func isAwayTaint(t clusterv1.Taint) bool { return slices.Contains(awayTaints, t.Key) }

// ClusterOf is what a ManagedCluster says.
func ClusterOf(m *clusterv1.ManagedCluster) Cluster {
	c := Cluster{
		Name:    m.Name,
		Labels:  m.Labels,
		Known:   m.DeletionTimestamp == nil,
		Tainted: slices.ContainsFunc(m.Spec.Taints, isAwayTaint),
	}
	if a := meta.FindStatusCondition(m.Status.Conditions, clusterv1.ManagedClusterConditionAvailable); a != nil {
		c.Available, c.Since = a.Status == metav1.ConditionTrue, a.LastTransitionTime.Time
	}
	return c
}

// Phase is how far a copy has come in a cluster.
type Phase string

// Phases; all but Answered have a reason and a message.
const (
	NotSent  Phase = "NotSent"  // something on the hub is in the way
	Waiting  Phase = "Waiting"  // it is sent; the spoke's report is of another version, or there is none
	Refused  Phase = "Refused"  // the spoke does not take it
	Silent   Phase = "Silent"   // the spoke is unavailable
	Answered Phase = "Answered" // it is there in the version that is wanted, and the report is of this one
)

// State is how a copy is in a cluster.
type State struct {
	Cluster string
	Phase   Phase
	Reason  string // one word, for conditions
	Message string
	// Since it is so; zero where that is not known.
	Since metav1.Time
	// Answer is the latest that there is. Only of Answered it is about the version that is wanted.
	Answer *Answer
}

// StateOf is how a copy is in a cluster, by the answers of the cluster's works; those about other copies are passed by. Without a wanted
// copy, or with a problem, it is NotSent.
func StateOf(c Cluster, wanted *Copy, problem *Problem, answers []Answer) State {
	s := State{Cluster: c.Name, Phase: NotSent, Reason: "NotSent", Message: "not sent"}
	if problem != nil {
		s.Reason, s.Message = problem.Reason, problem.Message
	}
	if wanted == nil {
		return s
	}
	sent := State{Cluster: c.Name, Phase: Waiting, Reason: "Waiting", Message: "the cluster has not said anything of it yet"}
	for i := range answers {
		if a := &answers[i]; a.Cluster == c.Name && a.about(wanted) {
			one := a.state(wanted)
			if a.Applied.Status == metav1.ConditionTrue && a.Available.Status == metav1.ConditionFalse {
				a.without(wanted, answers, &one)
			}
			if sent.Answer == nil || one.rank() > sent.rank() {
				sent = one
			}
		}
	}
	switch {
	case problem != nil:
		s.Answer = sent.Answer
	case !c.Known:
		s.Phase, s.Reason, s.Message, s.Answer = Silent, "Unknown", "the hub has no such ManagedCluster any more", sent.Answer
	case !c.Available:
		s.Phase, s.Reason, s.Message, s.Answer = Silent, "Silent", "the hub does not hear of the cluster (its ManagedCluster is not available)", sent.Answer
	default:
		return sent
	}
	return s
}

// without sets the state of a copy that is not there for want of its namespace, if the work reports that.
func (a *Answer) without(wanted *Copy, answers []Answer, s *State) {
	for i := range answers {
		n := &answers[i]
		if n.Cluster != a.Cluster || n.Work != a.Work || n.Copy != namespaceKey(wanted.Namespace) {
			continue
		}
		switch {
		case n.Applied.Status == metav1.ConditionFalse:
			s.Phase, s.Since = Refused, n.Applied.LastTransitionTime
			s.Reason, s.Message = refusal(wanted, n.Applied.Message)
		case n.Available.Status == metav1.ConditionFalse:
			s.Phase, s.Since = Refused, n.Available.LastTransitionTime
			s.Reason, s.Message = namespaceAbsent(wanted)
		case n.Available.Status != metav1.ConditionTrue:
			s.Message = strings.TrimSuffix(fmt.Sprintf("the cluster has not reported the namespace %s yet: %s", wanted.Namespace, n.Available.Message), ": ")
		}
	}
}

// namespaceAbsent returns reason and message of a copy without a namespace.
func namespaceAbsent(c *Copy) (reason, words string) {
	return "NamespaceAbsent", fmt.Sprintf("the cluster has no namespace %s, and none is made there", c.Namespace)
}

// about reports whether the answer belongs to the copy. If the spoke does not know the kind, the answer has no
// resource, and the kind is compared.
func (a *Answer) about(c *Copy) bool {
	if a.Copy.Name != c.Name || a.Copy.Group != c.Resource.Group {
		return false
	}
	return a.Copy.Resource == c.Resource.Resource || a.Copy.Resource == "" && a.Kind == c.Kind
}

// rank: of two works that carry a copy while it moves, the one that says most for it counts.
func (s *State) rank() int {
	return map[Phase]int{Waiting: 1, Refused: 2, Answered: 3}[s.Phase]
}

// state is what one answer says of a copy.
func (a *Answer) state(wanted *Copy) State {
	s := State{Cluster: a.Cluster, Phase: Waiting, Reason: "Waiting", Answer: a}
	switch {
	case a.Seen && a.Applied.Status == metav1.ConditionFalse:
		s.Phase, s.Since = Refused, a.Applied.LastTransitionTime
		s.Reason, s.Message = refusal(wanted, a.Applied.Message)
	case a.Applied.Status != metav1.ConditionTrue:
		s.Message = "the cluster has not taken it up yet"
	case a.Available.Status == metav1.ConditionFalse:
		s.Since, s.Message = a.Available.LastTransitionTime, "it is not there yet, or not any more"
	case a.Available.Status != metav1.ConditionTrue && strings.Contains(a.Available.Message, "is forbidden"):
		s.Phase, s.Since = Refused, a.Available.LastTransitionTime
		s.Reason, s.Message = refusal(wanted, strings.TrimPrefix(a.Available.Message, "Failed to fetch resource: "))
	case a.Available.Status != metav1.ConditionTrue:
		s.Since, s.Message = a.Available.LastTransitionTime, strings.TrimSuffix("the cluster has not reported it yet: "+a.Available.Message, ": ")
	case len(wanted.Feedback) == 0 && a.Seen:
		s.Phase, s.Reason = Answered, ""
	case a.Source != annotationOf(wanted.Object, AnnotationSource):
		s.Phase, s.Since, s.Reason = Refused, a.Available.LastTransitionTime, reasonTaken
		s.Message = fmt.Sprintf("the cluster has a %s %s/%s that is not this one from the hub; it is left as it is: remove it there, or give the hub's another name", wanted.Kind, wanted.Namespace, wanted.Name.Name)
	case a.Hash != wanted.Hash:
		s.Message = "the cluster has another version of it"
	default:
		s.Phase, s.Reason = Answered, ""
	}
	return s
}

// reasonTaken: an object of the copy's name is there which is not of the copy's source.
const reasonTaken = "NameTaken"

// refusal says in words, and in one, why a spoke does not take a copy.
func refusal(c *Copy, message string) (reason, words string) {
	message = strings.TrimPrefix(message, "Failed to apply manifest: ")
	what := fmt.Sprintf("%s %s/%s", c.Kind, c.Namespace, c.Name.Name)
	has := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(message, p) {
				return true
			}
		}
		return false
	}
	switch {
	case has("doesn't have a resource type", "no matches for kind", "could not find the requested resource") && c.Resource.Group == Group:
		return "NotInstalled", "Flowkeep is not installed there, or is too old: it knows no " + c.Kind
	case has("doesn't have a resource type", "no matches for kind", "could not find the requested resource"):
		return "KindAbsent", fmt.Sprintf("the cluster knows no %s of %s: its CustomResourceDefinition is not installed there", c.Kind, c.Resource.GroupVersion())
	case has("is forbidden", "not have permission", "is not allowed"):
		return "Forbidden", "the cluster's work agent may not write it: " + message
	case has("Apply failed with"):
		return reasonTaken, fmt.Sprintf("the cluster has a %s of its own, which is left as it is: %s", what, message)
	case has("namespaces ") && has("not found"):
		return namespaceAbsent(c)
	case has("is invalid", "denied the request", "unknown field", "strict decoding"):
		return "Invalid", "the cluster does not allow it: " + message
	}
	return "NotApplied", "the cluster could not apply it: " + message
}

func annotationOf(o Object, name string) string {
	metadata, _ := o["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	return textOf(annotations, name)
}
