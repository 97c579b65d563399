package stats

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
)

const (
	macs  = "020000000001020000000002"
	ports = "10e10050" // 4321 → 80
	ipv4  = "4500002800010000400600000a0000010a000002"
	ipv6  = "fd000000000000000000000000000001fd000000000000000000000000000002"
)

func TestForgedPacketsAreRead(t *testing.T) {
	for frame, want := range map[string]string{
		macs + "0800" + ipv4 + ports:                                                                "10.0.0.1:4321→10.0.0.2:80 TCP",
		macs + "81000005" + "0800" + ipv4 + ports:                                                   "10.0.0.1:4321→10.0.0.2:80 TCP",
		macs + "88a80005" + "81000005" + "0800" + ipv4 + ports:                                      "10.0.0.1:4321→10.0.0.2:80 TCP",
		macs + "0800" + ipv4 + "10":                                                                 "10.0.0.1:0→10.0.0.2:0 TCP",     // cut off
		macs + "0800" + "46" + ipv4[2:] + "01010101" + ports:                                        "10.0.0.1:4321→10.0.0.2:80 TCP", // options
		macs + "0800" + "4f" + ipv4[2:] + ports:                                                     "10.0.0.1:0→10.0.0.2:0 TCP",     // a longer header than there is
		macs + "0800" + "41" + ipv4[2:] + ports:                                                     "10.0.0.1:0→10.0.0.2:0 TCP",     // a shorter one than can be
		macs + "0800" + ipv4[:12] + "2000" + ipv4[16:] + ports:                                      "10.0.0.1:4321→10.0.0.2:80 TCP", // a first fragment
		macs + "0800" + ipv4[:12] + "0005" + ipv4[16:] + ports:                                      "10.0.0.1:0→10.0.0.2:0 TCP",     // a later one
		macs + "0800" + ipv4[:18] + "01" + ipv4[20:] + "08000000":                                   "10.0.0.1:0→10.0.0.2:0 protocol(1)",
		macs + "86dd" + "6000000000081140" + ipv6 + ports:                                           "[fd00::1]:4321→[fd00::2]:80 UDP",
		macs + "86dd" + "6000000000080040" + ipv6 + "3c00000000000000" + "8400000000000000" + ports: "[fd00::1]:4321→[fd00::2]:80 SCTP",    // hop-by-hop, destination
		macs + "86dd" + "6000000000083340" + ipv6 + "0600000000000000" + ports:                      "[fd00::1]:4321→[fd00::2]:80 TCP",     // authentication
		macs + "86dd" + "6000000000082c40" + ipv6 + "1100000100000001" + ports:                      "[fd00::1]:4321→[fd00::2]:80 UDP",     // a first fragment
		macs + "86dd" + "6000000000082c40" + ipv6 + "1100000900000001" + ports:                      "[fd00::1]:0→[fd00::2]:0 UDP",         // a later one
		macs + "86dd" + "6000000000080040" + ipv6 + "06ff000000000000":                              "[fd00::1]:0→[fd00::2]:0 protocol(0)", // longer than there is
		macs + "86dd" + "6000000000083a40" + ipv6 + "8000":                                          "[fd00::1]:0→[fd00::2]:0 protocol(58)",
		macs + "0806" + ipv4:            "",
		macs + "0800" + "60" + ipv4[2:]: "",
		macs + "0800" + ipv4[:38]:       "",
		macs + "86dd" + "6000":          "",
		macs + "8100":                   "",
		macs[:20]:                       "",
		"":                              "",
	} {
		b, err := hex.DecodeString(frame)
		if err != nil {
			t.Fatal(frame, err)
		}
		e, ok := ReadDrop(&ofctl.PacketIn{Table: pipeline.TableForged, Frame: b, Match: ofctl.Match{InPort: 7}})
		got := ""
		if ok {
			got = fmt.Sprintf("%v→%v %v", netip.AddrPortFrom(e.From, e.SrcPort), netip.AddrPortFrom(e.To, e.Port), e.Protocol)
		}
		if got != want || ok && (e.Reason != Forged || e.InPort != 7) {
			t.Errorf("%s: %q (%+v), want %q", frame, got, e, want)
		}
	}
}

func TestDenialsAreReadFromConntrack(t *testing.T) {
	m := ofctl.Match{CtNwSrc: netip.MustParsePrefix("10.0.0.1/32"), CtNwDst: netip.MustParsePrefix("10.0.0.2/32"), CtProto: 6,
		CtTpSrc: ofctl.U16{Value: 4321, Mask: 0xffff}, CtTpDst: ofctl.U16{Value: 80, Mask: 0xffff}}
	m.Reg[1].Value, m.Reg[4].Value = 5, 6
	e, ok := ReadDrop(&ofctl.PacketIn{Table: pipeline.TableEgressDenied, Match: m})
	if !ok || e.Reason != Egress || e.Class != 5 || e.SrcPort != 4321 || e.Port != 80 || e.Local() != e.From {
		t.Errorf("%+v", e)
	}
	m.CtProto = 1 // a type and a code are no ports
	e, ok = ReadDrop(&ofctl.PacketIn{Table: pipeline.TableIngressDenied, Match: m})
	if !ok || e.Reason != Ingress || e.Class != 6 || e.SrcPort != 0 || e.Port != 0 || e.Local() != e.To {
		t.Errorf("%+v", e)
	}
	for table, want := range map[uint8]DropReason{pipeline.TableEgressDryRunDenied: Egress, pipeline.TableIngressDryRunDenied: Ingress} {
		m.Reg[7].Value = 0
		if e, ok := ReadDrop(&ofctl.PacketIn{Table: table, Match: m}); !ok || e.Reason != want || !e.DryRun || !e.Living {
			t.Errorf("%+v", e)
		}
		m.Reg[7].Value = 1
		if e, ok := ReadDrop(&ofctl.PacketIn{Table: table, Match: m}); !ok || !e.DryRun || e.Living {
			t.Errorf("a new connection: %+v", e)
		}
	}
	for _, p := range []ofctl.PacketIn{{Table: pipeline.TableIngressDenied}, {Table: pipeline.TableOutput, Match: m}, {}} {
		if e, ok := ReadDrop(&p); ok {
			t.Errorf("%+v of %+v", e, p)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, frame := range []string{macs + "0800" + ipv4 + ports, macs + "86dd" + "6000000000080040" + ipv6 + "3c00000000000000" + "8400000000000000" + ports} {
		b, _ := hex.DecodeString(frame)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, ok := parse(b); ok && (!e.From.IsValid() || e.From.Is4() != e.To.Is4()) {
			t.Errorf("%+v", e)
		}
	})
}
