package query

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/budget"
	"github.com/flowkeep/flowkeep/policydb/service"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Frontends returns Services as nodes receive them. All and Get return false until they have been listed.
type Frontends interface {
	All() ([]budget.Served, bool)
	Get(id string) (budget.Served, bool)
	Zone(node string) string
}

// frontends lists Services as nodes get them.
func (s *nodeQueries) frontends(ctx context.Context, q *inspect.Question) (any, error) {
	if s.cfg.Frontends == nil {
		return nil, status.Error(codes.Unimplemented, "this netmaster watches no Services")
	}
	if q.ID != "" {
		return s.frontendsOf(ctx, q)
	}
	all, known := s.cfg.Frontends.All()
	if !known {
		return nil, errUnknownServices
	}
	out := []inspect.ServedService{}
	for i := range all {
		if v := &all[i]; q.Namespace == "" || q.Namespace == v.Service.Namespace {
			out = append(out, inspect.Brief(v.Service, v.Slices))
		}
	}
	return out, nil
}

var errUnknownServices = status.Error(codes.Unavailable,
	"the Services are not known yet: netmaster has not listed them; netctl status shows why")

// frontendsOf returns one Service, at a node if one is named.
func (s *nodeQueries) frontendsOf(ctx context.Context, q *inspect.Question) (any, error) {
	if q.Node != "" && !s.hasNode(q.Node) {
		return nil, status.Errorf(codes.NotFound, "there is no node %s", q.Node)
	}
	if q.FromNode {
		return s.frontendsOn(ctx, q)
	}
	v, known := s.cfg.Frontends.Get(q.ID)
	switch {
	case !known:
		return nil, errUnknownServices
	case v.Service == nil:
		return nil, status.Errorf(codes.NotFound, "there is no Service %s", q.ID)
	}
	var at *service.Place
	if q.Node != "" {
		at = &service.Place{Node: q.Node, Zone: s.cfg.Frontends.Zone(q.Node)}
	}
	out := inspect.ServedAt(v.Service, v.Slices, at)
	s.reports(ctx, &out, q.Node)
	return []inspect.ServedService{out}, nil
}

func (s *nodeQueries) hasNode(name string) bool {
	for _, n := range s.cfg.Nodes.Infos() {
		if n.Name == name {
			return true
		}
	}
	return false
}

// frontendsOn returns a Service as a node holds it.
func (s *nodeQueries) frontendsOn(ctx context.Context, q *inspect.Question) (any, error) {
	if q.Node == "" {
		return nil, status.Error(codes.InvalidArgument, "no node is named")
	}
	body, err := json.Marshal(inspect.NodeQuery{Kind: inspect.QueryService, Service: q.ID})
	if err != nil {
		return nil, err
	}
	answer, err := s.cfg.Nodes.Query(ctx, q.Node, body)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	var of inspect.NodeService
	if err := json.Unmarshal(answer, &of); err != nil {
		return nil, fmt.Errorf("node %s: %w", q.Node, err)
	}
	if of.Service == nil {
		return nil, status.Errorf(codes.NotFound, "node %s does not hold Service %s; it holds %d with %d endpoints",
			q.Node, q.ID, of.Holds.Services, of.Holds.Endpoints)
	}
	if of.Service.At == nil {
		of.Service.At = &inspect.ServicePlace{Node: q.Node}
	}
	of.Service.At.Holds = &of.Holds
	s.reports(ctx, of.Service, q.Node)
	return []inspect.ServedService{*of.Service}, nil
}
