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
// which each pod opened held: those that nextCapped returns; and where pods hold half of a table that is nearly full,
// all that hold some, so that the node's own connections find room. Without a limit,
// 0, it returns none.
func nextRefused(held map[string]uint32, count, limit uint32, before []string) (refused []string) {
	var all uint32
	for pod, n := range held {
		all += n
		refused = append(refused, pod)
	}
	if limit == 0 || count < limit/8*refuseFrom || all < limit/2 {
		return nextCapped(held, count, limit, before)
	}
	slices.Sort(refused)
	return refused
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

// refuse sets which pods are refused, and logs those that were not, or are not any more.
func (nt *nodeTable) refuse(ctx context.Context, opened map[netip.Addr]uint32, count, most uint32) error {
	if !nt.shares.capping && opened == nil {
		return nil
	}
	return nt.a.do(ctx, func() {
		held, before := nt.a.heldByPods(opened), nt.a.node.refused
		refused := nextRefused(held, count, most, before)
		nt.shares.capping = len(refused) > 0
		if slices.Equal(before, refused) {
			return
		}
		for _, pod := range refused {
			if !slices.Contains(before, pod) {
				nt.a.log.Warn("a pod holds many of the connections of the node's kernel, which has little room; "+
					"its new ones are dropped", "pod", pod, "connections", held[pod], "all", count, "limit", most)
			}
		}
		for _, pod := range before {
			if !slices.Contains(refused, pod) {
				nt.a.log.Info("a pod may open connections again", "pod", pod)
			}
		}
		nt.a.node.refused = refused
		nt.a.node.countCapped()
		nt.a.node.configure(ctx)
	})
}
