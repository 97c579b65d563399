package soak

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// View is all that a verdict depends on. The policies' symbols are resolved.
type View struct {
	*State
	PodIPs  map[string][]netip.Addr // by ID; of pods of the host's network: their node's
	NodeIPs map[string][]netip.Addr // by name
}

// Packet is the first of a connection, to where it really goes: behind a Service, the pod.
type Packet struct {
	From, To netip.Addr
	FromNode string // set where a node sends, by itself or a pod of its network
	Protocol string // TCP, UDP, ICMP
	Port     int
}

// Verdict says whether a packet may pass and, in a sentence for each end, why.
type Verdict struct {
	Allowed bool
	Why     string
}

// Judge says what NetworkPolicy says: both ends must allow; no policy stands between a pod and itself or its node.
func (v *View) Judge(p Packet) Verdict {
	from, to := v.owner(p.From), v.owner(p.To)
	switch {
	case from != nil && to != nil && from.ID() == to.ID():
		return Verdict{true, "a pod reaches itself"}
	case to != nil && p.FromNode == to.Node:
		return Verdict{true, "a node reaches its own pods"}
	}
	out, why := v.side(from, p, false)
	in, whyIn := v.side(to, p, true)
	return Verdict{out && in, "egress: " + why + "; ingress: " + whyIn}
}

// owner is the pod that has the address for itself.
func (v *View) owner(a netip.Addr) *Pod {
	for id, pod := range v.Pods {
		if !pod.HostNetwork && slices.Contains(v.PodIPs[id], a) {
			return &pod
		}
	}
	return nil
}

func (v *View) side(pod *Pod, p Packet, ingress bool) (allowed bool, why string) {
	if pod == nil {
		return true, "no pod"
	}
	var isolated, by []string
	for id, pol := range v.Policies {
		if pol.DryRun || pol.Namespace != pod.Namespace || !pol.Spec.isolates(ingress) || !pol.Spec.PodSelector.matches(pod.Labels) {
			continue
		}
		isolated = append(isolated, id)
		rules := pol.Spec.Egress
		if ingress {
			rules = pol.Spec.Ingress
		}
		for i, r := range rules {
			if v.allows(pol.Namespace, r, p, ingress) {
				by = append(by, fmt.Sprintf("%s[%d]", id, i))
			}
		}
	}
	if len(isolated) == 0 {
		return true, pod.ID() + " is not isolated"
	}
	slices.Sort(isolated)
	slices.Sort(by)
	why = fmt.Sprintf("%s is isolated by %s", pod.ID(), strings.Join(isolated, ", "))
	if len(by) > 0 {
		return true, why + ", allowed by " + strings.Join(by, ", ")
	}
	return false, why + ", and no rule allows it"
}

func (s *Spec) isolates(ingress bool) bool {
	if len(s.PolicyTypes) == 0 {
		return ingress || len(s.Egress) > 0
	}
	return slices.Contains(s.PolicyTypes, map[bool]string{true: "Ingress", false: "Egress"}[ingress])
}

func (v *View) allows(namespace string, r Rule, p Packet, ingress bool) bool {
	peers, other := r.To, p.To
	if ingress {
		peers, other = r.From, p.From
	}
	if peers == nil || len(*peers) == 0 {
		return v.portAllowed(r.Ports, p, true)
	}
	for _, peer := range *peers {
		// a port's name belongs to pods that were chosen by labels: as the way out to a block of addresses it means nothing
		named := ingress || peer.IPBlock == nil
		if v.isPeer(namespace, peer, other) && v.portAllowed(r.Ports, p, named) {
			return true
		}
	}
	return false
}

func (v *View) isPeer(namespace string, peer Peer, a netip.Addr) bool {
	if peer.IPBlock != nil {
		return peer.IPBlock.contains(a)
	}
	pod := v.owner(a)
	if pod == nil {
		return false
	}
	if peer.NamespaceSelector == nil {
		return pod.Namespace == namespace && peer.PodSelector.matches(pod.Labels)
	}
	labels := map[string]string{NameLabel: pod.Namespace}
	for k, value := range v.Namespaces[pod.Namespace].Labels {
		labels[k] = value
	}
	return peer.NamespaceSelector.matches(labels) && (peer.PodSelector == nil || peer.PodSelector.matches(pod.Labels))
}

func (b *Block) contains(a netip.Addr) bool {
	if !netip.MustParsePrefix(b.CIDR).Contains(a) {
		return false
	}
	return !slices.ContainsFunc(b.Except, func(e string) bool { return netip.MustParsePrefix(e).Contains(a) })
}

func (v *View) portAllowed(ports *[]Port, p Packet, named bool) bool {
	if ports == nil || len(*ports) == 0 {
		return true
	}
	return slices.ContainsFunc(*ports, func(entry Port) bool {
		proto := entry.Protocol
		if proto == "" {
			proto = "TCP"
		}
		if proto != p.Protocol {
			return false
		}
		switch port := entry.Port.(type) {
		case nil:
			return true
		case string:
			return named && v.hasPort(p, port)
		case int:
			return port <= p.Port && p.Port <= max(port, entry.EndPort)
		}
		return false
	})
}

// hasPort tells whether the pod that the packet goes to calls this port so.
func (v *View) hasPort(p Packet, name string) bool {
	pod := v.owner(p.To)
	return pod != nil && slices.Contains(pod.Named, NamedPort{name, p.Protocol, p.Port})
}

func (s *Selector) matches(labels map[string]string) bool {
	for k, want := range s.MatchLabels {
		if have, ok := labels[k]; !ok || have != want {
			return false
		}
	}
	return !slices.ContainsFunc(s.MatchExpressions, func(e Expression) bool { return !e.matches(labels) })
}

func (e Expression) matches(labels map[string]string) bool {
	value, has := labels[e.Key]
	switch e.Operator {
	case "In":
		return has && slices.Contains(e.Values, value)
	case "NotIn":
		return !has || !slices.Contains(e.Values, value)
	case "Exists":
		return has
	case "DoesNotExist":
		return !has
	}
	return false
}
