package simnodes_test

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/simnodes"
)

// What a table is printed of.
var (
	printTable    = flag.Bool("table", false, "print the table of what many nodes cost netmaster (docs/scale.md)")
	tableNodes    = flag.Int("nodes", 2000, "nodes of the table")
	tablePods     = flag.Int("pods", 40000, "their pods")
	tablePolicies = flag.Int("policies", 10000, "policies, besides 20 of the namespace that has a pod on each node")
	tableRate     = flag.Int("rate", 100, "events a second")
	tableFor      = flag.Duration("for", 3*time.Minute, "how long events go on")
	tableDead     = flag.Int("dead", 50, "nodes that stop")
	tableOld      = flag.String("old", "", "another netmaster, whose start and storms are measured before, to compare")
)

// table prints.
type table struct {
	*world
	last  map[string]simnodes.Usage // by process
	begun time.Time
}

// phase begins one.
func (w *table) phase(name string) {
	w.Helper()
	fmt.Printf("\n%s\n", name)
	w.used("")
	w.begun = time.Now()
}

// used prints what netmaster and, if there is one, a process of simulated nodes used since the last time.
func (w *table) used(nodes string) {
	w.Helper()
	u, err := w.Usage(simnodes.Netmaster)
	if err == nil {
		before := w.last[simnodes.Netmaster]
		if u.CPU < before.CPU {
			before = simnodes.Usage{} // it is another one
		}
		if nodes != "" {
			fmt.Printf("  netmaster: CPU %.2f s; resident %d MB, at most %d MB\n", (u.CPU - before.CPU).Seconds(), u.RSS>>20, u.Peak>>20)
		}
		w.last[simnodes.Netmaster] = u
	}
	if nodes == "" {
		nodes = "nodes"
	} else if u, err := w.Usage(nodes); err == nil {
		fmt.Printf("  the nodes have read %.1f MB; their CPU %.2f s\n", float64(u.Read-w.last[nodes].Read)/1e6, (u.CPU - w.last[nodes].CPU).Seconds())
	}
	if u, err := w.Usage(nodes); err == nil {
		w.last[nodes] = u
	}
}

// heap prints what netmaster's last garbage collection left, which is half of what the next one waits for.
func (w *table) heap() {
	w.Helper()
	m, err := w.Metrics(w.ctx, "go_memstats_next_gc_bytes", "go_goroutines", "go_memstats_stack_inuse_bytes", "go_memstats_mallocs_total")
	w.must(err)
	fmt.Printf("  live after the last collection %.0f MB (stacks are %.0f MB), %.0f goroutines, %.1f million allocations ever\n", m[0]/2/1e6, m[2]/1e6, m[1], m[3]/1e6)
}

// storm is until all nodes have what they need.
func (w *table) storm(sim *simnodes.Sim, before simnodes.State, since time.Time) simnodes.State {
	w.Helper()
	st, at, err := sim.Current(w.ctx)
	w.must(err)
	fmt.Printf("  all %d nodes have what they need after %.2f s: %d rules, %d groups, %d addresses, %d times a node's addresses\n", st.Nodes, at.Sub(since).Seconds(),
		st.TakenRules-before.TakenRules, st.TakenGroups-before.TakenGroups, st.TakenMembers-before.TakenMembers, st.TakenNodes-before.TakenNodes)
	w.used(sim.Name)
	return st
}

// storms measures a netmaster's start, and what it costs that all nodes come at once.
func (w *table) storms(sim *simnodes.Sim, what string) {
	w.Helper()
	w.phase(what + ": first start")
	w.must(w.StartNetmaster(w.ctx))
	fmt.Printf("  ready after %.2f s\n", time.Since(w.begun).Seconds())
	w.used("nodes")
	w.heap()
	st, err := sim.State(w.ctx)
	w.must(err)
	if st.Updates == 0 {
		w.phase(what + ": all nodes connect at once and hold nothing")
		w.must(sim.Connect(w.ctx))
		st = w.storm(sim, st, w.begun)
	} else {
		w.phase(what + ": all nodes connect at once and hold all; netmaster has asked the API server")
		w.must(sim.Connect(w.ctx))
		st = w.storm(sim, st, w.begun)
	}
	w.heap()
	w.phase(what + ": again, all nodes hold all that they need")
	w.must(sim.Disconnect(w.ctx))
	w.used("nodes")
	begin := time.Now()
	w.must(sim.Connect(w.ctx))
	st = w.storm(sim, st, begin)
	w.phase(what + ": netmaster is restarted, nothing has changed")
	w.must(w.Stop(simnodes.Netmaster))
	w.used("")
	begin = time.Now()
	w.must(w.StartNetmaster(w.ctx))
	fmt.Printf("  ready after %.2f s\n", time.Since(begin).Seconds())
	now := w.storm(sim, st, begin)
	if now.TakenRules != st.TakenRules || now.TakenGroups != st.TakenGroups {
		w.Errorf("nodes were sent %d rules and %d groups again", now.TakenRules-st.TakenRules, now.TakenGroups-st.TakenGroups)
	}
	w.heap()
}

func (w *table) churn(rate int, lasting time.Duration, wide bool) {
	w.Helper()
	c, err := w.Churn(w.ctx, rate, lasting, wide)
	w.must(err)
	fmt.Printf("  %d events in %.0f s, late by %.0f ms at most; %d reached no node\n", c.Events, lasting.Seconds(), float64(c.Late.Microseconds())/1e3, len(c.Missing))
	fmt.Printf("  %-62s %9s %9s %9s %9s\n", "in ms", "times", "p50", "p99", "max")
	for _, kind := range simnodes.Kinds {
		ms := func(q float64) float64 { return float64(simnodes.Quantile(c.Took[kind], q).Microseconds()) / 1e3 }
		fmt.Printf("  %-62s %9d %9.1f %9.1f %9.1f\n", kind, len(c.Took[kind]), ms(0.5), ms(0.99), ms(1))
	}
	for _, one := range c.Missing {
		fmt.Println("  none saw", one)
	}
	w.used("nodes")
	w.heap()
}

// TestScaleTable prints what many nodes cost netmaster. It holds that nothing is lost on the way.
func TestScaleTable(t *testing.T) {
	if !*printTable {
		t.Skip("a table to print: run with -table")
	}
	s := simnodes.Sizes{Nodes: *tableNodes, Pods: *tablePods, Policies: *tablePolicies, Wide: *tableNodes}
	w := &table{world: start(t, s, 15*time.Minute), last: map[string]simnodes.Usage{}}
	live := s.Nodes - *tableDead - 1
	sim, err := w.StartNodes(w.ctx, "nodes", 0, live)
	w.must(err)
	if *tableOld != "" {
		w.Program = *tableOld
		w.storms(sim, "before")
		w.must(sim.Disconnect(w.ctx))
		w.must(w.Stop(simnodes.Netmaster))
		w.must(w.Forget())
		w.Program = ""
	}
	w.storms(sim, "netmaster")

	w.phase("nothing happens for a minute")
	time.Sleep(time.Minute)
	w.used("nodes")
	w.heap()

	w.phase(fmt.Sprintf("%d events a second", *tableRate))
	w.churn(*tableRate, *tableFor, false)

	w.phase("10 events a second in a namespace that has a pod on each node, and of which each policy selects all pods")
	w.churn(10, min(*tableFor, 30*time.Second), true)

	dead, err := w.StartNodes(w.ctx, "dead", live, *tableDead)
	w.must(err)
	w.must(dead.Connect(w.ctx))
	_, _, err = dead.Current(w.ctx)
	w.must(err)
	slow, err := w.StartNodes(w.ctx, "slow", live+*tableDead, 1, "--slow", "1", "--delay", "10s")
	w.must(err)
	w.must(slow.Connect(w.ctx))
	_, _, err = slow.Current(w.ctx)
	w.must(err)
	w.must(dead.Freeze())
	slow.Ignore()
	w.phase(fmt.Sprintf("%d events a second, while %d nodes have stopped and one takes 10 s for each update", *tableRate, *tableDead))
	w.churn(*tableRate, min(*tableFor, time.Minute), false)
	w.unchanged(sim)
}
