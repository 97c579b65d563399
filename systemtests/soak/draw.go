package soak

// The parts of a policy, as a history draws them.

func (h *History) spec() Spec {
	s := Spec{PodSelector: h.selector()}
	ingress, egress := h.chance(75), h.chance(50)
	switch {
	case ingress && egress:
		s.PolicyTypes = []string{"Ingress", "Egress"}
	case egress:
		s.PolicyTypes = []string{"Egress"}
	case h.chance(50):
		s.PolicyTypes = []string{"Ingress"}
	}
	if ingress || s.PolicyTypes == nil {
		s.Ingress = h.rules(true)
	}
	if egress {
		s.Egress = h.rules(false)
		if len(s.Egress) > 0 && ingress && h.chance(50) {
			s.PolicyTypes = nil // means both, because there is egress
		}
	}
	return s
}

func (h *History) rules(ingress bool) (list []Rule) {
	for range h.IntN(4) {
		list = append(list, h.rule(ingress))
	}
	return list
}

func (h *History) rule(ingress bool) Rule {
	var peers *[]Peer
	if !h.chance(12) {
		peers = &[]Peer{}
		for range h.IntN(4) {
			*peers = append(*peers, h.peer())
		}
	}
	var ports *[]Port
	if !h.chance(35) {
		ports = &[]Port{}
		for range h.IntN(4) {
			*ports = append(*ports, h.port())
		}
	}
	if ingress {
		return Rule{From: peers, Ports: ports}
	}
	return Rule{To: peers, Ports: ports}
}

func (h *History) selector() Selector {
	var s Selector
	for range h.IntN(3) {
		if h.chance(40) {
			if s.MatchLabels == nil {
				s.MatchLabels = map[string]string{}
			}
			s.MatchLabels[h.pick(labelKeys)] = h.pick(values)
			continue
		}
		e := Expression{Key: h.pick(labelKeys), Operator: h.pick([]string{"In", "NotIn", "Exists", "DoesNotExist"})}
		if e.Operator == "In" || e.Operator == "NotIn" {
			for range 1 + h.IntN(2) {
				e.Values = append(e.Values, h.pick(values))
			}
		}
		s.MatchExpressions = append(s.MatchExpressions, e)
	}
	return s
}

func (h *History) peer() Peer {
	ns, pods := h.selector(), h.selector()
	if h.chance(20) {
		ns = Selector{MatchLabels: map[string]string{NameLabel: h.pick(NamespaceNames)}}
	}
	switch h.IntN(5) {
	case 0:
		return Peer{IPBlock: h.block()}
	case 1:
		return Peer{PodSelector: &pods}
	case 2:
		return Peer{NamespaceSelector: &ns}
	case 3:
		return Peer{NamespaceSelector: &ns, PodSelector: &pods}
	}
	return Peer{IPBlock: h.block()}
}

// block is around a pod, a node or the host outside, or all of a family; its excepts are within it.
func (h *History) block() *Block {
	family, length := 4, 32
	if h.chance(45) {
		family, length = 6, 128
	}
	around := h.place()
	bits := length - []int{0, 0, 1, 2, 3, 8}[h.IntN(6)]
	if !h.chance(45) {
		b := &Block{CIDR: Symbol(around, family, bits)}
		if bits < length && h.chance(50) {
			b.Except = []string{Symbol(around, family, bits+1+h.IntN(length-bits))}
		}
		return b
	}
	b := &Block{CIDR: map[int]string{4: "0.0.0.0/0", 6: "::/0"}[family]}
	for range h.IntN(4) {
		b.Except = append(b.Except, Symbol(h.place(), family, length-h.IntN(6)))
	}
	return b
}

func (h *History) place() string {
	switch h.IntN(10) {
	case 0:
		return "outside"
	case 1:
		return "node:" + h.pick(nodes)
	}
	return "pod:" + h.pick(h.pods())
}

func (h *History) port() Port {
	p := Port{Protocol: []string{"", "TCP", "UDP", "UDP", "SCTP"}[h.IntN(5)]}
	switch h.IntN(6) {
	case 0:
		p.Port = h.pick([]string{"web", "dns", "dns", "nobody"})
	case 1: // the whole protocol
	case 2, 3:
		p.Port = Ports[h.IntN(len(Ports))]
	case 4:
		first := Ports[h.IntN(len(Ports))] - h.IntN(3)
		p.Port, p.EndPort = first, first+h.IntN(5)
	case 5:
		first := 1 + h.IntN(9000)
		p.Port, p.EndPort = first, first+h.IntN(65536-first)
	}
	return p
}
