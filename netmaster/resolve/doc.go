// Package resolve turns policies, pods and namespaces into rules and groups, and says what each node needs of them. It is
// an incremental engine: Apply takes a batch of events and returns what they changed. There is no clock, log, lock or I/O
// in it; one goroutine owns it.
//
// # What is held
//
// Everything has an ID of four bytes and a place in a pool; relations are sorted lists of IDs, or IDs that link the values
// themselves. Names, contents and addresses are found through tables of eight bytes a slot.
//
//   - A class is the endpoints of a namespace with equal labels and named ports. Only classes are matched with selectors; an
//     endpoint finds its class by a hash of its labels.
//   - A group is the classes that a pair of selectors chooses; equal selectors share one. An index by label gives a new
//     class the groups that could choose it, and a new group the classes that it could choose.
//   - A rule refers to its groups; equal rules are one, with several origins. Rules and groups are looked up by what they
//     are made of; the content key is computed once, when one is made.
//   - A group knows on how many addresses of which nodes it applies, and to which nodes how many rules bring it as a peer.
//     These are the spans.
//
// # What an event costs
//
// A pod with labels that others have: its addresses × the groups of its class, whatever the size of the groups. Labels
// never seen: also the groups filed under these labels. The first pod of a group on a node, or the last: also the rules that
// apply to the group. A policy: its rules × (their peers + the nodes that they apply on); selectors never seen: also the
// classes with their first label. A rule of many origins is written anew, whichever of them changes.
//
// # A batch
//
// Claims, classes, groups and rules follow each event at once. What the batch's first change of an endpoint, a group or a
// rule finds is noted; at the end it is compared with what is there then, and only the difference is told. What is new is
// not noted one by one: new rules and groups are told whole, at the end, from what they have become.
//
// An address that several endpoints claim is judged by rank, and is no peer's while two of the highest rank claim it; only
// such addresses are looked at one by one. A claim on an address that is not the node's to give out counts on this node only, in appliedTo groups, beside
// whoever holds the address.
package resolve
