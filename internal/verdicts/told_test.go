package verdicts

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/ofctl/trace"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// TestTellingMakesNoMoreMegaflows: what is denied meets the same entry of Open vSwitch's cache whether it is told of or not, and ends there.
func TestTellingMakesNoMoreMegaflows(t *testing.T) {
	sw := ovstest.Start(t, firstPod+pods)
	s := connect(t, sw)
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
		told := megaflows(t, sw, s, b, probes)
		cfg := config
		cfg.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/64")}
		cfg.Meters = 0
		b.compiler.SetConfig(cfg)
		for i, silent := range megaflows(t, sw, s, b, probes) {
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

// megaflows are those of each probe, and whether it was dropped.
func megaflows(t *testing.T, sw *ovstest.Switch, s *ofctl.Session, b *bridge, probes []string) (list []string) {
	t.Helper()
	must(t, s.Commit(t.Context(), append([]ofctl.FlowMod{{Command: ofctl.DeleteAll}}, mods(ofctl.Add, b.compiler.Flows())...)))
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
