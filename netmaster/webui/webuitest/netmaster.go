// Package webuitest provides a netmaster without a cluster, for tests of the web UI: of its API in netmaster/webui,
// and in a browser in systemtests/webui.
package webuitest

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/attachment"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	answers "github.com/flowkeep/flowkeep/netmaster/query"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/labelcache"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Netmaster is a webui.Inspector with a real resolve engine and constant nodes. Safe for concurrent use.
type Netmaster struct {
	// Refuse returns the error for a query, or nil. Set it before the first query.
	Refuse func(*inspect.Question) error

	nodes []feed.NodeStatus

	mu        sync.Mutex
	elsewhere *attachment.Set // pods that Flowkeep did not attach
	engine    *resolve.Engine
	questions []string // kinds of queries
	away      bool
	drops     map[string][]inspect.DropRecord // by node
	manifests map[string]string               // by namespace/name
}

// New returns a netmaster with three nodes and without pods. One node is behind, and one was refused.
func New() *Netmaster {
	connected := func(name string, ago time.Duration, realised uint64) feed.NodeStatus {
		return feed.NodeStatus{
			Name:      name,
			Connected: true,
			Since:     time.Now().Add(-ago),
			Version:   "v1",
			Sent:      4,
			Realised:  realised,
		}
	}
	behind := connected("node2", time.Minute, 3)
	behind.Pending = 2
	return &Netmaster{
		engine:    resolve.New(1),
		elsewhere: new(attachment.Set),
		drops:     map[string][]inspect.DropRecord{},
		manifests: map[string]string{},
		nodes: []feed.NodeStatus{
			connected("node1", time.Hour, 4),
			behind,
			{Name: "node3", Refused: "its certificate is of " + Markup},
		},
	}
}

// Answer responds to a query as netmaster does, and records its kind.
func (n *Netmaster) Answer(ctx context.Context, q *inspect.Question) (*inspect.Answer, error) {
	n.mu.Lock()
	n.questions = append(n.questions, q.Kind)
	n.mu.Unlock()
	if n.Refuse != nil {
		if err := n.Refuse(q); err != nil {
			return nil, err
		}
	}
	s := cluster{n}
	return answers.NewServer(answers.Config{
		Owner:    s,
		Nodes:    s,
		API:      s,
		Version:  "v1",
		Problems: func() []string { return []string{"memcached says " + Markup} },
		Unattached: func() *attachment.Set {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.elsewhere
		},
		Labels: func() labelcache.Stamp { return labelcache.Stamp{} },
	}).Answer(ctx, q)
}

// Questions returns the kinds of all queries so far.
func (n *Netmaster) Questions() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.questions)
}

// Apply changes the cluster.
func (n *Netmaster) Apply(b resolve.Batch) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.engine.Apply(b)
}

// SetUnattached sets the pods that Flowkeep did not attach.
func (n *Netmaster) SetUnattached(endpoints ...*policy.Endpoint) {
	pods := make([]attachment.Pod, 0, len(endpoints))
	for _, e := range endpoints {
		p := resolve.UnannouncedPod{Endpoint: e, Selected: true}
		pods = append(pods, attachment.Pod{UnannouncedPod: p, Overdue: true})
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.elsewhere = attachment.NewSet(pods)
}

// Policies returns the number of policies.
func (n *Netmaster) Policies() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.engine.Counts().Policies
}

// SetAway sets whether the engine fails all queries, as during a shutdown.
func (n *Netmaster) SetAway(away bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.away = away
}

// Deny adds a drop record of node1, by the ingress rules of policy shop/db. The ends are Pod's numbers.
func (n *Netmaster) Deny(from, to int, port uint16) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	n.drops["node1"] = append(n.drops["node1"], inspect.DropRecord{
		First:       now,
		Last:        now,
		Reason:      inspect.DroppedByIngress,
		From:        address(from),
		To:          address(to),
		Protocol:    policy.TCP,
		Port:        port,
		Packets:     3,
		Connections: 2,
		Pod:         "shop/db",
		Policies:    []policy.Origin{{Policy: "shop/db", Rule: -1}},
	})
}

// address returns the IPv4 address of the pod with a number.
func address(number int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 0, byte(number >> 8), byte(number)})
}
