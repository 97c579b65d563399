package agent

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"

	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl/dptype"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Traffic modes: how pods of different nodes reach each other (docs/decisions/005).
const (
	TrafficRoute  = "route"
	TrafficGeneve = "geneve"
	// TrafficAuto is a route between two nodes if each is on-link for the other, else Geneve.
	TrafficAuto = "auto"
)

func checkTrafficMode(mode string) error {
	if mode != TrafficRoute && mode != TrafficGeneve && mode != TrafficAuto {
		return fmt.Errorf("--traffic-mode %q: use %s, %s or %s", mode, TrafficRoute, TrafficGeneve, TrafficAuto)
	}
	return nil
}

// tunnelled reports whether there may be tunnels to other nodes.
func (c *Config) tunnelled() bool {
	return c.TrafficMode == TrafficGeneve || c.TrafficMode == TrafficAuto
}

// networkIdentifier of Flowkeep's tunnels: other users of Geneve in the same ovs-vswitchd have others.
const networkIdentifier = 0xf1

// ensureTunnel makes the port of the tunnels, or removes what another mode left.
func (r *runner) ensureTunnel(ctx context.Context) (port uint32, err error) {
	if !r.cfg.tunnelled() {
		return 0, r.db.DeletePort(ctx, r.cfg.Bridge, hostnet.Tunnel)
	}
	return r.db.EnsurePort(ctx, r.cfg.tunnelPort())
}

// split takes a node out of a list.
func split(name string, infos []policy.NodeInfo) (self policy.NodeInfo, others []policy.NodeInfo) {
	self.Name = name
	for _, n := range infos {
		if n.Name == name {
			self = n
		} else {
			others = append(others, n)
		}
	}
	return self, others
}

// tunnelConfig returns the tunnels to the other nodes as the pipeline needs them.
func (nc *nodeConfig) tunnelConfig(self policy.NodeInfo) pipeline.Tunnel {
	if !nc.a.cfg.tunnelled() {
		return pipeline.Tunnel{}
	}
	t := pipeline.Tunnel{Port: nc.tunnel, Address: hostnet.TunnelAddress(self), Mark: nc.tunnelMark()}
	for _, p := range nc.clusterOf(self).Peers {
		way := nc.ways[p.Node]
		t.Peers = append(t.Peers, pipeline.Peer{
			Address:   p.Address,
			PodCIDRs:  p.PodCIDRs,
			NodeAddrs: p.Addresses,
			Routed:    way.Routed,
			Bare:      way.Bare,
			Closed:    way.Closed,
		})
		if way.Routed || way.Bare {
			t.ClusterCIDRs = nc.clusters
		}
	}
	return t
}

// clusterOf returns the CIDRs and addresses of all nodes, which are computed again where nodes or ways have changed.
func (nc *nodeConfig) clusterOf(self policy.NodeInfo) *hostnet.Cluster {
	_, others := split(nc.a.cfg.Node, nc.a.rules.nodes)
	nc.cluster = hostnet.ClusterOf(&hostnet.Config{
		Self:         self,
		Others:       others,
		ClusterCIDRs: nc.clusters,
		Tunnelled:    nc.a.cfg.tunnelled(),
		Ways:         nc.ways,
	}, nc.cluster)
	return nc.cluster
}

// tunnelMark is for the kernel's datapath alone: the other's tunnels do not pass the node's stack, and with a mark Open vSwitch
// finds no route for them.
func (nc *nodeConfig) tunnelMark() uint32 {
	if nc.a.cfg.DatapathType == dptype.System {
		return hostnet.KernelTunnelMark
	}
	return 0
}

// ethernet is the MTU that an interface is taken to have where nothing is known of it.
const ethernet = 1500

// podMTU returns the MTU of new pods: that of Ethernet if the node's interface is unknown.
func podMTU(cfg *hostnet.Config) int {
	switch {
	case cfg.MTU != 0:
		return cfg.MTU
	case cfg.Tunnelled:
		return ethernet - hostnet.Overhead(hostnet.TunnelAddress(cfg.Self))
	}
	return ethernet
}

// underlay finds the pods' MTU where the node's interface is known, has the switch use it, and returns what the tunnels
// lack.
func (r *runner) underlay(cfg *hostnet.Config) error {
	defer func() { r.requestMTU(cfg.MTU) }()
	if !cfg.Tunnelled {
		if cfg.MTU == 0 {
			_, mtu := hostnet.Underlay(cfg.Links, cfg.Self.Addresses)
			cfg.MTU = knownMTU(mtu)
		}
		return nil
	}
	address := hostnet.TunnelAddress(cfg.Self)
	if !address.IsValid() {
		return fmt.Errorf("node %s has no address in its status: no tunnel leads to it", r.cfg.Node)
	}
	name, mtu := hostnet.Underlay(cfg.Links, []netip.Addr{address})
	mtu = knownMTU(mtu)
	if name == "" {
		return fmt.Errorf("no interface has the node's address %s: no tunnel leads to it", address)
	}
	if cfg.MTU == 0 {
		cfg.MTU = cmp.Or(mtu, ethernet) - hostnet.Overhead(address)
	}
	switch {
	case r.cfg.DatapathType == dptype.Netdev && !r.db.HasBridge(name):
		return fmt.Errorf("--traffic-mode %s needs tunnels: with --datapath-type netdev Open vSwitch sends tunnels "+
			"by its own bridges only, and %s, which has the node's address %s, is none: move the address to a bridge "+
			"of datapath_type netdev that holds the interface, or use --traffic-mode route", r.cfg.TrafficMode, name, address)
	case r.cfg.DatapathType == dptype.Netdev && !hostnet.HasSegment(cfg.Links, address):
		return fmt.Errorf("--traffic-mode %s needs tunnels: with --datapath-type netdev Open vSwitch takes no route whose "+
			"next hop is outside of the prefixes of the interface's addresses, and %s is the only host in its own: give "+
			"%s the prefix of its segment, or use --traffic-mode route", r.cfg.TrafficMode, address, name)
	case mtu > 0 && cfg.MTU > mtu-hostnet.Overhead(address):
		return fmt.Errorf("--mtu %d is too large for tunnels over %s: give at most %d", cfg.MTU, name, mtu-hostnet.Overhead(address))
	}
	return nil
}

// knownMTU returns the MTU of the interface with the node's address, and 0 for that of a loopback, which says nothing
// of the way to other nodes.
func knownMTU(mtu int) int {
	const largest = 65535 // of IPv4; a loopback has more
	if mtu > largest {
		return 0
	}
	return mtu
}
