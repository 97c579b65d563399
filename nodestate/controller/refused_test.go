package controller

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
)

// TestRefusedByTheAPIServer: what no object may hold is told of the policy that wants it, and all others' wishes get through.
func TestRefusedByTheAPIServer(t *testing.T) {
	f := newFakeAPI()
	f.invalid = "666"
	f.addNode("node1", twoNICs)
	for n := range 9 {
		f.setPolicy(fmt.Sprintf("p%d", n), fmt.Sprintf(`{desiredState: {interfaces: [{name: eth0, x%d: %d}]}}`, n, n))
	}
	f.setPolicy("p3", `{desiredState: {interfaces: [{name: eth0, x3: 666}]}}`)
	f.setPolicy("p7", `{desiredState: {interfaces: [{name: eth1, mtu: 666}]}}`)
	a := f.actor("node1")
	settle(t, f, a)
	for n := range 9 {
		want := nmstatev1.PhaseApplied
		if n == 3 || n == 7 {
			want = nmstatev1.PhaseFailing
		}
		if got := f.phase(fmt.Sprintf("p%d", n), "node1"); got != want || f.wants("node1", fmt.Sprintf(`"x%d":`, n)) != (want == nmstatev1.PhaseApplied) {
			t.Errorf("p%d: %s; the node: %s", n, got, f.states["node1"].Spec.DesiredState.Raw)
		}
	}
	if e := f.policies["p7"].Status.Nodes[0]; !strings.Contains(e.Message, "the API server refuses") || len(e.Message) > 2000 || !utf8.ValidString(e.Message) {
		t.Error(e.Message)
	}
	f.setPolicy("p7", mtuPolicy(1400, ""))
	settle(t, f, a)
	if got := f.phase("p7", "node1"); got != nmstatev1.PhaseApplied || !f.wants("node1", "1400") {
		t.Errorf("mended: %s", got)
	}
	f.invalid = "x3"
	f.setPolicy("p3", `{desiredState: {interfaces: [{name: eth0, x3: 3}]}}`)
	settle(t, f, a)
	if got := f.phase("p3", "node1"); got != nmstatev1.PhaseFailing {
		t.Error(got)
	}
}

// TestRefusedTogether: policies that are fine each, and too much together: all but the last are in force, and that one says with which.
func TestRefusedTogether(t *testing.T) {
	f := newFakeAPI()
	f.limit = 70
	f.addNode("node1", twoNICs)
	f.setPolicy("p0", `{desiredState: {interfaces: [{name: eth0, xxxxxxxxxx: 1}]}}`)
	f.setPolicy("p1", `{desiredState: {interfaces: [{name: eth0, yyyyyyyyyyyyyyyyyyyyyyyyyyyyy: 1}]}}`)
	a := f.actor("node1")
	settle(t, f, a)
	fine, refused := f.policies["p0"].Status.Nodes[0], f.policies["p1"].Status.Nodes[0]
	if fine.Phase != nmstatev1.PhaseApplied || refused.Phase != nmstatev1.PhaseFailing || !strings.Contains(refused.Message, "would be with what it has of p0: ") {
		t.Errorf("%+v, %+v", fine, refused)
	}
	delete(f.policies, "p0")
	settle(t, f, a)
	if got := f.phase("p1", "node1"); got != nmstatev1.PhaseApplied || f.writes["node1"] > 3 {
		t.Errorf("when the other has left, it is %s after %d writes", got, f.writes["node1"])
	}
}

// TestRefusedAndMadeAgain: a policy of the same name and generation is another one.
func TestRefusedAndMadeAgain(t *testing.T) {
	f := newFakeAPI()
	f.invalid = "666"
	f.addNode("node1", twoNICs)
	a := f.actor("node1")
	f.setPolicy("p", mtuPolicy(666, ""))
	settle(t, f, a)
	if got := f.phase("p", "node1"); got != nmstatev1.PhaseFailing {
		t.Fatal(got)
	}
	delete(f.policies, "p")
	f.setPolicy("p", mtuPolicy(1400, ""))
	f.policies["p"].UID = "another"
	settle(t, f, a)
	if got := f.phase("p", "node1"); got != nmstatev1.PhaseApplied {
		t.Error(got)
	}
}
