package wellknown

// fleet is the group of the fleet's objects, labels and annotations.
const fleet = "fleet.flowkeep.io"

// Annotations and labels that Flowkeep writes or reads. Under one key there may be both.
const (
	// Prefix is that of annotations of NetworkPolicies that count for what is enforced.
	Prefix = "flowkeep.io/"

	AnnotationEnforcement  = Prefix + "enforcement"
	AnnotationServingSince = Prefix + "serving-since"
	AnnotationNetwork      = Prefix + "network"
	// AnnotationAllowVolatile is read by agents of node state.
	AnnotationAllowVolatile = Prefix + "allow-volatile"
	LabelClean              = Prefix + "clean"
	// LabelRefused is under a prefix with which no kubelet can label its own Node (admission plugin NodeRestriction).
	LabelRefused = "node-restriction.kubernetes.io/flowkeep-refused"

	LabelController         = fleet + "/controller"
	LabelBundle             = fleet + "/bundle"
	AnnotationBundle        = fleet + "/bundle"
	AnnotationSource        = fleet + "/from-hub"
	AnnotationCopy          = fleet + "/copy"
	AnnotationOverridden    = fleet + "/overridden"
	AnnotationClusters      = fleet + "/clusters"
	AnnotationLeft          = fleet + "/left"
	AnnotationPoliciesFirst = fleet + "/policies-first"
	LabelAggregate          = fleet + "/aggregate-to-policy-sync"

	LabelPlacement     = "cluster.open-cluster-management.io/placement"
	LabelPolicyKind    = "gateway.networking.k8s.io/policy"
	LabelManagedBy     = "endpointslice.kubernetes.io/managed-by"
	AnnotationInjected = "cert-manager.io/inject-ca-from"
	AnnotationTopology = "service.kubernetes.io/topology-mode"

	AnnotationIngressBandwidth = "kubernetes.io/ingress-bandwidth"
	AnnotationEgressBandwidth  = "kubernetes.io/egress-bandwidth"
)

// ManagedByNetmaster is the value of LabelManagedBy.
const ManagedByNetmaster = "netmaster.flowkeep.io"

// Key is an annotation or a label.
type Key struct {
	Name  string
	Label bool
	// On is the kind of the objects that have it.
	On string
	// Writes and Reads say who does.
	Writes, Reads string
	Values        string
}

// Keys are all of them.
var Keys = []Key{
	{AnnotationEnforcement, false, "NetworkPolicy", "users", "netmaster, netctl",
		"`enforce`, as without it; `dry-run` (or `audit`): a dry run, which denies nothing and reports what it would deny ([semantics](../semantics.md)). Any other value is an Event Invalid, and the policy is enforced."},
	{AnnotationServingSince, false, "APIService v1alpha1.inspect.flowkeep.io", "netmaster", "nobody", "When netmaster began to serve: the change has the API server look at once whether it is there."},
	{AnnotationNetwork, false, "DaemonSet netplugin's pods", "the chart", "nobody", "A hash of the ConfigMap flowkeep: with another, pods are made anew, one node after the other."},
	{
		AnnotationAllowVolatile, false, "NodeNetworkState", "administrators", "netplugin node-state",
		"`true`: the node's only uplink may be changed though a reboot undoes the change.",
	},
	{LabelClean, true, "Pod in flowkeep-system", "netctl uninstall", "netctl uninstall", "The pods that clean nodes."},
	{LabelRefused, true, "Node", "administrators", "netmaster",
		"`true`: netmaster refuses the node, other nodes do not reach it, and what it announced is revoked."},
	{LabelController, true, "ManifestWork", "policy-sync", "policy-sync, netctl fleet", "A hash of the controllerName, by which several controllers leave each other's works alone."},
	{LabelBundle, true, "ManifestWork", "policy-sync", "policy-sync, netctl fleet", "A hash of what the work carries."},
	{AnnotationBundle, false, "ManifestWork", "policy-sync", "policy-sync, netctl fleet", "What the work carries, in words: `KIND.GROUP/NAMESPACE/NAME` of the hub object."},
	{AnnotationSource, false, "copies on spokes", "policy-sync", "policy-sync, netctl fleet, people", "Which hub object it is a copy of. What has none is no copy, and is never overwritten."},
	{AnnotationCopy, false, "copies on spokes", "policy-sync", "policy-sync; the spoke's netmaster, of NetworkPolicies", "A hash of what the hub wants of the copy: answers tell by it which version they are about."},
	{AnnotationOverridden, false, "Gateway on the hub", "policy-sync", "people", "Which policies are overridden in which clusters, as JSON. Another `--controller-name` has it under its own domain."},
	{
		AnnotationClusters, false, "Gateway on the hub", "policy-sync", "people, controllers of DNS",
		"Addresses and attached routes of each cluster, and which clusters are leaving, as JSON. " +
			"Another `--controller-name` has it under its own domain.",
	},
	{
		AnnotationLeft, false, "ManifestWork", "policy-sync", "policy-sync, people",
		"When the grace period of a cluster that left the Placement began (RFC 3339); absent while the cluster is unavailable.",
	},
	{AnnotationPoliciesFirst, false, "Gateway on the hub", "users", "policy-sync", "`false`: the gateway is made in clusters whether its policies are there or not."},
	{LabelAggregate, true, "ClusterRole on the hub", "users", "the API server", "`true`: its rules are part of flowkeep-policy-sync-all-kinds."},
	{LabelPlacement, true, "Gateway on the hub", "users", "policy-sync", "The Placement, in the gateway's namespace, whose decisions say to which clusters it goes."},
	{LabelPolicyKind, true, "CustomResourceDefinition on the hub", "who installs the kind", "policy-sync", "Any: its objects are policies, which may be sent."},
	{LabelManagedBy, true, "EndpointSlice netmaster-leader-*", "netmaster", "the EndpointSlice controller", "`" + ManagedByNetmaster + "`: it leaves them alone."},
	{AnnotationInjected, false, "APIService, ValidatingWebhookConfiguration", "users", "netmaster, cert-manager", "Any: cert-manager writes `caBundle`, and netmaster does not."},
	{
		AnnotationIngressBandwidth, false, "Pod", "users", "the container runtime, netplugin",
		"The most bits a second that the pod receives, as a quantity: `10M`. Read when the pod starts.",
	},
	{
		AnnotationEgressBandwidth, false, "Pod", "users", "the container runtime, netplugin",
		"The same of what the pod sends.",
	},
	{AnnotationTopology, false, "Service", "users", "netmaster, for netctl explain", "Any: endpoints near the client may be preferred, so that an explanation names all."},
}
