package main

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/spf13/cobra"
)

// printService prints the backends and the verdict of each port of a Service.
func printService(w io.Writer, s *inspect.ServiceWay, ways []inspect.Way, proof, wide bool) {
	for i := range s.Ports {
		p := &s.Ports[i]
		fmt.Fprintf(w, "%s: %s\n", serviceText(s, p), oneLine.Replace(serviceVerdict(p, ways)))
		if len(p.Backends) > 0 {
			printBackends(w, p, ways)
		}
		for j := range p.Traces {
			printServiceTrace(w, &p.Traces[j], proof, wide)
		}
	}
	if s.TranslatedBy == inspect.TranslatedByKubeProxy {
		fmt.Fprintln(w, "  kube-proxy of the source's node translates it")
	}
	for _, note := range s.Notes {
		fmt.Fprintf(w, "  - %s\n", oneLine.Replace(note))
	}
}

func serviceText(s *inspect.ServiceWay, p *inspect.ServicePort) string {
	kind := s.Type
	if s.Headless {
		kind = "headless"
	}
	text := fmt.Sprintf("Service %s (%s) port %s", s.ID(), strings.Join(append([]string{kind}, addressTexts(s)...), ", "), strings.TrimSpace(fmt.Sprintf("%s %s/%d", p.Name, p.Protocol, p.Port)))
	if s.Node != "" {
		text += fmt.Sprintf(", by port %d of %s", p.NodePort, s.Node)
	}
	if p.Target != "" {
		text += " → targetPort " + p.Target
	}
	return text
}

func addressTexts(s *inspect.ServiceWay) (out []string) {
	for _, a := range s.Addresses {
		out = append(out, a.String())
	}
	return out
}

// serviceVerdict returns the verdict on the backends that are chosen from: any of them may be. Caveats are those of
// their ways.
func serviceVerdict(p *inspect.ServicePort, ways []inspect.Way) string {
	used, allowed := 0, 0
	var caveats []string
	for i := range p.Backends {
		b := &p.Backends[i]
		if b.Way < 0 {
			continue
		}
		if used++; b.Allowed {
			allowed++
		}
		for _, c := range ways[b.Way].Caveats() {
			if !slices.Contains(caveats, c) {
				caveats = append(caveats, c)
			}
		}
	}
	switch {
	case p.Refused != "":
		return "NOBODY ANSWERS: " + p.Refused
	case len(caveats) > 0:
		return allowedText(allowed, used) + "; " + caveatsText(caveats)
	case allowed == used:
		return "ALLOWED"
	case allowed == 0:
		return "DENIED"
	}
	return fmt.Sprintf("ALLOWED to %d of %s, DENIED to the others", allowed, plural(used, "backend", "backends"))
}

// allowedText returns what policies say to the backends of a Service.
func allowedText(allowed, used int) string {
	switch allowed {
	case used:
		return "policies allow it"
	case 0:
		return "policies deny it"
	}
	return fmt.Sprintf("policies allow %d of %s and deny the others", allowed, plural(used, "backend", "backends"))
}

// maxCaveats limits the caveats of a Service in one line.
const maxCaveats = 2

func caveatsText(caveats []string) string {
	text := strings.Join(caveats[:min(len(caveats), maxCaveats)], "; ")
	if more := len(caveats) - maxCaveats; more > 0 {
		text += "; and for " + plural(more, "more reason", "more reasons")
	}
	return text
}

func printBackends(w io.Writer, p *inspect.ServicePort, ways []inspect.Way) {
	var rows [][]string
	for i := range p.Backends {
		b := &p.Backends[i]
		says := dash(b.Unused)
		if b.Way >= 0 {
			says = fmt.Sprintf("%s (%d)", ways[b.Way].ByPolicies(), b.Way+1)
		} else if b.Unused == "" {
			says = "not of a family that the source has"
		}
		rows = append(rows, []string{"", dash(b.Pod), dash(b.Node), netip.AddrPortFrom(b.Address, b.Port).String(), b.State, oneLine.Replace(says)})
	}
	table(w, []string{"", "BACKEND", "NODE", "TRANSLATED TO", "STATE", "VERDICT"}, rows)
}

// printServiceTrace prints where a switch leads packets to an address of a Service.
func printServiceTrace(w io.Writer, t *inspect.ServiceTrace, proof, wide bool) {
	fmt.Fprintf(w, "  Open vSwitch of %s: %s: %s\n", t.Node, netip.AddrPortFrom(t.Packet.To, t.Packet.Port),
		oneLine.Replace(ledText(t)))
	if proof {
		printSteps(w, t.Steps, wide)
	}
}

// maxLed is how many endpoints ledText names.
const maxLed = 8

// ledText returns where a switch leads packets to a Service.
func ledText(t *inspect.ServiceTrace) string {
	switch {
	case t.Problem != "":
		return "no proof: " + t.Problem
	case t.Outcome != inspect.ServiceTranslated:
		return t.Outcome
	case t.Endpoint.IsValid():
		return "translated to " + t.Endpoint.String()
	}
	slots := 0
	for i := range t.Endpoints {
		slots += t.Endpoints[i].Slots
	}
	var out []string
	for i := range t.Endpoints[:min(len(t.Endpoints), maxLed)] {
		out = append(out, fmt.Sprintf("%s (%d/%d)", t.Endpoints[i].Endpoint, t.Endpoints[i].Slots, slots))
	}
	text := "translated to one of " + strings.Join(out, ", ")
	if more := len(t.Endpoints) - len(out); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// servicesAnswered reports whether no port of the Service is refused.
func servicesAnswered(s *inspect.ServiceWay) bool {
	if s == nil {
		return true
	}
	for i := range s.Ports {
		if s.Ports[i].Refused != "" {
			return false
		}
	}
	return true
}

// completeServices completes Services once the user has typed their prefix.
func completeServices(o *options, prefix string) cobra.CompletionFunc {
	return complete(o, 2, inspect.AskServices, func(list []inspect.ServiceName) (names []string) {
		for i := range list {
			names = append(names, prefix+list[i].Namespace+"/"+list[i].Name)
		}
		return names
	})
}
