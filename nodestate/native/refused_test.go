package native

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/nodestate"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"sigs.k8s.io/yaml"
)

// refusing is a node with a bit of everything.
func refusing(t *testing.T) (*fake, *Backend) {
	f := newFake()
	b := onFake(f)
	f.Links["lo"].Addresses = []netip.Prefix{prefixOf("127.0.0.1/8"), prefixOf("::1/128")}
	f.Links["fk0 ovs-bridge"] = &link{Name: "fk0", Type: typeOVSBridge, Up: true, OVSBridge: &ovsBridgeSpec{}, Protected: b.own.why("fk0")}
	f.Links["fkp1"] = &link{Name: "fkp1", Type: typeVeth, Up: true, MTU: 1500, Protected: b.own.why("fkp1")}
	f.Links["ms0"] = &link{Name: "ms0", Type: typeUnknown, MTU: 1500}
	f.Links["cali1"] = &link{Name: "cali1", Type: typeVeth, Up: true, Protected: "cali1 leads into another network namespace"}
	f.Routes = append(f.Routes, route{Dst: prefixOf("10.244.9.0/24"), Table: mainTable, Link: "eth0", Protocol: 0x66, OnLink: true})
	if _, err := b.Apply(t.Context(), state(t, `
interfaces:
- {name: eth1, ipv4: {enabled: true, address: [{ip: 192.0.2.1, prefix-length: 24}]}}
- {name: d0, type: dummy, state: up}
- {name: b0, type: bond, state: up, link-aggregation: {mode: active-backup, port: [d0]}}
- {name: br1, type: linux-bridge, state: up}
- {name: eth1.5, type: vlan, state: up, vlan: {base-iface: eth1, id: 5}}
- {name: v0, type: veth, state: up, veth: {peer: v1}}
`), volatile); err != nil {
		t.Fatal(err)
	}
	return f, b
}

// refusals are desired states that the backend refuses. netctl's tests read them too.
func refusals(t *testing.T) (cases []refusedCase) {
	t.Helper()
	text, err := os.ReadFile("testdata/refused.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, &cases); err != nil || len(cases) < 80 {
		t.Fatalf("%d cases: %v", len(cases), err)
	}
	return cases
}

// refusedCase has the error of the agent, and that of a plan by the node's report where it is another.
type refusedCase struct{ Desired, Says, Plan string }

func (c *refusedCase) state(t *testing.T) nmstate.State {
	t.Helper()
	return state(t, strings.ReplaceAll(c.Desired, "SERVICES", strconv.Itoa(wellknown.ServiceTable)))
}

// What cannot be had is refused before anything is changed, with a sentence that names the place and the reason.
func TestRefused(t *testing.T) {
	for _, c := range refusals(t) {
		t.Run(c.Says, func(t *testing.T) {
			f, b := refusing(t)
			before, at := f.clone(), f.steps
			order := nodestate.Order{Volatile: true, Journal: func(nodestate.Change) error {
				t.Error("the journal was written")
				return nil
			}}
			_, err := b.Apply(t.Context(), c.state(t), order)
			if !errors.Is(err, nodestate.ErrRefused) || !strings.Contains(err.Error(), c.Says) {
				t.Errorf("%s: %v", c.Desired, err)
			}
			if f.steps != at || len(before.Links) != len(f.Links) {
				t.Errorf("%s: %d steps were done", c.Desired, f.steps-at)
			}
		})
	}
}

func indented(t *testing.T, s nmstate.State) string {
	t.Helper()
	text, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + "\n"
}

// TestPlan_RefusesWhatTheBackendRefuses: by the report alone, with the same error unless the report leaves out its cause.
func TestPlan_RefusesWhatTheBackendRefuses(t *testing.T) {
	_, b := refusing(t)
	report, err := b.Show(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	golden, err := os.ReadFile("testdata/refusing.json")
	if err != nil {
		t.Fatal(err)
	}
	if text := indented(t, report); text != string(golden) { // netctl's tests plan from it
		t.Errorf("testdata/refusing.json is not the report, which is\n%s", text)
	}
	node := Node{
		Report:       report,
		Capabilities: capabilities(true, true),
		Volatile:     true,
	}
	for _, c := range refusals(t) {
		if c.Plan == "none" {
			continue
		}
		_, err := Plan(node, c.state(t), b.own)
		if err == nil || errors.Is(err, ErrReport) || !strings.Contains(err.Error(), cmp.Or(c.Plan, c.Says)) {
			t.Errorf("%s: %v", c.Desired, err)
		}
	}
}

// What is not named stays, and what is named as it is needs no step.
func TestPartialDesires(t *testing.T) {
	for _, c := range []struct{ desired, steps string }{
		{"{}", ""},
		{"interfaces: [{name: eth1, state: ignore, mtu: 1}]", ""},
		{"interfaces: [{name: nosuch, state: absent}]", ""},
		{"interfaces: [{name: eth1, type: ethernet, state: up, mtu: 1500, mac-address: '02:00:00:00:01:01'}]", ""},
		{"interfaces: [{name: eth1, mtu: null, ipv4: null}]", ""},
		{"interfaces: [{name: v0, type: ethernet, state: up}]", ""},
		{"interfaces: [{name: b0, link-aggregation: {options: {miimon: '100'}}}]", ""},
		{"interfaces: [{name: eth1, mtu: 1400}]", "set mtu of eth1.5 to 1400 (was 1500); set mtu of eth1 to 1400 (was 1500)"},
		{"interfaces: [{name: eth1, ipv4: {address: [{ip: 192.0.2.1, prefix-length: 24}, {ip: 192.0.2.7, prefix-length: 24}]}}]", "add address 192.0.2.7/24 to eth1"},
		{"interfaces: [{name: eth1, state: down}]", "set eth1.5 down; set eth1 down"},
		{"interfaces: [{name: eth2, state: up, controller: br1}]", "attach eth2 to br1; disable ipv6 on eth2; set eth2 up"},
		{"interfaces: [{name: d0, controller: ''}]", "detach d0 from b0; enable ipv6 on d0; set d0 up"},
		{"routes: {config: [{destination: 10.0.0.5/8, next-hop-interface: eth1, next-hop-address: 192.0.2.254, metric: 5}]}", "add route 10.0.0.0/8 via 192.0.2.254 on eth1 metric 5"},
		{"routes: {config: [{state: absent, next-hop-interface: eth0}]}", ""}, // Flowkeep's is not taken away
		{"rules: {config: [{ip-from: 10.0.0.0/8, route-table: 7}]}", "add rule 30000: from 10.0.0.0/8 to all table 7"},
		{"dns-resolver: {config: {server: ['192.0.2.54', '2001:DB8::53']}}", "set DNS servers to 192.0.2.54 2001:db8::53, search to example.org (was 192.0.2.53, example.org)"},
	} {
		_, b := refusing(t)
		desired := state(t, c.desired)
		steps, err := b.Plan(context.Background(), desired)
		if err != nil {
			t.Errorf("%s: %v", c.desired, err)
			continue
		}
		if got := strings.ReplaceAll(texts(steps), ", ", "; "); strings.ReplaceAll(c.steps, ", ", "; ") != got {
			t.Errorf("%s:\n got  %s\n want %s", c.desired, got, c.steps)
		}
		if change, err := b.Apply(t.Context(), desired, volatile); err != nil || len(change.Steps) != len(steps) {
			t.Errorf("%s: %v, %v", c.desired, change.Steps, err)
		}
		have, _ := b.Show(t.Context())
		if diff := nmstate.Diff(desired, have); len(diff) > 0 && !strings.Contains(c.desired, "ignore") {
			t.Errorf("%s: %v", c.desired, diff)
		}
	}
}

// The pure plan over two documents is the backend's.
func TestPlanOfDocuments(t *testing.T) {
	_, b := refusing(t)
	current, err := b.Show(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if steps, err := Plan(Node{Report: current, Volatile: true}, desirable(current), b.own); err != nil || len(steps) > 0 {
		t.Errorf("from a state to itself: %s, %v", texts(steps), err)
	}
	steps, err := Plan(Node{Report: current, Volatile: true}, state(t, "interfaces: [{name: br1, state: absent}, {name: eth1, mtu: 1400}]"), b.own)
	if err != nil || texts(steps) != "remove linux-bridge br1, set mtu of eth1.5 to 1400 (was 1500), set mtu of eth1 to 1400 (was 1500)" {
		t.Errorf("%s, %v", texts(steps), err)
	}
}

// desirable returns a report without its status-only fields, so that it can be used as a desired state.
func desirable(s nmstate.State) nmstate.State {
	out := nmstate.Canonical(s)
	delete(out, "dns-resolver")
	delete(out, "routes")
	return out
}

func prefixOf(text string) netip.Prefix { return netip.MustParsePrefix(text) }
