package controller

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/apitest"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// The hub of the tests is a real API server with etcd, on loopback; it is started by the first test that asks for it.
var theHub struct {
	once sync.Once
	cfg  *rest.Config
	err  error
	stop func()
}

func TestMain(m *testing.M) {
	code := m.Run()
	if theHub.stop != nil {
		theHub.stop()
	}
	os.Exit(code)
}

// hubConfig is that of an API server with the CRDs of Gateway API and OCM. Where the binaries are not built the test is skipped.
func hubConfig(t *testing.T) *rest.Config {
	t.Helper()
	if why := apitest.Missing(); why != "" {
		t.Skip(why)
	}
	theHub.once.Do(func() { theHub.cfg, theHub.stop, theHub.err = startHub() })
	if theHub.err != nil {
		t.Fatal(theHub.err)
	}
	return theHub.cfg
}

func startHub() (cfg *rest.Config, stop func(), err error) {
	s, cfg, err := newHub()
	if err != nil {
		return nil, nil, err
	}
	return cfg, s.Stop, nil
}

// newHub starts an API server as a hub.
func newHub() (s *apitest.Server, cfg *rest.Config, err error) {
	if s, err = apitest.Start("admin,admin,1,system:masters\npolicy-sync,policy-sync,2\n"); err != nil {
		return nil, nil, err
	}
	cfg = &rest.Config{Host: s.URL, BearerToken: "admin", QPS: 1000, Burst: 2000, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	if err := prepareHub(cfg); err != nil {
		log := s.Log()
		s.Stop()
		return nil, nil, fmt.Errorf("%w\n%s", err, log)
	}
	return s, cfg, nil
}

var crdResource = definitions.resource

// prepareHub applies the CRDs.
func prepareHub(cfg *rest.Config) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	hub, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	files, err := crdFiles()
	if err != nil {
		return err
	}
	for _, file := range append(files, rolesFile) {
		objects, err := objectsOf(file)
		if err != nil {
			return err
		}
		for _, o := range objects {
			if err := prepare(ctx, hub, o); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	return nil
}

const rolesFile = "../../deploy/roles.yaml"

// prepare applies CustomResourceDefinitions, and roles of the controller, which the user policy-sync has.
func prepare(ctx context.Context, hub dynamic.Interface, o *unstructured.Unstructured) error {
	switch {
	case o.GetKind() == "CustomResourceDefinition":
		return establish(ctx, hub, o)
	case o.GetName() != "flowkeep-policy-sync" || o.GetKind() != "ClusterRole":
		return nil
	}
	binding := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": map[string]any{"name": o.GetName()},
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": o.GetName()},
		"subjects": []any{map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "policy-sync"}},
	}}
	_, err := hub.Resource(rbac("clusterroles")).Create(ctx, o, metav1.CreateOptions{})
	if err == nil {
		_, err = hub.Resource(rbac("clusterrolebindings")).Create(ctx, binding, metav1.CreateOptions{})
	}
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func rbac(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: resource}
}

func objectsOf(file string) (all []*unstructured.Unstructured, err error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for _, one := range bytes.Split(raw, []byte("\n---\n")) {
		o := new(unstructured.Unstructured)
		if err := yaml.Unmarshal(one, &o.Object); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if len(o.Object) > 0 {
			all = append(all, o)
		}
	}
	return all, nil
}

func crdFiles() (files []string, err error) {
	modules := map[string][]string{
		"sigs.k8s.io/gateway-api":        {"config/crd/standard/gateway.networking.k8s.io_gatewayclasses.yaml", "config/crd/standard/gateway.networking.k8s.io_gateways.yaml"},
		"open-cluster-management.io/api": {"cluster/v1/*managedclusters.crd.yaml", "cluster/v1beta1/*placements.crd.yaml", "cluster/v1beta1/*placementdecisions.crd.yaml", "work/v1/*_manifestworks.crd.yaml"},
	}
	for module, patterns := range modules {
		out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
		if err != nil {
			return nil, fmt.Errorf("find %s: %w", module, err)
		}
		for _, p := range patterns {
			found, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), p))
			if err != nil || len(found) != 1 {
				return nil, fmt.Errorf("%s has %v for %s", module, found, p)
			}
			files = append(files, found...)
		}
	}
	return append(files, "../../deploy/crds/policyoverrides.yaml", "../../deploy/crds/networkpolicysets.yaml"), nil
}

// establish makes a CustomResourceDefinition and waits until it is served.
func establish(ctx context.Context, hub dynamic.Interface, o *unstructured.Unstructured) error {
	if _, err := hub.Resource(crdResource).Create(ctx, o, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	spec := o.Object["spec"].(map[string]any)
	for _, v := range spec["versions"].([]any) {
		resource := schema.GroupVersionResource{Group: spec["group"].(string), Version: v.(map[string]any)["name"].(string), Resource: spec["names"].(map[string]any)["plural"].(string)}
		if v.(map[string]any)["served"] != true {
			continue
		}
		for {
			_, err := hub.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return err
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	return nil
}
