package agent

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/contest"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
)

// maxContested is the maximum number of objects in the metric of contested ones.
const maxContested = 20

// tables are Flowkeep's nftables tables.
var tables = contest.Object{Kind: hostnet.ObjectNftables, Name: hostnet.TableName}

// countRepairs counts repairs of objects of a kind that another program changed, and returns those to log: each at most
// once a minute, then with the number of its repairs. An object that is named several times was repaired once.
func (r *runner) countRepairs(kind string, names ...string) (logged []string) {
	names = distinct(names)
	r.metrics.hostRepairs.WithLabelValues(kind).Add(float64(len(names)))
	now := time.Now()
	for _, name := range names {
		if n := r.contests.AddRepair(contest.Object{Kind: kind, Name: name}, now); n > 0 {
			logged = append(logged, r.repairText(contest.Object{Kind: kind, Name: name}, n))
		}
	}
	return logged
}

// distinct returns the names of a list in order, each once.
func distinct(names []string) []string { return slices.Compact(slices.Sorted(slices.Values(names))) }

// repairText returns the name of an object that was repaired a number of times, with the programs that changed it.
func (r *runner) repairText(o contest.Object, repairs int) string {
	var parts []string
	if repairs > 1 {
		parts = append(parts, fmt.Sprintf("%d times", repairs))
	}
	return nameWith(o.Name, append(parts, r.programsOf(o)...))
}

// nameWith returns a name with a list behind it, if that has any.
func nameWith(name string, list []string) string {
	if len(list) == 0 {
		return name
	}
	return name + " (" + strings.Join(list, "; ") + ")"
}

// programsOf returns texts of the programs that changed an object, as far as they are known.
func (r *runner) programsOf(o contest.Object) (out []string) {
	for _, program := range r.contests.Programs(changedObject(o)) {
		out = append(out, "by "+program)
	}
	return out
}

// changedObject returns an object as hostnet.Change names it: a route without its type.
func changedObject(o contest.Object) contest.Object {
	for _, discards := range []string{"blackhole ", "unreachable ", "throw "} {
		o.Name = strings.TrimPrefix(o.Name, discards)
	}
	return o
}

func (r *runner) isKnown(c hostnet.Change) bool {
	return r.contests.IsKnown(contest.Object{Kind: c.Object, Name: c.Name})
}

// addProgram adds the program that changed an object.
func (r *runner) addProgram(c hostnet.Change) {
	r.contests.AddProgram(contest.Object{Kind: c.Object, Name: c.Name}, c.Program, time.Now())
}

// linkObjects are the kinds of objects that the kernel removes with a link, and that a new link does not have.
var linkObjects = []string{"link", "sysctl", "address", "neighbour", "route"}

// isChanged reports whether another program has changed an object that was repaired: not where the wanted configuration
// has changed, nor where one of hostnet.Devices is new, as after a restart of ovs-vswitchd. While parts of Setup fail,
// only an object that it has written since counts: the others may never have been as wanted.
func (h *hostKeeper) isChanged(o contest.Object, now time.Time) bool {
	isNew := func(index int) bool { return h.links.isNew(index, now) }
	ofNewLink := slices.Contains(linkObjects, o.Kind) &&
		slices.ContainsFunc([]int{h.basis.gateway, h.basis.wire, h.basis.out}, isNew)
	return h.isSame && !ofNewLink && (h.steady || h.written[o])
}

// logRepaired counts what the last comparison wrote. It counts and logs as repairs what another program had changed.
func (h *hostKeeper) logRepaired(now time.Time) {
	for _, kind := range slices.Sorted(maps.Keys(h.repaired)) {
		h.metrics.countWrites(kind, h.repaired[kind]...)
		var changed, others []string
		for _, name := range h.repaired[kind] {
			if h.isChanged(contest.Object{Kind: kind, Name: name}, now) {
				changed = append(changed, name)
			} else {
				others = append(others, name)
			}
		}
		if len(others) > 0 {
			h.log.Debug("set up the host's network", "object", kind, "names", strings.Join(others, ", "))
		}
		if logged := h.countRepairs(kind, changed...); len(logged) > 0 {
			h.log.Warn("another program changed the host's network; repaired",
				"object", kind, "names", strings.Join(logged, ", "))
		}
	}
}

// noteWritten adds what the last comparison wrote to written, if parts of Setup failed.
func (h *hostKeeper) noteWritten(failed bool) {
	if !failed || !h.isSame {
		h.written = nil
	}
	if !failed {
		return
	}
	if h.written == nil {
		h.written = map[contest.Object]bool{}
	}
	for kind, names := range h.repaired {
		for _, name := range names {
			h.written[contest.Object{Kind: kind, Name: name}] = true
		}
	}
}

// logSuppressed logs repairs for which there was no log line when they were made.
func (h *hostKeeper) logSuppressed() {
	for o, n := range h.contests.TakeSuppressed(time.Now()) {
		h.log.Warn("another program changed the host's network again; repaired", "object", o.Kind,
			"names", h.repairText(o, n))
	}
}

// postpone lets the repairs of an object of the host's network wait while it is contested, and reports whether the next
// one is not due yet. None waits after a change of the wanted configuration, or of hostnet.Devices, which may be other
// links with the same names. None waits while Flowkeep's nftables tables are contested: the other layer may be missing
// at any time.
func (h *hostKeeper) postpone(object, name string) bool {
	now := time.Now()
	return h.steady && h.isSame && !h.contests.IsContested(tables, now) &&
		h.contests.Postpone(contest.Object{Kind: object, Name: name}, now)
}

// showContested sets the metric of contested objects.
func (h *hostKeeper) showContested() {
	h.metrics.contested.Reset()
	for _, o := range h.contests.Contested(time.Now(), maxContested) {
		h.metrics.contested.WithLabelValues(o.Kind, o.Name).Set(1)
	}
}

// contestedProblem returns the problem of contested objects, as a list of at most one. The text stays the same while
// the objects do, and the programs that are known. It is safe for concurrent use.
func (r *runner) contestedProblem() []inspect.NetworkProblem {
	const maxNamed = 3
	list := r.contests.Contested(time.Now(), maxContested)
	if len(list) == 0 {
		return nil
	}
	text := "another program keeps changing parts of the host's network, and netplugin keeps restoring them:"
	for i, o := range list[:min(len(list), maxNamed)] {
		if i > 0 {
			text += ","
		}
		text += " " + o.Kind + " " + nameWith(o.Name, r.programsOf(o))
	}
	if more := len(list) - maxNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	text += ": stop one of them"
	return []inspect.NetworkProblem{{Kind: inspect.NetworkContested, Node: r.cfg.Node, Text: text}}
}
