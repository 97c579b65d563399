package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/yaml"
)

// netmaster answers each kind of question with what it is given.
type netmaster struct {
	stream  func(ctx context.Context, send func(any) error) error // answers what is followed
	answers map[string]any
	asked   inspect.Question
	script  *script // instead of answers, if set

	mu  sync.Mutex
	err error // instead of any answer; guarded by mu: a stream of a command before may still be served
}

// fail makes every answer an error, or none with nil.
func (m *netmaster) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

func (m *netmaster) failure() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

func (m *netmaster) Ask(_ context.Context, q *inspect.Question) (*inspect.Answer, error) {
	m.asked = *q
	if err := m.failure(); err != nil {
		return nil, err
	}
	if m.script != nil {
		answer, err := m.script.answer(q)
		if err != nil {
			return nil, err
		}
		body, err := json.Marshal(answer)
		return &inspect.Answer{Body: body}, err
	}
	answer, ok := m.answers[q.Kind]
	if !ok {
		return nil, status.Errorf(codes.NotFound, "there is no %s", q.ID)
	}
	if f, asks := answer.(func(*inspect.Question) (any, error)); asks {
		var err error
		if answer, err = f(q); err != nil {
			return nil, err
		}
	}
	body, err := json.Marshal(answer)
	return &inspect.Answer{Body: body}, err
}

// bench is a netmaster that answers, and what to give netctl to reach it.
type bench struct {
	*netmaster
	t     *testing.T
	flags []string
}

func newBench(t *testing.T, answers map[string]any) *bench {
	t.Helper()
	dir := t.TempDir()
	for _, err := range []error{mtls.Init(dir), mtls.IssueServer(dir, []string{"127.0.0.1"}), mtls.IssueAdmin(dir)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	files := func(name string) mtls.Files {
		return mtls.Files{CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, name+".crt"), Key: filepath.Join(dir, name+".key")}
	}
	conf, err := files("server").ServerConfig()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{netmaster: &netmaster{answers: answers}, t: t}
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(conf)))
	inspect.Register(s, b.netmaster)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	admin := files("admin")
	b.flags = []string{"--server", l.Addr().String(), "--tls-ca", admin.CA, "--tls-cert", admin.Cert, "--tls-key", admin.Key}
	return b
}

// run returns what was printed to standard output and to standard error, and the exit code.
func (b *bench) run(args ...string) (out, errOut string, code int) {
	b.t.Helper()
	var o, e bytes.Buffer
	code = run(append(args, b.flags...), &o, &e)
	return o.String(), e.String(), code
}

// prints fails the test unless each part is in the output, in this order.
func (b *bench) prints(code int, args string, parts ...string) {
	b.t.Helper()
	out, errOut, got := b.run(strings.Fields(args)...)
	rest := out + errOut
	for _, p := range parts {
		_, after, found := strings.Cut(rest, p)
		if !found {
			b.t.Errorf("netctl %s: no %q (in this order) in\n%s%s", args, p, out, errOut)
			return
		}
		rest = after
	}
	if got != code {
		b.t.Errorf("netctl %s: exit code %d, want %d", args, got, code)
	}
}

func shop() map[string]any {
	key := policy.Key{0xab}
	return map[string]any{
		inspect.AskStatus: inspect.Status{Version: "v1", Started: time.Now(), Revision: 7, Policies: 1, Nodes: []inspect.Node{
			{Name: "node1", Connected: true, Sent: 7, Realised: 7, Own: &inspect.NodeStatus{SwitchConnected: true, Datapath: "netdev", Flows: 66,
				DriftCheck: inspect.DriftCheck{At: time.Now(), Drift: inspect.DriftCount{Missing: 2}, DriftAt: time.Now()}}}, {Name: "node2", Sent: 7, Realised: 5}}, Problems: []string{}},
		inspect.AskPolicies: []inspect.Policy{{Namespace: "shop", Name: "db", Generation: 3, Mode: policy.ModeEnforce, Selector: "app=db", Pods: 1, AppliedTo: []string{"shop/db"}, Directions: []string{"ingress"},
			Nodes: []inspect.PolicyNode{{Name: "node1", State: "realised"}, {Name: "node2", State: "failed", Errors: []string{"table is full"}}}, Problems: []string{"port 0 is none"},
			Rules: []inspect.Rule{{Key: key, Direction: "ingress", Index: 0, AppliedTo: "app=db", Ports: "TCP 5432", Peers: []inspect.Peer{{Text: "app=api", Endpoints: []string{"shop/api"}}}}}}},
		inspect.AskEndpoints: []inspect.Endpoint{{Namespace: "shop", Name: "db", Node: "node1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.2")}, Labels: map[string]string{"tier": "back", "app": "db"}, Ingress: []string{"shop/db"}}},
		inspect.AskFlows: inspect.NodeFlows{Node: "node1", Flows: []inspect.Flow{
			{Table: 40, TableName: "ingress", Priority: 100, Match: "ip", Actions: "drop", Packets: 12, Cookie: "0xf1", Kind: "peer", Origins: []policy.Origin{{Policy: "shop/db"}}, Note: "peer shop/db ingress[0]"},
			{Table: 60, TableName: "output", Priority: 1, Actions: "output:1", Kind: "static", Origins: []policy.Origin{}}}},
		inspect.AskDB:    inspect.DB{Revision: 7, Waiting: 2, Problems: []string{}},
		inspect.AskCache: inspect.Cache{},
	}
}

func TestCommandsPrint(t *testing.T) {
	b := newBench(t, shop())
	b.prints(0, "status", "healthy: 1 policy in force on 2 nodes", "revision 7", "NODE", "node1", "connected", "66", "node2", "away", "5 of 7")
	b.prints(0, "status -o wide", "DATAPATH", "CHECKED", "netdev", "0s ago", "2 flows, 0s ago")
	b.prints(0, "policy ls", "NAMESPACE", "IN FORCE", "shop", "db", "app=db (1)", "ingress", "1/2 nodes")
	b.prints(0, "policy ls -o wide", "GENERATION", "PROBLEMS", "db", "3", "port 0 is none")
	b.prints(0, "policy show shop/db", "shop/db, generation 3", "app=db", "in force on", "node1: realised", "node2: failed", "! table is full", "left out", "port 0 is none", "ingress[0]", "TCP 5432", "app=api: shop/api")
	b.prints(0, "endpoint ls", "ADDRESSES", "shop", "db", "node1", "10.0.0.2", "isolated (1 policy)", "open")
	b.prints(0, "endpoint show shop/db", "10.0.0.2", "app=db,tier=back")
	b.prints(0, "flows node1", "2 flows on node1", "table 40 ingress", "WHY", "12", "peer shop/db ingress[0]", "table 60 output", "any", "static")
	b.prints(0, "flows node1 --table output", "1 flow on node1", "output:1")
	b.prints(0, "flows node1 -o wide", "COOKIE", "0xf1")
	b.prints(0, "db", "sound: revision 7, 2 changes waiting")
	b.prints(0, "policy show --help", "Examples:", "netctl policy show shop/db", "--server")
}

// TestPolicyList_Counts: tables are of counts of nodes, which netmaster counts unless it is older; other outputs list
// the nodes.
func TestPolicyList_Counts(t *testing.T) {
	p := inspect.Policy{Namespace: "shop", Name: "db", InForce: &inspect.InForce{Realised: 3, Nodes: 5}}
	b := newBench(t, map[string]any{inspect.AskPolicies: []inspect.Policy{p}})
	for form, counts := range map[string]bool{"table": true, "wide": true, "json": false, "yaml": false} {
		text, _, _ := b.run("policy", "ls", "-o", form)
		if b.asked.Counts != counts || counts && !strings.Contains(text, "3/5 nodes") {
			t.Errorf("-o %s: query %+v, output\n%s", form, b.asked, text)
		}
	}
}

func TestOutputsForPrograms(t *testing.T) {
	b := newBench(t, shop())
	for _, command := range []string{"status", "policy ls", "policy show shop/db", "endpoint ls", "endpoint show shop/db", "flows node1", "db", "cache"} {
		text, _, code := b.run(append(strings.Fields(command), "-o", "json")...)
		var fromJSON, fromYAML any
		if err := json.Unmarshal([]byte(text), &fromJSON); err != nil || code != 0 {
			t.Errorf("%s -o json: %v, exit code %d:\n%s", command, err, code, text)
		}
		text, _, _ = b.run(append(strings.Fields(command), "-o", "yaml")...)
		if err := yaml.Unmarshal([]byte(text), &fromYAML); err != nil {
			t.Errorf("%s -o yaml: %v", command, err)
		}
		one, _ := json.Marshal(fromJSON)
		if other, _ := json.Marshal(fromYAML); !bytes.Equal(one, other) {
			t.Errorf("%s: JSON and YAML say different things:\n%s\n%s", command, one, other)
		}
	}
}

func TestFailuresSayWhatToDo(t *testing.T) {
	b := newBench(t, map[string]any{
		inspect.AskStatus: inspect.Status{Problems: []string{"memcached does not answer"}},
		inspect.AskDB:     inspect.DB{Problems: []string{"rule ab: policy shop/db is missing"}},
	})
	b.prints(exitResult, "status", "degraded: 1 problem", "memcached does not answer", "not everything is well")
	b.prints(exitResult, "db", "not sound", "policy shop/db is missing")
	b.prints(exitFailed, "policy show shop/nobody", "netctl: there is no shop/nobody")
	b.prints(exitUsage, "policy show", "takes [NAMESPACE/NAME], got 0 arguments; see netctl policy show --help")
	b.prints(exitUsage, "flows node1 --colour", "unknown flag: --colour")
	b.prints(exitUsage, "status -o xml", `output "xml": use table, wide, json or yaml`)
	b.flags[1] = "127.0.0.1:1"
	b.prints(exitUnreachable, "status", "netmaster does not answer at 127.0.0.1:1", "--server")
	b.flags[3] = "/nowhere"
	b.prints(exitTrouble, "status", "--tls-ca")
}

func TestCompletion(t *testing.T) {
	b := newBench(t, shop())
	for args, want := range map[string]string{
		"policy show ": "shop/db", "policy wait ": "shop/db", "policy wait shop/db --for ": "in-force\ndelete", "endpoint show ": "shop/db", "flows ": "node1\nnode2", "flows node1 --policy ": "shop/db", "policy ls -n ": "shop", "endpoint ls -n ": "shop",
		"policy show shop/db ": "", "verify ": "node1\nnode2", "verify node2 ": "node1", "status -o ": "table\nwide\njson\nyaml",
	} {
		fields := strings.Split(args, " ")
		var o, e bytes.Buffer
		line := append([]string{"__complete"}, b.flags...)
		run(append(line, fields...), &o, &e)
		got, _, _ := strings.Cut(o.String(), ":4\n")
		if strings.TrimSpace(got) != want {
			t.Errorf("netctl %s<TAB>: %q, want %q", args, got, want)
		}
	}
}
