// Enginebench measures the engine: full computes and single events, next to their goals.
package main

import (
	"flag"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netmaster/resolve/workload"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// goals of a full compute, in seconds.
var goals = map[string]string{"small": "0.4", "large": "0.15", "one": "0.15", "perpod 10k": "0.1"}

// Goals for memory beyond the objects themselves, in bytes.
const goalPerPod, goalPerPolicy = 150, 600

func main() {
	events := flag.Int("events", 2000, "single events a workload")
	only := flag.String("only", "", "only workloads whose name begins so")
	flag.Parse()
	full, single := [][]string{
		{"workload", "pods", "policies", "seconds", "goal", "allocs", "B/object", "goal"},
	}, [][]string{
		{"workload", "event", "p50 µs", "p99 µs", "allocs/event"},
	}
	all := workload.All()
	for _, name := range workload.Names {
		if strings.HasPrefix(name, *only) {
			f, s := measure(all[name](), *events)
			full, single = append(full, f), append(single, s...)
		}
	}
	fmt.Println(
		"full compute, per-node deltas included; bytes are those beyond the objects; allocs of small: goal 1.5 M; " +
			"perpod: twice the input, goal 2.3 x the time",
	)
	printRows(full)
	fmt.Println(
		"\none event → per-node deltas; goal: p50 30 µs, p99 150 µs, 60 allocs; of one's policies: p99 5 ms, 2,000 " +
			"allocs",
	)
	printRows(single)
}

func unbounded() policy.Budgets {
	b := policy.DefaultBudgets
	b.Policy.Members, b.Namespace.Members = math.MaxInt, math.MaxInt
	return b
}

func measure(w *workload.Workload, events int) ([]string, [][]string) {
	runtime.GC()
	var before, after, held runtime.MemStats
	runtime.ReadMemStats(&before)
	e := resolve.New(0)
	e.SetBudgets(unbounded()) // some workloads exceed the default budgets
	began := time.Now()
	e.Apply(w.Batch)
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	runtime.GC()
	runtime.ReadMemStats(&held)
	pods, policies := len(w.Batch.Endpoints), len(w.Batch.Policies)
	full := []string{
		w.Name,
		fmt.Sprint(pods),
		fmt.Sprint(policies),
		fmt.Sprintf("%.3f", took.Seconds()),
		goals[w.Name],
		fmt.Sprint(after.Mallocs - before.Mallocs),
		fmt.Sprint(int64(held.HeapAlloc-before.HeapAlloc) / int64(pods+policies)),
		fmt.Sprint((goalPerPod*pods + goalPerPolicy*policies) / (pods + policies)),
	}
	var rows [][]string
	for kind, name := range workload.Kinds {
		rows = append(rows, single(e, w, kind, name, events/len(workload.Kinds)))
	}
	return full, rows
}

func single(e *resolve.Engine, w *workload.Workload, kind int, name string, n int) []string {
	times := make([]time.Duration, 0, n)
	var allocs uint64
	var before, after runtime.MemStats
	for range n {
		b := w.Event(kind)
		runtime.ReadMemStats(&before)
		began := time.Now()
		e.Apply(b)
		times = append(times, time.Since(began))
		runtime.ReadMemStats(&after)
		allocs += after.Mallocs - before.Mallocs
	}
	slices.Sort(times)
	us := func(q float64) string {
		return fmt.Sprintf("%.1f", float64(times[int(q*float64(n-1))].Nanoseconds())/1000)
	}
	return []string{w.Name, name, us(0.5), us(0.99), fmt.Sprint(allocs / uint64(n))}
}

func printRows(rows [][]string) {
	for _, r := range rows {
		for i, cell := range r {
			if i == 0 {
				fmt.Fprintf(os.Stdout, "%-12s", cell)
			} else {
				fmt.Fprintf(os.Stdout, "%16s", cell)
			}
		}
		fmt.Println()
	}
}
