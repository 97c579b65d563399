package query

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/labelcache"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func (s *policyQueries) db(context.Context, *inspect.Question) (any, error) {
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
	out.Revision, out.Namespaces, out.Endpoints, out.Policies = c.Revision, len(c.Namespaces), len(
		c.Endpoints), len(c.Policies)
	out.Rules, out.Groups = len(c.Rules), len(c.Groups)
	out.Problems = append(out.Problems, c.Check()...)
	return out, nil
}

func (s *policyQueries) cache(context.Context, *inspect.Question) (any, error) {
	st := s.cfg.Cache.Stats()
	out := inspect.Cache{
		Entries:   st.Entries,
		Bytes:     st.Bytes,
		Hits:      st.Hits,
		Misses:    st.Misses,
		Errors:    st.Errors,
		Refused:   st.Refused,
		TooLarge:  st.TooLarge,
		Dropped:   st.Dropped,
		Servers:   st.Servers,
		Connected: st.Connected,
		Problem:   st.Problem,
	}
	for _, from := range st.Sources {
		out.Sources = append(out.Sources,
			inspect.CacheSource{Source: string(from.Source), Count: from.Count, Mean: from.Mean})
	}
	return out, nil
}

// lookupSpec returns the group whose members are queried.
func lookupSpec(q *inspect.Question) (policy.GroupSpec, error) {
	if q.Selector == nil || q.Namespace == "" {
		return policy.GroupSpec{}, status.Error(codes.InvalidArgument, "a look-up needs a namespace and a selector")
	}
	return policy.GroupSpec{Namespace: q.Namespace, Pods: q.Selector}, nil
}

// lookup returns the members of a group, cached or computed, with the state that they belong to.
func (s *policyQueries) lookup(ctx context.Context, q *inspect.Question) (any, error) {
	spec, err := lookupSpec(q)
	if err != nil {
		return nil, err
	}
	members := func(ctx context.Context) ([]byte, labelcache.Stamp, error) { return s.chosen(ctx, spec) }
	value, at, from, err := s.cfg.Cache.Do(ctx, labelcache.Members(spec.Key(), 0), s.resolved(), members)
	if err != nil {
		return nil, err
	}
	body, err := lookupBody(value, at, from)
	return &inspect.Answer{Body: body, Cached: cached(from, at, "")}, err
}

// lookupBody converts cached members to a response, and lookupValue converts a response back.
func lookupBody(value []byte, at labelcache.Stamp, from labelcache.Source) ([]byte, error) {
	out := inspect.Lookup{Source: string(from), Revision: at.Revision}
	if err := json.Unmarshal(value, &out.Endpoints); err != nil {
		return nil, err
	}
	return json.Marshal(&out)
}

func lookupValue(body []byte) ([]byte, error) {
	var found inspect.Lookup
	if err := json.Unmarshal(body, &found); err != nil {
		return nil, err
	}
	return json.Marshal(found.Endpoints)
}

// chosen computes the sorted IDs of the endpoints that a selector matches, and the state that they belong to.
func (s *policyQueries) chosen(ctx context.Context, spec policy.GroupSpec) ([]byte, labelcache.Stamp, error) {
	var at labelcache.Stamp
	var list []*policy.Endpoint
	err := s.cfg.Owner.Do(ctx, func(e *resolve.Engine) { at, list = s.resolved(), e.Select(spec) })
	if err != nil {
		return nil, at, err
	}
	ids := make([]string, len(list))
	for i, e := range list {
		ids[i] = e.ID()
	}
	slices.Sort(ids)
	body, err := json.Marshal(ids)
	return body, at, err
}
