package wire

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/protobuf/proto"
)

// snapshot is 10,000 rules, of two peers, a port and an origin each, and 100 groups of 1,000 addresses, every fifth IPv6.
func snapshot() policy.NodeUpdate {
	u := policy.NodeUpdate{Revision: 1}
	key := func(kind, n int) (k policy.Key) {
		return policy.RuleKey(&policy.Rule{Direction: policy.Direction(kind), Ports: []policy.PortRange{{First: uint16(n >> 8), Last: uint16(n)}}})
	}
	for i := range 10_000 {
		r := &policy.Rule{Direction: policy.Ingress, AppliedTo: key(1, i), Peers: []policy.Key{key(2, i%100), key(2, (i+1)%100)},
			Ports: []policy.PortRange{{Protocol: policy.TCP, First: 8080, Last: 8080}}, Origins: []policy.Origin{{Policy: fmt.Sprintf("namespace-%d/policy-%d", i/10, i%10)}}}
		if compareKeys(r.Peers[0], r.Peers[1]) > 0 {
			r.Peers[0], r.Peers[1] = r.Peers[1], r.Peers[0]
		}
		r.Key = policy.RuleKey(r)
		u.Rules = append(u.Rules, policy.RuleChange{Key: r.Key, Rule: r})
	}
	for i := range 100 {
		g := policy.GroupUpdate{Key: key(2, i), Kind: policy.PeerGroup, Replace: true}
		for j := range 1000 {
			n := i*1000 + j
			a := netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
			if j%5 == 0 {
				a = netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x10, 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)})
			}
			g.Added = append(g.Added, a)
		}
		u.Groups = append(u.Groups, g)
	}
	return u
}

func encode(b *testing.B, u *policy.NodeUpdate) (parts [][]byte, size int) {
	for m := range Parts(u) {
		text, err := proto.Marshal(m)
		if err != nil {
			b.Fatal(err)
		}
		parts = append(parts, text)
		size += len(text)
	}
	return parts, size
}

// BenchmarkSnapshot is what a node that holds nothing costs, on both sides: the messages of its snapshot, and for comparison the
// same values in JSON, as version 1 of the protocol sent them.
func BenchmarkSnapshot(b *testing.B) {
	u := snapshot()
	parts, size := encode(b, &u)
	b.Run("protobuf/encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			encode(b, &u)
		}
		b.ReportMetric(float64(size), "bytes")
		b.ReportMetric(float64(len(parts)), "messages")
	})
	b.Run("protobuf/decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var all UpdateAssembler
			for _, part := range parts {
				m := new(feed.MasterMessage)
				if err := proto.Unmarshal(part, m); err != nil {
					b.Fatal(err)
				}
				if _, _, err := all.Add(m.GetUpdate()); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	text, err := json.Marshal(&u)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("json/encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := json.Marshal(&u); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(len(text)), "bytes")
	})
	b.Run("json/decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := json.Unmarshal(text, new(policy.NodeUpdate)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkDelta is one address that joins a group: what most updates are.
func BenchmarkDelta(b *testing.B) {
	u := policy.NodeUpdate{Revision: 1 << 40, Groups: []policy.GroupUpdate{{Key: policy.Key{1}, Kind: policy.PeerGroup, Added: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}}
	b.ReportAllocs()
	size := 0
	for b.Loop() {
		parts, n := encode(b, &u)
		m := new(feed.MasterMessage)
		if err := proto.Unmarshal(parts[0], m); err != nil {
			b.Fatal(err)
		}
		if _, whole, err := new(UpdateAssembler).Add(m.GetUpdate()); err != nil || !whole {
			b.Fatal(err)
		}
		size = n
	}
	b.ReportMetric(float64(size), "bytes")
}
