package webui

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// TestExplainedOf_Service: a Service is shown as its ports, with the verdict and the share of each endpoint.
func TestExplainedOf_Service(t *testing.T) {
	endpoint := netip.MustParseAddrPort("10.0.0.2:5432")
	ways := make([]inspect.Way, 2)
	ways[0].To, ways[0].Unproved = explain.End{Kind: explain.Pod, Pods: []string{"shop/db"}}, true
	ways[0].Egress.Allowed, ways[0].Ingress.Allowed, ways[0].Allowed = true, true, true
	backends := []inspect.Backend{
		{Pod: "shop/db", Node: "node1", Address: endpoint.Addr(), Port: 5432, State: "ready", Allowed: true},
		{Address: netip.MustParseAddr("10.0.0.3"), Port: 5432, State: "ready", Way: 1},
		{Address: netip.MustParseAddr("10.0.0.4"), Port: 5432, State: "not ready", Unused: "gets no packets", Way: -1},
		{Address: netip.MustParseAddr("fd00::4"), Port: 5432, State: "ready", Way: -1},
	}
	other := netip.MustParseAddrPort("10.0.0.3:5432")
	trace := inspect.ServiceTrace{
		Node:      "node1",
		Packet:    policy.Packet{To: netip.MustParseAddr("10.96.0.1"), Port: 3306},
		Outcome:   inspect.ServiceTranslated,
		Endpoints: []inspect.SlotShare{{Endpoint: endpoint, Slots: 3}, {Endpoint: other, Slots: 1}},
		Steps:     []inspect.TraceStep{{TableName: "service"}, {TableName: "service"}, {TableName: "service-choice"}},
	}
	one := trace
	one.Endpoint = endpoint
	x := inspect.Explained{Ways: ways, Service: &inspect.ServiceWay{
		Namespace: "shop",
		Name:      "db",
		Ports: []inspect.ServicePort{{
			Name:     "sql",
			Protocol: policy.TCP,
			Port:     3306,
			Target:   "sql",
			Backends: backends,
			Traces:   []inspect.ServiceTrace{trace, one, {Node: "node1", Problem: "it is away"}},
		}, {
			Protocol: policy.UDP,
			Port:     53,
			Refused:  "it has no endpoints",
			Backends: make([]inspect.Backend, maxBackends+7),
		}},
	}}
	got := explainedOf(&x)
	if got.Service != "shop/db" || len(got.Ports) != 2 || got.Ports[0].Title != "sql TCP/3306 → sql" {
		t.Fatalf("%+v", got)
	}
	for i, want := range []backend{
		{Name: "shop/db", Node: "node1", Address: "10.0.0.2:5432", State: "ready", Verdict: "allowed", Share: "3/4",
			Caveat: "not proved", Unproved: true},
		{Address: "10.0.0.3:5432", State: "ready", Verdict: "denied", Share: "1/4"},
		{Address: "10.0.0.4:5432", State: "not ready", Why: "gets no packets"},
		{Address: "[fd00::4]:5432", State: "ready", Why: "not of a family that the source has"},
	} {
		if got.Ports[0].Backends[i] != want {
			t.Errorf("%+v, want %+v", got.Ports[0].Backends[i], want)
		}
	}
	for i, want := range []string{
		"10.96.0.1:3306: translated to one of 2 endpoints, by service → service-choice",
		"10.96.0.1:3306: translated to 10.0.0.2:5432, by service → service-choice",
		"no proof: it is away",
	} {
		if !strings.HasSuffix(got.Ports[0].Led[i], want) {
			t.Errorf("%q, want %q", got.Ports[0].Led[i], want)
		}
	}
	if p := got.Ports[1]; p.Refused == "" || p.More != 7 || len(p.Backends) != maxBackends {
		t.Errorf("%s, %d endpoints and %d more", p.Refused, len(p.Backends), p.More)
	}
	x.Service.TranslatedBy, x.Service.Ports[0].Traces = inspect.TranslatedByKubeProxy, nil
	if led := explainedOf(&x).Ports[0].Led; len(led) != 1 || !strings.HasPrefix(led[0], "kube-proxy") {
		t.Errorf("%q", led)
	}
}
