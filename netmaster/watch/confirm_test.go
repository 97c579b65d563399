package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/apitest"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// apiServer is a real API server, and what a Lister received from it.
type apiServer struct {
	*apitest.Server
	client kubernetes.Interface
	list   Lister
	bytes  atomic.Int64
}

// counted counts what is read.
type counted struct {
	net.Conn
	bytes *atomic.Int64
}

// Read implements net.Conn.
func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.bytes.Add(int64(n))
	return n, err
}

func startAPI(tb testing.TB) *apiServer {
	tb.Helper()
	a := &apiServer{Server: apitest.New(tb, "")}
	config := &rest.Config{
		Host:            a.URL,
		BearerToken:     apitest.Admin,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
		QPS:             5000,
		Burst:           5000,
	}
	var err error
	if a.client, err = kubernetes.NewForConfig(config); err != nil {
		tb.Fatal(err)
	}
	counting := rest.CopyConfig(config)
	counting.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		return &counted{c, &a.bytes}, err
	}
	if a.list, err = NewLister(counting); err != nil {
		tb.Fatal(err)
	}
	return a
}

// fill makes so many policies, a hundred in a namespace.
func (a *apiServer) fill(tb testing.TB, policies int) {
	tb.Helper()
	ctx := tb.Context()
	for i := range (policies + 99) / 100 {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("ns", i)}}
		if _, err := a.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
			tb.Fatal(err)
		}
	}
	var all sync.WaitGroup
	var next, failed atomic.Int64
	for range 8 {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(policies); i = next.Add(1) - 1 {
				p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("allow-web-", i)}}
				p.Spec.PodSelector.MatchLabels = map[string]string{"app": fmt.Sprint("web", i)}
				p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{}}
				in := a.client.NetworkingV1().NetworkPolicies(fmt.Sprint("ns", i/100))
				if _, err := in.Create(ctx, p, metav1.CreateOptions{}); err != nil {
					failed.Add(1)
				}
			}
		})
	}
	if all.Wait(); failed.Load() > 0 {
		tb.Fatalf("%d policies were not made", failed.Load())
	}
}

func (a *apiServer) watch(tb testing.TB) *Watcher {
	tb.Helper()
	w, err := New(a.client, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		tb.Fatal(err)
	}
	w.Keep()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	tb.Cleanup(func() { cancel(); <-done })
	<-w.Wake()
	return w
}

// TestConfirm: with a real API server, what was made before Confirm is in what Take gives afterwards; what was deleted
// is not.
func TestConfirm(t *testing.T) {
	a := startAPI(t)
	a.fill(t, 1)
	w := a.watch(t)
	ctx := t.Context()
	policies := a.client.NetworkingV1().NetworkPolicies("ns0")
	known := map[string]bool{}
	for i := range 30 {
		name := fmt.Sprint("p", i)
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := policies.Create(ctx, p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			if err := policies.Delete(ctx, fmt.Sprint("p", i-1), metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Confirm(ctx, a.list); err != nil {
			t.Fatal(err)
		}
		for id, p := range w.Take().Policies {
			known[id] = p != nil
		}
		if !known["ns0/"+name] || known[fmt.Sprint("ns0/p", i-1)] {
			t.Fatalf("%s was made, and the one before deleted: known are %v", name, known)
		}
	}
}

// TestConfirmWaits: what no watch has delivered is waited for, and Lag returns it.
func TestConfirmWaits(t *testing.T) {
	w := &Watcher{}
	w.Keep()
	list := func(_ context.Context, resource string) (*listed, error) {
		l := &listed{version: 7, objects: map[ref]uint64{}}
		if resource == "networkpolicies" {
			l.objects[ref{"ns", "p"}] = 7
		}
		return l, nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Confirm(ctx, list) }()
	late := time.After(time.Minute)
	for what := ""; what != "the watch of networkpolicies lacks version 7 of ns/p"; what, _ = w.Lag() {
		select {
		case err := <-done:
			t.Fatalf("it was not waited for: %v", err)
		case <-late:
			t.Fatalf("the lag is %q", what)
		default:
		}
	}
	w.fresh.put("networkpolicies", &metav1.ObjectMeta{Namespace: "ns", Name: "p", ResourceVersion: "8"})
	if err := <-done; err != nil {
		t.Error(err)
	}
	if what, lasts := w.Lag(); lasts != 0 {
		t.Errorf("a lag of %s is left: %s", lasts, what)
	}
	go func() {
		done <- w.Confirm(ctx, func(context.Context, string) (*listed, error) { return nil, errors.New("no") })
	}()
	cancel()
	if err := <-done; !errors.Is(err, ErrBehind) {
		t.Errorf("an API server that is away: %v", err)
	}
}

// BenchmarkConfirm measures what a confirmation costs, with 10,000 policies in 100 namespaces.
func BenchmarkConfirm(b *testing.B) {
	a := startAPI(b)
	a.fill(b, 10_000)
	w := a.watch(b)
	if err := w.Confirm(b.Context(), a.list); err != nil {
		b.Fatal(err)
	}
	a.bytes.Store(0)
	before, err := a.CPU()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := w.Confirm(b.Context(), a.list); err != nil {
			b.Fatal(err)
		}
	}
	after, err := a.CPU()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64((after-before).Milliseconds())/float64(b.N), "server-CPU-ms/op")
	b.ReportMetric(float64(a.bytes.Load())/float64(b.N)/1024, "kB-received/op")
}
