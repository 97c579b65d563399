package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/netplugin/trace"
)

// traceOwner is the agent as a trace sees it.
type traceOwner struct{ a *agent }

func newTracer(a *agent) *trace.Tracer {
	return &trace.Tracer{
		Node:         a.cfg.Node,
		Translates:   a.cfg.translates(),
		ServiceCIDRs: a.node.services,
		Compiler:     a.compiler,
		Owner:        traceOwner{a},
	}
}

// Do runs f on the owner goroutine.
func (o traceOwner) Do(ctx context.Context, f func()) error { return o.a.do(ctx, f) }

// Trace runs ofproto/trace for a packet on the bridge.
func (o traceOwner) Trace(ctx context.Context, packet string, options ...string) (string, error) {
	return o.a.vswitchd.askSwitch(ctx, "ofproto/trace", append([]string{o.a.cfg.Bridge, packet}, options...)...)
}

// PortName returns the name of a port of the bridge for a person to read. Call it on the owner goroutine.
func (o traceOwner) PortName(port uint32) string {
	switch port {
	case o.a.node.gateway.Port:
		return "the node"
	case o.a.node.wire.Port, o.a.node.out.Port:
		return "out of the node"
	case o.a.node.tunnel:
		return "another node, by tunnel"
	}
	for id, p := range o.a.pods.byID {
		if p.endpoint.Port == port {
			return "pod " + id
		}
	}
	return fmt.Sprintf("port %d", port)
}

// PodWith returns the pod of this node with an address. Call it on the owner goroutine.
func (o traceOwner) PodWith(address netip.Addr) string {
	for id, p := range o.a.pods.byID {
		if slices.Contains(p.endpoint.Addresses, address) {
			return id
		}
	}
	return ""
}
