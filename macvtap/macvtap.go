package macvtap

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Domain is that of all resources: macvtap.network.kubevirt.io/dataplane.
const Domain = "macvtap.network.kubevirt.io"

// Defaults, and how many devices one parent may have at most.
const (
	DefaultMode     = Bridge
	DefaultCapacity = 100
	MaxCapacity     = 4096
)

// MaxDevices is how many devices one resource of a node may have: kubelets take messages of 4 MiB, and an id has up to 84 bytes.
const MaxDevices = 32768

// FullName is a resource's name as pods ask for it.
func FullName(resource string) string { return Domain + "/" + resource }

// DeviceID is the id of the n-th device of a resource on a parent, n from 0. Neither resources nor links may have colons in their
// names, so that no two devices of a node share an id; to others it is opaque.
func DeviceID(resource, parent string, n int) string {
	return resource + ":" + parent + ":" + strconv.Itoa(n)
}

// Mode is how the devices of one parent reach each other.
type Mode string

// Modes.
const (
	Bridge   Mode = "bridge"   // directly
	Private  Mode = "private"  // not at all
	VEPA     Mode = "vepa"     // through a switch that sends frames back where they came from
	Passthru Mode = "passthru" // there is one device, which has the parent for itself
)

// Modes are all of them.
var Modes = []Mode{Bridge, Private, VEPA, Passthru}

// Link is a network device of the node's own network namespace, as far as macvtap goes.
type Link struct {
	Name       string
	Index      int
	Kind       string // of rtnetlink: "bond", "veth", "bridge", "vlan", ...; "" is a device
	Loopback   bool
	Physical   bool   // an ethernet device (Kind is "") with hardware behind it
	Up         bool   // administratively, and there is a carrier
	Master     int    // the index of the bridge, bond, ... that the link is a port of; 0 is none
	MasterKind string // what that is
	MAC        string
	MTU        int
}

// ConfigEntry is a resource of the explicit configuration.
type ConfigEntry struct {
	Entry       int // its place in the file, from 0
	Name        string
	LowerDevice string
	Mode        Mode
	Capacity    int
}

// Config is the explicit configuration, with what is wrong in it. Where there is one nothing else counts, even if all that it holds was
// refused: a mistake never exposes more.
type Config struct {
	Entries  []ConfigEntry
	Problems []Problem
}

// Policy is a MacvtapNetworkNodePolicy.
type Policy struct {
	Namespace, Name string
	Created         time.Time
	Nodes           policy.Selector
	Resource        string // if there is one, the first entry whose parent is there has it (resource-centric)
	Entries         []Entry
	Invalid         string // why it can't be understood and selects no node; "" if it can
}

// String returns namespace/name.
func (p *Policy) String() string { return p.Namespace + "/" + p.Name }

// Entry is one of a policy's parents.
type Entry struct {
	Parent   string // the name of a link, or a glob
	Mode     Mode   // "" is DefaultMode
	Quantity *int   // nil is DefaultCapacity
	Resource string // "" is the parent's name
}

// Source is where exposure comes from.
type Source string

// Sources: one of these for a whole node.
const (
	FromConfig   Source = "config"
	FromPolicies Source = "policies"
	Implicit     Source = "implicit"
)

// Origin is the reason why something is exposed.
type Origin struct {
	Source Source
	Policy string // namespace/name
	Entry  int    // of the configuration or the policy, from 0
}

// String is for people: "policy macvtap-cni/policy-1 parentSelector[2]".
func (o Origin) String() string {
	switch {
	case o.Source == FromConfig:
		return fmt.Sprintf("configuration [%d]", o.Entry)
	case o.Policy != "" && o.Entry < 0:
		return "policy " + o.Policy
	case o.Policy != "":
		return fmt.Sprintf("policy %s parentSelector[%d]", o.Policy, o.Entry)
	}
	return string(o.Source)
}

// Resource is something that pods can ask for.
type Resource struct {
	Name    string   // without the domain
	Parents []Parent // by name; one at least, all of one mode
}

// Parent is a link that devices of a resource are made on.
type Parent struct {
	Link     string
	Mode     Mode
	Capacity int
	Healthy  bool
	Why      string // if not healthy
	Origin   Origin
	Also     []Origin // others that say the same
}

// From reports whether an entry of a policy exposes the parent.
func (p *Parent) From(policy string) bool {
	return p.Origin.Policy == policy || slices.ContainsFunc(p.Also, func(o Origin) bool { return o.Policy == policy })
}

// Conflict is what two entries disagree about; Loser's is not exposed.
type Conflict struct {
	Resource, Parent string
	Winner, Loser    Origin
	About            string // a sentence's middle: "mode is private, not vepa"
}

// Absence is an entry none of whose parents is there.
type Absence struct {
	Origin Origin
	Parent string // as the entry has it
}

// Problem is an entry that is refused in whole or in part, and why.
type Problem struct {
	Origin  Origin
	Message string
}

// Exposure is what a node exposes.
type Exposure struct {
	Source    Source
	Resources []Resource // by name
	Conflicts []Conflict
	Absent    []Absence
	Problems  []Problem
	Policies  []string // those that select the node, by rank: the first one wins
}

// Input is all that decides what a node exposes.
type Input struct {
	Config   *Config // nil is none
	Policies []Policy
	Labels   map[string]string
	Links    []Link
	// Known has resources' parents exposed before: one that vanished stays, unhealthy, while its source still asks for it.
	Known map[string][]string
	// Also has globs of further links that implicit exposure, and globs of policies, take in.
	Also []string
}
