package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// localPods opens and closes the ports of this node's pods. Its fields belong to the owner goroutine.
type localPods struct {
	a      *agent
	byID   map[string]*pod // by endpoint ID
	asked  asked
	limits limits
}

// pod is a pod that is wired here, or is being wired.
type pod struct {
	endpoint endpoints.Endpoint
	settled  bool
	number   uint64     // of the write that has its rules
	done     chan error // receives one result when the pod is in force; nil afterwards
}

// restorePods opens the ports of pods that were in force before a restart; the rules that they wait for are on disk.
func (lp *localPods) restorePods(wired []endpoints.Endpoint) {
	for _, e := range endpoints.Latest(wired) {
		if e.Realised {
			lp.byID[e.ID()] = &pod{endpoint: e, settled: true}
			lp.a.compiler.PutEndpoint(local(&e))
			lp.a.ended.Had(e.Addresses)
		}
	}
}

func (lp *localPods) announce(e *endpoints.Endpoint) {
	lp.asked.announce(lifeOf(e))
	lp.a.client.Announce(announcement(e))
}

func announcement(e *endpoints.Endpoint) wire.Announcement {
	return wire.Announcement{Namespace: e.Namespace, Name: e.Name, UID: e.UID, Addresses: e.Addresses}
}

// openSettled opens the pods that netmaster has said to be covered.
func (lp *localPods) openSettled(settled []policy.SettledEndpoint) (opened []*pod) {
	certain := lp.asked.answered(settled)
	for _, s := range settled {
		p := lp.byID[s.ID]
		switch {
		case p == nil || p.settled || s.UID != p.endpoint.UID:
		case !certain[life{s.ID, s.UID}]:
			lp.announce(&p.endpoint)
		case lp.a.disk.diskProblem() != nil:
			p.finish(lp.a.disk.diskProblem())
		default:
			p.settled = true
			lp.a.compiler.PutEndpoint(local(&p.endpoint))
			opened = append(opened, p)
		}
	}
	return opened
}

func (p *pod) finish(err error) {
	if p.done != nil {
		p.done <- err
		p.done = nil
	}
}

// Realize returns when the pod's rules are in force and on disk, and its port is open, or with ctx. What the switch
// knows of its addresses' last pod is deleted before.
func (lp *localPods) Realize(ctx context.Context, e endpoints.Endpoint) error {
	began := time.Now()
	if err := lp.a.disk.diskProblem(); err != nil {
		return err
	}
	if err := lp.a.ended.Free(ctx, e.Addresses); err != nil {
		return err
	}
	done := make(chan error, 1)
	err := lp.a.do(ctx, func() {
		have := lp.byID[e.ID()]
		if have != nil && have.settled && have.endpoint.Equal(&e) {
			have.done = done
			lp.a.disk.finishPods()
			return
		}
		switch {
		case have == nil:
		case have.endpoint.ContainerID != e.ContainerID:
			_ = lp.shut(ctx, have) // before its rules go: the name stands for another pod, or another sandbox, from here on
		case !slices.Equal(have.endpoint.Addresses, e.Addresses):
			lp.unannounced(&have.endpoint)
		}
		lp.byID[e.ID()] = &pod{endpoint: e, done: done}
		lp.a.translation.podChanged(e.Addresses)
		lp.announce(&e)
	})
	if err != nil {
		return err
	}
	select {
	case err := <-done:
		if err == nil {
			lp.a.metrics.realizeSeconds.Observe(time.Since(began).Seconds())
		}
		return err
	case <-ctx.Done():
	}
	if !lp.a.client.Connected() {
		return fmt.Errorf("netmaster cannot be reached, so the pod's policies are not known; the kubelet tries again: %s",
			lp.a.client.Problem())
	}
	return errors.New("netmaster has not resolved the pod's policies in time; the kubelet tries again")
}

// forgetting bounds how long a pod's end waits until its connections are forgotten.
const forgetting = 2 * time.Second

// Forget closes the pod's port and then deletes its connections: other pods will get its addresses.
func (lp *localPods) Forget(ctx context.Context, e endpoints.Endpoint) error {
	var failed error
	var gone []netip.Addr
	err := lp.a.do(ctx, func() {
		if have := lp.byID[e.ID()]; have != nil && have.endpoint.ContainerID == e.ContainerID &&
			have.endpoint.IfName == e.IfName {
			delete(lp.byID, e.ID())
			failed = lp.shut(ctx, have)
		}
		gone = lp.unowned(e.Addresses)
	})
	waiting, cancel := context.WithTimeout(ctx, forgetting)
	defer cancel()
	lp.a.ended.Gone(waiting, e.ID(), gone)
	return errors.Join(err, failed)
}

// unowned returns the addresses that no attached pod has.
func (lp *localPods) unowned(addrs []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(addrs), func(addr netip.Addr) bool {
		for _, p := range lp.byID {
			if slices.Contains(p.endpoint.Addresses, addr) {
				return true
			}
		}
		return false
	})
}

// shut closes the pod's port and then says that the pod is gone.
func (lp *localPods) shut(ctx context.Context, p *pod) error {
	p.finish(errors.New("the pod's name was given to another container meanwhile"))
	lp.a.compiler.RemoveEndpoint(p.endpoint.ID())
	lp.a.zoneLimits.uncap(p.endpoint.ID())
	lp.a.translation.podChanged(p.endpoint.Addresses)
	mods := lp.a.take()
	var err error
	if lp.a.session != nil {
		if err = lp.a.commit(ctx, mods); err == nil {
			lp.a.translation.endStale()
		}
		lp.a.report()
	}
	lp.unannounced(&p.endpoint)
	lp.a.client.Withdraw(announcement(&p.endpoint))
	return err
}

// mostEarlier is how many responses for earlier sandboxes are passed over. A pod that netmaster does not have, and whose
// ADD fails again and again, has one more of them each time: they would delay it when netmaster has it at last.
const mostEarlier = 8

// unannounced ends the announcement of an attached endpoint: netmaster's response to it is no longer expected.
func (lp *localPods) unannounced(e *endpoints.Endpoint) {
	if lp.asked.end(lifeOf(e)) > mostEarlier {
		lp.a.client.Anew("netmaster had no record of a pod after repeated announcements")
	}
}

func local(e *endpoints.Endpoint) pipeline.LocalEndpoint {
	return pipeline.LocalEndpoint{
		ID:        e.ID(),
		Port:      e.Port,
		MAC:       ofctl.MAC(e.MAC),
		Addresses: e.Addresses,
		Bandwidth: pipeline.Bandwidth(e.Bandwidth),
	}
}
