// Package fake is an in-memory switch for tests. It stores flows, rejects what Open vSwitch rejects, tracks
// connections, and traces packets through its tables: which flows they matched and which ports they left by. A verdict
// takes microseconds. A test compares it with ovs-vswitchd's ofproto/trace.
//
// Fragments are held and reassembled as in the userspace datapath.
//
// NAT, timeouts, meters, groups and the expiry of TTLs are not modelled.
package fake
