package main

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// maxSlowness is the slowness of the slowest machine that the bounds of the phases are for.
const maxSlowness = 3

// work is what a measurement of the machine does on all processors at once. Virtual machines differ in each kind of
// work by its own factor: where the hypervisor handles page faults, processes start slowly and loops are as fast as
// elsewhere.
type work struct {
	name      string
	run       func()        // on one processor
	reference time.Duration // how long run takes on an idle machine of slowness 1
}

// allWork returns the kinds of work that are measured.
func allWork() []work {
	return []work{
		{"loop", loop, 550 * time.Millisecond},
		{"processes", startProcesses, 120 * time.Millisecond},
		{"memory", touchMemory, 80 * time.Millisecond},
	}
}

// measurement is how long a kind of work took.
type measurement struct {
	name            string
	took, reference time.Duration
}

func (m measurement) ratio() float64 { return m.took.Seconds() / m.reference.Seconds() }

// String returns such as "loop 0.43 of 0.55 s".
func (m measurement) String() string {
	return fmt.Sprintf("%s %.2f of %.2f s", m.name, m.took.Seconds(), m.reference.Seconds())
}

// slownessOf returns the whole number from 1 to maxSlowness that is closest to the greatest ratio to a reference.
func slownessOf(all []measurement) int {
	greatest := 0.0
	for _, m := range all {
		greatest = max(greatest, m.ratio())
	}
	return int(min(max(math.Round(greatest), 1), maxSlowness))
}

// measureWork returns the median of three measurements of each kind of work.
func measureWork() []measurement {
	var all []measurement
	for _, w := range allWork() {
		var times []time.Duration
		for range 3 {
			times = append(times, onAllProcessors(w.run))
		}
		slices.Sort(times)
		all = append(all, measurement{w.name, times[len(times)/2], w.reference})
	}
	return all
}

// onAllProcessors runs work once on each processor and returns how long the slowest took.
func onAllProcessors(run func()) time.Duration {
	start := time.Now()
	var wg sync.WaitGroup
	for range runtime.NumCPU() {
		wg.Go(run)
	}
	wg.Wait()
	return time.Since(start)
}

// loop does arithmetic, and reads and writes in random order a table that is larger than the inner caches.
func loop() {
	const steps, words = 240_000_000, 1 << 18
	table := make([]uint64, words)
	x := uint64(88172645463325252)
	for range steps {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		table[x%words] += x
	}
	runtime.KeepAlive(table)
}

// startProcesses starts a small program a hundred times, one after another.
func startProcesses() {
	for range 100 {
		_ = exec.Command("true").Run() // only its time counts
	}
}

// touchMemory writes to each of 16,384 new pages, so that the kernel has to map them one by one.
func touchMemory() {
	const size = 64 << 20
	pages, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return
	}
	_ = syscall.Madvise(pages, syscall.MADV_NOHUGEPAGE) // a kernel without huge pages refuses
	for i := 0; i < size; i += os.Getpagesize() {
		pages[i] = 1
	}
	_ = syscall.Munmap(pages)
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
