package inspect

import (
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// AskVerify is a Question of Verify.
const AskVerify = "verify"

// QueryVerify is a NodeQuery: whether the node's switch holds what it should.
const QueryVerify = "verify"

// Kinds of Difference.
const (
	FlowMissing = "missing"
	FlowChanged = "changed" // another cookie or other actions
	FlowExtra   = "extra"
)

// MeterTable stands for a Difference's table where it is no flow but a meter: Match is its number, Actions what it lets through.
const MeterTable = "meters"

// GroupTable stands for a Difference's table where it is a group: Match is its number.
const GroupTable = "groups"

const (
	// MostDifferences is the number of differences of each kind that a node lists one by one.
	MostDifferences = 100
	// MostSamples is how many packets a node may be asked to trace for one Verify.
	MostSamples = 10000
)

// VerifyWhat is what AskVerify asks.
type VerifyWhat struct {
	// Nodes are names; none: all.
	Nodes []string `json:"nodes,omitempty"`
	// Samples is how many packets are traced on each node; 0: none.
	Samples int `json:"samples"`
	// Seed chooses them: the same seed chooses the same packets as long as pods and policies are the same.
	Seed uint64 `json:"seed"`
	// Independent has the nodes read their switches by a decoder that shares no code with the encoder of flows.
	Independent bool `json:"independent,omitempty"`
}

// Verified answers AskVerify.
type Verified struct {
	Revision uint64       `json:"revision"` // netmaster's, at the end
	Seed     uint64       `json:"seed"`
	Nodes    []NodeResult `json:"nodes"`
	// Problems are of netmaster, a sentence each.
	Problems []string `json:"problems"`
}

// NodeResult is what was found on one node.
type NodeResult struct {
	Node string `json:"node"`
	// Fine: the flows and every sample were looked at, and are as they should be.
	Fine bool `json:"fine"`
	// Flows is the comparison; nil: there is none, and Problems say why.
	Flows   *NodeVerify   `json:"flows,omitempty"`
	Samples SampleResults `json:"samples"`
	// Problems are why not everything was looked at, or is in force.
	Problems []string `json:"problems"`
}

// NodeVerify answers QueryVerify.
type NodeVerify struct {
	Node string `json:"node"`
	// Revision of the rules that the switch was compared with.
	Revision uint64 `json:"revision"`
	// Held is how many flows the switch has, Wanted how many it should have.
	Held   int `json:"held"`
	Wanted int `json:"wanted"`
	DriftCount
	// Differences are the first MostDifferences of each kind.
	Differences []Difference  `json:"differences"`
	Took        time.Duration `json:"took"`
	// DriftCheckInterval is the time between two drift checks of netplugin; 0: none.
	DriftCheckInterval time.Duration `json:"auditInterval"`
	// Independent is set where the flows were read as VerifyWhat.Independent says.
	Independent *IndependentReading `json:"independent,omitempty"`
}

// IndependentReading is the part of a switch that ofnet and libOpenflow have read.
type IndependentReading struct {
	// Tables are those that have flows, in order.
	Tables []TableRead `json:"tables"`
	// Groups and Meters are the numbers of those that were read; nil: an older netplugin reads none.
	Groups *int `json:"groups,omitempty"`
	Meters *int `json:"meters,omitempty"`
	// Unread are flows and tables that could not be read, a sentence each. They count as no difference.
	Unread []string `json:"unread"`
}

// TableRead is a table that was read.
type TableRead struct {
	Table uint8  `json:"table"`
	Name  string `json:"name"`
}

// DriftCount is numbers of flows.
type DriftCount struct {
	Missing int `json:"missing"`
	Changed int `json:"changed"`
	Extra   int `json:"extra"`
}

// Add adds.
func (c *DriftCount) Add(more DriftCount) {
	c.Missing, c.Changed, c.Extra = c.Missing+more.Missing, c.Changed+more.Changed, c.Extra+more.Extra
}

// Sum returns the number of differences of all kinds.
func (c *DriftCount) Sum() int { return c.Missing + c.Changed + c.Extra }

// Difference is a flow that the switch lacks, has otherwise or has too much. The Flow is as it should be, and as it is where it is
// extra.
type Difference struct {
	Kind string `json:"difference"`
	Flow
	// Found and FoundCookie are the actions and the cookie that a changed flow has.
	Found       string `json:"found,omitempty"`
	FoundCookie string `json:"foundCookie,omitempty"`
	// Foreign has the parts that Flowkeep never sends; Match and Actions lack them.
	Foreign string `json:"foreign,omitempty"`
}

// SampleResults is what traced packets showed.
type SampleResults struct {
	Wanted int `json:"wanted"` // how many were asked for
	Traced int `json:"traced"`
	// Allowed and Denied are those whose verdict the switch and the policies agree about, Differing those where they do not.
	Allowed   int `json:"allowed"`
	Denied    int `json:"denied"`
	Differing int `json:"differing"`
	// Skipped are those that the node's switch does not judge as they are: to a Service's address, or of a pod that just comes or goes.
	Skipped int `json:"skipped,omitempty"`
	// Unsettled are those that something changed under each time that they were traced.
	Unsettled int `json:"unsettled,omitempty"`
	// Wrong are the first of those that differ.
	Wrong []WrongSample `json:"wrong"`
}

// WrongSample is a packet that the switch judges otherwise than the policies.
type WrongSample struct {
	Packet policy.Packet `json:"packet"`
	From   string        `json:"from"` // pod, node or address
	To     string        `json:"to"`
	// Allowed is what the policies say on this node, Passed what the switch does.
	Allowed bool `json:"allowed"`
	Passed  bool `json:"passed"`
	// Policies isolate the pods of this node that it concerns; By are the rules that allow, as "namespace/name ingress[0]".
	Policies []string `json:"policies"`
	By       []string `json:"by,omitempty"`
	Trace    Trace    `json:"trace"`
}
