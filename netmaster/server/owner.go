package server

import (
	"context"
	"fmt"
	"time"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/store"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var errStopping = status.Error(codes.Unavailable, "netmaster is stopping")

// Do runs f on the engine's goroutine.
func (s *server) Do(ctx context.Context, f func(*resolve.Engine)) error {
	done := make(chan struct{})
	select {
	case s.calls <- func() { defer close(done); f(s.engine) }:
		<-done
		return nil
	case <-s.stopped:
		return errStopping
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *server) loop(ctx context.Context) {
	defer close(s.stopped)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	s.observe()
	for {
		select {
		case f := <-s.calls:
			f()
		case <-s.watcher.Wake():
			s.takeBatch(s.watcher.Take())
		case <-tick.C:
			s.observe()
			s.publishGroups()
		case <-ctx.Done():
			return
		}
	}
}

// takeBatch resolves what the API server told. The first complete batch also takes away what the policy DB has and the API
// server has not.
func (s *server) takeBatch(b *watch.Batch) {
	if b.Empty() {
		return
	}
	policies, endpoints := len(b.Policies), len(b.Endpoints)
	s.reportProblems(b.Policies)
	if b.Complete {
		s.reconcile(b)
	}
	var in resolve.Batch
	for name, ns := range b.Namespaces {
		if ns == nil {
			in.DeletedNamespaces = append(in.DeletedNamespaces, name)
		} else {
			in.Namespaces = append(in.Namespaces, *ns)
		}
	}
	in.Endpoints, in.DeletedEndpoints = parted(b.Endpoints)
	in.Policies, in.DeletedPolicies = parted(b.Policies)
	change := store.Change{Namespaces: b.Namespaces, Endpoints: b.Endpoints, Policies: b.Policies}
	if b.NodesChanged {
		s.setNodes(b.Nodes)
		change.Infos = &b.Nodes
	}
	changed := s.aboutToChange(b)
	s.apply(in, change)
	s.follow(b, changed)
	if b.Complete {
		s.stored = nil
		close(s.inStep)
		if s.cfg.Election == nil {
			s.feed.Ready()
		}
		s.cfg.Health.SetReady("state", "")
		s.log.Info("in step with the API server", "policies", policies, "endpoints", endpoints, "revision", s.engine.Revision())
	}
	if b.NodesChanged {
		s.forgetGoneNodes()
	}
}

func parted[T any](m map[string]*T) (put []*T, deleted []string) {
	for k, v := range m {
		if v == nil {
			deleted = append(deleted, k)
		} else {
			put = append(put, v)
		}
	}
	return put, deleted
}

// apply is the one way into the engine, and out to nodes, store and label cache.
func (s *server) apply(in resolve.Batch, change store.Change) {
	began := time.Now()
	s.labels.Add(1)
	before := s.engine.Revision()
	changes, conflicts := s.engine.Apply(in)
	s.publish(&changes, before)
	s.metrics.batchSeconds.Observe(time.Since(began).Seconds())
	change.Resolved = &changes
	s.store.Write(change)
	s.history.Record(s.engine, &in, time.Now())
	s.markGroups(&changes)
	for _, c := range conflicts {
		s.conflict(c)
	}
}

func (s *server) conflict(c resolve.Conflict) {
	s.metrics.conflicts.Inc()
	text := fmt.Sprintf("address %s is claimed by %v: it counts as nobody's until one gives it up", c.Address, c.Endpoints)
	s.log.Warn("an address is contested", "address", c.Address, "endpoints", c.Endpoints)
	for _, id := range c.Endpoints {
		if v, ok := s.engine.Endpoint(id); ok {
			s.cfg.Report.Tell(wellknown.EventAddressContested, v.Endpoint.Namespace, v.Endpoint.Name, v.Endpoint.UID, text)
		}
	}
}

// reportProblems tells of what in a policy was not understood, once a change.
func (s *server) reportProblems(policies map[string]*policy.Policy) {
	for id, p := range policies {
		if p == nil || len(p.Problems) == 0 {
			delete(s.wrong, id)
			continue
		}
		text := fmt.Sprint(p.Problems)
		if s.wrong[id] == text {
			continue
		}
		s.wrong[id] = text
		for _, problem := range p.Problems {
			s.log.Warn("a part of a policy makes no sense and is left out", "policy", id, "problem", problem)
			s.cfg.Report.Tell(wellknown.EventInvalid, p.Namespace, p.Name, p.UID, policy.ProblemText(problem))
		}
	}
}
