package explain

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

const allBut = "all but "

// String returns "all", "none", "TCP 80,443,8000-8010; UDP 53", "TCP" for all ports of a protocol, or "all but TCP 80"
// if all other protocols are in the set, ICMP included.
func (c Connections) String() string {
	switch {
	case c.IsAll():
		return "all"
	case c.IsNone():
		return "none"
	case c.rest:
		return allBut + All().Minus(c).String()
	}
	parts := make([]string, len(c.listed))
	for i, l := range c.listed {
		parts[i] = l.String()
	}
	return strings.Join(parts, "; ")
}

func (l protocolPorts) String() string {
	if len(l.spans) == 1 && l.spans[0] == (span{0, lastPort}) {
		return l.protocol.String()
	}
	parts := make([]string, len(l.spans))
	for i, s := range l.spans {
		parts[i] = s.String()
	}
	return l.protocol.String() + " " + strings.Join(parts, ",")
}

func (s span) String() string {
	if s.first == s.last {
		return strconv.Itoa(int(s.first))
	}
	return fmt.Sprintf("%d-%d", s.first, s.last)
}

// MarshalText returns the same text as String.
func (c Connections) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText parses the text with ParseConnections.
func (c *Connections) UnmarshalText(text []byte) error {
	parsed, err := ParseConnections(string(text))
	if err == nil {
		*c = parsed
	}
	return err
}

// ParseConnections reads what String writes.
func ParseConnections(text string) (Connections, error) {
	switch text {
	case "all":
		return All(), nil
	case "none":
		return Connections{}, nil
	}
	if but, ok := strings.CutPrefix(text, allBut); ok {
		c, err := parseListed(but)
		return All().Minus(c), err
	}
	return parseListed(text)
}

func parseListed(text string) (c Connections, err error) {
	var list []policy.PortRange
	for part := range strings.SplitSeq(text, ";") {
		name, ports, listed := strings.Cut(strings.TrimSpace(part), " ")
		protocol, err := parseProtocol(name)
		if err != nil {
			return Connections{}, err
		}
		if !listed {
			list = append(list, policy.PortRange{Protocol: protocol, Last: lastPort})
			continue
		}
		for s := range strings.SplitSeq(ports, ",") {
			first, last, err := parseSpan(s)
			if err != nil {
				return Connections{}, err
			}
			list = append(list, policy.PortRange{Protocol: protocol, First: first, Last: last})
		}
	}
	return unionOf(list), nil
}

func parseProtocol(name string) (policy.Protocol, error) {
	for _, p := range []policy.Protocol{policy.TCP, policy.UDP, policy.SCTP} {
		if name == p.String() {
			return p, nil
		}
	}
	var number uint8
	if _, err := fmt.Sscanf(name, "protocol(%d)", &number); err != nil || name != policy.Protocol(number).String() {
		return 0, fmt.Errorf("protocol %q: want TCP, UDP, SCTP or protocol(number)", name)
	}
	return policy.Protocol(number), nil
}

func parseSpan(text string) (first, last uint16, err error) {
	low, high, isRange := strings.Cut(text, "-")
	if !isRange {
		high = low
	}
	a, errA := strconv.ParseUint(low, 10, 16)
	b, errB := strconv.ParseUint(high, 10, 16)
	if errA != nil || errB != nil || a > b {
		return 0, 0, fmt.Errorf("ports %q: want a number, or two with a dash between", text)
	}
	return uint16(a), uint16(b), nil
}
