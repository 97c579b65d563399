package wire

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
	"google.golang.org/protobuf/encoding/protowire"
)

// randomAddresses returns addresses of both families in ascending order.
func randomAddresses(r *rand.Rand) (out []netip.Addr) {
	for range r.IntN(4) {
		a := netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(256)), byte(r.IntN(256))})
		if r.IntN(2) == 0 {
			a = netip.AddrFrom16([16]byte{0xfd, 15: byte(r.IntN(256))})
		}
		out = append(out, a)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

func randomService(r *rand.Rand) *service.Service {
	s := &service.Service{
		Namespace:       "shop",
		Name:            "web",
		ClusterIPs:      randomAddresses(r),
		ExternalIPs:     randomAddresses(r),
		LoadBalancerIPs: randomAddresses(r),
		InternalLocal:   r.IntN(2) == 0,
		ExternalLocal:   r.IntN(2) == 0,
		Affinity:        time.Duration(r.IntN(3)) * time.Hour,
		CreatedAt:       int64(r.IntN(2)) * 1_800_000_000,
	}
	for range r.IntN(3) {
		s.Ports = append(s.Ports, service.Port{
			Name:     []string{"", "web", "dns"}[r.IntN(3)],
			Protocol: []policy.Protocol{policy.TCP, policy.UDP, policy.SCTP}[r.IntN(3)],
			Port:     uint16(1 + r.IntN(65535)),
			NodePort: uint16(r.IntN(2) * 30080),
		})
		s.SourceRanges = append(s.SourceRanges, netip.MustParsePrefix("10.0.0.0/8"))
	}
	return s
}

func randomSlice(r *rand.Rand) *service.Slice {
	s := &service.Slice{Namespace: "shop", Name: "web-abc", Service: "web", Endpoints: []service.Endpoint{}}
	for range r.IntN(3) {
		s.Ports = append(s.Ports, service.SlicePort{Name: "web", Protocol: policy.UDP, Port: 53})
	}
	for _, a := range randomAddresses(r) {
		e := service.Endpoint{
			Address:     a,
			Pod:         []string{"", "shop/web-1"}[r.IntN(2)],
			Node:        []string{"", "n1"}[r.IntN(2)],
			Ready:       r.IntN(2) == 0,
			Serving:     r.IntN(2) == 0,
			Terminating: r.IntN(2) == 0,
		}
		if r.IntN(2) == 0 {
			e.ZoneHints, e.NodeHints = []string{"a", "b"}, []string{"n1"}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// TestServiceEntries: Services, EndpointSlices and zones come over as they are, and equal ones are equal bytes.
func TestServiceEntries(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		s, slice := randomService(r), randomSlice(r)
		for _, c := range []struct {
			key   string
			value func() ([]byte, error)
			want  ServiceEntry
		}{
			{ServiceKey("shop/web"), func() ([]byte, error) { return ServiceValue(s) },
				ServiceEntry{ServiceID: "shop/web", Service: s}},
			{SliceKey("shop/web-abc"), func() ([]byte, error) { return SliceValue(slice) },
				ServiceEntry{SliceID: "shop/web-abc", Slice: slice}},
			{ZoneKey("n1"), func() ([]byte, error) { return []byte("west"), nil }, ServiceEntry{Node: "n1", Zone: "west"}},
		} {
			value, err := c.value()
			if err != nil {
				t.Fatal(err)
			}
			got, err := ToServiceEntry(c.key, value)
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Fatalf("seed %d: %s is %+v, %v; want %+v", seed, c.key, got, err, c.want)
			}
			if again, _ := c.value(); !slices.Equal(value, again) {
				t.Fatalf("seed %d: %s has two encodings", seed, c.key)
			}
		}
	}
}

// TestServiceEntries_OfNewerVersions: keys and fields that a node does not know change nothing.
func TestServiceEntries_OfNewerVersions(t *testing.T) {
	if e, err := ToServiceEntry("gateway/a/b", []byte{1, 2}); err != nil || e != (ServiceEntry{}) {
		t.Errorf("a key of another kind is %+v, %v", e, err)
	}
	want := &service.Service{Namespace: "shop", Name: "web", InternalLocal: true}
	value, err := ServiceValue(want)
	if err != nil {
		t.Fatal(err)
	}
	value = protowire.AppendVarint(protowire.AppendTag(value, 1000, protowire.VarintType), 1)
	if e, err := ToServiceEntry(ServiceKey("shop/web"), value); err != nil || !reflect.DeepEqual(e.Service, want) {
		t.Errorf("with a new field: %+v, %v", e.Service, err)
	}
}

// TestServiceEntries_Refused: what no netmaster sends.
func TestServiceEntries_Refused(t *testing.T) {
	for name, c := range map[string]struct {
		key   string
		value []byte
	}{
		"no namespace":       {ServiceKey("web"), []byte{}},
		"no slice's name":    {SliceKey("web"), []byte{}},
		"garbage":            {ServiceKey("a/b"), []byte{0xff}},
		"port 0":             {ServiceKey("a/b"), []byte{0x22, 2, 0x10, 6}},
		"no protocol":        {ServiceKey("a/b"), []byte{0x22, 2, 0x18, 80}},
		"address of 3 bytes": {SliceKey("a/b"), []byte{0x1a, 5, 0x0a, 3, 1, 2, 3}},
		"addresses of 3":     {ServiceKey("a/b"), []byte{0x0a, 5, 0x0a, 3, 1, 2, 3}},
		"port above 65535":   {SliceKey("a/b"), []byte{0x12, 6, 0x10, 6, 0x18, 0x80, 0x80, 4}},
		"truncated slice":    {SliceKey("a/b"), []byte{0x1a, 9, 0x0a}},
	} {
		t.Run(name, func(t *testing.T) {
			if e, err := ToServiceEntry(c.key, c.value); err == nil {
				t.Errorf("%+v", e)
			}
		})
	}
}

// TestHello_HoldsServices: what a node holds of Services is in its hello, for netmasters that know of them.
func TestHello_HoldsServices(t *testing.T) {
	sums := make([]byte, 64*16)
	for _, last := range []uint32{feed.Services - 1, feed.Services} {
		var all HelloAssembler
		h := Hello{Node: "n1", Versions: Versions{Min: feed.MinVersion, Max: last}, Nodes: sums, Services: sums}
		for part := range HelloParts(&h) {
			got, _, err := all.Add(part.GetHello())
			if err != nil || (got.Services != nil) != (last == feed.Services) || got.Nodes == nil {
				t.Errorf("version %d: %v, %v", last, got.Services != nil, err)
			}
		}
	}
}
