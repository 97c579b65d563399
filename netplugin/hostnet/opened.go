package hostnet

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Opened returns how many connections of the node's own stack each address within pods has opened. Connections of the
// bridge, which the kernel's datapath has in the same table in zones of their own, do not count. It takes a dump of the
// table, of which it keeps nothing: to parse an entry takes 0.7 µs of a processor.
func Opened(pods []netip.Prefix) (map[netip.Addr]uint32, error) {
	request := nl.NewNetlinkRequest(int(netlink.ConntrackTable)<<8|nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	opened := map[netip.Addr]uint32{}
	err := request.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(message []byte) bool {
		if a := openerOf(message); isWithin(a, pods) {
			opened[a]++
		}
		return true
	})
	if err != nil && !errors.Is(err, nl.ErrDumpInterrupted) {
		return nil, fmt.Errorf("read the node's connections: %w", err)
	}
	return opened, nil
}

// openerOf returns the source of the first packet of a connection; no address of one in a zone.
func openerOf(message []byte) (a netip.Addr) {
	if len(message) < nl.SizeofNfgenmsg {
		return a
	}
	attrs := nested(message[nl.SizeofNfgenmsg:])
	if zone := attrs[nl.CTA_ZONE]; len(zone) > 0 && (zone[0] != 0 || zone[len(zone)-1] != 0) {
		return a
	}
	ip := nested(nested(attrs[nl.CTA_TUPLE_ORIG])[nl.CTA_TUPLE_IP])
	if a, ok := netip.AddrFromSlice(ip[nl.CTA_IP_V4_SRC]); ok {
		return a
	}
	a, _ = netip.AddrFromSlice(ip[nl.CTA_IP_V6_SRC])
	return a
}

// nested returns the values of attributes by type, as far as they can be parsed.
func nested(data []byte) map[uint16][]byte {
	out := map[uint16][]byte{}
	list, _ := nl.ParseRouteAttr(data)
	for _, a := range list {
		out[a.Attr.Type&nl.NLA_TYPE_MASK] = a.Value
	}
	return out
}
