package main

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
)

// someServices is a Service as a node holds it, with something of everything.
func someServices() []inspect.ServedService {
	addr := netip.MustParseAddr
	s := &service.Service{
		Namespace:       "shop",
		Name:            "web",
		Type:            "LoadBalancer",
		ClusterIPs:      []netip.Addr{addr("10.96.0.10")},
		LoadBalancerIPs: []netip.Addr{addr("203.0.113.1")},
		SourceRanges:    []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		Ports:           []service.Port{{Name: "web", Protocol: policy.TCP, Port: 80, NodePort: 30080}},
		Affinity:        3 * time.Hour,
		ExternalLocal:   true,
		InternalLocal:   true,
		Problems:        []string{"7 endpoints: over the budget of 2 endpoints times ports"},
	}
	slices := []*service.Slice{{
		Namespace: "shop",
		Name:      "web-abc",
		Service:   "web",
		Ports:     []service.SlicePort{{Name: "web", Protocol: policy.TCP, Port: 8080}},
		Endpoints: []service.Endpoint{
			{Address: addr("10.244.1.2"), Pod: "shop/web-0", Node: "node1", Ready: true, Serving: true, ZoneHints: []string{"a"}},
			{Address: addr("10.244.2.2"), Pod: "shop/web-1", Node: "node2", Serving: true, Terminating: true},
		},
	}}
	out := inspect.ServedAt(s, slices, &service.Place{Node: "node2", Zone: "b"})
	out.At.Holds = &inspect.NodeServices{Services: 20, Slices: 21, Endpoints: 200, Problem: "no space left on device"}
	out.Endpoints[0].Opened = 12
	out.Nodes = []inspect.ServiceReport{{
		Node:         "node2",
		TranslatedBy: inspect.TranslatedByOVS,
		Held:         true,
		Opened:       12,
		Unserved:     3,
		Since:        time.Date(2026, 11, 21, 7, 30, 0, 0, time.UTC),
		Endpoints: []inspect.OpenedCount{{
			Address:  addr("10.244.1.2"),
			Protocol: policy.TCP,
			Port:     8080,
			Opened:   12,
		}},
	}}
	return []inspect.ServedService{out}
}

// TestServiceShow: what is requested, and what is printed without a node.
func TestServiceShow(t *testing.T) {
	list := someServices()
	list[0].At, list[0].Endpoints = nil, nil
	b := newBench(t, map[string]any{inspect.AskFrontends: list})
	out, errOut, code := b.run("service", "show", "shop/web")
	if code != 0 || !strings.Contains(out, "203.0.113.1 TCP/80") || !strings.Contains(out, "10.0.0.0/8") ||
		!strings.Contains(out, "no endpoints") || b.asked.ID != "shop/web" || b.asked.Node != "" {
		t.Errorf("exit code %d, %s, asked %+v:\n%s", code, errOut, b.asked, out)
	}
	if _, _, code := b.run("svc", "show", "shop/web", "--node", "n1", "--from-node"); code != 0 || b.asked.Node != "n1" || !b.asked.FromNode {
		t.Errorf("exit code %d, asked %+v", code, b.asked)
	}
	if _, errOut, code := b.run("service", "show", "shop/web", "--from-node"); code != exitUsage {
		t.Errorf("--from-node without a node: exit code %d, %s", code, errOut)
	}
	if _, errOut, code := b.run("service", "show", "web"); code != exitUsage {
		t.Errorf("without a namespace: exit code %d, %s", code, errOut)
	}
	if out, _, code := b.run("service", "ls", "-n", "shop"); code != 0 || b.asked.Namespace != "shop" || !strings.Contains(out, "1 part") {
		t.Errorf("exit code %d, asked %+v:\n%s", code, b.asked, out)
	}
}

// TestServiceLs_WithoutFrontends: a headless Service, and one that a budget leaves out.
func TestServiceLs_WithoutFrontends(t *testing.T) {
	over := service.BudgetProblem("the Service", 1, "Services of a namespace")
	b := newBench(t, map[string]any{inspect.AskFrontends: []inspect.ServedService{
		{Namespace: "shop", Name: "db", Type: "ClusterIP", Unserved: "headless: the DNS leads to its endpoints"},
		{Namespace: "shop", Name: "web", Type: "ClusterIP", Unserved: over, Problems: []string{over}},
	}})
	out, _, _ := b.run("service", "ls")
	lines := strings.Split(out, "\n")
	if len(lines) < 3 || !strings.HasSuffix(lines[1], "headless") || !strings.HasSuffix(lines[2], "all") {
		t.Errorf("%s", out)
	}
	out, _, code := b.run("service", "show", "shop/none")
	if code == 0 {
		t.Errorf("two of one name: %s", out)
	}
}

// TestServiceShow_Nodes checks the lines of nodes: the program that translates the Service, the ports that are refused,
// and the number of opened connections.
func TestServiceShow_Nodes(t *testing.T) {
	list := someServices()
	list[0].At, list[0].Endpoints[0].Opened = nil, 71
	list[0].Nodes = []inspect.ServiceReport{
		{Node: "node1", TranslatedBy: inspect.TranslatedByOVS, Held: true, Opened: 71, Unserved: 2},
		{Node: "node2", TranslatedBy: inspect.TranslatedByKubeProxy, Held: true},
		{Node: "node3", TranslatedBy: inspect.TranslatedByOVS, Refused: []string{"port \"dns\": too\nmany"}},
		{Node: "node4", Problem: "node node4 is not connected"},
	}
	for i := range 2 * maxReports {
		list[0].Nodes = append(list[0].Nodes, inspect.ServiceReport{
			Node:         fmt.Sprint("other", i),
			TranslatedBy: inspect.TranslatedByOVS,
			Held:         true,
		})
	}
	b := newBench(t, map[string]any{inspect.AskFrontends: list})
	out, _, code := b.run("service", "show", "shop/web")
	lines := map[string]string{}
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) > 0 {
			lines[fields[0]] = strings.Join(fields, " ")
		}
	}
	for name, want := range map[string]string{
		"10.244.1.2:8080": "10.244.1.2:8080 TCP web shop/web-0 node1 ready 71",
		"node1":           "node1 ovs 71 2 -",
		"node2":           "node2 kube-proxy - - -",
		"node3":           "node3 ovs 0 0 not translated: port \"dns\": too many; the node does not hold the Service yet",
		"node4":           "node4 unknown - - node node4 is not connected",
		"and":             "and 24 nodes without anything to report: -o wide lists them",
	} {
		if lines[name] != want {
			t.Errorf("%s: %q, want %q", name, lines[name], want)
		}
	}
	wide, _, _ := b.run("service", "show", "shop/web", "-o", "wide")
	if code != 0 || !strings.Contains(wide, "other39") || strings.Contains(wide, "lists them") {
		t.Errorf("exit code %d:\n%s", code, wide)
	}
}
