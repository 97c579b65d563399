package conntrack

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

func tuple(p policy.Protocol, src string, sport uint16, dst string, dport uint16) Tuple {
	return Tuple{Protocol: p, Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), SrcPort: sport, DstPort: dport}
}

// Lines as ovs-vswitchd 3.1 prints them, of its own connection tracker and of the kernel's.
var lines = []struct {
	text string
	want Tuple
	live bool
}{
	{"tcp,orig=(src=10.244.1.2,dst=10.244.1.3,sport=41234,dport=80),reply=(src=10.244.1.3,dst=10.244.1.2,sport=80,dport=41234),zone=65521,protoinfo=(state=ESTABLISHED)",
		tuple(policy.TCP, "10.244.1.2", 41234, "10.244.1.3", 80), true},
	{"tcp,orig=(src=10.244.1.2,dst=10.244.1.3,sport=1,dport=80),reply=(src=10.244.1.3,dst=10.244.1.2,sport=80,dport=1),zone=65521,mark=1,protoinfo=(state_orig=ESTABLISHED,state_reply=FIN_WAIT_2)",
		tuple(policy.TCP, "10.244.1.2", 1, "10.244.1.3", 80), false},
	{"tcp,orig=(src=10.0.0.1,dst=10.0.0.2,sport=1,dport=80),reply=(src=10.0.0.2,dst=10.0.0.1,sport=80,dport=1),zone=65521,protoinfo=(state=SYN_SENT)",
		tuple(policy.TCP, "10.0.0.1", 1, "10.0.0.2", 80), true},
	{"tcp,orig=(src=10.0.0.1,dst=10.0.0.2,sport=1,dport=80),reply=(src=10.0.0.2,dst=10.0.0.1,sport=80,dport=1),zone=65521,protoinfo=(state_orig=TIME_WAIT,state_reply=FIN_WAIT_2)",
		tuple(policy.TCP, "10.0.0.1", 1, "10.0.0.2", 80), false},
	{"tcp,orig=(src=10.0.0.1,dst=10.0.0.2,sport=1,dport=80),reply=(src=10.0.0.2,dst=10.0.0.1,sport=80,dport=1),zone=65521,protoinfo=(state=CLOSED)",
		tuple(policy.TCP, "10.0.0.1", 1, "10.0.0.2", 80), false},
	{"udp,orig=(src=fd00::2,dst=fd00::3,sport=53,dport=5353),reply=(src=fd00::3,dst=fd00::2,sport=5353,dport=53),zone=65521,protoinfo=(state=MULTIPLE)",
		tuple(policy.UDP, "fd00::2", 53, "fd00::3", 5353), true},
	{"sctp,orig=(src=10.0.0.1,dst=10.0.0.2,sport=9,dport=8),reply=(src=10.0.0.2,dst=10.0.0.1,sport=8,dport=9),zone=65521,protoinfo=(state=ESTABLISHED,vtag_orig=1,vtag_reply=2)",
		tuple(policy.SCTP, "10.0.0.1", 9, "10.0.0.2", 8), true},
	{"icmp,orig=(src=10.0.0.1,dst=10.0.0.2,id=77,type=8,code=0),reply=(src=10.0.0.2,dst=10.0.0.1,id=77,type=0,code=0),zone=65521", tuple(icmp, "10.0.0.1", 0, "10.0.0.2", 0), true},
	{"icmpv6,orig=(src=fd00::1,dst=fd00::2,id=77,type=128,code=0),reply=(src=fd00::2,dst=fd00::1,id=77,type=129,code=0),zone=65521", tuple(icmpv6, "fd00::1", 0, "fd00::2", 0), true},
	{"udplite,orig=(src=10.0.0.1,dst=10.0.0.2,sport=9,dport=8),reply=(src=10.0.0.2,dst=10.0.0.1,sport=8,dport=9),zone=65521", tuple(udplite, "10.0.0.1", 9, "10.0.0.2", 8), true},
	{"dccp,orig=(src=10.0.0.1,dst=10.0.0.2,sport=9,dport=8),reply=(src=10.0.0.2,dst=10.0.0.1,sport=8,dport=9),zone=65521", tuple(dccp, "10.0.0.1", 9, "10.0.0.2", 8), true},
	{"igmp,orig=(src=10.0.0.1,dst=10.0.0.2,sport=0,dport=0),reply=(src=10.0.0.2,dst=10.0.0.1,sport=0,dport=0),zone=65521", tuple(igmp, "10.0.0.1", 0, "10.0.0.2", 0), true},
	{"47,orig=(src=10.0.0.1,dst=10.0.0.2,sport=0,dport=0),reply=(src=10.0.0.2,dst=10.0.0.1,sport=0,dport=0),zone=65521", tuple(47, "10.0.0.1", 0, "10.0.0.2", 0), true},
}

func TestLinesOfConntrack(t *testing.T) {
	for _, l := range lines {
		got, live, err := ParseLine(l.text)
		if err != nil || got != l.want || live != l.live {
			t.Errorf("%s\n  is %v, live %v, %v\nwant %v, live %v", l.text, got, live, err, l.want, l.live)
		}
	}
	for _, text := range []string{"", "tcp", "nonsense,orig=(src=10.0.0.1,dst=10.0.0.2)", "tcp,orig=(src=10.0.0.1,dst=10.0.0.2", "tcp,orig=(src=10.0.0.1,sport=1,dport=2)",
		"tcp,orig=(src=x,dst=10.0.0.2)", "tcp,orig=(src=10.0.0.1,dst=10.0.0.2,sport=65536)", "256,orig=(src=10.0.0.1,dst=10.0.0.2)"} {
		if got, _, err := ParseLine(text); err == nil {
			t.Errorf("%q was read as %v", text, got)
		}
	}
}

// TestOpeners: connections count for the address that opened them, whatever their state.
func TestOpeners(t *testing.T) {
	text := ""
	want := map[netip.Addr]uint32{}
	for _, l := range lines {
		text += l.text + "\nnonsense\n"
		want[l.want.Src]++
	}
	if got := Openers(text); !maps.Equal(got, want) {
		t.Errorf("opened by %v, want %v", got, want)
	}
}

func FuzzParseLine(f *testing.F) {
	for _, l := range lines {
		f.Add(l.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, _, err := ParseLine(text)
		if err == nil && (!got.Src.IsValid() || !got.Dst.IsValid()) {
			t.Errorf("%q: an address is missing in %+v", text, got)
		}
	})
}
