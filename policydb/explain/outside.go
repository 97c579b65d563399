package explain

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// everything is all addresses of each family.
var everything = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0),
	netip.PrefixFrom(netip.IPv6Unspecified(), 0)}

// area is the addresses of a CIDR that are no pod's and in no narrower area.
type area struct {
	cidr   netip.Prefix
	sample netip.Addr // one of them
}

func (a area) name() string {
	switch a.cidr {
	case everything[0]:
		return "world"
	case everything[1]:
		return "world IPv6"
	}
	return a.cidr.String()
}

// outside divides all addresses that belong to no pod of the models into areas that no ipBlock distinguishes. Areas
// without such an address are left out, and so is IPv6 if no block and no pod has it.
func outside(models ...*Model) (areas []area) {
	prefixes, owned := prefixesOf(models)
	for i, p := range prefixes {
		var inner []netip.Prefix
		for _, q := range prefixes[i+1:] {
			if !p.Contains(q.Addr()) {
				break
			}
			if len(inner) == 0 || !inner[len(inner)-1].Contains(q.Addr()) {
				inner = append(inner, q)
			}
		}
		if sample := free(p, inner, owned); sample.IsValid() {
			areas = append(areas, area{p, sample})
		}
	}
	return areas
}

// prefixesOf returns the prefixes of all ipBlocks and the default prefix of each family in use, each before those
// inside it.
func prefixesOf(models []*Model) (list []netip.Prefix, owned func(netip.Addr) bool) {
	list = append(list, everything[0])
	for _, m := range models {
		for _, b := range m.facts.blocks {
			list = append(append(list, b.CIDR.Masked()), masked(b.Except)...)
		}
	}
	owned = func(a netip.Addr) bool {
		return slices.ContainsFunc(models, func(m *Model) bool { return m.owners[a] != nil })
	}
	six := slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Addr().Is6() })
	if six || slices.ContainsFunc(models, (*Model).hasIPv6) {
		list = append(list, everything[1])
	}
	slices.SortFunc(list, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	return slices.Compact(list), owned
}

func masked(list []netip.Prefix) []netip.Prefix {
	result := make([]netip.Prefix, len(list))
	for i, p := range list {
		result[i] = p.Masked()
	}
	return result
}

func (m *Model) hasIPv6() bool {
	return slices.ContainsFunc(m.endpoints, func(e *policy.Endpoint) bool { return m.address(e, true).IsValid() })
}

// free returns an address of p that is in none of inner (sorted, disjoint, inside p) and not owned, or an invalid
// address if there is none.
func free(p netip.Prefix, inner []netip.Prefix, owned func(netip.Addr) bool) netip.Addr {
	a := p.Addr()
	for _, in := range append(inner, netip.Prefix{}) { // what is left after the last of them
		for p.Contains(a) && !in.Contains(a) {
			if !owned(a) {
				return a
			}
			a = a.Next()
		}
		if !in.IsValid() {
			break
		}
		a = last(in).Next()
	}
	return netip.Addr{}
}

// last returns the highest address of a prefix.
func last(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	a, _ := netip.AddrFromSlice(bytes)
	return a
}
