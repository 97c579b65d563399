package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/whatif"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// path is any: netmaster/access has looked at it.
const path = "/reviews"

// judge answers with a world of two pods.
type judge struct {
	mu      sync.Mutex
	request whatif.Request
	err     error
	slow    bool // it answers nothing before the context ends
}

func (j *judge) Diff(ctx context.Context, r whatif.Request) (*inspect.Diff, error) {
	if j.slow {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.request = r
	if j.err != nil {
		return nil, j.err
	}
	w := &policy.World{Namespaces: []policy.Namespace{{Name: "shop"}}}
	for i, app := range []string{"db", "web"} {
		w.Endpoints = append(w.Endpoints, &policy.Endpoint{Namespace: "shop", Name: app, Labels: map[string]string{"app": app}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}})
	}
	after, tried := explain.Try(w, r.Attempts)
	d := &inspect.Diff{Policies: tried, Delta: explain.Diff(explain.NewModel(w), explain.NewModel(after))}
	if r.Connections {
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
	return New(Config{
		Judge:  j,
		Logger: slog.New(slog.DiscardHandler),
		Ready:  func() string { return "" },
		May: func(_ context.Context, u *authenticationv1.UserInfo) (bool, error) {
			if u.Username == "unknown" {
				return true, errors.New("the API server is away")
			}
			return u.Username != "tenant", nil
		},
	})
}

// answer posts a review; the API server allows what is to be in it.
func answer(t *testing.T, h http.Handler, req *admissionv1.AdmissionRequest, query string) []string {
	t.Helper()
	body, err := json.Marshal(&admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: req})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path+query, bytes.NewReader(body)))
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
		"a dry run": {request(admissionv1.Create, true, dbPolicy, ""), "Flowkeep: 1 allowed -> denied, 0 denied -> " +
			"allowed; live connections that would be cut: 2 or more|" +
			"shop/web, world would no longer reach shop/db at all (2 live): isolated for ingress by " +
			"shop/db|connections of node node2 are not all known: away"},
		"a real change": {request(admissionv1.Create, false, dbPolicy, ""), "Flowkeep: 1 allowed -> " +
			"denied, 0 denied -> allowed"},
		"an edit of something else": {request(admissionv1.Update, true, strings.Replace(dbPolicy, `"name": "db"`, `"name": "db", "labels": {"a": "b"}`, 1), dbPolicy), ""},
		"an edit": {request(admissionv1.Update, false, dbPolicy, strings.Replace(dbPolicy, "Ingress", "Egress", 1)), "Flowkeep: 1 allowed -> " +
			"denied, 0 denied -> allowed"},
		"a policy in a dry run":    {request(admissionv1.Create, false, mode(policy.ModeDryRun), ""), "Flowkeep: no connection would be denied or allowed that is not so now|it is a dry run: it isolates no pod and allows nothing"},
		"its end":                  {request(admissionv1.Update, false, dbPolicy, mode(policy.ModeDryRun)), "Flowkeep: 1 allowed -> denied, 0 denied -> allowed"},
		"a mode that there is not": {request(admissionv1.Update, false, mode("Audit"), dbPolicy), "Flowkeep: 1 allowed -> denied, 0 denied -> allowed|metadata.annotations: flowkeep.io/enforcement cannot be \"Audit\": write dry-run"},
		"what changes nothing":     {request(admissionv1.Create, false, strings.Replace(dbPolicy, `"app": "db"`, `"app": "x"`, 1), ""), ""},
		"what changes nothing, dry": {request(admissionv1.Delete, true, "", dbPolicy), "Flowkeep: no connection " +
			"would be denied or allowed that is not so now|connections of node node2 are not all known: away"},
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
	if answer(t, handler(j), named, ""); len(j.request.Attempts) != 1 || j.request.Attempts[0].Policy.ID() != "web/db" ||
		j.request.Connections || j.request.Bounds != realBounds || j.request.Namespace != "" {
		t.Errorf("%+v", j.request)
	}
}

// Whatever happens, the API server is answered before it gives up, and nothing is denied.
func TestReviews_ErrorsAllow(t *testing.T) {
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
	if got := answer(t, handler(&judge{err: explain.ErrTooMany}), dry, ""); len(got) != 1 || !strings.Contains(got[0], "in time") {
		t.Errorf("%q", got)
	}
	synctest.Test(t, func(t *testing.T) {
		h := handler(&judge{slow: true})
		var all sync.WaitGroup
		for range maxAtWork + 1 {
			all.Go(func() {
				began := time.Now()
				got := answer(t, h, dry, "?timeout=450ms")
				if len(got) != 1 || !strings.Contains(got[0], "could not be computed in time") || time.Since(began) >= 450*time.Millisecond {
					t.Errorf("%q after %v", got, time.Since(began))
				}
			})
		}
		synctest.Wait()
		if got := answer(t, h, live, "?timeout=5s"); len(got) != 0 {
			t.Errorf("a real change has waited: %q", got)
		}
		all.Wait()
		if len(h.places) != 0 {
			t.Error("a comparison outlasts its review")
		}
	})
}

// A user who may not create a diff, or of whom that is not known, gets what depends on the policy's namespace alone.
func TestReviews_OfUsersWhoMayNotSeeAll(t *testing.T) {
	for _, name := range []string{"tenant", "unknown"} {
		j := &judge{}
		dry := request(admissionv1.Create, true, dbPolicy, "")
		dry.UserInfo.Username = name
		got := strings.Join(answer(t, handler(j), dry, ""), "|")
		if j.request.Namespace != "shop" || j.request.Connections || !strings.Contains(got, "|"+restricted) {
			t.Errorf("%s: %+v, %q", name, j.request, got)
		}
		live := request(admissionv1.Create, false, dbPolicy, "")
		live.UserInfo.Username = name
		if got := answer(t, handler(j), live, ""); j.request.Namespace != "shop" || len(got) != 1 {
			t.Errorf("%s: %+v, %q", name, j.request, got)
		}
	}
}

// What is large is not read, and nothing is compared.
func TestReviews_LargePoliciesAreRefused(t *testing.T) {
	blocks := strings.TrimSuffix(strings.Repeat(`{"ipBlock": {"cidr": "192.0.2.0/24"}},`, maxEntries+1), ",")
	for name, text := range map[string]string{
		"many entries": strings.Replace(dbPolicy, `"policyTypes"`, `"ingress": [{"from": [`+blocks+`]}], "policyTypes"`, 1),
		"many bytes":   strings.Replace(dbPolicy, `"name": "db"`, `"name": "db", "annotations": {"x": "`+strings.Repeat("x", maxObject)+`"}`, 1),
	} {
		j := &judge{}
		got := answer(t, handler(j), request(admissionv1.Create, true, text, ""), "")
		if len(got) != 1 || !strings.Contains(got[0], "too large") || j.request.Attempts != nil {
			t.Errorf("%s: %q, %d attempts", name, got, len(j.request.Attempts))
		}
	}
	w := httptest.NewRecorder()
	handler(&judge{}).ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(strings.Repeat(" ", maxBody+1))))
	if w.Code != http.StatusRequestEntityTooLarge {
		t.Error(w.Code)
	}
}

type panicking struct{}

func (panicking) Diff(context.Context, whatif.Request) (*inspect.Diff, error) {
	panic("broken")
}

func TestReviews_InvalidRequests(t *testing.T) {
	h := handler(&judge{})
	for body, code := range map[string]int{"": http.StatusBadRequest, "{}": http.StatusBadRequest, "[1": http.StatusBadRequest} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
		if w.Code != code {
			t.Errorf("%.20q: %d", body, w.Code)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
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
	if n := len(got); n < 3 || n > maxLines+1 || !strings.Contains(got[n-1], "and 8") || !strings.HasSuffix(got[0], "...") {
		t.Errorf("%q", got)
	}
	if got := bound(many[:1]); len(got) != 1 {
		t.Errorf("%q", got)
	}
}

// A difference of many rows costs the rows that are written.
func TestDescribe_WritesTheFirstRows(t *testing.T) {
	d := &inspect.Diff{}
	for i := range 100 {
		d.Groups = append(d.Groups, explain.Group{Name: fmt.Sprintf("shop/p%d", i), Pods: []string{"x"}})
		d.Differences = append(d.Differences, explain.Difference{From: []int{i}, To: []int{i}, Lost: explain.All()})
	}
	got, _ := describe(d, true, true)
	if len(got) != 1+maxLines+1 || !strings.Contains(got[len(got)-1], "88 more lines") {
		t.Errorf("%q", got)
	}
	if sent := bound(got); len(sent) != maxLines+1 || !strings.Contains(sent[maxLines], "more") {
		t.Errorf("%q", sent)
	}
}
