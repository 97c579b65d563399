package fleet_test

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/fleet"
)

// What a table is printed of.
var (
	printTable    = flag.Bool("table", false, "print the table of what many works cost policy-sync")
	tableGateways = flag.Int("gateways", 200, "gateways of the table")
	tablePolicies = flag.Int("policies", 20, "policies of each of the table's gateways")
	tableClusters = flag.Int("clusters", 50, "clusters of the table")
	tableEdits    = flag.Int("edits", 100, "edits of policies with one gateway that are measured")
	tablePause    = flag.Duration("pause", time.Second, "how long it is from where an edit has come to all its works until the next edit; answers come meanwhile")
	tableCloned   = flag.Bool("cloned", true, "only one cluster gets its works by policy-sync; the others' are made like them in etcd, which is quicker")
)

// sharedEdits is how many edits of policies with several gateways are measured.
const sharedEdits = 12

// TestFleetTable prints what many gateways, policies and clusters cost policy-sync: time, writes, memory, and how large works are. It holds
// what TestFleetManyWorks holds.
func TestFleetTable(t *testing.T) {
	if !*printTable {
		t.Skip("a table to print: run with -table")
	}
	debug.SetGCPercent(30) // the machine's memory is for the API server
	m := newMany(t, sizes{*tableGateways, *tablePolicies, *tableClusters, max(1, *tableGateways/10), *tableCloned}, 40*time.Minute)
	filled := m.clusters
	if m.cloned {
		filled = 1
	}
	fmt.Printf("\n%d gateways with %d policies each of %d bytes, %d policies with %d gateways, %d clusters with simulated agents; real API server and etcd\n",
		m.gateways, m.policies, policyBytes, m.shared, sharing, m.clusters)
	begin := time.Now()
	m.must(m.StartPolicySync(m.ctx, fleet.PolicySync))
	all := m.answered(filled)
	fmt.Printf("all is sent and answered in %d clusters after: %v (netmaster's CPU %v)\n", filled, time.Since(begin).Round(time.Millisecond), m.cpu(fleet.PolicySync))
	m.told()
	fmt.Printf("all policies tell that after:            %v (netmaster's CPU %v)\n", time.Since(begin).Round(time.Millisecond), m.cpu(fleet.PolicySync))
	m.quiet()
	most := int64(0)
	for _, s := range all {
		most = max(most, s.generation)
	}
	fmt.Printf("works: %d, written %d times at most: asked, then sent\n", len(all), most)
	m.tell("since the start")
	if m.cloned {
		m.must(m.Stop(fleet.PolicySync))
		m.clone()
		begin = time.Now()
		m.must(m.StartPolicySync(m.ctx, fleet.PolicySync))
		m.told()
		m.quiet()
		fmt.Printf("with the others' works made in etcd, all policies tell of all clusters after: %v less %v of watching\n", time.Since(begin).Round(time.Millisecond), still)
		m.tell("since that start")
		m.answered(m.clusters)
	}
	m.weigh(m.agents.all())

	begin = time.Now()
	m.restart()
	fmt.Printf("a restart until all is known and looked at, and nothing written: %v less %v of watching\n", time.Since(begin).Round(time.Millisecond), still)
	m.tell("since the restart")

	m.edits(fmt.Sprintf("an edit of one of %d policies", m.policies), *tableEdits, func(n int) string { return policyName(n*7%m.gateways, n%m.policies) })
	m.edits(fmt.Sprintf("an edit of a policy with %d gateways", sharing), sharedEdits, func(n int) string { return sharedName(n % m.shared) })
	m.told()
	m.tell(fmt.Sprintf("since the restart, %d edits", *tableEdits+sharedEdits))

	before := sum(m.metrics(), "writes_total")
	m.holdsStill("when idle", func() { time.Sleep(20 * time.Second) })
	fmt.Printf("idle for 20 s: %v writes\n", sum(m.metrics(), "writes_total")-before)
	m.splits()
}

// edits prints how long it takes from the API server's answer to an edit until works have it, as their agents see them, and what it costs
// until all is answered and told.
func (m *many) edits(what string, count int, policy func(n int) string) {
	m.Helper()
	m.quiet()
	text, netmaster, server := m.metrics(), m.cpu(fleet.PolicySync), m.cpu("apiserver-hub")
	var first, last []time.Duration
	for n := range count {
		time.Sleep(*tablePause)
		took := m.editsOnce(policy(n), n+1)
		first, last = append(first, took[0]), append(last, took[len(took)-1])
	}
	m.quiet()
	each := func(d time.Duration) time.Duration { return (d / time.Duration(count)).Round(10 * time.Millisecond) }
	more := func(name string, labels ...string) float64 {
		return (sum(m.metrics(), name, labels...) - sum(text, name, labels...)) / float64(count)
	}
	fmt.Printf("%s (of %d, %v after one another): in the first of its %d works after %s, in the last after %s; CPU of netmaster %v, of the API server %v; writes of works %v, in vain %v, of statuses %v\n",
		what, count, *tablePause, m.clusters, quantiles(first), quantiles(last), each(m.cpu(fleet.PolicySync)-netmaster), each(m.cpu("apiserver-hub")-server),
		more("work_writes_total", `outcome="written"`), more("work_writes_total")-more("work_writes_total", `outcome="written"`), more("status_writes_total"))
}

// quantiles are those of durations.
func quantiles(took []time.Duration) string {
	slices.Sort(took)
	round := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	return fmt.Sprintf("p50 %v, p90 %v, p99 %v", round(took[len(took)/2]), round(took[len(took)*90/100]), round(took[len(took)*99/100]))
}

// tell prints what it took until now.
func (m *many) tell(when string) {
	m.Helper()
	text := m.metrics()
	outcome := func(metric, outcome string) float64 { return sum(text, metric, `outcome="`+outcome+`"`) }
	fmt.Printf("%s: works %v written, %v in vain; statuses %v written, %v in vain; %v decisions in %.1f s; netmaster's CPU %v, memory %s; the API server's CPU %v, memory %s\n",
		when, outcome("work_writes_total", "written"), outcome("work_writes_total", "conflict")+outcome("work_writes_total", "failed"),
		outcome("status_writes_total", "written"), outcome("status_writes_total", "conflict")+outcome("status_writes_total", "failed"),
		sum(text, "decision_seconds_count"), sum(text, "decision_seconds_sum"),
		m.cpu(fleet.PolicySync), m.memory(fleet.PolicySync), m.cpu("apiserver-hub"), m.memory("apiserver-hub"))
}

// Limits of objects: Open Cluster Management's of a work's manifests, etcd's of a request.
const (
	mostManifests = 500 << 10
	mostObject    = 1.5 * (1 << 20)
)

// weigh prints how large works are, and holds that they are not too large.
func (m *many) weigh(all map[string]seen) {
	m.Helper()
	manifests, object, sum := 0, 0, 0
	for _, s := range all {
		manifests, object, sum = max(manifests, s.manifests), max(object, s.bytes), sum+s.bytes
	}
	fmt.Printf("the largest work: manifests %d bytes, all of it with its status %d; all works together %d MB\n", manifests, object, sum>>20)
	if manifests > mostManifests || object > mostObject {
		m.Error("it is too large")
	}
}

// splits gives a gateway many more policies.
func (m *many) splits() {
	m.Helper()
	const policies, bytes = 100, 4000
	before := m.agents.all()
	begin := time.Now()
	m.each(policies, func(n int) error { return m.policy(policyName(0, m.policies+n), bytes, gatewayName(0)) })
	m.added = policies
	m.answered(m.clusters)
	m.quiet()
	all := m.agents.all()
	fmt.Printf("%d policies more of %d bytes for one gateway: %d works more in each cluster, sent and answered after %v\n",
		policies, bytes, (len(all)-len(before))/m.clusters, time.Since(begin).Round(time.Millisecond))
	m.weigh(all)
	took := m.editsOnce(policyName(0, m.policies+policies/2), 1)
	fmt.Printf("an edit of one of them is in the last of its %d works after %v\n", m.clusters, took[len(took)-1].Round(time.Millisecond))
}

// cpu is what a process has used until now.
func (m *many) cpu(name string) time.Duration {
	m.Helper()
	pid, err := m.Pid(name)
	m.must(err)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	m.must(err)
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+2:]))
	var ticks int64
	for _, field := range fields[11:13] { // user's and system's
		n, err := strconv.ParseInt(field, 10, 64)
		m.must(err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// memory is the process' resident set, now and at its highest.
func (m *many) memory(name string) string {
	m.Helper()
	pid, err := m.Pid(name)
	m.must(err)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	m.must(err)
	kilobytes := func(field string) int {
		_, text, _ := strings.Cut(string(status), "\n"+field+":")
		var n int
		_, err := fmt.Sscan(text, &n)
		m.must(err)
		return n
	}
	return fmt.Sprintf("%d MB, at most %d MB", kilobytes("VmRSS")>>10, kilobytes("VmHWM")>>10)
}
