package lldp

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Sizes in bytes.
const (
	headerLength = 14
	mostUnit     = 1500
	mostText     = 255 // of an id, name or description, as the standard has it
	mostVLANName = 32
)

// How much is kept of what can be there more than once.
const (
	mostVLANs     = 16
	mostAddresses = 8
)

const etherType = 0x88cc

// Heard has the content of a frame.
type Heard struct {
	Neighbour Neighbour
	TTL       time.Duration // 0: the neighbour leaves
}

// Parse reads a frame with its Ethernet header. As the standard has it, a frame without chassis, port and time to live in this order, or with
// something that does not fit, is an error; something optional that does not fit is left out.
func Parse(frame []byte) (Heard, error) {
	if len(frame) < headerLength || binary.BigEndian.Uint16(frame[12:]) != etherType {
		return Heard{}, errors.New("this is no frame of LLDP")
	}
	unit := frame[headerLength:]
	if len(unit) > mostUnit {
		return Heard{}, fmt.Errorf("it has %d bytes, more than %d", len(unit), mostUnit)
	}
	var p parser
	for p.count = 0; len(unit) > 0; p.count++ {
		kind, value, rest, err := next(unit)
		if err != nil {
			return Heard{}, err
		}
		if kind == endOfUnit && p.count > int(timeToLive)-1 {
			break
		}
		if err := p.take(kind, value); err != nil {
			return Heard{}, err
		}
		unit = rest
	}
	if p.count < int(timeToLive) {
		return Heard{}, errors.New("it ends before chassis, port and time to live")
	}
	return Heard{Neighbour: p.neighbour(), TTL: p.ttl}, nil
}

// next splits the first unit off: seven bits of type, nine of length, and the value.
func next(unit []byte) (kind int, value, rest []byte, err error) {
	if len(unit) < 2 {
		return 0, nil, nil, errors.New("it ends within a header")
	}
	head := binary.BigEndian.Uint16(unit)
	kind, length := int(head>>9), int(head&0x1ff)
	if len(unit) < 2+length {
		return 0, nil, nil, fmt.Errorf("it ends within a value of type %d", kind)
	}
	return kind, unit[2 : 2+length], unit[2+length:], nil
}

// parser collects the content of a frame.
type parser struct {
	count                     int
	name, description         string
	capabilities              []string
	chassis, port             string
	chassisType, portType     int
	ttl                       time.Duration
	vlans                     []VLAN
	ppvids                    []int
	physical                  *Physical
	maxFrame                  int
	management                []Management
	named, described, capable bool
}

func (p *parser) take(kind int, value []byte) (err error) {
	if p.count < int(timeToLive) && kind != p.count+1 {
		return fmt.Errorf("type %d comes where chassis, port and time to live should", kind)
	}
	switch {
	case kind >= chassisID && kind <= timeToLive && kind != p.count+1:
		return fmt.Errorf("type %d is there twice", kind)
	case kind == chassisID:
		p.chassisType, p.chassis, err = id(value, len(chassisTypes), chassisMAC, chassisNetwork)
	case kind == portID:
		p.portType, p.port, err = id(value, len(portTypes), portMAC, portNetwork)
	case kind == timeToLive:
		if len(value) < 2 {
			return errors.New("its time to live is too short")
		}
		p.ttl = time.Duration(binary.BigEndian.Uint16(value)) * time.Second
	case kind == systemName && !p.named && len(value) <= mostText:
		p.named, p.name = true, clean(value, mostText)
	case kind == systemDescription && !p.described && len(value) <= mostText:
		p.described, p.description = true, clean(value, mostText)
	case kind == systemCapabilities && !p.capable && len(value) >= 4:
		p.capable, p.capabilities = true, bits(binary.BigEndian.Uint16(value))
	case kind == managementAddress:
		p.address(value)
	case kind == organizationSpecific && len(value) >= 4:
		p.specific([3]byte(value), value[3], value[4:])
	}
	return err
}

// id reads a chassis' or port's id, which begins with its subtype.
func id(value []byte, subtypes, mac, network int) (subtype int, text string, err error) {
	if len(value) < 2 || len(value) > 1+mostText {
		return 0, "", fmt.Errorf("an id has %d bytes", len(value))
	}
	subtype, value = int(value[0]), value[1:]
	switch {
	case subtype == 0 || subtype >= subtypes:
		return 0, "", fmt.Errorf("an id is of subtype %d, which is reserved", subtype)
	case subtype == mac && len(value) != 6:
		return 0, "", fmt.Errorf("a MAC address has %d bytes", len(value))
	case subtype == mac:
		return subtype, net.HardwareAddr(value).String(), nil
	case subtype == network:
		if text, _ = address(value[0], value[1:]); text != "" {
			return subtype, text, nil
		}
		return subtype, inHex(value), nil
	}
	if text = clean(value, mostText); text == "" || strings.ContainsRune(text, unicode.ReplacementChar) {
		text = inHex(value) // two that differ must not look the same
	}
	return subtype, text, nil
}

func inHex(value []byte) string { return hex.EncodeToString(value[:min(len(value), mostText/2)]) }

// Families of addresses, by IANA.
const familyIPv4, familyIPv6, familyMAC = 1, 2, 6

// address is empty where the family is another, or does not fit.
func address(family byte, value []byte) (text, familyName string) {
	switch {
	case family == familyIPv4 && len(value) == 4:
		return netip.AddrFrom4([4]byte(value)).String(), "IPv4"
	case family == familyIPv6 && len(value) == 16:
		return netip.AddrFrom16([16]byte(value)).String(), "IPv6"
	case family == familyMAC && len(value) == 6:
		return net.HardwareAddr(value).String(), "MAC"
	}
	return "", ""
}

func bits(set uint16) (out []string) {
	for i, name := range capabilities {
		if set&(1<<i) != 0 {
			out = append(out, name)
		}
	}
	return out
}

// address reads: length of family and address, family, address, subtype of interface, interface.
func (p *parser) address(value []byte) {
	if len(value) < 2 {
		return
	}
	length := int(value[0])
	if length < 2 || len(value) < 1+length+5 || len(p.management) == mostAddresses {
		return
	}
	rest := value[1+length:]
	if text, family := address(value[1], value[2:1+length]); text != "" {
		p.management = append(p.management, Management{
			Address: text, Family: family, InterfaceType: int(rest[0]), Interface: int64(binary.BigEndian.Uint32(rest[1:])),
		})
	}
}

// Organizations whose own types are shown.
var (
	ieee8021 = [3]byte{0x00, 0x80, 0xc2}
	ieee8023 = [3]byte{0x00, 0x12, 0x0f}
)

// Subtypes of the two.
const (
	subtypePPVID, subtypeVLANName     = 2, 3
	subtypePhysical, subtypeFrameSize = 1, 4
)

func (p *parser) specific(organization [3]byte, subtype byte, value []byte) {
	switch {
	case organization == ieee8021 && subtype == subtypePPVID && len(value) >= 3 && len(p.ppvids) < mostVLANs:
		p.ppvids = append(p.ppvids, int(binary.BigEndian.Uint16(value[1:])))
	case organization == ieee8021 && subtype == subtypeVLANName && len(value) >= 3 && len(value) >= 3+int(value[2]) && len(p.vlans) < mostVLANs:
		p.vlans = append(p.vlans, VLAN{ID: int(binary.BigEndian.Uint16(value)), Name: clean(value[3:3+int(value[2])], mostVLANName)})
	case organization == ieee8023 && subtype == subtypePhysical && len(value) >= 5 && p.physical == nil:
		p.physical = &Physical{
			Autoneg: value[0] != 0, AutonegCapable: int(binary.BigEndian.Uint16(value[1:])), MAU: int(binary.BigEndian.Uint16(value[3:])),
		}
	case organization == ieee8023 && subtype == subtypeFrameSize && len(value) >= 2 && p.maxFrame == 0:
		p.maxFrame = int(binary.BigEndian.Uint16(value))
	}
}

// clean is text that can be printed, on one line, of at most so many bytes.
func clean(raw []byte, most int) string {
	text := strings.Join(strings.Fields(strings.TrimRight(string(raw), "\x00")), " ")
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
	for len(text) > most {
		_, size := utf8.DecodeLastRuneInString(text)
		text = text[:len(text)-size]
	}
	return text
}

// neighbour is in the order in which nmstate shows it.
func (p *parser) neighbour() (n Neighbour) {
	add := func(is bool, t TLV) {
		if is {
			n = append(n, t)
		}
	}
	add(p.name != "", TLV{Type: systemName, SystemName: p.name})
	add(p.description != "", TLV{Type: systemDescription, Description: p.description})
	add(len(p.capabilities) > 0, TLV{Type: systemCapabilities, Capabilities: p.capabilities})
	add(true, TLV{Type: chassisID, ChassisID: p.chassis, ChassisType: p.chassisType, TypeName: chassisTypes[p.chassisType]})
	add(true, TLV{Type: portID, PortID: p.port, PortType: p.portType, TypeName: portTypes[p.portType]})
	own := func(organization [3]byte, subtype int, t TLV) TLV {
		t.Type, t.Organization, t.OrganizationSub = organizationSpecific, net.HardwareAddr(organization[:]).String(), subtype
		return t
	}
	add(len(p.vlans) > 0, own(ieee8021, subtypeVLANName, TLV{VLANs: p.vlans}))
	add(p.physical != nil, own(ieee8023, subtypePhysical, TLV{Physical: p.physical}))
	add(len(p.ppvids) > 0, own(ieee8021, subtypePPVID, TLV{PPVIDs: p.ppvids}))
	add(len(p.management) > 0, TLV{Type: managementAddress, Management: p.management})
	add(p.maxFrame > 0, own(ieee8023, subtypeFrameSize, TLV{MaxFrame: p.maxFrame}))
	return n
}
