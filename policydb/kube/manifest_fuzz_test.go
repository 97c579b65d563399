package kube

import (
	"strings"
	"testing"
)

// FuzzManifest holds for any text: no panic; what is accepted as a policy has a name and a namespace, and all of it is
// enforced, but for CIDRs that API servers of some versions accept; a cluster of it can be made or is refused.
func FuzzManifest(f *testing.F) {
	for _, seed := range []string{
		np + "metadata: {name: a}\nspec: {podSelector: {matchLabels: {a: b}}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.1/8, except: [10.1.0.0/16]}}], ports: [{port: 80, endPort: 90}]}]}\n--- \n...\n--- {}",
		`{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "b"}, "spec": {"egress": [{"to": [{"namespaceSelector": {}}]}]}}]}{}`,
		"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nstatus: {podIPs: [{ip: 10.0.0.1}, {ip: x}]}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: n, labels: {a: b}}\n",
		"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {replicas: 3, template: {metadata: {labels: {a: b}}, spec: {containers: [{ports: [{name: web, containerPort: 80}]}]}}}\n",
		"apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: c}\nspec: {jobTemplate: {spec: {template: {metadata: {labels: {a: b}}}}}}\n",
		"a: &a [*a]", "\t", "%YAML 1.2\n---\n", "- 1\n- 2", "kind: List\napiVersion: v1\nitems: [{kind: List, apiVersion: v1, items: [{kind: List, apiVersion: v1, items: []}]}]",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		objects, err := ReadFrom("f", strings.NewReader(text))
		if err != nil {
			if len(err.Error()) > 20_000 {
				t.Fatalf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		list, _, _ := Policies(objects, Options{})
		for _, p := range list {
			if p.Name == "" || p.Namespace == "" {
				t.Fatalf("of no name: %+v", p)
			}
			for _, problem := range Policy(p).Problems {
				if !strings.HasPrefix(problem, "metadata.annotations:") && !strings.Contains(problem, "idr:") && !strings.Contains(problem, "except[") {
					t.Fatalf("is accepted and not enforced: %s", problem)
				}
			}
		}
		if w, _, _, err := World(objects, Options{}); err == nil {
			for _, e := range w.Endpoints {
				if len(e.Addresses) == 0 && !e.HostNetwork && !e.Finished {
					t.Fatalf("%s has no address", e.ID())
				}
			}
		}
	})
}
