package doctor

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Socket is one that listens.
type Socket struct {
	Protocol string // tcp or udp
	Address  netip.Addr
	Port     uint16
	Inode    uint64 // 0: the kernel's own
	Program  string // whose it is, with its process id; empty if that could not be told
}

// ParseSockets reads /proc/net/tcp, tcp6, udp or udp6 (proc_net(5)): those that listen. What cannot be read is passed over and counted.
func ParseSockets(protocol string, text []byte) (list []Socket, bad int) {
	const listens, bound = "0A", "07" // of TCP, and of UDP what is not connected
	for i, line := range strings.Split(string(text), "\n") {
		f := strings.Fields(line)
		if i == 0 || len(f) == 0 {
			continue
		}
		if len(f) < 10 {
			bad++
			continue
		}
		if protocol == "tcp" && f[3] != listens || protocol == "udp" && f[3] != bound {
			continue
		}
		s, err := parseSocket(f[1], f[9])
		if err != nil {
			bad++
			continue
		}
		s.Protocol = protocol
		list = append(list, s)
	}
	return list, bad
}

func parseSocket(local, inode string) (s Socket, err error) {
	address, port, _ := strings.Cut(local, ":")
	raw, err := hex.DecodeString(address)
	if err != nil {
		return s, err
	}
	if len(raw) != 4 && len(raw) != 16 {
		return s, fmt.Errorf("%d bytes are no address", len(raw))
	}
	for i := 0; i < len(raw); i += 4 { // each word is in the host's order, which is little-endian where Kubernetes runs
		slices.Reverse(raw[i : i+4])
	}
	s.Address, _ = netip.AddrFromSlice(raw)
	s.Address = s.Address.Unmap()
	number, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return s, err
	}
	s.Port = uint16(number)
	s.Inode, err = strconv.ParseUint(inode, 10, 64)
	return s, err
}

// ownPort is one that Flowkeep listens on, and where.
type ownPort struct {
	protocol string
	port     uint16
	what     string
	where    Level // how much it matters that it is taken: what runs on some nodes only is a warning
}

var ownPorts = []ownPort{
	{"tcp", 7443, "netmaster's feed", Warning},
	{"tcp", 7444, "netmaster's answers through the API server", Warning},
	{"tcp", 7445, "netmaster's signing of certificates", Warning},
	{"tcp", 9440, "netmaster's metrics", Warning},
	{"tcp", 9441, "netplugin's metrics", Problem},
	{"tcp", 9442, "netmaster's page, and the metrics of netplugin node-state", Warning},
	{"tcp", 9443, "the metrics of netplugin macvtap", Warning},
	{"udp", 6081, "Geneve tunnels", Warning},
}

var ownPrograms = []string{"netmaster", "netplugin", "ovs-vswitchd"}

func (b *book) ports(sockets *Fact[[]Socket], mode string) {
	const check = "ports"
	if !sockets.known() {
		b.unknown(check, "who listens where", sockets.Error, "")
		return
	}
	var free []string
	for _, p := range ownPorts {
		name := fmt.Sprintf("%s/%d", strings.ToUpper(p.protocol), p.port)
		var held []string
		var ours bool
		for _, s := range sockets.Value {
			if s.Protocol == p.protocol && s.Port == p.port {
				holder, own := holderOf(&s)
				ours = ours || own
				held = append(held, holder)
			}
		}
		switch {
		case len(held) == 0 || ours:
			free = append(free, name)
		case p.port == genevePort && !tunnels(mode):
			b.add(check, Note, fmt.Sprintf("%s is held by %s; it is for %s, which traffic mode route has not", name, some(held), p.what), "")
		default:
			level := p.where
			if p.port == genevePort {
				level = Problem
			}
			b.add(check, level, fmt.Sprintf("%s, for %s, is held by %s", name, p.what, some(held)), fmt.Sprintf("ss -%slnp 'sport = :%d' shows who; stop it, or give Flowkeep another port", p.protocol[:1], p.port))
		}
	}
	if len(free) > 0 {
		b.ok(check, "free, or Flowkeep's already: %s", strings.Join(free, ", "))
	}
}

const genevePort = 6081

func holderOf(s *Socket) (text string, ours bool) {
	program, _, _ := strings.Cut(s.Program, " ")
	switch {
	case s.Program != "":
		return s.Program, slices.Contains(ownPrograms, program)
	case s.Inode == 0:
		return "the kernel (a tunnel's interface)", false
	}
	return "an unknown program", false
}

// IsOwnPort reports whether Flowkeep listens on the socket's port.
func IsOwnPort(s *Socket) bool {
	return slices.ContainsFunc(ownPorts, func(p ownPort) bool { return p.protocol == s.Protocol && p.port == s.Port })
}
