// Package policy is the semantics of NetworkPolicy as pure values and functions: what goes into the engine (Policy,
// Endpoint, Namespace), what comes out of it (Rule, groups, Changes), and Allowed, the slow and obvious oracle that
// everything else is compared with.
package policy

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
)

// Key identifies a rule or a group by its content: the first 16 bytes of the SHA-256 of its canonical form. Equal
// content has an equal key on every replica and after every restart.
type Key [16]byte

func (k Key) String() string { return hex.EncodeToString(k[:]) }

// MarshalText and UnmarshalText give Key its hexadecimal form in JSON and YAML.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText fails on anything but 32 hexadecimal digits.
func (k *Key) UnmarshalText(text []byte) error {
	if len(text) != 2*len(k) {
		return fmt.Errorf("key %q: want %d hexadecimal digits", text, 2*len(k))
	}
	_, err := hex.Decode(k[:], text)
	return err
}

// Direction is the side of the appliedTo endpoints that a rule speaks of.
type Direction uint8

// Directions.
const (
	Ingress Direction = iota + 1
	Egress
)

func (d Direction) String() string {
	switch d {
	case Ingress:
		return "ingress"
	case Egress:
		return "egress"
	}
	return fmt.Sprintf("direction(%d)", uint8(d))
}

// Protocol is an IANA protocol number.
type Protocol uint8

// Protocols a NetworkPolicy can name.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

func (p Protocol) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	}
	return fmt.Sprintf("protocol(%d)", uint8(p))
}

// Namespace is what enforcement needs of a Kubernetes Namespace.
type Namespace struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	// LabelsLeftOut is how many labels exceed the budget. The namespace is unknown then: no selector chooses it.
	LabelsLeftOut int `json:"-"`
}

// NamedPort is a container port that has a name. A name has one number a protocol: of several of a pod, the first.
type NamedPort struct {
	Name     string   `json:"name"`
	Protocol Protocol `json:"protocol"`
	Number   uint16   `json:"number"`
}

// Endpoint is what enforcement needs of a Pod. Values are immutable once handed on.
type Endpoint struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// UID is the UID that the pod's kubelet has. It distinguishes a pod from a later one of the same name.
	UID    string            `json:"uid,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	// Node is spec.nodeName; empty while the pod is not scheduled.
	Node string `json:"node,omitempty"`
	// Addresses are the pod's IPs, at most one a family, unmapped (netip.Addr.Unmap).
	Addresses []netip.Addr `json:"addresses,omitempty"`
	Ports     []NamedPort  `json:"ports,omitempty"`
	// LabelsLeftOut is how many labels are over a budget. None of the pod's labels is in Labels then, no selector
	// chooses the pod, and IsolateOverBudget isolates it.
	LabelsLeftOut int `json:"labelsLeftOut,omitempty"`
	// PortsLeftOut is how many named ports are over the budget of a pod, and not in Ports.
	PortsLeftOut int `json:"portsLeftOut,omitempty"`
	// HostNetwork pods share the node's address: they are neither targets nor peers.
	HostNetwork bool `json:"hostNetwork,omitempty"`
	// Finished pods (phase Succeeded or Failed) no longer own their addresses.
	Finished bool `json:"finished,omitempty"`
	// Terminating pods (deletionTimestamp set) keep their access until they are gone.
	Terminating bool `json:"terminating,omitempty"`
	// NoSandbox: the pod has no running sandbox (condition PodReadyToStartContainers), and Addresses are of an earlier
	// one. It has no part in any verdict.
	NoSandbox bool `json:"noSandbox,omitempty"`
	// HasSandbox: the kubelet reports a running sandbox by the same condition. Neither is set for kubelets before 1.29.
	HasSandbox bool `json:"hasSandbox,omitempty"`
	// CreatedAt is metadata.creationTimestamp in Unix seconds.
	CreatedAt int64 `json:"createdAt,omitempty"`
	// NoPeer pods are isolated as others and match no peer's selectors: mirror pods, of which a kubelet chooses
	// namespace and labels.
	NoPeer bool `json:"noPeer,omitempty"`
}

// ID returns "namespace/name".
func (e *Endpoint) ID() string { return e.Namespace + "/" + e.Name }

// Operator is a label selector operator, as in metav1.LabelSelectorOperator.
type Operator uint8

// Operators.
const (
	In Operator = iota + 1
	NotIn
	Exists
	DoesNotExist
)

// Requirement is one clause of a selector.
type Requirement struct {
	Key      string   `json:"key"`
	Operator Operator `json:"operator"`
	Values   []string `json:"values,omitempty"`
}

// Selector is a conjunction of requirements; without any it selects everything. matchLabels become In with one value.
type Selector struct {
	Requirements []Requirement `json:"requirements,omitempty"`
}

// Peer is one entry of from or to: either Block, or selectors. A nil Namespaces means the policy's own namespace; a nil
// Pods means every pod of the chosen namespaces. An entry with neither matches nothing.
type Peer struct {
	Namespaces *Selector `json:"namespaces,omitempty"`
	Pods       *Selector `json:"pods,omitempty"`
	Block      *IPBlock  `json:"block,omitempty"`
}

// IPBlock is a CIDR (masked) without the ranges in Except.
type IPBlock struct {
	CIDR   netip.Prefix   `json:"cidr"`
	Except []netip.Prefix `json:"except,omitempty"`
}

// PolicyPort is one entry of ports as the user wrote it: Name, or First to Last (0 to 65535 where no port was given).
type PolicyPort struct {
	Protocol Protocol `json:"protocol"`
	Name     string   `json:"name,omitempty"`
	First    uint16   `json:"first"`
	Last     uint16   `json:"last"`
}

// PolicyRule is one entry of ingress or egress. AnyPeer: from/to absent or empty. AnyPort: ports absent or empty.
// Entries that could not be understood are left out of Peers and Ports, never widened: a rule whose every peer or port
// was refused has AnyPeer or AnyPort false and an empty list, which matches nothing.
type PolicyRule struct {
	AnyPeer bool         `json:"anyPeer,omitempty"`
	Peers   []Peer       `json:"peers,omitempty"`
	AnyPort bool         `json:"anyPort,omitempty"`
	Ports   []PolicyPort `json:"ports,omitempty"`
}

// Policy is a NetworkPolicy after defaulting and validation.
type Policy struct {
	Namespace  string   `json:"namespace"`
	Name       string   `json:"name"`
	UID        string   `json:"uid,omitempty"`
	Generation int64    `json:"generation,omitempty"`
	AppliedTo  Selector `json:"appliedTo"`
	// CreatedAt is metadata.creationTimestamp in Unix seconds.
	CreatedAt int64 `json:"createdAt,omitempty"`
	// IsolatesIngress and IsolatesEgress are policyTypes after defaulting.
	IsolatesIngress bool         `json:"isolatesIngress,omitempty"`
	IsolatesEgress  bool         `json:"isolatesEgress,omitempty"`
	Ingress         []PolicyRule `json:"ingress,omitempty"`
	Egress          []PolicyRule `json:"egress,omitempty"`
	// DryRun puts the policy in a dry run (annotation flowkeep.io/enforcement: dry-run): it changes no verdict, and
	// what it would have denied is counted and sampled (function DryRun).
	DryRun bool `json:"audit,omitempty"`
	// Copy is what the annotation fleet.flowkeep.io/copy says of a policy that a hub sent: which version of it this
	// is. It has no part in any verdict.
	Copy string `json:"copy,omitempty"`
	// Problems lists the rejected parts of the object, one sentence each.
	Problems []string `json:"problems,omitempty"`
}

// ID returns "namespace/name".
func (p *Policy) ID() string { return p.Namespace + "/" + p.Name }

// Modes are what the annotation flowkeep.io/enforcement of a policy can say.
const (
	ModeEnforce = "enforce"
	ModeDryRun  = "dry-run"
)

// Mode returns ModeDryRun for a policy in a dry run, else ModeEnforce.
func (p *Policy) Mode() string {
	if p.DryRun {
		return ModeDryRun
	}
	return ModeEnforce
}

// ProblemText returns a problem with its consequence: a rejected part of the spec allows nothing.
func ProblemText(problem string) string {
	if strings.HasPrefix(problem, "spec.") {
		return problem + "; this part allows nothing"
	}
	return problem
}

// PortRange is what a rule lets through: the ports First to Last, both included, of Protocol.
type PortRange struct {
	Protocol Protocol `json:"protocol"`
	First    uint16   `json:"first"`
	Last     uint16   `json:"last"`
}

// Origin names the place in a policy that a rule came from. Rule is the index in ingress or egress, or -1 for the
// isolation itself.
type Origin struct {
	Policy string `json:"policy"` // namespace/name
	Rule   int    `json:"rule"`
}

// Rule is a resolved rule: what a node needs to enforce. Its Key covers everything but Origins. Every rule isolates
// the endpoints of AppliedTo in Direction; one with neither AnyPeer, Peers nor Blocks lets nothing through (the
// isolation of a policy is such a rule). Values are immutable once handed on.
type Rule struct {
	Key       Key       `json:"key"`
	Direction Direction `json:"direction"`
	// AppliedTo is the key of an appliedTo group.
	AppliedTo Key `json:"appliedTo"`
	// AnyPeer lets every address through, of pods or not.
	AnyPeer bool `json:"anyPeer,omitempty"`
	// Peers are keys of peer groups; sorted.
	Peers  []Key     `json:"peers,omitempty"`
	Blocks []IPBlock `json:"blocks,omitempty"`
	// AnyPort lets every protocol through, ICMP included.
	AnyPort bool        `json:"anyPort,omitempty"`
	Ports   []PortRange `json:"ports,omitempty"`
	// DryRun is set for a rule of policies in a dry run: it neither isolates nor allows, and what it would do is
	// counted.
	DryRun  bool     `json:"audit,omitempty"`
	Origins []Origin `json:"origins,omitempty"`
}

// BriefOrigins is how many origins a brief rule has at most.
const BriefOrigins = 8

// Brief returns the rule with its first BriefOrigins origins, or the rule itself if it has no more. Nodes and the
// policy DB store only these: thousands of policies can share a rule, and each of them should not cost as much as all.
func (r *Rule) Brief() *Rule {
	if len(r.Origins) <= BriefOrigins {
		return r
	}
	brief := *r
	brief.Origins = r.Origins[:BriefOrigins:BriefOrigins]
	return &brief
}

// GroupKind is one of the two uses of a set of endpoints.
type GroupKind uint8

// Group kinds. A node holds the whole of a peer group it needs, but only its own members of an appliedTo group.
const (
	PeerGroup GroupKind = iota + 1
	AppliedToGroup
)

// ID returns the identity of a group of the kind.
func (k GroupKind) ID(key Key) GroupID { return GroupID{Kind: k, Key: key} }

// GroupID identifies a group.
type GroupID struct {
	Kind GroupKind
	Key  Key
}

// Changes is what one batch of events changed, as the feed needs it: immutable, and in the order of Revision.
type Changes struct {
	// Revision counts up by one a batch that changed anything.
	Revision uint64
	Rules    []RuleChange
	Groups   []GroupChange
	Nodes    []NodeChange
	// Settled are the announced endpoints (Endpoint.ID) whose groups are all in this or an earlier revision.
	Settled []SettledEndpoint
}

// RuleChange puts or, with a nil Rule, removes a rule. With the same key only Origins can differ.
type RuleChange struct {
	Key  Key
	Rule *Rule
}

// GroupChange changes the members of a peer group. A group that is new has all its members in Added.
type GroupChange struct {
	Key     Key
	Added   []netip.Addr
	Removed []netip.Addr
	Gone    bool // no rule refers to the group any longer
}

// NodeChange changes what one node needs (its span) and its own members of appliedTo groups. A rule is in a node's span
// while its appliedTo group has members there; a peer group while a rule of the span refers to it.
type NodeChange struct {
	Node                    string
	AddRules, RemoveRules   []Key
	AddGroups, RemoveGroups []Key
	AppliedTo               []AppliedToChange
}

// AppliedToChange changes one node's members of an appliedTo group; with its last member it is Gone there.
type AppliedToChange struct {
	Key     Key
	Added   []netip.Addr
	Removed []netip.Addr
	Gone    bool
}

// SettledEndpoint says that what the node was sent up to the revision that carries it covers this endpoint.
type SettledEndpoint struct {
	Node string
	ID   string // namespace/name
	UID  string
}

// NodeUpdate is what takes one node from what it holds to Revision; it is applied whole or not at all.
type NodeUpdate struct {
	Revision uint64
	Rules    []RuleChange
	Groups   []GroupUpdate
	// Settled are the announced endpoints (Endpoint.ID) of this node that Revision covers.
	Settled []SettledEndpoint
}

// GroupUpdate changes one group on one node. With Replace, Added is the whole membership. A peer group that a node does
// not hold is empty.
type GroupUpdate struct {
	Key     Key
	Kind    GroupKind
	Replace bool
	Added   []netip.Addr
	Removed []netip.Addr
	Gone    bool
	// Alike are further peer groups, sorted: after the update they have the members that this one has then. Where Added
	// is all that changes, none of them loses a member.
	Alike []Key
}

// ID returns the identity of the group.
func (u *GroupUpdate) ID() GroupID { return u.Kind.ID(u.Key) }

// NodeInfo is what nodes need to know of each other to route between pods.
type NodeInfo struct {
	Name      string         `json:"name"`
	Addresses []netip.Addr   `json:"addresses"` // InternalIP, at most one a family
	PodCIDRs  []netip.Prefix `json:"podCIDRs"`
	// UID and CreatedAt (Unix seconds) are the Node object's; other nodes do not receive them.
	UID       string `json:"uid,omitempty"`
	CreatedAt int64  `json:"createdAt,omitempty"`
	// Zone is the label topology.kubernetes.io/zone; other nodes receive it with Services (docs/decisions/035).
	Zone string `json:"-"`
	// Links are what the node announced and netmaster granted; nil: unknown.
	Links *Links `json:"links,omitempty"`
	// Refused: an administrator has shut the node out; other nodes do not receive it.
	Refused bool `json:"refused,omitempty"`
}
