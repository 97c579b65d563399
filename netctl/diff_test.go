package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/kube"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// file writes a manifest and returns its name.
func file(t *testing.T, name, text string) string {
	t.Helper()
	name = filepath.Join(t.TempDir(), name)
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

const dbPolicy = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec: {podSelector: {matchLabels: {app: db}}, ingress: [{ports: [{port: 80}]}]}
`

// answered is what netmaster says of a policy that isolates shop/db.
func answered(t *testing.T) inspect.Diff {
	t.Helper()
	pod := func(name, at string) *policy.Endpoint {
		return &policy.Endpoint{Namespace: "shop", Name: name, Labels: map[string]string{"app": name}, Addresses: []netip.Addr{netip.MustParseAddr(at)}}
	}
	w := &policy.World{Namespaces: []policy.Namespace{{Name: "shop"}}, Endpoints: []*policy.Endpoint{pod("db", "10.0.0.1"), pod("web", "10.0.0.2")}}
	after, tried := explain.Try(w, []explain.Attempt{{Policy: &policy.Policy{Namespace: "shop", Name: "db", AppliedTo: policy.Selector{Requirements: []policy.Requirement{{Key: "app", Operator: policy.In, Values: []string{"db"}}}},
		IsolatesIngress: true, Ingress: []policy.PolicyRule{{AnyPeer: true, Ports: []policy.PolicyPort{{Protocol: policy.TCP, First: 80, Last: 80}}}}}}})
	return inspect.Diff{Policies: tried, Delta: explain.Diff(explain.NewModel(w), explain.NewModel(after)), Live: &inspect.Live{Connections: 3, Unknown: map[string]string{"node2": "away"},
		Cuts: []inspect.LiveCut{{Difference: 0, Connections: 3, Protocols: map[string]int{"TCP": 3}, Examples: []string{"TCP a → b", "TCP c → d"}}}}}
}

func TestDiffPrints(t *testing.T) {
	b := newBench(t, map[string]any{inspect.AskDiff: answered(t)})
	f := file(t, "p.yaml", dbPolicy+"---\n{apiVersion: v1, kind: Service, metadata: {name: s}}\n")
	b.prints(exitResult, "diff -f "+f, "1 allowed → denied, 0 denied → allowed; 3 live connections would be cut, or more\n", "created", "shop/db", "FROM", "TO", "PORTS", "VERDICT", "LIVE", "BECAUSE",
		"shop/web, world", "shop/db", "all but TCP 80", "allowed → denied", "3", "isolated for ingress by shop/db", "TCP a → b\n", "note: connections of node node2 are not all known: away", "left out: Service s")
	if q := b.asked.Diff; q == nil || len(q.Policies) != 1 || q.Delete || !q.Connections || !strings.Contains(string(q.Policies[0]), `"namespace":"shop"`) {
		t.Errorf("asked %+v", q)
	}
	b.prints(exitResult, "diff -o wide -f "+f, "TCP a → b", "TCP c → d")
	b.prints(exitResult, "diff -o json -f "+f, `"policies": [`, `"differences": [`, `"lost": "all but TCP 80"`, `"effect": "isolates"`, `"live": {`)
	b.prints(exitResult, "diff -o yaml --delete --no-connections -f "+f, "policy: shop/db")
	if q := b.asked.Diff; !q.Delete || q.Connections {
		t.Errorf("asked %+v", q)
	}
	if _, errOut, code := b.run("diff", "-f", f); errOut != "" || code != exitResult {
		t.Errorf("%d, %q", code, errOut)
	}
	b.answers[inspect.AskDiff] = inspect.Diff{Policies: []explain.Tried{{Policy: "shop/db", Action: explain.Unchanged, Notes: []string{"a note"}}}}
	b.prints(0, "diff -f "+f, "nothing would change\n", "unchanged  shop/db", "note: shop/db: a note")
	b.prints(0, "diff -f "+file(t, "s.yaml", "{apiVersion: v1, kind: Service, metadata: {name: s}}"), "nothing would change", "there is no NetworkPolicy")
}

// Trouble is not taken for a difference.
func TestDiffInTrouble(t *testing.T) {
	b := newBench(t, map[string]any{})
	good, bad := file(t, "p.yaml", dbPolicy), file(t, "bad.yaml", strings.ReplaceAll(dbPolicy, "port: 80", "port: 0"))
	b.prints(exitTrouble, "diff -f "+good, "netctl: there is no")
	b.prints(exitUsage, "diff -f "+good+" -f "+bad, "bad.yaml, document 1 (line 1): NetworkPolicy shop/db: spec.ingress[0].ports[0].port: Invalid value: 0")
	b.prints(exitUsage, "diff", "say which manifests")
	b.prints(exitUsage, "diff -f - -f -", "-f - once")
	b.prints(exitUsage, "diff -f "+filepath.Join(t.TempDir(), "none.yaml"), "no such file")
	b.prints(exitUsage, "diff -f "+file(t, "empty.yaml", "# nothing\n"), "empty.yaml holds no objects")
	b.prints(exitUsage, "diff -n web -f "+good, "metadata.namespace is shop, but --namespace is web")
	b.prints(exitUsage, "diff -o html -f "+good, "use table, wide, json or yaml")
	b.prints(exitUsage, "diff shop/db", "takes [], got 1 arguments")
	b.fail(status.Error(codes.Unimplemented, "this netmaster does not know"))
	b.prints(exitTrouble, "diff -f "+good, "netctl: this netmaster does not know")
	b.fail(nil)
	b.flags[1] = "127.0.0.1:1"
	b.prints(exitUnreachable, "diff -f "+good, "netmaster does not answer at")
}

// Without a cluster the first manifest is the cluster.
func TestDiffOffline(t *testing.T) {
	b := newBench(t, nil)
	b.flags = []string{"--server", "127.0.0.1:1", "--tls-ca", "/none"}
	const pods = `
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}}, status: {podIPs: [{ip: 10.0.0.1}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, status: {podIPs: [{ip: 10.0.0.2}]}}
---
`
	cluster, with, policies := file(t, "cluster.yaml", pods), file(t, "all.yaml", pods+dbPolicy), filepath.Dir(file(t, "policies/db.yaml", dbPolicy))
	b.prints(exitResult, "diff --offline -f "+cluster+" -f "+policies, "1 allowed → denied, 0 denied → allowed\n", "created", "shop/db", "shop/web, world", "all but TCP 80", "isolated for ingress by shop/db")
	b.prints(exitResult, "diff --offline -f "+with, "1 allowed → denied, 0 denied → allowed\n", "created", "shop/db")
	b.prints(0, "diff --offline -f "+with+" -f "+policies, "nothing would change", "unchanged", "shop/db")
	b.prints(exitResult, "diff --offline --delete -f "+with+" -f "+policies, "0 allowed → denied, 1 denied → allowed\n", "removed", "no longer isolated for ingress by shop/db")
	b.prints(exitResult, "diff --offline --delete -f "+with, "0 allowed → denied, 1 denied → allowed\n", "removed")
	b.prints(0, "diff --offline --delete -f "+cluster+" -f "+policies, "nothing would change", "missing", "shop/db")
	b.prints(0, "diff --offline -f "+policies, "nothing would change", "has no pods")
	b.prints(exitUsage, "diff --offline -f "+cluster+" -f "+file(t, "bad.yaml", dbPolicy+"x: 1\n"), `unknown field "x"`)
}

func TestDiffOfTooMuch(t *testing.T) {
	b := newBench(t, map[string]any{inspect.AskDiff: inspect.Diff{}})
	var many strings.Builder
	for i := range 12_000 {
		many.WriteString("---\n" + strings.Replace(dbPolicy, "name: db", fmt.Sprintf("name: db%d", i), 1))
	}
	b.prints(exitUsage, "diff -f "+file(t, "many.yaml", many.String()), "12000 policies are more than netmaster takes")
}

// Objects that name no namespace are where kubectl would put them.
func TestDiffInTheContextsNamespace(t *testing.T) {
	kubeconfig := file(t, "config", "{apiVersion: v1, kind: Config, current-context: a, clusters: [{name: c, cluster: {server: \"https://127.0.0.1:1\"}}], contexts: [{name: a, context: {cluster: c, namespace: web}}, {name: b, context: {cluster: c}}]}")
	objects, err := kube.ReadFrom("f", strings.NewReader(strings.Replace(dbPolicy, ", namespace: shop", "", 1)))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		o    diffOptions
		want string
	}{
		{diffOptions{options: &options{kubeconfig: kubeconfig}}, "web"}, {diffOptions{options: &options{kubeconfig: kubeconfig, context: "b"}}, "default"},
		{diffOptions{options: &options{kubeconfig: kubeconfig}, namespace: "shop"}, "shop"}, {diffOptions{options: &options{kubeconfig: kubeconfig}, offline: true}, "default"},
		{diffOptions{options: &options{kubeconfig: kubeconfig, server: "x"}}, "default"}, {diffOptions{options: &options{kubeconfig: "/none"}}, "default"},
	} {
		if list, _, err := c.o.policies(objects); err != nil || len(list) != 1 || list[0].Namespace != c.want {
			t.Errorf("%+v: %v, %v; want %s", c.o, list, err, c.want)
		}
	}
}
