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

// Do calls f on the owner goroutine and waits for it.
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

// ready is a closed channel.
var ready = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// preparing is a part for which the engine is being prepared, in slices between which calls are served. The policies
// of a part are added one by one.
type preparing struct {
	batch  *watch.Batch
	groups *resolve.Preparation
	list   uint64 // confirmed after the part; 0: none
	room   int    // for policies, in units of policyWork
	newest *policy.Policy
}

// prepare queues a batch of the watches. It starts the preparation if none is in progress.
func (s *server) prepare(b *watch.Batch) {
	s.limitBatch(b)
	if b.Complete { // until then no node is served, or nodes have the state of the policy DB
		s.takeLimited(b)
		return
	}
	s.intake.add(b)
	if s.preparing == nil {
		s.slice()
	}
}

// slice continues the preparation, and applies the part when it is complete. Without a part it releases unused
// groups.
func (s *server) slice() {
	if s.preparing == nil {
		s.beginPart()
	}
	switch {
	case s.preparing == nil:
		s.engine.Tidy()
	case !s.preparing.groups.Slice():
		s.takePrepared()
	}
}

// beginPart starts the preparation of the next part, if there is one.
func (s *server) beginPart() {
	if !s.intake.due() {
		return
	}
	p := &preparing{room: maxPartPolicies}
	var last bool
	if p.batch, p.list, last = s.intake.part(s.podsWork); !last {
		p.room = 0
	}
	for id, obj := range p.batch.Policies {
		if obj == nil {
			_, work := s.deletion(id)
			p.room -= work
		}
	}
	p.groups = s.engine.Prepare(func(members int) *policy.Policy {
		if p.newest != nil {
			s.intake.charge(p.newest, members, time.Now())
			p.room -= p.groups.Entries() / entriesPerWork
		}
		if p.newest = nil; p.room <= 0 {
			return nil
		}
		if p.newest = s.intake.next(p.batch, p.room); p.newest != nil {
			p.room -= policyWork(p.newest)
		}
		return p.newest
	})
	s.preparing = p
}

// groupWork is the work of a group of a pod's labels, in units of podWork: the pod's addresses enter and leave it.
const groupWork = 3

// podsWork returns the work of a pod in the engine, in units of podWork.
func (s *server) podsWork(id string) int {
	labels, groups := s.engine.PodExtent(id)
	return labels + groupWork*groups
}

// deletion returns when a policy was created, and the work of deleting it, in units of policyWork.
func (s *server) deletion(id string) (created int64, work int) {
	p, ok := s.engine.PolicyAsPut(id)
	if !ok {
		return 0, 1
	}
	return p.CreatedAt, policyWork(p) + s.engine.RulesOnNodes(id)/entriesPerWork
}

// takePrepared applies the part in preparation, if there is one.
func (s *server) takePrepared() {
	p := s.preparing
	if p == nil {
		return
	}
	s.preparing = nil
	s.takeLimited(p.batch)
	s.intake.taken(s.engine.Revision())
	p.groups.End()
	if p.list != 0 {
		s.answer(p.list)
	}
	s.answerLagging()
}

// takeAll applies everything that the watches have delivered.
func (s *server) takeAll() {
	s.takePrepared()
	s.addDelivered()
	b, list := s.intake.all()
	s.takeLimited(b)
	if list != 0 {
		s.answer(list)
	}
	s.answerLagging()
}

// addDelivered queues what the watches have delivered.
func (s *server) addDelivered() {
	b := s.watcher.Take()
	s.limitBatch(b)
	s.intake.add(b)
}

func (s *server) loop(ctx context.Context) {
	defer close(s.stopped)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	s.observe()
	var acks <-chan time.Time // runs while a policy waits for acknowledgements
	for {
		var slice chan struct{}
		if s.preparing != nil || s.intake.due() || s.engine.Untidy() {
			slice = ready
		}
		if acks == nil && s.intake.waits() > 0 {
			acks = time.After(ackInterval)
		}
		select {
		case f := <-s.calls:
			f()
		case <-s.watcher.Wake():
			s.prepare(s.watcher.Take())
		case <-slice:
			s.slice()
		case <-acks:
			acks = nil
			s.intake.acknowledge(s.feed.Awaits, s.store.OnDisk(), time.Now())
		case <-tick.C:
			s.intake.tidy(time.Now())
			s.observe()
		case <-ctx.Done():
			return
		}
	}
}

// takeBatch applies a batch. The first complete batch also deletes what only the policy DB has.
func (s *server) takeBatch(b *watch.Batch) {
	s.limitBatch(b)
	s.takeLimited(b)
}

// limitBatch removes what exceeds the budgets of namespaces.
func (s *server) limitBatch(b *watch.Batch) {
	s.ledger.Take(b.Policies)
	s.pods.Take(b.Endpoints, b.Policies)
}

// takeLimited applies a batch that is within the budgets.
func (s *server) takeLimited(b *watch.Batch) {
	if b.Empty() {
		return
	}
	s.noteSeen(b)
	policies, endpoints := len(b.Policies), len(b.Endpoints)
	s.reportProblems(b)
	s.takeStatic(b.Endpoints)
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
		granted := s.setNodes(b.Nodes)
		change.Infos = &granted
	}
	changed := s.beforeChange(b)
	s.apply(in, change)
	s.afterChange(b, changed)
	if b.Complete {
		s.stored = nil
		close(s.synced)
		if s.cfg.Election == nil {
			s.feed.Ready()
		}
		s.setAdmission()
		s.cfg.Health.SetReady("state", "")
		s.log.Info("caches synced", "policies", policies, "endpoints", endpoints,
			"revision", s.engine.Revision())
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

// apply updates the engine, and sends the changes to nodes, policy DB and label cache. All updates go through it.
func (s *server) apply(in resolve.Batch, change store.Change) {
	began := time.Now()
	s.labels.Add(1)
	before := s.engine.Revision()
	s.unknownPods.note(&in)
	changes, conflicts := s.engine.Apply(in)
	s.withhold(&changes)
	s.publish(&changes, before)
	s.metrics.batchSeconds.Observe(time.Since(began).Seconds())
	change.Resolved = &changes
	s.store.Write(change)
	s.history.Record(s.engine, &in, time.Now())
	for _, c := range conflicts {
		s.conflict(c)
	}
}

func (s *server) conflict(c resolve.Conflict) {
	s.metrics.conflicts.Inc()
	text := fmt.Sprintf("address %s is claimed by %v: it belongs to no pod until one releases it", c.Address,
		c.Endpoints)
	s.log.Warn("an address is contested", "address", c.Address, "endpoints", c.Endpoints)
	for _, id := range c.Endpoints {
		if v, ok := s.engine.Endpoint(id); ok {
			s.cfg.Report.Emit(wellknown.EventAddressContested, v.Endpoint.Namespace, v.Endpoint.Name, v.Endpoint.UID,
				text)
		}
	}
}
