package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write testdata/outputs.txt anew")

// town is everything that netmaster can answer, good and bad, and nothing that depends on the time.
func town() map[string]any {
	addr := netip.MustParseAddr
	return map[string]any{
		inspect.AskStatus: inspect.Status{Version: "v1.2.3", Revision: 90, Namespaces: 3, Endpoints: 4, Policies: 2, Rules: 5, Groups: 6,
			Problems: []string{"node node2 is not connected; it enforces what it last had"},
			Nodes: []inspect.Node{
				{Name: "node1", Connected: true, Version: "v1.2.3", Sent: 90, Realised: 90, Rules: 5, Groups: 6, Own: &inspect.NodeStatus{SwitchConnected: true, Datapath: "netdev", Endpoints: 2, Flows: 96}},
				{Name: "node2", Sent: 88, Realised: 80, Pending: 3, Rules: 1, Groups: 1},
				{Name: "node3", Connected: true, Version: "v1.2.2", Sent: 90, Realised: 90, Errors: []string{"shop/db: table is full"}, Own: &inspect.NodeStatus{Datapath: "system"}}}},
		inspect.AskPolicies: []inspect.Policy{{Namespace: "shop", Name: "db", Generation: 3, Mode: policy.ModeEnforce, Selector: "app=db", Pods: 2, AppliedTo: []string{"shop/db-0", "shop/db-1"}, Directions: []string{"ingress", "egress"},
			Nodes:    []inspect.PolicyNode{{Name: "node1", State: "realised"}, {Name: "node3", State: "failed", Errors: []string{"table is full"}}},
			Problems: []string{"ingress[1]: port \"x y\" is none"},
			Rules: []inspect.Rule{{Key: policy.Key{0xab}, Direction: "ingress", Index: 0, AppliedTo: "app=db of namespace shop", Ports: "TCP/5432",
				Peers: []inspect.Peer{{Text: "app=api of namespace shop", Endpoints: []string{"shop/api"}}, {Text: "10.0.0.0/8 except 10.1.0.0/16"}}},
				{Key: policy.Key{0xac}, Direction: "ingress", Index: -1, AppliedTo: "app=db of namespace shop", Ports: "all"}}}},
		inspect.AskEndpoints: []inspect.Endpoint{{Namespace: "shop", Name: "db-0", Node: "node1", Addresses: []netip.Addr{addr("10.244.1.2"), addr("fd00::2")}, Labels: map[string]string{"tier": "back", "app": "db"},
			Ports: []policy.NamedPort{{Name: "sql", Protocol: policy.TCP, Number: 5432}}, State: "wired", Ingress: []string{"shop/db"}, Egress: []string{"shop/db", "shop/deny"}}},
		inspect.AskFlows: inspect.NodeFlows{Node: "node1", Flows: []inspect.Flow{
			{Table: 40, TableName: "ingress", Priority: 100, Match: strings.Repeat("nw_src=10.0.0.1,", 8), Actions: strings.Repeat("drop,", 20), Packets: 12, Bytes: 700, Cookie: "0xf1", Kind: "peer", Origins: []policy.Origin{{Policy: "shop/db"}}, Note: "peer shop/db ingress[0]"},
			{Table: 40, TableName: "ingress", Priority: 1, Match: "reg4=0x4", Actions: "drop", Cookie: "0xf2", Kind: "default-drop", Origins: []policy.Origin{}},
			{Table: 60, TableName: "output", Priority: 1, Actions: "output:1", Kind: "static", Origins: []policy.Origin{}}}},
		inspect.AskDrops:     someDrops(),
		inspect.AskFrontends: someServices(),
		inspect.AskDryRuns:   someDryRuns(),
		inspect.AskCuts: inspect.Cuts{Nodes: []inspect.NodeCuts{
			{Node: "node1", Connections: 14, Cuts: []inspect.Cut{
				{Time: time.Date(2026, 11, 21, 7, 30, 0, 0, time.UTC), Reason: "permission", Direction: "ingress", LivedOn: []policy.Origin{{Policy: "shop/db"}}, DeniedBy: []policy.Origin{{Policy: "shop/db", Rule: -1}},
					Connections: 12, Protocols: map[string]int{"TCP": 10, "UDP": 2}, Example: "TCP 10.244.1.3:4711 → 10.244.1.2:5432", Why: "lived on shop/db ingress[0]; denied by shop/db ingress"},
				{Time: time.Date(2026, 11, 21, 7, 31, 5, 0, time.UTC), Reason: "endpoint", LivedOn: []policy.Origin{}, DeniedBy: []policy.Origin{}, Endpoint: "shop/web-1", Connections: 2, Protocols: map[string]int{"TCP": 2},
					Example: "TCP 10.244.1.4:999 → 10.244.1.2:5432", Why: "pod shop/web-1 is gone"}}},
			{Node: "node2", Cuts: []inspect.Cut{}, Problem: "node node2 is not connected"}}},
		inspect.AskMatrix:  inspect.Matrix{Revision: 90, Matrix: twoPods(addr("10.244.1.3"), addr("10.244.1.2")).Matrix(explain.Question{})},
		inspect.AskExplain: explained(addr("10.244.1.3"), addr("10.244.1.2")),
		inspect.AskVerify:  verified(addr("10.244.1.3"), addr("10.244.1.2")),
		inspect.AskDB:      inspect.DB{Revision: 90, Waiting: 2, Namespaces: 3, Endpoints: 4, Policies: 2, Rules: 5, Groups: 6, SetAside: "the file was unreadable and set aside as x.corrupt", Error: "no space left on device", Problems: []string{"rule ab: policy shop/db is missing"}},
		inspect.AskCache: inspect.Cache{
			Entries: 3,
			Bytes:   4096,
			Hits:    2,
			Misses:  1,
			Errors:  4,
			Sources: []inspect.CacheSource{
				{Source: "in-process", Count: 2, Mean: 1500},
				{Source: "memcached"},
				{Source: "engine", Count: 1, Mean: 2_000_000},
			},
			Servers: []string{"127.0.0.1:11211"},
			Problem: "connection refused",
		},
		inspect.AskLookup: inspect.Lookup{Source: "memcached", Revision: 90, Endpoints: []string{"shop/db-0", "shop/db-1"}},
	}
}

// twoPods is two pods and a policy.
func twoPods(from, to netip.Addr) *explain.Model {
	pod := func(name string, at netip.Addr, labels ...string) *policy.Endpoint {
		return &policy.Endpoint{Namespace: "shop", Name: name, Node: "node1", Addresses: []netip.Addr{at}, Labels: map[string]string{"app": labels[0]}}
	}
	is := func(value string) policy.Selector {
		return policy.Selector{Requirements: []policy.Requirement{{Key: "app", Operator: policy.In, Values: []string{value}}}}
	}
	api := is("api")
	return explain.NewModel(&policy.World{Namespaces: []policy.Namespace{{Name: "shop"}}, Endpoints: []*policy.Endpoint{pod("web-0", from, "web"), pod("db-0", to, "db")},
		Policies: []*policy.Policy{{Namespace: "shop", Name: "db", AppliedTo: is("db"), IsolatesIngress: true, Ingress: []policy.PolicyRule{
			{Peers: []policy.Peer{{Pods: &api}}, Ports: []policy.PolicyPort{{Protocol: policy.TCP, First: 5432, Last: 5432}}}}}}})
}

// explained has a switch that does not do what the policies say.
func explained(from, to netip.Addr) inspect.Explained {
	m := twoPods(from, to)
	p := policy.Packet{From: from, To: to, Protocol: policy.TCP, Port: 5432}
	return inspect.Explained{Revision: 90, From: "shop/web-0", To: inspect.Target{Name: "shop/db-0", Port: "5432"}, Problems: []string{"node node1 has not all in force yet that it was sent: revision 89 of 90"},
		Ways: []inspect.Way{{Explanation: m.Explain(p), Connections: m.Connections(from, to),
			DisagreeingNodes: []string{"node1"},
			Disagreements:    []string{"Open vSwitch of node node1 lets it pass (pod shop/db-0), but by the policies it is denied"},
			Traces: []inspect.Trace{{Node: "node1", Packet: p, Passed: true, Out: "pod shop/db-0", Steps: []inspect.TraceStep{
				{TableName: "input", Priority: 100, Match: "ip,in_port=4", Actions: "set_field:0x1->reg0,goto_table:10", Cookie: "0xf1", Kind: "endpoint", Note: "pod shop/web-0", Origins: []policy.Origin{}},
				{Table: 60, TableName: "output", Priority: 100, Match: "ip,nw_dst=10.244.1.2", Actions: "output:5", Cookie: "0xf2", Kind: "endpoint", Note: "pod shop/db-0", Origins: []policy.Origin{}}}}}}}}
}

// verified has a node that is well, one that differs in every way, and two that were not looked at.
func verified(from, to netip.Addr) inspect.Verified {
	flow := func(table uint8, name, match, actions, note string) inspect.Flow {
		return inspect.Flow{Table: table, TableName: name, Priority: 100, Match: match, Actions: actions, Cookie: "0xf101070000000001", Kind: "allow", Origins: []policy.Origin{}, Note: note}
	}
	none := inspect.SampleResults{Wanted: 100, Wrong: []inspect.WrongSample{}}
	return inspect.Verified{Revision: 90, Seed: 7, Problems: []string{}, Nodes: []inspect.NodeResult{
		{Node: "node1", Fine: true, Flows: &inspect.NodeVerify{Node: "node1", Revision: 90, Held: 96, Wanted: 96, Differences: []inspect.Difference{}, Took: 3 * time.Millisecond, DriftCheckInterval: time.Minute},
			Samples: inspect.SampleResults{Wanted: 100, Traced: 98, Allowed: 50, Denied: 48, Skipped: 2, Wrong: []inspect.WrongSample{}}, Problems: []string{}},
		{Node: "node2", Flows: &inspect.NodeVerify{Node: "node2", Revision: 88, Held: 80, Wanted: 80, DriftCount: inspect.DriftCount{Missing: 12, Changed: 1, Extra: 1}, Took: time.Second, Differences: []inspect.Difference{
			{Kind: inspect.FlowMissing, Flow: flow(43, "ingress-rules", "conj_id=1", "goto_table:50", "allow shop/db ingress[0]")},
			{Kind: inspect.FlowChanged, Flow: flow(43, "ingress-rules", "reg4=0x1", "drop", "default-drop shop/db ingress"), Found: "goto_table:50", FoundCookie: "0x0"},
			{Kind: inspect.FlowChanged, Flow: inspect.Flow{TableName: inspect.MeterTable, Match: "meter=2", Actions: "6 packets a second, 25 at once", Kind: "meter", Note: "limits the samples of denied packets"}, Found: "not of packets"},
			{Kind: inspect.FlowExtra, Flow: flow(0, "input", "", "output:1", "not Flowkeep's"), Foreign: "unknown match field 6 of class 0x8000"}}},
			Samples: inspect.SampleResults{Wanted: 100, Traced: 100, Allowed: 40, Denied: 58, Differing: 2, Wrong: []inspect.WrongSample{
				{Packet: policy.Packet{From: from, To: to, Protocol: policy.TCP, Port: 81}, From: "shop/web-0", To: "shop/db-0", Passed: true, Policies: []string{"shop/db"}, Trace: inspect.Trace{Node: "node2", Passed: true, Out: "pod shop/db-0", Steps: []inspect.TraceStep{
					{TableName: "input", Priority: 100, Match: "in_port=4", Actions: "goto_table:10", Note: "pod shop/web-0"}, {Table: 30, TableName: "egress", Missed: true},
					{Table: 50, TableName: "commit", Actions: "goto_table:60"}, {Table: 60, TableName: "output", Priority: 100, Match: "ip", Actions: "output:5", Kind: "endpoint"}}}},
				{Packet: policy.Packet{From: netip.MustParseAddr("198.51.100.7"), To: to, Protocol: 1}, From: "198.51.100.7", To: "shop/db-0", Allowed: true, Policies: []string{"shop/db"}, By: []string{"shop/db ingress[1]"},
					Trace: inspect.Trace{Node: "node2", Out: "dropped in the table ingress-rules", Steps: []inspect.TraceStep{}}}}},
			Problems: []string{"not in force: shop/db: table is full"}},
		{Node: "node3", Samples: none, Problems: []string{"it is not connected, and was not looked at; it enforces what it last had"}},
		{Node: "node4", Flows: &inspect.NodeVerify{Node: "node4", Held: 5, Wanted: 5, Differences: []inspect.Difference{}}, Samples: none, Problems: []string{"only 0 of 100 packets were traced: no answer"}}}}
}

var commands = []string{"status", "policy ls", "policy show shop/db", "endpoint ls", "endpoint show shop/db-0",
	"service ls", "service show shop/web", "flows node1", "explain shop/web-0 shop/db-0:5432", "matrix", "verify --seed 7", "cuts", "drops", "dry-run", "dry-run shop/db", "db", "cache", "cache lookup -n shop -l app=db"}

// Every command in every form, as it was looked at and found good: go test ./netctl -update writes the file anew.
func TestOutputs(t *testing.T) {
	const path = "testdata/outputs.txt"
	b := newBench(t, town())
	var all strings.Builder
	for _, command := range commands {
		for _, form := range outputs {
			out, errOut, code := b.run(append(strings.Fields(command), "-o", form)...)
			fmt.Fprintf(&all, "$ netctl %s -o %s\n%s%s(exit code %d)\n\n", command, form, out, errOut, code)
		}
	}
	if *update {
		if err := os.WriteFile(path, []byte(all.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want, got := strings.Split(string(text), "\n"), strings.Split(all.String(), "\n")
	for i := range got {
		if i >= len(want) || got[i] != want[i] {
			t.Fatalf("%s:%d: %q, want %q", path, i+1, got[i], want[min(i, len(want)-1)])
		}
	}
	if len(want) > len(got) {
		t.Fatalf("%s has %d lines more", path, len(want)-len(got))
	}
}

// The pictures of the matrix are whole, and what pods are called is text in them.
func TestMatrixPictures(t *testing.T) {
	m := twoPods(netip.MustParseAddr("10.244.1.3"), netip.MustParseAddr("10.244.1.2")).Matrix(explain.Question{})
	m.Groups[0].Name = "<script>&\"'"
	b := newBench(t, map[string]any{inspect.AskMatrix: inspect.Matrix{Revision: 90, Matrix: m}})
	for form, end := range map[string]string{"html": "</html>", "svg": "</svg>"} {
		out, errOut, code := b.run("matrix", "-o", form)
		if code != 0 || !strings.HasSuffix(strings.TrimSpace(out), end) || strings.Contains(out, "<script") || !strings.Contains(out, "&lt;script") {
			t.Errorf("%s: exit code %d, %s:\n%s", form, code, errOut, out)
		}
		if err := xml.Unmarshal([]byte(out), new(any)); form == "svg" && err != nil {
			t.Errorf("svg: %v", err)
		}
		if _, errOut, code := b.run("status", "-o", form); code != exitUsage || !strings.Contains(errOut, "json or yaml") {
			t.Errorf("status -o %s: exit code %d: %s", form, code, errOut)
		}
	}
	for _, port := range []string{"0", "65536", "x", "80/http", "/tcp"} {
		if _, errOut, code := b.run("matrix", "--port", port); code != exitUsage {
			t.Errorf("--port %s: exit code %d: %s", port, code, errOut)
		}
	}
	if _, _, code := b.run("matrix", "--port", "53/udp", "-n", "a", "-n", "b"); code != 0 || b.asked.Matrix.Protocol != policy.UDP || b.asked.Matrix.Port != 53 || len(b.asked.Matrix.Namespaces) != 2 {
		t.Errorf("exit code %d, asked %+v", code, b.asked.Matrix)
	}
}

// guideLines returns the lines of docs/netctl, with one space between words.
func guideLines(t *testing.T) (lines []string) {
	t.Helper()
	pages, err := filepath.Glob("../docs/netctl/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
	}
	return lines
}

// TestGuide_ShowsPrintedHeadings compares the headings of tables in docs/netctl with those that netctl prints.
func TestGuide_ShowsPrintedHeadings(t *testing.T) {
	lines := guideLines(t)
	b := newBench(t, town())
	headings := 0
	for _, command := range commands {
		out, _, _ := b.run(strings.Fields(command)...)
		for line := range strings.Lines(out) {
			line = strings.Join(strings.Fields(line), " ")
			first, _, _ := strings.Cut(line, " ")
			if len(first) < 4 || first != strings.ToUpper(first) || strings.ContainsAny(line, "/:=[,") {
				continue
			}
			headings++
			// A matrix has more columns in the guide.
			if !slices.ContainsFunc(lines, func(shown string) bool { return strings.HasPrefix(shown, line) }) {
				t.Errorf("netctl %s prints %q: not so in docs/netctl", command, line)
			}
		}
	}
	if headings < 6 {
		t.Errorf("only %d headings were found", headings)
	}
}

// TestGuide_HasEveryCommand compares the pages of docs/netctl with the groups of netctl's help.
func TestGuide_HasEveryCommand(t *testing.T) {
	text, err := os.ReadFile("../docs/netctl/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range commandGroups(new(options)) {
		_, row, found := strings.Cut(string(text), "\n| "+strings.TrimSuffix(g.title, ":")+" | ")
		row, _, _ = strings.Cut(row, "\n")
		if !found {
			t.Errorf("docs/netctl/README.md has no row for %q", g.title)
		}
		for _, c := range slices.Concat(g.results, g.others) {
			if !strings.Contains(row, "`"+c.Name()+"`") {
				t.Errorf("the row of %q lacks %s", g.title, c.Name())
			}
		}
	}
}

// Wrong usage is told before anybody is asked, with what to do, and has an exit code of its own.
func TestWrongUsage(t *testing.T) {
	b := newBench(t, nil)
	b.flags[1] = "127.0.0.1:1"
	for args, want := range map[string]string{
		"polcy":                        `netctl has no command "polcy"; is it policy? see netctl --help`,
		"frobnicate":                   `netctl has no command "frobnicate"; see netctl --help`,
		"policy shw":                   `netctl policy has no command "shw"; is it show? see netctl policy --help`,
		"endpoint shop/db":             `netctl endpoint has no command "shop/db"`,
		"cache lokup":                  `netctl cache has no command "lokup"; is it lookup?`,
		"status now":                   "takes [], got 1 arguments",
		"cuts node1 node2":             "takes no more than [NODE], got 2 arguments",
		"flows":                        "takes [NODE], got 0 arguments",
		"policy show db":               `"db": say which namespace too, as in default/db`,
		"endpoint show /db":            "as in default/db",
		"endpoint show a/b/c":          "say which namespace",
		"policy show -o xml shop/db":   "use table, wide, json or yaml",
		"status --timeout 0s":          "say how long to wait",
		"status --timeout soon":        "invalid argument",
		"cache lookup -l app=db":       "say which namespace: -n NAMESPACE",
		"cache lookup -n shop -l app(": `selector "app("`,
		"cache lookup -n shop -l a>1":  `selector "a>1"`,
	} {
		b.prints(exitUsage, args, want)
	}
	for _, args := range []string{"", "policy", "endpoint", "--help", "flows --help"} {
		b.prints(0, args, "Usage:", "netctl")
	}
}

// Who does not answer is told apart from who says no, whatever his words.
func TestWhoDoesNotAnswer(t *testing.T) {
	b := newBench(t, nil)
	for _, text := range []string{"the transport of node1 is away", "node node1: connection error: refused", "node node1 does not answer: context deadline exceeded"} {
		b.fail(status.Error(codes.Unavailable, text))
		b.prints(exitTrouble, "status", "netctl: "+text)
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	b.flags[1] = silent.Addr().String()
	b.prints(exitUnreachable, "status --timeout 100ms", "netmaster does not answer", silent.Addr().String(), "100ms", "--timeout")
	b.flags[1] = "127.0.0.1:1"
	b.prints(exitUnreachable, "status", "netmaster does not answer at 127.0.0.1:1", "--server")
}

// Whoever is wrong about a name, netctl does not crash.
func TestShowOfNothing(t *testing.T) {
	b := newBench(t, map[string]any{inspect.AskPolicies: []inspect.Policy{}, inspect.AskEndpoints: nil})
	b.prints(exitFailed, "policy show shop/db", "netmaster knows 0 of the name shop/db")
	b.prints(exitFailed, "endpoint show shop/db", "netmaster knows 0 of the name shop/db")
	b.prints(0, "policy ls", "NAMESPACE")
	b.prints(0, "endpoint ls", "NAMESPACE")
}

// A node's words reach the terminal as words.
func TestNobodyWritesToTheTerminal(t *testing.T) {
	evil := "\x1b]0;owned\x07\x1b[2Jhealthy\r\u009b31m\u202egnp\nnode9  connected"
	st := inspect.Status{Problems: []string{evil}, Nodes: []inspect.Node{{Name: "node1", Connected: true, Version: evil, Errors: []string{evil}, Own: &inspect.NodeStatus{Datapath: evil}}}}
	b := newBench(t, map[string]any{inspect.AskStatus: st})
	for _, form := range outputs {
		out, _, _ := b.run("status", "-o", form)
		if i := strings.IndexFunc(out, hidden); i >= 0 {
			t.Errorf("-o %s lets through %q", form, out[i:min(len(out), i+9)])
		}
		_, rows, _ := strings.Cut(out, "NODE")
		if n := strings.Count(rows, "\n"); (form == "table" || form == "wide") && n != 2 {
			t.Errorf("-o %s: a node's words make %d rows:\n%s", form, n-1, out)
		}
		var back inspect.Status
		switch form {
		case "json":
			if err := json.Unmarshal([]byte(out), &back); err != nil || back.Problems[0] != evil {
				t.Errorf("-o json: %q, %v", back.Problems, err)
			}
		case "yaml":
			if err := yaml.Unmarshal([]byte(out), &back); err != nil || back.Problems[0] != strings.ReplaceAll(evil, "\u202e", "\uFFFD") {
				t.Errorf("-o yaml: %q, %v", back.Problems, err)
			}
		}
	}
	b.fail(status.Error(codes.Internal, evil))
	if _, errOut, _ := b.run("status"); strings.ContainsFunc(errOut, hidden) {
		t.Errorf("an error: %q", errOut)
	}
}

// Scripts of completion go through whole.
func TestCompletionScripts(t *testing.T) {
	b := newBench(t, town())
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		out, errOut, code := b.run("completion", shell)
		if code != 0 || len(out) < 1000 || strings.ContainsRune(out, '\uFFFD') {
			t.Errorf("%s: exit code %d, %d characters, %s", shell, code, len(out), errOut)
		}
	}
	for args, want := range map[string]string{
		"flows node1 --policy ": "shop/db", "cache lookup -n ": "shop", "flows ": "node1\nnode2\nnode3", "flows node1 --table ": "ingress\noutput", "flows --table ": "", "dry-run ": "shop/db",
	} {
		var o, e bytes.Buffer
		run(slices.Concat([]string{"__complete"}, b.flags, strings.Split(args, " ")), &o, &e)
		out := o.String()
		if got, _, _ := strings.Cut(out, ":4\n"); strings.TrimSpace(got) != want {
			t.Errorf("netctl %s<TAB>: %q, want %q", args, got, want)
		}
	}
}
