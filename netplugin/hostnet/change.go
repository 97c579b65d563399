package hostnet

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Change is a change of an object that Setup writes, by another program.
type Change struct {
	Object, Name string // as in Config.Changed
	Program      string // the name, and that of the program that started it
}

// changedRoute returns the object of Setup that an rtnetlink message is about, without the program. ok is false for
// changes that Setup does not undo, and for those of links and sysctls: the kernel names no sender in their messages.
func changedRoute(w *Watched, m *syscall.NetlinkMessage) (c Change, ok bool) {
	switch m.Header.Type {
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		return changedRule(w, m)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return replacedRoute(m)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return addressChange("address", m.Data, unix.SizeofIfAddrmsg, unix.IFA_LOCAL, unix.IFA_ADDRESS)
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return addressChange("neighbour", m.Data, unix.SizeofNdMsg, unix.NDA_DST)
	}
	return Change{}, false
}

// changedRule returns the rule of Flowkeep's that a message says was deleted, or the kernel's first rule, that of the
// table local. Flowkeep's rules have the kernel's protocol.
func changedRule(w *Watched, m *syscall.NetlinkMessage) (c Change, ok bool) {
	const header = unix.SizeofRtMsg // of struct fib_rule_hdr too
	attrs := attributesBehind(m.Data, header)
	if attrs == nil {
		return c, false
	}
	priority := 0
	if value := attrs[unix.FRA_PRIORITY]; len(value) >= 4 {
		priority = int(binary.NativeEndian.Uint32(value))
	}
	protocol := attrs[unix.FRA_PROTOCOL]
	isOurs := slices.Contains(Numbers{Priority: w.Priority}.priorities(), priority) &&
		len(protocol) > 0 && protocol[0] == unix.RTPROT_KERNEL
	isDeleted := m.Header.Type == unix.RTM_DELRULE
	isFirst := priority == 0 && m.Data[4] == unix.RT_TABLE_LOCAL
	return Change{Object: "rule", Name: fmt.Sprint(priority)}, isOurs && isDeleted || isFirst
}

// replacedRoute returns the route of Flowkeep's that a message says was deleted, or the route that another replaced.
// The name has no type of the route: the new one may have another.
func replacedRoute(m *syscall.NetlinkMessage) (c Change, ok bool) {
	attrs := attributesBehind(m.Data, unix.SizeofRtMsg)
	if attrs == nil {
		return c, false
	}
	bits, short, isOurs := int(m.Data[1]), int(m.Data[4]), m.Data[5] == protocolFlowkeep
	if isOurs != (m.Header.Type == unix.RTM_DELROUTE) || !isOurs && m.Header.Flags&unix.NLM_F_REPLACE == 0 {
		return c, false
	}
	dst, isAddr := netip.AddrFromSlice(attrs[unix.RTA_DST])
	if !isAddr {
		dst = netip.IPv4Unspecified()
		if m.Data[0] == unix.AF_INET6 {
			dst = netip.IPv6Unspecified()
		}
	}
	table := short
	if value := attrs[unix.RTA_TABLE]; len(value) >= 4 {
		table = int(binary.NativeEndian.Uint32(value))
	}
	return Change{Object: "route", Name: fmt.Sprintf("%s in table %d", netip.PrefixFrom(dst, bits), table)}, true
}

// addressChange returns the object that is named by the first attribute that a message has of some.
func addressChange(object string, data []byte, header int, kinds ...uint16) (c Change, ok bool) {
	attrs := attributesBehind(data, header)
	for _, kind := range kinds {
		if a, isAddr := netip.AddrFromSlice(attrs[kind]); isAddr {
			return Change{Object: object, Name: a.String()}, true
		}
	}
	return c, false
}

// attributesBehind returns the attributes behind the header of a message, nil if it cannot be parsed.
func attributesBehind(data []byte, header int) map[uint16][]byte {
	if len(data) < header {
		return nil
	}
	return rtnl.Attributes(data[header:])
}

// maxChanged is the maximum number of a transaction's objects that are kept.
const maxChanged = 4

// transaction has the objects of Setup that a transaction of nftables changes. Its messages have the port id of the
// sender's socket, and NFT_MSG_NEWGEN is the last one. The zero value has none.
type transaction struct {
	port  uint32
	names []string
}

// generation is the end of a transaction of nftables.
type generation struct {
	port   uint32 // of the sender's netlink socket
	thread uint32 // the sender, in the kernel's first PID namespace (pid_namespaces(7))
	name   string // of that thread
}

// add adds a message. At the end of the transaction it returns its objects and the sender; none where messages were
// lost.
func (t *transaction) add(m *syscall.NetlinkMessage) (names []string, by generation) {
	if m.Header.Pid != t.port {
		*t = transaction{port: m.Header.Pid}
	}
	if m.Header.Type&0xff == unix.NFT_MSG_NEWGEN {
		names, by = t.names, parseGeneration(m)
		*t = transaction{}
		return names, by
	}
	if name := changedTable(m); name != "" && !slices.Contains(t.names, name) && len(t.names) < maxChanged {
		t.names = append(t.names, name)
	}
	return nil, by
}

// parseGeneration parses NFT_MSG_NEWGEN (linux/netfilter/nf_tables.h).
func parseGeneration(m *syscall.NetlinkMessage) (g generation) {
	const attrPID, attrName = 2, 3 // NFTA_GEN_PROC_PID, NFTA_GEN_PROC_NAME
	attrs := attributesBehind(m.Data, nl.SizeofNfgenmsg)
	if pid := attrs[attrPID]; len(pid) >= 4 {
		g = generation{port: m.Header.Pid, thread: binary.BigEndian.Uint32(pid), name: nameOf(attrs[attrName])}
	}
	return g
}

// changedTable returns the name of the object of Setup that a message of nftables is about: Flowkeep's tables or a
// chain FORWARD; empty for others.
func changedTable(m *syscall.NetlinkMessage) string {
	attrs, known := nftablesAttrs(m)
	if !known || !concernsNftables(m) {
		return ""
	}
	if nameOf(attrs[attrTable]) == TableName {
		return TableName
	}
	const deleted = unix.NFT_MSG_DELRULE
	if m.Header.Type&0xff == deleted && len(attrs[unix.NFTA_RULE_USERDATA]) == 0 {
		return "" // it may have been another program's (mayBeForwardRule)
	}
	for family, number := range protocolFamilies {
		if m.Data[0] == number {
			return family + " filter FORWARD"
		}
	}
	return ""
}
