package native

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/vishvananda/netlink"
)

// The laws that hold for a kernel in memory hold for the real one.
func TestRandomDesiresOnThisKernel(t *testing.T) {
	netns.New(t).Enter(t)
	b := newBench(t, Config{})
	d := dice{world: here}
	taken, minTaken, seeds := 0, 15, 15
	if netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrs("eth1")}) == nil { // a kernel that has all
		d.world = all
		d.cards, minTaken, seeds = []string{"eth1"}, 5, 12 // most desires name what this kernel refuses
	}
	for seed := range uint64(seeds) {
		d.Rand = rand.New(rand.NewPCG(seed, 3))
		for step := range 4 {
			taken += lawful(t, b.Backend, d.desire(), fmt.Sprintf("seed %d, desire %d", seed, step), toleratedByKernel)
			if t.Failed() {
				t.Log(b.ip())
				return
			}
		}
	}
	if taken < minTaken {
		t.Errorf("only %d desires were taken: they test too little", taken)
	}
	t.Logf("%d desires", taken)
}

// toleratedByKernel are refusals that only the kernel knows, such as a second VXLAN of one id, or a macvlan upon a bridge's port.
func toleratedByKernel(err error) bool {
	for _, text := range []string{"file exists", "device or resource busy", "invalid argument", "no such device"} {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}
