// Package wire turns the feed's messages (api/feed) into values, and values into messages, for both ends. No
// peer is trusted: an invalid message is refused as a whole, with an error that names the fault, and no field is given
// more meaning than api/feed defines. Functions are pure; a Hello or Update that comes in parts has
// an assembler.
package wire

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Bounds of what a node may say.
const (
	MaxHeld      = 1 << 18 // rules and groups in a hello: more than a switch holds
	MaxAnnounced = 2048    // pods attached to a node
	MaxErrors    = 256     // in an ack
	MaxErrorKeys = 256     // rules, and origins, of an error
	MaxErrorText = 1024    // bytes
	maxName      = 253
	maxUID       = 128
	maxAddresses = 8
	maxVersion   = 128     // bytes of a program's version
	maxFlows     = 1 << 40 // that drifted
	maxEpoch     = 1 << 31
	maxTrust     = 60_000 // milliseconds
)

// Versions is a range of versions of the protocol.
type Versions struct{ Min, Max uint32 }

// Own returns the range that this build speaks.
func Own() Versions { return Versions{feed.MinVersion, feed.MaxVersion} }

// OrOwn returns the range, or this build's range if v is zero.
func (v Versions) OrOwn() Versions {
	if v == (Versions{}) {
		return Own()
	}
	return v
}

// Common returns the highest version in both ranges.
func (v Versions) Common(other Versions) (version uint32, ok bool) {
	version = min(v.Max, other.Max)
	return version, v.Min <= v.Max && other.Min <= other.Max && version >= max(v.Min, other.Min)
}

// Hello is who a node is and what it holds.
type Hello struct {
	Node    string
	Program string // version of the program
	// Versions are those of the protocol that it speaks.
	Versions    Versions
	Revision    uint64
	Epoch       uint64 // the highest that it ever obeyed; 0: none
	TrafficMode string // route, geneve or auto; empty: unknown
	Links       *policy.Links
	Held        []Held
	Announced   []Announcement
	Nodes       []byte // sums of what is held of the keyed set of nodes; nil: nothing, or not sent
	Services    []byte // the same of the keyed set of Services
}

// Held is a rule (Group 0) or a group that a node holds, with the hash of its content.
type Held struct {
	Group policy.GroupKind
	Key   policy.Key
	Hash  policy.Key
}

// Announcement is a pod that the node wired. Addresses are in no particular order.
type Announcement struct {
	Namespace string
	Name      string
	UID       string
	Addresses []netip.Addr
}

// ID returns "namespace/name".
func (a *Announcement) ID() string { return a.Namespace + "/" + a.Name }

// Validate fails on what no node would announce.
func (a *Announcement) Validate() error {
	if !isName(a.Namespace) || !isName(a.Name) {
		return fmt.Errorf("announcement of %q/%q: not a pod's name", short(a.Namespace), short(a.Name))
	}
	if len(a.UID) > maxUID {
		return fmt.Errorf("announcement of %s: a uid of %d bytes", a.ID(), len(a.UID))
	}
	if len(a.Addresses) > maxAddresses {
		return fmt.Errorf("announcement of %s: %d addresses", a.ID(), len(a.Addresses))
	}
	for _, addr := range a.Addresses {
		if !addr.IsValid() || addr.IsUnspecified() || addr.IsMulticast() || addr.IsLoopback() || addr.Zone() != "" ||
			addr.Is4In6() {
			return fmt.Errorf("announcement of %s: %q is no pod's address", a.ID(), addr)
		}
	}
	return nil
}

// isName reports whether s can be a name in Kubernetes. Other text could make keys ambiguous.
func isName(s string) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	for _, c := range []byte(s) {
		if c <= ' ' || c == '/' || c >= 0x7f {
			return false
		}
	}
	return true
}

func short(s string) string { return s[:min(len(s), 64)] }

// Ack says that all up to Revision is in force, but for Errors: everything that is wrong now.
type Ack struct {
	Revision uint64
	Errors   []RuleError
}

// RuleError is what could not be put in force: of these rules, or with no Rules, of all. Origins are the policies'
// rules that they come from.
type RuleError struct {
	Rules   []policy.Key    `json:"rules,omitempty"`
	Origins []policy.Origin `json:"origins,omitempty"`
	Message string          `json:"message"`
}

// Drift is a report of flows that differed between a node's switch and the desired state. Example is one of them.
// Problem is the reason why they were not repaired.
type Drift struct {
	Missing, Changed, Extra uint64
	Example, Problem        string
}

// Add takes what was found later to it.
func (d *Drift) Add(later Drift) {
	d.Missing, d.Changed, d.Extra = d.Missing+later.Missing, d.Changed+later.Changed, d.Extra+later.Extra
	d.Example, d.Problem = later.Example, later.Problem
}

// Concerns reports whether a rule is among those that are not in force.
func (e *RuleError) Concerns(rule policy.Key) bool {
	for _, k := range e.Rules {
		if k == rule {
			return true
		}
	}
	return len(e.Rules) == 0
}

// errUnknownField: see feed.proto.
var errUnknownField = errors.New("it says something that this version does not understand")
