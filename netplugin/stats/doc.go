// Package stats holds the traffic figures of a node: counters of rules and Services, and records of denied packets.
//
// A Ledger sums the packets that the rules of policies permit and that isolation denies. It holds the last reading of
// each flow and adds the difference to each place in a policy that the flow implements. The sums survive restarts of
// netplugin and of the switch, and edits of policies that replace flows. A Store writes sums and readings to disk in one
// transaction, so that packets of a flow count while netplugin is down. These packets are not counted:
//   - packets of a removed flow after its last reading. Counters are read before an update removes flows, and the switch
//     collects its datapath's statistics every half second.
//   - packets after the last reading, when ovs-vswitchd is killed;
//   - packets of flows that are gone at the next start, after the last write, when netplugin is killed.
//
// Opened sums the packets that open connections to Services, by Service and endpoint. It is in memory only.
//
// Drops keeps recent denials. The switch sends a few packets a second to it (pipeline.Meters), and Drops merges them
// into records by source, destination and reason. Meters bound the input; the number of records is bounded for each pod
// and for all. A second Drops has the packets that policies in a dry run would have denied (DropConfig.DryRun), and logs
// each new pair.
package stats
