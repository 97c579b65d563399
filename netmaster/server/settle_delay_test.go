package server

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// settleWaits plays pods that are bound at these times and announced so much later, with lists that take so long, and
// returns how long the answer to each waited. Times are in milliseconds.
func settleWaits(bound []int, announced, list int) (waits []int) {
	var g gate
	var pace pacer
	epoch := time.Unix(1000, 0)
	at := func(ms int) time.Time { return epoch.Add(time.Duration(ms) * time.Millisecond) }
	began := map[string]int{}
	done := func(now int, id string) { waits = append(waits, now-began[id]) }
	under, ends := uint64(0), 0
	seen, asked := 0, 0
	for now := 0; len(waits) < len(bound); now++ {
		if under > 0 && now >= ends {
			for _, a := range g.confirm(under) {
				done(now, a.ID)
			}
			under = 0
		}
		for ; seen < len(bound) && bound[seen] == now; seen++ {
			g.see(fmt.Sprint("ns/", seen))
		}
		for ; asked < len(bound) && bound[asked]+announced == now; asked++ {
			id := fmt.Sprint("ns/", asked)
			began[id] = now
			for _, a := range g.pass([]policy.SettledEndpoint{{Node: id, ID: id}}, at(now)) {
				done(now, a.ID)
			}
		}
		if under == 0 && g.wants() && !at(now).Before(pace.next()) {
			pace.begin(at(now))
			under, ends = g.begin(), now+list
		}
	}
	slices.Sort(waits)
	return waits
}

// TestSettleDelay bounds by how much the gate delays pods while nothing is wrong, for pods that are announced 300 ms
// after they were bound and lists that take 50 ms: not at all where one pod or a burst starts after a pause.
func TestSettleDelay(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	steady := func(mean int) (out []int) {
		for now := 0; now < 60_000; now += 1 + int(r.ExpFloat64()*float64(mean)) {
			out = append(out, now)
		}
		return out
	}
	var burst []int
	for i := range 30 {
		burst = append(burst, 3*i)
	}
	for name, c := range map[string]struct {
		bound     []int
		announced int
		list      int
		p99       int
	}{
		"one pod":                           {[]int{0}, 300, 50, 0},
		"one pod, a list of 400 ms":         {[]int{0}, 300, 400, 100},
		"a burst of 30":                     {burst, 300, 50, 0},
		"2 a second":                        {steady(500), 300, 50, 250},
		"10 a second":                       {steady(100), 300, 50, 250},
		"10 a second, announced after 1 s":  {steady(100), 1000, 50, 0},
		"10 a second, a list of 160 ms":     {steady(100), 300, 160, 360},
		"10 a second, announced at once":    {steady(100), 0, 50, 550},
		"a burst of 30, a list of 160 ms":   {burst, 300, 160, 100},
		"a burst of 30, announced at 100ms": {burst, 100, 50, 150},
	} {
		waits := settleWaits(c.bound, c.announced, c.list)
		p99 := waits[min(len(waits)-1, len(waits)*99/100)]
		t.Logf("%s: p50 %d ms, p99 %d ms of %d pods", name, waits[len(waits)/2], p99, len(waits))
		if p99 > c.p99 {
			t.Errorf("%s: p99 %d ms, want at most %d", name, p99, c.p99)
		}
	}
}
