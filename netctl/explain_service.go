package main

import (
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/spf13/cobra"
)

// printService tells who is behind each port that was asked for, before the ways to them are explained.
func printService(w io.Writer, s *inspect.ServiceWay, proof, wide bool) {
	for i := range s.Ports {
		p := &s.Ports[i]
		fmt.Fprintf(w, "%s: %s\n", serviceText(s, p), serviceVerdict(p))
		if len(p.Backends) > 0 {
			printBackends(w, p)
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

// serviceVerdict is of the backends that are chosen from: any of them may be.
func serviceVerdict(p *inspect.ServicePort) string {
	used, allowed, open := 0, 0, 0
	for i := range p.Backends {
		switch b := &p.Backends[i]; {
		case b.Way < 0:
			continue
		case b.Allowed:
			allowed++
		case b.NotEnforced:
			open++
		}
		used++
	}
	switch {
	case open > 0:
		return fmt.Sprintf("policies allow %d of %s and deny the others; not enforced at those not wired by "+
			"Flowkeep: %d", allowed, plural(used, "backend", "backends"), open)
	case p.Refused != "":
		return "NOBODY ANSWERS: " + oneLine.Replace(p.Refused)
	case allowed == used:
		return "ALLOWED"
	case allowed == 0:
		return "DENIED"
	}
	return fmt.Sprintf("ALLOWED to %d of %s, DENIED to the others", allowed, plural(used, "backend", "backends"))
}

func printBackends(w io.Writer, p *inspect.ServicePort) {
	var rows [][]string
	for i := range p.Backends {
		b := &p.Backends[i]
		says := dash(b.Unused)
		if b.Way >= 0 {
			says = fmt.Sprintf("%s (%d)", verdict(b.Allowed), b.Way+1)
			if b.NotEnforced {
				says += ", not enforced: not wired by Flowkeep"
			}
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

// servicesAnswered tells of Services at which somebody would answer.
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

// completeServices are asked for only where somebody has begun to write one.
func completeServices(o *options, prefix string) cobra.CompletionFunc {
	return complete(o, 2, inspect.AskServices, func(list []inspect.ServiceName) (names []string) {
		for i := range list {
			names = append(names, prefix+list[i].Namespace+"/"+list[i].Name)
		}
		return names
	})
}
