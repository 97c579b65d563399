package explain

import "fmt"

// Nearest is the rule that takes the least to allow a packet which a side denies.
type Nearest struct {
	Policy string `json:"policy"` // namespace/name
	Rule   int    `json:"rule"`   // -1: none of its rules could, or it has none
	// Failed is the condition of the rule that is not met, Remedy the smallest change that would allow the packet:
	// sentences without a full stop.
	Failed string `json:"failed"`
	Remedy string `json:"remedy"`
}

// Nearest returns the rule that comes closest to allowing the packet; ok is false if the side allows it.
func (s *Side) Nearest(direction string) (n Nearest, ok bool) {
	if s.Allowed || len(s.Policies) == 0 || len(s.Remedies) == 0 {
		return n, false
	}
	remedy := &s.Remedies[0]
	n = Nearest{
		Policy: s.Policies[0].Policy,
		Rule:   -1,
		Failed: "no " + direction + " rule of it can allow this",
		Remedy: remedy.String(),
	}
	if len(s.Policies[0].Rules) == 0 {
		n.Failed = "it has no " + direction + " rules"
	}
	if remedy.Rule == nil {
		return n, true
	}
	for i := range s.Policies {
		if p := &s.Policies[i]; p.Policy == remedy.Rule.Policy && remedy.Rule.Rule < len(p.Rules) {
			n.Policy, n.Rule, n.Failed = p.Policy, remedy.Rule.Rule, p.Rules[remedy.Rule.Rule].failed()
		}
	}
	return n, true
}

// failed describes why the closest peer does not match, and why no port matches.
func (r *RuleReport) failed() string {
	peer, ports := r.failedPeer(), r.failedPorts()
	switch {
	case peer != "" && ports != "":
		return peer + "; " + ports
	case peer != "":
		return peer
	case ports != "":
		return ports
	}
	return "its named ports mean nothing to its ipBlocks"
}

func (r *RuleReport) failedPeer() string {
	if r.AnyPeer {
		return ""
	}
	var nearest *PeerReport
	for i := range r.Peers {
		switch p := &r.Peers[i]; {
		case p.Matches:
			return ""
		case nearest == nil || len(p.Failures) < len(nearest.Failures):
			nearest = p
		}
	}
	if nearest == nil {
		return "all of its peers were refused"
	}
	text := nearest.Failures[0].String()
	for _, f := range nearest.Failures[1:] {
		text += ", " + f.String()
	}
	return text
}

func (r *RuleReport) failedPorts() string {
	if r.AnyPort {
		return ""
	}
	for i := range r.Ports {
		if r.Ports[i].Matches {
			return ""
		}
	}
	if len(r.Ports) == 0 {
		return "all of its ports were refused"
	}
	text := fmt.Sprintf("it allows port %s", r.Ports[0])
	if more := len(r.Ports) - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text + ": " + r.Ports[0].Failure.String()
}
