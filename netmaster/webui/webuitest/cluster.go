package webuitest

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// cluster implements the engine's owner, the feed and the API server of netmaster/query.
type cluster struct{ *Netmaster }

// Do runs f on the engine.
func (c cluster) Do(_ context.Context, f func(*resolve.Engine)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away {
		return errors.New("netmaster is stopping")
	}
	f(c.engine)
	return nil
}

// Nodes returns all nodes.
func (c cluster) Nodes() []feed.NodeStatus { return c.nodes }

// Node returns the status of one node.
func (c cluster) Node(name string) feed.NodeStatus {
	if i := slices.IndexFunc(c.nodes, func(n feed.NodeStatus) bool { return n.Name == name }); i >= 0 {
		return c.nodes[i]
	}
	return feed.NodeStatus{Name: name}
}

// Infos returns the addresses of node1 alone.
func (c cluster) Infos() []policy.NodeInfo { return []policy.NodeInfo{{Name: "node1"}} }

// Standing reports every node as one that needs the policy.
func (c cluster) Standing(string, *policy.Extent) (out []feed.Standing) {
	for _, n := range c.nodes {
		out = append(out, feed.Standing{NodeStatus: n, Needs: true, Behind: n.Realised < n.Sent})
	}
	return out
}

// Watch returns the watch of a feed without nodes.
func (c cluster) Watch(id string) *feed.Watch { return feed.NewServer(feed.Config{}).Watch(id) }

// QueryStream returns an error.
func (c cluster) QueryStream(context.Context, string, []byte, func([]byte) error) error {
	return errors.New("this node has no streams")
}

// Query returns a node's answer about its status, its drops or traces.
func (c cluster) Query(_ context.Context, node string, body []byte) ([]byte, error) {
	var q inspect.NodeQuery
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	switch q.Kind {
	case inspect.QueryStatus:
		return json.Marshal(inspect.NodeStatus{
			Version:         "v1",
			SwitchConnected: true,
			Datapath:        "netdev",
			Endpoints:       2,
			Flows:           120,
		})
	case inspect.QueryDrops:
		c.mu.Lock()
		defer c.mu.Unlock()
		list := c.drops[node]
		return json.Marshal(inspect.NodeDrops{
			Records:    list,
			DropCounts: inspect.DropCounts{Untold: uint64(len(list))},
		})
	case inspect.QueryTrace:
		return json.Marshal(traces(node, &q))
	}
	return nil, errors.New("this node does not know the query")
}

// traces reports all packets of a query as passed.
func traces(node string, q *inspect.NodeQuery) inspect.NodeTraces {
	out := inspect.NodeTraces{Node: node}
	step := inspect.TraceStep{TableName: "ingress", Priority: 100, Match: "ip", Note: "applied-to " + Markup}
	for _, p := range q.Packets {
		out.Traces = append(out.Traces, inspect.Trace{
			Packet: p,
			Passed: true,
			Out:    "port 3",
			Steps:  []inspect.TraceStep{step},
		})
	}
	return out
}

// Version reports that the API server does not have the policy.
func (c cluster) Version(context.Context, string, string) (watch.Version, bool, error) {
	return watch.Version{}, false, nil
}

// Manifest returns the YAML of policy shop/db in Shop, and an error for any other.
func (c cluster) Manifest(_ context.Context, namespace, name string) (string, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	text, ok := c.manifests[namespace+"/"+name]
	if !ok {
		return "", false, errors.New("the API server is away")
	}
	return text, true, nil
}
