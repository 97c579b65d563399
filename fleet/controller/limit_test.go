package controller

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/flowkeep/flowkeep/fleet"
	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"
)

// workWebhook is a webhook of the hub that limits ManifestWorks as OCM's does.
type workWebhook struct {
	limit   atomic.Int64 // bytes
	refused atomic.Int64 // requests
}

func (v *workWebhook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	var work workv1.ManifestWork
	if json.NewDecoder(r.Body).Decode(&review) != nil || json.Unmarshal(review.Request.Object.Raw, &work) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	size := 0
	for _, m := range work.Spec.Workload.Manifests {
		size += m.Size()
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: int64(size) <= v.limit.Load()}
	if !review.Response.Allowed {
		v.refused.Add(1)
		message := fmt.Sprintf("the size of manifests is %v bytes which exceeds the %v limit", size, v.limit.Load())
		review.Response.Result = &metav1.Status{Code: http.StatusBadRequest, Message: message}
	}
	_ = json.NewEncoder(w).Encode(review)
}

// limited has the hub refuse ManifestWorks of the test's clusters with more than so many bytes of manifests.
func (h *hubWorld) limited(limit int64) *workWebhook {
	h.Helper()
	v := &workWebhook{}
	v.limit.Store(limit)
	server := httptest.NewTLSServer(v)
	h.Cleanup(server.Close)
	ca, err := json.Marshal(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	h.must(err)
	resource := schema.GroupVersionResource{
		Group:    "admissionregistration.k8s.io",
		Version:  "v1",
		Resource: "validatingwebhookconfigurations",
	}
	o := h.parse(`{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: %s}, webhooks: [{
		name: works.test.example, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {url: %q, caBundle: %s},
		namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [%s]}]},
		rules: [{apiGroups: [work.open-cluster-management.io], apiVersions: [v1], resources: [manifestworks], operations: [CREATE, UPDATE]}]}]}`,
		h.id, server.URL, ca, strings.Join(h.clusters, ", "))
	_, err = h.hub.Resource(resource).Create(h.Context(), o, metav1.CreateOptions{})
	h.must(err)
	h.Cleanup(func() {
		if err := h.hub.Resource(resource).Delete(context.WithoutCancel(h.Context()), h.id, metav1.DeleteOptions{}); err != nil {
			h.Error(err)
		}
	})
	h.eventually(func() error { // the API server reads webhooks later than they are written
		before := v.refused.Load()
		v.limit.Store(0)
		defer v.limit.Store(limit)
		probe := h.parse(`{apiVersion: work.open-cluster-management.io/v1, kind: ManifestWork, metadata: {name: probe}, spec: {workload: {manifests: [
			{apiVersion: v1, kind: Namespace, metadata: {name: probe}}]}}}`)
		in := h.hub.Resource(works.resource).Namespace(h.clusters[0])
		if _, err := in.Create(h.Context(), probe, metav1.CreateOptions{}); err == nil {
			h.must(in.Delete(h.Context(), "probe", metav1.DeleteOptions{}))
		}
		if v.refused.Load() == before {
			return errors.New("the API server does not call the webhook")
		}
		return nil
	})
	return v
}

// wide applies a NetworkPolicy of the test's set with so many blocks of addresses, of about 37 bytes each.
func (h *hubWorld) wide(name string, blocks int) {
	h.Helper()
	var peers []string
	for i := range blocks {
		peers = append(peers, fmt.Sprintf(`{ipBlock: {cidr: 10.%d.%d.0/24}}`, 100+i/100, 100+i%100))
	}
	h.apply("", `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: %s, labels: {fleet: %s}}, spec: {podSelector: {},
		ingress: [{from: [%s]}]}}`, name, h.id, strings.Join(peers, ", "))
}

// A hub refuses works that are smaller than OCM's default: what fits arrives, and what does not is reported in the
// hub's words, without further writes. It is sent when the hub takes it.
func TestSync_LimitOfTheHubIsLearned(t *testing.T) {
	h := newHubWorld(t, 1)
	h.agents()
	webhook := h.limited(51200)
	h.wide("big", 1600)
	all := []string{"NetworkPolicy/big", "NetworkPolicyEnforcement/big"}
	for i := range 10 {
		name := fmt.Sprint("small-", i)
		h.wide(name, 200)
		all = append(all, "NetworkPolicy/"+name, "NetworkPolicyEnforcement/"+name)
	}
	h.apply("", `{apiVersion: fleet.flowkeep.io/v1alpha1, kind: NetworkPolicySet, metadata: {name: base},
		spec: {selector: {matchLabels: {fleet: %s}}, placement: all}}`, h.id)
	before := webhook.refused.Load()
	r := h.start()
	r.idle()
	h.expect(1, all[2:]...)
	h.says("NetworkPolicySet", "base", "Distributed", "False TooLarge")
	if have := h.condition("NetworkPolicySet", "base", "Distributed"); !strings.Contains(have, "exceeds the 51200 limit") {
		t.Errorf("the condition has not the hub's words: %s", have)
	}
	if n := webhook.refused.Load() - before; n == 0 || n > 3 {
		t.Errorf("the hub refuses %d writes", n)
	}
	webhook.limit.Store(500 << 10)
	r.inner.forgetLimit()
	h.expect(1, all...)
	h.says("NetworkPolicySet", "base", "Distributed", "True")
	h.remove("NetworkPolicySet", "base") // other tests' controllers would send it
	h.expect(1)
}

func TestHubsLimit(t *testing.T) {
	refused := func(text string) error {
		return apierrors.NewBadRequest(`admission webhook "x" denied the request: ` + text)
	}
	for _, c := range []struct {
		err   error
		size  int
		bytes int
		alone int
	}{
		{refused("the size of manifests is 61440 bytes which exceeds the 51200 limit"), 61440, 51200, 51200},
		{refused("the size of manifests is 269941 bytes which exceeds the 50k limit"), 269941, 51200, 51200},
		{refused("the size of manifests is 51203 bytes which exceeds the 51200 limit"), 51195, 51194, 51194},
		{refused("its note is denied the request: the size of manifests is 61440 bytes which exceeds the 20000 limit"), 61440, 0, 0},
		{refused("the size of manifests is 300000 bytes which exceeds the 20000 limit"), 61440, 0, 0},
		{refused("the number of manifests exceeds the 10 limit"), 61440, 0, 0},
		{refused("the size exceeds the 99999999999999999999 limit"), 61440, 0, 0},
		{refused("no"), 61440, 0, 0},
		{apierrors.NewRequestEntityTooLargeError("limit is 1"), 61440, 30720, 61439},
		{apierrors.NewRequestEntityTooLargeError("limit is 1"), 20000, minLimit, 19999},
		{apierrors.NewRequestEntityTooLargeError("limit is 1"), 2000, 0, 0},
		{errors.New("connection refused"), 61440, 0, 0},
	} {
		if have := hubsLimit(c.err, c.size); have.bytes != c.bytes || have.alone != c.alone {
			t.Errorf("%v, of %d bytes: the limit is %+v, want %d and %d", c.err, c.size, have, c.bytes, c.alone)
		}
	}
}

// TestHubLimit_IsFound sends copies of random sizes by a proxy that refuses large requests without a limit. What the
// proxy lets pass arrives, but for copies that exceed the limit with the largest namespace, and each copy that is too
// large is refused a few times.
func TestHubLimit_IsFound(t *testing.T) {
	tooLarge := apierrors.NewRequestEntityTooLargeError("")
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(24, seed))
		hidden := minLimit + r.IntN(300<<10)
		var copies []*fleet.Copy
		var passes, held int
		for i := range 1 + r.IntN(12) {
			size := r.IntN(350 << 10)
			if size <= hidden-256 {
				passes++
			} else if size > hidden {
				held++
			}
			source := fleet.Source{Name: fleet.Name{Name: fmt.Sprint("p", i)}}
			copies = append(copies, &fleet.Copy{Source: source, JSON: make([]byte, size)})
		}
		var limit hubLimit
		refusals := 0
		for again := true; again; {
			b := fleet.Bundle{Clusters: []fleet.ClusterBundle{{Cluster: "c", Copies: copies}}}
			b.Restrict(limit.bytes, limit.alone, "")
			again = false
			for _, one := range b.Clusters[0].Copies {
				size := len(one.JSON)
				if size > hidden {
					limit, again = limit.tighten(hubsLimit(tooLarge, size), size), true
					refusals++
				}
			}
			if sent := len(b.Clusters[0].Copies); !again && (sent < passes || sent > len(copies)-held) {
				t.Fatalf("seed %d: %d of %d copies arrive, %d pass the proxy", seed, sent, len(copies), passes)
			}
			if refusals > 2*held {
				t.Fatalf("seed %d: %d refusals of %d copies", seed, refusals, held)
			}
		}
	}
}
