package filter

import (
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/frames"
	"golang.org/x/net/bpf"
)

// matches runs the program that the kernel would.
func matches(t testing.TB, f *Filter, frame []byte) bool {
	t.Helper()
	code, err := f.instructions(1 << 16)
	if err != nil {
		t.Fatal(err)
	}
	vm, err := bpf.NewVM(code)
	if err != nil {
		t.Fatal(err)
	}
	n, err := vm.Run(frame)
	if err != nil {
		t.Fatal(err)
	}
	return n > 0
}

const ether = "020000000002020000000001"

var packets = map[string]string{
	"tcp":   ether + "0800" + "4500002800014000400600000a0000010a000002" + "9c40005000000064000000005002faf000000000",
	"udp":   ether + "0800" + "4600002000014000401100000a0100010a000002" + "01010101" + "c350003500080000", // with an IP option
	"later": ether + "0800" + "4500001c00010002401100000a0000010a000002" + "0050003500000000",
	"arp":   ether + "0806" + "0001080006040001" + "0200000000010a000001" + "0000000000000a000002",
	"udp6":  ether + "86dd" + "600000000008" + "1140" + "fd000000000000000000000000000001" + "fd000000000000000000000000000002" + "c350003500080000",
	"icmp6": ether + "86dd" + "600000000008" + "3aff" + "fd000000000000000000000000000001" + "fd000000000000000000000000000002" + "8000000000010002",
	"lldp":  ether + "88cc" + "0000",
}

func frame(t testing.TB, name string) []byte {
	t.Helper()
	b, err := hex.DecodeString(packets[name])
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestFilter(t *testing.T) {
	for expr, want := range map[string]string{
		"":                                  "arp icmp6 later lldp tcp udp udp6",
		"ip":                                "later tcp udp",
		"ip6":                               "icmp6 udp6",
		"arp":                               "arp",
		"tcp":                               "tcp",
		"udp":                               "later udp udp6",
		"icmp6":                             "icmp6",
		"icmp":                              "",
		"host 10.0.0.1":                     "arp later tcp",
		"dst host 10.0.0.2":                 "arp later tcp udp",
		"src host 10.0.0.2":                 "",
		"host fd00::2":                      "icmp6 udp6",
		"src net 10.1.0.0/16":               "udp",
		"net 10.0.0.0/15":                   "arp later tcp udp",
		"net fd00::/7":                      "icmp6 udp6",
		"net 0.0.0.0/0":                     "arp later tcp udp",
		"port 53":                           "udp udp6",
		"src port 53":                       "",
		"tcp port 53":                       "",
		"tcp dst port 80":                   "tcp",
		"portrange 50-60":                   "udp udp6",
		"src portrange 40000-50000":         "tcp udp udp6",
		"not ip":                            "arp icmp6 lldp udp6",
		"udp and not port 53":               "later",
		"tcp or arp":                        "arp tcp",
		"! (tcp or arp) host 10.0.0.1":      "later",
		"udp and (host 10.1.0.1 or ip6)":    "udp udp6",
		"not not arp":                       "arp",
		"(port 53||port 80)&&ip":            "tcp udp",
		"host ::ffff:10.0.0.1":              "arp later tcp",
		"tcp or udp and src host 10.1.0.1":  "tcp udp",
		"(tcp or udp) and host 10.1.0.1":    "udp",
		"src host 10.0.0.1 dst port 80 tcp": "tcp",
	} {
		f, err := Parse(expr)
		if err != nil {
			t.Errorf("%q: %v", expr, err)
			continue
		}
		for name := range packets {
			if got := matches(t, f, frame(t, name)); got != strings.Contains(" "+want+" ", " "+name+" ") {
				t.Errorf("%q takes %s: %v", expr, name, got)
			}
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for expr, says := range map[string]string{
		"host":                       "IP address",
		"host web":                   "IP address",
		"net 10.0.0.1":               "prefix",
		"port http":                  "number",
		"port 65536":                 "number",
		"portrange 5":                "two numbers",
		"portrange 9-5":              "two numbers",
		"(tcp":                       "without its )",
		"tcp)":                       "too much",
		"tcp and":                    "ends where",
		"or tcp":                     "not understood",
		"icmp port 5":                "no ports",
		"src tcp":                    "not understood",
		"tcp host 10.0.0.1 src":      "ends where",
		"vlan 5":                     "not understood",
		strings.Repeat("(", 100):     "nested",
		strings.Repeat("not ", 100):  "nested",
		strings.Repeat("tcp ", 65):   "more than",
		strings.Repeat("tcp ", 1000): "no more than",
	} {
		if _, err := Parse(expr); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.40q: %v", expr, err)
		}
	}
}

// The longest filter is one that the kernel takes.
func TestLongestFilterCompiles(t *testing.T) {
	f, err := Parse(strings.TrimSuffix(strings.Repeat("host fd00::1 or ", 64), " or "))
	if err != nil {
		t.Fatal(err)
	}
	code, err := f.Compile(100)
	if err != nil || len(code) > mostInstructions {
		t.Errorf("%d instructions, %v", len(code), err)
	}
}

// holds says slowly and plainly what an expression means, of a decoded packet.
func holds(n node, p *frames.Packet) bool {
	is := func(s side, test func(int) bool) bool {
		return s != destination && test(0) || s != source && test(1)
	}
	switch n := n.(type) {
	case nil:
		return true
	case both:
		return holds(n.a, p) && holds(n.b, p)
	case either:
		return holds(n.a, p) || holds(n.b, p)
	case not:
		return !holds(n.a, p)
	case etherIs:
		return uint32(p.EtherType) == uint32(n)
	case protoIs:
		return p.IsIP() && p.Protocol == byte(n)
	case netMatch:
		return is(n.side, func(i int) bool { return n.prefix.Contains([2]netip.Addr{p.Src, p.Dst}[i]) })
	case portMatch:
		return p.HasPorts && (n.protocol == 0 || n.protocol == p.Protocol) && is(n.side, func(i int) bool {
			port := [2]uint16{p.SrcPort, p.DstPort}[i]
			return n.first <= port && port <= n.last
		})
	}
	return false
}

func randomExpr(r *rand.Rand, depth int) string {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	if depth > 0 {
		switch r.IntN(4) {
		case 0:
			return randomExpr(r, depth-1) + " and " + randomExpr(r, depth-1)
		case 1:
			return "(" + randomExpr(r, depth-1) + pick(" or ", " and ") + randomExpr(r, depth-1) + ")"
		case 2:
			return "not " + randomExpr(r, depth-1)
		}
	}
	return pick("ip", "ip6", "arp", "tcp", "udp", "icmp6", "host 10.0.0.1", "src host 10.0.0.2", "dst net 10.0.0.0/30", "net fd00::/64", "src host fd00::1",
		"port 53", "udp src port 50000", "dst port 80", "portrange 52-90", "tcp portrange 1-79")
}

// The program and the meaning are the same, of random expressions.
func TestFilterAgainstMeaning(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		expr := randomExpr(r, 4)
		f, err := Parse(expr)
		if err != nil {
			t.Fatalf("%q: %v", expr, err)
		}
		for name := range packets {
			b := frame(t, name)
			p := frames.Decode(b)
			if got, want := matches(t, f, b), holds(f.root, &p); got != want {
				t.Fatalf("%q takes %s: %v, want %v", expr, name, got, want)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"tcp port 80", "not (host 10.0.0.1 or net fd00::/8)", "portrange 1-2 and arp"} {
		f.Add(s)
	}
	tcp := frame(f, "tcp")
	f.Fuzz(func(t *testing.T, s string) {
		parsed, err := Parse(s)
		if err != nil {
			return
		}
		if _, err := parsed.Compile(100); err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		p := frames.Decode(tcp)
		if got, want := matches(t, parsed, tcp), holds(parsed.root, &p); got != want {
			t.Errorf("%q: %v, want %v", s, got, want)
		}
	})
}

// What is looked for is also found inside of Geneve, over IPv4 and IPv6, and nothing else is.
func TestFilterLooksIntoTunnels(t *testing.T) {
	over4 := "020000000002 020000000001 0800 45000000 00000000 40110000 c0000201 c0000202 c00017c1 00000000"
	over6 := "020000000002 020000000001 86dd 60000000 00001140 fd000000000000000000000000000001 fd000000000000000000000000000002 c00017c1 00000000"
	for _, expr := range []string{"host 10.0.0.1 and tcp port 80", "tcp dst port 80", "udp port 53 and ip6", "icmp6", "net fd00::/7 and not icmp6", "host 10.9.9.9"} {
		f, err := Parse(expr)
		if err != nil {
			t.Fatal(err)
		}
		for name := range packets {
			inner := frame(t, name)
			want := matches(t, f, inner)
			if got := matches(t, f.OrTunnelled(), inner); got != want {
				t.Errorf("%q takes %s, bare: %v", expr, name, got)
			}
			for _, outer := range []string{over4, over6} {
				b, err := hex.DecodeString(strings.ReplaceAll(outer+"0000 6558 0000f100", " ", ""))
				if err != nil {
					t.Fatal(err)
				}
				if got, bare := matches(t, f.OrTunnelled(), append(b, inner...)), matches(t, f, b); got != (want || bare) {
					t.Errorf("%q takes %s in a tunnel: %v", expr, name, got)
				}
			}
		}
	}
}
