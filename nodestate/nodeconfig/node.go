package nodeconfig

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Node is what is known of a node: the object that policies select by, and its state. Nothing of it is changed.
type Node struct {
	Object *corev1.Node
	*State
	// Memory is of this node, if there is any.
	Memory *Memory
	// Refused are policies whose wishes for the node the API server has refused, and why; Held those that are not to be tried now.
	Refused, Held map[string]string
	// Silent is the reason for which the node may have no live agent. It takes no turn then, so that it does not hold
	// up others.
	Silent string
}

// State is a NodeNetworkState, understood.
type State struct {
	// unknown says why nothing can be decided for the node now; it keeps what it has.
	unknown   string
	unmanaged bool
	current   *report
	*wishes
	refs    []nmstatev1.PolicyRef
	sync    syncing
	message string // of the agent
	behind  bool   // the agent has not seen the object as it is
}

// wishes is what the node is to have: what came from policies, which is recorded, and what did not.
type wishes struct {
	hand                        nmstate.State
	handPieces                  pieces
	desiredLayers, recordLayers layers
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
func ReadState(o *nmstatev1.NodeNetworkState) *State { return (*Memory)(nil).ReadState(o) }

// ReadState is quick where the documents say what they did before.
func (m *Memory) ReadState(o *nmstatev1.NodeNetworkState) *State {
	if o == nil {
		return NoState
	}
	s := &State{unmanaged: !o.Spec.IsManaged()}
	s.sync, s.message = syncOf(o)
	s.behind = o.Status.ObservedGeneration < o.Generation
	s.unknown = s.read(o, m)
	return s
}

func (s *State) read(o *nmstatev1.NodeNetworkState, m *Memory) (unknown string) {
	var err error
	if s.current, err = m.reportOf(o.Status); err != nil {
		return fmt.Sprintf("the node's current state cannot be read: %v", err)
	}
	var record *nmstatev1.State
	if from := o.Spec.FromPolicies; from != nil {
		s.refs, record = from.Policies, from.State
	}
	if s.wishes, err = m.wishesOf(o.Spec.DesiredState, record); err != nil {
		return err.Error()
	}
	if s.current == nil {
		return "the node has not reported its current state yet"
	}
	return ""
}

func newWishes(desired, record *nmstatev1.State) (*wishes, error) {
	d, err := parse(desired)
	if err == nil {
		err = nmstate.Check(d, true)
	}
	if err != nil {
		return nil, fmt.Errorf("the node's desired state cannot be read, mend it by hand: %w", err)
	}
	r, err := parse(record)
	if err != nil {
		return nil, fmt.Errorf("the node's record of policies (spec.fromPolicies) cannot be read: %w", err)
	}
	hand := setByHand(nmstate.Unrepeated(d), r) // the running of a report may repeat what is from policies
	return &wishes{hand, takeApart(nmstate.Canonical(hand)), layersOf(d), layersOf(r)}, nil
}

func parse(s *nmstatev1.State) (nmstate.State, error) {
	if s == nil || len(s.Raw) == 0 {
		return nil, nil
	}
	d, err := nmstate.DecodeStored(s.Raw)
	nmstate.SpellDesired(d)
	return d, err
}

// Addresses returns the InternalIPs of a Node.
func Addresses(o *corev1.Node) (addresses []netip.Addr) {
	for _, a := range o.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			addresses = append(addresses, ip)
		}
	}
	return addresses
}

// Silence returns Node.Silent for a node that sent no heartbeat for long, or whose agent has not observed the newest
// change of its object. An agent reports that it has observed a change at once, however long it takes to apply.
func Silence(o *corev1.Node, s *State) string {
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown {
			return "Kubernetes has no heartbeat of the node since " + c.LastTransitionTime.UTC().Format(time.RFC3339)
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
		counter := fmt.Sprintf("attempt %d: ", o.Status.Attempt) // which would change policies' statuses each time
		return failing, strings.TrimPrefix(c.Message, counter)
	}
	return applying, c.Message
}

// setByHand returns the part of the desired state that is not in the record, which an administrator wrote.
func setByHand(desired, record nmstate.State) nmstate.State {
	if len(record) == 0 {
		return desired
	}
	return withTypes(nmstate.Subtract(desired, record), desired, record)
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
