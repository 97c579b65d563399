package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/conntrack"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
)

// queryConnections sums up the live connections of some of this node's pods.
func (ins *inspector) queryConnections(ctx context.Context, f *inspect.ConnectionFilter) ([]byte, error) {
	if f == nil {
		return nil, errors.New("whose connections are wanted is not said")
	}
	var own []netip.Addr
	if err := ins.a.do(ctx, func() {
		self := ins.a.node.self()
		own = slices.Concat(hostnet.GatewayAddrs(self), self.Addresses)
	}); err != nil {
		return nil, err
	}
	live, err := ins.a.ended.Live(ctx)
	if live == nil && err != nil {
		return nil, err
	}
	sums, more := conntrack.SumUp(live, conntrack.Wanted{To: setOf(f.To), From: setOf(f.From), Node: setOf(own)}, inspect.MostConnections)
	out := inspect.NodeConnections{Node: ins.a.cfg.Node, Counts: make([]inspect.ConnectionCount, 0, len(sums)), More: more}
	if err != nil {
		out.Problem = err.Error()
	}
	for _, s := range sums {
		out.Counts = append(out.Counts, inspect.ConnectionCount{Protocol: s.Protocol, From: s.Src, To: s.Dst, Port: s.DstPort, Connections: s.Count, FromPort: s.Example.SrcPort})
	}
	return json.Marshal(out)
}

func setOf(addrs []netip.Addr) map[netip.Addr]struct{} {
	set := make(map[netip.Addr]struct{}, len(addrs))
	for _, addr := range addrs {
		set[addr] = struct{}{}
	}
	return set
}
