package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
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
		inspect.AskPolicies: []inspect.Policy{{Namespace: "shop", Name: "db", Generation: 3, Selector: "app=db", AppliedTo: []string{"shop/db-0", "shop/db-1"}, Directions: []string{"ingress", "egress"},
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
		inspect.AskDB:     inspect.DB{Revision: 90, Waiting: 2, Namespaces: 3, Endpoints: 4, Policies: 2, Rules: 5, Groups: 6, SetAside: "the file was unreadable and set aside as x.corrupt", Error: "no space left on device", Problems: []string{"rule ab: policy shop/db is missing"}},
		inspect.AskCache:  inspect.Cache{Entries: 3, Hits: 2, Misses: 1, Errors: 4, Servers: []string{"127.0.0.1:11211"}, Problem: "connection refused"},
		inspect.AskLookup: inspect.Lookup{Source: "memcached", Revision: 90, Endpoints: []string{"shop/db-0", "shop/db-1"}},
	}
}

var commands = []string{"status", "policy ls", "policy show shop/db", "endpoint ls", "endpoint show shop/db-0", "flows node1", "db", "cache", "cache lookup -n shop -l app=db"}

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

// The headings in docs/netctl.md are those that netctl prints.
func TestThePageShowsWhatIsPrinted(t *testing.T) {
	page, err := os.ReadFile("../docs/netctl.md")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(page)) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	b := newBench(t, town())
	headings := 0
	for _, command := range commands {
		out, _, _ := b.run(strings.Fields(command)...)
		for line := range strings.Lines(out) {
			line = strings.Join(strings.Fields(line), " ")
			if first, _, _ := strings.Cut(line, " "); len(first) < 4 || first != strings.ToUpper(first) || strings.ContainsAny(line, "/:=[,") {
				continue
			}
			headings++
			if !slices.Contains(lines, line) {
				t.Errorf("netctl %s prints %q: not so in docs/netctl.md", command, line)
			}
		}
	}
	if headings < 6 {
		t.Errorf("only %d headings were found", headings)
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
		b.err = status.Error(codes.Unavailable, text)
		b.prints(exitFailed, "status", "netctl: "+text)
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
	b.err = status.Error(codes.Internal, evil)
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
		"flows node1 --policy ": "shop/db", "cache lookup -n ": "shop", "flows ": "node1\nnode2\nnode3", "flows node1 --table ": "ingress\noutput", "flows --table ": "",
	} {
		var o, e bytes.Buffer
		run(slices.Concat([]string{"__complete"}, b.flags, strings.Split(args, " ")), &o, &e)
		out := o.String()
		if got, _, _ := strings.Cut(out, ":4\n"); strings.TrimSpace(got) != want {
			t.Errorf("netctl %s<TAB>: %q, want %q", args, got, want)
		}
	}
}
