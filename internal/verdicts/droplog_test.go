package verdicts

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/ofctl/trace"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// TestTellingMakesNoMoreMegaflows: what is denied meets the same entry of Open vSwitch's cache whether it is told of or not, and ends there.
func TestTellingMakesNoMoreMegaflows(t *testing.T) {
	denied := 0
	for seed := range 3 {
		g := policytest.New(uint64(7000 + seed))
		w := g.World(pods, 5)
		onOneNode(w)
		b := newBridge(t, w)
		var probes []string
		for range 25 {
			p := g.Packet(pods)
			if probe, err := b.compiler.Probe(p); err == nil && b.traceable(p) {
				probes = append(probes, probe.Arriving, probe.Judged)
			}
		}
		told := megaflows(t, b, probes)
		cfg := config
		cfg.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/64")}
		cfg.Meters = 0
		b.compiler.SetConfig(cfg)
		for i, silent := range megaflows(t, b, probes) {
			if told[i] != silent {
				t.Errorf("%s:\n  told of    %s\n  not told of %s", probes[i], told[i], silent)
			}
			if strings.HasSuffix(silent, "true") {
				denied++
			}
		}
	}
	if denied < 10 {
		t.Errorf("only %d packets were denied: nothing is shown", denied)
	}
}

// megaflows are those of each probe, and whether it was dropped. In which order Open vSwitch looks at flows of one priority, and so what of a packet an
// entry takes in, depends on the order in which they came, and on what was there before: so it is a new one, and they come in order.
func megaflows(t *testing.T, b *bridge, probes []string) (list []string) {
	t.Helper()
	sw := ovstest.Start(t, firstPod+pods)
	s := connect(t, sw)
	flows := b.compiler.Flows()
	slices.SortFunc(flows, func(f, g ofctl.Flow) int {
		return cmp.Or(cmp.Compare(f.Table, g.Table), cmp.Compare(f.Priority, g.Priority), cmp.Compare(f.Match.String(), g.Match.String()))
	})
	must(t, s.Commit(t.Context(), mods(ofctl.Add, flows)))
	for _, probe := range probes {
		text := sw.AppCtl(t, "ofproto/trace", sw.Bridge, probe)
		read, err := trace.Parse(text)
		must(t, err)
		_, flow, _ := strings.Cut(text, "Megaflow: ")
		flow, _, _ = strings.Cut(flow, "\n")
		if read.Dropped() {
			flow += " dropped: true"
		}
		list = append(list, flow)
	}
	return list
}
