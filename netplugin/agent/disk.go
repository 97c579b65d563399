package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netplugin/cni"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
)

// disk writes the rule set and follows the writes. Its fields belong to the owner goroutine.
type disk struct {
	a      *agent
	state  *state
	saver  *saver
	writes *writes
	// updates of this stream that are not on disk, oldest first
	updates []savedUpdate
	saved   uint64 // revision of the last update of this stream that is on disk; 0: none
	problem string // logged last
}

// savedUpdate is an update on its way to the disk.
type savedUpdate struct {
	number, revision uint64
	acknowledge      func([]wire.RuleError) // nil: it was called
	early            bool                   // it was called before the update was on disk
}

// loadRules reads the rule set at the start. What a disk that takes no writes gives is enforced; without anything the
// switch keeps its flows until netmaster has sent the rules.
func (d *disk) loadRules() (*ruleset, []pipeline.Assignment, error) {
	rules, ids, err := d.state.load()
	if d.state.refused == nil {
		return rules, ids, err
	}
	d.a.metrics.stateErrors.Inc()
	d.a.log.Error("the rule set on disk cannot be opened for writing; policies are enforced from memory",
		"error", d.state.refused, "read", err == nil)
	if err == nil {
		return rules, ids, nil
	}
	d.a.log.Error("the rule set on disk cannot be read; pods keep their flows until netmaster sends the rules",
		"error", err)
	d.a.setReady("rules", "the rule set on disk cannot be read; netmaster has not sent the rules yet")
	return newRuleset(), nil, nil
}

// openSaver starts the writing of the rule set. Where the mark exists, the rules on disk are not trusted;
// nor are they where no mark could have been made: its absence proves nothing there.
func (d *disk) openSaver() {
	mark := readMark(markPath(&d.a.cfg))
	cannot := mark.try()
	if (mark.exists || cannot != nil) && d.a.rules.known {
		d.a.metrics.stateStale.Inc()
		d.a.log.Error("the rule set on disk may miss changes that were in force; "+
			"pods keep their flows until netmaster sends the rules",
			"mark", mark.path, "exists", mark.exists, "error", cannot)
		d.a.rules.known = false
		d.a.rules.revision = max(d.a.rules.revision, mark.held.Revision)
		d.a.setReady("rules", "the rule set on disk is not the last one; netmaster has not sent the rules yet")
	}
	d.a.rules.epoch = max(d.a.rules.epoch, mark.held.Epoch)
	d.writes = newWrites()
	if d.a.cfg.Registerer != nil {
		d.a.cfg.Registerer.MustRegister(d.writes.collector())
	}
	d.saver = &saver{
		file:     d.state,
		snapshot: d.snapshot,
		writes:   d.writes,
		onError:  d.a.metrics.stateErrors.Inc,
		mark:     mark,
		failed:   d.state.refused,
		whole:    d.state.refused != nil,
	}
	d.saver.start()
}

func (a *agent) setReady(part, reason string) {
	if a.cfg.Health != nil {
		a.cfg.Health.SetReady(part, reason)
	}
}

// closeState closes the file of the rule set. While a write hangs it stays open: closing would wait for it.
func (d *disk) closeState() error {
	if !d.saver.close() {
		return d.writes.problem()
	}
	return d.state.close()
}

// snapshot returns the whole rule set and the number of the last change in it.
func (d *disk) snapshot(ctx context.Context) (c change, number uint64, err error) {
	err = d.a.do(ctx, func() {
		nodes := d.a.rules.nodes
		u := d.a.rules.asUpdate()
		c = change{
			whole:   true,
			update:  &u,
			unknown: !d.a.rules.known,
			ids:     d.a.compiler.Assignments(),
			epoch:   d.a.rules.epoch,
			nodes:   &nodes,
		}
		number = d.saver.snapshotTaken()
	})
	return c, number, err
}

// save queues a change for the disk and returns its number. It comes before the change reaches the switch.
func (d *disk) save(c change) uint64 {
	m := marked{Epoch: d.a.rules.epoch, Revision: d.a.rules.revision}
	return d.saver.add(c, d.a.rules.known, m)
}

// diskChanged follows the writes: it acknowledges what is in force and on disk, and reports what is not.
func (d *disk) diskChanged() {
	d.logDisk()
	saved, problem := d.saver.progress()
	d.a.metrics.unsaved.Set(0)
	if problem != nil {
		d.a.metrics.unsaved.Set(1)
	}
	d.finishPods()
	if d.acknowledge(saved, problem) {
		d.a.sendReport(d.a.notInForce())
	}
	d.a.report()
}

// logDisk logs what is wrong with the disk, once, and sets readiness.
func (d *disk) logDisk() {
	_, problem := d.saver.progress()
	text := ""
	if err := errors.Join(problem, d.writes.problem(), d.saver.markProblem()); err != nil {
		text = err.Error()
	}
	if text == d.problem {
		return
	}
	d.problem = text
	d.a.setReady("disk", text)
	if text == "" {
		d.a.log.Info("the state directory is written again")
		return
	}
	d.a.log.Error("the state directory cannot be written; policies are enforced, "+
		"but no change is reported as in force and no pod starts", "error", text)
}

// acknowledge acknowledges the updates that are on disk. With a problem it acknowledges the others too, with what is
// wrong: when they are on disk later, a report is due.
func (d *disk) acknowledge(saved uint64, problem error) (reportDue bool) {
	var waiting []savedUpdate
	for _, u := range d.updates {
		onDisk := u.number <= saved
		reportDue = reportDue || onDisk && u.early
		if u.acknowledge != nil && (onDisk || problem != nil) {
			d.a.wrong.told = d.a.notInForce()
			u.acknowledge(d.a.wrong.told)
			u.acknowledge, u.early = nil, !onDisk
		}
		if onDisk {
			d.saved = u.revision
		} else {
			waiting = append(waiting, u)
		}
	}
	if problem != nil && len(waiting) > 1 { // the list is bounded while the disk is not
		waiting = waiting[len(waiting)-1:]
	}
	d.updates = waiting
	return reportDue
}

// diskProblem returns why pods would wait for the disk, or be attached without their rules on disk.
func (d *disk) diskProblem() error {
	_, problem := d.saver.progress()
	if problem == nil {
		problem = d.writes.problem()
	}
	if problem == nil {
		return nil
	}
	return fmt.Errorf("no pod starts while the node's disk is not written: %w", problem)
}

// finishPods answers for pods that wait: for those with their rules in force and on disk, and with a problem for all.
func (d *disk) finishPods() {
	saved, _ := d.saver.progress()
	problem := d.diskProblem()
	for _, p := range d.a.pods.byID {
		switch {
		case problem != nil:
			p.finish(problem)
		case p.settled && d.a.session != nil && p.number <= saved:
			p.finish(nil)
		}
	}
}

// watchedAllocator has the disk watched while addresses are written. It embeds no Allocator, so that each method of
// that interface is one of its own.
type watchedAllocator struct {
	allocator endpoints.Allocator
	writes    *writes
}

func (w watchedAllocator) Allocate(container, ifName string) ([]netip.Addr, error) {
	defer w.writes.begin("a pod's addresses")()
	return w.allocator.Allocate(container, ifName)
}

func (w watchedAllocator) Release(container, ifName string) error {
	defer w.writes.begin("a pod's addresses")()
	return w.allocator.Release(container, ifName)
}

func (w watchedAllocator) Keep(wanted func(container, ifName string) bool) error {
	defer w.writes.begin("a pod's addresses")()
	return w.allocator.Keep(wanted)
}

// diskGuard refuses CNI requests that would wait for a disk, or write to one that does not take it, and reports what
// Add would fail for.
type diskGuard struct {
	cni.Manager
	agent *agent
}

// Add refuses while the rule set is not written: after a restart the pod would be without its rules.
func (g diskGuard) Add(ctx context.Context, r endpoints.Request) (*endpoints.Result, error) {
	if err := g.agent.disk.diskProblem(); err != nil {
		return nil, err
	}
	return g.Manager.Add(ctx, r)
}

// Del needs no room on the disk, but one that answers.
func (g diskGuard) Del(ctx context.Context, container, ifName string) error {
	if err := g.agent.disk.writes.problem(); err != nil {
		return err
	}
	return g.Manager.Del(ctx, container, ifName)
}

// GC needs what Del needs.
func (g diskGuard) GC(ctx context.Context, valid []string) error {
	if err := g.agent.disk.writes.problem(); err != nil {
		return err
	}
	return g.Manager.GC(ctx, valid)
}

// Ready returns the reason on this node why Add fails. That netmaster is away is none: new pods wait for it, but it is
// away from all nodes at once, and a Node that is not Ready loses its pods.
func (g diskGuard) Ready() error {
	if err := g.agent.disk.diskProblem(); err != nil {
		return err
	}
	switch problem := g.agent.cfg.Health.Parts()["switch"]; problem {
	case "":
	case starting: // pods have the flows from before
		return errors.New("netplugin is starting: no pod gets a port")
	default:
		return fmt.Errorf("%w: %s", endpoints.ErrSwitch, problem)
	}
	return g.Manager.Ready()
}
