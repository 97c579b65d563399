package query

import (
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// sampler draws packets that pass a node. The same seed draws the same packets as long as pods, policies and nodes
// do not change. Pods take turns, and so do the rules of a pod.
type sampler struct {
	scene *scene
	node  string
	seed  uint64
	pods  []*policy.Endpoint // attached to the node, in the order of their turns
	rules map[*policy.Endpoint][]podRule
	ports []port         // of policies and pods, and a few others
	cidrs []netip.Prefix // of ipBlocks and their exceptions
	drawn map[policy.Packet]int

	noPeer  map[peerQuery]struct{} // peer queries without a result
	scanned int                    // pods scanned for rules' peers
}

// peerQuery is a search for a rule's peer of a family. The pod is nil if the result is the same for every pod.
type peerQuery struct {
	rule *policy.PolicyRule
	pod  *policy.Endpoint
	six  bool
}

// podRule is a rule of a policy that isolates a pod in a direction.
type podRule struct {
	policy    *policy.Policy
	direction policy.Direction
	rule      *policy.PolicyRule
}

type port struct {
	protocol policy.Protocol
	number   uint16
}

// sample is a packet with the expected verdict of the node's switch.
type sample struct {
	number             int
	packet             policy.Packet
	verdict            policy.Verdict
	atSource, atTarget bool // the end is a pod of the node
	allowed            bool
}

// commonPorts are drawn in addition to those of policies.
var commonPorts = []port{
	{policy.TCP, 80},
	{policy.TCP, 443},
	{policy.UDP, 53},
	{policy.SCTP, 3868},
	{policy.TCP, 1},
	{policy.UDP, 65535},
}

// maxDrawn limits the ports and CIDRs that are drawn from, and the pods that are scanned for a rule's peer.
const maxDrawn = 4096

func newSampler(sc *scene, node string, seed uint64) *sampler {
	h := fnv.New64a()
	_, _ = h.Write([]byte(node))
	s := &sampler{
		scene:  sc,
		node:   node,
		seed:   seed ^ h.Sum64(),
		ports:  slices.Clone(commonPorts),
		drawn:  map[policy.Packet]int{},
		rules:  map[*policy.Endpoint][]podRule{},
		noPeer: map[peerQuery]struct{}{},
	}
	spaces := map[string]bool{}
	for _, e := range sc.onNode[node] {
		if sc.mayBeDrawn(e) {
			s.pods, spaces[e.Namespace] = append(s.pods, e), true
		}
	}
	r := rand.New(rand.NewPCG(s.seed, 0))
	r.Shuffle(len(s.pods), func(i, j int) { s.pods[i], s.pods[j] = s.pods[j], s.pods[i] })
	for _, p := range sc.world.Policies {
		if spaces[p.Namespace] { // policies of other namespaces do not matter here
			s.learn(p.Ingress)
			s.learn(p.Egress)
		}
	}
	return s
}

// learn adds the ports and CIDRs of rules, and the adjacent ports.
func (s *sampler) learn(rules []policy.PolicyRule) {
	for i := range rules {
		for _, p := range rules[i].Ports {
			if len(s.ports) > maxDrawn || p.Name != "" {
				continue
			}
			for _, n := range []int{int(p.First), int(p.Last), int(p.First) - 1, int(p.Last) + 1} {
				if n > 0 && n <= 65535 {
					s.ports = append(s.ports, port{p.Protocol, uint16(n)})
				}
			}
		}
		for _, p := range rules[i].Peers {
			if p.Block != nil && len(s.cidrs) < maxDrawn {
				s.cidrs = append(append(s.cidrs, p.Block.CIDR), p.Block.Except...)
			}
		}
	}
}

// maxTries is the number of packets that are drawn to find one with the wanted verdict.
const maxTries = 16

// draw returns the sample with a number, if one can be drawn. Allowed and denied samples of a pod alternate where
// both are found. Duplicates are avoided if numbers are drawn in ascending order.
func (s *sampler) draw(number int) (out sample, ok bool) {
	if len(s.pods) == 0 {
		return sample{}, false
	}
	r := rand.New(rand.NewPCG(s.seed, uint64(number)+1))
	turn, place := number/len(s.pods), number%len(s.pods)
	pod, wanted := s.pods[place], (turn+place)%2 == 0
	var rule *podRule
	if rules := s.rulesOf(pod); wanted && len(rules) > 0 {
		rule = &rules[turn/2%len(rules)] // allowed samples are every other turn
	}
	for try := range maxTries {
		var p policy.Packet
		var drawn bool
		if rule != nil && try < maxTries/2 {
			p, drawn = s.through(r, pod, rule)
		} else {
			p, drawn = s.packet(r, pod)
		}
		if !drawn {
			continue
		}
		by, before := s.drawn[p]
		twice := before && by != number
		if ok && twice {
			continue
		}
		out, ok = s.judge(p), true
		if out.allowed == wanted && !twice {
			break
		}
	}
	if _, before := s.drawn[out.packet]; ok && !before {
		s.drawn[out.packet] = number
	}
	out.number = number
	return out, ok
}

// rulesOf returns the rules of the policies that isolate the pod.
func (s *sampler) rulesOf(pod *policy.Endpoint) []podRule {
	rules, known := s.rules[pod]
	if known {
		return rules
	}
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		for _, p := range s.scene.model.Isolating(d, pod) {
			list := explain.RulesOf(p, d)
			for i := range list {
				rules = append(rules, podRule{p, d, &list[i]})
			}
		}
	}
	s.rules[pod] = rules
	return rules
}

// through draws a packet that the rule allows at the pod. The policies of its other end may deny it.
func (s *sampler) through(r *rand.Rand, pod *policy.Endpoint, by *podRule) (p policy.Packet, ok bool) {
	own := pod.Addresses[r.IntN(len(pod.Addresses))]
	other := s.peer(r, pod, by, own.Is6())
	if !other.IsValid() || other == own || s.scene.model.Owner(other) == pod {
		return p, false
	}
	p.From, p.To = other, own
	if by.direction == policy.Egress {
		p.From, p.To = own, other
	}
	lets := s.scene.model.Part(by.policy, by.rule, by.direction, pod, other)
	if ranges, others := lets.Ranges(); len(ranges) > 0 && !others {
		of := ranges[r.IntN(len(ranges))]
		p.Protocol, p.Port = of.Protocol, of.First+uint16(r.IntN(int(of.Last)-int(of.First)+1))
		return p, true
	}
	p.Protocol, p.Port = s.port(r, s.scene.model.Owner(p.To), own.Is6())
	return p, lets.Contains(p.Protocol, p.Port)
}

// peer draws an address of the rule's peers: from an ipBlock, or of a random pod that the rule allows.
func (s *sampler) peer(r *rand.Rand, pod *policy.Endpoint, by *podRule, six bool) netip.Addr {
	if by.rule.AnyPeer || len(by.rule.Peers) == 0 {
		return s.other(r, pod, six)
	}
	if block := by.rule.Peers[r.IntN(len(by.rule.Peers))].Block; block != nil {
		return s.outside(randomIn(r, block.CIDR), six)
	}
	return s.podOf(r.IntN(len(s.scene.world.Endpoints)), pod, by, six)
}

// podOf returns the address of the first pod, from index first, that the rule allows. Searches without a result are
// remembered.
func (s *sampler) podOf(first int, pod *policy.Endpoint, by *podRule, six bool) netip.Addr {
	anywhere, here := peerQuery{by.rule, nil, six}, peerQuery{by.rule, pod, six}
	if has(s.noPeer, anywhere) || has(s.noPeer, here) {
		return netip.Addr{}
	}
	all, itself := s.scene.world.Endpoints, false
	for i := range min(len(all), maxDrawn) {
		e := all[(first+i)%len(all)]
		if !s.scene.mayBeDrawn(e) {
			continue
		}
		s.scanned++
		a := s.scene.model.AddressOf(e, six)
		switch lets := a.IsValid() && !s.scene.model.Part(by.policy, by.rule, by.direction, pod, a).IsNone(); {
		case lets && e != pod:
			return a
		case lets:
			itself = true
		}
	}
	if itself || by.namesPorts() {
		anywhere = here
	}
	s.noPeer[anywhere] = struct{}{}
	return netip.Addr{}
}

// namesPorts reports whether the rule has named ports of the pod itself.
func (by *podRule) namesPorts() bool {
	return by.direction == policy.Ingress &&
		slices.ContainsFunc(by.rule.Ports, func(p policy.PolicyPort) bool { return p.Name != "" })
}

func has[K comparable](set map[K]struct{}, k K) bool {
	_, ok := set[k]
	return ok
}

// judge evaluates a packet as the node's switch should: by the policies of the node's own pods. A node always
// reaches its own pods.
func (s *sampler) judge(p policy.Packet) sample {
	m := s.scene.model
	v := m.Judge(p)
	from, to := m.Owner(p.From), m.Owner(p.To)
	out := sample{
		packet:   p,
		verdict:  v,
		atSource: from != nil && from.Node == s.node,
		atTarget: to != nil && to.Node == s.node,
	}
	out.allowed = expected(&v, out.atSource, out.atTarget) || out.atTarget && isNodes(s.scene.infos, s.node, p.From)
	return out
}

// expected returns the verdict of the ends that are on the node.
func expected(v *policy.Verdict, atSource, atTarget bool) bool {
	return (!atSource || v.Egress.Allowed) && (!atTarget || v.Ingress.Allowed)
}

// packet draws a packet between the pod and any address.
func (s *sampler) packet(r *rand.Rand, pod *policy.Endpoint) (p policy.Packet, ok bool) {
	own := pod.Addresses[r.IntN(len(pod.Addresses))]
	incoming := r.IntN(2) == 0
	other := s.other(r, pod, own.Is6())
	if !other.IsValid() || other == own || s.scene.model.Owner(other) == pod {
		return p, false
	}
	p.From, p.To = own, other
	if incoming {
		p.From, p.To = other, own
	}
	p.Protocol, p.Port = s.port(r, s.scene.model.Owner(p.To), own.Is6())
	return p, true
}

// other draws an address: mostly of a pod, often in the same namespace; else of an ipBlock, a node or outside.
func (s *sampler) other(r *rand.Rand, pod *policy.Endpoint, six bool) netip.Addr {
	switch n := r.IntN(10); {
	case n < 3:
		return s.podAddress(r, s.scene.spaces[pod.Namespace], six)
	case n < 6:
		return s.podAddress(r, s.scene.world.Endpoints, six)
	case n < 8 && len(s.cidrs) > 0:
		return s.outside(randomIn(r, s.cidrs[r.IntN(len(s.cidrs))]), six)
	case n < 9:
		return s.nodeAddress(r, six)
	}
	return randomIn(r, worldBlocks[six])
}

// worldBlocks are documentation prefixes (RFC 5737, RFC 3849), by whether they are IPv6.
var worldBlocks = map[bool]netip.Prefix{
	false: netip.MustParsePrefix("198.51.100.0/24"),
	true:  netip.MustParsePrefix("2001:db8:1::/64"),
}

func (s *sampler) podAddress(r *rand.Rand, among []*policy.Endpoint, six bool) netip.Addr {
	e := among[r.IntN(len(among))]
	if !s.scene.mayBeDrawn(e) {
		return netip.Addr{}
	}
	i := slices.IndexFunc(e.Addresses, func(a netip.Addr) bool { return a.Is6() == six })
	if i < 0 {
		return netip.Addr{}
	}
	return e.Addresses[i]
}

// outside returns the address if packets can have it: not if it is special, of the other family, or unassigned in
// the cluster's networks.
func (s *sampler) outside(a netip.Addr, six bool) netip.Addr {
	special := a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() || a.IsLinkLocalUnicast() ||
		a == netip.AddrFrom4([4]byte{255, 255, 255, 255})
	if a.Is6() != six || special {
		return netip.Addr{}
	}
	if s.scene.model.Owner(a) != nil {
		return a
	}
	for i := range s.scene.infos {
		n := &s.scene.infos[i]
		if slices.Contains(n.Addresses, a) ||
			slices.ContainsFunc(n.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return netip.Addr{}
		}
	}
	return a
}

// nodeAddress draws an address of any node.
func (s *sampler) nodeAddress(r *rand.Rand, six bool) netip.Addr {
	if len(s.scene.infos) == 0 {
		return netip.Addr{}
	}
	n := &s.scene.infos[r.IntN(len(s.scene.infos))]
	for _, a := range n.Addresses {
		if a.Is6() == six {
			return a
		}
	}
	return netip.Addr{}
}

// port draws a port of policies or of the pod, or ICMP.
func (s *sampler) port(r *rand.Rand, to *policy.Endpoint, six bool) (policy.Protocol, uint16) {
	switch n := r.IntN(10); {
	case n == 0:
		if six {
			return icmpv6, 0
		}
		return icmp, 0
	case n < 4 && to != nil && len(to.Ports) > 0:
		p := to.Ports[r.IntN(len(to.Ports))]
		return p.Protocol, p.Number
	}
	p := s.ports[r.IntN(len(s.ports))]
	return p.protocol, p.number
}

// randomIn returns a random address of the prefix.
func randomIn(r *rand.Rand, p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := range b {
		keep := min(max(p.Bits()-8*i, 0), 8)
		b[i] |= byte(r.Uint32()) & (0xff >> keep)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// scene is an immutable copy of the cluster state at one revision.
type scene struct {
	revision  uint64
	world     *policy.World
	model     *explain.Model
	infos     []policy.NodeInfo
	spaces    map[string][]*policy.Endpoint // by namespace
	onNode    map[string][]*policy.Endpoint
	contested map[netip.Addr]bool
	stands    map[string]stand // by node name, at this revision
}

func newScene(revision uint64, w *policy.World, infos []policy.NodeInfo) *scene {
	sc := &scene{
		revision:  revision,
		world:     w,
		model:     explain.NewModel(w),
		infos:     infos,
		spaces:    map[string][]*policy.Endpoint{},
		onNode:    map[string][]*policy.Endpoint{},
		contested: map[netip.Addr]bool{},
	}
	holder := map[netip.Addr]*policy.Endpoint{}
	for _, e := range w.Endpoints {
		sc.spaces[e.Namespace] = append(sc.spaces[e.Namespace], e)
		sc.onNode[e.Node] = append(sc.onNode[e.Node], e)
		if e.HostNetwork || e.Finished {
			continue
		}
		for _, a := range e.Addresses {
			if holder[a] != nil {
				sc.contested[a] = true
			}
			holder[a] = e
		}
	}
	for i := range infos { // the switch does not treat a node's address as a pod's
		for _, a := range infos[i].Addresses {
			sc.contested[a] = true
		}
	}
	return sc
}

// mayBeDrawn reports whether the pod has addresses that only it holds.
func (sc *scene) mayBeDrawn(e *policy.Endpoint) bool {
	return !e.HostNetwork && !e.Finished && len(e.Addresses) > 0 &&
		!slices.ContainsFunc(e.Addresses, func(a netip.Addr) bool { return sc.contested[a] })
}

// hasPod reports whether an address belongs to a pod that may be drawn.
func (sc *scene) hasPod(a netip.Addr) bool {
	e := sc.model.Owner(a)
	return e != nil && sc.mayBeDrawn(e)
}

// name returns the pod or node with an address, or the address.
func (sc *scene) name(a netip.Addr) string {
	if e := sc.model.Owner(a); e != nil {
		return e.ID()
	}
	for i := range sc.infos {
		if isNodes(sc.infos, sc.infos[i].Name, a) {
			return "node " + sc.infos[i].Name
		}
	}
	return a.String()
}
