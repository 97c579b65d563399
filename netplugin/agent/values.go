package agent

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/ofctl/ovsdb"
)

// Values of the label object of host repairs: ports that were removed or changed, and values of the bridge.
const (
	objectPort   = "port"
	objectBridge = "bridge"
)

// ensureBridge creates the bridge where it is missing, corrects it and its ports, and returns what other programs had
// changed.
func (r *runner) ensureBridge(ctx context.Context) ([]ovsdb.Change, error) {
	changes, err := r.db.EnsureBridge(ctx, ovsdb.BridgeSpec{
		Name:         r.cfg.Bridge,
		DatapathType: r.cfg.DatapathType,
		Prefixes:     r.cfg.prefixes(),
		FlowLimit:    maxMegaflows,
		Ports:        r.cfg.portSpecs(r.manager, int(r.linkMTU.Load())),
	})
	for _, c := range changes {
		r.metrics.countWrites(objectOf(c), c.Name+" "+c.Column)
	}
	return changes, err
}

// portSpecs returns the node's own ports, and those of its pods; of may be nil. Pods whose ADD has not ended are not
// among them.
func (c *Config) portSpecs(of *endpoints.Manager, mtu int) []ovsdb.PortSpec {
	var specs []ovsdb.PortSpec
	for _, name := range hostnet.Devices {
		specs = append(specs, c.internalPort(name, mtu))
	}
	if c.tunnelled() {
		specs = append(specs, c.tunnelPort())
	}
	if of == nil {
		return specs
	}
	for _, e := range of.List() {
		if e.Realised && !e.Superseded {
			specs = append(specs, c.podPort(&e))
		}
	}
	return specs
}

// internalPort returns one of hostnet.Devices as it should be; mtu is 0 while it is not known.
func (c *Config) internalPort(name string, mtu int) ovsdb.PortSpec {
	return ovsdb.PortSpec{Bridge: c.Bridge, Name: name, Internal: true, MTU: mtu}
}

// tunnelPort returns fk-tun as it should be. The flows address what goes into it.
func (c *Config) tunnelPort() ovsdb.PortSpec {
	return ovsdb.PortSpec{
		Bridge: c.Bridge,
		Name:   hostnet.Tunnel,
		Tunnel: TrafficGeneve,
		Options: map[string]string{
			"remote_ip": "flow",
			"local_ip":  "flow",
			"key":       strconv.Itoa(networkIdentifier),
		},
	}
}

// podPort returns a pod's port as it should be.
func (c *Config) podPort(e *endpoints.Endpoint) ovsdb.PortSpec {
	return ovsdb.PortSpec{
		Bridge:      c.Bridge,
		Name:        e.HostIfName,
		Number:      e.Port,
		ExternalIDs: map[string]string{"pod": e.ID(), "container": e.ContainerID},
	}
}

// requestMTU sets the MTU that hostnet.Devices request of the switch, and wakes keepPorts; 0: it is not known.
// Without a request the switch gives them the least MTU of all ports, and 1500 without any (ovs-vswitchd.conf.db(5),
// mtu_request).
func (r *runner) requestMTU(mtu int) {
	if mtu == 0 || r.linkMTU.Swap(int64(mtu)) == int64(mtu) {
		return
	}
	select {
	case r.lostLinks <- struct{}{}:
	default:
	}
}

// isMTURequest reports whether a change is about an MTU. netplugin requests another after the MTU of the node has
// changed.
func isMTURequest(c ovsdb.Change) bool { return c.Column == "mtu_request" }

// correctBridge restores the values that another program changed of the bridge and its ports.
func (k *portKeeper) correctBridge(ctx context.Context) error {
	mtu := k.linkMTU.Load()
	changes, err := k.ensureBridge(ctx)
	if mtu != k.requested {
		changes = slices.DeleteFunc(changes, isMTURequest)
	}
	if err == nil {
		k.requested = mtu
	}
	compareFlushed(k.flushed, changes)
	logged := slices.DeleteFunc(slices.Clone(changes), func(c ovsdb.Change) bool {
		return len(k.countRepairs(objectOf(c), c.Name+" "+c.Column)) == 0
	})
	if len(logged) > 0 {
		k.log.Warn("another program changed the bridge in Open vSwitch's database; corrected", "bridge", k.cfg.Bridge,
			"changes", texts(logged))
	}
	if err != nil {
		return fmt.Errorf("correct the bridge: %w", err)
	}
	return nil
}

// compareFlushed makes keepFlushed compare the flows after changes with which ovs-vswitchd deletes them.
func compareFlushed(flushed chan<- struct{}, changes []ovsdb.Change) {
	if slices.ContainsFunc(changes, ovsdb.Change.FlushesFlows) {
		select {
		case flushed <- struct{}{}:
		default:
		}
	}
}

// keepFlushed makes a drift check after each correction with which ovs-vswitchd deletes flows, until ctx ends.
func (k *portKeeper) keepFlushed(ctx context.Context) {
	for {
		select {
		case <-k.flushed:
		case <-ctx.Done():
			return
		}
		bounded, cancel := context.WithTimeout(ctx, connectTimeout)
		err := k.db.AwaitConfig(bounded)
		cancel()
		if err != nil && ctx.Err() == nil {
			k.log.Warn("Open vSwitch has not taken over its corrected configuration yet", "error", err)
		}
		k.drift.Check(ctx)
	}
}

// objectOf returns the label of a change in the metric of repairs.
func objectOf(c ovsdb.Change) string {
	if c.IsOfBridge() {
		return objectBridge
	}
	return objectPort
}

// maxChanges is how many changes a log line has.
const maxChanges = 8

// texts returns the first changes as a log has them.
func texts(changes []ovsdb.Change) (all []string) {
	for _, c := range changes[:min(len(changes), maxChanges)] {
		all = append(all, c.String())
	}
	if more := len(changes) - len(all); more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	return all
}
