package kube

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

func worldFrom(t *testing.T, text string) (*policy.World, string, error) {
	t.Helper()
	objects, err := ReadFrom("cluster.yaml", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	w, _, notes, err := World(objects, Options{})
	return w, strings.Join(notes, "|"), err
}

const cluster = `
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: a}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db, pod-template-hash: x}}, spec: {nodeName: n1, containers: [{name: c, ports: [{name: sql, containerPort: 5432}]}], newField: 1}, status: {podIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: done, namespace: shop}, spec: {}, status: {phase: Succeeded, podIP: 10.0.0.1}}
---
{apiVersion: v1, kind: Pod, metadata: {name: host, namespace: shop}, spec: {hostNetwork: true}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: db, namespace: shop}, spec: {template: {metadata: {labels: {app: db}}}}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: 3, template: {metadata: {labels: {app: web}}, spec: {containers: [{ports: [{name: http, containerPort: 80}]}]}}}}
---
{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: web-1, ownerReferences: [{kind: Deployment, name: web, apiVersion: apps/v1, uid: u}]}, spec: {template: {metadata: {labels: {app: web}}}}}
---
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: none}, spec: {replicas: 0, template: {metadata: {labels: {app: none}}}}}
---
{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: log}, spec: {template: {metadata: {labels: {app: log}}, spec: {hostNetwork: true}}}}
---
{apiVersion: batch/v1, kind: CronJob, metadata: {name: cron}, spec: {jobTemplate: {spec: {template: {metadata: {labels: {app: cron}}}}}}}
---
{apiVersion: v1, kind: Service, metadata: {name: web}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p, namespace: other}, spec: {podSelector: {}, newField: 1}}
`

// TestDryRunsOfManifests: also of what is left of one where only what counts is sent on.
func TestDryRunsOfManifests(t *testing.T) {
	const text = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p, annotations: {flowkeep.io/enforcement: dry-run, note: x}}, spec: {podSelector: {}}}`
	w, _, err := worldFrom(t, text)
	if err != nil || len(w.Policies) != 1 || !w.Policies[0].DryRun {
		t.Fatalf("%v: %+v", err, w.Policies)
	}
	objects, _ := ReadFrom("p.yaml", strings.NewReader(text))
	list, _, err := Policies(objects, Options{})
	if err != nil {
		t.Fatal(err)
	}
	bare, err := Bare(list[0])
	if err != nil || strings.Contains(string(bare), "note") {
		t.Fatalf("%v: %s", err, bare)
	}
	objects, _ = ReadFrom("bare.json", strings.NewReader(string(bare)))
	if list, _, err = Policies(objects, Options{}); err != nil || !Policy(list[0]).DryRun {
		t.Errorf("%v: %s", err, bare)
	}
}

func TestWorldOfManifests(t *testing.T) {
	w, notes, err := worldFrom(t, cluster)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range w.Endpoints {
		got = append(got, fmt.Sprint(e.ID(), " ", e.Addresses, " ", e.Labels["app"], " ", len(e.Ports)))
	}
	want := []string{"default/cronjob/cron [198.18.0.1 2001:db8:198:18::1] cron 0", "default/daemonset/log#1 [] log 0", "default/daemonset/log#2 [] log 0", "default/deployment/web#1 [198.18.0.2 2001:db8:198:18::2] web 1",
		"default/deployment/web#2 [198.18.0.3 2001:db8:198:18::3] web 1", "shop/db [10.0.0.1 fd00::1] db 1", "shop/done [10.0.0.1]  0", "shop/host []  0"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("pods\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	var namespaces []string
	for _, ns := range w.Namespaces {
		namespaces = append(namespaces, fmt.Sprint(ns.Name, " ", ns.Labels))
	}
	if got := strings.Join(namespaces, ", "); got != "default map[kubernetes.io/metadata.name:default], "+
		"other map[kubernetes.io/metadata.name:other], shop map[kubernetes.io/metadata.name:shop team:a]" {
		t.Error(got)
	}
	if len(w.Policies) != 1 || w.Policies[0].ID() != "other/p" {
		t.Errorf("%+v", w.Policies)
	}
	for _, part := range []string{"no Namespace object tells the labels of default, other", "do not count in the cluster: Service (1)", "3 of 8 pods have no address"} {
		if !strings.Contains(notes, part) {
			t.Errorf("no %q in %q", part, notes)
		}
	}
	for text, want := range map[string]string{
		"{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: 7}": "Pod a: cannot unmarshal",
		"{apiVersion: v1, kind: Pod}":                               "metadata.name: it has none",
		"{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a}, spec: {policyTypes: [x]}}":           "spec.policyTypes[0]",
		"{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {template: {metadata: {labels: {app: [1]}}}}}": "Deployment a: cannot unmarshal",
	} {
		if _, _, err := worldFrom(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A pod of a manifest with more labels than the budget is isolated and no peer, as in a cluster.
func TestWorldOfManifests_LabelsOverBudget(t *testing.T) {
	text := "apiVersion: v1\nkind: Pod\nmetadata:\n  name: many\n  namespace: shop\n  labels:\n"
	for i := range policy.DefaultBudgets.Labels + 1 {
		text += fmt.Sprintf("    l%d: x\n", i)
	}
	text += "status: {podIP: 10.0.0.1}\n---\napiVersion: v1\nkind: Pod\n" +
		"metadata: {name: other, namespace: shop, labels: {l0: x}}\nstatus: {podIP: 10.0.0.2}\n"
	w, _, err := worldFrom(t, text)
	if err != nil {
		t.Fatal(err)
	}
	many, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	for _, ends := range [][2]netip.Addr{{many, other}, {other, many}} {
		p := policy.Packet{From: ends[0], To: ends[1], Protocol: policy.TCP, Port: 80}
		if policy.Allowed(w, p).Allowed {
			t.Errorf("%+v passes", p)
		}
	}
}
