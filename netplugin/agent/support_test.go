package agent

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// A node tells what it has, and what it cannot tell.
func TestSupport(t *testing.T) {
	a, _, _ := running(t)
	ring := process.NewRing(1000)
	_, _ = ring.Write([]byte("a line\n"))
	a.cfg.Self = &process.Self{Log: ring, Gatherer: process.NewRegistry("netplugin"), Flags: map[string]string{"bridge": "fk0"}}
	a.cfg.OVSControl = t.TempDir() + "/none"
	rule := policy.Rule{Key: policy.Key{0xab}, Direction: policy.Ingress, AppliedTo: policy.Key{2}}
	err := a.do(t.Context(), func() {
		a.rules.apply(policy.NodeUpdate{Revision: 3, Rules: []policy.RuleChange{{Key: rule.Key, Rule: &rule}},
			Groups: []policy.GroupUpdate{{Key: policy.Key{1}, Kind: policy.PeerGroup, Added: []netip.Addr{netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("10.0.0.8")}},
				{Key: policy.Key{2}, Kind: policy.AppliedToGroup, Added: []netip.Addr{netip.MustParseAddr("10.0.0.7")}}}})
	})
	if err != nil {
		t.Fatal(err)
	}
	body, err := a.inspector.Query(t.Context(), []byte(`{"kind":"support"}`))
	if err != nil {
		t.Fatal(err)
	}
	var s inspect.Support
	if err := json.Unmarshal(body, &s); err != nil {
		t.Fatal(err)
	}
	if s.Program != "netplugin" || s.Log != "a line\n" || s.Flags["bridge"] != "fk0" || !strings.Contains(s.Metrics, "flowkeep_build_info") || len(s.Rules) != 1 || s.Rules[0].Key != rule.Key {
		t.Errorf("%+v", s)
	}
	if len(s.Groups) != 2 || s.Groups[0].Kind != "applied-to" || s.Groups[1].Kind != "peers" || strings.Join(s.Groups[1].Members, ",") != "10.0.0.8,10.0.0.9" {
		t.Errorf("%+v", s.Groups)
	}
	if len(s.Switch) != len(switchWords) || len(s.Problems) != len(switchWords) || !strings.Contains(s.Problems[0], "ovs-vswitchd version") {
		t.Errorf("the switch is away: %+v, %q", s.Switch, s.Problems)
	}
}
