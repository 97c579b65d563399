package inspect

import (
	"context"
	"errors"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/labelcache"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func (s *Server) db(context.Context, *inspect.Question) (any, error) {
	out := inspect.DB{SetAside: s.cfg.Store.SetAside(), Problems: []string{}}
	if waiting, err := s.cfg.Store.Problem(); err != nil {
		out.Error, out.Waiting = err.Error(), waiting
	} else {
		out.Waiting = waiting
	}
	c, err := s.cfg.Store.Load()
	if err != nil {
		return nil, errors.New("read the policy DB: " + err.Error())
	}
	out.Revision, out.Namespaces, out.Endpoints, out.Policies = c.Revision, len(c.Namespaces), len(c.Endpoints), len(c.Policies)
	out.Rules, out.Groups = len(c.Rules), len(c.Groups)
	out.Problems = append(out.Problems, c.Check()...)
	return out, nil
}

func (s *Server) cache(context.Context, *inspect.Question) (any, error) {
	return inspect.Cache(s.cfg.Cache.Stats()), nil
}

func (s *Server) lookup(ctx context.Context, q *inspect.Question) (any, error) {
	if q.Selector == nil || q.Namespace == "" {
		return nil, status.Error(codes.InvalidArgument, "a look-up needs a namespace and a selector")
	}
	spec := policy.GroupSpec{Namespace: q.Namespace, Pods: q.Selector}
	epoch, revision := s.cfg.Labels()
	e, source, err := s.cfg.Cache.Get(ctx, labelcache.Key(&spec), epoch, revision, func(ctx context.Context) (entry labelcache.Entry, err error) {
		err = s.cfg.Owner.Do(ctx, func(e *resolve.Engine) {
			entry.Epoch, entry.Revision = s.cfg.Labels()
			entry.Endpoints = e.Select(spec)
		})
		return entry, err
	})
	return inspect.Lookup{Source: string(source), Revision: e.Revision, Endpoints: append([]string{}, e.Endpoints...)}, err
}
