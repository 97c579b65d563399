package pipeline

import (
	"slices"

	"github.com/flowkeep/flowkeep/ofctl"
)

// refusal is a flow of a Service that the switch does not take.
type refusal struct {
	flow ofctl.Flow
	err  error
}

// Refuse notes that the switch does not take a flow whose purpose is Serve, and returns the IDs of the Services that
// want it. Each must be put again: then a frontend that the flow serves is rejected, or its endpoint is left out, and
// PutService returns why. The same flow is compiled no more until RetryRefused.
func (c *Compiler) Refuse(f *ofctl.Flow, err error) (ids []string) {
	key := keyOf(f)
	c.services.refused[key] = append(c.services.refused[key], refusal{*f, err})
	for _, o := range c.services.owners[key] {
		ids = append(ids, o.owner)
	}
	c.services.without = append(c.services.without, ids...)
	return ids
}

// RetryRefused forgets what the switch has refused, and returns the Services that are compiled without: each must be
// put again.
func (c *Compiler) RetryRefused() (ids []string) {
	ids, c.services.without = c.services.without, nil
	clear(c.services.refused)
	slices.Sort(ids)
	return slices.Compact(ids)
}

// why returns why the switch does not take a flow; nil: nothing is known against it.
func (s *services) why(f *ofctl.Flow) error {
	for _, r := range s.refused[keyOf(f)] {
		if sameFlow(&r.flow, f) {
			return r.err
		}
	}
	return nil
}

// since returns why the switch does not take one of the flows that were added after the first n.
func (o *serviceFlows) since(n int) error {
	if len(o.services.refused) == 0 {
		return nil
	}
	for i := range o.flows[n:] {
		if err := o.services.why(&o.flows[n+i]); err != nil {
			return err
		}
	}
	return nil
}

// place adds a flow of a frontend or, where the switch refuses it, one that rejects the same packets. It reports
// whether there is the one or the other.
func (o *serviceFlows) place(p *pool, table uint8, prio uint16, m ofctl.Match, actions ...ofctl.Action) bool {
	at := len(o.flows)
	for _, do := range [][]ofctl.Action{actions, o.cfg.rejection()} {
		o.flows.add(KindFrontend, p.id, table, prio, m, do...)
		err := o.since(at)
		if err == nil {
			return true
		}
		o.flows = o.flows[:at]
		o.problem("a frontend is rejected: %v", err)
	}
	return false
}
