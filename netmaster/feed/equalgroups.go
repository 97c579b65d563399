package feed

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// sum is the sum of a set's members, each encrypted. Since the key is secret, no tenant can construct different sets
// with equal sums: equal sums mean equal sets.
type sum [2]uint64

// alikeIndex maps sums to the peer groups with these members, so that equal member lists are sent to a node once. It
// omits sets with less than minAlike members.
type alikeIndex struct {
	cipher  cipher.Block
	in, out [aes.BlockSize]byte // scratch space
	keys    map[sum]map[policy.Key]struct{}
}

// minAlike is the minimal number of members of a group that is sent by reference to an equal group.
const minAlike = 64

func newAlikeIndex() *alikeIndex {
	var secret [16]byte
	_, _ = rand.Read(secret[:])          // never fails
	block, _ := aes.NewCipher(secret[:]) // fails only for keys of other lengths
	return &alikeIndex{cipher: block, keys: map[sum]map[policy.Key]struct{}{}}
}

// of returns an encrypted member. No member is an IPv4 address in IPv6 form.
func (x *alikeIndex) of(a netip.Addr) sum {
	x.in = a.As16()
	x.cipher.Encrypt(x.out[:], x.in[:])
	return sum{binary.BigEndian.Uint64(x.out[:]), binary.BigEndian.Uint64(x.out[8:])}
}

func (s *sum) plus(o sum)  { s[0], s[1] = s[0]+o[0], s[1]+o[1] }
func (s *sum) minus(o sum) { s[0], s[1] = s[0]-o[0], s[1]-o[1] }

// add indexes a group that is large enough, and computes its sum if that is unknown.
func (x *alikeIndex) add(k policy.Key, s *memberSet) {
	if s.len() < minAlike {
		s.sum = sum{}
		return
	}
	if s.sum == (sum{}) {
		s.sum = x.sumOf(s)
	}
	if x.keys[s.sum] == nil {
		x.keys[s.sum] = map[policy.Key]struct{}{}
	}
	x.keys[s.sum][k] = struct{}{}
}

// sumOf computes the sum of a set. Groups that share an unchanged list compute it once.
func (x *alikeIndex) sumOf(s *memberSet) (out sum) {
	if len(s.changed) == 0 && s.base.sum != (sum{}) {
		return s.base.sum
	}
	for a := range s.all {
		out.plus(x.of(a))
	}
	if len(s.changed) == 0 {
		s.base.sum = out
	}
	return out
}

// remove removes a group from the index. Call it before the group changes or is deleted.
func (x *alikeIndex) remove(k policy.Key, s *memberSet) {
	if s.sum == (sum{}) {
		return
	}
	delete(x.keys[s.sum], k)
	if len(x.keys[s.sum]) == 0 {
		delete(x.keys, s.sum)
	}
}

// change changes a set and, if it is known, its sum.
func (x *alikeIndex) change(s *memberSet, added, removed []netip.Addr) {
	if s.sum != (sum{}) {
		for _, a := range added {
			s.sum.plus(x.of(a))
		}
		for _, a := range removed {
			s.sum.minus(x.of(a))
		}
	}
	s.change(added, removed)
}

// groupUpdates returns a node's pending group changes. Groups with equal members share an update.
func (m *mirror) groupUpdates(v *view) []policy.GroupUpdate {
	due := v.pending.groups
	out := make([]policy.GroupUpdate, 0, len(due))
	alike := map[sum][]policy.Key{}
	for id, patch := range due {
		if _, in := v.groups[id.Key]; in && v.alike && id.Kind == policy.PeerGroup {
			if set := m.groups[id.Key]; set != nil && set.sum != (sum{}) {
				alike[set.sum] = append(alike[set.sum], id.Key)
				continue
			}
		}
		out = append(out, m.groupUpdate(v, id, patch))
	}
	for s, keys := range alike {
		slices.SortFunc(keys, func(a, b policy.Key) int { return slices.Compare(a[:], b[:]) })
		out = append(out, m.alikeUpdate(v, s, keys))
	}
	return out
}

// alikeUpdate returns an update for groups with equal members. It refers to an equal group that the node already
// holds; otherwise it patches one of the groups, or sends the first one whole.
func (m *mirror) alikeUpdate(v *view, s sum, keys []policy.Key) policy.GroupUpdate {
	if k, ok := m.held(v, s); ok {
		return policy.GroupUpdate{Key: k, Kind: policy.PeerGroup, Alike: keys}
	}
	due := v.pending.groups
	patchOf := func(k policy.Key) map[netip.Addr]bool { return due[policy.PeerGroup.ID(k)] }
	first := max(0, slices.IndexFunc(keys, func(k policy.Key) bool { return patchOf(k) != nil }))
	others := slices.Delete(slices.Clone(keys), first, first+1)
	id := policy.PeerGroup.ID(keys[first])
	patch := due[id]
	if grows(patch) && !slices.ContainsFunc(others, func(k policy.Key) bool { return !grows(patchOf(k)) }) {
		return withAlike(m.groupUpdate(v, id, patch), others)
	}
	if grows(patch) {
		patch = nil // in an update that only adds, no other group may lose a member
	}
	return withAlike(m.groupUpdate(v, id, patch), others)
}

func withAlike(u policy.GroupUpdate, keys []policy.Key) policy.GroupUpdate {
	if len(keys) > 0 {
		u.Alike = keys
	}
	return u
}

// grows reports whether a patch only adds members.
func grows(patch map[netip.Addr]bool) bool {
	for _, in := range patch {
		if !in {
			return false
		}
	}
	return patch != nil
}

// maxProbes limits the search for an equal group that the node holds. If none is found among them, the members are
// sent again.
const maxProbes = 32

// held returns a group with these members that the node holds and that has no pending changes.
func (m *mirror) held(v *view, s sum) (policy.Key, bool) {
	probes := 0
	for k := range m.alike.keys[s] {
		if probes++; probes > maxProbes {
			break
		}
		_, in := v.groups[k]
		_, due := v.pending.groups[policy.PeerGroup.ID(k)]
		if in && !due {
			return k, true
		}
	}
	return policy.Key{}, false
}
