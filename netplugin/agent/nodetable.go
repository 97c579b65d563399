package agent

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"
)

// nodeTable bounds what pods hold of the kernel's table of connections. Limits of the bridge's zones do not: the node's
// stack keeps entries for longer than Open vSwitch's userspace datapath (a SYN for 120 s and not 30 s), and has some
// that the bridge does not commit, as of TCP segments of unknown connections. Its fields belong to the goroutine of
// keepShares.
type nodeTable struct {
	a      *agent
	shares shares
	all    bool // all pods that hold some are refused
	size   func() (count, most uint32, err error)
	opened func(pods []netip.Prefix) (map[netip.Addr]uint32, error)
}

// tableSize returns the number of entries of the kernel's table, and its limit.
func tableSize() (count, most uint32, err error) {
	count, err = readNumber(trackedEntries)
	most, err2 := readNumber(trackable)
	return count, most, cmp.Or(err, err2)
}

// nextRefused returns the pods that open no connections at all, sorted, where the kernel's table has count entries, of
// which each pod opened held: those that nextCapped returns; or all that hold some, so that the node's own connections
// find room. It is all from refuseFrom entries on where pods hold half of the table, until there are fewer than
// allowBelow, or pods hold less than three eighths. Without a limit, 0, it returns none.
func nextRefused(
	held map[string]uint32, count, limit uint32, before []string, wasAll bool,
) (refused []string, all bool) {
	var sum uint32
	for pod, n := range held {
		sum += n
		refused = append(refused, pod)
	}
	eighth := limit / 8
	all = count >= refuseFrom*eighth && sum >= 4*eighth || wasAll && count >= allowBelow*eighth && sum >= 3*eighth
	if limit == 0 || !all {
		return nextCapped(held, count, limit, before), false
	}
	slices.Sort(refused)
	return refused, true
}

// bound reads how many entries the table has and, where it is nearly full or pods are refused, of which pods.
func (nt *nodeTable) bound(ctx context.Context) error {
	count, most, err := nt.size()
	if err != nil {
		return nil //nolint:nilerr // the kernel tracks none yet
	}
	s, began := &nt.shares, time.Now()
	if !s.wanted(count, most) {
		s.failed = 0
		return nt.refuse(ctx, nil, 0, 0)
	}
	if !s.due(count, most, began) {
		return nil
	}
	var pods []netip.Prefix
	if err := nt.a.do(ctx, func() { pods = nt.a.node.self().PodCIDRs }); err != nil {
		return err
	}
	opened, err := nt.opened(pods)
	s.read(count, time.Since(began), time.Now())
	if err == nil {
		s.failed = 0
		return nt.refuse(ctx, opened, count, most)
	}
	if s.failed++; s.failed < maxFailedReadings {
		return err
	}
	return errors.Join(err, nt.refuse(ctx, nil, 0, 0))
}

// refuse sets which pods are refused.
func (nt *nodeTable) refuse(ctx context.Context, opened map[netip.Addr]uint32, count, most uint32) error {
	if !nt.shares.capping && opened == nil {
		return nil
	}
	return nt.a.do(ctx, func() {
		held, before := nt.a.heldByPods(opened), nt.a.node.refused
		refused, all := nextRefused(held, count, most, before, nt.all)
		wasAll := nt.all
		nt.shares.capping, nt.all = len(refused) > 0, all
		if slices.Equal(before, refused) {
			return
		}
		if !all || !wasAll { // while it is all, the pods that hold some may be others each second
			nt.note(before, refused, held, "all", count, "limit", most)
		}
		nt.a.node.refused = refused
		nt.a.node.countCapped()
		nt.a.node.configure(ctx)
	})
}

// maxNamed is how many pods a line of the log names.
const maxNamed = 8

// note logs in a line how many pods are refused that were not before, with those of them that hold the most
// connections, and in another how many are not refused any more.
func (nt *nodeTable) note(before, refused []string, held map[string]uint32, table ...any) {
	without := func(pods, others []string) []string {
		return slices.DeleteFunc(slices.Clone(pods), func(pod string) bool { return slices.Contains(others, pod) })
	}
	if added := without(refused, before); len(added) > 0 {
		slices.SortStableFunc(added, func(p, q string) int { return cmp.Compare(held[q], held[p]) })
		values := []any{"pods", len(added), "first", added[:min(len(added), maxNamed)], "most", held[added[0]]}
		nt.a.log.Warn("pods hold many of the connections of the node's kernel, which has little room; "+
			"their new ones are dropped", append(values, table...)...)
	}
	if ended := without(before, refused); len(ended) > 0 {
		nt.a.log.Info("pods may open connections again", "pods", len(ended))
	}
}
