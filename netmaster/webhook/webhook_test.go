package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// judge answers with a world of two pods.
type judge struct {
	mu          sync.Mutex
	asked       []explain.Attempt
	connections bool
	err         error
	wait        chan struct{} // until it is closed nothing is answered
}

func (j *judge) Diff(_ context.Context, attempts []explain.Attempt, connections bool) (*inspect.Diff, error) {
	if j.wait != nil {
		<-j.wait
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.asked, j.connections = attempts, connections
	if j.err != nil {
		return nil, j.err
	}
	w := &policy.World{Namespaces: []policy.Namespace{{Name: "shop"}}}
	for i, app := range []string{"db", "web"} {
		w.Endpoints = append(w.Endpoints, &policy.Endpoint{Namespace: "shop", Name: app, Labels: map[string]string{"app": app}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}})
	}
	after, tried := explain.Try(w, attempts)
	d := &inspect.Diff{Policies: tried, Delta: explain.Diff(explain.NewModel(w), explain.NewModel(after))}
	if connections {
		d.Live = &inspect.Live{Connections: 2, Cuts: []inspect.LiveCut{{Difference: 0, Connections: 2}}, Unknown: map[string]string{"node2": "away"}}
	}
	return d, nil
}

const dbPolicy = `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "db", "namespace": "shop"}, "spec": {"podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Ingress"]}}`

// mode is dbPolicy with the annotation.
func mode(value string) string {
	return strings.Replace(dbPolicy, `"name": "db"`, `"name": "db", "annotations": {"flowkeep.io/enforcement": "`+value+`"}`, 1)
}

func request(op admissionv1.Operation, dry bool, object, old string) *admissionv1.AdmissionRequest {
	return &admissionv1.AdmissionRequest{UID: "u1", Namespace: "shop", Name: "db", Operation: op, DryRun: &dry, Resource: metav1.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"},
		Object: extension(object), OldObject: extension(old)}
}

func extension(text string) (e runtime.RawExtension) {
	if text != "" {
		e.Raw = []byte(text)
	}
	return e
}

func handler(j Judge) *Handler {
	return New(Config{Judge: j, Logger: slog.New(slog.DiscardHandler), Ready: func() string { return "" }})
}

// answer posts a review; the API server allows what is to be in it.
func answer(t *testing.T, h http.Handler, req *admissionv1.AdmissionRequest, query string) []string {
	t.Helper()
	body, err := json.Marshal(&admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: req})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, Path+query, bytes.NewReader(body)))
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(w.Body.Bytes(), &review); err != nil || w.Code != http.StatusOK {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	if r := review.Response; r == nil || !r.Allowed || r.UID != "u1" || review.Kind != "AdmissionReview" || review.APIVersion != "admission.k8s.io/v1" || review.Request != nil {
		t.Fatalf("%s", w.Body)
	}
	total := 0
	for _, text := range review.Response.Warnings {
		if total += len(text); utf8.RuneCountInString(text) > 256 || total > 4096 || strings.ContainsAny(text, "\n\r") {
			t.Errorf("the API server would cut %q", text)
		}
	}
	return review.Response.Warnings
}

func TestReviews(t *testing.T) {
	for name, c := range map[string]struct {
		req  *admissionv1.AdmissionRequest
		want string
	}{
		"a dry run": {request(admissionv1.Create, true, dbPolicy, ""), "Flowkeep: 1 allowed -> denied, 0 denied -> allowed; live connections that would be cut: 2 or more|" +
			"shop/web, world would no longer reach shop/db at all (2 live): isolated for ingress by shop/db|connections of node node2 are not all known: away"},
		"a real change":               {request(admissionv1.Create, false, dbPolicy, ""), "Flowkeep: 1 allowed -> denied, 0 denied -> allowed"},
		"an edit of something else":   {request(admissionv1.Update, true, strings.Replace(dbPolicy, `"name": "db"`, `"name": "db", "labels": {"a": "b"}`, 1), dbPolicy), ""},
		"an edit":                     {request(admissionv1.Update, false, dbPolicy, strings.Replace(dbPolicy, "Ingress", "Egress", 1)), "Flowkeep: 1 allowed -> denied, 0 denied -> allowed"},
		"a policy in a dry run":       {request(admissionv1.Create, false, mode("audit"), ""), "Flowkeep: no connection would be denied or allowed that is not so now|it is a dry run: it isolates nobody and allows nothing"},
		"its end":                     {request(admissionv1.Update, false, dbPolicy, mode("audit")), "Flowkeep: 1 allowed -> denied, 0 denied -> allowed"},
		"a mode that there is not":    {request(admissionv1.Update, false, mode("Audit"), dbPolicy), "Flowkeep: 1 allowed -> denied, 0 denied -> allowed|metadata.annotations: flowkeep.io/enforcement cannot be \"Audit\": write audit"},
		"what changes nothing":        {request(admissionv1.Create, false, strings.Replace(dbPolicy, `"app": "db"`, `"app": "x"`, 1), ""), ""},
		"what changes nothing, dry":   {request(admissionv1.Delete, true, "", dbPolicy), "Flowkeep: no connection would be denied or allowed that is not so now|connections of node node2 are not all known: away"},
		"what cannot be read":         {request(admissionv1.Create, true, `{"spec": 7}`, ""), "Flowkeep: what this changes is not known: the object cannot be read"},
		"what Flowkeep can't enforce": {request(admissionv1.Create, false, strings.Replace(dbPolicy, `"policyTypes"`, `"ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.1/8"}}]}], "policyTypes"`, 1), ""), "Flowkeep: 1 allowed -> denied, 0 denied -> allowed|spec.ingress[0].from[0].ipBlock.cidr: 10.0.0.1/8 has bits"},
	} {
		if got := strings.Join(answer(t, handler(&judge{}), c.req, "?timeout=3s"), "|"); !strings.HasPrefix(got, c.want) || (c.want == "") != (got == "") {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	other := request(admissionv1.Create, true, dbPolicy, "")
	other.Resource.Resource = "pods"
	if got := answer(t, handler(&judge{}), other, ""); len(got) != 0 {
		t.Errorf("of a pod: %q", got)
	}
	j := &judge{}
	named := request(admissionv1.Create, false, dbPolicy, "")
	named.Namespace = "web"
	if answer(t, handler(j), named, ""); len(j.asked) != 1 || j.asked[0].Policy.ID() != "web/db" || j.connections {
		t.Errorf("%+v", j)
	}
}

// Whatever happens, the API server is answered before it gives up, and nothing is denied.
func TestReviewsInTrouble(t *testing.T) {
	dry, live := request(admissionv1.Create, true, dbPolicy, ""), request(admissionv1.Create, false, dbPolicy, "")
	if got := answer(t, handler(&judge{err: errors.New("netmaster is stopping")}), dry, ""); len(got) != 1 || !strings.Contains(got[0], "not known: netmaster is stopping") {
		t.Errorf("%q", got)
	}
	h := handler(&judge{})
	h.cfg.Ready = func() string { return "not yet" }
	if got := answer(t, h, dry, ""); len(got) != 1 || !strings.Contains(got[0], "not known: not yet") {
		t.Errorf("%q", got)
	}
	h = handler(panicking{})
	if got := answer(t, h, dry, ""); len(got) != 1 || !strings.Contains(got[0], "error in netmaster") {
		t.Errorf("%q", got)
	}
	synctest.Test(t, func(t *testing.T) {
		slow := &judge{wait: make(chan struct{})}
		h := handler(slow)
		for range mostAtWork + 1 {
			began := time.Now()
			if got := answer(t, h, dry, "?timeout=450ms"); len(got) != 1 || !strings.Contains(got[0], "could not be computed in time") || time.Since(began) >= 450*time.Millisecond {
				t.Errorf("%q after %v", got, time.Since(began))
			}
		}
		if got := answer(t, h, live, "?timeout=5s"); len(got) != 0 {
			t.Errorf("a real change has waited: %q", got)
		}
		close(slow.wait)
	})
}

type panicking struct{}

func (panicking) Diff(context.Context, []explain.Attempt, bool) (*inspect.Diff, error) {
	panic("broken")
}

func TestWhatIsNoReview(t *testing.T) {
	h := handler(&judge{})
	for body, code := range map[string]int{"": http.StatusBadRequest, "{}": http.StatusBadRequest, "[1": http.StatusBadRequest, `{"request": {"uid": "` + strings.Repeat("x", mostBody) + `"}}`: http.StatusBadRequest} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, Path, strings.NewReader(body)))
		if w.Code != code {
			t.Errorf("%.20q: %d", body, w.Code)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, Path, nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Error(w.Code)
	}
}

func TestManyWarningsAreBounded(t *testing.T) {
	var many []string
	for i := range 100 {
		many = append(many, fmt.Sprintf("%d ", i)+strings.Repeat("é\x00", 300))
	}
	got := bound(many)
	if n := len(got); n < 3 || n > mostLines+1 || !strings.Contains(got[n-1], "and 8") || !strings.HasSuffix(got[0], "...") {
		t.Errorf("%q", got)
	}
	if got := bound(many[:1]); len(got) != 1 {
		t.Errorf("%q", got)
	}
}

// The certificate is read again when it is replaced; who shows none is refused where one is asked for.
func TestServe(t *testing.T) {
	dir := t.TempDir()
	for _, err := range []error{mtls.Init(dir), mtls.IssueServer(dir, []string{"127.0.0.1"}), mtls.IssueAdmin(dir)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	listen := func(ca string) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s, err := NewServer(Listen{Listener: l, Cert: filepath.Join(dir, "server.crt"), Key: filepath.Join(dir, "server.key"), ClientCA: ca}, handler(&judge{}), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		return "https://" + l.Addr().String() + Path
	}
	text, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	get := func(url string, certs ...tls.Certificate) error {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: certs}, DisableKeepAlives: true}}
		r, err := client.Get(url)
		if err == nil {
			r.Body.Close()
		}
		return err
	}
	open, shut := listen(""), listen(filepath.Join(dir, "ca.crt"))
	admin, err := tls.LoadX509KeyPair(filepath.Join(dir, "admin.crt"), filepath.Join(dir, "admin.key"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(get(open), get(shut, admin)); err != nil {
		t.Error(err)
	}
	if get(shut) == nil {
		t.Error("one without a certificate was answered")
	}
	for _, l := range []Listen{{Cert: filepath.Join(dir, "none"), Key: "x"}, {Cert: filepath.Join(dir, "server.crt"), Key: filepath.Join(dir, "server.key"), ClientCA: filepath.Join(dir, "ca.key")},
		{Cert: filepath.Join(dir, "server.crt"), Key: filepath.Join(dir, "server.key"), Address: "no address"}} {
		if _, err := NewServer(l, nil, slog.Default()); err == nil {
			t.Errorf("%+v serves", l)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "server.key"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := get(open); err != nil {
		t.Errorf("while the files are replaced: %v", err)
	}
}
