package fleet_test

import (
	"flag"
	"fmt"
	"os"
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
)

// tableEdits is how many edits are measured of either kind.
const tableEdits = 24

// TestFleetTable prints what many gateways, policies and clusters cost policy-sync: time, writes, memory, and how large works are. It holds
// what TestFleetManyWorks holds.
func TestFleetTable(t *testing.T) {
	if !*printTable {
		t.Skip("a table to print: run with -table")
	}
	m := newMany(t, sizes{*tableGateways, *tablePolicies, *tableClusters, max(1, *tableGateways/10)}, 40*time.Minute)
	fmt.Printf("\n%d gateways with %d policies each of %d bytes, %d policies with %d gateways, %d clusters with simulated agents; real API server and etcd\n",
		m.gateways, m.policies, policyBytes, m.shared, sharing, m.clusters)
	begin := time.Now()
	m.must(m.StartPolicySync(m.ctx, fleet.PolicySync))
	all := m.answered(m.works())
	fmt.Printf("all is sent and answered after:          %v (netmaster's CPU %v)\n", time.Since(begin).Round(time.Millisecond), m.cpu(fleet.PolicySync))
	m.told()
	fmt.Printf("all policies tell that after:            %v (netmaster's CPU %v)\n", time.Since(begin).Round(time.Millisecond), m.cpu(fleet.PolicySync))
	m.quiet()
	most := int64(0)
	for _, s := range all {
		most = max(most, s.generation)
	}
	fmt.Printf("works: %d, written %d times at most: asked, then sent\n", len(all), most)
	m.tell("since the start")
	m.weigh(m.agents.all())

	begin = time.Now()
	m.restart()
	fmt.Printf("a restart until all is known and looked at, and nothing written: %v less %v of watching\n", time.Since(begin).Round(time.Millisecond), still)
	m.tell("since the restart")

	var first, last []time.Duration
	for n := range tableEdits {
		took := m.editsOnce(policyName(n*7%m.gateways, n%m.policies), n+1)
		first, last = append(first, took[0]), append(last, took[len(took)-1])
	}
	m.quiet()
	fmt.Printf("an edit is in the first of its %d works after: %s; in the last: %s\n", m.clusters, quantiles(first), quantiles(last))
	first, last = nil, nil
	for n := range tableEdits {
		took := m.editsOnce(sharedName(n%m.shared), n+1)
		first, last = append(first, took[0]), append(last, took[len(took)-1])
	}
	m.told()
	m.quiet()
	fmt.Printf("and with %d gateways, in the first after:     %s; in the last: %s\n", sharing, quantiles(first), quantiles(last))
	m.tell(fmt.Sprintf("since the restart, %d edits", 2*tableEdits))

	before := sum(m.metrics(), "writes_total")
	m.holdsStill("when idle", func() { time.Sleep(20 * time.Second) })
	fmt.Printf("idle for 20 s: %v writes\n", sum(m.metrics(), "writes_total")-before)
	m.splits()
}

// quantiles are those of durations.
func quantiles(took []time.Duration) string {
	slices.Sort(took)
	round := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	return fmt.Sprintf("p50 %v, p99 %v", round(took[len(took)/2]), round(took[len(took)*99/100]))
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

// splits gives a gateway more policies than there is room for in a work.
func (m *many) splits() {
	m.Helper()
	const policies, bytes = 300, 4000
	before := m.agents.all()
	begin := time.Now()
	m.each(policies, func(n int) error { return m.policy(policyName(0, m.policies+n), bytes, gatewayName(0)) })
	m.until(func() error {
		carried := 0
		for name, s := range m.agents.all() {
			if strings.HasPrefix(name, m.clusterNames()[0]+"/") && s.bundle == "Gateway.gateway.networking.k8s.io/"+manyNamespace+"/"+gatewayName(0) && s.answered == s.generation && !s.asks {
				carried += len(s.holds)
			}
		}
		if carried < policies+m.policies+1 {
			return fmt.Errorf("%d copies are carried", carried)
		}
		return nil
	})
	m.quiet()
	all := m.agents.all()
	parts := 0
	for name := range all {
		if _, was := before[name]; !was {
			parts++
		}
	}
	m.answered(m.works() + parts)
	fmt.Printf("%d policies more of %d bytes for one gateway: %d works more in each cluster, sent and answered after %v\n", policies, bytes, parts/m.clusters, time.Since(begin).Round(time.Millisecond))
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
