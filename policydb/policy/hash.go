package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"iter"
	"net/netip"
	"slices"
	"strconv"
)

// GroupSpec is the content of a group: the pods that a pair of selectors chooses, or those of them that give a port a
// certain number.
type GroupSpec struct {
	// Namespace is the one namespace of the pods; empty where Namespaces chooses.
	Namespace  string     `json:"namespace,omitempty"`
	Namespaces *Selector  `json:"namespaces,omitempty"`
	Pods       *Selector  `json:"pods,omitempty"`
	Port       *NamedPort `json:"port,omitempty"`
}

// Key returns the content key of the spec. Equal specs have equal keys.
func (g *GroupSpec) Key() Key {
	h := make([]byte, 0, 256)
	h = append(h, "group|"...)
	h = append(h, quote(g.Namespace)...)
	h = append(h, '|')
	h = g.Namespaces.appendCanonical(h)
	h = append(h, '|')
	h = g.Pods.appendCanonical(h)
	if g.Port != nil {
		h = append(h, '|')
		h = append(h, quote(g.Port.Name)...)
		h = append(h, '|', byte(g.Port.Protocol))
		h = binary.BigEndian.AppendUint16(h, g.Port.Number)
	}
	return keyOf(h)
}

// String returns a description of the group's pods.
func (g *GroupSpec) String() string {
	text := "pods " + g.Pods.String() + " of "
	if g.Namespace != "" {
		text += "namespace " + g.Namespace
	} else {
		text += "namespaces " + g.Namespaces.String()
	}
	if g.Port != nil {
		text += " whose port " + g.Port.Name + "/" + g.Port.Protocol.String() + " is " +
			strconv.Itoa(int(g.Port.Number))
	}
	return text
}

func keyOf(b []byte) Key {
	sum := sha256.Sum256(b)
	return Key(sum[:16])
}

// RuleKey returns the content key of a rule, computed from all fields but Key and Origins.
func RuleKey(r *Rule) Key {
	b := make([]byte, 0, 128)
	b = append(b, "rule|"...)
	b = append(b, byte(r.Direction), boolByte(r.AnyPeer), boolByte(r.AnyPort))
	b = append(b, r.AppliedTo[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(r.Peers)))
	for i := range r.Peers {
		b = append(b, r.Peers[i][:]...)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(r.Blocks)))
	for i := range r.Blocks {
		b = appendPrefix(b, r.Blocks[i].CIDR)
		b = binary.BigEndian.AppendUint32(b, uint32(len(r.Blocks[i].Except)))
		for _, e := range r.Blocks[i].Except {
			b = appendPrefix(b, e)
		}
	}
	for _, p := range r.Ports {
		b = append(b, byte(p.Protocol))
		b = binary.BigEndian.AppendUint16(b, p.First)
		b = binary.BigEndian.AppendUint16(b, p.Last)
	}
	if r.DryRun { // the keys of all others are what they were before there were dry runs
		b = append(b, "|audit"...)
	}
	return keyOf(b)
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}

func appendPrefix(b []byte, p netip.Prefix) []byte {
	b = append(b, byte(p.Addr().BitLen()), byte(p.Bits()))
	return append(b, p.Addr().AsSlice()...)
}

// Hash changes with anything of the rule, Origins included: two nodes that hold the same hash for a key hold the same.
func (r *Rule) Hash() Key {
	b := slices.Clone(r.Key[:])
	for _, o := range r.Origins {
		b = append(b, o.Policy...)
		b = append(b, 0)
		b = binary.BigEndian.AppendUint32(b, uint32(o.Rule))
	}
	return keyOf(b)
}

// MembersHash returns a hash of a set of addresses that does not depend on their order. Each address may occur only
// once.
func MembersHash(members iter.Seq[netip.Addr]) Key {
	var hi, lo uint64
	for a := range members {
		b := a.As16()
		sum := sha256.Sum256(append([]byte{byte(a.BitLen())}, b[:]...))
		hi += binary.BigEndian.Uint64(sum[:])
		lo += binary.BigEndian.Uint64(sum[8:])
	}
	var k Key
	binary.BigEndian.PutUint64(k[:], hi)
	binary.BigEndian.PutUint64(k[8:], lo)
	return k
}

// ChangedHash returns the MembersHash of a set after some of its members were removed and others were added.
func ChangedHash(before, added, removed Key) (k Key) {
	for at := 0; at < len(k); at += 8 {
		more, less := binary.BigEndian.Uint64(added[at:]), binary.BigEndian.Uint64(removed[at:])
		binary.BigEndian.PutUint64(k[at:], binary.BigEndian.Uint64(before[at:])+more-less)
	}
	return k
}
