package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// maxSlowness is the slowness of the slowest machine that the bounds of the phases are for.
const maxSlowness = 3

// referenceLoop is how long one loop of spin takes on an idle machine of slowness 1.
const referenceLoop = 550 * time.Millisecond

// slownessOf returns the whole number from 1 to maxSlowness that is closest to the ratio of a loop to referenceLoop.
func slownessOf(loop time.Duration) int {
	return min(max(int((loop+referenceLoop/2)/referenceLoop), 1), maxSlowness)
}

// measureLoop returns the median of three loops on all processors at once.
func measureLoop() time.Duration {
	var loops []time.Duration
	for range 3 {
		loops = append(loops, spin())
	}
	slices.Sort(loops)
	return loops[len(loops)/2]
}

// spin runs a fixed amount of work on each processor and returns how long the slowest took: arithmetic, and reads and
// writes in random order of a table that is larger than the processor's inner caches.
func spin() time.Duration {
	const steps, words = 240_000_000, 1 << 18
	start := time.Now()
	var wg sync.WaitGroup
	for range runtime.NumCPU() {
		wg.Go(func() {
			table := make([]uint64, words)
			x := uint64(88172645463325252)
			for range steps {
				x ^= x << 13
				x ^= x >> 7
				x ^= x << 17
				table[x%words] += x
			}
			runtime.KeepAlive(table)
		})
	}
	wg.Wait()
	return time.Since(start)
}

// loadAverage returns the first number of /proc/loadavg, "?" where there is none.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	load, _, found := strings.Cut(string(text), " ")
	if err != nil || !found {
		return "?"
	}
	return load
}

// cpuTimes are jiffies since boot; see proc(5).
type cpuTimes struct{ all, steal uint64 }

func readCPUTimes() (t cpuTimes) {
	text, _ := os.ReadFile("/proc/stat") // no times where it cannot be read
	first, _, _ := strings.Cut(string(text), "\n")
	for i, field := range strings.Fields(first) {
		var n uint64
		if i == 0 || i > 8 { // the name; guest times, which user times contain
			continue
		}
		_, _ = fmt.Sscan(field, &n)
		t.all += n
		if i == 8 {
			t.steal = n
		}
	}
	return t
}

// stealSince returns which part of the processors' time the hypervisor gave to others since then, in percent.
func (t cpuTimes) stealSince(then cpuTimes) float64 {
	if t.all <= then.all {
		return 0
	}
	return 100 * float64(t.steal-then.steal) / float64(t.all-then.all)
}
