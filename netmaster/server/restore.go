package server

import (
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/netmaster/budget"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/store"
)

// startRevision returns a revision above all that were ever sent, even if they were not saved, provided that there
// were less than a thousand a second. Nodes and memcached may hold data of those revisions.
func startRevision(stored uint64, now time.Time) uint64 { return max(stored, uint64(now.UnixMilli())) }

// restore loads the policy DB, from which nodes are served until caches are synced.
func (s *server) restore() error {
	stored, err := s.store.Load()
	if err != nil {
		return err
	}
	s.stored, s.storedRevision = stored, stored.Revision
	s.engine = resolve.New(startRevision(stored.Revision, time.Now()))
	s.engine.SetBudgets(s.cfg.Budgets)
	s.limit(stored)
	s.labels.Store(s.engine.Revision())
	if stored.Empty() {
		return nil
	}
	b := resolve.Batch{
		Policies:  slices.Collect(maps.Values(stored.Policies)),
		Endpoints: slices.Collect(maps.Values(stored.Endpoints)),
	}
	for _, ns := range stored.Namespaces {
		b.Namespaces = append(b.Namespaces, *ns)
	}
	if s.cfg.Election != nil { // another netmaster may have led since
		stored.Announced = nil
	}
	s.restoreClaims(stored.Infos)
	for _, a := range stored.Announced {
		b.Announced = append(b.Announced, resolve.Announcement{
			Node:      a.Node,
			Namespace: a.Namespace,
			Name:      a.Name,
			UID:       a.UID,
			Addresses: a.Addresses,
			Foreign:   s.foreignOf(a.Node, a.Addresses),
		})
		s.remember(a)
	}
	s.apply(b, store.Change{Whole: true})
	if s.cfg.Election != nil {
		return nil
	}
	s.feed.Ready()
	s.cfg.Health.SetReady("state", "")
	s.log.Info("serving from the policy DB until caches are synced", "policies", len(b.Policies),
		"endpoints", len(b.Endpoints), "revision", s.engine.Revision())
	return nil
}

// limit applies the budgets to the policy DB, which may have been written under others.
func (s *server) limit(stored *store.Contents) {
	maps.DeleteFunc(stored.Policies, func(_ string, p *policy.Policy) bool { return p.Name == policy.OverBudgetPolicy })
	for _, p := range stored.Policies {
		s.cfg.Budgets.Trim(p)
	}
	budget.NewLedger(s.cfg.Budgets).Take(stored.Policies)
	for _, e := range stored.Endpoints {
		s.cfg.Budgets.TrimEndpoint(e)
	}
	budget.NewPods(s.cfg.Budgets).Take(stored.Endpoints, stored.Policies)
	maps.DeleteFunc(stored.Namespaces, func(_ string, ns *policy.Namespace) bool {
		return s.cfg.Budgets.LabelsExceed(ns.Labels)
	})
}

// reconcile adds to the first complete batch the deletion of what only the policy DB has, and removes what is
// unchanged.
func (s *server) reconcile(b *watch.Batch) {
	difference(b.Namespaces, s.stored.Namespaces)
	difference(b.Endpoints, s.stored.Endpoints)
	difference(b.Policies, s.stored.Policies)
}

func difference[T any](now, before map[string]*T) {
	for k, old := range before {
		v, ok := now[k]
		switch {
		case !ok:
			now[k] = nil
		case reflect.DeepEqual(v, old):
			delete(now, k)
		}
	}
}
