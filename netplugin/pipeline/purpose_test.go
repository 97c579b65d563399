package pipeline

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/fake"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// purposeByShape returns the purpose of a flow of NetworkPolicies and Services by its table and priority. It does not
// hold for flows of other kinds.
func purposeByShape(f *ofctl.Flow) Purpose {
	kind, _, ok := ParseCookie(f.Cookie)
	rules := f.Table == TableEgressRules || f.Table == TableIngressRules
	switch {
	case judgesDryRuns(f.Table) && f.Priority > 0 || TellsOfDryRuns(f.Table):
		return DryRun
	case f.Table == TablePorts && f.Priority > prioUnnamed || rules && f.Priority > prioDrop:
		return Grant
	case rules:
		return Deny
	case ok && kind >= KindFrontend && kind <= KindLearned:
		return Serve
	}
	return Infrastructure
}

// TestPurposeOf_FlowsOfPolicies compares the purposes of all flows of NetworkPolicies, dry runs and Services.
func TestPurposeOf_FlowsOfPolicies(t *testing.T) {
	seen := map[Purpose]int{}
	check := func(c *Compiler) {
		for _, f := range c.Flows() {
			got, want := PurposeOf(&f), purposeByShape(&f)
			if seen[got]++; got != want {
				t.Errorf("purpose %d, want %d: %s", got, want, f)
			}
		}
	}
	for seed := range uint64(8) {
		check(busyNode(seed))
	}
	served := New(withServices(), nil)
	s, slices := aService("web", 3)
	served.PutService(s, slices)
	check(served)
	for p := Infrastructure; p <= Serve; p++ {
		if seen[p] == 0 {
			t.Errorf("no flow with purpose %d", p)
		}
	}
}

// TestPurposes_EveryKind requires a purpose of each kind that has a name, so that a new kind is not Infrastructure by
// omission: the switch would get no part of a bundle of which it refuses such a flow.
func TestPurposes_EveryKind(t *testing.T) {
	for kind := range kindNames {
		if _, found := purposes[kind]; !found && kind != KindWouldDeny { // which no cookie has
			t.Errorf("kind %s has no purpose", kind)
		}
	}
	for kind := range purposes {
		if kindNames[kind] == "" {
			t.Errorf("%s has a purpose and no name", kind)
		}
	}
}

// TestPurposeOf_IgnoresTheShape gives flows the tables, priorities and matches of those that permit. Only their kind
// makes them a Grant.
func TestPurposeOf_IgnoresTheShape(t *testing.T) {
	shapes := 0
	for _, f := range busyNode(1).Flows() {
		if PurposeOf(&f) != Grant {
			continue
		}
		shapes++
		for kind := range KindLearned + 50 {
			f.Cookie = cookie(kind, 7)
			grants := kind == KindClause || kind == KindAllow || kind == KindAllowAll
			if got := PurposeOf(&f); (got == Grant) != grants {
				t.Fatalf("kind %s: purpose %d of %s", kind, got, f)
			}
		}
		for _, f.Cookie = range []uint64{0, cookie(KindAllow, 7) + 1<<48, cookie(KindAllow, 7) &^ (0xff << 56)} {
			if got := PurposeOf(&f); got != Infrastructure {
				t.Fatalf("a foreign cookie: purpose %d of %s", got, f)
			}
		}
	}
	if shapes == 0 {
		t.Error("no flow permits anything")
	}
}

// randomNode has four pods and random rules. All pods are in groups that rules name.
func randomNode(seed uint64) *Compiler {
	cfg := testConfig
	cfg.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	cfg.GatewayAddrs = []netip.Addr{netip.MustParseAddr("10.244.0.1")}
	c, g := New(cfg, nil), policytest.New(seed)
	u := policy.NodeUpdate{}
	for i := range 4 {
		a := policytest.Address(i, false)
		c.PutEndpoint(LocalEndpoint{ID: a.String(), Port: uint32(20 + i), MAC: macFor(a), Addresses: []netip.Addr{a}})
		other := policytest.Address(g.IntN(4), false)
		u.Groups = append(u.Groups, members(key(i), policy.AppliedToGroup, a), members(key(i), policy.PeerGroup, other))
	}
	for range 12 {
		u.Rules = append(u.Rules, rule(randomRule(g)))
	}
	c.Apply(u)
	return c
}

// without returns a switch with all flows of a compiler but those that are left out.
func without(t *testing.T, c *Compiler, leftOut func(*ofctl.Flow) bool) *fake.Switch {
	t.Helper()
	s := fake.New()
	for _, m := range additions(c.Flows()) {
		if leftOut(&m.Flow) {
			continue
		}
		if err := s.Commit(t.Context(), []ofctl.FlowMod{m}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// passed returns which packets between the pods of randomNode leave a switch.
func passed(s *fake.Switch, c *Compiler) (out []bool) {
	for from := range 4 {
		for to := range 4 {
			for port := uint16(78); port < 90; port++ {
				src, dst := policytest.Address(from, false), policytest.Address(to, false)
				p := fake.IP(src, dst, uint8(policy.TCP), port)
				p.SrcPort, p.EthSrc, p.EthDst = uint16(40000+len(out)), macFor(src), c.config.Gateway.MAC
				out = append(out, len(s.Inject(uint32(20+from), p).Outputs) > 0)
			}
		}
	}
	return out
}

// TestGrants_OnlyPermit leaves out random flows that permit: no packet passes that did not pass before. Without the
// flows that give pods their classes, packets do.
func TestGrants_OnlyPermit(t *testing.T) {
	denied, opened := 0, 0
	for seed := range uint64(20) {
		c, r := randomNode(seed), rand.New(rand.NewPCG(seed, 1))
		all := passed(without(t, c, func(*ofctl.Flow) bool { return false }), c)
		fewer := passed(without(t, c, func(f *ofctl.Flow) bool { return PurposeOf(f) == Grant && r.IntN(5) == 0 }), c)
		unclassed := passed(without(t, c, func(f *ofctl.Flow) bool {
			kind, _, _ := ParseCookie(f.Cookie)
			return kind == KindApplied
		}), c)
		for i := range all {
			if fewer[i] && !all[i] {
				t.Fatalf("seed %d: packet %d passes without a flow that permits", seed, i)
			}
			if all[i] && !fewer[i] {
				denied++
			}
			if unclassed[i] && !all[i] {
				opened++
			}
		}
	}
	if denied == 0 || opened == 0 {
		t.Errorf("%d packets denied without flows that permit, %d passed without classes", denied, opened)
	}
}

// TestDryRuns_LeftOut leaves out random flows of dry runs: the same packets pass.
func TestDryRuns_LeftOut(t *testing.T) {
	leftOut := 0
	for seed := range uint64(10) {
		c, r := randomNode(seed), rand.New(rand.NewPCG(seed, 2))
		all := passed(without(t, c, func(*ofctl.Flow) bool { return false }), c)
		fewer := passed(without(t, c, func(f *ofctl.Flow) bool {
			out := PurposeOf(f) == DryRun && r.IntN(4) == 0
			if out {
				leftOut++
			}
			return out
		}), c)
		if !slices.Equal(all, fewer) {
			t.Fatalf("seed %d: other packets pass without flows of dry runs", seed)
		}
	}
	if leftOut == 0 {
		t.Error("no flow of a dry run")
	}
}
