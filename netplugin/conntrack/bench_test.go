package conntrack

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

func benchKey(kind byte, n int) (k policy.Key) {
	k[0] = kind
	binary.BigEndian.PutUint32(k[1:], uint32(n))
	return k
}

func benchAddr(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

// crowd is a node of 100 pods with 100,000 connections, and 10,000 rules of which everybody is a peer; each pod has those of two
// groups of pods, both directions.
func crowd() (*policy.NodeUpdate, []Tuple) {
	u := new(policy.NodeUpdate)
	everybody := policy.GroupUpdate{Key: benchKey(1, 0), Kind: policy.PeerGroup}
	for n := range 1000 {
		everybody.Added = append(everybody.Added, benchAddr(n))
	}
	u.Groups = append(u.Groups, everybody)
	for g := range 50 {
		u.Groups = append(u.Groups, policy.GroupUpdate{Key: benchKey(2, g), Kind: policy.AppliedToGroup,
			Added: []netip.Addr{benchAddr(g), benchAddr(g + 50), benchAddr((g + 1) % 50), benchAddr(50 + (g+1)%50)}})
	}
	for n := range 10000 {
		r := &policy.Rule{Key: benchKey(3, n), Direction: policy.Ingress + policy.Direction(n%2), AppliedTo: benchKey(2, n/2%50), Peers: []policy.Key{everybody.Key},
			Ports: []policy.PortRange{{Protocol: policy.TCP, First: 80, Last: 90}}, Origins: []policy.Origin{{Policy: "shop/" + benchKey(3, n).String(), Rule: 0}}}
		u.Rules = append(u.Rules, policy.RuleChange{Key: r.Key, Rule: r})
	}
	var live []Tuple
	for n := range 100000 {
		live = append(live, Tuple{Protocol: policy.TCP, Src: benchAddr(n % 1000), Dst: benchAddr(n / 1000), SrcPort: uint16(n), DstPort: 80})
	}
	return u, live
}

// Nobody loses anything.
func BenchmarkALookAtEverything(b *testing.B) {
	u, live := crowd()
	j := NewJudge()
	j.Apply(u)
	change := []Change{{Update: &policy.NodeUpdate{Groups: []policy.GroupUpdate{{Key: benchKey(1, 0), Kind: policy.PeerGroup, Removed: []netip.Addr{benchAddr(5000)}}}}}}
	for b.Loop() {
		if cuts := j.Cuts(change, live); len(cuts) != 0 {
			b.Fatal(cuts)
		}
	}
}

// Everything is cut at once.
func BenchmarkEverythingIsCut(b *testing.B) {
	u, live := crowd()
	j := NewJudge()
	j.Apply(u)
	group := &u.Groups[0]
	lose := []Change{{Update: &policy.NodeUpdate{Groups: []policy.GroupUpdate{{Key: group.Key, Kind: group.Kind, Replace: true}}}}}
	again := []Change{{Update: &policy.NodeUpdate{Groups: []policy.GroupUpdate{*group}}}}
	for b.Loop() {
		if cuts := j.Cuts(lose, live); len(cuts) == 0 {
			b.Fatal("nothing was cut")
		}
		j.Cuts(again, nil)
	}
}

// A pod is gone; its end waits for this.
func BenchmarkAPodIsGone(b *testing.B) {
	u, live := crowd()
	for b.Loop() {
		j := NewJudge()
		j.Apply(u)
		if cuts := j.Cuts([]Change{{Endpoint: "shop/db", Gone: []netip.Addr{benchAddr(7)}}}, live); len(cuts) != 1 {
			b.Fatal(cuts)
		}
	}
}

func BenchmarkReadingConntrack(b *testing.B) {
	const text = "tcp,orig=(src=10.244.1.2,dst=10.244.1.3,sport=41234,dport=80),reply=(src=10.244.1.3,dst=10.244.1.2,sport=80,dport=41234),zone=65521,protoinfo=(state=ESTABLISHED)"
	for b.Loop() {
		if _, live, err := ParseLine(text); err != nil || !live {
			b.Fatal(err)
		}
	}
}
