package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/conntrack"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
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
		text, err := tracker{a}.Dump(t.Context(), pipeline.ZonePolicy)
		if got := err == nil && text == "the list"; got != read {
			t.Errorf("%d connections: %q, %v", n, text, err)
		}
		if !read && (!errors.Is(err, conntrack.ErrTooMany) || !strings.Contains(err.Error(), fmt.Sprint(n))) {
			t.Errorf("%d connections: %v", n, err)
		}
	}
}

// remembers are connections, as ovs-vswitchd lists them.
type remembers struct {
	mu    sync.Mutex
	lines []string
}

// add has the pod's address be in each zone of the pipeline.
func (c *remembers) add(e endpoints.Endpoint) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, zone := range []uint16{pipeline.ZonePolicy, pipeline.ZoneService} {
		c.lines = append(c.lines, fmt.Sprintf("tcp,orig=(src=%[1]v,dst=10.9.0.9,sport=999,dport=80),reply=(src=10.9.0.9,dst=%[1]v,sport=80,dport=999),zone=%d,protoinfo=(state=TIME_WAIT)\n", e.Addresses[0], zone))
	}
}

func (c *remembers) forget(those ofctl.Connections) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lines = slices.DeleteFunc(c.lines, func(line string) bool {
		return strings.Contains(line, fmt.Sprintf("orig=(src=%v,", those.Addr)) && strings.Contains(line, fmt.Sprintf(",zone=%d,", those.Zone))
	})
}

// answer is what ovs-vswitchd says of them: of a zone where one is asked for, else of all.
func (c *remembers) answer(question string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if strings.Contains(question, "dpctl/ct-get-nconns") {
		return fmt.Sprintln(len(c.lines))
	}
	_, zone, filtered := strings.Cut(question, `"zone=`)
	zone, _, _ = strings.Cut(zone, `"`)
	var text strings.Builder
	for _, line := range c.lines {
		if !filtered || strings.Contains(line, ",zone="+zone+",") {
			text.WriteString(line)
		}
	}
	return text.String()
}

// The kernel's tracker holds the connections of the node's own stack and of whoever has a zone there; none of them is looked at.
func TestOnlyTheZonesOfPodsAreRead(t *testing.T) {
	a, s, _ := running(t)
	const foreign = "tcp,orig=(src=10.0.0.7,dst=10.0.0.9,sport=1,dport=2),reply=(src=10.0.0.9,dst=10.0.0.7,sport=2,dport=1)"
	s.tracks.lines = []string{foreign + ",protoinfo=(state=ESTABLISHED)\n", foreign + ",zone=7,protoinfo=(state=ESTABLISHED)\n"}
	s.tracks.add(wired("2", "c2", 8))
	for _, zone := range []uint16{pipeline.ZonePolicy, pipeline.ZoneService} {
		text, err := tracker{a}.Dump(t.Context(), zone)
		if err != nil || strings.Count(text, "\n") != 1 || !strings.Contains(text, fmt.Sprintf("src=10.0.0.8,dst=10.9.0.9,sport=999,dport=80),reply=(src=10.9.0.9,dst=10.0.0.8,sport=80,dport=999),zone=%d,", zone)) {
			t.Errorf("zone %d: %q, %v", zone, text, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	gone := wired("1", "c1", 7)
	if err := a.pods.Forget(ctx, gone); err != nil {
		t.Error(err)
	}
	if err := a.ended.Free(ctx, gone.Addresses); err != nil || len(s.forgot) != 0 {
		t.Errorf("%v; asked to forget %v", err, s.forgot)
	}
}

// Of the kernel's tracker Open vSwitch forgets other protocols than of its own.
func TestWhatIsForgottenIsOfTheDatapath(t *testing.T) {
	for datapath, want := range map[string]int{"netdev": 1, "system": 0} {
		a, err := newAgent(Config{StateDir: t.TempDir(), Node: "node1", Logger: slog.New(slog.DiscardHandler), DatapathType: datapath, OVSControl: filepath.Join(t.TempDir(), "ctl")})
		if err != nil {
			t.Fatal(err)
		}
		s := newPickySwitch()
		s.tracks.lines = []string{"47,orig=(src=10.0.0.7,dst=10.0.0.9),reply=(src=10.0.0.9,dst=10.0.0.7),zone=65521,timeout=9\n"}
		answering(t, a.cfg.OVSControl, s.tracks.answer)
		a.client = new(listener)
		if err := a.attach(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{}, 2)
		go func() { a.loop(ctx); done <- struct{}{} }()
		go func() { a.ended.Run(ctx); done <- struct{}{} }()
		a.ended.Gone(t.Context(), "shop/gone", wired("1", "c1", 7).Addresses)
		if len(s.forgot) != want {
			t.Errorf("%s: asked to forget %v", datapath, s.forgot)
		}
		cancel()
		<-done
		<-done
		a.close()
	}
}

// Nothing that the list lacks is believed before the switch has what it should: a pod that is not known could still send.
func TestTheListIsOfASettledSwitch(t *testing.T) {
	a, s, _ := running(t)
	if err := a.do(t.Context(), a.detach); err != nil {
		t.Fatal(err)
	}
	if err := (tracker{a}).Settled(t.Context()); err == nil {
		t.Error("settled without a switch")
	}
	if err := (tracker{a}).Forget(t.Context(), []ofctl.Connections{{}}); err == nil || errors.Is(err, conntrack.ErrCannot) {
		t.Errorf("forgotten without a switch: %v", err)
	}
	if err := a.do(t.Context(), func() { _ = a.attach(t.Context(), s) }); err != nil {
		t.Fatal(err)
	}
	if err := (tracker{a}).Settled(t.Context()); err != nil {
		t.Error(err)
	}
}

// The kernel's are counted where it says; where it tracks none there is no such place.
func TestTheKernelsConnectionsAreCounted(t *testing.T) {
	a, _, _ := testAgent(t)
	a.cfg.DatapathType = "system"
	if n, err := (tracker{a}).count(t.Context(), "no socket"); err != nil || n < 0 {
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
	s.tracks.add(restored)
	s.tracks.add(other)
	other.Name, restored.Realised = "cache", true
	if err := a.do(t.Context(), func() { a.pods.restorePods([]endpoints.Endpoint{restored, other}) }); err != nil {
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
