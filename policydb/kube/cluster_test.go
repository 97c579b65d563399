package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const twoNodes = `
apiVersion: v1
kind: NodeList
items: [{metadata: {name: node1}}, {metadata: {name: node2}}]
---
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
`

// pod returns the manifest of a pod with a port.
func podText(name, rest string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: shop}
spec: {%s containers: [{name: c, ports: [{containerPort: 80}, {containerPort: 80}, {containerPort: 53, protocol: UDP}]}]}
`, name, rest)
}

func clusterOf(t *testing.T, text string) (*Cluster, error) {
	t.Helper()
	objects, err := ReadFrom("test.yaml", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return ClusterOf(objects)
}

// TestClusterOf_Schedules: pods without a node are spread in order of their names; the same manifests, in any order of
// documents, give the same cluster.
func TestClusterOf_Schedules(t *testing.T) {
	deployment := `---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec: {replicas: 5, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c}]}}}
`
	parts := []string{podText("b", ""), deployment, podText("a", "nodeName: node2,"), "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"}
	var first []string
	for range 2 {
		c, err := clusterOf(t, twoNodes+strings.Join(parts, ""))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range c.Pods {
			got = append(got, fmt.Sprint(p.Name, " ", p.Spec.NodeName, " ", p.UID, " ", len(Ports(p))))
		}
		if first == nil {
			first = got
		}
		if !slices.Equal(got, first) {
			t.Errorf("%v, before %v", got, first)
		}
		if len(c.Namespaces) != 3 || len(c.Notes) != 1 || !strings.Contains(c.Notes[0], "ConfigMap") {
			t.Errorf("%d namespaces, notes %v", len(c.Namespaces), c.Notes)
		}
		slices.Reverse(parts)
	}
	for i, want := range []string{"a node2 ", "b node1 ", "web-0 node2 ", "web-1 node1 "} {
		if len(first) != 4 || !strings.HasPrefix(first[i], want) {
			t.Fatalf("%q", first)
		}
	}
	if !strings.HasSuffix(first[0], " 2") {
		t.Errorf("ports of a: %s", first[0])
	}
}

// TestClusterOf_Refuses: each object that an API server would refuse is named.
func TestClusterOf_Refuses(t *testing.T) {
	for text, want := range map[string]string{
		podText("a", "nodeName: node3,"): "Pod shop/a: spec.nodeName: there is no node node3",
		podText("A", ""):                 "test.yaml, document 3 (line 10): Pod shop/A: metadata.name",
		podText("a", "nodeNam: node1,"):  `unknown field "spec.nodeNam"`,
		"apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: shop}\nspec: {}":                    "spec.containers: Required value",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: shap}\nspec: {containers: [{}]}":    `namespaces "shap" not found`,
		"apiVersion: v1\nkind: Service\nmetadata: {name: 1a, namespace: shop}":                         "metadata.name",
		"apiVersion: v1\nkind: Namespace\nmetadata: {name: a, namespace: shop}":                        "metadata.namespace",
		"apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: a, namespace: shap}":  `namespaces "shap" not found`,
		"apiVersion: extensions/v1beta1\nkind: NetworkPolicy\nmetadata: {name: a, namespace: default}": "the API server knows no NetworkPolicy",
	} {
		if _, err := clusterOf(t, twoNodes+text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
