package pipeline

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// outlives is what a version finds in a switch that the one before it left.
func outlives() string {
	var b strings.Builder
	fmt.Fprintf(&b, "cookies %#x, layout %d\nzones policy %d, service %d\nct_mark service %d, tunnel %d\n", cookieMagic, cookieLayout, ZonePolicy, ZoneService, serviceMark, tunnelMark)
	fmt.Fprintf(&b, "registers source %d, applied %d, peer %d, block %d, commit %d; sources %d %d %d %d\n", regSource, regApplied, regPeer, regBlock, regCommit, fromPod, fromService, fromNode, fromTunnel)
	for _, table := range slices.Sorted(maps.Keys(tableNames)) {
		fmt.Fprintf(&b, "%d %s\n", table, tableNames[table])
	}
	for kind := KindStatic; kind <= KindWouldDeny; kind++ {
		fmt.Fprintf(&b, "kind %d %s\n", kind, kind)
	}
	return b.String()
}

// TestWhatOutlivesAnUpgrade: whoever changes this decides what becomes of packets and connections that the version before left (docs/decisions/021).
//
//   - Zones and values of ct_mark are of connections, which outlive every layout: none is ever given another meaning. A new meaning takes a new number.
//   - A table, a register or a kind of flow may be added. One that means something else than before is of another layout: raise cookieLayout, and give it
//     tables that the layout before has not, but for the first: then its flows come beside the old ones (datapath.Stages), up and down.
func TestWhatOutlivesAnUpgrade(t *testing.T) {
	const want = `cookies 0xf1, layout 1
zones policy 65521, service 65522
ct_mark service 1, tunnel 2
registers source 0, applied 1, peer 2, block 3, commit 7; sources 1 2 3 4
0 input
10 service
11 service-reply
12 service-out
15 conntrack
18 related
20 state
21 resumed
30 egress
31 egress-peer
32 egress-block
33 egress-rules
34 egress-audit
35 egress-audit-peer
36 egress-audit-block
37 egress-audit-rules
40 ingress
41 ingress-peer
42 ingress-block
43 ingress-rules
44 ingress-audit
45 ingress-audit-peer
46 ingress-audit-block
47 ingress-audit-rules
50 commit
55 fragments
60 output
70 egress-denied
71 ingress-denied
72 forged
73 egress-audited
74 ingress-audited
kind 1 static
kind 2 endpoint
kind 3 applied-to
kind 4 peer
kind 5 cidr
kind 6 clause
kind 7 allow
kind 8 allow-all
kind 9 default-drop
kind 10 would-deny
`
	if have := outlives(); have != want {
		t.Errorf("a switch has\n%s\nand where the version before left it\n%s", have, want)
	}
}
