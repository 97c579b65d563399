package server

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/store"
)

// failures limits the Events about policies that nodes could not install, and about their recovery. Safe for
// concurrent use.
type failures struct {
	mu     sync.Mutex
	byNode map[string]map[string]*failure // by node, by policy
}

// failure is the state of the reports about a policy on a node in the present reportInterval.
type failure struct {
	since   time.Time
	reports int
	open    bool // the last report was a failure
}

// A policy that keeps failing on a node is reported once in reportInterval; one that fails repeatedly, at most
// maxReports times.
const (
	reportInterval = 10 * time.Minute
	maxReports     = 3
)

// update returns the policies to report now: those that failed, with the node's error, and those that recovered.
func (f *failures) update(node string, errs []wire.RuleError,
	now time.Time) (failed map[string]string, mended []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	told, failing, whole := f.byNode[node], map[string]string{}, true
	if told == nil {
		told = map[string]*failure{}
	}
	for i := range errs {
		whole = whole && len(errs[i].Rules) > 0
		for _, o := range errs[i].Origins {
			if _, already := failing[o.Policy]; !already {
				failing[o.Policy] = errs[i].Message
			}
		}
	}
	failed = map[string]string{}
	for id, text := range failing {
		if told[id].isDue(now) {
			told[id], failed[id] = told[id].again(now), text
		}
	}
	for id, t := range told {
		if _, still := failing[id]; still || !whole {
			continue
		}
		if t.open {
			t.open, mended = false, append(mended, id)
		}
		if now.Sub(t.since) > reportInterval {
			delete(told, id)
		}
	}
	if f.byNode[node] = told; len(told) == 0 {
		delete(f.byNode, node)
	}
	return failed, mended
}

// isDue reports whether to report a failure.
func (t *failure) isDue(now time.Time) bool {
	return t == nil || now.Sub(t.since) > reportInterval || !t.open && t.reports < maxReports
}

func (t *failure) again(now time.Time) *failure {
	if t == nil || now.Sub(t.since) > reportInterval {
		t = &failure{since: now}
	}
	t.reports, t.open = t.reports+1, true
	return t
}

// retain removes the nodes that no longer exist.
func (f *failures) retain(there func(node string) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.byNode, func(node string, _ map[string]*failure) bool { return !there(node) })
}

// acknowledged reports policies that a node could not install, and those that have recovered.
func (s *server) acknowledged(ctx context.Context, node string, a *wire.Ack) error {
	s.store.Write(
		store.Change{Nodes: map[string]*store.NodeRecord{node: {Realised: a.Revision, Errors: len(a.Errors)}}})
	failed, mended := s.failures.update(node, a.Errors, time.Now())
	if len(failed)+len(mended) == 0 {
		return nil
	}
	for id, text := range failed {
		s.log.Warn("a node could not install all rules of a policy; it denies what the missing rules allow",
			"node", node, "policy", id, "error", text)
	}
	for _, id := range mended {
		s.log.Info("a node has installed a policy that had failed there", "node", node, "policy", id)
	}
	return s.Do(ctx, func(e *resolve.Engine) {
		for id, text := range failed {
			if p := e.PolicyObject(id); p != nil {
				s.cfg.Report.Emit(wellknown.EventNotInForce, p.Namespace, p.Name, p.UID,
					notInForce(p, node, strings.TrimSpace(text)))
			}
		}
		for _, id := range mended {
			if p := e.PolicyObject(id); p != nil {
				s.cfg.Report.Emit(wellknown.EventInForce, p.Namespace, p.Name, p.UID,
					fmt.Sprintf("node %s has all of this policy in force again", node))
			}
		}
	})
}

func notInForce(p *policy.Policy, node, why string) string {
	if p.DryRun {
		return fmt.Sprintf(
			"node %s reports more denials than this dry run would cause, as it lacks some allow rules: %s", node, why)
	}
	return fmt.Sprintf("node %s denies what a rule of this policy should let through: %s", node, why)
}

// refused reports a node that is not served.
func (s *server) refused(node, message string) {
	s.cfg.Report.Emit(wellknown.EventNodeRefused, "", node, node, message+"; the node enforces the rules it last had")
}
