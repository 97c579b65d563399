package server

import (
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/store"
)

// startRevision is above every revision that was ever given out, also those that did not reach the disk, as long as there
// were less than a thousand a second. Nodes and memcached may hold what was computed then.
func startRevision(stored uint64, now time.Time) uint64 { return max(stored, uint64(now.UnixMilli())) }

// restore serves nodes from the policy DB at once, before the API server has been asked.
func (s *server) restore() error {
	stored, err := s.store.Load()
	if err != nil {
		return err
	}
	s.stored, s.storedRevision = stored, stored.Revision
	s.engine = resolve.New(startRevision(stored.Revision, time.Now()))
	s.labels.Store(s.engine.Revision())
	if stored.Empty() {
		return nil
	}
	b := resolve.Batch{Policies: slices.Collect(maps.Values(stored.Policies)), Endpoints: slices.Collect(maps.Values(stored.Endpoints))}
	for _, ns := range stored.Namespaces {
		b.Namespaces = append(b.Namespaces, *ns)
	}
	if s.cfg.Election != nil { // another has led since
		stored.Announced = nil
	}
	s.setCIDRs(stored.Infos)
	for _, a := range stored.Announced {
		b.Announced = append(b.Announced, resolve.Announcement{Node: a.Node, Namespace: a.Namespace, Name: a.Name, UID: a.UID, Addresses: a.Addresses, Foreign: s.foreignOf(a.Node, a.Addresses)})
		s.remember(a)
	}
	if len(stored.Infos) > 0 {
		s.feed.SetNodes(stored.Infos)
	}
	s.apply(b, store.Change{Whole: true})
	if s.cfg.Election != nil {
		return nil
	}
	s.feed.Ready()
	s.cfg.Health.SetReady("state", "")
	s.log.Info("serving from the policy DB until the API server has been asked", "policies", len(b.Policies), "endpoints", len(b.Endpoints), "revision", s.engine.Revision())
	return nil
}

// reconcile adds to the first complete batch that what the policy DB has besides is gone, and takes out what it has equal.
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
