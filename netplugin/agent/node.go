package agent

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

func (nc *nodeConfig) self() policy.NodeInfo {
	for _, n := range nc.a.rules.nodes {
		if n.Name == nc.a.cfg.Node {
			return n
		}
	}
	return policy.NodeInfo{Name: nc.a.cfg.Node}
}

// nodeConfig compiles the flows of the node itself, from what does not come from the feed. Its fields belong to the
// owner goroutine.
type nodeConfig struct {
	a          *agent
	infos      chan []policy.NodeInfo // to the keeper of the node's own network
	configured bool                   // the node's own flows are compiled
	gateway    pipeline.Device
	wire, out  pipeline.Device
	tunnel     uint32   // port; 0: none
	meters     uint32   // of each kind, for records of denied packets; 0: none
	answers    bool     // there are meters for packets to answer
	limits     bool     // there are meters for pods' bandwidth
	full       bool     // as in pipeline.Config
	capped     []string // as in pipeline.Config
	refused    []string // likewise
	services   []netip.Prefix
	clusters   []netip.Prefix
	ways       map[string]hostnet.PeerWay // to other nodes, in traffic mode auto; without an entry: the tunnel
	cluster    *hostnet.Cluster           // of the last flows
	returned   []netip.Prefix             // as in pipeline.Config
	// problems are for any goroutine; nil until the first comparison of the host's network.
	problems atomic.Pointer[[]inspect.NetworkProblem]
}

// configure compiles what is known of the node.
func (nc *nodeConfig) configure(ctx context.Context) {
	self := nc.self()
	if len(self.PodCIDRs) == 0 {
		return
	}
	nc.configured = true
	nc.compileNode(&self)
	nc.a.ended.NodeIs(slices.Concat(hostnet.GatewayAddrs(self), self.Addresses))
	if nc.a.session != nil {
		_ = nc.a.commit(ctx, nc.a.take())
		nc.a.report()
	}
	nc.a.checkComplete()
}

// shutLost comes before the node's stack is set up, and openSetUp after it. The stack forgets podCIDRs that the node has lost, and no longer sends what it translates
// for their pods back to be judged: by then these must have no way to it (docs/decisions/002). Those that the node has again get one when the stack knows them.
func (nc *nodeConfig) shutLost(ctx context.Context) {
	if !nc.configured {
		return
	}
	self := nc.self()
	nc.returned = slices.DeleteFunc(slices.Clone(nc.returned), func(p netip.Prefix) bool {
		return !slices.Contains(self.PodCIDRs, p)
	})
	nc.configure(ctx)
}

func (nc *nodeConfig) openSetUp(ctx context.Context, podCIDRs []netip.Prefix) {
	nc.returned = podCIDRs
	nc.configure(ctx)
}

// setWays sets the ways to other nodes, which the next configure compiles.
func (nc *nodeConfig) setWays(w map[string]hostnet.PeerWay) { nc.ways = w }

// compileNode makes the flows that follow from the node itself.
func (nc *nodeConfig) compileNode(self *policy.NodeInfo) {
	cfg := pipeline.Config{
		Gateway:      nc.gateway,
		Wire:         nc.wire,
		Out:          nc.out,
		Pods:         nc.clusterOf(*self).Pods,
		NodeAddrs:    self.Addresses,
		PodCIDRs:     self.PodCIDRs,
		Returned:     nc.returned,
		GatewayAddrs: hostnet.GatewayAddrs(*self),
		ServiceCIDRs: nc.services,
		Tunnel:       nc.tunnelConfig(*self),
		Meters:       nc.meters,
		Answers:      nc.answers,
		Limits:       nc.limits,
		Full:         nc.full,
		Capped:       nc.capped,
		Refused:      nc.refused,
		Services:     nc.a.translation.serviceConfig(),
	}
	nc.a.answers.config.Store(&cfg)
	nc.a.compiler.SetConfig(cfg)
	nc.a.translation.compileHostPorts()
	nc.a.translation.noteSoon()
}
