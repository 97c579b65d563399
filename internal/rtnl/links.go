package rtnl

import (
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Sysctl is a sysctl of a link that the kernel sends with the link.
type Sysctl struct {
	family int
	index  int // in the kernel's list of the family
}

// Sysctls of a link (the kernel's ip-sysctl). The indexes are those of linux/ip.h and linux/ipv6.h.
var (
	Forwarding  = Sysctl{unix.AF_INET, 0}
	RPFilter    = Sysctl{unix.AF_INET, 7}
	ARPIgnore   = Sysctl{unix.AF_INET, 18}
	DisableIPv6 = Sysctl{unix.AF_INET6, 26}
)

// Link is a link with its sysctls.
type Link struct {
	netlink.Link
	sysctls map[int][]byte // lists of 32-bit values by address family
}

// Sysctl returns the value of a sysctl. ok is false if the kernel sent none, as on a node without the address family.
func (l *Link) Sysctl(s Sysctl) (value int, ok bool) {
	const size = 4
	list := l.sysctls[s.family]
	if len(list) < (s.index+1)*size {
		return 0, false
	}
	return int(int32(binary.NativeEndian.Uint32(list[s.index*size:]))), true
}

// Links has the links of a network namespace and their addresses at the time of ReadLinks. It is safe for concurrent
// use.
type Links struct {
	All       []*Link
	Addresses map[int][]netlink.Addr // by the link's index
	byName    map[string]*Link
}

// ReadLinks reads the links of the thread's network namespace and their addresses by two dumps.
func ReadLinks() (*Links, error) {
	all, err := Dump(dumpLinks)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	list, err := Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	out := &Links{All: all, Addresses: map[int][]netlink.Addr{}, byName: make(map[string]*Link, len(all))}
	for _, l := range all {
		out.byName[l.Attrs().Name] = l
	}
	for _, a := range list {
		out.Addresses[a.LinkIndex] = append(out.Addresses[a.LinkIndex], a)
	}
	return out, nil
}

// Named returns the link with a name, nil if there was none.
func (l *Links) Named(name string) *Link { return l.byName[name] }

// dumpLinks returns links with sysctls, but without virtual functions (IFLA_EXT_MASK).
func dumpLinks() (out []*Link, err error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	messages, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		link, err := netlink.LinkDeserialize(nil, m)
		if err != nil {
			return nil, err
		}
		out = append(out, &Link{link, sysctlsOf(m)})
	}
	return out, nil
}

// sysctlsOf returns the lists of sysctls of a message about a link (rtnetlink(7), IFLA_AF_SPEC), by address family.
func sysctlsOf(message []byte) map[int][]byte {
	families := Attributes(Attributes(message[unix.SizeofIfInfomsg:])[unix.IFLA_AF_SPEC])
	return map[int][]byte{
		unix.AF_INET:  Attributes(families[unix.AF_INET])[unix.IFLA_INET_CONF],
		unix.AF_INET6: Attributes(families[unix.AF_INET6])[unix.IFLA_INET6_CONF],
	}
}

// Attributes returns the values of netlink attributes by type (netlink(7)), none if they cannot be parsed.
func Attributes(data []byte) map[uint16][]byte {
	list, err := nl.ParseRouteAttr(data)
	if err != nil {
		return nil
	}
	out := make(map[uint16][]byte, len(list))
	for _, a := range list {
		out[a.Attr.Type&nl.NLA_TYPE_MASK] = a.Value
	}
	return out
}
