package wellknown

// EventReason is what kubectl get events shows as REASON.
type EventReason string

// Reasons of what netmaster writes.
const (
	EventInvalid          EventReason = "Invalid"
	EventOverBudget       EventReason = "OverBudget"
	EventPortsOverBudget  EventReason = "PortsOverBudget"
	EventLabelsOverBudget EventReason = "LabelsOverBudget"
	// EventNamespaceLabels is of a Namespace: a reason has one kind of object.
	EventNamespaceLabels   EventReason = "NamespaceLabelsOverBudget"
	EventServiceOverBudget EventReason = "ServiceOverBudget"

	EventNotInForce       EventReason = "NotInForce"
	EventInForce          EventReason = "InForce"
	EventAddressContested EventReason = "AddressContested"
	EventNodeRefused      EventReason = "FlowkeepRefused"
	EventDrift            EventReason = "FlowkeepDrift"
	EventForeignAddress   EventReason = "FlowkeepForeignAddress"
	EventClaimRefused     EventReason = "FlowkeepClaimRefused"
	EventStaticPod        EventReason = "FlowkeepStaticPod"
	EventClusterCIDRs     EventReason = "FlowkeepClusterCIDRs"
	EventNodeAddress      EventReason = "FlowkeepNodeAddress"
	EventFirewall         EventReason = "FlowkeepFirewall"
	EventNumberTaken      EventReason = "FlowkeepNumberTaken"
	EventHostContested    EventReason = "FlowkeepHostContested"
	EventNoRoute          EventReason = "FlowkeepNoRoute"
)

// ConditionNetworkProblem is a condition of Nodes that netmaster writes, with one of the last six reasons above and
// the Event's message.
const ConditionNetworkProblem = "FlowkeepNetworkProblem"

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
	{EventOverBudget, true, "NetworkPolicy", networkingV1, NetmasterEvents,
		"The policy, or all policies of its namespace together, exceed a budget. The excess is left out and permits " +
			"nothing; the policy isolates as before.",
		"`netctl policy show NAMESPACE/NAME` lists the parts that are left out: " +
			"[troubleshooting](../troubleshooting.md#an-object-is-over-budget)."},
	{EventPortsOverBudget, true, "Pod", "v1", NetmasterEvents,
		"The pod has more named ports than the budget. Rules that name one of the others permit nothing to the pod.",
		"[Troubleshooting](../troubleshooting.md#an-object-is-over-budget)."},
	{EventLabelsOverBudget, true, "Pod", "v1", NetmasterEvents,
		"The pod, or all pods of its namespace together, have more labels than the budget. The pod is isolated in " +
			"both directions, and no policy permits traffic of it.",
		"[Troubleshooting](../troubleshooting.md#an-object-is-over-budget)."},
	{EventNamespaceLabels, true, "Namespace", "v1", NetmasterEvents,
		"The Namespace has more labels than the budget. No selector of namespaces chooses it.",
		"[Troubleshooting](../troubleshooting.md#an-object-is-over-budget)."},
	{EventServiceOverBudget, true, "Service", "v1", NetmasterEvents,
		"The Service, or all Services of its namespace together, exceed a budget. Pods on nodes with `--services ovs` " +
			"do not reach what is left out.",
		"`netctl service show NAMESPACE/NAME` lists what is left out: " +
			"[troubleshooting](../troubleshooting.md#an-object-is-over-budget)."},
	{EventNotInForce, true, "NetworkPolicy", networkingV1, NetmasterEvents, "A node could not put all of the policy in force; it denies what is missing.",
		"The message has the switch's reason: [troubleshooting](../troubleshooting.md#a-node-could-not-put-rules-in-force)."},
	{EventInForce, false, "NetworkPolicy", networkingV1, NetmasterEvents, "A node for which NotInForce was reported has all of the policy in force again.", "Nothing."},
	{EventAddressContested, true, "Pod", "v1", NetmasterEvents, "Another pod claims the same address: it counts as nobody's, so that no policy lets it through.",
		"[Troubleshooting](../troubleshooting.md#two-pods-claim-one-address)."},
	{EventNodeRefused, true, "Node", "v1", NetmasterEvents, "Netmaster does not serve the node's netplugin, which enforces the rules that it last had.",
		"The message says why: [troubleshooting](../troubleshooting.md#a-node-has-no-netmaster)."},
	{EventDrift, true, "Node", "v1", NetmasterEvents, "Flows of the node's switch differed from the wanted ones: another program changed them, or netplugin encoded them wrongly. The message has the outcome.",
		"[Troubleshooting](../troubleshooting.md#flows-drifted)."},
	{EventForeignAddress, true, "Node", "v1", NetmasterEvents, "The node's netplugin announced, as a pod's, an address that is not of the node's podCIDRs. It is no peer's: nobody's rules let it through as this pod's. On the node itself the pod's policies hold for it; it reaches the node's pods and nothing else.",
		"If the Node got other podCIDRs, as where it was deleted and registered again, its pods are from before: drain it, so that they start anew. Else an honest netplugin does not: see [what a node's certificate is good for](../security.md#a-node-or-its-certificate), and drain the node."},
	{EventClaimRefused, true, "Node", "v1", NetmasterEvents,
		"The Node has an InternalIP or a podCIDR that another node had first: other nodes do not receive the claim.",
		"[Troubleshooting](../troubleshooting.md#a-node-claims-what-another-has)."},
	{EventStaticPod, true, "Pod", "v1", NetmasterEvents,
		"A static pod outside of `--static-pod-namespaces`: its policies hold, and no selector of a peer matches it.",
		"[Troubleshooting](../troubleshooting.md#a-static-pod-is-no-peer)."},
	{EventClusterCIDRs, true, "Node", "v1", NetmasterEvents,
		"`--cluster-cidrs` of the node's netplugin do not hold the podCIDRs of all Nodes. The Node has the condition " +
			"FlowkeepNetworkProblem too.",
		"[Troubleshooting](../troubleshooting.md#the-cluster-cidrs-are-wrong)."},
	{EventNodeAddress, true, "Node", "v1", NetmasterEvents,
		"No interface of the node has an InternalIP of its Node. The Node has the condition " +
			"FlowkeepNetworkProblem too.",
		"[Troubleshooting](../troubleshooting.md#a-nodes-pods-have-no-route)."},
	{EventFirewall, true, "Node", "v1", NetmasterEvents,
		"The chain FORWARD of iptables-legacy drops packets of the node's pods. netplugin is not ready there. The " +
			"Node has the condition FlowkeepNetworkProblem too.",
		"[Troubleshooting](../troubleshooting.md#iptables-legacy-drops-pods-packets)."},
	{EventNumberTaken, true, "Node", "v1", NetmasterEvents,
		"Another program on the node uses a routing table or the priority of a policy rule that Flowkeep uses. The " +
			"Node has the condition FlowkeepNetworkProblem too.",
		"[Troubleshooting](../troubleshooting.md#another-program-uses-a-number-of-flowkeeps)."},
	{EventHostContested, true, "Node", "v1", NetmasterEvents,
		"Another program on the node changes parts of the host's network again after each repair of netplugin's. The " +
			"Node has the condition FlowkeepNetworkProblem too.",
		"[Troubleshooting](../troubleshooting.md#two-programs-repair-the-same-object)."},
	{EventNoRoute, true, "Node", "v1", NetmasterEvents,
		"Other nodes have no route to the Node's podCIDR. The Node has the condition FlowkeepNetworkProblem too.",
		"[Troubleshooting](../troubleshooting.md#a-nodes-pods-have-no-route)."},
	{EventFailed, true, "NodeNetworkState", nmstateV1, NodeStateEvents, "The desired state was refused before or during the change, and nothing was left changed.",
		"`netctl node-state history NODE` tells the step and the reason."},
	{EventRolledBack, true, "NodeNetworkState", nmstateV1, NodeStateEvents, "The change was made and did not prove good: a probe that held before did not any more. The node is as it was.",
		"`netctl node-state history NODE` names the probe; change the desired state."},
	{EventPartial, true, "NodeNetworkState", nmstateV1, NodeStateEvents, "The change failed, and not all of it could be taken back.",
		"`netctl node-state diff NODE` tells what differs; the message, what could not be taken back."},
	{EventRecovered, true, "NodeNetworkState", nmstateV1, NodeStateEvents, "The agent ended in the middle of a change, and took it back when it was started again.",
		"Look why it ended: `kubectl -n flowkeep-system logs ds/node-state --previous`."},
}

// EventOf returns the Event with this reason, nil if there is none.
func EventOf(reason EventReason) *Event {
	for i := range Events {
		if Events[i].Reason == reason {
			return &Events[i]
		}
	}
	return nil
}

// Type returns the type of the Event in Kubernetes.
func (e *Event) Type() string {
	if e.Warning {
		return "Warning"
	}
	return "Normal"
}
