package pipeline

import "github.com/flowkeep/flowkeep/ofctl"

// macTables is the number of tables from TableMAC on: one for each byte of a pod's packet's MACs. Every way out sets
// both MACs, and Open vSwitch then matches them whole: an upcall and a megaflow for each that a pod makes up. So only
// its own and the gateway's go on. Open vSwitch looks at no more of a MAC than it takes to find the first difference.
const macTables = 6

// gatewayMAC drops what pods send to another MAC than the gateway's. Each bit has a flow of its own, because flows are
// tried in the order of their priorities, and a bit behind the first difference is not looked at.
func (l *flowList) gatewayMAC(cfg *Config) {
	for i, b := range cfg.Gateway.MAC {
		table := TableMAC + uint8(i)
		for bit := range uint16(8) {
			mask := byte(0x80 >> bit)
			var m ofctl.Match
			m.EthDst[i], m.EthDstMask[i] = ^b&mask, mask
			l.static(table, 208-bit, m)
		}
		l.static(table, 0, ofctl.Match{}, goTo(TableForged))
	}
}

// ownMAC leads on what a pod sends from its own MAC.
func (l *flowList) ownMAC(e *LocalEndpoint) {
	for i, b := range e.MAC {
		table, next := TableMAC+uint8(i), TableMAC+uint8(i)+1
		if i+1 == macTables {
			next = TableService
		}
		m := ofctl.Match{InPort: e.Port}
		m.EthSrc[i], m.EthSrcMask[i] = b, 0xff
		l.add(KindEndpoint, e.Port, table, 100, m, goTo(next))
	}
}
