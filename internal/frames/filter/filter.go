// Package filter parses the expressions of netctl capture, a subset of tcpdump's, and compiles them to classic BPF,
// which the kernel runs before it copies a packet.
//
//	EXPR    = TERM { "or" TERM }
//	TERM    = FACTOR { ["and"] FACTOR }
//	FACTOR  = "not" FACTOR | "(" EXPR ")" | MATCH
//	MATCH   = "ip" | "ip6" | "arp" | "tcp" | "udp" | "sctp" | "icmp" | "icmp6"
//	        | ["src" | "dst"] "host" ADDRESS | ["src" | "dst"] "net" PREFIX
//	        | [PROTOCOL] ["src" | "dst"] ("port" NUMBER | "portrange" FIRST-LAST)
//
// As with tcpdump, a host is also who asks by ARP, ports are looked for directly behind the IP header, and later
// fragments have none.
package filter

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Bounds of an expression.
const (
	Longest     = 2048 // bytes
	mostMatches = 64
	deepest     = 32
)

// Filter is a parsed expression. The zero value takes everything.
type Filter struct{ root node }

// OrTunnelled also takes what comes in a Geneve tunnel and matches inside of it.
func (f *Filter) OrTunnelled() *Filter {
	if f.root == nil {
		return f
	}
	return &Filter{tunnelled{f.root}}
}

// node is one of and, or, not and the matches.
type node interface {
	emit(p *program, yes, no label)
}

type (
	both   struct{ a, b node }
	either struct{ a, b node }
	not    struct{ a node }
	// tunnelled also looks into Geneve
	tunnelled struct{ a node }
)

// side is whose address or port is meant.
type side int

const (
	eitherSide side = iota
	source
	destination
)

type (
	etherIs  uint32 // EtherType
	protoIs  byte   // IP protocol, of the families that have it
	netMatch struct {
		side   side
		prefix netip.Prefix
	}
	portMatch struct {
		side        side
		protocol    byte // 0: TCP, UDP and SCTP
		first, last uint16
	}
)

// Parse reads an expression; an empty one takes everything.
func Parse(text string) (*Filter, error) {
	if len(text) > Longest {
		return nil, fmt.Errorf("a filter of %d bytes: no more than %d", len(text), Longest)
	}
	p := &parser{words: words(text)}
	if len(p.words) == 0 {
		return &Filter{}, nil
	}
	root, err := p.expr(0)
	switch {
	case err != nil:
		return nil, fmt.Errorf("filter %q: %w", text, err)
	case len(p.words) > 0:
		return nil, fmt.Errorf("filter %q: %q is too much", text, p.words[0])
	}
	return &Filter{root}, nil
}

// words splits at blanks; brackets and ! are words of their own.
func words(text string) []string {
	spaced := strings.NewReplacer("(", " ( ", ")", " ) ", "!", " ! ", "&&", " and ", "||", " or ").Replace(text)
	return strings.Fields(spaced)
}

type parser struct {
	words   []string
	matches int
}

func (p *parser) peek() string {
	if len(p.words) == 0 {
		return ""
	}
	return p.words[0]
}

func (p *parser) next() string {
	w := p.peek()
	if w != "" {
		p.words = p.words[1:]
	}
	return w
}

// takes takes a word if it is the next.
func (p *parser) takes(words ...string) bool {
	for _, w := range words {
		if p.peek() == w {
			p.next()
			return true
		}
	}
	return false
}

func (p *parser) expr(depth int) (node, error) {
	a, err := p.term(depth)
	for err == nil && p.takes("or") {
		var b node
		if b, err = p.term(depth); err == nil {
			a = either{a, b}
		}
	}
	return a, err
}

func (p *parser) term(depth int) (node, error) {
	a, err := p.factor(depth)
	for err == nil && len(p.words) > 0 && p.peek() != "or" && p.peek() != ")" {
		p.takes("and")
		var b node
		if b, err = p.factor(depth); err == nil {
			a = both{a, b}
		}
	}
	return a, err
}

func (p *parser) factor(depth int) (node, error) {
	if depth > deepest {
		return nil, fmt.Errorf("nested deeper than %d", deepest)
	}
	switch {
	case p.takes("not", "!"):
		a, err := p.factor(depth + 1)
		return not{a}, err
	case p.takes("("):
		a, err := p.expr(depth + 1)
		if err == nil && !p.takes(")") {
			err = errors.New("a ( without its )")
		}
		return a, err
	}
	if p.matches++; p.matches > mostMatches {
		return nil, fmt.Errorf("more than %d hosts, ports and the like", mostMatches)
	}
	return p.match()
}

var etherTypes = map[string]etherIs{"ip": 0x0800, "ip6": 0x86dd, "arp": 0x0806}

var protocols = map[string]byte{"tcp": 6, "udp": 17, "sctp": 132, "icmp": 1, "icmp6": 58}

const usage = "use host ADDRESS, net PREFIX, port NUMBER, portrange FIRST-LAST (each also with src or dst), tcp, udp, sctp, icmp, icmp6, ip, ip6 or arp, joined by and, or, not and ( )"

func (p *parser) match() (node, error) {
	if ether, ok := etherTypes[p.peek()]; ok {
		p.next()
		return ether, nil
	}
	var protocol byte
	if n, ok := protocols[p.peek()]; ok {
		p.next()
		if !p.portsFollow() {
			return protoIs(n), nil
		}
		protocol = n
	}
	if protocol == protocols["icmp"] || protocol == protocols["icmp6"] {
		return nil, errors.New("icmp has no ports")
	}
	of := eitherSide
	switch {
	case p.takes("src"):
		of = source
	case p.takes("dst"):
		of = destination
	}
	switch {
	case p.takes("port"):
		return p.port(of, protocol)
	case p.takes("portrange"):
		return p.portRange(of, protocol)
	case p.takes("host"):
		return p.host(of)
	case p.takes("net"):
		return p.network(of)
	case p.peek() == "":
		return nil, fmt.Errorf("it ends where more was to come: %s", usage)
	}
	return nil, fmt.Errorf("%q is not understood here: %s", p.peek(), usage)
}

// portsFollow reports whether the ports behind a protocol belong to it.
func (p *parser) portsFollow() bool {
	words := p.words
	if len(words) > 0 && (words[0] == "src" || words[0] == "dst") {
		words = words[1:]
	}
	return len(words) > 0 && (words[0] == "port" || words[0] == "portrange")
}

func (p *parser) host(of side) (node, error) {
	a, err := netip.ParseAddr(p.next())
	if err != nil || a.Zone() != "" {
		return nil, errors.New("host needs an IP address, such as 10.0.0.1")
	}
	a = a.Unmap()
	return netMatch{of, netip.PrefixFrom(a, a.BitLen())}, nil
}

func (p *parser) network(of side) (node, error) {
	n, err := netip.ParsePrefix(p.next())
	if err != nil || n.Addr().Is4In6() {
		return nil, errors.New("net needs a prefix, such as 10.0.0.0/8")
	}
	return netMatch{of, n.Masked()}, nil
}

func (p *parser) port(of side, protocol byte) (node, error) {
	n, err := strconv.ParseUint(p.next(), 10, 16)
	if err != nil {
		return nil, errors.New("port needs a number from 0 to 65535")
	}
	return portMatch{of, protocol, uint16(n), uint16(n)}, nil
}

func (p *parser) portRange(of side, protocol byte) (node, error) {
	first, last, ok := strings.Cut(p.next(), "-")
	a, errA := strconv.ParseUint(first, 10, 16)
	b, errB := strconv.ParseUint(last, 10, 16)
	if !ok || errors.Join(errA, errB) != nil || a > b {
		return nil, errors.New("portrange needs two numbers from 0 to 65535, such as 8000-8080")
	}
	return portMatch{of, protocol, uint16(a), uint16(b)}, nil
}
