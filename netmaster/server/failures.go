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

// failures remembers which policies nodes could not put in force, so that users are told of each, and when it is mended, but not
// each time that it comes and goes. It is safe for concurrent use.
type failures struct {
	mu   sync.Mutex
	told map[string]map[string]*failure // by node, by policy
}

// failure is what was told of a policy on a node within tellAgain.
type failure struct {
	since time.Time
	times int
	open  bool // the last that was told is that it failed
}

// tellAgain is how long a policy that goes on failing on a node is not told again, nor one that fails now and then more than
// mostTold times.
const (
	tellAgain = 10 * time.Minute
	mostTold  = 3
)

// fresh are the policies to be told now: those that failed, with what the node said, and those that were told as failed and are
// well.
func (f *failures) fresh(node string, errs []wire.RuleError, now time.Time) (failed map[string]string, mended []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	told, failing, whole := f.told[node], map[string]string{}, true
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
		if told[id].fails(now) {
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
		if now.Sub(t.since) > tellAgain {
			delete(told, id)
		}
	}
	if f.told[node] = told; len(told) == 0 {
		delete(f.told, node)
	}
	return failed, mended
}

// fails tells whether a failure is to be told.
func (t *failure) fails(now time.Time) bool {
	return t == nil || now.Sub(t.since) > tellAgain || !t.open && t.times < mostTold
}

func (t *failure) again(now time.Time) *failure {
	if t == nil || now.Sub(t.since) > tellAgain {
		t = &failure{since: now}
	}
	t.times, t.open = t.times+1, true
	return t
}

// forgetBut forgets nodes that are gone.
func (f *failures) forgetBut(there func(node string) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.told, func(node string, _ map[string]*failure) bool { return !there(node) })
}

// acknowledged tells users of policies that a node could not put in force, and of those that it has put in force since.
func (s *server) acknowledged(ctx context.Context, node string, a *wire.Ack) error {
	s.store.Write(store.Change{Nodes: map[string]*store.NodeRecord{node: {Realised: a.Revision, Errors: len(a.Errors)}}})
	failed, mended := s.failures.fresh(node, a.Errors, time.Now())
	if len(failed)+len(mended) == 0 {
		return nil
	}
	for id, text := range failed {
		s.log.Warn("a node could not put all of a policy in force; what it would have let through is denied there", "node", node, "policy", id, "error", text)
	}
	for _, id := range mended {
		s.log.Info("a node has put a policy in force that had failed there", "node", node, "policy", id)
	}
	return s.Do(ctx, func(e *resolve.Engine) {
		for id, text := range failed {
			if p := e.PolicyObject(id); p != nil {
				s.cfg.Report.Tell(wellknown.EventNotInForce, p.Namespace, p.Name, p.UID, notInForce(p, node, strings.TrimSpace(text)))
			}
		}
		for _, id := range mended {
			if p := e.PolicyObject(id); p != nil {
				s.cfg.Report.Tell(wellknown.EventInForce, p.Namespace, p.Name, p.UID, fmt.Sprintf("node %s has all of this policy in force again", node))
			}
		}
	})
}

func notInForce(p *policy.Policy, node, why string) string {
	if p.Audit {
		return fmt.Sprintf("node %s tells more than this dry run would deny: it has not all that it would let through: %s", node, why)
	}
	return fmt.Sprintf("node %s denies what a rule of this policy should let through: %s", node, why)
}

// refused tells users of a node that is not served.
func (s *server) refused(node, message string) {
	s.cfg.Report.Tell(wellknown.EventNodeRefused, "", node, node, message+"; the node enforces the rules it last had")
}
