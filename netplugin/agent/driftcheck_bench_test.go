package agent

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/cputime"
	"github.com/flowkeep/flowkeep/netplugin/driftcheck"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// manyRules makes about 100,000 flows: peers of several groups, and blocks.
func manyRules() policy.NodeUpdate {
	u := policy.NodeUpdate{Revision: 1}
	for i := range 50 {
		r := &policy.Rule{Direction: policy.Ingress, AppliedTo: policy.Key{1, byte(i)}, Peers: []policy.Key{{2, byte(i)}}, Ports: []policy.PortRange{{Protocol: policy.TCP, First: uint16(80 + i), Last: uint16(80 + i)}},
			Origins: []policy.Origin{{Policy: "shop/web", Rule: i}}}
		r.Key = policy.RuleKey(r)
		u.Rules = append(u.Rules, policy.RuleChange{Key: r.Key, Rule: r})
		peers := policy.GroupUpdate{Key: policy.Key{2, byte(i)}, Kind: policy.PeerGroup, Replace: true}
		for j := range 2000 {
			peers.Added = append(peers.Added, netip.AddrFrom4([4]byte{10, byte(i), byte(j >> 8), byte(j)}))
		}
		applied := policy.GroupUpdate{Key: policy.Key{1, byte(i)}, Kind: policy.AppliedToGroup, Replace: true, Added: []netip.Addr{netip.AddrFrom4([4]byte{172, 16, 0, byte(i)})}}
		u.Groups = append(u.Groups, peers, applied)
	}
	return u
}

// BenchmarkDriftCheck is one drift check of 100,000 flows of a real switch. It reports what netplugin and Open vSwitch pay for a flow, and which
// share of a core that is with a drift check a minute.
func BenchmarkDriftCheck(b *testing.B) {
	sw := ovstest.Start(b, 1)
	a, _, _ := testAgent(b)
	a.detach()
	s, err := ofctl.Connect(b.Context(), sw.Management())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	a.drift.Dial = func(ctx context.Context) (driftcheck.Reader, error) { return ofctl.Connect(ctx, sw.Management()) }
	a.update(b.Context(), manyRules())
	if err := a.attach(b.Context(), s); err != nil {
		b.Fatal(err)
	}
	runLoop(b, a)
	b.ReportAllocs()
	flows, own, switches := 0, cpuOf(b, "self"), cpuOf(b, pidOf(b, sw))
	for b.Loop() {
		if err := a.drift.Compare(b.Context(), func(x *driftcheck.Comparison) {
			if flows = x.Flows; !x.Same() {
				b.Errorf("%d missing, %d changed, %d extra", x.Missing, x.Changed, x.Extra)
			}
		}); err != nil {
			b.Fatal(err)
		}
	}
	own, switches = cpuOf(b, "self")-own, cpuOf(b, pidOf(b, sw))-switches
	each := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / float64(b.N) / float64(flows) }
	b.ReportMetric(float64(flows), "flows")
	b.ReportMetric(each(own), "ns-netplugin/flow")
	b.ReportMetric(each(switches), "ns-ovs/flow")
	b.ReportMetric((each(own)+each(switches))*100_000/float64(time.Minute.Nanoseconds())*100, "%core@100k")
}

func pidOf(b *testing.B, sw *ovstest.Switch) string {
	text, err := os.ReadFile(sw.Dir + "/ovs-vswitchd.pid")
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// cpuOf is the CPU time that a process has had.
func cpuOf(b *testing.B, pid string) time.Duration {
	if pid == "self" {
		return cputime.Process()
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%s/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	const perSecond = 100 // USER_HZ
	var ticks int
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / perSecond
}
