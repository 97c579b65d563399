package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/netmaster/access"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// frontProxy is the API server's, with an administrator's certificate in place of its own.
type frontProxy struct{ ca string }

func (frontProxy) Review(context.Context, *access.Request) (bool, string, error) {
	return true, "", nil
}

func (p frontProxy) FollowFrontProxy(ctx context.Context, tell func(map[string]string)) error {
	tell(map[string]string{"requestheader-client-ca-file": p.ca, "requestheader-username-headers": `["X-Remote-User"]`})
	<-ctx.Done()
	return nil
}

func (frontProxy) Announce(context.Context) {}

// The webhook speaks of the cluster as netmaster knows it, on the port for the API server; before that it says that it does not know.
func TestReviews(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db", Labels: map[string]string{"app": "db"}}, Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}}}
	// One of each kind: without a transport, that a list works is heard by its objects.
	w := newWorld(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, pod, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}},
		&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "of-nobody"}, Spec: networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "none"}}}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.apiServer(true)
	ca, err := os.ReadFile(w.files("server").CA)
	if err != nil {
		t.Fatal(err)
	}
	if err := mtls.IssueAdmin(w.pki); err != nil {
		t.Fatal(err)
	}
	own, err := tls.LoadX509KeyPair(w.files("admin").Cert, w.files("admin").Key)
	if err != nil {
		t.Fatal(err)
	}
	w.start(func(c *Config) { c.Access = AccessConfig{API: frontProxy{string(ca)}, Listener: l} })
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{own}}, DisableKeepAlives: true}}
	dry := true
	body, err := json.Marshal(&admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{UID: "u", Namespace: "shop", Name: "db", Operation: admissionv1.Create, DryRun: &dry,
		Resource: metav1.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"}, Object: runtime.RawExtension{Raw: []byte(`{"spec": {"policyTypes": ["Ingress"]}}`)}}})
	if err != nil {
		t.Fatal(err)
	}
	ask := func() string {
		url := "https://" + l.Addr().String() + access.ReviewsPath + "?timeout=5s"
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(body))
		if err != nil {
			return err.Error()
		}
		req.Header.Set("X-Remote-User", "system:apiserver")
		r, err := client.Do(req)
		if err != nil {
			return err.Error()
		}
		defer r.Body.Close()
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Response == nil || !review.Response.Allowed {
			return "not answered"
		}
		return strings.Join(review.Response.Warnings, "\n")
	}
	until(t, "it does not know yet", func() bool { return strings.Contains(ask(), "netmaster has not synced") })
	w.apiServer(false)
	until(t, "it knows", func() bool {
		return strings.Contains(ask(), "world would no longer reach shop/db at all: isolated for ingress by shop/db")
	})
}
