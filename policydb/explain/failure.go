package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// PeerFailureKind is in what a peer doesn't match the other end.
type PeerFailureKind string

// Kinds of failures of a peer.
const (
	PodLabel         PeerFailureKind = "podLabel"         // the pod's label doesn't meet the requirement
	NamespaceLabel   PeerFailureKind = "namespaceLabel"   // nor its namespace's
	OtherNamespace   PeerFailureKind = "otherNamespace"   // the peer means pods of the policy's own namespace
	UnknownNamespace PeerFailureKind = "unknownNamespace" // of the pod's namespace nothing is known
	// selectors choose pods only, and those only that have an address of their own
	NotAPod          PeerFailureKind = "notAPod"
	NotInBlock       PeerFailureKind = "notInBlock"       // the address is not in the ipBlock's CIDR
	Excepted         PeerFailureKind = "excepted"         // it is, but one of except has it
	LabelsOverBudget PeerFailureKind = "labelsOverBudget" // the pod's labels are left out: no selector chooses it
	EmptyPeer        PeerFailureKind = "emptyPeer"        // the entry has neither selectors nor ipBlock
)

// PeerFailure is one thing that keeps a peer from matching.
type PeerFailure struct {
	Kind PeerFailureKind `json:"kind"`
	// Subject is the pod (namespace/name), the namespace or the address that fails.
	Subject string `json:"subject"`
	// Requirement is what a label fails; Has is the label's value, nil where the label is absent.
	Requirement *policy.Requirement `json:"requirement,omitempty"`
	Has         *string             `json:"has,omitempty"`
	// Wanted is the namespace, for OtherNamespace.
	Wanted string `json:"wanted,omitempty"`
	// Block is the CIDR that doesn't contain the address, or the except that does.
	Block netip.Prefix `json:"block,omitzero"`
}

// String returns a sentence without a full stop.
func (f PeerFailure) String() string {
	switch f.Kind {
	case PodLabel:
		return "pod " + f.Subject + f.labelText()
	case NamespaceLabel:
		return "namespace " + f.Subject + f.labelText()
	case OtherNamespace:
		return fmt.Sprintf("pod %s is not in namespace %s", f.Subject, f.Wanted)
	case UnknownNamespace:
		return "namespace " + f.Subject + " is not known"
	case NotAPod:
		return f.Subject + " is no pod's own address, and selectors choose pods"
	case LabelsOverBudget:
		return "the labels of pod " + f.Subject + " are over the budget, and no selector chooses it"
	case NotInBlock:
		return fmt.Sprintf("%s is not in %s", f.Subject, f.Block)
	case Excepted:
		return fmt.Sprintf("%s is in %s, which is excepted", f.Subject, f.Block)
	}
	return "the entry has neither selectors nor ipBlock, and matches nothing"
}

func (f PeerFailure) labelText() string {
	has := " has no label " + f.Requirement.Key
	if f.Has != nil {
		has = " has " + f.Requirement.Key + "=" + *f.Has
	}
	return has + ", wanted: " + f.Requirement.String()
}

// peerFailures returns all reasons why the peer does not match the other end, or none if it matches.
func (v *view) peerFailures(pol *policy.Policy, peer *policy.Peer) []PeerFailure {
	address := v.other.addr.String()
	switch {
	case peer.Block != nil:
		return blockFailures(peer.Block, v.other.addr)
	case peer.Namespaces == nil && peer.Pods == nil:
		return []PeerFailure{{Kind: EmptyPeer, Subject: address}}
	case v.other.pod == nil:
		return []PeerFailure{{Kind: NotAPod, Subject: address}}
	}
	failures := v.namespaceFailures(pol, peer)
	if v.other.pod.LabelsLeftOut > 0 {
		failures = append(failures, PeerFailure{Kind: LabelsOverBudget, Subject: v.other.pod.ID()})
	} else if peer.Pods != nil {
		failures = append(failures, labelFailures(PodLabel, v.other.pod.ID(), peer.Pods, v.other.pod.Labels)...)
	}
	return failures
}

func (v *view) namespaceFailures(pol *policy.Policy, peer *policy.Peer) []PeerFailure {
	pod := v.other.pod
	if peer.Namespaces == nil {
		if pod.Namespace != pol.Namespace {
			return []PeerFailure{{Kind: OtherNamespace, Subject: pod.ID(), Wanted: pol.Namespace}}
		}
		return nil
	}
	ns := v.m.namespaces[pod.Namespace]
	if ns == nil {
		return []PeerFailure{{Kind: UnknownNamespace, Subject: pod.Namespace}}
	}
	return labelFailures(NamespaceLabel, ns.Name, peer.Namespaces, ns.Labels)
}

func blockFailures(b *policy.IPBlock, a netip.Addr) []PeerFailure {
	if !b.CIDR.Contains(a) {
		return []PeerFailure{{Kind: NotInBlock, Subject: a.String(), Block: b.CIDR}}
	}
	for _, except := range b.Except {
		if except.Contains(a) {
			return []PeerFailure{{Kind: Excepted, Subject: a.String(), Block: except}}
		}
	}
	return nil
}

func labelFailures(
	kind PeerFailureKind, subject string, s *policy.Selector, labels map[string]string,
) (failures []PeerFailure) {
	for i := range s.Requirements {
		r := &s.Requirements[i]
		if meets(r, labels) {
			continue
		}
		f := PeerFailure{Kind: kind, Subject: subject, Requirement: r}
		if value, has := labels[r.Key]; has {
			f.Has = &value
		}
		failures = append(failures, f)
	}
	return failures
}

func meets(r *policy.Requirement, labels map[string]string) bool {
	s := policy.Selector{Requirements: []policy.Requirement{*r}}
	return s.Matches(labels)
}

// PortFailureKind is in what an entry of ports doesn't match the packet.
type PortFailureKind string

// Kinds of failures of a port.
const (
	OtherProtocol PortFailureKind = "otherProtocol" // the entry speaks of another protocol
	OtherPort     PortFailureKind = "otherPort"     // the packet's port is another number
	// the pod that the packet goes to has no port of that name and protocol
	NoSuchName    PortFailureKind = "noSuchName"
	OtherNumber   PortFailureKind = "otherNumber"   // it has, with other numbers
	NameOfNoPod   PortFailureKind = "nameOfNoPod"   // the packet goes to no pod, and names are pods'
	NameWithBlock PortFailureKind = "nameWithBlock" // egress to what only an ipBlock chose: a name means nothing there
)

// PortFailure is why an entry of ports doesn't match.
type PortFailure struct {
	Kind PortFailureKind `json:"kind"`
	// Protocol and Port are what the packet has.
	Protocol policy.Protocol `json:"protocol"`
	Port     uint16          `json:"port"`
	// Name is the port's in the rule, Pod the one that the packet goes to, Numbers what the name stands for there.
	Name    string   `json:"name,omitempty"`
	Pod     string   `json:"pod,omitempty"`
	Numbers []uint16 `json:"numbers,omitempty"`
}

// String returns a sentence without a full stop.
func (f PortFailure) String() string {
	switch f.Kind {
	case OtherProtocol, OtherPort:
		return "the packet has " + portText(f.Protocol, f.Port)
	case NoSuchName:
		return fmt.Sprintf("pod %s has no port named %s/%s", f.Pod, f.Protocol, f.Name)
	case OtherNumber:
		return fmt.Sprintf("on pod %s the port %s is %s, the packet has %s", f.Pod, f.Name,
			numbersText(f.Protocol, f.Numbers), portText(f.Protocol, f.Port))
	case NameOfNoPod:
		return fmt.Sprintf("%s is a pod's port name, and the packet goes to no pod", f.Name)
	}
	return fmt.Sprintf("%s is a port's name, which means nothing to an ipBlock", f.Name)
}

func portText(p policy.Protocol, port uint16) string {
	if !hasPorts(p) {
		return p.String()
	}
	return p.String() + "/" + strconv.Itoa(int(port))
}

func hasPorts(p policy.Protocol) bool { return p == policy.TCP || p == policy.UDP || p == policy.SCTP }

func numbersText(p policy.Protocol, numbers []uint16) string {
	texts := make([]string, len(numbers))
	for i, n := range numbers {
		texts[i] = strconv.Itoa(int(n))
	}
	return p.String() + "/" + strings.Join(texts, ",")
}

// portFailure returns nil if the entry matches. If names is false, named ports never match.
func (v *view) portFailure(pp policy.PolicyPort, names bool) *PortFailure {
	to := v.to()
	if portMatches(pp, names, to, v.packet) {
		return nil
	}
	f := &PortFailure{Protocol: v.packet.Protocol, Port: v.packet.Port, Name: pp.Name}
	if to != nil {
		f.Pod = to.ID()
	}
	f.Kind, f.Numbers = portFailureKind(pp, names, to, v.packet.Protocol)
	return f
}

func portFailureKind(
	pp policy.PolicyPort, names bool, to *policy.Endpoint, p policy.Protocol,
) (PortFailureKind, []uint16) {
	numbers := numbersOf(pp, to)
	switch {
	case pp.Protocol != p:
		return OtherProtocol, nil
	case pp.Name == "":
		return OtherPort, nil
	case !names:
		return NameWithBlock, nil
	case to == nil:
		return NameOfNoPod, nil
	case len(numbers) == 0:
		return NoSuchName, nil
	}
	return OtherNumber, numbers
}

// numbersOf returns the numbers that a pod declares for a named port, sorted.
func numbersOf(pp policy.PolicyPort, to *policy.Endpoint) (numbers []uint16) {
	if to == nil || pp.Name == "" {
		return nil
	}
	for _, named := range to.Ports {
		if named.Name == pp.Name && named.Protocol == pp.Protocol {
			numbers = append(numbers, named.Number)
		}
	}
	slices.Sort(numbers)
	return slices.Compact(numbers)
}
