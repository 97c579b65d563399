package cluster

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/procfs"
)

// Machine is what the machine itself did while a test ran: what a failure on it may have come from.
type Machine struct {
	began  time.Time
	stolen time.Duration // until it began; likewise the others
	drops  uint64
	used   map[string]float64 // processorTimes when it began

	mu     sync.Mutex
	delays []delay // of timers, those of minDelay and more
}

// delay is a time by which a timer was late.
type delay struct {
	at  time.Time
	dur time.Duration
}

// minDelay is the least delay of a timer that is kept.
const minDelay = 10 * time.Millisecond

// WatchMachine looks until the context ends. Safe for concurrent use.
func WatchMachine(ctx context.Context) *Machine {
	m := &Machine{began: time.Now(), stolen: stolen(), drops: softnetDrops(), used: processorTimes()}
	go m.watch(ctx)
	return m
}

// watch measures by how much a timer is late: that long nothing ran, or others did.
func (m *Machine) watch(ctx context.Context) {
	const every = 20 * time.Millisecond
	last := time.Now()
	timer := time.NewTicker(every)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		now := time.Now()
		m.delayed(now, now.Sub(last)-every)
		last = now
	}
}

// delayed records that a timer was late.
func (m *Machine) delayed(at time.Time, by time.Duration) {
	if by < minDelay {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.delays = append(m.delays, delay{at, by})
}

// LateSince returns the longest time by which a timer was late since then: for so long no packet was sent or received
// here. It is 0 if none was late by minDelay.
func (m *Machine) LateSince(then time.Time) (late time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.delays {
		if d.at.After(then) {
			late = max(late, d.dur)
		}
	}
	return late
}

// String tells what happened since the beginning.
func (m *Machine) String() string {
	load, _ := os.ReadFile("/proc/loadavg")
	return fmt.Sprintf("in %v a timer was up to %v late, %v of processor time went to other machines, %d packets were dropped on their way between network namespaces; load %s; processor time: %s",
		time.Since(m.began).Round(time.Millisecond), m.LateSince(m.began).Round(time.Millisecond), stolen()-m.stolen, softnetDrops()-m.drops, strings.TrimSpace(string(load)),
		mostUsed(m.used, processorTimes()))
}

// processorTimes returns the seconds of processor time of each program by its name (proc_pid_stat(5)), with those of its
// children that have ended.
func processorTimes() map[string]float64 {
	const ticks = 100 // a second
	processes, _ := procfs.AllProcs()
	times := make(map[string]float64, len(processes))
	for _, p := range processes {
		if stat, err := p.Stat(); err == nil { // it may have ended
			times[stat.Comm] += stat.CPUTime() + float64(stat.CUTime+stat.CSTime)/ticks
		}
	}
	return times
}

// mostUsed returns the eight programs with the most processor time between two processorTimes.
func mostUsed(before, after map[string]float64) string {
	const shown = 8
	names := slices.SortedFunc(maps.Keys(after), func(a, b string) int {
		return cmp.Or(cmp.Compare(after[b]-before[b], after[a]-before[a]), cmp.Compare(a, b))
	})
	var list []string
	for _, name := range names[:min(shown, len(names))] {
		list = append(list, fmt.Sprintf("%s %.1f s", name, after[name]-before[name]))
	}
	return strings.Join(list, ", ")
}

// stolen is the time that the hypervisor gave to others: the eighth figure of the first line, in 1/100 s (proc_stat(5)).
func stolen() time.Duration {
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 {
		return 0
	}
	ticks, _ := strconv.ParseInt(fields[8], 10, 64)
	return time.Duration(ticks) * 10 * time.Millisecond
}

// patience is for how long at most a machine that stands still is waited for.
const patience = 30 * time.Second

// Undisturbed returns when that much time has passed in which this process had a processor when it wanted one: on a machine that
// stands still now and then, others had theirs too by then. It waits for at most half a minute more than it is asked to.
func Undisturbed(ctx context.Context, d time.Duration) {
	const step = 10 * time.Millisecond
	timer := time.NewTimer(step)
	defer timer.Stop()
	undisturbed(d, func() (took time.Duration, ok bool) {
		began := time.Now()
		select {
		case <-ctx.Done():
			return 0, false
		case <-timer.C:
		}
		timer.Reset(step)
		return time.Since(began), true
	})
}

// undisturbed calls step, which waits for 10 ms and returns how long that took, until steps that were not late took d
// together. Late steps count too after d and patience.
func undisturbed(d time.Duration, step func() (took time.Duration, ok bool)) {
	prompt := Stretch(30 * time.Millisecond)
	for left, passed := d, time.Duration(0); left > 0; {
		took, ok := step()
		if !ok {
			return
		}
		if passed += took; took < prompt || passed > d+patience {
			left -= took
		}
	}
}

// Unstalled is Undisturbed, and then waits for as long as processes stood still meanwhile for a disk or for a processor that went to other
// machines, which no timer of this process tells: others had their time too by then, wherever they stood. Where the kernel keeps no
// account of disks it waits for two seconds.
func Unstalled(ctx context.Context, d time.Duration) {
	stalled := stalls(2 * time.Second)
	Undisturbed(ctx, d)
	for began := time.Now(); time.Since(began) < min(stalled(), patience) && ctx.Err() == nil; {
		time.Sleep(10 * time.Millisecond)
	}
}

// stalls begins to count; what it returns tells the time so far.
func stalls(untold time.Duration) func() time.Duration {
	disk, told := diskPressure()
	gone := stolen()
	return func() time.Duration {
		now, still := diskPressure()
		if !told || !still {
			return untold
		}
		return now - disk + stolen() - gone
	}
}

func diskPressure() (time.Duration, bool) {
	text, _ := os.ReadFile("/proc/pressure/io") // which a kernel need not have
	return pressure(string(text), runtime.NumCPU())
}

// pressure is for how long some process stood still (Documentation/accounting/psi.rst of Linux). The kernel tells the mean of the processors
// that have work: where one of them stands still it is so many times that.
func pressure(text string, processors int) (time.Duration, bool) {
	line, _, _ := strings.Cut(text, "\n")
	_, total, found := strings.Cut(line, "total=")
	micros, err := strconv.ParseInt(total, 10, 64)
	return time.Duration(micros) * time.Microsecond * time.Duration(processors), found && err == nil && strings.HasPrefix(line, "some ")
}
