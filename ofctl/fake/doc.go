// Package fake is a switch in memory, beside the real one: it holds flows, refuses what Open vSwitch refuses, tracks
// connections, and tells of a packet which flows it met and where it went. Tests ask it for verdicts, of whole connections, in
// microseconds; a test holds it to ovs-vswitchd's ofproto/trace.
//
// Fragments are held, and let go, as the userspace datapath does it.
//
// What it does not model: NAT, time-outs, meters, groups, TTLs that run out.
package fake
