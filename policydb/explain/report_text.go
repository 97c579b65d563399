package explain

import "github.com/flowkeep/flowkeep/policydb/policy"

// String returns the entry as text: "pods app=web of namespaces team=x", "ipBlock 10.0.0.0/8 except 10.1.0.0/16".
func (r PeerReport) String() string { return peerText(&r.Peer) }

func peerText(p *policy.Peer) string {
	switch {
	case p.Block != nil:
		return blockText(p.Block)
	case p.Namespaces == nil && p.Pods == nil:
		return "nothing"
	case p.Namespaces == nil:
		return "pods " + p.Pods.String()
	case p.Pods == nil:
		return "namespaces " + p.Namespaces.String()
	}
	return "pods " + p.Pods.String() + " of namespaces " + p.Namespaces.String()
}

func blockText(b *policy.IPBlock) string {
	text := "ipBlock " + b.CIDR.String()
	for i, except := range b.Except {
		if i == 0 {
			text += " except "
		} else {
			text += ","
		}
		text += except.String()
	}
	return text
}

// String returns the entry as "TCP/80", "TCP/8000-8010", "TCP/http", or "TCP" for all ports.
func (r PortReport) String() string {
	pp := r.Port
	switch {
	case pp.Name != "":
		return pp.Protocol.String() + "/" + pp.Name
	case pp.First == 0 && pp.Last == lastPort:
		return pp.Protocol.String()
	}
	return pp.Protocol.String() + "/" + span{pp.First, pp.Last}.String()
}
