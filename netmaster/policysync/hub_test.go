package policysync

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

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
	apiserver := filepath.Join(cmp.Or(os.Getenv("FLOWKEEP_CACHE"), "/var/cache/flowkeep"), "bin/kube-apiserver")
	etcd, err := exec.LookPath("etcd")
	if _, missing := os.Stat(apiserver); missing != nil || err != nil {
		t.Skip("there is no kube-apiserver, or no etcd: the system tests build them")
	}
	theHub.once.Do(func() { theHub.cfg, theHub.stop, theHub.err = startHub(apiserver, etcd) })
	if theHub.err != nil {
		t.Fatal(theHub.err)
	}
	return theHub.cfg
}

func startHub(apiserver, etcd string) (cfg *rest.Config, stop func(), err error) {
	dir, err := os.MkdirTemp("", "policysync")
	if err != nil {
		return nil, nil, err
	}
	ports := freePorts(3)
	client, peer, secure := ports[0], ports[1], ports[2]
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	keyFile, tokens := filepath.Join(dir, "sa.key"), filepath.Join(dir, "tokens")
	if err := errors.Join(
		os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600),
		os.WriteFile(tokens, []byte("admin,admin,1,system:masters\npolicy-sync,policy-sync,2\n"), 0o600)); err != nil {
		return nil, nil, err
	}
	var all []*exec.Cmd
	stop = func() {
		for i := len(all) - 1; i >= 0; i-- {
			_ = all[i].Process.Kill()
			_ = all[i].Wait()
		}
		_ = os.RemoveAll(dir)
	}
	start := func(name string, args ...string) error {
		c := exec.Command(name, args...)
		c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		log, err := os.Create(filepath.Join(dir, filepath.Base(name)+".log"))
		if err != nil {
			return err
		}
		defer log.Close()
		c.Stdout, c.Stderr = log, log
		if err := c.Start(); err != nil {
			return err
		}
		all = append(all, c)
		return nil
	}
	url := func(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port) }
	if err := errors.Join(
		start(etcd, "--data-dir", filepath.Join(dir, "etcd"), "--unsafe-no-fsync", "--listen-client-urls", url(client), "--advertise-client-urls", url(client),
			"--listen-peer-urls", url(peer), "--initial-advertise-peer-urls", url(peer), "--initial-cluster", "default="+url(peer), "--log-level", "error"),
		start(apiserver, "--etcd-servers", url(client), "--cert-dir", filepath.Join(dir, "certs"), "--secure-port", fmt.Sprint(secure), "--bind-address", "127.0.0.1",
			"--service-account-issuer", "https://test", "--service-account-key-file", keyFile, "--service-account-signing-key-file", keyFile,
			"--token-auth-file", tokens, "--authorization-mode", "RBAC", "--disable-admission-plugins", "ServiceAccount", "--service-cluster-ip-range", "10.0.0.0/24")); err != nil {
		stop()
		return nil, nil, err
	}
	cfg = &rest.Config{Host: fmt.Sprintf("https://127.0.0.1:%d", secure), BearerToken: "admin", QPS: 1000, Burst: 2000, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	if err := prepareHub(cfg); err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "kube-apiserver.log"))
		stop()
		return nil, nil, fmt.Errorf("%w\n%s", err, log[max(0, len(log)-3000):])
	}
	return cfg, stop, nil
}

func freePorts(n int) (ports []int) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			panic(err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

var crdResource = definitions.resource

// prepareHub waits for the API server, and applies the CRDs.
func prepareHub(cfg *rest.Config) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	transport, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		resp, err := transport.Get(cfg.Host + "/readyz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				break
			}
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, errors.New("the API server does not come up"))
		case <-tick.C:
		}
	}
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
