package nodestate

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"golang.org/x/sys/unix"
)

// KeepsRoute reports whether node state has the route of a message RTM_NEWROUTE or RTM_DELROUTE (rtnetlink(7), without
// the header of netlink). The routes of routing daemons, hundreds of thousands on some nodes, are left out, except
// default routes and those to the given destinations.
func KeepsRoute(message []byte, destinations map[netip.Prefix]bool) bool {
	if len(message) < unix.SizeofRtMsg {
		return true
	}
	bits, protocol := message[1], message[5]
	return bits == 0 || !isRoutingDaemon(protocol) || len(destinations) > 0 && destinations[destinationOf(message)]
}

// isRoutingDaemon reports whether a routing daemon sets the routes of a protocol. Those that remain are the kernel's,
// the administrator's, Flowkeep's, and of DHCP and VRRP (linux/rtnetlink.h).
func isRoutingDaemon(protocol byte) bool {
	switch protocol {
	case unix.RTPROT_UNSPEC, unix.RTPROT_REDIRECT, unix.RTPROT_KERNEL, unix.RTPROT_BOOT, unix.RTPROT_STATIC,
		unix.RTPROT_RA, unix.RTPROT_DHCP, unix.RTPROT_KEEPALIVED, wellknown.RouteProtocol:
		return false
	}
	return true
}

// destinationOf returns the destination (RTA_DST) of a message about a route, the zero Prefix if it has none.
func destinationOf(message []byte) netip.Prefix {
	for rest := message[unix.SizeofRtMsg:]; len(rest) >= unix.SizeofRtAttr; {
		size := int(binary.NativeEndian.Uint16(rest))
		if size < unix.SizeofRtAttr || size > len(rest) {
			break
		}
		if binary.NativeEndian.Uint16(rest[2:]) == unix.RTA_DST {
			address, _ := netip.AddrFromSlice(rest[unix.SizeofRtAttr:size])
			return netip.PrefixFrom(address, int(message[1]))
		}
		rest = rest[min(len(rest), (size+3)&^3):]
	}
	return netip.Prefix{}
}

// DestinationsOf returns the destinations of the routes of a desired state.
func DestinationsOf(desired nmstate.State) map[netip.Prefix]bool {
	destinations := map[netip.Prefix]bool{}
	for _, r := range desired.Config("routes") {
		text, _ := r["destination"].(string)
		p, err := netip.ParsePrefix(text)
		if a, ofHost := netip.ParseAddr(text); ofHost == nil {
			p, err = a.Prefix(a.BitLen())
		}
		if err == nil {
			destinations[p.Masked()] = true
		}
	}
	return destinations
}

// Destinations are the destinations of the desired routes, from an Agent to Follow. A nil Destinations has none. Safe
// for concurrent use.
type Destinations struct {
	now atomic.Pointer[map[netip.Prefix]bool]
}

func (d *Destinations) set(desired nmstate.State) {
	if d != nil {
		destinations := DestinationsOf(desired)
		d.now.Store(&destinations)
	}
}

func (d *Destinations) get() map[netip.Prefix]bool {
	if d == nil || d.now.Load() == nil {
		return nil
	}
	return *d.now.Load()
}
