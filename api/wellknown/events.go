package wellknown

// EventReason is what kubectl get events shows as REASON.
type EventReason string

// Reasons of what netmaster writes.
const (
	EventInvalid          EventReason = "Invalid"
	EventNotInForce       EventReason = "NotInForce"
	EventInForce          EventReason = "InForce"
	EventAddressContested EventReason = "AddressContested"
	EventNodeRefused      EventReason = "FlowkeepRefused"
	EventDrift            EventReason = "FlowkeepDrift"
	EventForeignAddress   EventReason = "FlowkeepForeignAddress"
)

// Reasons of what the node-state agent writes: how an attempt ended that did not bring the node to its desired state.
const (
	EventFailed     EventReason = "Failed"
	EventRolledBack EventReason = "RolledBack"
	EventPartial    EventReason = "Partial"
	EventRecovered  EventReason = "Recovered"
)

// Event is what is written under a reason.
type Event struct {
	Reason EventReason
	// Warning is its type; without it, Normal.
	Warning bool
	// Kind is that of the object that it is about, APIVersion its group and version.
	Kind, APIVersion string
	// Writer is the program, as kubectl describe shows it (FROM).
	Writer string
	// Means and Do are for people.
	Means, Do string
}

// Writers of Events.
const (
	NetmasterEvents = "flowkeep-netmaster"
	NodeStateEvents = "flowkeep-node-state"
)

const (
	networkingV1 = "networking.k8s.io/v1"
	nmstateV1    = "nmstate.io/v1"
)

// Events are all that are written.
var Events = []Event{
	{EventInvalid, true, "NetworkPolicy", networkingV1, NetmasterEvents, "A part of the policy makes no sense, or is not understood: it is left out, and lets nothing through.",
		"`netctl policy show NAMESPACE/NAME` tells each part that is left out."},
	{EventNotInForce, true, "NetworkPolicy", networkingV1, NetmasterEvents, "A node could not put all of the policy in force; it denies what is missing.",
		"The message has the switch's reason: [troubleshooting](../troubleshooting.md#a-node-could-not-put-rules-in-force)."},
	{EventInForce, false, "NetworkPolicy", networkingV1, NetmasterEvents, "A node for which NotInForce was told has all of the policy in force again.", "Nothing."},
	{EventAddressContested, true, "Pod", "v1", NetmasterEvents, "Another pod claims the same address: it counts as nobody's, so that no policy lets it through.",
		"[Troubleshooting](../troubleshooting.md#two-pods-claim-one-address)."},
	{EventNodeRefused, true, "Node", "v1", NetmasterEvents, "Netmaster does not serve the node's netplugin, which enforces the rules that it last had.",
		"The message says why: [troubleshooting](../troubleshooting.md#a-node-has-no-netmaster)."},
	{EventDrift, true, "Node", "v1", NetmasterEvents, "Flows of the node's switch were not as they should be: somebody else changes them. They were mended.",
		"[Troubleshooting](../troubleshooting.md#flows-drifted)."},
	{EventForeignAddress, true, "Node", "v1", NetmasterEvents, "The node's netplugin announced, as a pod's, an address that is not of the node's podCIDRs. It is no peer's: nobody's rules let it through as this pod's. On the node itself the pod's policies hold for it; it reaches the node's pods and nothing else.",
		"If the Node got other podCIDRs, as where it was deleted and registered again, its pods are from before: drain it, so that they start anew. Else an honest netplugin does not: see [what a node's certificate is good for](../security.md#a-node-or-its-certificate), and drain the node."},
	{EventFailed, true, "NodeNetworkState", nmstateV1, NodeStateEvents, "The desired state was refused before or during the change, and nothing was left changed.",
		"`netctl node-state history NODE` tells the step and the reason."},
	{EventRolledBack, true, "NodeNetworkState", nmstateV1, NodeStateEvents, "The change was made and did not prove good: a probe that held before did not any more. The node is as it was.",
		"`netctl node-state history NODE` names the probe; change the desired state."},
	{EventPartial, true, "NodeNetworkState", nmstateV1, NodeStateEvents, "The change failed, and not all of it could be taken back.",
		"`netctl node-state diff NODE` tells what differs; the message, what could not be taken back."},
	{EventRecovered, true, "NodeNetworkState", nmstateV1, NodeStateEvents, "The agent ended in the middle of a change, and took it back when it was started again.",
		"Look why it ended: `kubectl -n flowkeep-system logs ds/node-state --previous`."},
}

// EventOf is what is written under a reason; nil: nothing is.
func EventOf(reason EventReason) *Event {
	for i := range Events {
		if Events[i].Reason == reason {
			return &Events[i]
		}
	}
	return nil
}

// Type is as Kubernetes has it.
func (e *Event) Type() string {
	if e.Warning {
		return "Warning"
	}
	return "Normal"
}
