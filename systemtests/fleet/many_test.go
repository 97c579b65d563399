package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/fleet"
)

// sizes of a fleet: all gateways go to all clusters, with so many policies each; shared policies target several gateways. Cloned: the hub
// has one cluster until clone.
type sizes struct {
	gateways, policies, clusters, shared int
	cloned                               bool
}

// sharing is how many gateways a shared policy targets.
const sharing = 4

// policyBytes is about how large a policy is.
const policyBytes = 1000

// many is a hub with many gateways, policies and clusters. The clusters' agents are simulated, the rest is real.
type many struct {
	*testing.T
	*fleet.Fleet
	sizes
	ctx    context.Context
	agents *agents
	chosen int           // clusters that the Placement has chosen
	added  int           // policies that a gateway has beside those of the sizes
	limit  time.Duration // how long anything may take; it is no measure
}

const manyNamespace = "many"

func newMany(t *testing.T, s sizes, limit time.Duration) *many {
	t.Helper()
	f, err := fleet.Start(t.Context(), fleet.Options{Spokes: []string{}, Large: true, Progress: t.Logf})
	if f != nil {
		t.Cleanup(func() {
			if err := f.End(); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	m := &many{t, f, s, t.Context(), &agents{hub: f.Hub, works: map[string]seen{}}, s.clusters, 0, limit}
	if s.cloned {
		m.chosen = 1
	}
	t.Cleanup(func() {
		if t.Failed() {
			m.Logf("%s wrote last:\n%s", fleet.PolicySync, m.Tail(fleet.PolicySync))
		}
	})
	m.make()
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { m.agents.run(ctx, m.clusterNames()) })
	t.Cleanup(func() { stop(); all.Wait() })
	return m
}

func (m *many) must(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

func (m *many) clusterNames() (names []string) {
	for n := range m.clusters {
		names = append(names, fmt.Sprintf("cluster-%03d", n))
	}
	return names
}

func gatewayName(n int) string         { return fmt.Sprintf("gateway-%03d", n) }
func policyName(gateway, n int) string { return fmt.Sprintf("policy-%03d-%03d", gateway, n) }
func sharedName(n int) string          { return fmt.Sprintf("shared-%03d", n) }
func manyPolicyPath(name string) string {
	return "/apis/example.com/v1/namespaces/" + manyNamespace + "/manypolicies/" + name
}
func manySource(policy string) string {
	return "ManyPolicy.example.com/" + manyNamespace + "/" + policy
}

const manyPolicies = `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: manypolicies.example.com}, spec: {
	group: example.com, scope: Namespaced, names: {kind: ManyPolicy, listKind: ManyPolicyList, plural: manypolicies, singular: manypolicy},
	versions: [{name: v1, served: true, storage: true, subresources: {status: {}}, schema: {openAPIV3Schema: {type: object, properties: {
		spec: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {targetRefs: {type: array, items: {type: object, x-kubernetes-preserve-unknown-fields: true}}}},
		status: {type: object, properties: {conditions: {type: array, items: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}}}}}]}}`

// make makes what the users of the hub make.
func (m *many) make() {
	m.Helper()
	m.must(m.Hub.Create(m.ctx, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", manyPolicies))
	m.must(m.Hub.Defined(m.ctx))
	if m.cloned {
		m.must(m.AddCluster(m.ctx, m.clusterNames()[0]))
	} else {
		m.each(m.clusters, func(n int) error { return m.AddCluster(m.ctx, m.clusterNames()[n]) })
	}
	for _, o := range []struct{ namespace, manifest string }{
		{"", `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: many}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin},
			subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: policy-sync}]}`},
		{"", namespace(manyNamespace)},
		{manyNamespace, `{apiVersion: cluster.open-cluster-management.io/v1beta2, kind: ManagedClusterSetBinding, metadata: {name: ` + fleet.ClusterSet + `}, spec: {clusterSet: ` + fleet.ClusterSet + `}}`},
		{manyNamespace, `{apiVersion: cluster.open-cluster-management.io/v1beta1, kind: Placement, metadata: {name: everywhere}, spec: {clusterSets: [` + fleet.ClusterSet + `]}}`},
		{manyNamespace, `{apiVersion: v1, kind: ConfigMap, metadata: {name: many}, data: {downstreamClass: istio, policies: "[{group: example.com, kind: ManyPolicy}]"}}`},
		{"", `{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: many}, spec: {controllerName: flowkeep.io/gateway-sync,
			parametersRef: {group: "", kind: ConfigMap, namespace: ` + manyNamespace + `, name: many}}}`},
	} {
		m.must(m.Hub.Apply(m.ctx, o.namespace, o.manifest))
	}
	m.each(m.gateways, func(n int) error {
		return m.Hub.Apply(m.ctx, manyNamespace, fmt.Sprintf(`{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: %s, labels: {cluster.open-cluster-management.io/placement: everywhere}},
			spec: {gatewayClassName: many, listeners: [{name: http, port: 80, protocol: HTTP}]}}`, gatewayName(n)))
	})
	m.each(m.gateways*m.policies, func(n int) error {
		return m.policy(policyName(n/m.policies, n%m.policies), policyBytes, gatewayName(n/m.policies))
	})
	m.each(m.shared, func(n int) error {
		var targets []string
		for i := range sharing {
			targets = append(targets, gatewayName((n+i)%m.gateways))
		}
		return m.policy(sharedName(n), policyBytes, targets...)
	})
}

// clone gives all clusters what the first one has, as policy-sync and agents would have made it. policy-sync must not run.
func (m *many) clone() {
	m.Helper()
	others, works := m.clusterNames()[1:], len(m.agents.all())*m.clusters
	m.chosen = m.clusters
	m.must(m.CloneWorks(m.ctx, m.clusterNames()[0], others))
	m.must(cluster.Until(m.ctx, m.limit, func() error {
		if n := len(m.agents.all()); n != works {
			return fmt.Errorf("agents see %d works, and not %d", n, works)
		}
		return nil
	}))
	m.each(len(others), func(n int) error { return m.AddCluster(m.ctx, others[n]) })
	m.must(cluster.Until(m.ctx, m.limit, func() error {
		var list struct {
			Items []struct {
				Status struct {
					Decisions []struct{ ClusterName string }
				}
			}
		}
		if err := m.Hub.Get(m.ctx, "/apis/cluster.open-cluster-management.io/v1beta1/namespaces/"+manyNamespace+"/placementdecisions", &list); err != nil {
			return err
		}
		chosen := 0
		for _, d := range list.Items {
			chosen += len(d.Status.Decisions)
		}
		if chosen != m.clusters {
			return fmt.Errorf("%d clusters are chosen", chosen)
		}
		return nil
	}))
}

// each does things, some at a time.
func (m *many) each(count int, do func(n int) error) {
	m.Helper()
	failed := make([]error, 16)
	var all sync.WaitGroup
	for i := range failed {
		all.Go(func() {
			for n := i; n < count && failed[i] == nil; n += len(failed) {
				failed[i] = do(n)
			}
		})
	}
	all.Wait()
	m.must(errors.Join(failed...))
}

// policy makes one of about that size.
func (m *many) policy(name string, bytes int, gateways ...string) error {
	var refs []string
	for _, g := range gateways {
		refs = append(refs, `{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "`+g+`"}`)
	}
	return m.Hub.Do(m.ctx, http.MethodPost, strings.TrimSuffix(manyPolicyPath(""), "/"), fmt.Appendf(nil, `{"apiVersion": "example.com/v1", "kind": "ManyPolicy", "metadata": {"name": %q},
		"spec": {"targetRefs": [%s], "rate": 0, "rules": %q}}`, name, strings.Join(refs, ","), strings.Repeat("a rule ", bytes/7)))
}

// edit changes a policy.
func (m *many) edit(name string, rate int) {
	m.Helper()
	m.must(m.Hub.Patch(m.ctx, manyPolicyPath(name), fmt.Sprintf(`{"spec": {"rate": %d}}`, rate)))
}

// answered waits until all that is to be there is in the works of so many clusters, once, nothing in them is only asked for, and their agents have
// answered.
func (m *many) answered(clusters int) map[string]seen {
	m.Helper()
	want := (m.gateways*(1+m.policies) + m.shared + m.added) * clusters
	var all map[string]seen
	m.until(func() error {
		all = m.agents.all()
		carried := 0
		for name, s := range all {
			if s.answered != s.generation || s.asks {
				return fmt.Errorf("%s is answered in generation %d and has %d, asking %v", name, s.answered, s.generation, s.asks)
			}
			for source := range s.holds {
				if source != "" { // namespaces have none
					carried++
				}
			}
		}
		if carried != want {
			return fmt.Errorf("%d works carry %d copies, and not %d", len(all), carried, want)
		}
		return nil
	})
	return all
}

func (m *many) until(ok func() error) {
	m.Helper()
	m.must(cluster.Until(m.ctx, m.limit, func() error {
		if err := m.Alive(fleet.PolicySync); err != nil {
			m.Fatal(err)
		}
		return ok()
	}))
}

// still is for how long policy-sync writes nothing that has nothing to do.
const still = 1500 * time.Millisecond

// quiet waits until policy-sync seems to have nothing more to do: nothing waits, and for a while it has written nothing.
// An event may still be on its way to it: what depends on that has to be checked again.
func (m *many) quiet() {
	m.Helper()
	last, since := -1.0, time.Now()
	m.until(func() error {
		text := m.metrics()
		if all := sum(text, "writes_total"); all != last || sum(text, "queue_depth") > 0 {
			last, since = all, time.Now()
		}
		if time.Since(since) < still {
			return errors.New("policy-sync is at work")
		}
		return nil
	})
}

func (m *many) metrics() string {
	m.Helper()
	text, err := m.Page(m.ctx, fleet.PolicySync, "/metrics")
	m.must(err)
	return text
}

// sum is that of policy-sync's metrics whose name has this in it.
func sum(metrics, name string, labels ...string) (all float64) {
	for line := range strings.Lines(metrics) {
		at := strings.LastIndex(line, " ")
		if !strings.HasPrefix(line, "flowkeep_policy_sync_") || at < 0 || !strings.Contains(line, name) || !containsEach(line, labels) {
			continue
		}
		var n float64
		if _, err := fmt.Sscan(line[at+1:], &n); err == nil {
			all += n
		}
	}
	return all
}

func containsEach(text string, parts []string) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
}

// told holds that the hub's policies say that they are everywhere, in the version that they have.
func (m *many) told() {
	m.Helper()
	m.until(func() error {
		var list struct {
			Items []struct {
				Metadata struct {
					Name       string
					Generation int64
				}
				Status struct{ Conditions []fleet.Condition }
			}
		}
		if err := m.Hub.Get(m.ctx, strings.TrimSuffix(manyPolicyPath(""), "/"), &list); err != nil {
			return err
		}
		for _, p := range list.Items {
			for _, kind := range []string{"Synced", "Enforced"} {
				if c := fleet.Find(p.Status.Conditions, "fleet.flowkeep.io/"+kind); c.Status != "True" || c.ObservedGeneration != p.Metadata.Generation || !strings.HasPrefix(c.Message, fmt.Sprintf("in %d cluster", m.chosen)) {
					return fmt.Errorf("policy %s in generation %d says %+v", p.Metadata.Name, p.Metadata.Generation, c)
				}
			}
		}
		return nil
	})
}

// written are the works of which the spec is another one, and how often it was written.
func written(before, after map[string]seen) map[string]int64 {
	found := map[string]int64{}
	for name, s := range after {
		if n := s.generation - before[name].generation; n != 0 {
			found[name] = n
		}
	}
	return found
}

// touched are the works of which anything is another one.
func touched(before, after map[string]seen) (names []string) {
	for name, s := range after {
		if s.version != before[name].version {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// holdsStill fails the test unless do can be followed by no change of a work, and by nothing that the checks refuse. The
// first times, events from before may still arrive; a loop, and a start that writes, change works each time.
func (m *many) holdsStill(what string, do func(), checks ...func() error) {
	m.Helper()
	m.until(func() error {
		before := m.agents.all()
		do()
		m.quiet()
		after := m.agents.all()
		if changed := touched(before, after); len(changed) > 0 || len(before) != len(after) {
			return fmt.Errorf("%s: of %d works %d are others now: %.300v", what, len(before), len(changed), changed)
		}
		for _, check := range checks {
			if err := check(); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
		return nil
	})
}

// restart ends policy-sync and starts another one, which finds all as it is to be.
func (m *many) restart() {
	m.Helper()
	m.holdsStill("after a restart", func() {
		m.must(m.Stop(fleet.PolicySync))
		m.must(m.StartPolicySync(m.ctx, fleet.PolicySync))
	}, func() error {
		if n := sum(m.metrics(), "writes_total"); n != 0 {
			return fmt.Errorf("%v writes were made", n)
		}
		return nil
	})
}

// editsOnce changes a policy, waits until its works are written and answered, and holds that they were written once and no others were.
func (m *many) editsOnce(policy string, rate int) (took []time.Duration) {
	m.Helper()
	holding := m.agents.holding(manySource(policy))
	if len(holding) != m.clusters {
		m.Fatalf("%d works hold the policy %s, for %d clusters", len(holding), policy, m.clusters)
	}
	before := m.agents.all()
	m.edit(policy, rate)
	begin := time.Now()
	m.until(func() error {
		now := m.agents.some(holding)
		for _, name := range holding {
			if s := now[name]; s.generation == before[name].generation || s.answered != s.generation {
				return fmt.Errorf("%s has generation %d, answered %d", name, s.generation, s.answered)
			}
		}
		return nil
	})
	after := m.agents.all()
	for _, name := range holding {
		took = append(took, after[name].at.Sub(begin))
	}
	slices.Sort(took)
	changed := written(before, after)
	if names := slices.Sorted(maps.Keys(changed)); !slices.Equal(names, holding) {
		m.Errorf("an edit of %s, which %d works hold, has others written: %.300v", policy, len(holding), names)
	}
	for name, times := range changed {
		if times != 1 {
			m.Errorf("an edit of %s has %s written %d times", policy, name, times)
		}
	}
	return took
}

// A fleet with many works: what has been sent is not sent again, and what changes is sent to those whom it concerns, once.
func TestFleetManyWorks(t *testing.T) {
	m := newMany(t, sizes{gateways: 10, policies: 5, clusters: 10, shared: 3}, 4*time.Minute)
	m.must(m.StartPolicySync(m.ctx, fleet.PolicySync))
	m.answered(m.clusters)
	m.told()
	m.quiet()
	m.restart()
	m.editsOnce(policyName(3, 2), 1)
	m.editsOnce(sharedName(1), 1)
	m.told()
	m.until(func() error { // an agent may have a work before policy-sync has counted its write
		if n := int(sum(m.metrics(), "work_writes_total", `outcome="written"`)); n < 2*m.clusters {
			return fmt.Errorf("two edits took %d writes of works", n)
		}
		return nil
	})
	m.quiet()
	if n := int(sum(m.metrics(), "work_writes_total", `outcome="written"`)); n != 2*m.clusters {
		m.Errorf("two edits took %d writes of works, and not %d", n, 2*m.clusters)
	}
	if n := int(sum(m.metrics(), "status_writes_total")); n == 0 || n > 2*m.clusters {
		m.Errorf("two edits took %d writes of statuses: each answer of %d clusters is told by itself", n, m.clusters)
	}
	m.holdsStill("when idle", m.quiet)
	m.holdsStill("after a change of what does not count", func() {
		m.must(m.Hub.Patch(m.ctx, manyPolicyPath(policyName(1, 1)), `{"metadata": {"managedFields": [{}]}}`))
	})
}
