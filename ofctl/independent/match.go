package independent

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/contiv/libOpenflow/openflow13"
	"github.com/contiv/libOpenflow/util"
	"github.com/flowkeep/flowkeep/ofctl"
)

// ipFrag is the field ip_frag (NXM_NX_IP_FRAG, nicira-ext.h), which libOpenflow does not decode.
const ipFrag = 26

// decodeMatch decodes OXM fields, each by libOpenflow but for ip_frag and the values of Ethernet addresses: of these
// its types keep nothing.
func decodeMatch(b []byte, m *ofctl.Match) error {
	for len(b) > 0 {
		if len(b) < 4 || len(b) < 4+int(b[3]) {
			return errShort
		}
		field := b[:4+int(b[3])]
		b = b[len(field):]
		if binary.BigEndian.Uint16(field) == openflow13.OXM_CLASS_NXM_1 && field[2]>>1 == ipFrag {
			if err := decodeFragments(field, m); err != nil {
				return err
			}
			continue
		}
		decoded := new(openflow13.MatchField)
		if err := decoded.UnmarshalBinary(field); err != nil {
			return err
		}
		if err := setField(m, fieldValue{decoded, field[4:]}); err != nil {
			return err
		}
	}
	return nil
}

// decodeFragments decodes ip_frag: two bits, whatever else a mask has.
func decodeFragments(field []byte, m *ofctl.Match) error {
	const bits = 3
	switch {
	case field[2]&1 == 0 && len(field) == 5:
		m.IPFrag = ofctl.U8{Value: field[4] & bits, Mask: bits}
	case field[2]&1 == 1 && len(field) == 6:
		m.IPFrag = ofctl.U8{Value: field[4] & field[5] & bits, Mask: field[5] & bits}
	default:
		return errShort
	}
	return nil
}

// setField sets what libOpenflow has decoded.
func setField(m *ofctl.Match, v fieldValue) error {
	switch v.field.Class {
	case openflow13.OXM_CLASS_OPENFLOW_BASIC:
		return setBasic(m, v.field.Field, v)
	case openflow13.OXM_CLASS_NXM_1:
		return setNicira(m, v.field.Field, v)
	case openflow13.OXM_CLASS_EXPERIMENTER:
		if v.field.Field == openflow13.OXM_FIELD_TCP_FLAGS {
			return v.masked16(&m.TCPFlags)
		}
	}
	return v.unknown()
}

func setBasic(m *ofctl.Match, field uint8, v fieldValue) error {
	switch field {
	case openflow13.OXM_FIELD_IN_PORT:
		return v.exact32(&m.InPort)
	case openflow13.OXM_FIELD_ETH_DST:
		return v.maskedMAC(&m.EthDst, &m.EthDstMask)
	case openflow13.OXM_FIELD_ETH_SRC:
		return v.maskedMAC(&m.EthSrc, &m.EthSrcMask)
	case openflow13.OXM_FIELD_VLAN_VID:
		return v.untagged(&m.Untagged)
	case openflow13.OXM_FIELD_ETH_TYPE:
		return v.exact16(&m.EtherType)
	case openflow13.OXM_FIELD_IP_PROTO:
		return v.exact8(&m.IPProto)
	case openflow13.OXM_FIELD_IPV4_SRC, openflow13.OXM_FIELD_IPV6_SRC, openflow13.OXM_FIELD_ARP_SPA:
		return v.prefix(&m.NwSrc)
	case openflow13.OXM_FIELD_IPV4_DST, openflow13.OXM_FIELD_IPV6_DST, openflow13.OXM_FIELD_ARP_TPA:
		return v.prefix(&m.NwDst)
	case openflow13.OXM_FIELD_TCP_SRC, openflow13.OXM_FIELD_UDP_SRC, openflow13.OXM_FIELD_SCTP_SRC:
		return v.masked16(&m.TpSrc)
	case openflow13.OXM_FIELD_TCP_DST, openflow13.OXM_FIELD_UDP_DST, openflow13.OXM_FIELD_SCTP_DST:
		return v.masked16(&m.TpDst)
	case openflow13.OXM_FIELD_ICMPV4_TYPE, openflow13.OXM_FIELD_ICMPV6_TYPE:
		m.ICMPType.Mask = 0xff
		return v.exact8(&m.ICMPType.Value)
	case openflow13.OXM_FIELD_ICMPV4_CODE, openflow13.OXM_FIELD_ICMPV6_CODE:
		m.ICMPCode.Mask = 0xff
		return v.exact8(&m.ICMPCode.Value)
	case openflow13.OXM_FIELD_ARP_OP:
		return v.exact16(&m.ArpOp)
	case openflow13.OXM_FIELD_ARP_SHA:
		return v.mac(&m.ArpSHA)
	case openflow13.OXM_FIELD_IPV6_ND_TARGET:
		return v.address(&m.NDTarget)
	case openflow13.OXM_FIELD_IPV6_ND_SLL:
		return v.mac(&m.NDSLL)
	case openflow13.OXM_FIELD_IPV6_ND_TLL:
		return v.mac(&m.NDTLL)
	}
	return v.unknown()
}

func setNicira(m *ofctl.Match, field uint8, v fieldValue) error {
	if field < ofctl.NumRegs {
		return v.masked32(&m.Reg[field])
	}
	switch field {
	case openflow13.NXM_NX_TUN_IPV4_SRC, openflow13.NXM_NX_TUN_IPV6_SRC:
		return v.address(&m.TunSrc)
	case openflow13.NXM_NX_TUN_IPV4_DST, openflow13.NXM_NX_TUN_IPV6_DST:
		return v.address(&m.TunDst)
	case openflow13.NXM_NX_CONJ_ID:
		return v.exact32(&m.ConjID)
	case openflow13.NXM_NX_CT_STATE:
		return v.masked32(&m.CtState)
	case openflow13.NXM_NX_CT_ZONE:
		return v.exact16(&m.CtZone)
	case openflow13.NXM_NX_CT_MARK:
		return v.masked32(&m.CtMark)
	case openflow13.NXM_NX_CT_NW_PROTO:
		return v.exact8(&m.CtProto)
	case openflow13.NXM_NX_CT_NW_SRC, openflow13.NXM_NX_CT_IPV6_SRC:
		return v.prefix(&m.CtNwSrc)
	case openflow13.NXM_NX_CT_NW_DST, openflow13.NXM_NX_CT_IPV6_DST:
		return v.prefix(&m.CtNwDst)
	case openflow13.NXM_NX_CT_TP_SRC:
		return v.masked16(&m.CtTpSrc)
	case openflow13.NXM_NX_CT_TP_DST:
		return v.masked16(&m.CtTpDst)
	}
	return v.unknown()
}

// fieldValue is a field as libOpenflow has decoded it, and its value and mask as the switch sent them.
type fieldValue struct {
	field *openflow13.MatchField
	raw   []byte
}

func (v fieldValue) unknown() error {
	return fmt.Errorf("match field %d of class %#x", v.field.Field, v.field.Class)
}

// bytesOf returns a value in network byte order, of this size; 0: any.
func bytesOf(m util.Message, size int) ([]byte, error) {
	var b []byte
	switch t := m.(type) {
	case *openflow13.Ipv4SrcField:
		b = t.Ipv4Src.To4()
	case *openflow13.Ipv4DstField:
		b = t.Ipv4Dst.To4()
	case *openflow13.ArpXPaField:
		b = t.ArpPa.To4()
	case *openflow13.TunnelIpv4SrcField:
		b = t.TunnelIpv4Src.To4()
	case *openflow13.TunnelIpv4DstField:
		b = t.TunnelIpv4Dst.To4()
	case *openflow13.Ipv6SrcField:
		b = t.Ipv6Src
	case *openflow13.Ipv6DstField:
		b = t.Ipv6Dst
	default:
		var err error
		if b, err = m.MarshalBinary(); err != nil {
			return nil, err
		}
	}
	if size != 0 && len(b) != size {
		return nil, fmt.Errorf("%T has %d bytes", m, len(b))
	}
	return b, nil
}

// exact returns a value that has no mask.
func (v fieldValue) exact(size int) ([]byte, error) {
	if v.field.HasMask {
		return nil, fmt.Errorf("mask of match field %d of class %#x", v.field.Field, v.field.Class)
	}
	return bytesOf(v.field.Value, size)
}

func (v fieldValue) exact8(to *uint8) error {
	b, err := v.exact(1)
	if err == nil {
		*to = b[0]
	}
	return err
}

func (v fieldValue) exact16(to *uint16) error {
	b, err := v.exact(2)
	if err == nil {
		*to = binary.BigEndian.Uint16(b)
	}
	return err
}

func (v fieldValue) exact32(to *uint32) error {
	b, err := v.exact(4)
	if err == nil {
		*to = binary.BigEndian.Uint32(b)
	}
	return err
}

func (v fieldValue) mac(to *ofctl.MAC) error {
	if v.field.HasMask || len(v.raw) != len(to) {
		return v.unknown()
	}
	*to = ofctl.MAC(v.raw)
	return nil
}

// maskedMAC sets an address and its mask; that of a whole address is zero in a Match.
func (v fieldValue) maskedMAC(to, mask *ofctl.MAC) error {
	if !v.field.HasMask {
		return v.mac(to)
	}
	if len(v.raw) != 2*len(to) {
		return v.unknown()
	}
	*to = ofctl.MAC(v.raw[:len(to)])
	if m := ofctl.MAC(v.raw[len(to):]); m != (ofctl.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}) {
		*mask = m
	}
	return nil
}

// untagged sets that a packet has no VLAN tag: of the bit that every tag has (OpenFlow 1.3.5, OFPVID_PRESENT) zero.
func (v fieldValue) untagged(to *bool) error {
	value, mask, err := v.masked(2)
	if err != nil {
		return err
	}
	if mask == nil || binary.BigEndian.Uint16(value) != 0 ||
		binary.BigEndian.Uint16(mask) != openflow13.OFPVID_PRESENT {
		return v.unknown()
	}
	*to = true
	return nil
}

func (v fieldValue) masked16(to *ofctl.U16) error {
	value, mask, err := v.masked(2)
	if err != nil {
		return err
	}
	*to = ofctl.U16{Value: binary.BigEndian.Uint16(value), Mask: 0xffff}
	if mask != nil {
		to.Mask = binary.BigEndian.Uint16(mask)
	}
	return nil
}

func (v fieldValue) masked32(to *ofctl.U32) error {
	value, mask, err := v.masked(4)
	if err != nil {
		return err
	}
	*to = ofctl.U32{Value: binary.BigEndian.Uint32(value), Mask: 0xffffffff}
	if mask != nil {
		to.Mask = binary.BigEndian.Uint32(mask)
	}
	return nil
}

// masked returns a value and its mask; mask is nil where there is none.
func (v fieldValue) masked(size int) (value, mask []byte, err error) {
	if value, err = bytesOf(v.field.Value, size); err == nil && v.field.HasMask {
		mask, err = bytesOf(v.field.Mask, size)
	}
	return value, mask, err
}

func (v fieldValue) address(to *netip.Addr) error {
	b, err := v.exact(0)
	if err != nil {
		return err
	}
	a, ok := netip.AddrFromSlice(b)
	if !ok {
		return v.unknown()
	}
	*to = a
	return nil
}

func (v fieldValue) prefix(to *netip.Prefix) error {
	value, mask, err := v.masked(0)
	if err != nil {
		return err
	}
	a, ok := netip.AddrFromSlice(value)
	if !ok {
		return v.unknown()
	}
	bits := a.BitLen()
	if mask != nil {
		ones, size := net.IPMask(mask).Size()
		if size != bits {
			return fmt.Errorf("mask %x of an address", mask)
		}
		bits = ones
	}
	*to = netip.PrefixFrom(a, bits)
	return nil
}
