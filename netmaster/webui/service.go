package webui

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/api/inspect"
)

// servicePort is a port of the explained Service: its endpoints with their verdicts, and where switches translate
// packets to.
type servicePort struct {
	Title string `json:"title"`
	// Refused is why no packet reaches an endpoint, whatever policies allow.
	Refused  string    `json:"refused,omitempty"`
	Backends []backend `json:"backends"`
	// More is the number of endpoints that are not listed.
	More int `json:"more,omitempty"`
	// Led are sentences about the endpoints that Open vSwitch translates each address to.
	Led []string `json:"led,omitempty"`
}

type backend struct {
	Name    string `json:"name"`
	Node    string `json:"node,omitempty"`
	Address string `json:"address"`
	State   string `json:"state"`
	// Verdict is allowed or denied by policies; empty if no packet is sent there, for the reason in Why.
	Verdict string `json:"verdict,omitempty"`
	Why     string `json:"why,omitempty"`
	// Caveat and Unproved are those of the way to the endpoint.
	Caveat   string `json:"caveat,omitempty"`
	Unproved bool   `json:"unproved,omitempty"`
	// Share is the endpoint's share of new connections, as slots of all slots.
	Share string `json:"share,omitempty"`
}

// maxBackends limits the listed endpoints of a port.
const maxBackends = 200

func portsOf(s *inspect.ServiceWay, ways []inspect.Way) (out []servicePort) {
	for i := range s.Ports {
		in := &s.Ports[i]
		p := servicePort{
			Title:    strings.TrimSpace(fmt.Sprintf("%s %s/%d", in.Name, in.Protocol, in.Port)),
			Refused:  in.Refused,
			Backends: []backend{},
		}
		if in.Target != "" {
			p.Title += " → " + in.Target
		}
		shares := sharesOf(in.Traces)
		for j := range in.Backends {
			p.Backends = append(p.Backends, backendOf(&in.Backends[j], ways, shares))
		}
		if n := len(p.Backends) - maxBackends; n > 0 {
			p.Backends, p.More = p.Backends[:maxBackends], n
		}
		for j := range in.Traces {
			p.Led = append(p.Led, ledText(&in.Traces[j]))
		}
		if s.TranslatedBy == inspect.TranslatedByKubeProxy {
			p.Led = append(p.Led, "kube-proxy of the source's node translates it")
		}
		out = append(out, p)
	}
	return out
}

func backendOf(in *inspect.Backend, ways []inspect.Way, shares map[netip.AddrPort]string) backend {
	address := netip.AddrPortFrom(in.Address, in.Port)
	out := backend{
		Name:    in.Pod,
		Node:    in.Node,
		Address: address.String(),
		State:   in.State,
		Why:     in.Unused,
		Share:   shares[address],
	}
	if in.Way >= 0 {
		out.Caveat, out.Unproved = strings.Join(ways[in.Way].Caveats(), "; "), ways[in.Way].Unproved
	}
	switch {
	case in.Way >= 0 && in.Allowed:
		out.Verdict = "allowed"
	case in.Way >= 0:
		out.Verdict = "denied"
	case out.Why == "":
		out.Why = "not of a family that the source has"
	}
	return out
}

// sharesOf returns the part of new connections that each endpoint gets.
func sharesOf(traces []inspect.ServiceTrace) map[netip.AddrPort]string {
	out := map[netip.AddrPort]string{}
	for i := range traces {
		slots := slotsOf(&traces[i])
		for _, e := range traces[i].Endpoints {
			out[e.Endpoint] = fmt.Sprintf("%d/%d", e.Slots, slots)
		}
	}
	return out
}

func slotsOf(t *inspect.ServiceTrace) (slots int) {
	for i := range t.Endpoints {
		slots += t.Endpoints[i].Slots
	}
	return slots
}

// ledText describes where a switch translates packets for an address of a Service, and in which tables.
func ledText(t *inspect.ServiceTrace) string {
	to := t.Outcome
	switch {
	case t.Problem != "":
		to = "no proof: " + t.Problem
	case t.Outcome != inspect.ServiceTranslated:
	case t.Endpoint.IsValid():
		to += " to " + t.Endpoint.String()
	default:
		to += fmt.Sprintf(" to one of %s", count(len(t.Endpoints), "endpoint", "endpoints"))
	}
	var tables []string
	for i := range t.Steps {
		tables = append(tables, t.Steps[i].TableName)
	}
	text := fmt.Sprintf("Open vSwitch of %s: %s: %s", t.Node, netip.AddrPortFrom(t.Packet.To, t.Packet.Port), to)
	if len(tables) > 0 {
		text += ", by " + strings.Join(slices.Compact(tables), " → ")
	}
	return text
}
