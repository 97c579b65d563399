package watch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/apitest"
	"github.com/flowkeep/flowkeep/internal/mtls"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// The steps of a registration, a second and what is seen each.
func TestRegistrationState(t *testing.T) {
	const keep, put, remove = registrationKeep, registrationPut, registrationRemove
	absent, away := registrationSeen{}, registrationSeen{there: true}
	fine, foreign := registrationSeen{there: true, available: true}, registrationSeen{there: true, foreign: true}
	type at struct {
		second int
		seen   registrationSeen
		want   registrationStep
	}
	for name, steps := range map[string][]at{
		"created at the beginning":        {{0, absent, put}, {1, away, keep}, {5, fine, keep}},
		"deleted by an administrator":     {{0, fine, keep}, {5, absent, keep}, {5000, absent, keep}},
		"unavailable for less than 30 s":  {{0, fine, keep}, {5, away, keep}, {34, away, keep}, {35, fine, keep}, {36, away, keep}, {65, away, keep}},
		"unavailable for 30 s":            {{0, fine, keep}, {5, away, keep}, {35, away, remove}},
		"unavailable from the start":      {{0, away, keep}, {29, away, keep}, {30, away, remove}},
		"returns after a minute":          {{0, away, keep}, {30, away, remove}, {89, absent, keep}, {90, absent, put}, {91, fine, keep}},
		"returns later after each":        {{0, away, keep}, {30, away, remove}, {90, absent, put}, {91, away, keep}, {121, away, remove}, {240, absent, keep}, {241, absent, put}},
		"not later than after 10 minutes": {{0, away, keep}, {30, away, remove}, {90, absent, put}, {120, away, keep}, {150, away, remove}, {9000, absent, put}},
		"another client creates it":       {{0, away, keep}, {30, away, remove}, {40, away, keep}, {69, away, keep}, {70, away, remove}},
		"deleted while it was back":       {{0, away, keep}, {30, away, remove}, {90, absent, put}, {95, fine, keep}, {100, absent, keep}, {5000, absent, keep}},
		"of another Service":              {{0, foreign, keep}, {500, foreign, keep}},
	} {
		t.Run(name, func(t *testing.T) {
			var s registrationState
			begin := time.Unix(1_000_000, 0)
			for _, step := range steps {
				now := begin.Add(time.Duration(step.second) * time.Second)
				if got := s.next(now, step.seen, 30*time.Second); got != step.want {
					t.Fatalf("after %d s: step %d, want %d", step.second, got, step.want)
				}
			}
		})
	}
	s := registrationState{started: true}
	now := time.Unix(1_000_000, 0)
	for range 80 { // the pause has a bound
		_ = s.next(now, away, 0)
		if pause := s.until.Sub(now); pause > maxRegistrationPause || pause < minRegistrationPause {
			t.Fatalf("out of service for %v", pause)
		}
		_ = s.next(s.until, absent, 0)
	}
}

// registered is a real API server with the controller that deletes namespaces, and the rights of deploy/roles.yaml.
type registered struct {
	*testing.T
	api   *apitest.Server
	admin *kubernetes.Clientset
	port  int
	r     *Registration
	out   atomic.Int32 // how often it was reported out of service
}

func newRegistered(t *testing.T) *registered {
	t.Helper()
	api := apitest.New(t, "netmaster,netmaster,2\n")
	client := func(token string) *kubernetes.Clientset {
		return kubernetes.NewForConfigOrDie(&rest.Config{
			Host:            api.URL,
			BearerToken:     token,
			TLSClientConfig: rest.TLSClientConfig{Insecure: true},
		})
	}
	w := &registered{T: t, api: api, admin: client("admin")}
	w.controllers()
	w.roles()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.port = l.Addr().(*net.TCPAddr).Port
	l.Close()
	ca := w.certificates()
	w.r = &Registration{
		Client:    client("netmaster"),
		Bundle:    func(context.Context) ([]byte, error) { return os.ReadFile(ca) },
		Logger:    slog.New(slog.DiscardHandler),
		InService: func(in bool) { w.out.Add(map[bool]int32{true: 0, false: 1}[in]) },
		Patience:  2 * time.Second,
		Look:      50 * time.Millisecond,
		Port:      uint16(w.port),
	}
	w.create(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: inspect.Service, Namespace: inspect.ServiceNamespace},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	})
	return w
}

func (w *registered) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *registered) create(s *corev1.Service) {
	w.Helper()
	w.namespace(s.Namespace)
	_, err := w.admin.CoreV1().Services(s.Namespace).Create(w.Context(), s, metav1.CreateOptions{})
	w.must(err)
}

func (w *registered) namespace(name string) {
	w.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := w.admin.CoreV1().Namespaces().Create(w.Context(), ns, metav1.CreateOptions{})
	w.must(err)
}

// controllers runs the controllers of namespaces and of garbage.
func (w *registered) controllers() {
	w.Helper()
	program := filepath.Join(apitest.Programs(), "kube-controller-manager")
	if _, err := os.Stat(program); err != nil {
		w.Skip(err)
	}
	file := filepath.Join(w.TempDir(), "kubeconfig")
	w.must(os.WriteFile(file, fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: x,
clusters: [{name: c, cluster: {server: "%s", insecure-skip-tls-verify: true}}],
users: [{name: u, user: {token: admin}}], contexts: [{name: x, context: {cluster: c, user: u}}]}`, w.api.URL), 0o600))
	c := exec.Command(program, "--kubeconfig", file, "--leader-elect=false", "--secure-port=0",
		"--controllers=namespace-controller,garbage-collector-controller")
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	w.must(c.Start())
	w.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
}

// roles gives the user netmaster its ClusterRole.
func (w *registered) roles() {
	w.Helper()
	text, err := os.ReadFile("../../deploy/roles.yaml")
	w.must(err)
	for part := range strings.SplitSeq(string(text), "\n---\n") {
		var role rbacv1.ClusterRole
		w.must(yaml.Unmarshal([]byte(part), &role))
		if role.Kind != "ClusterRole" || role.Name != registrationOwner {
			continue
		}
		_, err := w.admin.RbacV1().ClusterRoles().Create(w.Context(), &role, metav1.CreateOptions{})
		w.must(err)
		binding := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role.Name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: role.Kind, Name: role.Name},
			Subjects:   []rbacv1.Subject{{Kind: "User", Name: "netmaster", APIGroup: rbacv1.GroupName}},
		}
		_, err = w.admin.RbacV1().ClusterRoleBindings().Create(w.Context(), binding, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			w.must(err)
		}
	}
}

// certificates returns the file of the authority.
func (w *registered) certificates() (ca string) {
	w.Helper()
	dir := w.TempDir()
	w.must(errors.Join(mtls.Init(dir), mtls.IssueServer(dir, []string{"127.0.0.1"})))
	w.Setenv("REGISTRATION_TEST_DIR", dir)
	return filepath.Join(dir, "ca.crt")
}

// serve answers the API server as netmaster does, until the returned function is called.
func (w *registered) serve() (stop func()) {
	w.Helper()
	dir := os.Getenv("REGISTRATION_TEST_DIR")
	own, err := tls.LoadX509KeyPair(filepath.Join(dir, "server.crt"), filepath.Join(dir, "server.key"))
	w.must(err)
	l, err := tls.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", w.port), &tls.Config{Certificates: []tls.Certificate{own}})
	w.must(err)
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(rw, `{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": %q, "resources": []}`,
			inspect.Group+"/"+inspect.APIVersion)
	})}
	go func() { _ = s.Serve(l) }()
	return func() { _ = s.Close() }
}

// until waits for a condition.
func (w *registered) until(what string, ok func() bool) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			w.Fatalf("not within a minute: %s", what)
		}
	}
}

// have returns the registration, nil if there is none.
func (w *registered) have() *registrationObject {
	w.Helper()
	o, err := (&Registration{Client: w.admin}).get(w.Context())
	w.must(err)
	return o
}

func (w *registered) available() bool {
	o := w.have()
	return o != nil && o.seen().available
}

// deletes reports whether a namespace is deleted, or hangs because discovery fails.
func (w *registered) deletes(name string) (deleted bool) {
	w.Helper()
	w.namespace(name)
	spaces := w.admin.CoreV1().Namespaces()
	w.until("the namespace is "+name+"'s controller's", func() bool {
		ns, err := spaces.Get(w.Context(), name, metav1.GetOptions{})
		return err == nil && len(ns.Spec.Finalizers) > 0
	})
	w.must(spaces.Delete(w.Context(), name, metav1.DeleteOptions{}))
	w.until("namespace "+name+" is deleted or hangs", func() bool {
		ns, err := spaces.Get(w.Context(), name, metav1.GetOptions{})
		if deleted = apierrors.IsNotFound(err); deleted {
			return true
		}
		w.must(err)
		for _, c := range ns.Status.Conditions {
			if c.Type == corev1.NamespaceDeletionDiscoveryFailure && c.Status == corev1.ConditionTrue {
				return true
			}
		}
		return false
	})
	return deleted
}

// run runs the registration for a term, until the returned function is called.
func (w *registered) run(term uint64) (end func(stops bool)) {
	ctx, cancel := context.WithCancel(w.Context())
	done, stopping := make(chan struct{}), new(atomic.Bool)
	go func() { defer close(done); w.r.Run(ctx, term, stopping.Load) }()
	var ended bool
	end = func(stops bool) {
		if !ended {
			ended = true
			stopping.Store(stops)
			cancel()
			<-done
		}
	}
	w.Cleanup(func() { end(false) })
	return end
}

// On a real API server, a namespace cannot be deleted while the registration is there and netmaster is not reached, and
// can be when netmaster has taken it out of service; it returns with netmaster, and goes when netmaster stops.
func TestRegistration_NamespacesCanBeDeleted(t *testing.T) {
	w := newRegistered(t)
	patience := w.r.Patience
	w.r.Patience = time.Hour
	end := w.run(1)
	w.until("it is created", func() bool { return w.have() != nil })
	w.until("it is unavailable", func() bool { return w.have().Status != nil })
	if w.deletes("hangs") {
		t.Fatal("a namespace is deleted while the registration is there and netmaster is not: nothing is shown")
	}
	end(false)
	if w.have() == nil {
		t.Fatal("the end of a term deletes the registration, though another netmaster leads")
	}
	w.r.Patience = patience
	end = w.run(1)
	w.until("it is taken out of service", func() bool { return w.have() == nil })
	w.until("the namespace that hung is deleted", func() bool {
		_, err := w.admin.CoreV1().Namespaces().Get(w.Context(), "hangs", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	if !w.deletes("after") {
		t.Error("a namespace hangs though the registration is out of service")
	}
	end(false)
	stop := w.serve()
	defer stop()
	end = w.run(2)
	w.until("it is back and available", w.available)
	if !w.deletes("available") {
		t.Error("a namespace hangs though netmaster is reached")
	}
	end(true)
	if w.have() != nil {
		t.Error("it is there after netmaster has stopped")
	}
	if w.out.Load() == 0 {
		t.Error("it was never reported out of service")
	}
}

// What an author has written into the registration is there again, another Service's is left alone, and one that
// netmaster created ends with its ClusterRole.
func TestRegistration_Object(t *testing.T) {
	w := newRegistered(t)
	end := w.run(1)
	w.until("it is created", func() bool { return w.have() != nil })
	patch := func(text string) {
		t.Helper()
		w.must(w.admin.Discovery().RESTClient().Patch(types.MergePatchType).AbsPath(registrationPath).
			Body([]byte(text)).Do(t.Context()).Error())
	}
	patch(`{"metadata": {"labels": {"team": "net"}, "annotations": {"note": "x"}}}`)
	w.until("it is taken out of service", func() bool { return w.have() == nil })
	end(false)
	end = w.run(2)
	w.until("it is back", func() bool { return w.have() != nil })
	if m := w.have().Metadata; m.Labels["team"] != "net" || m.Annotations["note"] != "x" || len(m.OwnerReferences) != 1 {
		t.Errorf("it is back as %+v", m)
	}
	end(false)
	w.must(w.admin.RbacV1().ClusterRoles().Delete(t.Context(), registrationOwner, metav1.DeleteOptions{}))
	w.until("it ends with the ClusterRole", func() bool { return w.have() == nil })
	w.roles()
	w.must(w.r.put(t.Context()))
	patch(`{"spec": {"service": {"name": "others"}}}`)
	w.r.Patience = 1
	for term := range uint64(2) {
		end = w.run(3 + term)
		end(true)
	}
	if o := w.have(); o == nil || o.Spec.Service.Name != "others" {
		t.Errorf("the registration of another Service is %+v", o)
	}
}
