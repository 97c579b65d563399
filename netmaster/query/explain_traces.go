package query

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// prove queries switches for traces and compares these with the verdicts. It returns why the proof is incomplete.
func (s *sources) prove(ctx context.Context, ways []inspect.Way, from string) (problems []string) {
	packets, nodes := tracesWanted(ways, from)
	answers := make([]inspect.NodeTraces, len(nodes))
	errs := make([]error, len(nodes))
	reasons := map[string]string{} // why a node that responded has no trace of a packet
	var all sync.WaitGroup
	for i, node := range nodes {
		if n := len(packets[node]); n > inspect.MostTraces {
			problems = append(problems,
				fmt.Sprintf("node %s is queried for traces of only %d of %d packets", node, inspect.MostTraces, n))
			packets[node] = packets[node][:inspect.MostTraces]
			reasons[node] = fmt.Sprintf("it is queried for %d packets at most", inspect.MostTraces)
		}
		all.Go(func() {
			body, err := s.queryNode(ctx, node, inspect.NodeQuery{Kind: inspect.QueryTrace, Packets: packets[node]})
			if err == nil {
				err = json.Unmarshal(body, &answers[i])
			}
			errs[i] = err
		})
	}
	all.Wait()
	for i, node := range nodes {
		if errs[i] != nil {
			problems = append(problems, fmt.Sprintf("node %s gives no proof: %v", node, errs[i]))
			reasons[node] = ""
			continue
		}
		reasons[node] = cmp.Or(reasons[node], "it returned no trace of this packet")
		problems = append(problems, s.behind(node)...)
		for _, t := range answers[i].Traces {
			t.Node = node
			attach(ways, &t, from)
		}
	}
	for i := range ways {
		markNotProved(&ways[i], from, reasons)
	}
	return problems
}

// tracesWanted returns the packets to trace on each node of the ways, and the nodes, the source's first.
func tracesWanted(ways []inspect.Way, from string) (packets map[string][]policy.Packet, nodes []string) {
	packets = map[string][]policy.Packet{}
	for i := range ways {
		w := &ways[i]
		if w.Self {
			continue
		}
		for _, node := range proofNodes(w, from) {
			packets[node] = append(packets[node],
				policy.Packet{From: w.From.Address, To: w.To.Address, Protocol: w.Protocol, Port: w.Port})
			nodes = append(nodes, node)
		}
	}
	slices.SortStableFunc(nodes, func(a, b string) int { return order(a == from, b == from) })
	return packets, unique(nodes)
}

// order compares booleans: true comes first.
func order(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func unique[T comparable](list []T) (out []T) {
	for _, v := range list {
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

// sourceNode returns the node at which the packet leaves an attached pod; empty if it comes from elsewhere.
func sourceNode(w *inspect.Way, from string) string {
	if w.From.Kind == explain.Pod && w.IsEnforced(&w.From) {
		return from
	}
	return ""
}

// targetNode returns the node at which the packet reaches an attached pod; empty if it goes elsewhere.
func targetNode(w *inspect.Way) string {
	if w.To.Kind == explain.Pod && w.IsEnforced(&w.To) {
		return w.To.Node
	}
	return ""
}

// proofNodes returns the nodes whose traces prove a way.
func proofNodes(w *inspect.Way, from string) []string {
	nodes := slices.Compact([]string{sourceNode(w, from), targetNode(w)})
	return slices.DeleteFunc(nodes, func(node string) bool { return node == "" })
}

// markNotProved records which nodes of a way returned no trace, or one with a problem, given other reasons by node.
func markNotProved(w *inspect.Way, from string, reasons map[string]string) {
	if w.Self {
		return
	}
	for _, node := range proofNodes(w, from) {
		i := slices.IndexFunc(w.Traces, func(t inspect.Trace) bool { return t.Node == node })
		switch {
		case i < 0:
			w.NotProved = append(w.NotProved, inspect.NoProof{Node: node, Problem: reasons[node]})
		case w.Traces[i].Problem != "":
			w.NotProved = append(w.NotProved, inspect.NoProof{Node: node, Problem: w.Traces[i].Problem})
		}
	}
}

// behind returns a problem if a node has not acknowledged all that was sent to it.
func (s *sources) behind(node string) (problems []string) {
	for _, n := range s.cfg.Nodes.Nodes() {
		if n.Name == node && (n.Pending > 0 || n.Realised < n.Sent) {
			problems = append(
				problems,
				fmt.Sprintf("node %s has not all in force yet that it was sent: revision %d of %d", node, n.Realised,
					n.Sent),
			)
		}
	}
	return problems
}

// attach adds a trace to its way, and a disagreement if their verdicts differ.
func attach(ways []inspect.Way, t *inspect.Trace, from string) {
	i := slices.IndexFunc(ways, func(w inspect.Way) bool {
		return w.From.Address == t.Packet.From && w.To.Address == t.Packet.To && w.Protocol == t.Packet.Protocol &&
			w.Port == t.Packet.Port
	})
	if i < 0 {
		return
	}
	w := &ways[i]
	w.Traces = append(w.Traces, *t)
	if t.Problem != "" {
		return
	}
	// The node's switch also applies the policies of pods there that Flowkeep did not attach, by their addresses.
	atSource := w.From.Kind == explain.Pod && t.Node == from
	atTarget := w.To.Kind == explain.Pod && t.Node == w.To.Node
	want := (!atSource || w.Egress.Allowed) && (!atTarget || w.Ingress.Allowed) || w.OfTheNode
	if t.Passed == want {
		return
	}
	says := map[bool]string{true: "lets it pass", false: "drops it"}
	w.DisagreeingNodes = append(w.DisagreeingNodes, t.Node)
	w.Disagreements = append(
		w.Disagreements,
		fmt.Sprintf("Open vSwitch of node %s %s (%s), but by the policies it %s", t.Node, says[t.Passed], t.Out,
			map[bool]string{true: "passes", false: "is denied"}[want]),
	)
}
