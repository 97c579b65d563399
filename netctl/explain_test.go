package main

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// serviced has a port with a backend of each fate, and one at which nobody answers.
func serviced() inspect.Explained {
	x := explained(netip.MustParseAddr("10.244.1.3"), netip.MustParseAddr("10.244.1.2"))
	x.Ways[0].Disagreements, x.Ways[0].DisagreeingNodes = nil, nil
	backend := func(name, address, state, unused string, way int) inspect.Backend {
		return inspect.Backend{Pod: name, Node: "node1", Address: netip.MustParseAddr(address), Port: 5432, State: state, Unused: unused, Way: way}
	}
	x.Service = &inspect.ServiceWay{Namespace: "shop", Name: "db", Type: "ClusterIP", Addresses: []netip.Addr{netip.MustParseAddr("10.96.0.7")}, Notes: []string{"a note\nof two lines"}, Ports: []inspect.ServicePort{
		{Name: "sql", Protocol: policy.TCP, Port: 3306, Target: "sql", Backends: []inspect.Backend{backend("shop/db-0", "10.244.1.2", "ready", "", 0), backend("shop/db-1", "10.244.1.9", "not ready", "gets no packets", -1), backend("", "fd00::9", "ready", "", -1)}},
		{Name: "web", Protocol: policy.TCP, Port: 80, Refused: "it has no endpoints", Backends: []inspect.Backend{}}}}
	return x
}

func TestExplainShowsServices(t *testing.T) {
	b := newBench(t, town())
	b.answers[inspect.AskExplain] = serviced()
	out, errOut, code := b.run("explain", "shop/web-0", "svc/shop/db")
	for _, want := range []string{"Service shop/db (ClusterIP, 10.96.0.7) port sql TCP/3306 → targetPort sql: DENIED\n", "shop/db-0", "10.244.1.2:5432", "DENIED (1)", "gets no packets", "not of a family that the source has",
		"port web TCP/80: NOBODY ANSWERS: it has no endpoints", "\n(1) shop/web-0", "- a note"} {
		if !strings.Contains(out, want) {
			t.Errorf("without %q:\n%s", want, out)
		}
	}
	if code != exitFailed || !strings.Contains(errOut, "denied") || strings.Contains(out, "a note\n") {
		t.Errorf("%d, %q:\n%s", code, errOut, out)
	}
	x := serviced()
	x.Ways, x.Service.Ports = nil, x.Service.Ports[1:]
	if outcome(&x) == nil {
		t.Error("a Service at which nobody answers is fine")
	}
}

func TestExplainAt(t *testing.T) {
	b := newBench(t, town())
	if out, errOut, code := b.run("explain", "--at", "90", "shop/web-0", "shop/db-0"); code != exitTrouble || !strings.Contains(errOut, "older than netctl") || out != "" {
		t.Errorf("a netmaster that knows no --at: %d, %q, %q", code, errOut, out)
	}
	if _, errOut, code := b.run("explain", "--at", "yesterday", "shop/web-0", "shop/db-0"); code != exitUsage || !strings.Contains(errOut, "write a revision") {
		t.Errorf("%d, %q", code, errOut)
	}
	x, until := serviced(), time.Date(2026, 1, 31, 12, 5, 0, 0, time.UTC)
	x.At = &inspect.Past{Revision: 88, Since: until.Add(-5 * time.Minute), Until: &until}
	b.answers[inspect.AskExplain] = x
	if out, _, _ := b.run("explain", "--at", "-5m", "shop/web-0", "shop/db-0"); !strings.HasPrefix(out, "AS IT WAS at revision 88, from 2026-01-31T12:00:00Z until 2026-01-31T12:05:00Z\n") {
		t.Error(out)
	}
}

func TestServicesAreCompleted(t *testing.T) {
	b := newBench(t, town())
	b.answers[inspect.AskServices] = []inspect.ServiceName{{Namespace: "shop", Name: "db"}, {Namespace: "kube-system", Name: "kube-dns"}}
	for typed, want := range map[string]string{"svc/": "svc/kube-system/kube-dns\nsvc/shop/db\n", "service/sh": "service/shop/db\n", "": "svc/"} {
		var o, e bytes.Buffer
		run(slices.Concat([]string{"__complete"}, b.flags, []string{"explain", "shop/web-0", typed}), &o, &e)
		if !strings.Contains(o.String(), want) {
			t.Errorf("%q: %q", typed, o.String())
		}
	}
}

// TestExplain_ServiceTrace: where Open vSwitch leads packets to a Service stands between its endpoints and the ways to
// them.
func TestExplain_ServiceTrace(t *testing.T) {
	at := netip.MustParseAddrPort
	trace := inspect.ServiceTrace{
		Node:    "node1",
		Packet:  policy.Packet{To: netip.MustParseAddr("10.96.0.1"), Protocol: policy.TCP, Port: 80},
		Outcome: inspect.ServiceTranslated,
		Steps:   []inspect.TraceStep{{TableName: "service-choice", Match: "ip,reg2=0x1", Note: "frontend of Service shop/web"}},
	}
	for i := range maxLed + 1 {
		trace.Endpoints = append(trace.Endpoints, inspect.SlotShare{
			Endpoint: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 1, byte(i)}), 8080),
			Slots:    2,
		})
	}
	one := trace
	one.Endpoint = at("10.244.1.3:8080")
	rejected, failed := one, one
	rejected.Outcome, failed.Problem = inspect.ServiceRejected, "it is\naway"
	for want, t2 := range map[string]inspect.ServiceTrace{
		"translated to one of 10.244.1.0:8080 (2/18), 10.244.1.1:8080 (2/18)": trace,
		"(2/18) and 1 more":             trace,
		"translated to 10.244.1.3:8080": one,
		"10.96.0.1:80: rejected":        rejected,
		"no proof: it is away":          failed,
	} {
		x := inspect.Explained{Service: &inspect.ServiceWay{
			Namespace:    "shop",
			Name:         "web",
			Type:         "ClusterIP",
			TranslatedBy: inspect.TranslatedByOVS,
			Ports:        []inspect.ServicePort{{Protocol: policy.TCP, Port: 80, Traces: []inspect.ServiceTrace{t2}}},
		}}
		b := newBench(t, map[string]any{inspect.AskExplain: x})
		out, _, _ := b.run("explain", "shop/api", "svc/shop/web")
		if !strings.Contains(out, want) || !strings.Contains(out, "Open vSwitch of node1") ||
			!strings.Contains(out, "frontend of Service shop/web") {
			t.Errorf("want %q:\n%s", want, out)
		}
		short, _, _ := b.run("explain", "--no-proof", "shop/api", "svc/shop/web")
		if !strings.Contains(short, want) || strings.Contains(short, "service-choice") {
			t.Errorf("without proof, want %q:\n%s", want, short)
		}
		x.Service.TranslatedBy, x.Service.Ports[0].Traces = inspect.TranslatedByKubeProxy, nil
		b = newBench(t, map[string]any{inspect.AskExplain: x})
		if out, _, _ := b.run("explain", "shop/api", "svc/shop/web"); !strings.Contains(out, "kube-proxy of the source's node") {
			t.Errorf("by kube-proxy:\n%s", out)
		}
	}
}
