package ofctl

import (
	"fmt"
	"net/netip"
	"unique"
)

// Flags and ranges of NXAST_NAT (nicira-ext.h).
const (
	natSrc = 1
	natDst = 2

	natIPv4Min = 1
	natIPv6Min = 4
	natPortMin = 16
)

// appendNat appends the translation of a ct action. A range has one address and one port at most.
func appendNat(b []byte, a *Action) []byte {
	start := len(b)
	b = appendNicira(b, niciraNat, 0)
	b = append(b, 0, 0)
	flags, to := natFlags(a.Nat), a.natAddr()
	b = be.AppendUint16(b, flags)
	var present uint16
	switch {
	case flags == 0 || !to.IsValid():
	case to.Is4():
		present = natIPv4Min
	default:
		present = natIPv6Min
	}
	if present != 0 && a.Port != 0 {
		present |= natPortMin
	}
	b = be.AppendUint16(b, present)
	if present != 0 {
		b = appendAddr(b, to)
	}
	if present&natPortMin != 0 {
		b = be.AppendUint16(b, uint16(a.Port))
	}
	for (len(b)-start)%8 != 0 {
		b = append(b, 0)
	}
	be.PutUint16(b[start+2:], uint16(len(b)-start))
	return b
}

func natFlags(n Nat) uint16 {
	switch n {
	case NatSrc:
		return natSrc
	case NatDst:
		return natDst
	}
	return 0
}

// natAddr returns the address of the action, not valid where it has none.
func (a *Action) natAddr() netip.Addr {
	if a.Addr == (unique.Handle[netip.Addr]{}) {
		return netip.Addr{}
	}
	return a.Addr.Value()
}

func decodeNat(a *Action, b []byte) error {
	flags, present, rest := be.Uint16(b[12:]), be.Uint16(b[14:]), b[16:]
	switch {
	case flags == 0 && present == 0:
		a.Nat = NatOnly
		return nil
	case flags == natSrc:
		a.Nat = NatSrc
	case flags == natDst:
		a.Nat = NatDst
	default:
		return &UnknownError{What: "flags of nat"}
	}
	size := 4
	switch present &^ natPortMin {
	case natIPv4Min:
	case natIPv6Min:
		size = 16
	default:
		return &UnknownError{What: "range of nat"}
	}
	if len(rest) < size {
		return errShort
	}
	a.Addr = handleOf(rest[:size])
	if present&natPortMin != 0 {
		if len(rest) < size+2 {
			return errShort
		}
		a.Port = uint32(be.Uint16(rest[size:]))
		if a.Port == 0 {
			return &UnknownError{What: "port 0 of nat"}
		}
	}
	return nil
}

func (a *Action) natText() string {
	name := "src"
	switch a.Nat {
	case NatOnly:
		return "nat"
	case NatDst:
		name = "dst"
	}
	to := a.natAddr()
	switch {
	case a.Port == 0:
		return fmt.Sprintf("nat(%s=%s)", name, to)
	case to.Is4():
		return fmt.Sprintf("nat(%s=%s:%d)", name, to, a.Port)
	}
	return fmt.Sprintf("nat(%s=[%s]:%d)", name, to, a.Port)
}
