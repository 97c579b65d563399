package inspect

import (
	"net/netip"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// QueryConnections asks for live connections.
const QueryConnections = "connections"

// MostConnections is how many ConnectionCounts a node answers with.
const MostConnections = 20_000

// ConnectionFilter is which connections are wanted: those to an address of To, and those from one of From.
type ConnectionFilter struct {
	To   []netip.Addr `json:"to,omitempty"`
	From []netip.Addr `json:"from,omitempty"`
}

// NodeConnections answers QueryConnections: connections that the node's switch tracks now, without those that have ended and
// those that the node itself began.
type NodeConnections struct {
	Node   string            `json:"node"`
	Counts []ConnectionCount `json:"counts"`
	// More is how many connections are in no count, because there are too many.
	More int `json:"more,omitempty"`
	// Problem is why not all of them could be read.
	Problem string `json:"problem,omitempty"`
}

// ConnectionCount is the connections between two addresses to one port, by their first packets. The port is 0 where the
// protocol has none.
type ConnectionCount struct {
	Protocol    policy.Protocol `json:"protocol"`
	From        netip.Addr      `json:"from"`
	To          netip.Addr      `json:"to"`
	Port        uint16          `json:"port"`
	Connections int             `json:"connections"`
	FromPort    uint16          `json:"fromPort"` // of one of them
}
