package agent

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// However many connections pods open, ovs-vswitchd is not kept busy with listing them.
func TestTooManyConnectionsAreNotRead(t *testing.T) {
	for n, read := range map[int]bool{0: true, mostConnections: true, mostConnections + 1: false, 3_000_000: false} {
		a, _, _ := testAgent(t)
		a.cfg.DatapathType, a.cfg.OVSControl = "netdev", filepath.Join(t.TempDir(), "ctl")
		answering(t, a.cfg.OVSControl, func(line string) string {
			if strings.Contains(line, "dpctl/ct-get-nconns") {
				return fmt.Sprintln(n)
			}
			return "the list"
		})
		text, err := conntrack{a}.Dump(t.Context())
		if got := err == nil && text == "the list"; got != read {
			t.Errorf("%d connections: %q, %v", n, text, err)
		}
		if !read && (err == nil || !strings.Contains(err.Error(), fmt.Sprint(n))) {
			t.Errorf("%d connections: %v", n, err)
		}
	}
}

// Who opened a connection is told, whatever its protocol, zone and state, but for ICMP, and not before the switch has what it should.
func TestOpenersOfConnections(t *testing.T) {
	a, s, _ := running(t)
	if err := a.do(t.Context(), a.detach); err != nil {
		t.Fatal(err)
	}
	a.cfg.DatapathType, a.cfg.OVSControl = "netdev", filepath.Join(t.TempDir(), "ctl")
	var count atomic.Int64
	answering(t, a.cfg.OVSControl, func(line string) string {
		switch {
		case strings.Contains(line, "dpctl/ct-get-nconns"):
			return fmt.Sprintln(count.Load())
		case strings.Contains(line, "zone="):
			return "only those of a zone"
		}
		return "tcp,orig=(src=10.0.0.2,dst=10.96.0.1,sport=999,dport=80),reply=(src=10.0.0.3,dst=10.0.0.2,sport=80,dport=999),zone=65522,protoinfo=(state=TIME_WAIT)\n" +
			"47,orig=(src=fd00::2,dst=fd00::3),reply=(src=fd00::3,dst=fd00::2),zone=65521\n" +
			"icmp,orig=(src=10.0.0.4,dst=10.0.0.2,id=1,type=8,code=0),reply=(src=10.0.0.2,dst=10.0.0.4,id=1,type=0,code=0),zone=65521\n"
	})
	if found, err := (conntrack{a}).Openers(t.Context()); err == nil {
		t.Errorf("without a switch: %v", found)
	}
	if err := a.do(t.Context(), func() { _ = a.attach(t.Context(), s) }); err != nil {
		t.Fatal(err)
	}
	found, err := conntrack{a}.Openers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for address := range found {
		got = append(got, address.String())
	}
	slices.Sort(got)
	if want := []string{"10.0.0.2", "fd00::2"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	count.Store(mostConnections + 1)
	if found, err := (conntrack{a}).Openers(t.Context()); err == nil {
		t.Errorf("of too many: %v", found)
	}
}

// The kernel's are counted where it says; where it tracks none there is no such place.
func TestTheKernelsConnectionsAreCounted(t *testing.T) {
	a, _, _ := testAgent(t)
	a.cfg.DatapathType = "system"
	if n, err := (conntrack{a}).count(t.Context(), "no socket"); err != nil || n < 0 {
		t.Errorf("%d, %v", n, err)
	}
}

// What was in force before a restart is what a connection lived on; what had been cut before it is not counted again, however
// netmaster tells the rules.
func TestARestartCountsNothingTwice(t *testing.T) {
	a, _, l := testAgent(t)
	socket := filepath.Join(t.TempDir(), "ctl")
	answering(t, socket, func(line string) string {
		if !strings.Contains(line, "dump-conntrack") {
			return "2"
		}
		const form = "tcp,orig=(src=10.0.0.2,dst=10.0.0.1,sport=999,dport=%d),reply=(src=10.0.0.1,dst=10.0.0.2,sport=%[1]d,dport=999),zone=65521,protoinfo=(state=ESTABLISHED)\n"
		return fmt.Sprintf(form+form, 80, 81)
	})
	dir := a.cfg.StateDir
	whole := func(revision uint64) policy.NodeUpdate {
		u := rules(revision, allow(80))
		u.Rules = append(u.Rules, policy.RuleChange{Key: allow(81).Key})
		return u
	}
	a.update(t.Context(), rules(1, allow(80), allow(81)))
	for i, want := range []uint64{1, 0} {
		a.close()
		a = reopened(t, dir)
		a.client, a.cfg.DatapathType, a.cfg.OVSControl = l, "netdev", socket
		ctx, cancel := context.WithCancel(t.Context())
		done, owner := make(chan struct{}), make(chan struct{})
		go func() { defer close(done); a.ended.Run(ctx) }()
		a.update(t.Context(), whole(uint64(2+i)))
		go func() { defer close(owner); a.loop(ctx) }()
		a.ended.Gone(t.Context(), "shop/other", []netip.Addr{netip.MustParseAddr("10.9.9.9")}) // returns when all before it is counted
		if recent, sum, problem := a.ended.Recent(); sum != want || problem != nil {
			t.Errorf("restart %d: counted %d, want %d: %+v (%v)", i, sum, want, recent, problem)
		}
		cancel()
		<-done
		<-owner
	}
}

// A pod that goes on over a restart keeps its connections, though the runtime asks for it again; of an address that was not in force,
// whatever a pod of before has left is forgotten first.
func TestARestoredPodsConnectionsAreNotForgotten(t *testing.T) {
	a, s, d := running(t)
	restored, other := wired("1", "c1", 7), wired("2", "c2", 8)
	other.Name, restored.Realised = "cache", true
	if err := a.do(t.Context(), func() { a.restorePods([]endpoints.Endpoint{restored, other}) }); err != nil {
		t.Fatal(err)
	}
	if err := <-realize(t, a, restored); err != nil || len(s.forgot) != 0 {
		t.Errorf("the restored pod: %v; its connections were forgotten: %v", err, s.forgot)
	}
	realize(t, a, other)
	d.await(t, "announced 2")
	if want := []string{"10.0.0.8 in 65521", "10.0.0.8 in 65522"}; !slices.Equal(s.forgot, want) {
		t.Errorf("the switch was told to forget %v, want %v", s.forgot, want)
	}
}
