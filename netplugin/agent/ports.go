package agent

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/ofctl/ovsdb"
)

const (
	// portInterval is the time between two comparisons of the bridge's ports for which there was no reason.
	portInterval = 30 * time.Second
	// minPodNumber and maxPodNumber bound the OpenFlow numbers of pods' ports (ovs-vswitchd.conf.db(5), ofport_request).
	minPodNumber = 256
	maxPodNumber = 65279
)

// ensureNodePorts creates what is missing of the bridge and the ports that lead to the node and to other nodes, and
// returns the ports' numbers; that of the tunnel is 0 without one.
func (r *runner) ensureNodePorts(ctx context.Context) (gw, wire, tunnel uint32, err error) {
	if err = r.db.EnsureBridge(ctx, ovsdb.BridgeSpec{Name: r.cfg.Bridge, DatapathType: r.cfg.DatapathType}); err != nil {
		return
	}
	internal := func(name string) (uint32, error) {
		return r.db.EnsurePort(ctx, ovsdb.PortSpec{Bridge: r.cfg.Bridge, Name: name, Internal: true})
	}
	if gw, err = internal(hostnet.Gateway); err != nil {
		return
	}
	if wire, err = internal(hostnet.Wire); err != nil {
		return
	}
	tunnel, err = r.ensureTunnel(ctx)
	return
}

// EnsurePort creates a pod's port where it is missing, and returns its number. A new port gets a number that no other
// pod has had since the counter of numbers began anew: flows of a pod that has ended are never those of another one.
func (r *runner) EnsurePort(ctx context.Context, name string, e *endpoints.Endpoint) (uint32, error) {
	r.neighbours(e)
	number := e.Port
	if number == 0 {
		number = freeNumber(e.Order, r.manager.List())
	}
	return r.db.EnsurePort(ctx, ovsdb.PortSpec{
		Bridge:      r.cfg.Bridge,
		Name:        name,
		Number:      number,
		ExternalIDs: map[string]string{"pod": e.ID(), "container": e.ContainerID},
	})
}

// freeNumber returns the first number from the order's on that no endpoint has.
func freeNumber(order uint64, all []endpoints.Endpoint) uint32 {
	used := map[uint32]bool{}
	for i := range all {
		used[all[i].Port] = true
	}
	const span = maxPodNumber - minPodNumber + 1
	for n := range uint64(span) {
		if number := uint32(minPodNumber + (order+n)%span); !used[number] {
			return number
		}
	}
	return 0
}

// learnPorts reads the ports' numbers again: a switch that was restarted may have given others. A pod without a port has
// no flows: its number may be another pod's by now.
func (r *runner) learnPorts(ctx context.Context) error {
	ports, err := r.db.Ports(ctx, r.cfg.Bridge)
	if err != nil {
		return err
	}
	number := map[string]uint32{}
	for _, p := range ports {
		number[p.Name] = p.OFPort
	}
	return r.do(ctx, func() {
		r.renumber(number)
		gw, wire, tunnel := number[hostnet.Gateway], number[hostnet.Wire], number[hostnet.Tunnel]
		if gw != 0 && wire != 0 && (gw != r.node.gateway.Port || wire != r.node.wire.Port || tunnel != r.node.tunnel) {
			r.node.gateway.Port, r.node.wire.Port, r.node.tunnel = gw, wire, tunnel
			r.configure(ctx)
		}
	})
}

// renumber gives pods the numbers that their ports have, by the names of their links. It first closes pods whose number
// has changed, so that two pods can exchange numbers.
func (a *agent) renumber(number map[string]uint32) {
	var changed []*pod
	for _, p := range a.pods {
		if n := number[p.endpoint.HostIfName]; n != p.endpoint.Port {
			p.endpoint.Port = n
			a.compiler.RemoveEndpoint(p.endpoint.ID())
			changed = append(changed, p)
		}
	}
	for _, p := range changed {
		if p.settled {
			a.compiler.PutEndpoint(local(&p.endpoint))
		}
	}
}

// portKeeper keeps the bridge and its ports as they should be.
type portKeeper struct{ *runner }

// keepPorts recreates what another program removes of the bridge and its ports, until ctx ends.
func (k *portKeeper) keepPorts(ctx context.Context) {
	again := time.NewTimer(portInterval)
	defer again.Stop()
	problem := ""
	for {
		select {
		case <-k.db.Changes():
		case <-again.C:
		case <-ctx.Done():
			return
		}
		err := k.repairPorts(ctx)
		next, text := portInterval, ""
		if err != nil && ctx.Err() == nil {
			next, text = retryEvery, err.Error()
		}
		if text != "" && text != problem {
			k.log.Error("could not recreate ports of the bridge; their packets are denied", "error", err)
		}
		problem = text
		k.cfg.Health.SetReady("ports", text)
		again.Reset(next)
		select {
		case <-time.After(minHostGap):
		case <-ctx.Done():
		}
	}
}

// repairPorts compares the bridge's ports with those that are wanted. While ovsdb-server is away it does nothing: the
// switch keeps its ports.
func (k *portKeeper) repairPorts(ctx context.Context) error {
	if !k.db.Connected() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	have, lost, err := k.comparePorts(ctx)
	if err != nil {
		return err
	}
	if len(lost) > 0 {
		if _, _, _, err := k.ensureNodePorts(ctx); err != nil {
			return err
		}
	}
	pods, podsErr := k.manager.EnsurePorts(ctx, have)
	if lost = append(lost, pods...); len(lost) > 0 {
		k.metrics.hostRepairs.WithLabelValues(objectPort).Add(float64(len(lost)))
		k.log.Warn("another program removed ports of the bridge; recreated", "ports", lost)
	}
	return errors.Join(podsErr, k.relearn(ctx))
}

// objectPort is the value of the label object of host repairs for the bridge and its ports.
const objectPort = "port"

// comparePorts returns the names of the bridge's ports, and what is missing of the bridge and of the node's own ports.
func (k *portKeeper) comparePorts(ctx context.Context) (have map[string]bool, lost []string, err error) {
	there, _, names, err := k.db.Made(ctx, k.cfg.Bridge)
	if err != nil {
		return nil, nil, err
	}
	have = map[string]bool{k.cfg.Bridge: there}
	for _, n := range names {
		have[n] = true
	}
	wanted := []string{k.cfg.Bridge, hostnet.Gateway, hostnet.Wire}
	if k.cfg.TrafficMode == TrafficGeneve {
		wanted = append(wanted, hostnet.Tunnel)
	}
	return have, slices.DeleteFunc(wanted, func(n string) bool { return have[n] }), nil
}

// relearn reads the ports' numbers, and changes the flows where one differs.
func (k *portKeeper) relearn(ctx context.Context) error {
	if err := k.learnPorts(ctx); err != nil {
		return err
	}
	var err error
	if doErr := k.do(ctx, func() {
		if k.session == nil {
			return // attach compares all flows
		}
		if mods := k.take(); len(mods) > 0 {
			err = k.commit(ctx, mods)
			k.report()
		}
	}); doErr != nil {
		return doErr
	}
	return err
}

// keepSwept takes apart, at the start and every half a minute, what a crash or the container runtime left of pods.
func (k *portKeeper) keepSwept(ctx context.Context) {
	again := time.NewTicker(retryEvery)
	defer again.Stop()
	var swept time.Time
	for {
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
		if k.manager.Ready() != nil || time.Since(swept) < hostInterval {
			continue
		}
		if k.manager.Sweep(ctx) == nil {
			swept = time.Now()
		}
	}
}
