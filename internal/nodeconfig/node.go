package nodeconfig

import (
	"fmt"
	"strings"
	"time"

	nmstatev1 "github.com/flowkeep/flowkeep/api/nmstate/v1"
	"github.com/flowkeep/flowkeep/internal/nmstate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Node is what is known of a node: the object that policies select by, and its state. Nothing of it is changed.
type Node struct {
	Object *corev1.Node
	*State
	// Refused are policies whose wishes for the node the API server has refused, and why; Held those that are not to be tried now.
	Refused, Held map[string]string
	// Silent says why nobody may be there to change the node. It takes no turn then, so that those that answer are not held up.
	Silent string
}

// State is a NodeNetworkState, understood.
type State struct {
	// unknown says why nothing can be decided for the node now; it keeps what it has.
	unknown   string
	unmanaged bool
	truncated bool // current leaves some of the node's interfaces out
	current   []nic
	desired   nmstate.State
	record    nmstate.State // what of desired came from policies
	hand      nmstate.State // and what did not
	refs      []nmstatev1.PolicyRef
	sync      syncing
	message   string // of the agent
	behind    bool   // the agent has not seen the object as it is

	desiredLayers, recordLayers *layers
	handPieces                  pieces
}

// nic is an interface that the node has, and the address to know it by.
type nic struct {
	nmstate.Interface
	mac string // as net.HardwareAddr prints it
}

// syncing is how the node's agent fares with the desired state as it is now.
type syncing int

const (
	applying syncing = iota // or it has not seen it yet
	synced
	failing
)

// NoState stands for a node whose agent has made no object yet.
var NoState = &State{unknown: "the node has no NodeNetworkState yet: its agent, netplugin node-state, makes it"}

// ReadState understands an object; nil is NoState.
func ReadState(o *nmstatev1.NodeNetworkState) *State {
	if o == nil {
		return NoState
	}
	s := &State{unmanaged: !o.Spec.IsManaged(), truncated: o.Status.Truncated}
	s.sync, s.message = syncOf(o)
	s.behind = o.Status.ObservedGeneration < o.Generation
	if s.unknown = s.read(o); s.unknown != "" {
		return s
	}
	s.hand = s.setByHand()
	s.handPieces = takeApart(nmstate.Canonical(s.hand))
	s.desiredLayers, s.recordLayers = layersOf(s.desired), layersOf(s.record)
	return s
}

func layersOf(doc nmstate.State) *layers {
	l := newLayers()
	l.lay(takeApart(nmstate.Canonical(doc)), 0)
	return l
}

func (s *State) read(o *nmstatev1.NodeNetworkState) (unknown string) {
	current, err := parse(o.Status.CurrentState)
	if err != nil {
		return fmt.Sprintf("the node's current state cannot be read: %v", err)
	}
	for _, i := range current.Interfaces() {
		s.current = append(s.current, nic{i, macOf(i)})
	}
	if s.desired, err = parse(o.Spec.DesiredState); err == nil {
		err = nmstate.Check(s.desired, true)
	}
	if err != nil {
		return fmt.Sprintf("the node's desired state cannot be read, mend it by hand: %v", err)
	}
	if from := o.Spec.FromPolicies; from != nil {
		s.refs = from.Policies
		if s.record, err = parse(from.State); err != nil {
			return fmt.Sprintf("the node's record of policies (spec.fromPolicies) cannot be read: %v", err)
		}
	}
	if current == nil {
		return "the node has not reported its current state yet"
	}
	return ""
}

func parse(s *nmstatev1.State) (nmstate.State, error) {
	if s == nil || len(s.Raw) == 0 {
		return nil, nil
	}
	return nmstate.DecodeStored(s.Raw)
}

// Silence tells, for Node.Silent, of a node that Kubernetes has not heard of for long, or whose agent has not seen the last change of its
// object. An agent says so as soon as it has seen it, however long it takes to bring it about.
func Silence(o *corev1.Node, s *State) string {
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown {
			return "Kubernetes has not heard of the node since " + c.LastTransitionTime.UTC().Format(time.RFC3339)
		}
	}
	if s.behind {
		return "the node's agent, netplugin node-state, has not seen the last change of its NodeNetworkState yet"
	}
	return ""
}

// syncOf reads the agent's condition; what it says of an earlier generation says nothing of this one.
func syncOf(o *nmstatev1.NodeNetworkState) (syncing, string) {
	c := meta.FindStatusCondition(o.Status.Conditions, nmstatev1.ConditionInSync)
	if c == nil || max(c.ObservedGeneration, o.Status.ObservedGeneration) < o.Generation {
		return applying, ""
	}
	switch {
	case c.Status == metav1.ConditionTrue:
		return synced, ""
	case c.Reason == nmstatev1.ReasonFailing, c.Reason == nmstatev1.ReasonRetrying, c.Reason == nmstatev1.ReasonRolledBack:
		counter := fmt.Sprintf("attempt %d: ", o.Status.Attempt) // which would change what policies are told each time
		return failing, strings.TrimPrefix(c.Message, counter)
	}
	return applying, c.Message
}

// setByHand is what of the desired state is nobody's but the administrator's: all that is not in the record.
func (s *State) setByHand() nmstate.State {
	if len(s.record) == 0 {
		return s.desired
	}
	hand := nmstate.Subtract(s.desired, s.record)
	return withTypes(hand, s.desired, s.record)
}

// withTypes: Subtract leaves an interface its type when more of it is left, and takes it when nothing is. Here the type is
// whose the record says it is.
func withTypes(hand, desired, record nmstate.State) nmstate.State {
	left := byKey(hand)
	theirs := byKey(record)
	var bare []any
	for _, i := range desired.Interfaces() {
		part, ok := theirs[i.Key()]
		if !ok || i.Type() == "" || i.Type() == nmstate.OVSBridge {
			continue
		}
		mine, some := left[i.Key()]
		switch {
		case part.Type() == i.Type() && some:
			delete(mine, "type")
		case part.Type() == "" && !some:
			bare = append(bare, map[string]any{"name": i.Name(), "type": i.Type()})
		}
	}
	if bare != nil {
		list, _ := hand["interfaces"].([]any)
		hand["interfaces"] = append(list, bare...)
	}
	return hand
}

func byKey(s nmstate.State) map[string]nmstate.Interface {
	found := map[string]nmstate.Interface{}
	for _, i := range s.Interfaces() {
		found[i.Key()] = i
	}
	return found
}
