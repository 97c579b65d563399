// Package controller brings policies to nodes: it watches NodeNetworkConfigurationPolicy, NodeNetworkState and Node objects, has
// package nodeconfig decide, and writes nodes' desired states and policies' statuses.
//
// It runs in two forms, of the same code. Distributed, the default: inside "netplugin node-state" of each node, for that node's
// object only. Centralized: "netmaster node-config", for all nodes, one instance at a time by a Lease.
//
// # How two handlers never fight
//
// Two handlers may meet at one object: while the centralized one takes over or goes away, when a clock is wrong, when an old
// process has not noticed yet that it lost the Lease. It does no harm, for four reasons.
//
//   - What is decided is a function of the API server's objects alone: not of the time, nor of the order in which things came.
//     Two handlers that see the same want the same, and who comes second finds nothing to write.
//   - Every write names the version of the object that was looked at. Who looked at an older one is refused, and decides anew.
//     So no handler undoes what it has not seen, and of two that take the last free turn of a roll-out one is refused.
//   - A turn is stored in the policy's status before the node's object is written, and is given back only by what the node's
//     agent reports of that object. Whoever finds a turn that a dead handler took, goes on with it.
//   - While an instance for all nodes holds the Lease, those of single nodes write nothing: two versions of this program that
//     want different things don't meet for long. They ask for the Lease when they have something to write, so that idle ones
//     cost nothing.
//
// # Writes
//
// A change costs one update of each node's object, and updates of the policies' statuses: one before a node's turn begins, one when it is
// over. The instance for all nodes tells of many nodes in one: turns that end and turns that begin with them are one update, and what nothing
// waits for is kept back for up to a second, for others to come to an end. What is kept back is lost with the process, and found again by the
// next one. Nothing is written while nothing changes.
package controller
