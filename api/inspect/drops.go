package inspect

import (
	"net/netip"
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// AskDrops is a Question with Drops, QueryDrops a NodeQuery with Drops.
const (
	AskDrops   = "drops"
	QueryDrops = "drops"
)

// Cursor is how far a node's records were read. Seq counts within one run of netplugin, its Epoch.
type Cursor struct {
	Epoch uint64 `json:"epoch"`
	Seq   uint64 `json:"seq"`
}

// DropsQuery asks a node for what it has denied of late: what is newer than the cursor, Most records at the most, the latest.
type DropsQuery struct {
	Cursor
	// DryRun selects what policies in a dry run would have denied. Reason is then the direction, and Cursor another one.
	DryRun bool `json:"audit,omitempty"`
	// Addresses narrows to what is from or to one of them; nil: all.
	Addresses []netip.Addr `json:"addresses"`
	// Policy (namespace/name) narrows to what it isolated, as far as the node knew; empty: all.
	Policy string `json:"policy,omitempty"`
	// Within leaves out what had its last packet longer ago; 0: nothing.
	Within time.Duration `json:"within,omitempty"`
	Most   int           `json:"most"`
}

// NodeDrops answers QueryDrops.
type NodeDrops struct {
	Cursor
	// DryRun is set if policies in a dry run would have denied the packets. A node without support for dry runs returns what it denied.
	DryRun  bool         `json:"audit,omitempty"`
	Records []DropRecord `json:"records"`
	DropCounts
	Problem string `json:"problem,omitempty"`
}

// DropCounts count packets of a node that are not shown.
type DropCounts struct {
	// Left is how many records there are that were not given, older ones.
	Left int `json:"left,omitempty"`
	// Forgotten is how many had to go for newer ones since netplugin started.
	Forgotten uint64 `json:"forgotten,omitempty"`
	// Told and Untold are denied packets since then: those that the switch reported, and those above --drop-log-rate.
	Told   uint64 `json:"told"`
	Untold uint64 `json:"untold"`
}

// Reasons of a drop.
const (
	DroppedByEgress  = "egress"  // the source's policies
	DroppedByIngress = "ingress" // the destination's policies
	DroppedAsForged  = "forged"  // a pod sent it from an address, or a MAC, that is not its own
)

// DropRecord is what a node denied between two addresses and at one port while it was tried again and again.
type DropRecord struct {
	First    time.Time       `json:"first"`
	Last     time.Time       `json:"last"`
	Reason   string          `json:"reason"`
	From     netip.Addr      `json:"from"` // of the connection's first packet, as of all that follows
	To       netip.Addr      `json:"to"`
	Protocol policy.Protocol `json:"protocol"`
	Port     uint16          `json:"port"`
	// Packets and Connections are those that the switch reported.
	Packets     uint64 `json:"packets"`
	Connections uint64 `json:"connections"`
	// Pod is where it was denied; Policies are the first few that isolated it then.
	Pod      string          `json:"pod,omitempty"`
	Policies []policy.Origin `json:"policies,omitempty"`
}

// DropsQuestion is which drops are wanted.
type DropsQuestion struct {
	// Namespace narrows to what is from or to its pods, Pod (namespace/name) to what is from or to it.
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	// Within leaves out what had its last packet longer ago; 0: nothing.
	Within time.Duration `json:"within,omitempty"`
	// After is, by node, what was given before.
	After map[string]Cursor `json:"after,omitempty"`
}

// Drops answers AskDrops, in the order of the last packets.
type Drops struct {
	Revision uint64        `json:"revision"`
	Nodes    []DropsOfNode `json:"nodes"`
	Drops    []Drop        `json:"drops"`
}

// DropsOfNode has a node's drops.
type DropsOfNode struct {
	Node string `json:"node"`
	Cursor
	DropCounts
	// Problem is why the node does not say, or not all.
	Problem string `json:"problem,omitempty"`
}

// DropEnd is who sent, or was sent to.
type DropEnd struct {
	Address netip.Addr `json:"address"`
	Pod     string     `json:"pod,omitempty"` // namespace/name
}

// Drop is a record with what the policies say to it now.
type Drop struct {
	// DryRun is set if policies in a dry run would have denied the packets. The fields below are as if they were enforced.
	DryRun   bool      `json:"audit,omitempty"`
	Node     string    `json:"node"`
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`
	Reason   string    `json:"reason"`
	From     DropEnd   `json:"from"`
	To       DropEnd   `json:"to"`
	Protocol string    `json:"protocol"` // TCP, UDP, SCTP, ICMP or protocol(number)
	Port     uint16    `json:"port,omitempty"`
	// Packets and Connections are those that were looked at.
	Packets     uint64 `json:"packets"`
	Connections uint64 `json:"connections"`
	Pod         string `json:"pod,omitempty"` // where it was denied, or who forged
	// Policies isolate it.
	Policies []string `json:"policies,omitempty"`
	// Rule is the rule that is nearest to allowing it, Failed the parts of it that do not match, Remedy a change that
	// would allow it.
	Rule   string `json:"rule,omitempty"`
	Failed string `json:"failed,omitempty"`
	Remedy string `json:"remedy,omitempty"`
	// Note says where the policies of now are not those that denied it or, of a dry run, where those in force deny it already.
	Note string `json:"note,omitempty"`
}
