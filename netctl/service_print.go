package main

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
)

func joined(list []netip.Addr) string {
	var out []string
	for _, a := range list {
		out = append(out, a.String())
	}
	return dash(strings.Join(out, ","))
}

func printServices(w io.Writer, list []inspect.ServedService, wide bool) {
	heading := []string{"NAMESPACE", "NAME", "TYPE", "CLUSTER-IPS", "FRONTENDS", "READY", "LEFT OUT"}
	if wide {
		heading = append(heading, "POLICIES", "AFFINITY", "PROBLEMS")
	}
	var rows [][]string
	for i := range list {
		s := &list[i]
		ready := fmt.Sprintf("%d/%d", s.ReadyCount, s.EndpointCount)
		if s.Unserved != "" {
			ready = "-"
		}
		row := []string{s.Namespace, s.Name, s.Type, joined(s.ClusterIPs), fmt.Sprint(s.FrontendCount), ready,
			omitted(s)}
		if wide {
			row = append(row, localPolicies(s), affinity(s), dash(oneLine.Replace(strings.Join(s.Problems, "; "))))
		}
		rows = append(rows, row)
	}
	table(w, heading, rows)
}

// omitted returns why a Service has no frontends, or how many parts of it are left out.
func omitted(s *inspect.ServedService) string {
	switch {
	case len(s.Problems) > 0 && s.Unserved != "":
		return "all"
	case len(s.Problems) > 0:
		return plural(len(s.Problems), "part", "parts")
	}
	reason, _, _ := strings.Cut(s.Unserved, ":")
	return dash(reason)
}

func localPolicies(s *inspect.ServedService) string {
	var out []string
	if s.InternalLocal {
		out = append(out, "internalTrafficPolicy: Local")
	}
	if s.ExternalLocal {
		out = append(out, "externalTrafficPolicy: Local")
	}
	return dash(strings.Join(out, ", "))
}

func affinity(s *inspect.ServedService) string {
	if s.AffinitySeconds == 0 {
		return "-"
	}
	return (time.Duration(s.AffinitySeconds) * time.Second).String()
}

func printServed(w io.Writer, s *inspect.ServedService, wide bool) {
	fmt.Fprintf(w, "%s/%s %s\n", s.Namespace, s.Name, s.Type)
	fmt.Fprintf(w, "policies   %s\naffinity   %s\n", localPolicies(s), affinity(s))
	if s.Unserved != "" {
		fmt.Fprintf(w, "frontends  none: %s\n", oneLine.Replace(s.Unserved))
	}
	for _, p := range s.Problems {
		fmt.Fprintf(w, "left out   %s\n", oneLine.Replace(p))
	}
	printPlace(w, s.At)
	if len(s.Frontends) > 0 {
		fmt.Fprintln(w)
		printFrontends(w, s)
	}
	if s.At == nil || wide {
		printServedEndpoints(w, s, wide)
	}
	printReports(w, s, wide)
}

func printPlace(w io.Writer, at *inspect.ServicePlace) {
	if at == nil {
		return
	}
	zone := "no zone"
	if at.Zone != "" {
		zone = "zone " + at.Zone
	}
	fmt.Fprintf(w, "pods on    %s, %s\n", at.Node, zone)
	if h := at.Holds; h != nil {
		fmt.Fprintf(w, "node holds %s, %s, %s\n", plural(h.Services, "Service", "Services"),
			plural(h.Slices, "EndpointSlice", "EndpointSlices"), plural(h.Endpoints, "endpoint", "endpoints"))
		if h.Problem != "" {
			fmt.Fprintf(w, "disk       %s\n", oneLine.Replace(h.Problem))
		}
	}
}

func frontendText(f *inspect.Frontend) string {
	address := "each node"
	if f.Address.IsValid() {
		address = f.Address.String()
	} else if f.Family == 6 {
		address = "each node, IPv6"
	}
	return fmt.Sprintf("%s %s/%d", address, f.Protocol, f.Port)
}

func printFrontends(w io.Writer, s *inspect.ServedService) {
	var rows [][]string
	for i := range s.Frontends {
		f := &s.Frontends[i]
		if s.At != nil {
			printChoice(w, f)
			continue
		}
		rows = append(rows, []string{frontendText(f), f.Kind, dash(f.PortName), clients(f)})
	}
	if s.At == nil {
		table(w, []string{"FRONTEND", "KIND", "NAME", "CLIENTS"}, rows)
	}
}

func clients(f *inspect.Frontend) string {
	var out []string
	for _, p := range f.Sources {
		out = append(out, p.String())
	}
	return cmp.Or(strings.Join(out, ","), "all")
}

// printChoice prints what a frontend leads the pods of a node to.
func printChoice(w io.Writer, f *inspect.Frontend) {
	name := strings.TrimSpace(frontendText(f) + " " + f.PortName)
	text := fmt.Sprintf("%s (%s): %s, %s", name, f.Kind, f.Outcome, f.Reason)
	if len(f.Sources) > 0 {
		text += "; of clients in " + clients(f)
	}
	fmt.Fprintln(w, oneLine.Replace(text))
	var rows [][]string
	for _, b := range f.Backends {
		rows = append(rows, []string{"", netip.AddrPortFrom(b.Address, b.Port).String(), dash(b.Pod), dash(b.Node),
			b.State, fmt.Sprintf("%d/%d", b.Slots, f.Slots)})
	}
	if len(rows) > 0 {
		table(w, []string{"", "ENDPOINT", "POD", "NODE", "STATE", "SLOTS"}, rows)
	}
}

// isCounted reports whether Open vSwitch of a node counts what its pods open.
func isCounted(n inspect.ServiceReport) bool { return n.TranslatedBy == inspect.TranslatedByOVS }

func printServedEndpoints(w io.Writer, s *inspect.ServedService, wide bool) {
	if len(s.Endpoints) == 0 {
		fmt.Fprintln(w, "\nno endpoints")
		return
	}
	heading := []string{"ENDPOINT", "NAME", "POD", "NODE", "STATE"}
	counted := slices.ContainsFunc(s.Nodes, isCounted)
	if counted {
		heading = append(heading, "OPENED")
	}
	if wide {
		heading = append(heading, "ZONE HINTS", "NODE HINTS")
	}
	var rows [][]string
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		row := []string{fmt.Sprintf("%s %s", netip.AddrPortFrom(e.Address, e.Port), e.Protocol), dash(e.PortName),
			dash(e.Pod), dash(e.Node), e.State}
		if counted {
			row = append(row, fmt.Sprint(e.Opened))
		}
		if wide {
			row = append(row, dash(strings.Join(e.ZoneHints, ",")), dash(strings.Join(e.NodeHints, ",")))
		}
		rows = append(rows, row)
	}
	fmt.Fprintln(w)
	table(w, heading, rows)
}

// maxReports is how many nodes that do the same as others are listed without -o wide.
const maxReports = 20

// printReports prints what nodes do with a Service. Nodes with nothing to say of themselves are summed up.
func printReports(w io.Writer, s *inspect.ServedService, wide bool) {
	if len(s.Nodes) == 0 {
		return
	}
	var rows [][]string
	left := 0
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if len(rows) >= maxReports && !wide && n.Problem == "" && len(n.Refused) == 0 {
			left++
			continue
		}
		opened, unserved := "-", "-"
		if isCounted(*n) {
			opened, unserved = fmt.Sprint(n.Opened), fmt.Sprint(n.Unserved)
		}
		rows = append(rows, []string{n.Node, cmp.Or(n.TranslatedBy, "unknown"), opened, unserved, reportText(s, n)})
	}
	fmt.Fprintln(w)
	table(w, []string{"NODE", "TRANSLATED BY", "OPENED", "UNSERVED", "REPORT"}, rows)
	if left > 0 {
		fmt.Fprintf(w, "and %s without anything to report: -o wide lists them\n", plural(left, "node", "nodes"))
	}
}

// reportText returns what is not as it should be on a node.
func reportText(s *inspect.ServedService, n *inspect.ServiceReport) string {
	var out []string
	if n.Problem != "" {
		out = append(out, n.Problem)
	}
	for _, r := range n.Refused {
		out = append(out, "not translated: "+r)
	}
	if n.TranslatedBy != "" && !n.Held && s.Unserved == "" {
		out = append(out, "the node does not hold the Service yet")
	}
	return dash(oneLine.Replace(strings.Join(out, "; ")))
}
