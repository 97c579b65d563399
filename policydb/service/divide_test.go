package service

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

func addrPorts(r *rand.Rand, n int) (out []netip.AddrPort) {
	for i := range n {
		out = append(out, netip.AddrPortFrom(address(r.IntN(250)*256+i%256), uint16(8000+i/256)))
	}
	return out
}

// byAddress returns whose slot each one is.
func byAddress(addresses []netip.AddrPort) (out []netip.AddrPort) {
	for _, i := range Divide(addresses) {
		out = append(out, addresses[i])
	}
	return out
}

func counts(slots []netip.AddrPort) map[netip.AddrPort]int {
	out := map[netip.AddrPort]int{}
	for _, a := range slots {
		out[a]++
	}
	return out
}

// TestDivide_IsEven: endpoints have equal numbers of slots within 1, in all tables together, and each has one.
func TestDivide_IsEven(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, n := range []int{1, 2, 3, 7, 10, 100, 255, 256, 257, 341, 342, 1000, 5000} {
		all := addrPorts(r, n)
		slots := byAddress(all)
		if len(slots) != Slots(n) || n > TableSlots && len(slots) != TableSlots*Tables(n) {
			t.Errorf("%d endpoints: %d slots in %d tables", n, len(slots), Tables(n))
		}
		has := counts(slots)
		if len(has) != n {
			t.Errorf("%d of %d endpoints have slots", len(has), n)
		}
		for a, k := range has {
			if k < len(slots)/n || k > len(slots)/n+1 {
				t.Errorf("%d endpoints: %s has %d slots", n, a, k)
			}
		}
	}
	if Divide(nil) != nil {
		t.Error("slots without endpoints")
	}
}

// TestDivide_DependsOnTheSetAlone: the order of endpoints changes nothing.
func TestDivide_DependsOnTheSetAlone(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 1))
	for range 100 {
		all := addrPorts(r, 1+r.IntN(40))
		before := byAddress(all)
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		if !slices.Equal(before, byAddress(all)) {
			t.Fatalf("another order of %v is divided otherwise", all)
		}
	}
}

// TestDivide_MovesFewSlots: an endpoint that comes or goes moves its own slots and few others, an eighth on average,
// where the number of slots remains.
func TestDivide_MovesFewSlots(t *testing.T) {
	for _, n := range []int{10, 15, 30, 50, 100, 200, 256, 400, 1000, 5000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			const rounds = 20
			if Slots(n) != Slots(n-1) {
				t.Fatalf("%d slots, and %d with one endpoint less", Slots(n), Slots(n-1))
			}
			r, sum := rand.New(rand.NewPCG(3, uint64(n))), 0
			for range rounds {
				all := addrPorts(r, n)
				before := byAddress(all)
				gone := r.IntN(n)
				after := byAddress(slices.Delete(slices.Clone(all), gone, gone+1))
				others := 0
				for i := range before {
					if before[i] != all[gone] && before[i] != after[i] {
						others++
					}
				}
				if sum += others; others > max(4, Slots(n)/2) {
					t.Errorf("%d slots of others moved", others)
				}
			}
			t.Logf("%d slots of others of %d moved on average", sum/rounds, Slots(n))
			if sum/rounds > max(2, Slots(n)/8) {
				t.Errorf("%d slots of others of %d moved on average", sum/rounds, Slots(n))
			}
		})
	}
}

// TestSlots: no endpoint has much more than its share, and there are no more slots than that takes. The number of
// tables is odd.
func TestSlots(t *testing.T) {
	for n := 2; n <= 8000; n++ {
		slots := Slots(n)
		most, share := float64((slots+n-1)/n), float64(slots)/float64(n)
		if slots < TableSlots && most > 1.25*share || slots < min(n, 7936) || Tables(n)%2 == 0 {
			t.Errorf("%d endpoints: %d slots in %d tables", n, slots, Tables(n))
		}
	}
	for n, want := range map[int]int{0: 0, 1: 1, 2: 2, 3: 8, 4: 4, 10: 16, 200: 256, 256: 256, 257: 768, 5000: 7936} {
		if got := Slots(n); got != want {
			t.Errorf("%d endpoints: %d slots, want %d", n, got, want)
		}
	}
}

// TestDivide_Spreads: the first slot, and each other, is any endpoint's; no two endpoints have the same slots always.
func TestDivide_Spreads(t *testing.T) {
	r, first := rand.New(rand.NewPCG(4, 1)), map[int]int{}
	for range 1000 {
		first[Divide(addrPorts(r, 4))[0]]++
	}
	for i := range 4 {
		if first[i] < 150 || first[i] > 350 {
			t.Errorf("slot 0 is endpoint %d's %d times of 1,000", i, first[i])
		}
	}
}

func BenchmarkDivide(b *testing.B) {
	for _, n := range []int{10, 256, 5000} {
		all := addrPorts(rand.New(rand.NewPCG(1, 1)), n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				Divide(all)
			}
		})
	}
}
