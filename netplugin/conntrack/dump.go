package conntrack

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Tuple is the first packet's: what policies judge, in both directions. DstPort is 0 where the protocol has no ports.
type Tuple struct {
	Protocol         policy.Protocol
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
}

func (t Tuple) String() string {
	end := func(a netip.Addr, port uint16) string {
		if port == 0 {
			return a.String()
		}
		return netip.AddrPortFrom(a, port).String()
	}
	return fmt.Sprintf("%s %s → %s", ProtocolName(t.Protocol), end(t.Src, t.SrcPort), end(t.Dst, t.DstPort))
}

const (
	icmp    policy.Protocol = 1
	igmp    policy.Protocol = 2
	dccp    policy.Protocol = 33
	icmpv6  policy.Protocol = 58
	udplite policy.Protocol = 136
)

// protocols are those that ovs-vswitchd has a name for (ct_dpif_format_ipproto); others are numbers.
var protocols = map[string]policy.Protocol{"tcp": policy.TCP, "udp": policy.UDP, "sctp": policy.SCTP, "icmp": icmp,
	"icmpv6": icmpv6,
	"igmp":   igmp, "dccp": dccp, "udplite": udplite}

// ProtocolName returns the name of the protocol, ICMP included.
func ProtocolName(p policy.Protocol) string {
	switch p {
	case icmp:
		return "ICMP"
	case icmpv6:
		return "ICMPv6"
	}
	return p.String()
}

// ended are the states of TCP and SCTP in which one end at least has said goodbye (ovs-vswitchd's ct-dpif.c and the
// kernel's names).
var ended = map[string]bool{"FIN_WAIT": true, "FIN_WAIT_1": true, "FIN_WAIT_2": true, "CLOSE_WAIT": true,
	"CLOSING": true, "LAST_ACK": true, "TIME_WAIT": true,
	"CLOSE": true, "CLOSED": true, "SHUTDOWN_SENT": true, "SHUTDOWN_RECD": true, "SHUTDOWN_ACK_SENT": true}

// ParseLine parses one line of "dpctl/dump-conntrack" (ovs-vswitchd(8)). live is false for a connection that has ended
// and whose entry has not timed out. Only the original tuple and the state are used.
func ParseLine(line string) (t Tuple, live bool, err error) {
	name, rest, _ := strings.Cut(line, ",")
	protocol, ok := protocols[name]
	if !ok {
		number, err := strconv.ParseUint(name, 10, 8)
		if err != nil {
			return t, false, fmt.Errorf("conntrack: unknown protocol in %q", line)
		}
		protocol = policy.Protocol(number)
	}
	t.Protocol = protocol
	_, rest, found := strings.Cut(rest, "orig=(")
	original, rest, closed := strings.Cut(rest, ")")
	if !found || !closed {
		return t, false, fmt.Errorf("conntrack: no original tuple in %q", line)
	}
	for field := range strings.SplitSeq(original, ",") {
		if err := t.set(field); err != nil {
			return t, false, fmt.Errorf("conntrack: %w in %q", err, line)
		}
	}
	if !t.Src.IsValid() || !t.Dst.IsValid() {
		return t, false, fmt.Errorf("conntrack: an address is missing in %q", line)
	}
	return t, !ended[stateOf(rest)], nil
}

func (t *Tuple) set(field string) (err error) {
	key, value, _ := strings.Cut(field, "=")
	switch key {
	case "src":
		t.Src, err = netip.ParseAddr(value)
	case "dst":
		t.Dst, err = netip.ParseAddr(value)
	case "sport":
		t.SrcPort, err = parsePort(value)
	case "dport":
		t.DstPort, err = parsePort(value)
	}
	return err
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err
}

// stateOf returns the state of a connection, or the later one of two states if the ends differ.
func stateOf(rest string) string {
	for _, name := range []string{"state=", "state_orig=", "state_reply="} {
		_, after, ok := strings.Cut(rest, name)
		if !ok {
			continue
		}
		value := after[:max(0, strings.IndexAny(after+")", ",)"))]
		if ended[value] {
			return value
		}
	}
	return ""
}

// Openers returns the number of connections that each address opened, of the lines that ParseLine reads. It leaves out
// other lines.
func Openers(text string) map[netip.Addr]uint32 {
	opened := map[netip.Addr]uint32{}
	for line := range strings.Lines(text) {
		if t, _, err := ParseLine(strings.TrimSpace(line)); err == nil {
			opened[t.Src]++
		}
	}
	return opened
}
