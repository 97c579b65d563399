package whatif

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Nodes returns and queries the nodes of the feed.
type Nodes interface {
	Nodes() []feed.NodeStatus
	Query(ctx context.Context, node string, body []byte) ([]byte, error)
}

const (
	maxQueries  = 8 // nodes queried at a time
	maxExamples = 3 // of a terminated group of connections
)

// census counts the live connections that a delta would terminate.
type census struct {
	delta     *explain.Delta
	connected map[string]bool
	homes     map[netip.Addr]*policy.Endpoint // pods by address
	filters   map[string]*inspect.ConnectionFilter
	live      inspect.Live
	cuts      map[int]*inspect.LiveCut
}

// live queries the nodes that may know affected connections, until all respond or ctx is about to end. It returns
// nil if nothing would be denied.
func (j *Judge) live(ctx context.Context, world *policy.World, d *explain.Delta) *inspect.Live {
	if j.nodes == nil ||
		!slices.ContainsFunc(d.Differences, func(x explain.Difference) bool { return !x.Lost.IsNone() }) {
		return nil
	}
	c := newCensus(world, d, j.nodes.Nodes())
	type answer struct {
		node string
		*inspect.NodeConnections
		err error
	}
	answers := make(chan answer)
	places := make(chan struct{}, maxQueries)
	for node, filter := range c.filters {
		go func() {
			places <- struct{}{}
			out, err := j.ask(ctx, node, filter)
			answers <- answer{node, out, err}
			<-places // limits the responses in memory
		}()
	}
	for range c.filters {
		switch a := <-answers; {
		case a.err != nil:
			c.unknown(a.node, a.err.Error())
		default:
			c.count(a.node, a.NodeConnections)
		}
	}
	return c.result()
}

func (j *Judge) ask(ctx context.Context, node string,
	filter *inspect.ConnectionFilter) (*inspect.NodeConnections, error) {
	body, err := json.Marshal(inspect.NodeQuery{Kind: inspect.QueryConnections, Connections: filter})
	if err != nil {
		return nil, err
	}
	if body, err = j.nodes.Query(ctx, node, body); err != nil {
		return nil, err
	}
	out := &inspect.NodeConnections{}
	if err := json.Unmarshal(body, out); err != nil {
		return nil, fmt.Errorf("the answer of node %s: %w", node, err)
	}
	return out, nil
}

func newCensus(world *policy.World, d *explain.Delta, nodes []feed.NodeStatus) *census {
	c := &census{
		delta:     d,
		connected: map[string]bool{},
		homes:     map[netip.Addr]*policy.Endpoint{},
		filters:   map[string]*inspect.ConnectionFilter{},
		live:      inspect.Live{Cuts: []inspect.LiveCut{}, Unknown: map[string]string{}},
		cuts:      map[int]*inspect.LiveCut{},
	}
	for i := range nodes {
		c.connected[nodes[i].Name] = nodes[i].Connected
	}
	nodeOf := map[string]string{}
	for _, e := range world.Endpoints {
		if e.HostNetwork || e.Finished {
			continue
		}
		nodeOf[e.ID()] = e.Node
		for _, a := range e.Addresses {
			c.homes[a] = e
		}
	}
	to, from := c.losers(nodeOf)
	for _, e := range world.Endpoints {
		if to[e.ID()] || from[e.ID()] {
			c.want(e, to[e.ID()], from[e.ID()])
		}
	}
	return c
}

// losers returns the pods that would lose incoming connections, and those that would lose outgoing connections to
// ends outside the cluster.
func (c *census) losers(nodeOf map[string]string) (to, from map[string]bool) {
	to, from = map[string]bool{}, map[string]bool{}
	for i := range c.delta.Differences {
		x := &c.delta.Differences[i]
		if x.Lost.IsNone() {
			continue
		}
		unseen := false
		for _, g := range x.To {
			unseen = unseen || c.delta.Groups[g].CIDR.IsValid()
			for _, pod := range c.delta.Groups[g].Pods {
				to[pod] = true
				unseen = unseen || !c.connected[nodeOf[pod]]
			}
		}
		for _, g := range x.From {
			for _, pod := range c.delta.Groups[g].Pods {
				from[pod] = from[pod] || unseen
			}
		}
	}
	return to, from
}

func (c *census) want(e *policy.Endpoint, to, from bool) {
	if !c.connected[e.Node] {
		c.unknown(e.Node, "it is not connected: its pods' connections are not counted")
		return
	}
	f := c.filters[e.Node]
	if f == nil {
		f = &inspect.ConnectionFilter{}
		c.filters[e.Node] = f
	}
	if to {
		f.To = append(f.To, e.Addresses...)
	}
	if from {
		f.From = append(f.From, e.Addresses...)
	}
}

func (c *census) unknown(node, why string) { c.live.Unknown[cmp.Or(node, "of no name")] = why }

// count adds a node's response. Connections between nodes are counted at the destination only.
func (c *census) count(node string, answer *inspect.NodeConnections) {
	for i := range answer.Counts {
		n := &answer.Counts[i]
		if target := c.homes[n.To]; target != nil && target.Node != node && c.connected[target.Node] ||
			n.Connections < 1 {
			continue
		}
		at, ok := c.delta.Loses(policy.Packet{From: n.From, To: n.To, Protocol: n.Protocol, Port: n.Port})
		if !ok {
			continue
		}
		cut := c.cuts[at]
		if cut == nil {
			cut = &inspect.LiveCut{Difference: at, Protocols: map[string]int{}}
			c.cuts[at] = cut
		}
		cut.Connections += n.Connections
		cut.Protocols[protocolName(n.Protocol)] += n.Connections
		cut.Examples = append(cut.Examples, c.example(n))
		slices.Sort(cut.Examples)
		cut.Examples = cut.Examples[:min(len(cut.Examples), maxExamples)]
	}
	switch {
	case answer.Problem != "":
		c.unknown(node, answer.Problem)
	case answer.More > 0:
		c.unknown(
			node,
			fmt.Sprintf("it has more kinds of connections than it reports: %d connections are not looked at",
				answer.More),
		)
	}
}

func (c *census) example(n *inspect.ConnectionCount) string {
	end := func(a netip.Addr, port uint16) string {
		text := a.String()
		if hasPorts(n.Protocol) {
			text = netip.AddrPortFrom(a, port).String()
		}
		if e := c.homes[a]; e != nil {
			text = e.ID() + " (" + text + ")"
		}
		return text
	}
	return protocolName(n.Protocol) + " " + end(n.From, n.FromPort) + " → " + end(n.To, n.Port)
}

func (c *census) result() *inspect.Live {
	for _, at := range slices.Sorted(maps.Keys(c.cuts)) {
		c.live.Cuts = append(c.live.Cuts, *c.cuts[at])
		c.live.Connections += c.cuts[at].Connections
	}
	return &c.live
}

func hasPorts(p policy.Protocol) bool {
	return p == policy.TCP || p == policy.UDP || p == policy.SCTP
}

func protocolName(p policy.Protocol) string {
	switch p {
	case 1:
		return "ICMP"
	case 58:
		return "ICMPv6"
	}
	return p.String()
}
