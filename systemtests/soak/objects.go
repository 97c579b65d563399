// Package soak makes random histories of a cluster's namespaces, pods, labels and policies, and says of any packet
// whether the policies let it pass. It is pure: the same seed gives the same history, and the verdicts depend on the
// objects alone. Package live plays a history on a cluster and compares.
//
// The verdicts come straight from the Kubernetes objects, by code that shares nothing with the product: what both get
// wrong, both must have got wrong by themselves.
package soak

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Ports are those on which every pod (but those of the host's network) answers, over TCP and UDP; nodes and the host outside do on all but ServiceTarget.
var Ports = []int{80, 81, 443, 5000, 8080}

// ServicePort leads to ServiceTarget of the pod behind a Service, over TCP and UDP.
const (
	ServicePort   = 8000
	ServiceTarget = 80
)

// Namespace has labels, without the one that Kubernetes adds (NameLabel).
type Namespace struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
}

// NameLabel is the label of a namespace with its name.
const NameLabel = "kubernetes.io/metadata.name"

// NamedPort is a name that a pod gives to one of its ports; Protocol is TCP or UDP.
type NamedPort struct {
	Name     string `json:"name"`
	Protocol string `json:"protocol"`
	Number   int    `json:"containerPort"`
}

// Pod is a pod to run.
type Pod struct {
	Namespace   string            `json:"namespace"`
	Name        string            `json:"name"`
	Node        string            `json:"node"`
	Labels      map[string]string `json:"labels,omitempty"`
	Named       []NamedPort       `json:"named,omitempty"`
	HostNetwork bool              `json:"hostNetwork,omitempty"`
}

// ID is namespace/name.
func (p Pod) ID() string { return p.Namespace + "/" + p.Name }

// Expression is one of a selector's matchExpressions.
type Expression struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values,omitempty"`
}

// Selector is a label selector.
type Selector struct {
	MatchLabels      map[string]string `json:"matchLabels,omitempty"`
	MatchExpressions []Expression      `json:"matchExpressions,omitempty"`
}

// Block is an ipBlock. In a history its CIDRs may be symbolic (see Symbol), because no history knows which addresses pods get.
type Block struct {
	CIDR   string   `json:"cidr"`
	Except []string `json:"except,omitempty"`
}

// Peer is an entry of from or to.
type Peer struct {
	NamespaceSelector *Selector `json:"namespaceSelector,omitempty"`
	PodSelector       *Selector `json:"podSelector,omitempty"`
	IPBlock           *Block    `json:"ipBlock,omitempty"`
}

// Port is an entry of ports: Port is nil, an int or a string.
type Port struct {
	Protocol string `json:"protocol,omitempty"`
	Port     any    `json:"port,omitempty"`
	EndPort  int    `json:"endPort,omitempty"`
}

// Rule is an entry of ingress (From) or egress (To). A pointer to an empty list is written as such, nil is left out.
type Rule struct {
	From  *[]Peer `json:"from,omitempty"`
	To    *[]Peer `json:"to,omitempty"`
	Ports *[]Port `json:"ports,omitempty"`
}

// Spec is that of a NetworkPolicy.
type Spec struct {
	PodSelector Selector `json:"podSelector"`
	PolicyTypes []string `json:"policyTypes,omitempty"`
	Ingress     []Rule   `json:"ingress,omitempty"`
	Egress      []Rule   `json:"egress,omitempty"`
}

// Policy is a NetworkPolicy.
type Policy struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// DryRun has the policy in a dry run: no verdict is of it.
	DryRun bool `json:"audit,omitempty"`
	Spec   Spec `json:"spec"`
}

// Annotations are those of the object.
func (p Policy) Annotations() map[string]string {
	if !p.DryRun {
		return nil
	}
	return map[string]string{"flowkeep.io/enforcement": "audit"}
}

// ID is namespace/name.
func (p Policy) ID() string { return p.Namespace + "/" + p.Name }

// Symbol is a CIDR of so many bits around an address that is known only when the policy is made: of is "pod:NAMESPACE/NAME",
// "node:NAME" or "outside".
func Symbol(of string, family, bits int) string { return fmt.Sprintf("@%s@%d/%d", of, family, bits) }

// Addresses gives the address of what a Symbol is around, in one family (4 or 6).
type Addresses func(of string, family int) (netip.Addr, error)

// Resolve gives the policy with its symbols replaced.
func (p Policy) Resolve(lookup Addresses) (Policy, error) {
	p.Spec.Ingress, p.Spec.Egress = slices.Clone(p.Spec.Ingress), slices.Clone(p.Spec.Egress)
	for _, rules := range [][]Rule{p.Spec.Ingress, p.Spec.Egress} {
		for i := range rules {
			for _, peers := range []**[]Peer{&rules[i].From, &rules[i].To} {
				if err := resolvePeers(peers, lookup); err != nil {
					return p, fmt.Errorf("policy %s: %w", p.ID(), err)
				}
			}
		}
	}
	return p, nil
}

func resolvePeers(list **[]Peer, lookup Addresses) error {
	if *list == nil {
		return nil
	}
	peers := slices.Clone(**list)
	*list = &peers
	for i, peer := range peers {
		if peer.IPBlock == nil {
			continue
		}
		b := Block{}
		var err error
		if b.CIDR, err = resolveCIDR(peer.IPBlock.CIDR, lookup); err != nil {
			return err
		}
		for _, e := range peer.IPBlock.Except {
			text, err := resolveCIDR(e, lookup)
			if err != nil {
				return err
			}
			b.Except = append(b.Except, text)
		}
		peers[i].IPBlock = &b
	}
	return nil
}

func resolveCIDR(text string, lookup Addresses) (string, error) {
	symbol, ok := strings.CutPrefix(text, "@")
	if !ok {
		return text, nil
	}
	of, rest, _ := strings.Cut(symbol, "@")
	var family, bits int
	if _, err := fmt.Sscanf(rest, "%d/%d", &family, &bits); err != nil {
		return "", fmt.Errorf("symbol %q: %w", text, err)
	}
	addr, err := lookup(of, family)
	if err != nil {
		return "", fmt.Errorf("symbol %q: %w", text, err)
	}
	prefix, err := addr.Prefix(bits)
	return prefix.String(), err
}

// State is what there is after some changes. Policies are as the changes have them.
type State struct {
	Namespaces map[string]Namespace
	Pods       map[string]Pod
	Policies   map[string]Policy
}

// NewState is empty.
func NewState() *State {
	return &State{Namespaces: map[string]Namespace{}, Pods: map[string]Pod{}, Policies: map[string]Policy{}}
}

// Clone shares the values, which nobody changes.
func (s *State) Clone() *State {
	return &State{Namespaces: maps.Clone(s.Namespaces), Pods: maps.Clone(s.Pods), Policies: maps.Clone(s.Policies)}
}

// Change is one step: what is not nil or empty is done. A pod or namespace that is there already gets the new labels, or, with
// Anew, is deleted and made again under the same name; a namespace loses its pods and policies by that.
type Change struct {
	Namespace    *Namespace `json:"namespace,omitempty"`
	Pod          *Pod       `json:"pod,omitempty"`
	Policy       *Policy    `json:"policy,omitempty"`
	Anew         bool       `json:"anew,omitempty"`
	DeletePod    string     `json:"deletePod,omitempty"`
	Forced       bool       `json:"forced,omitempty"` // the pod is deleted without grace
	DeletePolicy string     `json:"deletePolicy,omitempty"`
	Restart      string     `json:"restart,omitempty"` // a process is killed and started again
}

func (c Change) String() string {
	text, err := json.Marshal(c)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Apply changes the state.
func (s *State) Apply(c Change) {
	if c.Namespace != nil {
		if c.Anew {
			s.empty(c.Namespace.Name)
		}
		s.Namespaces[c.Namespace.Name] = *c.Namespace
	}
	if c.Pod != nil {
		s.Pods[c.Pod.ID()] = *c.Pod
	}
	if c.Policy != nil {
		s.Policies[c.Policy.ID()] = *c.Policy
	}
	delete(s.Pods, c.DeletePod)
	delete(s.Policies, c.DeletePolicy)
}

func (s *State) empty(namespace string) {
	maps.DeleteFunc(s.Pods, func(_ string, p Pod) bool { return p.Namespace == namespace })
	maps.DeleteFunc(s.Policies, func(_ string, p Policy) bool { return p.Namespace == namespace })
}
