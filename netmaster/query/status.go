package query

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netmaster/nodenet"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
)

// nodeTimeout bounds how long status waits for nodes' responses.
const nodeTimeout = 2 * time.Second

func (s *nodeQueries) status(ctx context.Context, q *inspect.Question) (any, error) {
	out := inspect.Status{
		Version:  s.cfg.Version,
		Started:  s.started,
		Problems: append([]string{}, s.cfg.Problems()...),
		Nodes:    []inspect.Node{},
		History:  s.historyOf(),

		NotEnforced: s.cfg.Unattached().Count(),
		Unattached:  s.cfg.Unattached().Digest(),
	}
	if s.cfg.Leader != nil {
		out.Leader = s.cfg.Leader()
	}
	err := s.cfg.Owner.Do(ctx, func(e *resolve.Engine) {
		c := e.Counts()
		out.Revision, out.Namespaces, out.Endpoints = e.Revision(), c.Namespaces, c.Endpoints
		out.Policies, out.Rules, out.Groups = c.Policies, c.Rules, c.Groups
		out.DryRuns = e.DryRuns()
	})
	if err != nil {
		return nil, err
	}
	if q.Node != "" {
		if out.Ways, err = s.waysOf(q.Node); err != nil {
			return nil, err
		}
	}
	for _, n := range s.cfg.Nodes.Nodes() {
		node := inspect.Node{
			Name:      n.Name,
			Connected: n.Connected,
			Since:     n.Since,
			Version:   n.Version,
			Sent:      n.Sent,
			Realised:  n.Realised,
			Pending:   n.Pending,
			Rules:     n.Rules,
			Groups:    n.Groups,
			Refused:   n.Refused,
		}
		for i := range n.Errors {
			node.Errors = append(node.Errors, errorText(&n.Errors[i]))
		}
		out.Nodes = append(out.Nodes, node)
	}
	silent := s.queryNodes(ctx, out.Nodes)
	out.Problems = append(out.Problems, nodeProblems(out.Nodes, silent)...)
	out.Problems = append(out.Problems, networkProblems(out.Nodes)...)
	return out, nil
}

// queryNodes adds each node's own status, and returns by index why a node did not respond.
func (s *nodeQueries) queryNodes(ctx context.Context, nodes []inspect.Node) []error {
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	silent := make([]error, len(nodes))
	var all sync.WaitGroup
	for i := range nodes {
		if !nodes[i].Connected {
			continue
		}
		all.Go(func() {
			body, err := s.queryNode(ctx, nodes[i].Name, inspect.NodeQuery{Kind: inspect.QueryStatus})
			own := new(inspect.NodeStatus)
			if err == nil {
				err = json.Unmarshal(body, own)
			}
			if err == nil {
				nodes[i].Own = own
			}
			silent[i] = err
		})
	}
	all.Wait()
	return silent
}

// networkProblems returns the problems of the cluster's network that nodes report.
func networkProblems(nodes []inspect.Node) []string {
	reports, came := map[string][]inspect.NetworkProblem{}, map[string]bool{}
	for i := range nodes {
		came[nodes[i].Name] = !nodes[i].Since.IsZero()
		if own := nodes[i].Own; own != nil {
			reports[nodes[i].Name] = own.Network
		}
	}
	return nodenet.Sentences(nodenet.Merge(reports, func(node string) bool { return came[node] }))
}

func nodeProblems(nodes []inspect.Node, silent []error) []string {
	var out []string
	for i, n := range nodes {
		switch {
		case !n.Connected && n.Refused != "":
			out = append(out, fmt.Sprintf("node %s is refused and enforces what it last had: %s", n.Name, n.Refused))
		case !n.Connected:
			out = append(out, fmt.Sprintf("node %s is not connected; it enforces what it last had", n.Name))
		case silent[i] != nil:
			out = append(out, fmt.Sprintf("node %s is connected but does not report its status: %v", n.Name, silent[i]))
		case n.Own != nil:
			out = append(out, switchProblems(n.Name, n.Own)...)
		}
		for _, e := range n.Errors {
			out = append(out, fmt.Sprintf("node %s: %s", n.Name, e))
		}
	}
	return out
}

// switchProblems returns the problems of a node's Open vSwitch. One of its database may be why there is no connection.
func switchProblems(node string, own *inspect.NodeStatus) []string {
	var out []string
	if !own.SwitchConnected {
		out = append(out, fmt.Sprintf("node %s has no connection to its Open vSwitch", node))
	}
	for _, p := range []string{own.SwitchProblem, own.DatabaseProblem} {
		if p != "" {
			out = append(out, fmt.Sprintf("node %s: %s", node, p))
		}
	}
	if own.SwitchConnected {
		out = append(out, driftCheckProblems(node, &own.DriftCheck)...)
	}
	return out
}

// driftCheckProblems returns the problems that a node's last drift check found.
func driftCheckProblems(node string, a *inspect.DriftCheck) []string {
	var out []string
	if d := a.Last; d.Sum() > 0 {
		out = append(out, fmt.Sprintf(
			"another program changes the flows of node %s: its last drift check found %d missing, %d changed, %d extra",
			node, d.Missing, d.Changed, d.Extra))
	}
	if a.Problem != "" {
		out = append(out, fmt.Sprintf("node %s: %s", node, a.Problem))
	}
	return out
}

// errorText returns an error with the first policies that it concerns.
func errorText(e *wire.RuleError) string {
	var policies []string
	for _, o := range e.Origins {
		if !slices.Contains(policies, o.Policy) {
			policies = append(policies, o.Policy)
		}
	}
	const most = 3
	if n := len(policies); n > most {
		policies = append(policies[:most], fmt.Sprintf("%d more", n-most))
	}
	if len(policies) == 0 {
		return e.Message
	}
	return strings.Join(policies, ", ") + ": " + e.Message
}
