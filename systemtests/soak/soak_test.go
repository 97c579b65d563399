package soak

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

func TestTheSameSeedHasTheSameHistory(t *testing.T) {
	for seed := range uint64(20) {
		a, b := Changes(seed, 300), Changes(seed, 400)
		if !reflect.DeepEqual(a, b[:300]) {
			t.Fatalf("seed %d: two histories", seed)
		}
	}
	if reflect.DeepEqual(Changes(1, 30), Changes(2, 30)) {
		t.Error("two seeds have one history")
	}
}

// Nothing may be asked of the cluster that the API server would refuse, and nothing may be left out.
func TestHistoriesAreSensible(t *testing.T) {
	kinds := map[string]int{}
	for seed := range uint64(30) {
		s := NewState()
		for i, c := range Changes(seed, 300) {
			kinds[kindOf(t, s, c)]++
			if c.Policy != nil {
				checkPolicy(t, s, *c.Policy)
			}
			s.Apply(c)
			if len(s.Pods) > mostPods || i > 20 && len(s.Pods) == 0 {
				t.Fatalf("seed %d, change %d: %d pods", seed, i, len(s.Pods))
			}
		}
	}
	for _, kind := range []string{"new namespace", "relabelled namespace", "namespace anew", "new pod", "relabelled pod", "pod anew", "pod deleted", "new policy", "edited policy", "policy deleted", "restart"} {
		if kinds[kind] == 0 {
			t.Errorf("no %s in all histories", kind)
		}
	}
}

// kindOf fails for a change of what is not there.
func kindOf(t *testing.T, s *State, c Change) string {
	t.Helper()
	name := func(what string, exists bool) string {
		switch {
		case c.Anew && exists:
			return what + " anew"
		case exists && what == "policy":
			return "edited policy"
		case exists:
			return "relabelled " + what
		}
		return "new " + what
	}
	has := func(ok bool) {
		if !ok {
			t.Errorf("%v is not there", c)
		}
	}
	switch {
	case c.Namespace != nil:
		_, exists := s.Namespaces[c.Namespace.Name]
		return name("namespace", exists)
	case c.Pod != nil:
		_, exists := s.Pods[c.Pod.ID()]
		return name("pod", exists)
	case c.Policy != nil:
		_, exists := s.Policies[c.Policy.ID()]
		return name("policy", exists)
	case c.DeletePod != "":
		_, exists := s.Pods[c.DeletePod]
		has(exists)
		return "pod deleted"
	case c.DeletePolicy != "":
		_, exists := s.Policies[c.DeletePolicy]
		has(exists)
		return "policy deleted"
	}
	return "restart"
}

func checkPolicy(t *testing.T, s *State, p Policy) {
	t.Helper()
	resolved, err := p.Resolve(addresses(s).lookup)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range slices.Concat(resolved.Spec.Ingress, resolved.Spec.Egress) {
		for _, list := range []*[]Peer{r.From, r.To} {
			if list == nil {
				continue
			}
			for _, peer := range *list {
				if peer.IPBlock != nil {
					checkBlock(t, *peer.IPBlock)
				} else if peer.PodSelector == nil && peer.NamespaceSelector == nil {
					t.Errorf("%v: an empty peer", p)
				}
			}
		}
		if r.Ports == nil {
			continue
		}
		for _, port := range *r.Ports {
			first, numbered := port.Port.(int)
			if port.EndPort != 0 && (!numbered || port.EndPort < first || port.EndPort > 65535) || numbered && first < 1 {
				t.Errorf("%v: port %v", p, port)
			}
		}
	}
}

func checkBlock(t *testing.T, b Block) {
	t.Helper()
	outer, err := netip.ParsePrefix(b.CIDR)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range b.Except {
		inner, err := netip.ParsePrefix(text)
		if err != nil || inner.Bits() <= outer.Bits() || !outer.Contains(inner.Addr()) {
			t.Errorf("%v is not within %v (%v)", text, outer, err)
		}
	}
}

// book gives every pod an address of each family, like a node's.
type book map[string][]netip.Addr

func addresses(s *State) book {
	b := book{"outside": {netip.MustParseAddr("172.31.1.10"), netip.MustParseAddr("fd00:172:31:1::10")}}
	for i, node := range nodes {
		b["node:"+node] = []netip.Addr{netip.AddrFrom4([4]byte{172, 31, 1, byte(11 + i)}), netip.MustParseAddr(fmt.Sprintf("fd00:172:31:1::%d", 11+i))}
	}
	n := 1
	for _, ns := range NamespaceNames {
		for _, name := range PodNames {
			n++
			at := slices.Index(nodes, s.Pods[ns+"/"+name].Node) + 1
			b["pod:"+ns+"/"+name] = []netip.Addr{netip.AddrFrom4([4]byte{10, 244, byte(at), byte(n)}), netip.MustParseAddr(fmt.Sprintf("fd00:10:244:%d::%x", at, n))}
		}
	}
	return b
}

func (b book) lookup(of string, family int) (netip.Addr, error) {
	list, ok := b[of]
	if !ok {
		return netip.Addr{}, fmt.Errorf("no %s", of)
	}
	return list[family/6], nil
}

// Two oracles that know nothing of each other, over random histories: this package's, from the Kubernetes objects, and
// policydb/policy's, from what the product makes of them.
func TestTheOraclesAgree(t *testing.T) {
	allowed, denied := 0, 0
	for seed := range uint64(40) {
		rng, s := rand.New(rand.NewPCG(seed, 1)), NewState()
		for _, c := range Changes(seed, 120) {
			if c.Policy != nil {
				resolved, err := c.Policy.Resolve(addresses(s).lookup)
				if err != nil {
					t.Fatal(err)
				}
				c.Policy = &resolved
			}
			s.Apply(c)
			b := addresses(s)
			v := &View{State: s, PodIPs: map[string][]netip.Addr{}}
			for id := range s.Pods {
				v.PodIPs[id] = b["pod:"+id]
			}
			w := convert(v)
			for range 12 {
				p := draw(rng, b)
				ours, theirs := v.Judge(p), policy.Allowed(w, policy.Packet{From: p.From, To: p.To, Protocol: protocols[p.Protocol], Port: uint16(p.Port)})
				if ours.Allowed != theirs.Allowed {
					t.Fatalf("seed %d: %v: %+v here, %+v there", seed, p, ours, theirs)
				}
				if ours.Allowed {
					allowed++
				} else {
					denied++
				}
			}
		}
	}
	if allowed < 1000 || denied < 1000 {
		t.Errorf("%d packets allowed, %d denied: too few to mean anything", allowed, denied)
	}
}

var protocols = map[string]policy.Protocol{"": policy.TCP, "TCP": policy.TCP, "UDP": policy.UDP, "SCTP": policy.SCTP}

func draw(rng *rand.Rand, b book) Packet {
	var keys []string
	for k := range b {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	family := rng.IntN(2)
	return Packet{From: b[keys[rng.IntN(len(keys))]][family], To: b[keys[rng.IntN(len(keys))]][family],
		Protocol: []string{"TCP", "UDP"}[rng.IntN(2)], Port: Ports[rng.IntN(len(Ports))]}
}

func convert(v *View) *policy.World {
	w := &policy.World{}
	for _, ns := range v.Namespaces {
		labels := map[string]string{NameLabel: ns.Name}
		for k, value := range ns.Labels {
			labels[k] = value
		}
		w.Namespaces = append(w.Namespaces, policy.Namespace{Name: ns.Name, Labels: labels})
	}
	for id, pod := range v.Pods {
		e := &policy.Endpoint{Namespace: pod.Namespace, Name: pod.Name, Labels: pod.Labels, Addresses: v.PodIPs[id], HostNetwork: pod.HostNetwork}
		for _, n := range pod.Named {
			e.Ports = append(e.Ports, policy.NamedPort{Name: n.Name, Protocol: protocols[n.Protocol], Number: uint16(n.Number)})
		}
		w.Endpoints = append(w.Endpoints, e)
	}
	for _, pol := range v.Policies {
		w.Policies = append(w.Policies, convertPolicy(pol))
	}
	return w
}

func convertPolicy(pol Policy) *policy.Policy {
	p := &policy.Policy{Namespace: pol.Namespace, Name: pol.Name, DryRun: pol.DryRun, AppliedTo: *convertSelector(&pol.Spec.PodSelector),
		IsolatesIngress: pol.Spec.isolates(true), IsolatesEgress: pol.Spec.isolates(false)}
	for _, r := range pol.Spec.Ingress {
		p.Ingress = append(p.Ingress, convertRule(r.From, r.Ports))
	}
	for _, r := range pol.Spec.Egress {
		p.Egress = append(p.Egress, convertRule(r.To, r.Ports))
	}
	return p
}

func convertRule(peers *[]Peer, ports *[]Port) policy.PolicyRule {
	r := policy.PolicyRule{AnyPeer: peers == nil || len(*peers) == 0, AnyPort: ports == nil || len(*ports) == 0}
	if !r.AnyPeer {
		for _, peer := range *peers {
			out := policy.Peer{Namespaces: convertSelector(peer.NamespaceSelector), Pods: convertSelector(peer.PodSelector)}
			if peer.IPBlock != nil {
				out.Block = &policy.IPBlock{CIDR: netip.MustParsePrefix(peer.IPBlock.CIDR)}
				for _, e := range peer.IPBlock.Except {
					out.Block.Except = append(out.Block.Except, netip.MustParsePrefix(e).Masked())
				}
			}
			r.Peers = append(r.Peers, out)
		}
	}
	if !r.AnyPort {
		for _, port := range *ports {
			out := policy.PolicyPort{Protocol: protocols[port.Protocol], Last: 65535}
			switch n := port.Port.(type) {
			case string:
				out = policy.PolicyPort{Protocol: out.Protocol, Name: n}
			case int:
				out.First, out.Last = uint16(n), uint16(max(n, port.EndPort))
			}
			r.Ports = append(r.Ports, out)
		}
	}
	return r
}

func convertSelector(s *Selector) *policy.Selector {
	if s == nil {
		return nil
	}
	operators := map[string]policy.Operator{"In": policy.In, "NotIn": policy.NotIn, "Exists": policy.Exists, "DoesNotExist": policy.DoesNotExist}
	out := &policy.Selector{}
	for k, value := range s.MatchLabels {
		out.Requirements = append(out.Requirements, policy.Requirement{Key: k, Operator: policy.In, Values: []string{value}})
	}
	for _, e := range s.MatchExpressions {
		out.Requirements = append(out.Requirements, policy.Requirement{Key: e.Key, Operator: operators[e.Operator], Values: e.Values})
	}
	return out
}
