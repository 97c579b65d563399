// Package nodenet collects what nodes report about the cluster's network (api/inspect, NetworkProblem), and reports it
// as Events and conditions of Nodes.
package nodenet

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/api/wellknown"
)

// Finding is a problem of the network about one Node, reported by one or more nodes.
type Finding struct {
	Kind string
	Node string
	Text string   // of the first of By
	By   []string // reporting nodes, sorted
}

// Merge returns the findings in nodes' reports, sorted by Node. A Node in another segment counts only if its
// netplugin has never connected: it may be a virtual kubelet, or have a wrong address.
func Merge(reports map[string][]inspect.NetworkProblem, hasConnected func(node string) bool) []Finding {
	type key struct{ kind, node string }
	found := map[key]*Finding{}
	for _, by := range slices.Sorted(maps.Keys(reports)) {
		for _, p := range reports[by][:min(len(reports[by]), inspect.MaxNetworkProblems)] {
			k := key{p.Kind, p.Node}
			switch {
			case !slices.Contains(inspect.NetworkKinds, p.Kind), isOwn(p.Kind) && p.Node != by:
				continue
			case p.Kind == inspect.NetworkOffLink && hasConnected(p.Node):
				continue
			}
			f := found[k]
			if f == nil {
				f = &Finding{Kind: p.Kind, Node: p.Node, Text: bounded(p.Text)}
				found[k] = f
			}
			if len(f.By) == 0 || f.By[len(f.By)-1] != by {
				f.By = append(f.By, by)
			}
		}
	}
	out := make([]Finding, 0, len(found))
	for _, f := range found {
		out = append(out, *f)
	}
	slices.SortFunc(out, func(a, b Finding) int {
		rank := func(f Finding) int { return slices.Index(inspect.NetworkKinds, f.Kind) }
		return cmp.Or(cmp.Compare(a.Node, b.Node), rank(a)-rank(b))
	})
	return out
}

// isOwn reports whether a problem concerns the reporting node itself.
func isOwn(kind string) bool {
	return slices.Contains([]string{
		inspect.NetworkCIDRs,
		inspect.NetworkAddress,
		inspect.NetworkFirewall,
		inspect.NetworkNumbers,
		inspect.NetworkContested,
	}, kind)
}

// bounded returns the first bytes of a node's text.
func bounded(text string) string {
	const most = 512
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}

// Message returns the text of the Event and of the condition of the Node.
func (f *Finding) Message() string {
	switch f.Kind {
	case inspect.NetworkOffLink:
		return fmt.Sprintf("no netplugin has connected from this Node, and %s (reported by %s)", f.Text, names(f.By))
	case inspect.NetworkPeer:
		return fmt.Sprintf("%s (reported by %s)", f.Text, names(f.By))
	}
	return f.Text
}

// Reason returns the reason of the Event and of the condition.
func (f *Finding) Reason() wellknown.EventReason {
	switch f.Kind {
	case inspect.NetworkCIDRs:
		return wellknown.EventClusterCIDRs
	case inspect.NetworkAddress:
		return wellknown.EventNodeAddress
	case inspect.NetworkFirewall:
		return wellknown.EventFirewall
	case inspect.NetworkNumbers:
		return wellknown.EventNumberTaken
	case inspect.NetworkContested:
		return wellknown.EventHostContested
	}
	return wellknown.EventNoRoute
}

// Sentences returns findings as sentences for netctl status, at most as many as fit on a screen. Nodes with the same
// problem share a sentence.
func Sentences(findings []Finding) (out []string) {
	const most = 20
	nodes := map[string][]string{}
	for i := range findings {
		if f := &findings[i]; isOwn(f.Kind) {
			nodes[f.Text] = append(nodes[f.Text], f.Node)
		}
	}
	for i := range findings {
		f := &findings[i]
		switch {
		case !isOwn(f.Kind):
			out = append(out, fmt.Sprintf("Node %s: %s", f.Node, f.Message()))
		case nodes[f.Text] != nil:
			out = append(out, fmt.Sprintf("node %s: %s", names(nodes[f.Text]), f.Text))
			delete(nodes, f.Text)
		}
	}
	if more := len(out) - most; more > 0 {
		out = append(out[:most], fmt.Sprintf("and %d more problems of the network", more))
	}
	return out
}

// names returns the first names and the number of the others.
func names(list []string) string {
	const most = 3
	text := strings.Join(list[:min(len(list), most)], ", ")
	if more := len(list) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
