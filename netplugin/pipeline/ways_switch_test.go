package pipeline

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
)

// The same on a real Open vSwitch, as it traces packets: table 0 lets a packet of a peer on by the way of the peer alone.
func TestWays_OnOpenVSwitch(t *testing.T) {
	sw := ovstest.Start(t, 2)
	tunnel := "fk-tun"
	sw.VSCtl(t, "add-port", sw.Bridge, tunnel, "--", "set", "interface", tunnel, "type=geneve",
		"options:remote_ip=flow", "options:local_ip=flow", "options:key=241", fmt.Sprint("ofport_request=", testTunnel))
	s, err := ofctl.Connect(t.Context(), sw.Management())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	meters := slices.Concat(Meters(testConfig.Meters, MaxOpeningRate), AnswerMeters())
	if err := s.EnsureMeters(t.Context(), meters); err != nil {
		t.Fatal(err)
	}
	n := newMixedNode(t, 2, map[byte]Peer{1: wayTunnel, 3: wayRoute, 4: wayBoth, 5: wayBoth2})
	var mods []ofctl.FlowMod
	for _, f := range n.compiler.Flows() {
		mods = append(mods, ofctl.FlowMod{Command: ofctl.Add, Flow: f})
	}
	if err := s.Commit(t.Context(), mods); err != nil {
		t.Fatal(err)
	}
	for from, want := range map[byte]struct{ tunnel, bare bool }{
		1: {true, false},
		3: {false, true},
		4: {true, true},
		5: {true, true},
		6: {false, false},
	} {
		for _, bare := range []bool{false, true} {
			flow := fmt.Sprintf("in_port=%d,tcp,nw_src=%s,nw_dst=%s,tp_src=40000,tp_dst=80", testGateway, four(from, 2), four(2, 2))
			if !bare {
				flow = strings.Replace(flow, fmt.Sprint("in_port=", testGateway), fmt.Sprint("in_port=", testTunnel), 1) +
					fmt.Sprintf(",tun_id=241,tun_src=%s,tun_dst=%s", nodeAddr(from), nodeAddr(2))
			}
			text := sw.AppCtl(t, "ofproto/trace", sw.Bridge, flow)
			if got, want := strings.Contains(text, "ct("), bare && want.bare || !bare && want.tunnel; got != want {
				t.Errorf("from node %d, bare: %v: let on: %v, want %v\n%s", from, bare, got, want, text)
			}
		}
	}
	for to, out := range map[byte]string{1: "set_field:192.0.2.1->tun_dst", 3: "output:2", 6: "drop"} {
		text := sw.AppCtl(t, "ofproto/trace", sw.Bridge, traceOutput(four(2, 2), four(to, 2)))
		if !strings.Contains(text, out) {
			t.Errorf("to a pod of node %d: no %s in\n%s", to, out, text)
		}
	}
}

// traceOutput is a packet of a pod that all tables of policies have let through: as it comes out of conntrack.
func traceOutput(from, to netip.Addr) string {
	return fmt.Sprintf("reg7=%#x,reg0=%d,ct_state=trk|est,ct_zone=%d,tcp,nw_src=%s,nw_dst=%s,ct_nw_src=%s,ct_nw_dst=%s,"+
		"ct_nw_proto=6,ct_tp_src=40000,ct_tp_dst=80,tp_src=40000,tp_dst=80",
		probeMark, fromPod, ZonePolicy, from, to, from, to)
}
