// Package resolve turns policies, pods and namespaces into rules and groups, and computes what each node needs of
// them. It is an incremental engine: Apply takes a batch of events and returns the resulting changes. It has no
// clock, log, lock or I/O, and must be used from one goroutine.
//
// # State
//
// Every value has a four-byte ID and a place in a pool. Relations are sorted lists of IDs, or linked lists through
// the values. Names, contents and addresses are found through hash tables of eight bytes a slot.
//
// - A class is the endpoints of a namespace with equal labels and named ports. Selectors are matched with classes
// only. An endpoint finds its class by a hash of its labels. - A group is the classes that match a pair of selectors.
// Equal selectors share a group. An index by label finds the groups that may match a new class, and the classes that
// may match a new group. - A rule refers to its groups. Policies share equal rules, which then have several origins.
// Rules and groups are looked up by content; the content key is computed once, when one is created. - A group counts
// its addresses on each node as an appliedTo group, and the rules that need it on each node as a peer group. These
// counts define the spans of nodes.
//
// # Cost of an event
//
// A pod with labels that other pods have: its addresses × the groups of its class, independent of the size of the
// groups. A pod with new labels: also the groups indexed by these labels. The first or last pod of a group on a node:
// also the rules that apply to the group. A policy: its rules × (their peers + the nodes that they apply on); with
// new selectors: also the classes that have their first label. A change of a rule's origins rewrites all of its
// origins.
//
// # Batches
//
// Claims, classes, groups and rules are updated with each event. The state of an endpoint, group or rule before its
// first change in the batch is recorded. At the end it is compared with the state then, and only differences are
// published. New rules and groups are published whole.
//
// If several endpoints claim an address, the highest rank wins. While two of the highest rank claim it, it is in no
// peer group. Only such addresses need to be examined one by one. A claim on an address outside the node's podCIDRs
// affects only appliedTo groups on this node, independent of other claims.
package resolve
