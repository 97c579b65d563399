package simnodes

import (
	"fmt"
	"strings"
)

// Sizes say how large a cluster is.
type Sizes struct {
	Nodes, Pods, Policies int
	// Wide is how many of the pods are in one namespace, the first, of which every policy selects all pods. 0: there is none.
	Wide int
	// Stored: the first pods are written into etcd, past the API server. It is for large clusters.
	Stored bool
}

const (
	podsOfNamespace = 100
	apps            = 10
	teams           = 50
	// widePolicies are those of the wide namespace.
	widePolicies = 20
)

func (s Sizes) namespaces() int {
	n := max(1, (s.Pods-s.Wide)/podsOfNamespace)
	if s.Wide > 0 {
		n++
	}
	return n
}

func (s Sizes) isWide(namespace int) bool { return s.Wide > 0 && namespace == 0 }

// first is the number of the first namespace that is none of the wide one.
func (s Sizes) first() int {
	if s.Wide > 0 {
		return 1
	}
	return 0
}

func namespaceName(n int) string { return fmt.Sprintf("ns-%d", n) }
func nodeName(n int) string      { return fmt.Sprintf("node-%d", n) }

func namespaceObject(n int) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": %q, "labels": {"team": "t%d"}}}`, namespaceName(n), n%teams)
}

// Every node has 256 addresses for its pods.
func nodeObject(n int) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": %q}, "spec": {"podCIDR": "10.%d.%d.0/24", "podCIDRs": ["10.%[2]d.%d.0/24"]},
		"status": {"addresses": [{"type": "InternalIP", "address": "192.168.%[2]d.%[3]d"}]}}`, nodeName(n), n>>8, n&255)
}

// pod is one of the cluster's.
type pod struct {
	number, namespace, node, app int
	name, uid, address           string
}

func (p *pod) id() string { return namespaceName(p.namespace) + "/" + p.name }

func (p *pod) object() string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {%s}, "spec": %s}`, p.metadata(), p.spec())
}

func (p *pod) spec() string {
	return fmt.Sprintf(`{"nodeName": %q, "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
		"containers": [{"name": "main", "image": "registry.example.com/shop/server:v1.2.3",
		"ports": [{"name": "http", "containerPort": 8080}]}]}`, nodeName(p.node))
}

func (p *pod) metadata() string {
	return fmt.Sprintf(`"name": %q, "namespace": %q, "labels": {"app": "a%d", "release": "stable", "pod-template-hash": "5d59d67564"}`, p.name, namespaceName(p.namespace), p.app)
}

// running is the status that the kubelet writes.
func (p *pod) running() string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {%s}, "status": %s}`, p.metadata(), p.status())
}

func (p *pod) status() string {
	return fmt.Sprintf(`{"phase": "Running", "podIP": %q, "podIPs": [{"ip": %[1]q}],
		"conditions": [{"type": "Ready", "status": "True"}],
		"containerStatuses": [{"name": "main", "image": "registry.example.com/shop/server:v1.2.3", "imageID": "sha256:0",
		"ready": true, "restartCount": 0, "started": true, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]}`,
		p.address)
}

// stored returns the pod as the API server keeps it in etcd, which also reads JSON.
func (p *pod) stored() string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {%s, "uid": %q, "creationTimestamp": "2026-01-01T00:00:00Z"},
		"spec": %s, "status": %s}`, p.metadata(), p.uid, p.spec(), p.status())
}

// path is where the API server keeps it.
func (p *pod) path() string {
	return podsPath(p.namespace) + "/" + p.name
}

func podsPath(namespace int) string {
	return "/api/v1/namespaces/" + namespaceName(namespace) + "/pods"
}

func policiesPath(namespace int) string {
	return "/apis/networking.k8s.io/v1/namespaces/" + namespaceName(namespace) + "/networkpolicies"
}

func policyName(n int) string { return fmt.Sprintf("policy-%d", n) }

// kinds of policies that every namespace has one of, before those between its applications.
var kinds = []string{
	// nobody comes in
	`"podSelector": {}, "policyTypes": ["Ingress"]`,
	// everybody of the namespace comes to every pod of it
	`"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}], "ports": [PORT]}]`,
	// an application speaks only with one of the last namespace, as all of them with the cluster's DNS
	`"podSelector": {"matchLabels": {"app": "a0"}}, "policyTypes": ["Egress"], "egress": [{"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "LAST"}},
		"podSelector": {"matchLabels": {"app": "a0"}}}], "ports": [PORT]}]`,
	// an application of a team's other namespaces
	`"podSelector": {"matchLabels": {"app": "a1"}}, "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"team": "TEAM"}}, "podSelector": {"matchLabels": {"app": "a2"}}}], "ports": [PORT]}]`,
	// the world
	`"podSelector": {"matchLabels": {"app": "a3"}}, "ingress": [{"from": [{"ipBlock": {"cidr": "198.51.0.0/16", "except": ["198.51.100.0/24"]}}], "ports": [PORT]}]`,
}

// policyObject is the namespace's policy of that number: after the kinds, one application may come to another.
func (s Sizes) policyObject(namespace, n, port int) string {
	var spec string
	switch {
	case s.isWide(namespace):
		spec = `"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}], "ports": [PORT]}]`
	case n < len(kinds):
		spec = kinds[n]
	default:
		to := n % apps
		from := (to + 1 + (n-len(kinds))/apps) % apps
		spec = fmt.Sprintf(`"podSelector": {"matchLabels": {"app": "a%d"}}, "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "a%d"}}}], "ports": [PORT]}]`, to, from)
	}
	spec = strings.NewReplacer("PORT", fmt.Sprintf(`{"port": %d}`, port), "LAST", namespaceName(s.namespaces()-1), "TEAM", fmt.Sprintf("t%d", namespace%teams)).Replace(spec)
	return fmt.Sprintf(`{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": %q}, "spec": {%s}}`, policyName(n), spec)
}

// policiesOf is how many policies a namespace has.
func (s Sizes) policiesOf(namespace int) int {
	if s.isWide(namespace) {
		return widePolicies
	}
	return s.Policies / (s.namespaces() - s.first())
}

func defaultPort(n int) int { return 8000 + n }
