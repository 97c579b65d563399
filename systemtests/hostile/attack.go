package hostile

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// An Attack is one way in which a tenant or a node could exhaust netmaster.
type Attack struct {
	Name string
	// Short reports whether the attack is in the gate.
	Short bool
	// run attacks until ctx ends or nothing remains to be done. It returns what failed of the attack itself, as an
	// object that the API server refused.
	run func(ctx context.Context, a *Arena) error
	// paths are the objects that clean deletes.
	paths []string
	// Objects are those of a variant.
	Objects []Object
}

// clean deletes the attack's objects.
func (k *Attack) clean(ctx context.Context, a *Arena) error {
	var failed error
	for _, path := range k.paths {
		err := a.Hub.Do(ctx, http.MethodDelete, path, []byte(`{"gracePeriodSeconds": 0}`))
		if err != nil && !strings.Contains(err.Error(), "NotFound") && !strings.Contains(err.Error(), "not found") {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// Attacks returns all attacks, those of tenants first.
func Attacks() []*Attack {
	return slices.Concat(policyAttacks(), podAttacks(), serviceAttacks(), nodeAttacks(), queryAttacks())
}

// evilPath returns the path of an object of the attacker's namespace.
func evilPath(a *Arena, resource, name string) string {
	group := "/api/v1"
	switch resource {
	case "networkpolicies":
		group = "/apis/networking.k8s.io/v1"
	case "endpointslices":
		group = "/apis/discovery.k8s.io/v1"
	}
	return strings.TrimSuffix(fmt.Sprintf("%s/namespaces/%s/%s/%s", group, a.NamespaceName(evilNamespace), resource, name), "/")
}

// list returns format filled in with 0 to n-1, separated by commas.
func list(n int, format func(i int) string) string {
	items := make([]string, n)
	for i := range items {
		items[i] = format(i)
	}
	return strings.Join(items, ",")
}

// policyAttack is an attack with one policy, of which edits is how often a second it is written again.
func policyAttack(name string, short bool, edits int, spec func() string) *Attack {
	k := &Attack{Name: name, Short: short}
	k.run = func(ctx context.Context, a *Arena) error {
		path := evilPath(a, "networkpolicies", "evil")
		k.paths = []string{path}
		object := func(revision int) []byte {
			return fmt.Appendf(nil, `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
				"metadata": {"name": "evil", "annotations": {"revision": "%d"}}, "spec": {%s}}`, revision,
				strings.ReplaceAll(spec(), "REVISION", fmt.Sprint(revision)))
		}
		if err := a.Hub.Do(ctx, http.MethodPost, evilPath(a, "networkpolicies", ""), object(0)); err != nil {
			return err
		}
		return repeat(ctx, edits, func(n int) error { return a.Hub.Do(ctx, http.MethodPut, path, object(n)) })
	}
	return k
}

// repeat calls do so many times a second until ctx ends; 0: never.
func repeat(ctx context.Context, perSecond int, do func(n int) error) error {
	if perSecond == 0 {
		return nil
	}
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if err := do(n); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

func policyAttacks() []*Attack {
	everyPeer := func(i int) string {
		return fmt.Sprintf(`{"namespaceSelector": {}, "podSelector": {"matchExpressions": [{"key": "x%d", "operator": "DoesNotExist"}]}}`, i)
	}
	onePeer := func(i int) string { return fmt.Sprintf(`{"podSelector": {"matchLabels": {"app": "x%d"}}}`, i) }
	portName := func(i int) string { return fmt.Sprintf(`{"port": "n%d"}`, i) }
	egress := func(peers, ports string) string {
		return fmt.Sprintf(`"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": [%s], "ports": [%s]}]`, peers, ports)
	}
	ingress := func(peers, ports string) string {
		return fmt.Sprintf(`"podSelector": {}, "ingress": [{"from": [%s], "ports": [%s]}]`, peers, ports)
	}
	return []*Attack{
		policyAttack("2,000 peers and 2,000 port names", true, 1, func() string {
			return egress(list(2000, onePeer), list(2000, portName))
		}),
		policyAttack("500 peers that select every pod", false, 0, func() string {
			return ingress(list(500, everyPeer), `{"port": 80}`)
		}),
		policyAttack("500 peers that select every pod, edited twice a second", false, 2, func() string {
			return ingress(list(500, everyPeer), `{"port": 80}`) + `, "policyTypes": ["Ingress"]`
		}),
		policyAttack("16,500 rules with a port each", true, 0, func() string {
			rule := func(i int) string { return fmt.Sprintf(`{"ports": [{"port": %d}]}`, i+1) }
			return `"podSelector": {}, "ingress": [` + list(16500, rule) + `]`
		}),
		policyAttack("one rule with 20,000 ports", false, 1, func() string {
			port := func(i int) string { return fmt.Sprintf(`{"port": %d}`, 2*i+1) }
			return ingress(`{"podSelector": {}}`, list(20000, port))
		}),
		policyAttack("5,000 blocks with four exceptions each", false, 1, func() string {
			block := func(i int) string {
				net := fmt.Sprintf("%d.%d", 11+i>>8, i&255)
				except := func(e int) string { return fmt.Sprintf(`"%s.%d.0/24"`, net, e) }
				return fmt.Sprintf(`{"ipBlock": {"cidr": "%s.0.0/16", "except": [%s]}}`, net, list(4, except))
			}
			return ingress(list(5000, block), `{"port": 80}`)
		}),
		policyAttack("100 peers with 100 values each", false, 1, func() string {
			return ingress(list(100, func(i int) string {
				value := func(v int) string { return fmt.Sprintf(`"v%d-%d"`, i, v) }
				return fmt.Sprintf(`{"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": [%s]}]}}`,
					list(100, value))
			}), `{"port": 80}`)
		}),
		manyPolicies("300 policies with selectors of their own", func(i int) string {
			return fmt.Sprintf(`{"namespaceSelector": {"matchExpressions": [{"key": "z%d", "operator": "DoesNotExist"}]}}`, i)
		}),
		manyPolicies("300 policies that select nearly every pod", func(i int) string {
			// Each lacks another namespace or application.
			return fmt.Sprintf(`{"namespaceSelector": {"matchExpressions": [{"key": "kubernetes.io/metadata.name",
				"operator": "NotIn", "values": ["ns-%d"]}]}, "podSelector": {"matchExpressions": [{"key": "app",
				"operator": "NotIn", "values": ["a%d"]}]}}`, i%50, i/50)
		}),
	}
}

// manyPolicies is an attack with many small policies, each with selectors of its own that select every pod, or nearly.
func manyPolicies(attack string, peer func(i int) string) *Attack {
	k := &Attack{Name: attack}
	k.run = func(ctx context.Context, a *Arena) error {
		for i := range 300 {
			name := fmt.Sprintf("evil-%d", i)
			k.paths = append(k.paths, evilPath(a, "networkpolicies", name))
			object := fmt.Sprintf(`{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": %q},
				"spec": {"podSelector": {"matchExpressions": [{"key": "y%d", "operator": "DoesNotExist"}]},
				"ingress": [{"from": [%s]}]}}`, name, i, peer(i))
			if err := a.Hub.Do(ctx, http.MethodPost, evilPath(a, "networkpolicies", ""), []byte(object)); err != nil {
				return err
			}
		}
		return nil
	}
	return k
}
