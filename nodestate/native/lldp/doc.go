// Package lldp listens to what neighbours tell of themselves by IEEE 802.1AB, and never sends anything.
//
// Parse reads a frame, and a Table keeps neighbours until they leave or are silent for too long: both are functions over values,
// with the time given. A Listener is the thin edge: one packet socket of the network namespace, the multicast groups joined on the
// ports that it is told of, and a record on disk, so that a restart knows what was known.
//
// Nothing here is to be trusted: whoever is at the other end of a cable can say anything. Texts are printable, sizes and numbers
// bounded, and so is how often a port may change what is known.
package lldp
