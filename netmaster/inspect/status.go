package inspect

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
	"github.com/flowkeep/flowkeep/netmaster/resolve"
)

// nodeTimeout bounds how long status waits for the nodes' own words.
const nodeTimeout = 2 * time.Second

func (s *Server) status(ctx context.Context, _ *inspect.Question) (any, error) {
	out := inspect.Status{Version: s.cfg.Version, Started: s.started, Problems: append([]string{}, s.cfg.Problems()...), Nodes: []inspect.Node{}, History: s.historyOf()}
	if s.cfg.Leader != nil {
		out.Leader = s.cfg.Leader()
	}
	err := s.cfg.Owner.Do(ctx, func(e *resolve.Engine) {
		c := e.Counts()
		out.Revision, out.Namespaces, out.Endpoints, out.Policies, out.Rules, out.Groups = e.Revision(), c.Namespaces, c.Endpoints, c.Policies, c.Rules, c.Groups
		out.DryRuns = e.DryRuns()
	})
	if err != nil {
		return nil, err
	}
	for _, n := range s.cfg.Nodes.Nodes() {
		node := inspect.Node{Name: n.Name, Connected: n.Connected, Since: n.Since, Version: n.Version, Sent: n.Sent, Realised: n.Realised,
			Pending: n.Pending, Rules: n.Rules, Groups: n.Groups, Refused: n.Refused}
		for i := range n.Errors {
			node.Errors = append(node.Errors, errorText(&n.Errors[i]))
		}
		out.Nodes = append(out.Nodes, node)
	}
	silent := s.askNodes(ctx, out.Nodes)
	out.Problems = append(out.Problems, nodeProblems(out.Nodes, silent)...)
	return out, nil
}

// askNodes fills in what each node says of itself. Of those that say nothing it returns why, by the place in the list.
func (s *Server) askNodes(ctx context.Context, nodes []inspect.Node) []error {
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

func nodeProblems(nodes []inspect.Node, silent []error) []string {
	var out []string
	for i, n := range nodes {
		switch {
		case !n.Connected && n.Refused != "":
			out = append(out, fmt.Sprintf("node %s is refused and enforces what it last had: %s", n.Name, n.Refused))
		case !n.Connected:
			out = append(out, fmt.Sprintf("node %s is not connected; it enforces what it last had", n.Name))
		case silent[i] != nil:
			out = append(out, fmt.Sprintf("node %s is connected and does not say how it is: %v", n.Name, silent[i]))
		case n.Own != nil && !n.Own.SwitchConnected:
			out = append(out, fmt.Sprintf("node %s has no connection to its Open vSwitch", n.Name))
		case n.Own != nil:
			if p := n.Own.SwitchProblem; p != "" {
				out = append(out, fmt.Sprintf("node %s: %s", n.Name, p))
			}
			out = append(out, auditProblems(n.Name, &n.Own.Audit)...)
		}
		for _, e := range n.Errors {
			out = append(out, fmt.Sprintf("node %s: %s", n.Name, e))
		}
	}
	return out
}

// auditProblems are what a node's last audit gives cause to say.
func auditProblems(node string, a *inspect.Audit) []string {
	var out []string
	if d := a.Last; d.Sum() > 0 {
		out = append(out, fmt.Sprintf("somebody else changes the flows of node %s: its last audit found %d missing, %d changed, %d extra", node, d.Missing, d.Changed, d.Extra))
	}
	if a.Problem != "" {
		out = append(out, fmt.Sprintf("node %s: %s", node, a.Problem))
	}
	return out
}

// errorText tells whom an error concerns, and what it is.
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
