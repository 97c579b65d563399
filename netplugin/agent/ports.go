package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/ofctl/dptype"
)

const (
	// portInterval is the time between two comparisons of the bridge's ports for which there was no reason.
	portInterval = 30 * time.Second
	// minPodNumber and maxPodNumber bound the OpenFlow numbers of pods' ports (ovs-vswitchd.conf.db(5), ofport_request).
	minPodNumber = 256
	maxPodNumber = 65275
	// Numbers of the node's own ports while the switch does not have them. No port gets one of these: Open vSwitch
	// gives numbers from 1 on, and pods request theirs.
	lostGateway = maxPodNumber + 1
	lostWire    = maxPodNumber + 2
	lostOut     = maxPodNumber + 3
	lostTunnel  = maxPodNumber + 4 // the last below OFPP_MAX
)

// ensureNodePorts creates what is missing of the bridge and the ports that lead to the node and to other nodes, and
// returns the ports' numbers.
func (r *runner) ensureNodePorts(ctx context.Context) (n nodeNumbers, err error) {
	changes, err := r.ensureBridge(ctx)
	if len(changes) > 0 {
		r.log.Info("the bridge in Open vSwitch's database was corrected", "changes", texts(changes))
	}
	compareFlushed(r.flushed, changes)
	if err != nil {
		return
	}
	mtu := int(r.linkMTU.Load())
	for _, p := range []struct {
		name   string
		number *uint32
	}{{hostnet.Gateway, &n.gateway}, {hostnet.Wire, &n.wire}, {hostnet.Out, &n.out}} {
		if *p.number, err = r.db.EnsurePort(ctx, r.cfg.internalPort(p.name, mtu)); err != nil {
			return
		}
	}
	n.tunnel, err = r.ensureTunnel(ctx)
	return
}

// EnsurePort creates a pod's port where it is missing, and returns its number. A new port gets a number that no other
// pod has had since the counter of numbers began anew: flows of a pod that has ended are never those of another one.
func (r *runner) EnsurePort(ctx context.Context, name string, e *endpoints.Endpoint) (uint32, error) {
	r.setNeighbours(*e)
	number := e.Port
	if number == 0 {
		number = freeNumber(e.Order, r.manager.List())
	}
	spec := r.cfg.podPort(e)
	spec.Name, spec.Number = name, number
	if err := r.database.do(ctx, func(ctx context.Context) (err error) {
		number, err = r.db.EnsurePort(ctx, spec)
		return err
	}); err != nil {
		return 0, err
	}
	return number, r.pods.claim(ctx, name, number)
}

// claim removes the flows that another owner has on a port's number: the switch gives a number to one port only, so the
// owner has lost its own.
func (lp *localPods) claim(ctx context.Context, name string, number uint32) error {
	var err error
	doErr := lp.a.do(ctx, func() {
		stale := false
		for _, p := range lp.byID {
			if p.endpoint.Port == number && p.endpoint.HostIfName != name {
				p.endpoint.Port, stale = 0, true
				lp.a.compiler.RemoveEndpoint(p.endpoint.ID())
			}
		}
		if n := lp.a.node.without(number); n != lp.a.node.numbers() {
			stale = true
			lp.a.node.setNumbers(ctx, n)
		}
		if stale && lp.a.session != nil { // else attach compares all flows
			err = lp.a.commit(ctx, lp.a.take())
			lp.a.report()
		}
	})
	return errors.Join(doErr, err)
}

// nodeNumbers are the numbers of the ports that lead to the node and to other nodes; the tunnel's is 0 without one.
type nodeNumbers struct{ gateway, wire, out, tunnel uint32 }

func (nc *nodeConfig) numbers() nodeNumbers {
	return nodeNumbers{nc.gateway.Port, nc.wire.Port, nc.out.Port, nc.tunnel}
}

// without returns the numbers with that of a port that is gone replaced by a number that no port has.
func (nc *nodeConfig) without(number uint32) nodeNumbers {
	n := nc.numbers()
	for _, of := range []struct {
		port *uint32
		lost uint32
	}{{&n.gateway, lostGateway}, {&n.wire, lostWire}, {&n.out, lostOut}, {&n.tunnel, lostTunnel}} {
		if *of.port == number && number != 0 {
			*of.port = of.lost
		}
	}
	return n
}

// setNumbers compiles the node's flows again where the numbers of its ports have changed.
func (nc *nodeConfig) setNumbers(ctx context.Context, n nodeNumbers) {
	if n == nc.numbers() {
		return
	}
	nc.gateway.Port, nc.wire.Port, nc.out.Port, nc.tunnel = n.gateway, n.wire, n.out, n.tunnel
	nc.configure(ctx)
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
		r.pods.renumber(number)
		r.node.setNumbers(ctx, numbersOf(number, r.cfg.tunnelled()))
	})
}

// numbersOf returns the numbers of the node's own ports. A port that the switch does not have gets one that no port
// has: its flows leave its former number, which may be another port's.
func numbersOf(number map[string]uint32, tunnelled bool) (n nodeNumbers) {
	n.gateway = cmp.Or(number[hostnet.Gateway], lostGateway)
	n.wire = cmp.Or(number[hostnet.Wire], lostWire)
	n.out = cmp.Or(number[hostnet.Out], lostOut)
	if tunnelled {
		n.tunnel = cmp.Or(number[hostnet.Tunnel], lostTunnel)
	}
	return n
}

// renumber gives pods the numbers that their ports have, by the names of their links. It first closes pods whose number
// has changed, so that two pods can exchange numbers.
func (lp *localPods) renumber(number map[string]uint32) {
	var changed []*pod
	for _, p := range lp.byID {
		if n := number[p.endpoint.HostIfName]; n != p.endpoint.Port {
			p.endpoint.Port = n
			lp.a.compiler.RemoveEndpoint(p.endpoint.ID())
			changed = append(changed, p)
		}
	}
	for _, p := range changed {
		if p.settled {
			lp.a.compiler.PutEndpoint(local(&p.endpoint))
		}
	}
}

// portKeeper keeps the bridge and its ports as they should be.
type portKeeper struct {
	*runner
	requested int64 // MTU of the node's own ports at the last correction of the bridge
}

// keepPorts recreates what another program removes of the bridge and its ports, until ctx ends.
func (k *portKeeper) keepPorts(ctx context.Context) {
	again := time.NewTimer(portInterval)
	defer again.Stop()
	problem := ""
	for {
		select {
		case <-k.db.Changes():
		case <-k.lostLinks:
		case <-again.C:
		case <-ctx.Done():
			return
		}
		busy, err := k.repairPorts(ctx)
		next, text := portInterval, ""
		if busy {
			next = retryEvery
		}
		if err != nil && ctx.Err() == nil {
			next, text = retryEvery, err.Error()
		}
		if text != "" && text != problem {
			k.log.Error("ports of the bridge are missing or not open; their packets are denied", "error", err)
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

// repairPorts compares the bridge's ports with those that are wanted. The flows of a port that is gone go first: its
// number may be another port's in a moment. While ovsdb-server is away it does nothing: the switch keeps its ports. It
// reports whether a port was left to a request that is under way.
func (k *portKeeper) repairPorts(ctx context.Context) (busy bool, err error) {
	if !k.db.Connected() {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	have, err := k.readPorts(ctx)
	if err != nil {
		return false, err
	}
	if have.bridge {
		if err := errors.Join(k.correctBridge(ctx), k.closeLost(ctx, &have), k.relearn(ctx)); err != nil {
			return false, err
		}
	}
	created, nodeErr := have.lost(k.cfg.Bridge, k.cfg.tunnelled()), error(nil)
	if len(created) > 0 || !have.nodeOpen(k.cfg.tunnelled()) {
		if _, nodeErr = k.ensureNodePorts(ctx); nodeErr != nil && !have.bridge {
			return false, nodeErr
		}
	}
	pods, waiting, podsErr := k.manager.EnsurePorts(ctx, have.open)
	created = append(created, slices.DeleteFunc(pods, func(n string) bool { return have.rows[n] })...)
	k.metrics.countWrites(objectPort, created...)
	if nodeErr == nil && len(created) > 0 {
		if logged := k.countRepairs(objectPort, created...); len(logged) > 0 {
			k.log.Warn("another program removed ports of the bridge; recreated", "ports", logged)
		}
	}
	return len(waiting) > 0, errors.Join(nodeErr, podsErr, k.relearn(ctx))
}

// closeLost closes ports that the switch has open without their link, which another program deleted or renamed: the
// switch keeps the device, by which no packet comes.
func (k *portKeeper) closeLost(ctx context.Context, have *bridgePorts) error {
	for _, name := range hostnet.Devices {
		if !have.open[name] || !k.cfg.hasLinks() || !k.isLost(ctx, name) {
			continue
		}
		k.log.Debug("the link of a port is missing; the port is recreated", "port", name)
		bounded, cancel := context.WithTimeout(ctx, controlTime)
		err := k.db.ClosePort(bounded, name)
		cancel()
		if err != nil {
			return err
		}
		delete(have.open, name)
		delete(have.rows, name)
	}
	return nil
}

// isLost reports whether a link is missing, now and a moment later, while there is a connection to the switch: when
// ovs-vswitchd ends its links go, and it creates them when it starts.
func (k *portKeeper) isLost(ctx context.Context, name string) bool {
	missing := func() bool {
		connected := false
		err := k.do(ctx, func() { connected = k.session != nil })
		return err == nil && connected && !hostnet.LinkExists(name)
	}
	if !missing() {
		return false
	}
	select {
	case <-time.After(minHostGap):
		return missing()
	case <-ctx.Done():
		return false
	}
}

// hasLinks reports whether the ports that lead to the node are links: not those of the switch that tests have.
func (c *Config) hasLinks() bool {
	return c.DatapathType == dptype.Netdev || c.DatapathType == dptype.System
}

// bridgePorts are the bridge's ports in the database by name, and those of them that the switch has opened: of a device
// that it cannot open there is a row without a number.
type bridgePorts struct {
	bridge     bool
	rows, open map[string]bool
}

func (k *portKeeper) readPorts(ctx context.Context) (p bridgePorts, err error) {
	there, _, names, err := k.db.Made(ctx, k.cfg.Bridge)
	if err != nil {
		return p, err
	}
	p = bridgePorts{bridge: there, rows: map[string]bool{}, open: map[string]bool{}}
	for _, n := range names {
		p.rows[n] = true
	}
	if !there {
		return p, nil
	}
	opened, err := k.db.Ports(ctx, k.cfg.Bridge)
	for _, o := range opened {
		p.open[o.Name] = true
	}
	return p, err
}

// nodePorts returns the names of the ports that lead to the node and to other nodes.
func nodePorts(tunnelled bool) []string {
	if tunnelled {
		return append(slices.Clone(hostnet.Devices), hostnet.Tunnel)
	}
	return hostnet.Devices
}

// lost returns what the database does not have of the bridge and the node's own ports.
func (p *bridgePorts) lost(bridge string, tunnelled bool) (names []string) {
	if !p.bridge {
		names = append(names, bridge)
	}
	for _, n := range nodePorts(tunnelled) {
		if !p.rows[n] {
			names = append(names, n)
		}
	}
	return names
}

// nodeOpen reports whether the switch has opened all of the node's own ports.
func (p *bridgePorts) nodeOpen(tunnelled bool) bool {
	return !slices.ContainsFunc(nodePorts(tunnelled), func(n string) bool { return !p.open[n] })
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
// After failures the time between two attempts grows from a second to that: each logs an error for each such pod.
func (k *portKeeper) keepSwept(ctx context.Context) {
	again := time.NewTicker(retryEvery)
	defer again.Stop()
	var swept time.Time
	failures := 0
	for {
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
		if k.manager.Ready() != nil || time.Since(swept) < sweepPause(failures) {
			continue
		}
		k.deleteNoted(ctx)
		kept, err := k.manager.Sweep(ctx)
		swept = time.Now()
		if failures++; err == nil {
			failures = 0
		}
		k.pods.reportKept(kept)
	}
}

// sweepPause returns the time between two sweeps after a number of failures in a row.
func sweepPause(failures int) time.Duration {
	if failures == 0 {
		return hostInterval
	}
	return min(retryEvery<<min(failures-1, 8), hostInterval)
}

// reportKept sets metrics and readiness by what a sweep has kept.
func (lp *localPods) reportKept(kept endpoints.Kept) {
	for _, reason := range endpoints.KeptReasons {
		lp.a.metrics.kept.WithLabelValues(reason).Set(float64(len(kept[reason])))
	}
	text := ""
	if n := len(kept[endpoints.KeptLinkUnseen]); n > 0 {
		text = fmt.Sprintf("links of %d pods are not seen here, though nothing proves that the pods have ended", n)
	}
	lp.a.setReady("pods", text)
}

// inHost returns why this may not be the node's network namespace. Flowkeep's links are in that of ovs-vswitchd, where
// pods' links are too.
func inHost() error {
	for _, name := range hostnet.Devices {
		if _, err := net.InterfaceByName(name); err != nil {
			return fmt.Errorf("link %s of the bridge is not seen in this network namespace: %w", name, err)
		}
	}
	return nil
}
