package hostnet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrForwardDrops is returned where a chain of iptables-legacy drops pods' packets.
var ErrForwardDrops = errors.New("packets of pods to other nodes and beyond are dropped")

// xtLayout is how the kernel lays out a family's tables of iptables-legacy (struct ipt_entry, ip6t_entry).
type xtLayout struct {
	family, level              int
	tool, names                string // names lists the tables that there are
	in, inMask, protocol, flip int    // offsets in an entry: interfaces, their masks, protocol, inversion
	target, size               int    // offset of the target's offset; size of an entry without matches
}

var xtLayouts = []xtLayout{
	{
		family:   unix.AF_INET,
		level:    unix.IPPROTO_IP,
		tool:     "iptables-legacy",
		names:    "/proc/thread-self/net/ip_tables_names",
		in:       16,
		inMask:   48,
		protocol: 80,
		flip:     83,
		target:   88,
		size:     112,
	},
	{
		family:   unix.AF_INET6,
		level:    unix.IPPROTO_IPV6,
		tool:     "ip6tables-legacy",
		names:    "/proc/thread-self/net/ip6_tables_names",
		in:       64,
		inMask:   96,
		protocol: 128,
		flip:     132,
		target:   140,
		size:     168,
	},
}

// Options of getsockopt, and parts of its answers (linux/netfilter_ipv4/ip_tables.h, x_tables.h).
const (
	soGetInfo, soGetEntries = 64, 65
	infoSize                = 84
	infoHooks               = 36 // offsets of the first entry of each hook
	infoUnderflow           = 56 // and of the last, which is the policy
	infoBytes               = 80
	entriesHeader           = 40
	hookForward             = 2
	maxEntries              = 64 << 20 // bytes
	interfaceName           = 16
	headSize                = 32 // of a match or a target
	verdictDrop             = -1
	verdictAccept           = -2
)

// LegacyDrops returns an error if the chain FORWARD of iptables-legacy drops by its policy, and no rule accepts pods'
// packets. No rule of nftables can accept them. Of a table that cannot be read nothing is reported.
func LegacyDrops() error {
	for i := range xtLayouts {
		l := &xtLayouts[i]
		names, err := os.ReadFile(l.names)
		if err != nil || !slices.Contains(strings.Fields(string(names)), "filter") {
			continue
		}
		info, entries, err := l.read()
		if err != nil {
			continue
		}
		if l.dropsPods(info, entries) {
			return fmt.Errorf("%w: the chain FORWARD of %[2]s has the policy DROP: "+
				"%[2]s -A FORWARD -i fk-+ -j ACCEPT; %[2]s -A FORWARD -o fk-+ -j ACCEPT", ErrForwardDrops, l.tool)
		}
	}
	return nil
}

// read returns the table filter.
func (l *xtLayout) read() (info, entries []byte, err error) {
	fd, err := unix.Socket(l.family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, nil, fmt.Errorf("open a socket for %s: %w", l.tool, err)
	}
	defer unix.Close(fd)
	info = make([]byte, infoSize)
	copy(info, "filter")
	if err := getsockopt(fd, l.level, soGetInfo, info); err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", l.tool, err)
	}
	size := binary.NativeEndian.Uint32(info[infoBytes:])
	if size > maxEntries {
		return nil, nil, fmt.Errorf("read %s: %d bytes of rules", l.tool, size)
	}
	entries = make([]byte, entriesHeader+size)
	copy(entries, "filter")
	binary.NativeEndian.PutUint32(entries[interfaceName*2:], size)
	if err := getsockopt(fd, l.level, soGetEntries, entries); err != nil { // EAGAIN: it has changed meanwhile
		return nil, nil, fmt.Errorf("read %s: %w", l.tool, err)
	}
	return info, entries[entriesHeader:], nil
}

func getsockopt(fd, level, option int, buf []byte) error {
	size := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// dropsPods reports whether the policy of FORWARD drops, and no entry that its packets may come to accepts pods'.
func (l *xtLayout) dropsPods(info, entries []byte) bool {
	policy, drops := infoOf(info, infoUnderflow, hookForward), false
	for at := 0; at+l.size <= len(entries); {
		e := entries[at:]
		target, next := int(binary.NativeEndian.Uint16(e[l.target:])), int(binary.NativeEndian.Uint16(e[l.target+2:]))
		if next < l.size || next > len(e) || target < l.size || target+headSize+4 > next {
			return false
		}
		verdict := int32(0)
		if e[target+2] == 0 { // the standard target has no name
			verdict = int32(binary.NativeEndian.Uint32(e[target+headSize:]))
		}
		switch {
		case at == policy:
			drops = verdict == verdictDrop
		case verdict == verdictAccept && !ofOtherHook(info, at) && l.mayBePods(e[:target]):
			return false
		}
		at += next
	}
	return drops
}

// infoOf returns a hook's number in one of the lists of struct ipt_getinfo.
func infoOf(info []byte, list, hook int) int {
	return int(binary.NativeEndian.Uint32(info[list+4*hook:]))
}

// ofOtherHook reports whether an entry is of the chain INPUT or OUTPUT.
func ofOtherHook(info []byte, at int) bool {
	for _, hook := range []int{hookForward - 1, hookForward + 1} {
		if at >= infoOf(info, infoHooks, hook) && at <= infoOf(info, infoUnderflow, hook) {
			return true
		}
	}
	return false
}

// mayBePods reports whether an entry applies to packets by Flowkeep's ports, and to all kinds of them. Its addresses
// are not compared: a rule for the podCIDR counts.
func (l *xtLayout) mayBePods(entry []byte) bool {
	if binary.NativeEndian.Uint16(entry[l.protocol:]) != 0 {
		return false
	}
	for i, inverted := range []byte{1, 2} { // IPT_INV_VIA_IN, IPT_INV_VIA_OUT
		name, mask := entry[l.in+i*interfaceName:][:interfaceName], entry[l.inMask+i*interfaceName:][:interfaceName]
		matches := false
		for _, port := range Devices {
			differs := false
			for j, c := range []byte(port + strings.Repeat("\x00", interfaceName-len(port))) {
				differs = differs || (c^name[j])&mask[j] != 0
			}
			matches = matches || !differs
		}
		if matches == (entry[l.flip]&inverted != 0) {
			return false
		}
	}
	for at := l.size; at+headSize <= len(entry); { // matches: a comment is no condition
		size := int(binary.NativeEndian.Uint16(entry[at:]))
		name, _, _ := bytes.Cut(entry[at+2:at+headSize-1], []byte{0})
		if size < headSize || string(name) != "comment" {
			return false
		}
		at += size
	}
	return true
}
