// Package lldp receives neighbours' frames of IEEE 802.1AB, and never sends any.
//
// Parse reads a frame, and a Table keeps neighbours until they leave or are silent for too long: both are functions
// over values, with the time given. A Listener is the thin edge: one packet socket of the network namespace, the
// multicast groups joined on the ports that Follow sets, and a record on disk, so that a restart keeps the
// neighbours.
//
// Frames are not trusted: the other end of a cable can send anything. Texts are printable, sizes and numbers are
// bounded, and so is the rate at which a port may change the table.
package lldp
