package kube

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/policydb/policy"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Policy converts a NetworkPolicy, with the API's defaults. Parts that are invalid are left out and listed in
// Problems: a peer or port that is left out matches nothing, and an invalid podSelector isolates the whole namespace.
func Policy(np *networkingv1.NetworkPolicy) *policy.Policy {
	p := &policy.Policy{Namespace: np.Namespace, Name: np.Name, UID: string(np.UID), Generation: np.Generation}
	if !np.CreationTimestamp.IsZero() {
		p.CreatedAt = np.CreationTimestamp.Unix()
	}
	c := &converter{p: p}
	p.DryRun, p.Copy = c.dryRun(np.Annotations), fleetCopy(np.Annotations)
	applied, ok := c.selector("spec.podSelector", &np.Spec.PodSelector)
	if !ok {
		applied = policy.Selector{}
	}
	p.AppliedTo = applied
	p.IsolatesIngress, p.IsolatesEgress = c.policyTypes(np)
	if ok { // else it would allow pods that it was not meant for
		c.rules(np)
	}
	return c.finish()
}

type converter struct {
	p        *policy.Policy
	problems int
}

// Problems are bounded: the first maxProblems, each of at most problemLength bytes, and how many more there are.
const (
	maxProblems   = 20
	problemLength = 300
)

func (c *converter) problem(format string, args ...any) {
	c.problems++
	if c.problems > maxProblems {
		return
	}
	text := fmt.Sprintf(format, args...)
	if len(text) > problemLength {
		text = strings.ToValidUTF8(text[:problemLength], "") + "…"
	}
	c.p.Problems = append(c.p.Problems, text)
}

func (c *converter) finish() *policy.Policy {
	if more := c.problems - maxProblems; more > 0 {
		c.p.Problems = append(c.p.Problems, fmt.Sprintf("and %d more", more))
	}
	return c.p
}

// Enforcement is the annotation of a policy that says its mode; without it the policy is enforced.
const Enforcement = wellknown.AnnotationEnforcement

// Copy is the annotation of a policy that a hub sent: a hash of what the hub wants of it.
const Copy = wellknown.AnnotationCopy

// maxCopy bounds the length of the annotation Copy, which users may write too.
const maxCopy = 128

// fleetCopy returns the annotation Copy, or "" if it is longer than those that a hub writes.
func fleetCopy(annotations map[string]string) string {
	if v := annotations[Copy]; len(v) <= maxCopy {
		return v
	}
	return ""
}

// SaysMode reports whether an object has the enforcement annotation.
func SaysMode(np *networkingv1.NetworkPolicy) bool {
	_, says := np.Annotations[Enforcement]
	return says
}

// modeAudit is the earlier name of the mode dry-run. It is accepted for ever: any other value enforces the policy.
const modeAudit = "audit"

// dryRun reports whether the policy is in a dry run. An unknown value is a problem, and the policy is enforced.
func (c *converter) dryRun(annotations map[string]string) bool {
	value, written := annotations[Enforcement]
	isDryRun := value == policy.ModeDryRun || value == modeAudit
	if written && !isDryRun && value != policy.ModeEnforce {
		c.problem(
			"metadata.annotations: %s cannot be %q: write %s for a dry run, or %s; until then the policy is enforced",
			Enforcement, value, policy.ModeDryRun, policy.ModeEnforce)
	}
	return isDryRun
}

// policyTypes: absent means Ingress, and Egress where there are egress rules (NetworkPolicySpec).
func (c *converter) policyTypes(np *networkingv1.NetworkPolicy) (ingress, egress bool) {
	if len(np.Spec.PolicyTypes) == 0 {
		return true, len(np.Spec.Egress) > 0
	}
	for _, t := range np.Spec.PolicyTypes {
		switch t {
		case networkingv1.PolicyTypeIngress:
			ingress = true
		case networkingv1.PolicyTypeEgress:
			egress = true
		default:
			c.problem("spec.policyTypes: %q is unknown; both directions are isolated", t)
			ingress, egress = true, true
		}
	}
	return ingress, egress
}

func (c *converter) rules(np *networkingv1.NetworkPolicy) {
	for i, r := range np.Spec.Ingress {
		where := fmt.Sprintf("spec.ingress[%d]", i)
		c.p.Ingress = append(c.p.Ingress, c.rule(where, "from", r.From, r.Ports))
	}
	for i, r := range np.Spec.Egress {
		where := fmt.Sprintf("spec.egress[%d]", i)
		c.p.Egress = append(c.p.Egress, c.rule(where, "to", r.To, r.Ports))
	}
}

func (c *converter) rule(
	where, side string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort,
) policy.PolicyRule {
	r := policy.PolicyRule{AnyPeer: len(peers) == 0, AnyPort: len(ports) == 0}
	for i := range peers {
		if peer, ok := c.peer(fmt.Sprintf("%s.%s[%d]", where, side, i), &peers[i]); ok {
			r.Peers = append(r.Peers, peer)
		}
	}
	for i := range ports {
		if port, ok := c.port(fmt.Sprintf("%s.ports[%d]", where, i), &ports[i]); ok {
			r.Ports = append(r.Ports, port)
		}
	}
	return r
}

func (c *converter) peer(where string, in *networkingv1.NetworkPolicyPeer) (policy.Peer, bool) {
	if in.IPBlock != nil {
		if in.PodSelector != nil || in.NamespaceSelector != nil {
			c.problem("%s: ipBlock cannot be together with selectors", where)
			return policy.Peer{}, false
		}
		block, ok := c.block(where+".ipBlock", in.IPBlock)
		return policy.Peer{Block: block}, ok
	}
	if in.PodSelector == nil && in.NamespaceSelector == nil {
		c.problem("%s: names no selector and no ipBlock", where)
		return policy.Peer{}, false
	}
	var out policy.Peer
	if in.NamespaceSelector != nil {
		s, ok := c.selector(where+".namespaceSelector", in.NamespaceSelector)
		if !ok {
			return out, false
		}
		out.Namespaces = &s
	}
	if in.PodSelector != nil {
		s, ok := c.selector(where+".podSelector", in.PodSelector)
		if !ok {
			return out, false
		}
		out.Pods = &s
	}
	return out, true
}

func (c *converter) block(where string, in *networkingv1.IPBlock) (*policy.IPBlock, bool) {
	cidr, ok := c.cidr(where+".cidr", in.CIDR)
	if !ok {
		return nil, false
	}
	out := &policy.IPBlock{CIDR: cidr}
	for i, text := range in.Except {
		at := fmt.Sprintf("%s.except[%d]", where, i)
		except, ok := c.cidr(at, text)
		if !ok {
			return nil, false // without its except the block would allow more than was meant
		}
		if except.Addr().Is4() != cidr.Addr().Is4() || except.Bits() <= cidr.Bits() || !cidr.Contains(except.Addr()) {
			c.problem("%s: %s is not a part of %s", at, except, cidr)
			return nil, false
		}
		out.Except = append(out.Except, except)
	}
	return out, true
}

func (c *converter) cidr(where, text string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		c.problem("%s: %q is not a CIDR", where, text)
	case p != p.Masked():
		c.problem("%s: %s has bits set behind its prefix; did you mean %s?", where, p, p.Masked())
	case p.Addr().Is4In6():
		c.problem("%s: %s is an IPv4 address in IPv6 notation", where, p)
	default:
		return p, true
	}
	return netip.Prefix{}, false
}

var operators = map[metav1.LabelSelectorOperator]policy.Operator{
	metav1.LabelSelectorOpIn: policy.In, metav1.LabelSelectorOpNotIn: policy.NotIn,
	metav1.LabelSelectorOpExists: policy.Exists, metav1.LabelSelectorOpDoesNotExist: policy.DoesNotExist,
}

func (c *converter) selector(where string, in *metav1.LabelSelector) (policy.Selector, bool) {
	var out policy.Selector
	for k, v := range in.MatchLabels {
		if !labelKey(k) {
			c.problem("%s.matchLabels: %q cannot be the key of a label", where, k)
			return policy.Selector{}, false
		}
		out.Requirements = append(out.Requirements,
			policy.Requirement{Key: k, Operator: policy.In, Values: []string{v}})
	}
	slices.SortFunc(out.Requirements, func(a, b policy.Requirement) int {
		if a.Key < b.Key {
			return -1
		}
		return 1
	})
	for i, e := range in.MatchExpressions {
		op, known := operators[e.Operator]
		needs := op == policy.In || op == policy.NotIn
		if !known || !labelKey(e.Key) || needs != (len(e.Values) > 0) {
			c.problem("%s.matchExpressions[%d]: key %q with operator %q and %d values makes no sense", where, i, e.Key,
				e.Operator, len(e.Values))
			return policy.Selector{}, false
		}
		out.Requirements = append(out.Requirements, policy.Requirement{Key: e.Key, Operator: op, Values: e.Values})
	}
	return out, true
}

func labelKey(k string) bool { return len(validation.IsQualifiedName(k)) == 0 }

func protocolOf(p *corev1.Protocol) (policy.Protocol, bool) {
	if p == nil {
		return policy.TCP, true
	}
	switch *p {
	case corev1.ProtocolTCP:
		return policy.TCP, true
	case corev1.ProtocolUDP:
		return policy.UDP, true
	case corev1.ProtocolSCTP:
		return policy.SCTP, true
	}
	return 0, false
}

func (c *converter) port(where string, in *networkingv1.NetworkPolicyPort) (policy.PolicyPort, bool) {
	proto, ok := protocolOf(in.Protocol)
	if !ok {
		c.problem("%s.protocol: %q is unknown; use TCP, UDP or SCTP", where, *in.Protocol)
		return policy.PolicyPort{}, false
	}
	out := policy.PolicyPort{Protocol: proto, Last: 65535}
	if in.Port == nil {
		if in.EndPort != nil {
			c.problem("%s.endPort: needs port", where)
			return out, false
		}
		return out, true
	}
	if in.Port.Type == intstr.String {
		if in.EndPort != nil || in.Port.StrVal == "" {
			c.problem("%s: a port's name cannot be empty or have an endPort", where)
			return out, false
		}
		return policy.PolicyPort{Protocol: proto, Name: in.Port.StrVal}, true
	}
	first, last := in.Port.IntVal, in.Port.IntVal
	if in.EndPort != nil {
		last = *in.EndPort
	}
	if first < 1 || last > 65535 || last < first {
		c.problem("%s: %d to %d is no range of ports", where, first, last)
		return out, false
	}
	out.First, out.Last = uint16(first), uint16(last)
	return out, true
}

// Endpoint returns what counts of a pod, within the default budgets of one.
func Endpoint(pod *corev1.Pod) *policy.Endpoint { return EndpointWithin(pod, &policy.DefaultBudgets) }

// EndpointWithin returns what counts of a pod, within the budgets of one: its first named ports, and all labels or
// none.
func EndpointWithin(pod *corev1.Pod, b *policy.Budgets) *policy.Endpoint {
	e := &policy.Endpoint{
		Namespace: pod.Namespace, Name: pod.Name, UID: uidOf(pod), Labels: pod.Labels, Node: pod.Spec.NodeName,
		HostNetwork: pod.Spec.HostNetwork, Terminating: pod.DeletionTimestamp != nil,
		CreatedAt: pod.CreationTimestamp.Unix(),
		Finished:  pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed,
		NoPeer:    isMirror(pod),
	}
	texts := []string{pod.Status.PodIP}
	if len(pod.Status.PodIPs) > 0 {
		texts = nil
		for _, ip := range pod.Status.PodIPs {
			texts = append(texts, ip.IP)
		}
	}
	for _, text := range texts {
		e.Addresses = addAddress(e.Addresses, text)
	}
	e.NoSandbox = len(e.Addresses) > 0 && hasSandboxCondition(pod, corev1.ConditionFalse)
	e.HasSandbox = hasSandboxCondition(pod, corev1.ConditionTrue)
	ports := namedPorts{max: b.PodPorts}
	for i := range pod.Spec.Containers {
		ports.add(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil &&
			*c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			ports.add(c)
		}
	}
	e.Ports, e.PortsLeftOut = ports.list, ports.leftOut
	b.TrimEndpoint(e)
	return e
}

// hasSandboxCondition reports whether the condition of the pod's sandbox has a status. A kubelet older than 1.29 sets
// no such condition.
func hasSandboxCondition(pod *corev1.Pod, status corev1.ConditionStatus) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReadyToStartContainers && c.Status == status
	})
}

// uidOf returns the pod's UID as its kubelet and netplugin have it. The API server has a mirror pod for a static pod;
// the mirror pod's UID changes when the kubelet recreates it, and the kubelet's own UID is in an annotation. Anyone
// who can create pods can set that annotation, so the UID is used together with the pod's name only.
func uidOf(pod *corev1.Pod) string {
	uid := cmp.Or(pod.Annotations[corev1.MirrorPodAnnotationKey], string(pod.UID))
	if len(uid) > maxUID {
		uid = strings.ToValidUTF8(uid[:maxUID], "")
	}
	return uid
}

// maxUID bounds what is kept of a UID, in bytes. Those of kubelets have 32 or 36.
const maxUID = 128

// isMirror reports whether the API server took a pod for the mirror of a static pod. Kubernetes lets a kubelet create
// such pods in every namespace, with any labels.
func isMirror(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}

// addAddress takes the first address of each family; what is no address is left out.
func addAddress(to []netip.Addr, text string) []netip.Addr {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return to
	}
	a = a.Unmap()
	if slices.ContainsFunc(to, func(b netip.Addr) bool { return a.Is4() == b.Is4() }) {
		return to
	}
	return append(to, a)
}

// namedPorts are those of a pod's containers. Of several ports with one name and protocol the first counts, as for
// kube-proxy.
type namedPorts struct {
	max     int
	list    []policy.NamedPort
	seen    map[portName]struct{}
	leftOut int
}

type portName struct {
	name     string
	protocol policy.Protocol
}

// add leaves out what cannot be: a name then stands for nothing there.
func (n *namedPorts) add(c *corev1.Container) {
	for i := range c.Ports {
		p := &c.Ports[i]
		proto, ok := policy.TCP, true
		if p.Protocol != "" {
			proto, ok = protocolOf(&p.Protocol)
		}
		if !ok || p.Name == "" || p.ContainerPort < 1 || p.ContainerPort > 65535 {
			continue
		}
		id := portName{p.Name, proto}
		if _, twice := n.seen[id]; twice {
			continue
		}
		if len(n.list) == n.max {
			n.leftOut++
			continue
		}
		if n.seen == nil {
			n.seen = map[portName]struct{}{}
		}
		n.seen[id] = struct{}{}
		n.list = append(n.list, policy.NamedPort{Name: p.Name, Protocol: proto, Number: uint16(p.ContainerPort)})
	}
}

// Namespace returns what counts of a namespace, within the default budgets.
func Namespace(ns *corev1.Namespace) policy.Namespace {
	return NamespaceWithin(ns, &policy.DefaultBudgets)
}

// NamespaceWithin returns what counts of a namespace, within the budgets: its labels or none.
func NamespaceWithin(ns *corev1.Namespace, b *policy.Budgets) policy.Namespace {
	if b.LabelsExceed(ns.Labels) {
		return policy.Namespace{Name: ns.Name, LabelsLeftOut: len(ns.Labels)}
	}
	return policy.Namespace{Name: ns.Name, Labels: ns.Labels}
}

// Node returns a node's claims: the addresses of its status, which its kubelet writes, and its podCIDRs.
func Node(n *corev1.Node) policy.NodeInfo {
	out := policy.NodeInfo{
		Name:    n.Name,
		UID:     string(n.UID),
		Zone:    n.Labels[corev1.LabelTopologyZone],
		Refused: n.Labels[wellknown.LabelRefused] == "true",
	}
	if !n.CreationTimestamp.IsZero() {
		out.CreatedAt = n.CreationTimestamp.Unix()
	}
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			out.Addresses = addAddress(out.Addresses, a.Address)
		}
	}
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs = []string{n.Spec.PodCIDR}
	}
	for _, text := range cidrs {
		if p, err := netip.ParsePrefix(text); err == nil {
			out.PodCIDRs = append(out.PodCIDRs, p.Masked())
		}
	}
	return out
}
