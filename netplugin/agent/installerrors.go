package agent

import (
	"cmp"
	"slices"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netplugin/datapath"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
)

// wrong is what is not in force: the flows that the switch would not take, each with the rules it serves, and why the last
// bundle failed. It belongs to the owner.
type wrong struct {
	flows map[datapath.Key]wire.RuleError
	last  error
	told  []wire.RuleError // to netmaster
	// switchProblem is why nothing passes though there is a session.
	switchProblem string
	// databaseProblem is why no port is made, or why the switch does not start to forward.
	databaseProblem string
}

func newWrong() wrong { return wrong{flows: map[datapath.Key]wire.RuleError{}} }

// refused reports whether the switch refused the flow. Such a flow is no drift; the next connection sends it again.
func (w *wrong) refused(f *ofctl.Flow) bool {
	_, ok := w.flows[datapath.KeyOf(f)]
	return ok
}

// untold reports whether the switch refused a flow that only logs dry runs and so belongs to no rule.
func (w *wrong) untold() bool {
	for _, e := range w.flows {
		if len(e.Rules) == 0 {
			return true
		}
	}
	return false
}

// forget deletes the errors for a new connection, which compares and sends everything again.
func (w *wrong) forget() {
	clear(w.flows)
	w.last = nil
}

// again adds what would be modified where the switch does not have it, for it refused it before: a strict modify of a flow that
// is not there does nothing.
func (w *wrong) again(mods []ofctl.FlowMod) []ofctl.FlowMod {
	if len(w.flows) == 0 {
		return mods
	}
	mods = slices.Clone(mods)
	for i := range mods {
		if mods[i].Command == ofctl.Modify && w.refused(&mods[i].Flow) {
			mods[i].Command = ofctl.Add
		}
	}
	return mods
}

// committed takes over what became of a bundle: whatever was refused before and is in it is either in force now, or no longer
// wanted, or refused again.
func (w *wrong) committed(mods []ofctl.FlowMod, refused []datapath.Refusal, err error, describe func(*ofctl.Flow) pipeline.Note) {
	w.last = err
	for i := range mods {
		if mods[i].Command == ofctl.DeleteAll {
			clear(w.flows)
		}
		if mods[i].Command == ofctl.DeleteCookie {
			continue // it names no flow
		}
		delete(w.flows, datapath.KeyOf(&mods[i].Flow))
	}
	for i := range refused {
		f := &refused[i].Flow
		if pipeline.IsLearned(f) { // it was the switch's own before a restart
			continue
		}
		n := describe(f)
		w.flows[datapath.KeyOf(f)] = wire.RuleError{Rules: n.Rules, Origins: n.Origins, Message: refused[i].Err.Error()}
	}
}

// list returns everything that is wrong, in a fixed order; what concerns all rules first.
func (w *wrong) list(switchAway bool, disk error) []wire.RuleError {
	var out []wire.RuleError
	for _, e := range w.flows {
		if len(e.Rules) > 0 { // else it tells of a dry run, and is no rule's
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b wire.RuleError) int { return cmp.Compare(a.Message, b.Message) })
	switch {
	case w.last != nil:
		out = slices.Insert(out, 0, wire.RuleError{Message: w.last.Error()})
	case switchAway:
		out = slices.Insert(out, 0, wire.RuleError{Message: "Open vSwitch is away: what changes waits for it"})
	}
	if disk != nil {
		out = slices.Insert(out, 0, wire.RuleError{Message: disk.Error()})
	}
	return out
}

func (a *agent) notInForce() []wire.RuleError {
	_, disk := a.disk.saver.progress()
	return a.wrong.list(a.session == nil, disk)
}

// report reports changed errors to netmaster without waiting for an update.
func (a *agent) report() {
	now := a.notInForce()
	if slices.EqualFunc(now, a.wrong.told, func(x, y wire.RuleError) bool { return x.Message == y.Message && slices.Equal(x.Rules, y.Rules) }) {
		return
	}
	a.sendReport(now)
}

func (a *agent) sendReport(now []wire.RuleError) {
	a.wrong.told = now
	a.client.Report(wire.Ack{Revision: a.disk.saved, Errors: now})
}
