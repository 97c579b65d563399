package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The tables are read by netlink (linux/netfilter/nf_tables.h): nft(8) takes more than 10 ms each time. Two tables are
// equal if their messages are, but for the attributes that say nothing about the effect.

// nftObject is a kind of object in a table.
type nftObject struct {
	name     string
	request  int // NFT_MSG_GET…; its messages have the type before it
	filtered bool
	ignored  []uint16 // handles, counts of references, and numbers of packets
}

// nftObjects are the kinds that are compared. Others, such as flow tables, have no effect without a rule.
var nftObjects = []nftObject{
	{"table", unix.NFT_MSG_GETTABLE, false, []uint16{unix.NFTA_TABLE_USE, attrTableHandle}},
	{"chain", unix.NFT_MSG_GETCHAIN, false,
		[]uint16{unix.NFTA_CHAIN_HANDLE, unix.NFTA_CHAIN_USE, unix.NFTA_CHAIN_COUNTERS}},
	{"set", unix.NFT_MSG_GETSET, true, []uint16{unix.NFTA_SET_ID, attrSetHandle, attrSetCount}},
	{"rule", unix.NFT_MSG_GETRULE, true, []uint16{unix.NFTA_RULE_HANDLE, unix.NFTA_RULE_POSITION}},
}

// Attributes that the package unix lacks (linux/netfilter/nf_tables.h).
const (
	attrTable       = 1 // a table's name, in messages about each kind
	attrTableHandle = 4
	attrSetHandle   = 16
	attrSetCount    = 20
	attrGeneration  = 1 // NFTA_GEN_ID
)

// nftFamilies are those of Flowkeep's tables.
var nftFamilies = map[string]uint8{"arp": unix.NFPROTO_ARP, "inet": unix.NFPROTO_INET}

// list returns both tables without set elements, empty where one is missing.
func list() (string, error) {
	var all strings.Builder
	for _, family := range slices.Sorted(maps.Keys(nftFamilies)) {
		for i := range nftObjects {
			n, err := nftObjects[i].appendTo(&all, nftFamilies[family])
			if err != nil {
				return "", fmt.Errorf("list the %ss of the nftables table %s flowkeep: %w",
					nftObjects[i].name, family, err)
			}
			if n == 0 && nftObjects[i].request == unix.NFT_MSG_GETTABLE {
				return "", nil
			}
		}
	}
	return all.String(), nil
}

// appendTo appends the table's objects of a kind in the order of the kernel, and returns their number.
func (o *nftObject) appendTo(out *strings.Builder, family uint8) (n int, err error) {
	var filter []*nl.RtAttr
	if o.filtered {
		filter = append(filter, nl.NewRtAttr(attrTable, nl.ZeroTerminated("flowkeep")))
	}
	messages, err := rtnl.Dump(func() ([][]byte, error) {
		return requestNft(o.request, unix.NLM_F_DUMP, family, filter...)
	})
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	}
	for _, m := range messages {
		attrs := rtnl.Attributes(m)
		if attrs == nil {
			return n, unix.EBADMSG
		}
		if nameOf(attrs[attrTable]) != "flowkeep" {
			continue
		}
		n++
		fmt.Fprintf(out, "%s %d\n", o.name, family)
		for _, kind := range slices.Sorted(maps.Keys(attrs)) {
			if !slices.Contains(o.ignored, kind) {
				fmt.Fprintf(out, "%d %x\n", kind, attrs[kind])
			}
		}
	}
	return n, err
}

// requestNft sends a request about nftables, and returns the messages of the response without their headers. Tests
// replace it.
var requestNft = func(request, flags int, family uint8, attrs ...*nl.RtAttr) (out [][]byte, err error) {
	const subsystem = unix.NFNL_SUBSYS_NFTABLES << 8
	req := nl.NewNetlinkRequest(subsystem|request, flags)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: family})
	for _, a := range attrs {
		req.AddData(a)
	}
	messages, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	for _, m := range messages {
		if len(m) >= nl.SizeofNfgenmsg {
			out = append(out, m[nl.SizeofNfgenmsg:])
		}
	}
	return out, err
}

// nftGeneration returns the number of transactions of nftables, of all programs and for all tables. Set elements that
// packets add do not count. The kernel raises it before a transaction takes effect.
func nftGeneration() (uint32, error) {
	messages, err := requestNft(unix.NFT_MSG_GETGEN, 0, unix.NFPROTO_UNSPEC)
	if err != nil {
		return 0, fmt.Errorf("read the generation of nftables: %w", err)
	}
	for _, m := range messages {
		if id := rtnl.Attributes(m)[attrGeneration]; len(id) == 4 {
			return binary.BigEndian.Uint32(id), nil
		}
	}
	return 0, errors.New("read the generation of nftables: the kernel sent none")
}

// chainDrops reports whether the policy of a chain of a table filter is to drop; not where there is no such chain.
func chainDrops(family uint8, chain string) (bool, error) {
	messages, err := requestNft(unix.NFT_MSG_GETCHAIN, 0, family,
		nl.NewRtAttr(attrTable, nl.ZeroTerminated("filter")),
		nl.NewRtAttr(unix.NFTA_CHAIN_NAME, nl.ZeroTerminated(chain)))
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the policy of the chain %s: %w", chain, err)
	}
	return slices.ContainsFunc(messages, func(m []byte) bool {
		return isPolicyDrop(rtnl.Attributes(m)[unix.NFTA_CHAIN_POLICY])
	}), nil
}
