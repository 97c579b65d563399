// Package counters keeps what the rules of policies let through and what isolation denied on this node: sums that go on over
// restarts of netplugin and of the switch, and over flows that come and go with edits of policies.
//
// The switch counts for flows. A Ledger holds the last reading of each flow and adds what was counted since to every place in a
// policy that the flow stands for. A Store keeps both on disk, in one transaction: so a flow that goes on while netplugin is away
// loses nothing. What can be lost: of a flow that went, what it counted since it was read last, which is before an update takes it
// away, but for half a second in which the switch does not know of its datapath's packets; where the switch is killed, what it counted
// since it was read last; and where netplugin is killed, what flows that are gone by then had counted since the last write.
package counters
