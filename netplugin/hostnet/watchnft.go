package hostnet

import (
	"bytes"
	"encoding/binary"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// concernsNftables reports whether a message of nftables is about one of Flowkeep's tables, or about a chain FORWARD of
// iptables-nft that may drop pods' packets now. Elements of sets come and go with packets.
func concernsNftables(m *syscall.NetlinkMessage) bool {
	attrs, known := nftablesAttrs(m)
	if !known {
		return true
	}
	if table := nameOf(attrs[attrTable]); table != "filter" {
		return table == "flowkeep"
	}
	switch m.Header.Type & 0xff {
	case unix.NFT_MSG_NEWCHAIN:
		return nameOf(attrs[unix.NFTA_CHAIN_NAME]) == "FORWARD" && isPolicyDrop(attrs[unix.NFTA_CHAIN_POLICY])
	case unix.NFT_MSG_DELRULE:
		return nameOf(attrs[unix.NFTA_RULE_CHAIN]) == "FORWARD" && mayBeForwardRule(attrs[unix.NFTA_RULE_USERDATA])
	}
	return false
}

// isPolicyDrop reports whether the value of NFTA_CHAIN_POLICY is that of a chain that drops.
func isPolicyDrop(value []byte) bool {
	const drop = 0 // NF_DROP (linux/netfilter.h)
	return len(value) >= 4 && binary.BigEndian.Uint32(value) == drop
}

// mayBeForwardRule reports whether a rule that was deleted may have been one of forwardRules. A kernel may leave the
// comment out.
func mayBeForwardRule(comment []byte) bool {
	return len(comment) == 0 || bytes.Contains(comment, []byte(forwardMark))
}

// nftablesAttrs returns the attributes of a message of nftables by type, none of one that has none of use. Known is
// false if the message cannot be parsed.
func nftablesAttrs(m *syscall.NetlinkMessage) (attrs map[uint16][]byte, known bool) {
	switch m.Header.Type & 0xff {
	case unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM, unix.NFT_MSG_NEWGEN:
		return nil, true
	}
	if len(m.Data) < nl.SizeofNfgenmsg {
		return nil, true
	}
	list, err := nl.ParseRouteAttr(m.Data[nl.SizeofNfgenmsg:])
	if err != nil {
		return nil, false
	}
	attrs = map[uint16][]byte{}
	for _, a := range list {
		attrs[a.Attr.Type] = a.Value
	}
	return attrs, true
}

// nameOf returns the name that is the value of an attribute, which ends with a zero byte; an empty one without a value.
func nameOf(value []byte) string { return string(bytes.TrimRight(value, "\x00")) }
