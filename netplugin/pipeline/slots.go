package pipeline

import (
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
)

// endpoints is the endpoints of a pool, by their ids and their addresses.
type endpoints struct {
	ids       []uint32
	addresses []netip.AddrPort
}

// choice adds the flows from a pool to its endpoints. A group chooses by a hash of the connection. With affinity the
// client's address decides, so that all of its first connections agree. So it does for first fragments, because a group
// would part them from those behind them (one recirc_id, see flowList.fragments). Where there are several tables of
// slots the client's address chooses one of them before. It fails where the switch has no such group.
func (o *serviceFlows) choice(p *pool, f *service.Frontend, among *endpoints, affinity bool) error {
	m := ofctl.Match{EtherType: familyType(f.Family)}
	m.Reg[regPool] = exactReg(p.id)
	if len(among.ids) == 1 {
		only := setReg(regBackend, among.ids[0])
		o.flows.add(KindFrontend, p.id, TableServiceChoice, 50, m, only, goTo(TableServiceEndpoint))
		return nil
	}
	slots, tables := service.Divide(among.addresses), service.Tables(len(among.ids))
	ofTable := uint32(len(slots) / tables)
	group := uint32(bits.TrailingZeros32(ofTable))
	if !affinity && slices.Contains(o.cfg.Services.WithoutGroups, group) {
		return fmt.Errorf("the switch refuses the group %d", group)
	}
	var byTable []ofctl.Action
	if tables > 1 {
		byTable = []ofctl.Action{{Kind: ofctl.Multipath, Reg: regTable, Value: uint32(tables)}}
	}
	byClient := append(slices.Clip(byTable), ofctl.Action{Kind: ofctl.Multipath, Reg: regSlot, Value: ofTable},
		goTo(TableServiceSlot))
	var restore []ofctl.Action // what group has put on the stack
	if o.cfg.Services.hashLacksPorts(f.Protocol) && !affinity {
		restore = []ofctl.Action{{Kind: ofctl.Pop, Clauses: uint8(f.Family)}}
		byClient = append([]ofctl.Action{{Kind: ofctl.Push, Clauses: uint8(f.Family)}}, byClient...)
	}
	if affinity {
		o.flows.add(KindFrontend, p.id, TableServiceChoice, 50, m, byClient...)
	} else {
		o.group(p, f, m, byTable, group)
	}
	if first := m; o.fragments(f) && !affinity {
		first.IPFrag = ofctl.Fragments
		o.flows.add(KindFrontend, p.id, TableServiceChoice, 60, first, byClient...)
	}
	for i, endpoint := range slots {
		at := m
		at.Reg[regSlot] = exactReg(uint32(i) % ofTable)
		if tables > 1 {
			at.Reg[regTable] = exactReg(uint32(i) / ofTable)
		}
		lead := append(slices.Clone(restore), setReg(regBackend, among.ids[endpoint]), goTo(TableServiceEndpoint))
		o.flows.add(KindSlot, p.id, TableServiceSlot, 50, at, lead...)
	}
	return nil
}

// group adds the choice of a slot by a hash of the connection. Of UDP the hash of Open vSwitch's userspace datapath
// has the addresses alone: all connections of a client would go to one endpoint. So some bits of the source port are
// put into the destination, which is on the stack until the slot is known. The kernel's hash has the ports.
func (o *serviceFlows) group(p *pool, f *service.Frontend, m ofctl.Match, byTable []ofctl.Action, id uint32) {
	choose := ofctl.Action{Kind: ofctl.Group, Value: id}
	actions := append(slices.Clip(byTable), choose)
	if o.cfg.Services.hashLacksPorts(f.Protocol) {
		m.IPProto = uint8(policy.UDP)
		family := uint8(f.Family)
		actions = append(slices.Clip(byTable),
			ofctl.Action{Kind: ofctl.Push, Clauses: family},
			ofctl.Action{Kind: ofctl.MoveUDPSrc, Value: portBits, Clauses: family},
			choose,
		)
	}
	o.flows.add(KindFrontend, p.id, TableServiceChoice, 50, m, actions...)
}

// portBits is the number of bits of the source port that decide over a connection's endpoint: each value costs two
// megaflows.
const portBits = 5
