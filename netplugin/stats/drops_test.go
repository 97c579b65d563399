package stats

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
)

var dropsBegan = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func address(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

// denied is a packet from one address to another's port 80, denied at its destination.
func denied(from, to int, sport uint16) DropEvent {
	return DropEvent{DropKey: DropKey{Reason: Ingress, From: address(from), To: address(to), Protocol: policy.TCP, Port: 80}, SrcPort: sport, Class: 1}
}

func named(_ context.Context, events []DropEvent) []DropNames {
	names := make([]DropNames, len(events))
	for i := range events {
		names[i].Pod = "shop/" + events[i].Local().String()
	}
	return names
}

func testDrops() *Drops {
	return NewDrops(DropConfig{Name: named, Registerer: prometheus.NewRegistry()})
}

func (c *Drops) at(after time.Duration, events ...DropEvent) {
	c.take(context.Background(), slices.Clone(events), dropsBegan.Add(after))
}

func allDrops() *DropQuery { return &DropQuery{Most: 1 << 20} }

func TestOneConnectionIsOneRecord(t *testing.T) {
	c := testDrops()
	c.at(0, denied(1, 2, 4000), denied(1, 2, 4000))
	first := c.Ask(allDrops())
	if len(first.Records) != 1 || first.Records[0].Packets != 2 || first.Records[0].Connections != 1 || first.Records[0].Pod != "shop/10.0.0.2" {
		t.Fatalf("%+v", first.Records)
	}
	follow := &DropQuery{Epoch: first.Epoch, Seq: first.Seq, Most: 9}
	for _, after := range []time.Duration{1, 3, 7, 15, 31, 63, 127} { // as Linux sends it again
		c.at(after*time.Second, denied(1, 2, 4000))
	}
	if again := c.Ask(follow); len(again.Records) != 0 {
		t.Errorf("the same connection is news: %+v", again.Records)
	}
	c.at(130*time.Second, denied(1, 2, 4001))
	again := c.Ask(follow)
	if len(again.Records) != 1 || again.Records[0].Packets != 10 || again.Records[0].Connections != 2 || !again.Records[0].First.Equal(dropsBegan) {
		t.Errorf("another connection: %+v", again.Records)
	}
	c.at(10*time.Minute, denied(1, 2, 4001))
	if later := c.Ask(allDrops()).Records; len(later) != 2 || later[1].Packets != 1 {
		t.Errorf("after a while: %+v", later)
	}
	other := denied(1, 2, 4001)
	other.Class = 2
	c.at(10*time.Minute, other)
	if later := c.Ask(allDrops()).Records; len(later) != 3 {
		t.Errorf("by other policies: %+v", later)
	}
	if old := c.Ask(&DropQuery{Epoch: first.Epoch + 1, Seq: 1 << 40, Most: 9}); len(old.Records) != 3 {
		t.Errorf("the cursor of another run hides %+v", old)
	}
}

// Whatever comes, what is kept is bounded, and one pod's do not put out another's.
func TestAFloodIsBounded(t *testing.T) {
	c := testDrops()
	c.at(0, denied(1, 2, 1))
	for i := range 5000 {
		c.at(time.Second, denied(1000+i, 3, 1))
		forged := denied(1000+i, 4, 1)
		forged.Reason, forged.InPort = Forged, 9
		c.at(time.Second, forged)
	}
	a := c.Ask(allDrops())
	if len(a.Records) != 1+2*mostOfAPod || a.Records[0].To != address(2) || a.Forgotten != 2*(5000-mostOfAPod) {
		t.Errorf("%d records, the first %+v, %d forgotten", len(a.Records), a.Records[0], a.Forgotten)
	}
	for pod := range 5000 {
		c.at(time.Second, denied(1, 10000+pod, 1))
	}
	c.mu.Lock()
	if c.log.size != mostRecords || len(c.log.open) != mostRecords || len(c.log.lists()) > mostRecords {
		t.Errorf("%d records, %d open, %d lists", c.log.size, len(c.log.open), len(c.log.lists()))
	}
	c.mu.Unlock()
	some := c.Ask(&DropQuery{Most: 10})
	if len(some.Records) != 10 || some.Left != mostRecords-10 || some.Records[9].To != address(14999) {
		t.Errorf("%d records, %d left", len(some.Records), some.Left)
	}
	if many := c.Ask(allDrops()); len(many.Records) != mostAtOnce {
		t.Errorf("%d records at once", len(many.Records))
	}
}

func TestDrops_QueryFilters(t *testing.T) {
	c := testDrops()
	for i := range 10 {
		c.at(time.Duration(i)*time.Second, denied(i, i+1, 1))
	}
	for name, x := range map[string]struct {
		q    DropQuery
		want int
	}{
		"of an address": {DropQuery{Addresses: []netip.Addr{address(5)}, Most: 99}, 2},
		"of nobody":     {DropQuery{Addresses: []netip.Addr{}, Most: 99}, 0},
		"of late":       {DropQuery{Since: dropsBegan.Add(7 * time.Second), Most: 99}, 3},
		"none":          {DropQuery{}, 0},
	} {
		if got := c.Ask(&x.q); len(got.Records) != x.want {
			t.Errorf("%s: %d records, want %d", name, len(got.Records), x.want)
		}
	}
}

// Asked for what a policy denied, a node leaves out what certainly others did: it knows the first few that isolate.
func TestWhatAPolicyDenied(t *testing.T) {
	c := NewDrops(DropConfig{Name: func(_ context.Context, events []DropEvent) []DropNames {
		names := make([]DropNames, len(events))
		for i := range events {
			for n := range events[i].Port {
				names[i].Policies = append(names[i].Policies, policy.Origin{Policy: fmt.Sprintf("shop/%d", n), Rule: -1})
			}
		}
		return names
	}})
	for i, policies := range []uint16{0, 1, 2, policy.BriefOrigins} {
		e := denied(i, 1000, 1)
		e.Port = policies
		c.at(0, e)
	}
	for id, want := range map[string]int{"": 4, "shop/0": 3, "shop/1": 2, "shop/99": 1} {
		if got := c.Ask(&DropQuery{Policy: id, Most: 99}); len(got.Records) != want {
			t.Errorf("%q: %d records, want %d", id, len(got.Records), want)
		}
	}
}

// A policy that chooses the same pods as another isolates the same class of endpoints: what goes on is that policy's from then on, too, and
// of one whose policies are gone since it is told who they were.
func TestWhatGoesOnIsOfThePoliciesOfNow(t *testing.T) {
	policies := []policy.Origin{{Policy: "shop/old", Rule: -1}}
	asked := 0
	c := NewDrops(DropConfig{Name: func(_ context.Context, events []DropEvent) []DropNames {
		asked += len(events)
		names := make([]DropNames, len(events))
		for i := range names {
			names[i].Policies = policies
		}
		return names
	}})
	of := func(id string) int { return len(c.Ask(&DropQuery{Policy: id, Most: 99}).Records) }
	c.at(0, denied(1, 2, 4000))
	policies = append([]policy.Origin{{Policy: "shop/new", Rule: -1}}, policies...)
	c.at(renaming-1, denied(1, 2, 4000))
	if asked != 1 || of("shop/new") != 0 {
		t.Errorf("at once: asked for %d names, %d are of the new one", asked, of("shop/new"))
	}
	c.at(renaming, denied(1, 2, 4000), denied(1, 2, 4000), denied(3, 2, 4000))
	if asked != 3 || of("shop/new") != 2 || of("shop/old") != 2 {
		t.Errorf("asked for %d names, %d are of the new one, %d of the old", asked, of("shop/new"), of("shop/old"))
	}
	policies = nil
	c.at(2*renaming, denied(1, 2, 4000))
	if asked != 4 || of("shop/new") != 2 {
		t.Errorf("when they are gone: asked for %d names, %d are of the new one", asked, of("shop/new"))
	}
}

// What the switch does not tell of is known by its meters; those of a switch that begins anew are no less.
func TestDrops_SuppressedAreCounted(t *testing.T) {
	c := testDrops()
	metered := func(packets ...uint64) uint64 {
		var counts []ofctl.MeterCount
		for i, n := range packets {
			counts = append(counts, ofctl.MeterCount{ID: uint32(i + 1), Packets: n})
		}
		c.Metered(counts)
		return c.Ask(allDrops()).Untold
	}
	if n := metered(500, 1000); n != 0 {
		t.Errorf("another run's %d count", n)
	}
	c.at(0, denied(1, 2, 1), denied(1, 2, 2))
	if n := metered(501, 1000); n != 0 {
		t.Errorf("%d suppressed before all were counted", n)
	}
	if n := metered(505, 1010); n != 13 {
		t.Errorf("%d suppressed, want 13", n)
	}
	if n := metered(3, 0); n != 16 {
		t.Errorf("%d suppressed after a restart of the switch, want 16", n)
	}
	if n := metered(); n != 16 {
		t.Errorf("%d suppressed, want 16", n)
	}
}

// Packets never make the one who brings them wait, whoever is busy.
func TestPacketsNeverWait(t *testing.T) {
	busy := make(chan struct{})
	c := NewDrops(DropConfig{Name: func(ctx context.Context, events []DropEvent) []DropNames { <-busy; return named(ctx, events) }})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	m := ofctl.Match{CtNwSrc: netip.PrefixFrom(address(1), 32), CtNwDst: netip.PrefixFrom(address(2), 32), CtProto: 6}
	for i := range 10 * waiting {
		m.CtTpDst = ofctl.U16{Value: uint16(i), Mask: 0xffff}
		c.Packet(&ofctl.PacketIn{Table: pipeline.TableIngressDenied, Match: m})
		c.Packet(&ofctl.PacketIn{Table: 3})
	}
	if len(c.events) > waiting {
		t.Error(fmt.Sprint(len(c.events), " wait"))
	}
	close(busy)
	cancel()
	<-done
}

// What a dry run would deny is in a log of its own; its living connections are no meter's.
func TestDrops_DryRunHasOwnReason(t *testing.T) {
	registry := prometheus.NewRegistry()
	denies, dryRuns := NewDrops(DropConfig{Name: named, Registerer: registry}), NewDrops(DropConfig{Name: named, Registerer: registry, DryRun: true})
	m := ofctl.Match{CtNwSrc: netip.PrefixFrom(address(1), 32), CtNwDst: netip.PrefixFrom(address(2), 32), CtProto: 6}
	for _, table := range []uint8{pipeline.TableIngressDenied, pipeline.TableIngressDryRunDenied, pipeline.TableEgressDryRunDenied} {
		for _, c := range []*Drops{denies, dryRuns} {
			c.Packet(&ofctl.PacketIn{Table: table, Match: m})
		}
	}
	if len(denies.events) != 1 || len(dryRuns.events) != 2 {
		t.Errorf("%d and %d were taken", len(denies.events), len(dryRuns.events))
	}
	dryRuns.Metered([]ofctl.MeterCount{{ID: 17}})
	living := denied(1, 2, 4000)
	living.DryRun, living.Living = true, true
	begun := living
	begun.Living, begun.SrcPort = false, 4001
	dryRuns.at(0, living, living, begun)
	dryRuns.Metered([]ofctl.MeterCount{{ID: 17, Packets: 3}})
	a := dryRuns.Ask(allDrops())
	if a.Told != 3 || a.Untold != 2 || len(a.Records) != 1 || a.Records[0].Connections != 2 || a.Records[0].Packets != 3 {
		t.Errorf("%+v", a)
	}
}

// Of records that begin a few a second are logged, and how many others there were.
func TestWhatADryRunWouldDenyIsLogged(t *testing.T) {
	var text strings.Builder
	c := NewDrops(DropConfig{Name: named, DryRun: true, Logger: slog.New(slog.NewTextHandler(&text, nil))})
	for i := range mostLines + 7 {
		c.at(0, denied(i, 1000, 1), denied(i, 1000, 1))
	}
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	if len(lines) != mostLines || !strings.Contains(lines[0], `msg="would have been denied by a dry run" from=10.0.0.0 to=10.0.3.232 protocol=TCP port=80 pod=shop/10.0.3.232`) {
		t.Fatalf("%d lines, the first %s", len(lines), lines[0])
	}
	text.Reset()
	<-c.news.due()
	c.news.sum()
	if !strings.Contains(text.String(), "pairs=7") || c.news.due() != nil {
		t.Errorf("%s", &text)
	}
	text.Reset()
	c.at(0, denied(1, 1001, 1))
	<-c.news.due()
	c.news.sum()
	if strings.Count(text.String(), "\n") != 1 {
		t.Errorf("%s", &text)
	}
}
