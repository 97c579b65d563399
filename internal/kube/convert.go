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

// Policy defaults and validates. What can't be understood is left out and told in Problems: a peer or port that is left out
// matches nothing, and a podSelector that can't be read isolates the whole namespace.
func Policy(np *networkingv1.NetworkPolicy) *policy.Policy {
	p := &policy.Policy{Namespace: np.Namespace, Name: np.Name, UID: string(np.UID), Generation: np.Generation}
	c := &converter{p: p}
	p.Audit, p.Copy = c.audit(np.Annotations), fleetCopy(np.Annotations)
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

// Problems are bounded: the first mostProblems, each of at most problemLength bytes, and how many more there are.
const (
	mostProblems  = 20
	problemLength = 300
)

func (c *converter) problem(format string, args ...any) {
	c.problems++
	if c.problems > mostProblems {
		return
	}
	text := fmt.Sprintf(format, args...)
	if len(text) > problemLength {
		text = strings.ToValidUTF8(text[:problemLength], "") + "…"
	}
	c.p.Problems = append(c.p.Problems, text)
}

func (c *converter) finish() *policy.Policy {
	if more := c.problems - mostProblems; more > 0 {
		c.p.Problems = append(c.p.Problems, fmt.Sprintf("and %d more", more))
	}
	return c.p
}

// Enforcement is the annotation of a policy that says its mode; without it the policy is enforced.
const Enforcement = wellknown.AnnotationEnforcement

// Copy is the annotation of a policy that a hub sent: a hash of what the hub wants of it.
const Copy = wellknown.AnnotationCopy

// longestCopy bounds what is kept of it, of whoever wrote it.
const longestCopy = 128

// fleetCopy is empty where the annotation is longer than any that a hub writes.
func fleetCopy(annotations map[string]string) string {
	if v := annotations[Copy]; len(v) <= longestCopy {
		return v
	}
	return ""
}

// SaysMode tells whether an object has the annotation at all.
func SaysMode(np *networkingv1.NetworkPolicy) bool {
	_, says := np.Annotations[Enforcement]
	return says
}

// audit tells whether the policy is a dry run: only if exactly that is written, for else nothing of it would be in force.
func (c *converter) audit(annotations map[string]string) bool {
	value, written := annotations[Enforcement]
	if written && value != policy.ModeAudit && value != policy.ModeEnforce {
		c.problem("metadata.annotations: %s cannot be %q: write %s for a dry run, or %s; until then the policy is enforced", Enforcement, value, policy.ModeAudit, policy.ModeEnforce)
	}
	return value == policy.ModeAudit
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

func (c *converter) rule(where, side string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) policy.PolicyRule {
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
		out.Requirements = append(out.Requirements, policy.Requirement{Key: k, Operator: policy.In, Values: []string{v}})
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
			c.problem("%s.matchExpressions[%d]: key %q with operator %q and %d values makes no sense", where, i, e.Key, e.Operator, len(e.Values))
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

// Endpoint is what counts of a pod.
func Endpoint(pod *corev1.Pod) *policy.Endpoint {
	e := &policy.Endpoint{
		Namespace: pod.Namespace, Name: pod.Name, UID: uidOf(pod), Labels: pod.Labels, Node: pod.Spec.NodeName,
		HostNetwork: pod.Spec.HostNetwork, Terminating: pod.DeletionTimestamp != nil, CreatedAt: pod.CreationTimestamp.Unix(),
		Finished: pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed,
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
	for i := range pod.Spec.Containers {
		addPorts(e, &pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			addPorts(e, c)
		}
	}
	return e
}

// uidOf is the UID by which the pod's kubelet, and so netplugin, knows it. Of a static pod the API server has a mirror pod with a UID of its own, another one
// whenever the kubelet makes it anew; the kubelet's is an annotation, which does not change. Whoever may create pods may write it: it counts for nothing but
// the pod's own name.
func uidOf(pod *corev1.Pod) string {
	return cmp.Or(pod.Annotations[corev1.MirrorPodAnnotationKey], string(pod.UID))
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

// addPorts leaves out what cannot be: a name then stands for nothing there.
func addPorts(e *policy.Endpoint, c *corev1.Container) {
	for _, p := range c.Ports {
		proto, ok := policy.TCP, true
		if p.Protocol != "" {
			proto, ok = protocolOf(&p.Protocol)
		}
		if !ok || p.Name == "" || p.ContainerPort < 1 || p.ContainerPort > 65535 {
			continue
		}
		if n := (policy.NamedPort{Name: p.Name, Protocol: proto, Number: uint16(p.ContainerPort)}); !slices.Contains(e.Ports, n) {
			e.Ports = append(e.Ports, n)
		}
	}
}

// Namespace is what counts of a namespace.
func Namespace(ns *corev1.Namespace) policy.Namespace {
	return policy.Namespace{Name: ns.Name, Labels: ns.Labels}
}

// Node is what other nodes need to know.
func Node(n *corev1.Node) policy.NodeInfo {
	out := policy.NodeInfo{Name: n.Name}
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
