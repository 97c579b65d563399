package conntrack

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// told are the cuts, a line each.
func told(cuts []Cut) (lines []string) {
	for i := range cuts {
		lines = append(lines, fmt.Sprintf("%d %s", cuts[i].Count, cuts[i].Why()))
	}
	return lines
}

func expectCuts(t *testing.T, what string, cuts []Cut, want ...string) {
	t.Helper()
	if got := told(cuts); !slices.Equal(got, want) {
		t.Errorf("%s: told %q, want %q", what, got, want)
	}
}

// The rules follow a pod's end, and conntrack may remember its connections for longer: they are counted once all the same.
func TestAPodsEndIsCountedOnce(t *testing.T) {
	live := []Tuple{tuple(policy.TCP, "10.0.0.2", 1, "10.0.0.1", 80)}
	gone, left := Change{Endpoint: "shop/alice", Gone: []netip.Addr{alice}}, Change{Update: leaves(alice)}
	j := NewJudge()
	expectCuts(t, "together", j.Cuts([]Change{{Update: allowing(alice), Begin: true}, gone, left}, live), "1 pod shop/alice is gone")
	j = NewJudge()
	expectCuts(t, "first", j.Cuts([]Change{{Update: allowing(alice), Begin: true}, gone}, live), "1 pod shop/alice is gone")
	expectCuts(t, "then", j.Cuts([]Change{left}, live))
	expectCuts(t, "its address is another's", j.Cuts([]Change{{Update: allowing(alice)}}, nil))
	expectCuts(t, "which loses nothing", j.Cuts([]Change{left}, live))
	expectCuts(t, "its address is another's again", j.Cuts([]Change{{Update: allowing(alice)}, gone}, []Tuple{}))
	expectCuts(t, "which has connections of its own", j.Cuts([]Change{left}, live), "1 lived on shop/db ingress[0]; denied by shop/db ingress")
}

// What a permission's end had ended already did not end with the pod.
func TestAPodThatDiesAfterItsPermissionIsTheRulesCut(t *testing.T) {
	live := []Tuple{tuple(policy.TCP, "10.0.0.2", 1, "10.0.0.1", 80), tuple(policy.TCP, "10.0.0.2", 2, "10.0.0.9", 80)}
	cuts := NewJudge().Cuts([]Change{{Update: allowing(alice), Begin: true}, {Update: leaves(alice)}, {Endpoint: "shop/alice", Gone: []netip.Addr{alice}}}, live)
	expectCuts(t, "both", cuts, "1 pod shop/alice is gone", "1 lived on shop/db ingress[0]; denied by shop/db ingress")
}

// Two pods that lose the same rule are not said to be denied by each other's policies.
func TestEachIsDeniedByItsOwnPolicies(t *testing.T) {
	second := netip.MustParseAddr("10.0.0.7")
	u := allowing(alice)
	u.Groups[0].Added = append(u.Groups[0].Added, second)
	u.Groups = append(u.Groups, policy.GroupUpdate{Key: policy.Key{3}, Kind: policy.AppliedToGroup, Added: []netip.Addr{second}})
	u.Rules = append(u.Rules, policy.RuleChange{Key: policy.Key{13}, Rule: &policy.Rule{Key: policy.Key{13}, Direction: policy.Ingress, AppliedTo: policy.Key{3}, Origins: []policy.Origin{{Policy: "shop/more", Rule: -1}}}})
	live := []Tuple{tuple(policy.TCP, "10.0.0.2", 1, "10.0.0.7", 80), tuple(policy.TCP, "10.0.0.2", 2, "10.0.0.1", 80)}
	expectCuts(t, "both", NewJudge().Cuts([]Change{{Update: u, Begin: true}, {Update: leaves(alice)}}, live),
		"1 lived on shop/db ingress[0]; denied by shop/db ingress", "1 lived on shop/db ingress[0]; denied by shop/db ingress, shop/more ingress")
}

// Dry runs end nothing, keep nothing, and are no reason to look.
func TestDryRunsCutNothing(t *testing.T) {
	u := allowing(alice)
	for i := range u.Rules {
		u.Rules[i].Rule.DryRun = true
	}
	j := NewJudge()
	j.Apply(u)
	if v := j.Verdict(tuple(policy.TCP, "10.0.0.3", 1, "10.0.0.1", 80)); !v.Allowed || v.Direction != 0 {
		t.Errorf("%+v", v)
	}
	if Narrows(&policy.NodeUpdate{Rules: u.Rules}) {
		t.Error("they narrow")
	}
	live := []Tuple{tuple(policy.TCP, "10.0.0.3", 1, "10.0.0.1", 80)}
	expectCuts(t, "once it is enforced", NewJudge().Cuts([]Change{{Update: u, Begin: true}, {Update: allowing(alice)}}, live), "1 lived while nothing isolated the pod; denied by shop/db ingress")
}

// Many pods that end at once leave the looks for what changes the rules.
func TestLooksAreForWhatHasChanged(t *testing.T) {
	changes := []Change{{Update: allowing(), Begin: true}}
	for n := range 2 * maxLooks {
		changes = append(changes, Change{Endpoint: "shop/other", Gone: []netip.Addr{netip.AddrFrom4([4]byte{10, 9, 9, byte(n)})}})
	}
	changes = append(changes, Change{Update: allowing(alice)}, Change{Update: leaves(alice)})
	expectCuts(t, "after them", NewJudge().Cuts(changes, []Tuple{tuple(policy.TCP, "10.0.0.2", 1, "10.0.0.1", 80)}), "1 lived on shop/db ingress[0]; denied by shop/db ingress")
}

// A dry run has no part: neither what it isolates nor what it allows, and no update of it is looked at.
func TestADryRunCutsNothing(t *testing.T) {
	live := []Tuple{tuple(policy.TCP, "10.0.0.2", 1, "10.0.0.1", 80)}
	deny := policy.Rule{Key: policy.Key{13}, Direction: policy.Ingress, AppliedTo: policy.Key{3}, DryRun: true, Origins: []policy.Origin{{Policy: "shop/more", Rule: -1}}}
	everybody := &policy.NodeUpdate{Groups: []policy.GroupUpdate{{Key: policy.Key{3}, Kind: policy.AppliedToGroup, Added: []netip.Addr{alice, netip.MustParseAddr("10.0.0.1")}}}}
	update := func(r policy.Rule) Change {
		return Change{Update: &policy.NodeUpdate{Rules: []policy.RuleChange{{Key: r.Key, Rule: &r}}}}
	}
	if dry := update(deny); dry.mayCut() {
		t.Error("it is looked at")
	}
	j := NewJudge()
	expectCuts(t, "begins", j.Cuts([]Change{{Update: everybody, Begin: true}, update(deny)}, live))
	if v := j.Verdict(live[0]); !v.Allowed {
		t.Errorf("judged %+v", v)
	}
	allow := deny
	allow.Key, allow.AnyPeer, allow.AnyPort = policy.Key{14}, true, true
	deny.DryRun = false
	expectCuts(t, "in force", j.Cuts([]Change{update(allow), update(deny)}, live), "1 lived while nothing isolated the pod; denied by shop/more ingress")
}

// A group that comes to have the members of another one is looked at, unless the update only adds members: then no group
// in it loses one.
func TestGroupsThatBecomeAlike(t *testing.T) {
	other, key := policy.Key{99}, clients
	alike := func(u policy.GroupUpdate) Change {
		u.Kind = policy.PeerGroup
		return Change{Update: &policy.NodeUpdate{Groups: []policy.GroupUpdate{u}}}
	}
	bob := netip.MustParseAddr("10.0.0.4")
	live := []Tuple{tuple(policy.TCP, "10.0.0.2", 1, "10.0.0.1", 80)}
	grows := alike(policy.GroupUpdate{Key: other, Added: []netip.Addr{alice, bob}, Alike: []policy.Key{key}})
	if grows.mayCut() {
		t.Error("an update that only adds members is looked at")
	}
	j := NewJudge()
	expectCuts(t, "it grows", j.Cuts([]Change{{Update: allowing(alice), Begin: true}, grows}, live))
	if v := j.Verdict(tuple(policy.TCP, "10.0.0.4", 1, "10.0.0.1", 80)); !v.Allowed {
		t.Errorf("a member of the other group: %+v", v)
	}
	lone := alike(policy.GroupUpdate{Key: policy.Key{98}, Added: []netip.Addr{bob}})
	loses := alike(policy.GroupUpdate{Key: policy.Key{98}, Alike: []policy.Key{key}})
	expectCuts(t, "it loses a member", j.Cuts([]Change{lone, loses}, live),
		"1 lived on shop/db ingress[0]; denied by shop/db ingress")
}
