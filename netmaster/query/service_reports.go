package query

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// reportsAtATime is the number of nodes that are queried at a time for their report about a Service.
const reportsAtATime = 64

// reports adds the reports about a Service of one node, or of all, and the number of connections that their pods
// opened.
func (s *nodeQueries) reports(ctx context.Context, v *inspect.ServedService, node string) {
	ctx, cancel := inTime(ctx)
	defer cancel()
	v.Nodes = []inspect.ServiceReport{}
	for _, n := range s.cfg.Nodes.Nodes() {
		if node == "" || n.Name == node {
			v.Nodes = append(v.Nodes, inspect.ServiceReport{Node: n.Name})
		}
	}
	slices.SortFunc(v.Nodes, func(a, b inspect.ServiceReport) int { return cmp.Compare(a.Node, b.Node) })
	query := inspect.NodeQuery{Kind: inspect.QueryServiceReport, Service: v.Namespace + "/" + v.Name}
	turns := make(chan struct{}, reportsAtATime)
	var all sync.WaitGroup
	for i := range v.Nodes {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			v.Nodes[i] = s.report(ctx, v.Nodes[i].Node, query)
		})
	}
	all.Wait()
	addOpened(v)
}

// report returns a node's report about a Service. If the node does not respond, the report has a problem.
func (s *nodeQueries) report(ctx context.Context, node string, query inspect.NodeQuery) inspect.ServiceReport {
	var out inspect.ServiceReport
	body, err := s.queryNode(ctx, node, query)
	if err == nil {
		if err = json.Unmarshal(body, &out); err != nil {
			err = fmt.Errorf("its report cannot be read: %w", err)
		}
	}
	if err != nil {
		return inspect.ServiceReport{Node: node, Problem: err.Error()}
	}
	out.Node = node
	return out
}

// addOpened adds the numbers of connections that were opened to each endpoint on all nodes.
func addOpened(v *inspect.ServedService) {
	sums := map[inspect.OpenedCount]uint64{}
	for i := range v.Nodes {
		for _, c := range v.Nodes[i].Endpoints {
			opened := c.Opened
			c.Opened = 0
			sums[c] += opened
		}
	}
	for i := range v.Endpoints {
		e := &v.Endpoints[i]
		at := inspect.OpenedCount{Address: e.Address, Protocol: e.Protocol, Port: e.Port}
		e.Opened = sums[at]
		if at.Port = 0; e.Protocol == policy.SCTP {
			e.Opened += sums[at]
		}
	}
}
