package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// ClusterSet is the ManagedClusterSet of all spokes.
const ClusterSet = "fleet"

// LockedGroup is the only API group on spokes in which the work agents may do nothing.
const LockedGroup = "locked.example.com"

// agentRole is what the work agents may do on spokes: much, and nothing in LockedGroup.
const agentRole = `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: work-agent}, rules: [
	{apiGroups: ["", apps, apiextensions.k8s.io, authorization.k8s.io, coordination.k8s.io, events.k8s.io, networking.k8s.io, work.open-cluster-management.io,
		gateway.networking.k8s.io, kuadrant.io, fleet.flowkeep.io, example.com], resources: ["*"], verbs: ["*"]}]}`

// testKinds lets policy-sync have the policies of the tests' own kinds.
const testKinds = `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: test-kinds}, rules: [
	{apiGroups: [example.com, locked.example.com], resources: ["*"], verbs: [get, list, watch, update]}]}`

// join makes the hub and the spokes what they are before Flowkeep comes, and installs its definitions and roles.
func (f *Fleet) join(ctx context.Context) error {
	var all sync.WaitGroup
	failed := make([]error, len(f.names)+1)
	all.Go(func() { failed[0] = f.furnishHub(ctx) })
	for n, name := range f.names {
		all.Go(func() { failed[n+1] = f.furnishSpoke(ctx, f.Spokes[name]) })
	}
	all.Wait()
	return errors.Join(failed...)
}

func (f *Fleet) furnishHub(ctx context.Context) error {
	if err := f.Hub.Define(ctx, append(f.definitions("hub", "gateway", "kuadrant"), f.own("policyoverrides"), f.own("networkpolicysets"))...); err != nil {
		return err
	}
	if err := f.Hub.Apply(ctx, "", `{apiVersion: cluster.open-cluster-management.io/v1beta2, kind: ManagedClusterSet, metadata: {name: `+ClusterSet+`},
		spec: {clusterSelector: {selectorType: LabelSelector, labelSelector: {}}}}`); err != nil {
		return err
	}
	for _, name := range f.names {
		if err := f.AddCluster(ctx, name); err != nil {
			return err
		}
	}
	if err := f.Hub.Apply(ctx, "", `{apiVersion: v1, kind: Namespace, metadata: {name: flowkeep-system}}`); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, filepath.Join(f.Bin, "kubectl"), "--kubeconfig", f.Hub.Kubeconfig, "apply", "--server-side", "-f", filepath.Join(f.Source, "deploy", "roles.yaml")).CombinedOutput(); err != nil {
		return fmt.Errorf("apply deploy/roles.yaml: %w\n%s", err, out)
	}
	if err := f.Hub.Apply(ctx, "", testKinds); err != nil {
		return err
	}
	for _, role := range []string{"flowkeep-policy-sync", "flowkeep-policy-sync-kinds", "test-kinds"} {
		if err := f.Hub.Apply(ctx, "", bind("ClusterRole", role, policySync)); err != nil {
			return err
		}
	}
	return f.Hub.Apply(ctx, "kube-system", bind("Role", "flowkeep-policy-sync", policySync))
}

func (f *Fleet) furnishSpoke(ctx context.Context, s *Server) error {
	if err := s.Define(ctx, append(f.definitions("spoke", "gateway", "kuadrant"), f.own("networkpolicyenforcements"))...); err != nil {
		return err
	}
	if err := s.Apply(ctx, "", agentRole); err != nil {
		return err
	}
	return s.Apply(ctx, "", bind("ClusterRole", "work-agent", workAgent))
}

// bind gives a user a role of the whole cluster, or one of a namespace.
func bind(kind, role string, to user) string {
	binding := strings.TrimSuffix(kind, "Role") + "RoleBinding"
	return fmt.Sprintf(`{apiVersion: rbac.authorization.k8s.io/v1, kind: %s, metadata: {name: %s}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: %s, name: %[2]s},
		subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %[4]s}]}`, binding, role, kind, to.name)
}

// ReadParameters lets policy-sync read the ConfigMaps of a namespace.
func (f *Fleet) ReadParameters(ctx context.Context, namespace string) error {
	return f.Hub.Apply(ctx, namespace, strings.Replace(bind("ClusterRole", "flowkeep-policy-sync-parameters", policySync), "kind: ClusterRoleBinding", "kind: RoleBinding", 1))
}

// ReadSecrets lets policy-sync read the Secrets of a namespace.
func (f *Fleet) ReadSecrets(ctx context.Context, namespace string) error {
	return f.Hub.Apply(ctx, namespace, strings.Replace(bind("ClusterRole", "flowkeep-policy-sync-secrets", policySync), "kind: ClusterRoleBinding", "kind: RoleBinding", 1))
}

// definitions are files in the cache.
func (f *Fleet) definitions(folders ...string) (files []string) {
	for _, folder := range folders {
		found, _ := filepath.Glob(filepath.Join(f.CRDs, folder, "*.yaml")) // the pattern is a good one
		files = append(files, found...)
	}
	return files
}

// own is one of Flowkeep's.
func (f *Fleet) own(plural string) string {
	return filepath.Join(f.Source, "deploy", "crds", plural+".yaml")
}

// Define creates CustomResourceDefinitions, one a file, and waits until they serve.
func (s *Server) Define(ctx context.Context, files ...string) error {
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := s.Create(ctx, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", string(text)); err != nil {
			return fmt.Errorf("%s on %s: %w", filepath.Base(file), s.Name, err)
		}
	}
	return s.Defined(ctx)
}

// Defined waits until all CustomResourceDefinitions serve.
func (s *Server) Defined(ctx context.Context) error {
	return cluster.Until(ctx, starting, func() error {
		var list struct {
			Items []struct {
				Metadata struct{ Name string }
				Status   struct{ Conditions []Condition }
			}
		}
		if err := s.Get(ctx, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &list); err != nil {
			return err
		}
		for _, crd := range list.Items {
			if c := Find(crd.Status.Conditions, "Established"); c.Status != "True" {
				return fmt.Errorf("%s is not established on %s: %s", crd.Metadata.Name, s.Name, c.Message)
			}
		}
		return nil
	})
}

// Condition is one of an object's status.
type Condition struct {
	Type, Status, Reason, Message string
	ObservedGeneration            int64
}

// Find is the condition of a type, or an empty one.
func Find(conditions []Condition, kind string) Condition {
	for _, c := range conditions {
		if c.Type == kind {
			return c
		}
	}
	return Condition{}
}

// AddCluster makes a ManagedCluster and its namespace on the hub, accepted and available as registration leaves it. It is labelled name=NAME.
func (f *Fleet) AddCluster(ctx context.Context, name string) error {
	if err := f.Hub.Apply(ctx, "", fmt.Sprintf(`{apiVersion: cluster.open-cluster-management.io/v1, kind: ManagedCluster, metadata: {name: %s, labels: {name: %[1]s}},
		spec: {hubAcceptsClient: true, leaseDurationSeconds: 60}}`, name)); err != nil {
		return err
	}
	if err := f.Hub.Apply(ctx, "", fmt.Sprintf(`{apiVersion: v1, kind: Namespace, metadata: {name: %s, labels: {open-cluster-management.io/cluster-name: %[1]s}}}`, name)); err != nil {
		return err
	}
	return f.SetAvailable(ctx, name, "True")
}

// ClusterPath is where the hub keeps a ManagedCluster.
func ClusterPath(name string) string {
	return "/apis/cluster.open-cluster-management.io/v1/managedclusters/" + name
}

// SetAvailable says of a cluster whether it is reachable (True, False, Unknown), as the registration controller does by its Lease.
func (f *Fleet) SetAvailable(ctx context.Context, name, status string) error {
	var conditions []string
	for _, c := range [][2]string{{"HubAcceptedManagedCluster", "True"}, {"ManagedClusterJoined", "True"}, {"ManagedClusterConditionAvailable", status}} {
		conditions = append(conditions, fmt.Sprintf(`{"type":%q,"status":%q,"reason":"Simulated","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}`, c[0], c[1]))
	}
	return f.Hub.Do(ctx, http.MethodPatch, ClusterPath(name)+"/status", fmt.Appendf(nil, `[{"op":"add","path":"/status","value":{"conditions":[%s],"version":{}}}]`, strings.Join(conditions, ",")))
}
