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
	fmt.Fprintf(&b, "zones translation %d, hairpin %d, evaluation %d; ct_mark translated %d\n",
		ZoneTranslation, ZoneHairpin, ZoneEvaluation, translatedMark)
	fmt.Fprintf(&b, "registers source %d, applied %d, peer %d, block %d, commit %d, port %d; sources %d %d %d %d\n", regSource, regApplied, regPeer, regBlock, regCommit, regPort, fromPod, fromService, fromNode, fromTunnel)
	for _, table := range slices.Sorted(maps.Keys(tableNames)) {
		fmt.Fprintf(&b, "%d %s\n", table, tableNames[table])
	}
	for kind := KindStatic; kind <= KindLearned; kind++ {
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
zones translation 65519, hairpin 65518, evaluation 65520; ct_mark translated 4
registers source 0, applied 1, peer 2, block 3, commit 7, port 8; sources 1 2 3 4
0 input
1 mac-1
2 mac-2
3 mac-3
4 mac-4
5 mac-5
6 mac-6
7 service-state
8 service-frontend
9 service-new
10 service
11 service-reply
12 service-out
13 service-node-port
14 hairpin-reply
15 conntrack
16 service-learned
17 service-choice
18 related
19 service-evaluate
20 state
21 resumed
22 service-slot
23 service-endpoint
24 service-translated
25 ports
26 service-hairpin
30 egress
31 egress-peer
32 egress-block
33 egress-rules
34 egress-dryrun
35 egress-dryrun-peer
36 egress-dryrun-block
37 egress-dryrun-rules
40 ingress
41 ingress-peer
42 ingress-block
43 ingress-rules
44 ingress-dryrun
45 ingress-dryrun-peer
46 ingress-dryrun-block
47 ingress-dryrun-rules
50 commit
51 service-commit
55 fragments
57 service-return
60 output
70 egress-denied
71 ingress-denied
72 forged
73 egress-dryrun-denied
74 ingress-dryrun-denied
75 unreachable
76 arp-2
77 arp-3
78 arp-4
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
kind 11 frontend
kind 12 slot
kind 13 service-endpoint
kind 14 learned
`
	if have := outlives(); have != want {
		t.Errorf("a switch has\n%s\nand where the version before left it\n%s", have, want)
	}
}
