package ca

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/identity"
	"github.com/flowkeep/flowkeep/internal/apitest"
	"github.com/flowkeep/flowkeep/internal/mtls"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// theAPI is a real API server, started by the first test that asks for it.
var theAPI struct {
	once   sync.Once
	server *apitest.Server
	err    error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if theAPI.server != nil {
		theAPI.server.Stop()
	}
	os.Exit(code)
}

const (
	testNamespace = "flowkeep-system"
	testSecret    = "flowkeep-authority"
)

// cluster has a namespace as deploy/ has it, nodes with netplugins, and netmaster's rights alone.
type cluster struct {
	*testing.T
	admin kubernetes.Interface
	store *Cluster
}

func restFor(token string) *rest.Config {
	return &rest.Config{Host: theAPI.server.URL, BearerToken: token, QPS: 1000, Burst: 2000, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	if why := apitest.Missing(); why != "" {
		t.Skip(why)
	}
	theAPI.once.Do(func() {
		theAPI.server, theAPI.err = apitest.Start("admin,admin,1,system:masters\nnetmaster,netmaster,2\n")
		if theAPI.err == nil {
			theAPI.err = prepare()
		}
	})
	if theAPI.err != nil {
		t.Fatal(theAPI.err)
	}
	c := &cluster{T: t, admin: kubernetes.NewForConfigOrDie(restFor("admin"))}
	c.store = c.newStore()
	c.empty()
	return c
}

func (c *cluster) newStore() *Cluster {
	c.Helper()
	s, err := NewCluster(ClusterConfig{Rest: restFor("netmaster"), Namespace: testNamespace, Name: testSecret})
	if err != nil {
		c.Fatal(err)
	}
	return s
}

// prepare makes the namespace, and gives the user netmaster the roles of deploy/roles.yaml.
func prepare() error {
	ctx := context.Background()
	admin := kubernetes.NewForConfigOrDie(restFor("admin"))
	text, err := os.ReadFile("../../deploy/roles.yaml")
	if err != nil {
		return err
	}
	_, err = admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: testNamespace}}, metav1.CreateOptions{})
	subject := []rbacv1.Subject{{Kind: "User", Name: "netmaster", APIGroup: rbacv1.GroupName}}
	for part := range strings.SplitSeq(string(text), "\n---\n") {
		var role rbacv1.Role
		if e := yaml.Unmarshal([]byte(part), &role); e != nil || role.Name != "flowkeep-netmaster" {
			err = errors.Join(err, e)
			continue
		}
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: role.Kind, Name: role.Name}
		if role.Kind == "ClusterRole" {
			_, e1 := admin.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: role.ObjectMeta, Rules: role.Rules}, metav1.CreateOptions{})
			_, e2 := admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: role.ObjectMeta, RoleRef: ref, Subjects: subject}, metav1.CreateOptions{})
			err = errors.Join(err, e1, e2)
			continue
		}
		_, e1 := admin.RbacV1().Roles(role.Namespace).Create(ctx, &role, metav1.CreateOptions{})
		_, e2 := admin.RbacV1().RoleBindings(role.Namespace).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role.Name, Namespace: role.Namespace}, RoleRef: ref, Subjects: subject}, metav1.CreateOptions{})
		err = errors.Join(err, e1, e2)
	}
	for _, name := range []string{"netplugin", "other"} {
		_, e := admin.CoreV1().ServiceAccounts(testNamespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		err = errors.Join(err, e)
	}
	for _, name := range []string{"node1", "node2"} {
		_, e := admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		err = errors.Join(err, e)
	}
	return err
}

// empty makes the objects as deploy/ has them.
func (c *cluster) empty() {
	c.Helper()
	ctx := context.Background()
	_ = c.admin.CoreV1().Secrets(testNamespace).Delete(ctx, testSecret, metav1.DeleteOptions{})
	_ = c.admin.CoreV1().ConfigMaps(testNamespace).Delete(ctx, testSecret, metav1.DeleteOptions{})
	_, err := c.admin.CoreV1().Secrets(testNamespace).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: testSecret}}, metav1.CreateOptions{})
	if err != nil {
		c.Fatal(err)
	}
}

// pod makes one on a node, which ends with the test.
func (c *cluster) pod(name, account, node string) *corev1.Pod {
	c.Helper()
	p, err := c.admin.CoreV1().Pods(testNamespace).Create(c.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{ServiceAccountName: account, NodeName: node, Containers: []corev1.Container{{Name: "netplugin", Image: "none"}}}}, metav1.CreateOptions{})
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { c.deletePod(name) })
	return p
}

func (c *cluster) deletePod(name string) {
	now := int64(0)
	_ = c.admin.CoreV1().Pods(testNamespace).Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: &now})
}

// token asks for one as the kubelet does.
func (c *cluster) token(account, audience string, bound *authenticationv1.BoundObjectReference) string {
	c.Helper()
	hour := int64(3600)
	r, err := c.admin.CoreV1().ServiceAccounts(testNamespace).CreateToken(c.Context(), account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}, ExpirationSeconds: &hour, BoundObjectRef: bound}}, metav1.CreateOptions{})
	if err != nil {
		c.Fatal(err)
	}
	return r.Status.Token
}

func boundTo(p *corev1.Pod) *authenticationv1.BoundObjectReference {
	return &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.Name, UID: p.UID}
}

var quiet = slog.New(slog.DiscardHandler)

var testLives = Lives{Leaf: 7 * 24 * time.Hour, Authority: 365 * 24 * time.Hour, Overlap: 24 * time.Hour}

func (c *cluster) keeper(change ...func(*Config)) *Keeper {
	cfg := Config{Store: c.newStore(), Lives: testLives, Logger: quiet}
	for _, f := range change {
		f(&cfg)
	}
	return New(cfg)
}

// A node gets its certificate from a real API server's word, with the rights of deploy/roles.yaml and no others.
func TestNodeGetsItsCertificate(t *testing.T) {
	c := newCluster(t)
	k := c.keeper()
	if err := k.pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	d := NewDoor(DoorConfig{Reviewer: c.store, Signer: k, ServiceAccount: "flowkeep-system:netplugin", Logger: quiet})
	p := c.pod("netplugin-1", "netplugin", "node1")
	key, _ := mtls.NewKey()
	request, err := mtls.NewRequest("node1", key)
	if err != nil {
		t.Fatal(err)
	}
	token := c.token("netplugin", identity.Audience, boundTo(p))
	_, out, err := d.sign(t.Context(), "10.0.0.1", &identity.SignRequest{Token: token, Request: request})
	if err != nil {
		t.Fatal(err)
	}
	checkNode(t, k, out.Certificate, "node1")

	other := c.pod("other-1", "other", "node1")
	node := &authenticationv1.BoundObjectReference{Kind: "Node", APIVersion: "v1", Name: "node1"}
	forNode2, _ := mtls.NewRequest("node2", key)
	part := strings.Split(token, ".")
	claims, _ := base64.RawURLEncoding.DecodeString(part[1])
	forged := part[0] + "." + base64.RawURLEncoding.EncodeToString(bytes.Replace(claims, []byte("node1"), []byte("node2"), 1)) + "." + part[2]
	for _, bad := range []struct {
		name, token string
		request     []byte
		want        string
	}{
		{"another node's name", token, forNode2, "who asks is node node1"},
		{"a forged claim", forged, forNode2, "does not accept the token"},
		{"another audience", c.token("netplugin", "https://test", boundTo(p)), request, "not for flowkeep"},
		{"another ServiceAccount", c.token("other", identity.Audience, boundTo(other)), request, "not of system:serviceaccount:flowkeep-system:netplugin"},
		{"no pod", c.token("netplugin", identity.Audience, nil), request, "says of no pod"},
		{"a node, but no pod", c.token("netplugin", identity.Audience, node), request, "does not say of which pod"},
		{"an administrator's token", "admin", request, "not a ServiceAccount token"},
	} {
		if _, _, err := d.sign(t.Context(), "10.0.0.2", &identity.SignRequest{Token: bad.token, Request: bad.request}); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: %v, want %q", bad.name, err, bad.want)
		}
	}
	// The API server's cache of pods learns of the deletion a moment later, and the API server reuses the result of a
	// token's review for 10 s: each try needs a token of its own.
	var tokens []string
	for range 50 {
		tokens = append(tokens, c.token("netplugin", identity.Audience, boundTo(p)))
	}
	c.deletePod(p.Name)
	for i, tick := 0, time.Tick(100*time.Millisecond); i < len(tokens) && err == nil; i++ {
		<-tick
		_, _, err = d.sign(t.Context(), fmt.Sprintf("10.0.1.%d", i), &identity.SignRequest{Token: tokens[i], Request: request})
	}
	if err == nil || !strings.Contains(err.Error(), "does not accept the token") {
		t.Errorf("a pod that is gone: %v", err)
	}
}

func checkNode(t *testing.T, k *Keeper, der []byte, node string) {
	t.Helper()
	list, err := mtls.ParseBundle(pemOf(der))
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	m, err := k.Current()
	if err != nil {
		t.Fatal(err)
	}
	if err := verify(list[0], m.Trusted); err != nil {
		t.Error(err)
	}
	if of, ok := mtls.Node(list[0]); !ok || of != node {
		t.Errorf("it is of %q", list[0].Subject)
	}
}

// Replicas that start at once on a real API server make one authority.
func TestReplicasAgree(t *testing.T) {
	c := newCluster(t)
	var all sync.WaitGroup
	replicas := make([]*Keeper, 5)
	for i := range replicas {
		replicas[i] = c.keeper()
		all.Go(func() {
			for err := ErrChanged; err != nil && t.Context().Err() == nil; {
				if err = replicas[i].pass(t.Context()); err != nil && !errors.Is(err, ErrChanged) {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	first := replicas[0].now.Load()
	for i, k := range replicas {
		if v := k.now.Load(); v == nil || !v.state.Signing.Cert.Equal(first.state.Signing.Cert) {
			t.Errorf("replica %d has another authority", i)
		}
	}
	published, err := c.store.Published(t.Context())
	if err != nil || !bytes.Equal(published.Text, mtls.Encode(first.state.Signing.Cert)) {
		t.Errorf("published: %s, %v", published.Text, err)
	}
}

// The API server is told by which authority to know netmaster; what is not netmaster's is left alone.
func TestTrust_WritesCABundle(t *testing.T) {
	c := newCluster(t)
	ctx := t.Context()
	service := `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1alpha1.inspect.flowkeep.io"},"spec":{"group":"inspect.flowkeep.io","version":"v1alpha1",
		"groupPriorityMinimum":100,"versionPriority":100,"service":{"name":"netmaster","namespace":"flowkeep-system","port":443}}}`
	api := c.admin.Discovery().RESTClient()
	if err := api.Post().AbsPath("/apis/apiregistration.k8s.io/v1/apiservices").Body([]byte(service)).Do(ctx).Error(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Delete().AbsPath(apiServicePath).Do(context.Background()).Error() })
	for range 2 {
		k := c.keeper()
		if err := k.pass(ctx); err != nil || k.trustProblem != "" {
			t.Fatal(err, k.trustProblem)
		}
		bundle := mtls.Encode(k.now.Load().state.Bundle()...)
		raw, err := api.Get().AbsPath(apiServicePath).DoRaw(ctx)
		if err != nil || !bytes.Contains(raw, []byte(base64.StdEncoding.EncodeToString(bundle))) {
			t.Errorf("APIService: %s, %v", raw, err)
		}
		if err := k.pass(ctx); err != nil {
			t.Fatal(err)
		}
		if again, err := api.Get().AbsPath(apiServicePath).DoRaw(ctx); err != nil || !bytes.Equal(raw, again) {
			t.Errorf("what is right was written again: %v", err)
		}
		c.empty() // another authority, in the second round
	}
}

// manifests returns the objects of deploy/flowkeep.yaml into which netmaster writes, by their paths in the API.
func manifests(t *testing.T) map[string][]byte {
	t.Helper()
	text, err := os.ReadFile("../../deploy/flowkeep.yaml")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for part := range strings.SplitSeq(string(text), "\n---\n") {
		var o metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(part), &o); err != nil {
			t.Fatal(err)
		}
		switch o.Kind {
		case "Secret":
			out["/api/v1/namespaces/"+testNamespace+"/secrets/"+testSecret] = []byte(part)
		case "APIService":
			out[apiServicePath] = []byte(part)
		case "EndpointSlice":
			t.Error("the manifest has an EndpointSlice, which netmaster writes")
		}
	}
	if len(out) != 2 {
		t.Fatalf("objects of the manifest: %d", len(out))
	}
	return out
}

// written returns what netmaster wrote: the authority, the published bundle, and the bundle of the APIService.
func (c *cluster) written() string {
	c.Helper()
	secret, err := c.store.Authority(c.Context())
	published, err2 := c.store.Published(c.Context())
	raw, err3 := c.admin.Discovery().RESTClient().Get().AbsPath(apiServicePath).DoRaw(c.Context())
	var s apiService
	if err := errors.Join(err, err2, err3, json.Unmarshal(raw, &s)); err != nil {
		c.Fatal(err)
	}
	return fmt.Sprintf("%s\n%s\n%s", secret.Text, published.Text, s.Spec.CABundle)
}

// apply sends objects as a program does that keeps them as they are in its repository.
func (c *cluster) apply(list map[string][]byte) {
	c.Helper()
	for path, text := range list {
		err := c.admin.Discovery().RESTClient().Patch(types.ApplyPatchType).AbsPath(path).
			Param("fieldManager", "argocd-controller").Param("force", "true").Body(text).Do(c.Context()).Error()
		if err != nil {
			c.Fatal(err)
		}
	}
}

// replace puts objects in the place of what is there, as kubectl replace does.
func (c *cluster) replace(list map[string][]byte) {
	c.Helper()
	api := c.admin.Discovery().RESTClient()
	for path, text := range list {
		var is metav1.PartialObjectMetadata
		o := map[string]any{}
		raw, err := api.Get().AbsPath(path).DoRaw(c.Context())
		if err := errors.Join(err, json.Unmarshal(raw, &is), yaml.Unmarshal(text, &o)); err != nil {
			c.Fatal(err)
		}
		o["metadata"].(map[string]any)["resourceVersion"] = is.ResourceVersion
		body, err := json.Marshal(o)
		if err := errors.Join(err, api.Put().AbsPath(path).Body(body).Do(c.Context()).Error()); err != nil {
			c.Fatal(err)
		}
	}
}

// TestManifests_AppliedAndReplaced: a program that applies the manifest again and again, by force, takes nothing that
// netmaster wrote. What a replacement takes netmaster restores: no authority is new, so nodes keep their certificates.
// A netmaster that starts after the replacement creates no authority either.
func TestManifests_AppliedAndReplaced(t *testing.T) {
	c := newCluster(t)
	ctx, list := t.Context(), manifests(t)
	api := c.admin.Discovery().RESTClient()
	t.Cleanup(func() { _ = api.Delete().AbsPath(apiServicePath).Do(context.Background()).Error() })
	k := c.keeper()
	pass := func() {
		t.Helper()
		if err := k.pass(ctx); err != nil || k.trustProblem != "" {
			t.Fatal(err, k.trustProblem)
		}
	}
	c.apply(list)
	pass()
	before := c.written()
	for range 3 {
		if c.apply(list); c.written() != before {
			t.Fatalf("an apply has changed:\n%s\n%s", before, c.written())
		}
		if pass(); c.written() != before {
			t.Errorf("netmaster has changed:\n%s\n%s", before, c.written())
		}
	}
	c.replace(list)
	if c.written() == before {
		t.Fatal("a replacement takes nothing: nothing is shown")
	}
	if err := c.keeper().pass(ctx); !errors.Is(err, errLost) {
		t.Errorf("netmaster after a restart: %v", err)
	}
	if pass(); c.written() != before {
		t.Errorf("not restored:\n%s\n%s", before, c.written())
	}
	if err := c.keeper().pass(ctx); err != nil || c.written() != before {
		t.Errorf("netmaster after a restart: %v", err)
	}
}

// Netmaster may not make what RBAC cannot name, and says what to do.
func TestStore_CreateForbidden(t *testing.T) {
	c := newCluster(t)
	if err := c.admin.CoreV1().Secrets(testNamespace).Delete(t.Context(), testSecret, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	err := c.keeper().pass(t.Context())
	if err == nil || !strings.Contains(err.Error(), "apply deploy/flowkeep.yaml") {
		t.Error(err)
	}
	if _, err := c.admin.CoreV1().Secrets(testNamespace).Get(t.Context(), testSecret, metav1.GetOptions{}); err == nil {
		t.Error("netmaster made a Secret")
	}
}

// The door, over TLS, to a node that has nothing but a token and the bundle.
func TestDoorOverTLS(t *testing.T) {
	c := newCluster(t)
	k := c.keeper()
	if err := k.pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	d := NewDoor(DoorConfig{Reviewer: c.store, Signer: k, ServiceAccount: "flowkeep-system:netplugin", Logger: quiet, Count: k.Counted})
	go func() { done <- d.Serve(ctx, l, k) }()
	p := c.pod("netplugin-2", "netplugin", "node2")
	key, _ := mtls.NewKey()
	request, _ := mtls.NewRequest("node2", key)
	out, err := askDoor(t, k, l.Addr().String(), &identity.SignRequest{Token: c.token("netplugin", identity.Audience, boundTo(p)), Request: request})
	if err != nil {
		t.Fatal(err)
	}
	checkNode(t, k, out.Certificate, "node2")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
