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
//   - Decisions are a function of the API server's objects alone: not of the time, nor of the order of events. Two
//     handlers that see the same objects decide the same, and the second one finds nothing to write.
//   - Each write names the version of the object on which it was decided. The API server refuses it if the object has
//     changed, and the handler decides again. So no handler undoes a change that it has not seen, and of two that take
//     the last free turn of a roll-out one is refused.
//   - A turn is stored in the policy's status before the node's object is written. Only the agent's report about that
//     object gives it back. A handler that finds the turn of a dead one continues it.
//   - While an instance for all nodes holds the Lease, those of single nodes write nothing: two versions of this
//     program with different decisions do not meet for long. They read the Lease when they have something to write, so
//     that idle ones cost nothing.
//
// # Writes
//
// A change costs one update of each node's object, and updates of the policies' statuses: one before a node's turn
// begins, one when it is over. The instance for all nodes reports many nodes in one update: turns that end and turns
// that begin with them share one, and reports that block nothing wait for up to a second for others. Pending reports
// are lost with the process, and found again by the next one. Nothing is written while nothing changes.
package controller
