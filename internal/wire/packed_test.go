package wire

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/protobuf/proto"
)

func manyNodes(count int) (infos []policy.NodeInfo) {
	for n := range count {
		infos = append(infos, policy.NodeInfo{Name: fmt.Sprintf("node-%d", n), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 168, byte(n >> 8), byte(n)})},
			PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n >> 8), byte(n), 0}), 24)}})
	}
	return infos
}

// Who receives a packed message cannot tell that it was.
func TestPacked(t *testing.T) {
	infos := manyNodes(3)
	plain := FromNodes(infos)
	packed, err := Packed(plain)
	if err != nil {
		t.Fatal(err)
	}
	text, err := proto.Marshal(packed)
	if err != nil {
		t.Fatal(err)
	}
	var received feed.MasterMessage
	if err := proto.Unmarshal(text, &received); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(&received, plain) {
		t.Errorf("received %v\nand not %v", &received, plain)
	}
	if got, err := ToNodes(received.GetNodes()); err != nil || !reflect.DeepEqual(got, infos) {
		t.Errorf("nodes %v, %v\nand not %v", got, err, infos)
	}
}

// BenchmarkNodes is what it costs to tell one node of 2,000: by a message of its own, and by one that is packed once for all. The ratio is to
// the former.
func BenchmarkNodes(b *testing.B) {
	infos := manyNodes(2000)
	packed, err := Packed(FromNodes(infos))
	if err != nil {
		b.Fatal(err)
	}
	var own time.Duration
	b.Run("own", func(b *testing.B) { own = encodes(b, func() *feed.MasterMessage { return FromNodes(infos) }) })
	b.Run("packed", func(b *testing.B) {
		each := encodes(b, func() *feed.MasterMessage { return packed })
		b.ReportMetric(float64(each)/float64(max(own, 1)), "ratio")
	})
}

func encodes(b *testing.B, message func() *feed.MasterMessage) time.Duration {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := proto.Marshal(message()); err != nil {
			b.Fatal(err)
		}
	}
	return b.Elapsed() / time.Duration(b.N)
}
