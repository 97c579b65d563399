package agent

import (
	"context"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

func (a *agent) self() policy.NodeInfo {
	for _, n := range a.rules.nodes {
		if n.Name == a.cfg.Node {
			return n
		}
	}
	return policy.NodeInfo{Name: a.cfg.Node}
}

// nodeConfig is what the flows need to know of this node that does not come from the feed.
type nodeConfig struct {
	gateway, wire pipeline.Device
	tunnel        uint32 // port; 0: none
	meters        uint32 // of a kind, to tell of what is denied; 0: none
	services      []netip.Prefix
	returned      []netip.Prefix // as in pipeline.Config
}

// configure compiles what is known of the node.
func (a *agent) configure(ctx context.Context) {
	self := a.self()
	if len(self.PodCIDRs) == 0 {
		return
	}
	a.configured = true
	a.compileNode(&self)
	a.ended.NodeIs(slices.Concat(hostnet.GatewayAddrs(self), self.Addresses))
	if a.session != nil {
		_ = a.commit(ctx, a.take())
		a.report()
	}
	a.checkComplete()
}

// shutLost comes before the node's stack is set up, and openSetUp after it. The stack forgets podCIDRs that the node has lost, and no longer sends what it translates
// for their pods back to be judged: by then these must have no way to it (docs/decisions/002). Those that the node has again get one when the stack knows them.
func (a *agent) shutLost(ctx context.Context) {
	if !a.configured {
		return
	}
	self := a.self()
	a.node.returned = slices.DeleteFunc(slices.Clone(a.node.returned), func(p netip.Prefix) bool { return !slices.Contains(self.PodCIDRs, p) })
	a.configure(ctx)
}

func (a *agent) openSetUp(ctx context.Context, podCIDRs []netip.Prefix) {
	a.node.returned = podCIDRs
	a.configure(ctx)
}

// compileNode makes the flows that follow from the node itself.
func (a *agent) compileNode(self *policy.NodeInfo) {
	a.compiler.SetConfig(pipeline.Config{Gateway: a.node.gateway, Wire: a.node.wire, NodeAddrs: self.Addresses, PodCIDRs: self.PodCIDRs, Returned: a.node.returned,
		GatewayAddrs: hostnet.GatewayAddrs(*self), ServiceCIDRs: a.node.services, Tunnel: a.tunnel(*self), Meters: a.node.meters})
}
