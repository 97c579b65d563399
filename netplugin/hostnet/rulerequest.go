package hostnet

import (
	"encoding/binary"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The package netlink v1.3.1 writes FRA_IP_PROTO, which has one byte (linux/fib_rules.h), with four. The kernel accepts
// that, and logs "attribute type 22 has an invalid length" each time.

// addRule adds a policy rule with attributes that Flowkeep's rules have.
func addRule(r *netlink.Rule) error {
	return execute(ruleRequest(unix.RTM_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, r))
}

// deleteRule deletes the first policy rule with the attributes of one of Flowkeep's or the kernel's.
func deleteRule(r *netlink.Rule) error { return execute(ruleRequest(unix.RTM_DELRULE, 0, r)) }

func execute(req *nl.NetlinkRequest) error {
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// ruleRequest returns a request about a policy rule (rtnetlink(7)).
func ruleRequest(kind, flags int, r *netlink.Rule) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(kind, flags|unix.NLM_F_ACK)
	header := &nl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(r.Family)}} // as long as struct fib_rule_hdr, and much the same
	if kind == unix.RTM_NEWRULE {
		header.Type = nl.FR_ACT_TO_TBL
	}
	req.AddData(header)
	number := func(attribute int, value uint32) {
		req.AddData(nl.NewRtAttr(attribute, binary.NativeEndian.AppendUint32(nil, value)))
	}
	for _, end := range []struct {
		network   *net.IPNet
		attribute int
		bits      *uint8
	}{{r.Src, nl.FRA_SRC, &header.Src_len}, {r.Dst, nl.FRA_DST, &header.Dst_len}} {
		if end.network == nil || end.network.IP == nil {
			continue
		}
		address := end.network.IP.To16()
		if r.Family == netlink.FAMILY_V4 {
			address = address.To4()
		}
		ones, _ := end.network.Mask.Size()
		*end.bits = uint8(ones)
		req.AddData(nl.NewRtAttr(end.attribute, address))
	}
	number(nl.FRA_PRIORITY, uint32(max(r.Priority, 0)))
	number(nl.FRA_TABLE, uint32(r.Table))
	if r.IifName != "" {
		req.AddData(nl.NewRtAttr(nl.FRA_IIFNAME, nl.ZeroTerminated(r.IifName)))
	}
	if r.Mark != 0 || r.Mask != nil {
		number(nl.FRA_FWMARK, r.Mark)
	}
	if r.Mask != nil {
		number(nl.FRA_FWMASK, *r.Mask)
	}
	if r.Goto >= 0 {
		header.Type = nl.FR_ACT_GOTO
		number(nl.FRA_GOTO, uint32(r.Goto))
	}
	if r.IPProto != 0 {
		req.AddData(nl.NewRtAttr(nl.FRA_IP_PROTO, nl.Uint8Attr(uint8(r.IPProto))))
	}
	if r.Dport != nil {
		ports := binary.NativeEndian.AppendUint16(nil, r.Dport.Start)
		req.AddData(nl.NewRtAttr(nl.FRA_DPORT_RANGE, binary.NativeEndian.AppendUint16(ports, r.Dport.End)))
	}
	if r.Protocol != 0 {
		req.AddData(nl.NewRtAttr(nl.FRA_PROTOCOL, nl.Uint8Attr(r.Protocol)))
	}
	return req
}
