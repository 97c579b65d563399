package pipeline

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// equalPeers is a rule with peers that choose the same 5,000 pods: as one set, as netmaster sends them, or as groups that
// each come with their members.
func equalPeers(peers int, alike bool) policy.NodeUpdate {
	var members []netip.Addr
	for n := range 5000 {
		members = append(members, netip.AddrFrom4([4]byte{10, 2, byte(n >> 8), byte(n)}))
	}
	r, u := policy.Rule{Direction: policy.Ingress, AppliedTo: key(0), AnyPort: true}, policy.NodeUpdate{Revision: 1}
	for n := range peers {
		r.Peers = append(r.Peers, key(1+n))
		g := policy.GroupUpdate{Key: key(1 + n), Kind: policy.PeerGroup, Replace: true, Added: members}
		u.Groups = append(u.Groups, g)
	}
	if alike {
		u.Groups = u.Groups[:1]
		u.Groups[0].Alike = r.Peers[1:]
	}
	u.Rules = []policy.RuleChange{rule(r)}
	return u
}

func BenchmarkAlikeGroups(b *testing.B) {
	for _, c := range []struct {
		peers int
		alike bool
	}{{1, true}, {128, true}, {128, false}} {
		b.Run(fmt.Sprintf("peers=%d/alike=%v", c.peers, c.alike), func(b *testing.B) {
			u := equalPeers(c.peers, c.alike)
			b.ReportAllocs()
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			var last *Compiler
			for b.Loop() {
				last = New(testConfig, nil)
				last.Apply(u)
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/1e6, "MB-held")
			runtime.KeepAlive(last)
		})
	}
}
