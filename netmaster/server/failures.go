package server

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/store"
)

// failures remembers which policies nodes could not put in force, so that each is told once. It is safe for concurrent use.
type failures struct {
	mu   sync.Mutex
	told map[string]map[string]time.Time // by node, by policy
}

// tellAgain is how long a policy that fails on a node is not told again, also if it was well between.
const tellAgain = 10 * time.Minute

// fresh are the policies to be told now, with what the node said.
func (f *failures) fresh(node string, errs []wire.RuleError, now time.Time) map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	told := f.told[node]
	for id, at := range told {
		if now.Sub(at) > tellAgain {
			delete(told, id)
		}
	}
	out := map[string]string{}
	for i := range errs {
		for _, o := range errs[i].Origins {
			if _, already := told[o.Policy]; already {
				continue
			}
			if told == nil {
				told = map[string]time.Time{}
			}
			told[o.Policy], out[o.Policy] = now, errs[i].Message
		}
	}
	if len(told) == 0 {
		delete(f.told, node)
	} else {
		f.told[node] = told
	}
	return out
}

// acknowledged tells users of policies that a node could not put in force.
func (s *server) acknowledged(ctx context.Context, node string, a *wire.Ack) error {
	s.store.Write(store.Change{Nodes: map[string]*store.NodeRecord{node: {Realised: a.Revision, Errors: len(a.Errors)}}})
	fresh := s.failures.fresh(node, a.Errors, time.Now())
	if len(fresh) == 0 {
		return nil
	}
	for id, text := range fresh {
		s.log.Warn("a node could not put all of a policy in force; what it would have let through is denied there", "node", node, "policy", id, "error", text)
	}
	return s.Do(ctx, func(e *resolve.Engine) {
		for id, text := range fresh {
			v, ok := e.Policy(id)
			if !ok {
				continue
			}
			s.cfg.Report.Warn("NetworkPolicy", v.Policy.Namespace, v.Policy.Name, v.Policy.UID, "NotInForce",
				fmt.Sprintf("node %s denies what a rule of this policy should let through: %s", node, strings.TrimSpace(text)))
		}
	})
}

// refused tells users of a node that is not served.
func (s *server) refused(node, message string) {
	s.cfg.Report.Warn("Node", "", node, node, "FlowkeepRefused", message+"; the node enforces the rules it last had")
}
