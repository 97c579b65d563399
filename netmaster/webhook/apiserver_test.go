package webhook_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/apitest"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/internal/testkit/slow"
	"github.com/flowkeep/flowkeep/netmaster/access"
	"github.com/flowkeep/flowkeep/netmaster/webhook"
	"github.com/flowkeep/flowkeep/netmaster/whatif"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// frontProxy writes an authority and a certificate of the API server's front proxy, and returns the flags that name them.
func frontProxy(t *testing.T) (dir string, flags []string) {
	t.Helper()
	dir = t.TempDir()
	write := func(name, kind string, der []byte) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	var keys [2]*ecdsa.PrivateKey
	for i := range keys {
		var err error
		if keys[i], err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	ca := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "front proxies"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2),
		Subject:      pkix.Name{CommonName: "front-proxy-client"},
		NotBefore:    ca.NotBefore,
		NotAfter:     ca.NotAfter,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	root, err := x509.CreateCertificate(rand.Reader, ca, ca, keys[0].Public(), keys[0])
	cert, err2 := x509.CreateCertificate(rand.Reader, leaf, ca, keys[1].Public(), keys[0])
	key, err3 := x509.MarshalECPrivateKey(keys[1])
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	return dir, []string{
		"--requestheader-client-ca-file=" + write("ca.crt", "CERTIFICATE", root),
		"--proxy-client-cert-file=" + write("client.crt", "CERTIFICATE", cert),
		"--proxy-client-key-file=" + write("client.key", "EC PRIVATE KEY", key),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
	}
}

// noQuestions is an aggregated API of admission reviews alone.
type noQuestions struct{ access.Questions }

func (noQuestions) Kinds() []string { return nil }

func (noQuestions) Review(context.Context, *access.Request) (bool, string, error) {
	return false, "", nil
}

// reviewed counts comparisons, and for whom they were.
type reviewed struct {
	mu       sync.Mutex
	requests []whatif.Request
	users    []string
}

func (r *reviewed) Diff(_ context.Context, q whatif.Request) (*inspect.Diff, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, q)
	return &inspect.Diff{}, nil
}

func (r *reviewed) may(_ context.Context, u *authenticationv1.UserInfo) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.users = append(r.users, u.Username)
	return false, nil
}

func (r *reviewed) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.requests)
}

// warnings collects those of a client.
type warnings struct {
	mu   sync.Mutex
	list []string
}

func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, text)
}

func (w *warnings) take() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := strings.Join(w.list, "|")
	w.list = nil
	return text
}

// lossy is a listener on a network that loses all packets, also those of open connections, once lost is true.
type lossy struct {
	net.Listener
	lost *atomic.Bool
}

type lossyConn struct {
	net.Conn
	lost *atomic.Bool
}

func (l lossy) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return lossyConn{conn, l.lost}, err
}

func (c lossyConn) Read(p []byte) (int, error) {
	for {
		if n, err := c.Conn.Read(p); err != nil || !c.lost.Load() {
			return n, err
		}
	}
}

func (c lossyConn) Write(p []byte) (int, error) {
	if c.lost.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

type cluster struct {
	t             *testing.T
	url           string
	admin, tenant *kubernetes.Clientset
	told          *warnings
	reviewed      *reviewed
	ca            []byte
	lost          atomic.Bool // the network loses all packets of netmaster
}

func newCluster(t *testing.T) *cluster {
	if why := apitest.Missing(); why != "" {
		t.Skip(why)
	}
	dir, flags := frontProxy(t)
	api, err := apitest.Start("root,root,1,system:masters\nt1,tenant,2\n", flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Stop)
	c := &cluster{t: t, url: api.URL, told: &warnings{}, reviewed: &reviewed{}}
	c.admin, c.tenant = c.client("root"), c.client("t1")
	front, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	c.serve(string(front))
	return c
}

func (c *cluster) client(token string) *kubernetes.Clientset {
	return kubernetes.NewForConfigOrDie(&rest.Config{
		Host:            c.url,
		BearerToken:     token,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
		WarningHandler:  c.told,
	})
}

// serve runs netmaster's port for the API server, and registers it under a name that leads here.
func (c *cluster) serve(front string) {
	dir := c.t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err := errors.Join(err, mtls.Init(dir), mtls.IssueServer(dir, []string{"127.0.0.1"})); err != nil {
		c.t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	files := mtls.Files{
		CA:   filepath.Join(dir, "ca.crt"),
		Cert: filepath.Join(dir, "server.crt"),
		Key:  filepath.Join(dir, "server.key"),
	}
	s := access.New(access.Config{
		Questions: noQuestions{},
		Reviewer:  noQuestions{},
		Reviews: webhook.New(webhook.Config{
			Judge:  c.reviewed,
			Logger: log,
			Ready:  func() string { return "" },
			May:    c.reviewed.may,
		}),
		TLS:    files,
		Logger: log,
	})
	s.SetTrust(map[string]string{
		"requestheader-client-ca-file":       front,
		"requestheader-allowed-names":        `["front-proxy-client"]`,
		"requestheader-username-headers":     `["X-Remote-User"]`,
		"requestheader-group-headers":        `["X-Remote-Group"]`,
		"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, lossy{l, &c.lost}) }()
	c.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Error(err)
		}
	})
	if c.ca, err = os.ReadFile(files.CA); err != nil {
		c.t.Fatal(err)
	}
	c.register(l.Addr().(*net.TCPAddr).Port)
}

func (c *cluster) register(port int) {
	ctx := c.t.Context()
	for _, name := range []string{inspect.ServiceNamespace, "shop"} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := c.admin.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
			c.t.Fatal(err)
		}
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: inspect.Service},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}
	if _, err := c.admin.CoreV1().Services(inspect.ServiceNamespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	text, err := yaml.YAMLToJSON([]byte(`{apiVersion: apiregistration.k8s.io/v1, kind: APIService,
metadata: {name: v1alpha1.inspect.flowkeep.io}, spec: {group: inspect.flowkeep.io, version: v1alpha1,
groupPriorityMinimum: 100, versionPriority: 100, caBundle: "` + toBase64(c.ca) + `",
service: {name: netmaster, namespace: flowkeep-system, port: ` + strconv.Itoa(port) + `}}}`))
	if err != nil {
		c.t.Fatal(err)
	}
	services := "/apis/apiregistration.k8s.io/v1/apiservices"
	if err := c.admin.RESTClient().Post().AbsPath(services).Body(text).Do(ctx).Error(); err != nil {
		c.t.Fatal(err)
	}
	c.until("the API server reaches netmaster", func() bool {
		return c.admin.RESTClient().Get().AbsPath(inspect.Prefix).Do(ctx).Error() == nil
	})
}

func toBase64(text []byte) string {
	out, _ := yaml.Marshal(text)
	return strings.TrimSpace(string(out))
}

func (c *cluster) until(what string, is func() bool) {
	c.t.Helper()
	err := wait.PollUntilContextTimeout(c.t.Context(), 50*time.Millisecond, 2*time.Minute, true, func(context.Context) (bool, error) {
		return is(), nil
	})
	if err != nil {
		c.t.Fatalf("%s: %v", what, err)
	}
}

// upgrade applies the manifest over the registration that the release before had, with what netmaster had written into it.
func (c *cluster) upgrade() {
	ctx := c.t.Context()
	text, err := os.ReadFile("../../deploy/webhook.yaml")
	if err != nil {
		c.t.Fatal(err)
	}
	now := &admissionv1.ValidatingWebhookConfiguration{}
	if err := yaml.Unmarshal(text, now); err != nil {
		c.t.Fatal(err)
	}
	before := now.DeepCopy()
	before.Webhooks[0].MatchConditions = nil
	port, path := int32(9444), "/networkpolicies"
	before.Webhooks[0].ClientConfig = admissionv1.WebhookClientConfig{
		Service:  &admissionv1.ServiceReference{Name: "netmaster", Namespace: "flowkeep-system", Port: &port, Path: &path},
		CABundle: c.ca,
	}
	hooks := c.admin.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	old, err := hooks.Create(ctx, before, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	now.ResourceVersion, now.Webhooks[0].ClientConfig.CABundle = old.ResourceVersion, c.ca
	if _, err := hooks.Update(ctx, now, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// tenants lets the tenant write policies in namespace shop, and post admission reviews.
func (c *cluster) tenants() {
	ctx := c.t.Context()
	roles := c.admin.RbacV1().ClusterRoles()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"networkpolicies"}, Verbs: []string{"*"}},
		{APIGroups: []string{inspect.Group}, Resources: []string{"admissionreviews"}, Verbs: []string{"create"}},
	}}
	_, err := roles.Create(ctx, role, metav1.CreateOptions{})
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "tenant"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "tenant"},
		Subjects:   []rbacv1.Subject{{Kind: "User", Name: "tenant", APIGroup: rbacv1.GroupName}},
	}
	_, err2 := c.admin.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})
	if err := errors.Join(err, err2); err != nil {
		c.t.Fatal(err)
	}
}

// A real API server asks netmaster through its own aggregated API, under its own name; every other user is refused.
func TestAPIServer_ReachesTheWebhookThroughTheAggregatedAPI(t *testing.T) {
	c := newCluster(t)
	c.tenants()
	c.upgrade()
	ctx := t.Context()
	policies := c.tenant.NetworkingV1().NetworkPolicies("shop")
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "db"}}
	c.until("a dry run is answered", func() bool {
		_, err := policies.Create(ctx, np, metav1.CreateOptions{DryRun: []string{"All"}})
		return err == nil && strings.Contains(c.told.take(), "Flowkeep: no connection within the namespace")
	})
	if u := c.reviewed.users[0]; u != "tenant" || c.reviewed.requests[0].Namespace != "shop" {
		t.Errorf("asked for user %q: %+v", u, c.reviewed.requests[0])
	}
	np, err := policies.Create(ctx, np, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	update := func(change func(), want int) {
		t.Helper()
		before := c.reviewed.count()
		change()
		if np, err = policies.Update(ctx, np, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := c.reviewed.count() - before; got != want {
			t.Errorf("%d reviews, want %d", got, want)
		}
	}
	update(func() { np.Labels = map[string]string{"a": "b"} }, 0)
	update(func() { np.Annotations = map[string]string{"other": "x"} }, 0)
	update(func() { np.Annotations["flowkeep.io/enforcement"] = "dry-run" }, 1)
	update(func() { np.Spec.PodSelector.MatchLabels = map[string]string{"app": "db"} }, 1)
	before := c.reviewed.count()
	for _, dry := range [][]string{{"All"}, nil} { // only the dry run is reviewed
		err := policies.Delete(ctx, "db", metav1.DeleteOptions{DryRun: dry})
		if got := c.reviewed.count() - before; err != nil || got != 1 {
			t.Errorf("dry run %v: %d reviews of deletions, %v", dry, got, err)
		}
	}
	for name, client := range map[string]*kubernetes.Clientset{"tenant": c.tenant, "administrator": c.admin} {
		err := client.RESTClient().Post().AbsPath(access.ReviewsPath).Body([]byte(`{"request":{"uid":"x"}}`)).Do(ctx).Error()
		if s := apierrors.APIStatus(nil); !errors.As(err, &s) || s.Status().Code != http.StatusForbidden {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAPIServer_NetmasterUnreachable: while the network loses netmaster's packets, a policy is written after the API
// server's timeout of a review, once, and deletions wait for none, however many policies they are of.
func TestAPIServer_NetmasterUnreachable(t *testing.T) {
	const many, timeout = 200, 3 * time.Second // timeoutSeconds in deploy/webhook.yaml
	c := newCluster(t)
	c.upgrade()
	ctx := t.Context()
	policies := c.admin.NetworkingV1().NetworkPolicies("shop")
	create := func(name string) time.Duration {
		t.Helper()
		began := time.Now()
		np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := policies.Create(ctx, np, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	n := 0
	c.until("policies are reviewed", func() bool {
		n++
		create("first-" + strconv.Itoa(n))
		return c.reviewed.count() > 0
	})
	for i := range many {
		create("p" + strconv.Itoa(i))
	}
	c.lost.Store(true)
	took := create("unreviewed")
	if took < timeout {
		t.Errorf("a policy was created after %s: netmaster was reached", took)
	}
	began := time.Now()
	err := policies.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	deleted := time.Since(began)
	left, err2 := policies.List(ctx, metav1.ListOptions{})
	if err := errors.Join(err, err2); err != nil || len(left.Items) > 0 {
		t.Errorf("%d policies are left: %v", len(left.Items), err)
	}
	t.Logf("one policy was created in %s, %d were deleted in %s", took, many+n+1, deleted)
	if limit := slow.Stretch(10 * time.Second); took > limit || deleted > limit {
		t.Errorf("a creation took %s and deletions %s, more than %s", took, deleted, limit)
	}
}
