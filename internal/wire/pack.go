package wire

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

const keyLen = len(policy.Key{})

var errOrder = errors.New("addresses are out of order, or come twice")

// packKeys puts keys one after another; nil for none.
func packKeys(keys []policy.Key) []byte {
	if len(keys) == 0 {
		return nil
	}
	out := make([]byte, 0, len(keys)*keyLen)
	for i := range keys {
		out = append(out, keys[i][:]...)
	}
	return out
}

func unpackKeys(b []byte) ([]policy.Key, error) {
	if len(b)%keyLen != 0 {
		return nil, fmt.Errorf("%d bytes are no list of keys", len(b))
	}
	if len(b) == 0 {
		return nil, nil
	}
	out := make([]policy.Key, 0, len(b)/keyLen)
	for ; len(b) > 0; b = b[keyLen:] {
		out = append(out, policy.Key(b))
	}
	return out, nil
}

func unpackKey(b []byte) (policy.Key, error) {
	if len(b) != keyLen {
		return policy.Key{}, fmt.Errorf("%d bytes are no key", len(b))
	}
	return policy.Key(b), nil
}

func compareKeys(a, b policy.Key) int { return bytes.Compare(a[:], b[:]) }

// ascending reports whether the list is strictly ascending.
func ascending[T any](list []T, compare func(a, b T) int) bool {
	for i := 1; i < len(list); i++ {
		if compare(list[i-1], list[i]) >= 0 {
			return false
		}
	}
	return true
}

// sorted returns the addresses in order, in a copy unless they are sorted already.
func sorted(addrs []netip.Addr) []netip.Addr {
	if ascending(addrs, netip.Addr.Compare) {
		return addrs
	}
	out := slices.Clone(addrs)
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// packed is a list of addresses in the form of feed.Addresses.
type packed struct{ four, six []byte }

// pack packs a sorted list.
func pack(addrs []netip.Addr) (out packed) {
	fours := 0 // netip sorts IPv4 first
	for fours < len(addrs) && addrs[fours].Is4() {
		fours++
	}
	if fours > 0 {
		out.four = make([]byte, 0, 4*fours)
	}
	if fours < len(addrs) {
		out.six = make([]byte, 0, 16*(len(addrs)-fours))
	}
	for _, a := range addrs[:fours] {
		b := a.As4()
		out.four = append(out.four, b[:]...)
	}
	for _, a := range addrs[fours:] {
		b := a.As16()
		out.six = append(out.six, b[:]...)
	}
	return out
}

func (p *packed) len() int { return len(p.four)/4 + len(p.six)/16 }

// take removes the first n addresses and returns their message; nil for none.
func (p *packed) take(n int) *feed.Addresses {
	if n == 0 {
		return nil
	}
	four := 4 * min(n, len(p.four)/4)
	six := 16 * (n - four/4)
	out := &feed.Addresses{Ipv4: p.four[:four:four], Ipv6: p.six[:six:six]}
	p.four, p.six = p.four[four:], p.six[six:]
	return out
}

// packAddresses takes a sorted list; nil for none.
func packAddresses(addrs []netip.Addr) *feed.Addresses {
	p := pack(addrs)
	return p.take(len(addrs))
}

// unpackAddresses refuses what packAddresses would not have made of a set.
func unpackAddresses(in *feed.Addresses) ([]netip.Addr, error) {
	if in == nil {
		return nil, nil
	}
	if unknown(in) {
		return nil, errUnknownField
	}
	four, six := in.Ipv4, in.Ipv6
	if len(four)%4 != 0 || len(six)%16 != 0 {
		return nil, fmt.Errorf("%d and %d bytes are no lists of IPv4 and IPv6 addresses", len(four), len(six))
	}
	if len(four)+len(six) == 0 {
		return nil, nil
	}
	out := make([]netip.Addr, 0, len(four)/4+len(six)/16)
	for ; len(four) > 0; four = four[4:] {
		out = append(out, netip.AddrFrom4([4]byte(four)))
	}
	for ; len(six) > 0; six = six[16:] {
		a := netip.AddrFrom16([16]byte(six))
		if a.Is4In6() {
			return nil, fmt.Errorf("%s is an IPv4 address in IPv6 form", a)
		}
		out = append(out, a)
	}
	if !ascending(out, netip.Addr.Compare) {
		return nil, errOrder
	}
	return out, nil
}

func packPrefix(p netip.Prefix) *feed.Prefix {
	return &feed.Prefix{Address: p.Addr().AsSlice(), Bits: uint32(p.Bits())}
}

func unpackPrefix(in *feed.Prefix) (netip.Prefix, error) {
	a, ok := netip.AddrFromSlice(in.GetAddress())
	if !ok || unknown(in) {
		return netip.Prefix{}, fmt.Errorf("%x is no address of a prefix", in.GetAddress())
	}
	if in.Bits > uint32(a.BitLen()) {
		return netip.Prefix{}, fmt.Errorf("%s has no prefix of %d bits", a, in.Bits)
	}
	p := netip.PrefixFrom(a, int(in.Bits))
	return p, checkPrefix(p)
}

func checkPrefix(p netip.Prefix) error {
	switch {
	case !p.IsValid():
		return errors.New("not a prefix")
	case p != p.Masked():
		return fmt.Errorf("%s has bits set behind its prefix", p)
	case p.Addr().Is4In6():
		return fmt.Errorf("%s is an IPv4 address in IPv6 form", p)
	}
	return nil
}
