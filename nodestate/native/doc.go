// Package native reads and changes a node's network by netlink, ethtool, the kernel's settings and Open vSwitch's database,
// in nmstate's schema.
//
// Everything that decides is a function over values. A network is what there is; a wish is what a state document names;
// want lays the wish over the network, and transition finds the ordered steps from the one to the other by doing each in a
// copy of the network that follows the kernel's own rules (a link that goes down loses its routes, a VLAN goes with its
// base): what a step takes along, a later step brings back. Thus a plan that cannot work is refused before anything is
// changed. Steps are inert data; the kernel does them, in the order given.
//
// Roll-back is a plan as well: from the network as it is then to what the journal says of the interfaces, routes, rules and
// resolver that the change concerns. It does not matter how far the change had come.
//
// A Backend is for one goroutine. The process needs CAP_NET_ADMIN and lives in the node's network namespace.
package native
