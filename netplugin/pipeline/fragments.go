package pipeline

import "github.com/flowkeep/flowkeep/ofctl"

// Marks of a fragment, from its first visit to conntrack on: its Ethernet destination. It is part of the packet, so it
// stays with the fragment where that leaves with the visit, and so the registers, of another packet. No pod can send
// it: it is set on all fragments before the first visit, and every way out overwrites it.
var (
	arrivedMAC  = ofctl.MAC{0x02, 0xf1, 0, 0, 0, 0x61} // seen by conntrack with all others of its datagram, or not at all
	gatheredMAC = ofctl.MAC{0x02, 0xf1, 0, 0, 0, 0x67} // likewise, and the first of them was allowed
)

func markFragment(mark ofctl.MAC) ofctl.Action { return ofctl.Action{Kind: ofctl.SetEthDst, MAC: mark} }

func fragmentsOf(etherType uint16) ofctl.Match {
	return ofctl.Match{EtherType: etherType, IPFrag: ofctl.Fragments}
}

// fragments has later fragments pass where their first does (userspace datapath; the kernel's makes whole packets of them, which
// are none from their visit to conntrack on). Only the first has ports to judge by. So it is judged, and those behind it are
// not; all that are left then visit conntrack a second time, which holds them until it has a whole datagram: for ever, where the first
// was denied. What comes out again has a first that was allowed, which is judged once more.
func (l *flowList) fragments() {
	for _, etherType := range families {
		arrived := fragmentsOf(etherType)
		visit := ofctl.Action{Kind: ofctl.Ct, Zone: ZonePolicy, Table: TableRelated}
		l.static(TableConntrack, 50, arrived, markFragment(arrivedMAC), visit)
		later := valid(etherType)
		later.IPFrag = ofctl.LaterFragments
		l.static(TableState, 60, later, goTo(TableFragments))
		l.static(TableResumed, 110, arrived) // its datagram would be committed
		l.static(TableCommit, 70, arrived, goTo(TableFragments))
		gathered := fragmentsOf(etherType)
		gathered.EthDst = gatheredMAC
		l.static(TableFragments, 100, gathered, goTo(TableOutput))
		l.static(TableFragments, 60, sourceIs(unanswered(etherType), fromService), gather(commitTo(TableRelated, serviceMark))...)
		l.static(TableFragments, 50, unanswered(etherType), gather(commitTo(TableRelated, 0))...)
		l.static(TableFragments, 0, ofctl.Match{EtherType: etherType}, gather(ofctl.Action{Kind: ofctl.Ct, Zone: ZonePolicy, Table: TableRelated})...)
	}
}

// gather is the second visit. It goes on where the first did, with the same registers: then Open vSwitch takes both for the same
// (one recirc_id), and finds a datagram's fragments together though some left their first visit with the second of others.
func gather(visit ofctl.Action) []ofctl.Action {
	actions := append([]ofctl.Action{markFragment(gatheredMAC), setReg(regCommit, 0)}, noClasses()...)
	return append(actions, visit)
}
