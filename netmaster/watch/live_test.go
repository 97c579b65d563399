package watch

import (
	"log/slog"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// A manifest is what a person would write, and has nothing that only machines do.
func TestManifest(t *testing.T) {
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db", UID: "u", ResourceVersion: "7", Generation: 3, Labels: map[string]string{"team": "x"},
		Annotations:   map[string]string{lastApplied: "{}", "note": "<b>"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}}, Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Ingress"}}}
	w, err := New(fake.NewClientset(np), nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	text, there, err := w.Manifest(t.Context(), "shop", "db")
	if err != nil || !there {
		t.Fatal(there, err)
	}
	for _, wanted := range []string{"apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n", "name: db", "namespace: shop", "team: x", "note: <b>", "- Ingress"} {
		if !strings.Contains(text, wanted) {
			t.Errorf("%q is missing in\n%s", wanted, text)
		}
	}
	for _, noise := range []string{"uid", "resourceVersion", "managedFields", "creationTimestamp: \"2", "generation", "last-applied"} {
		if strings.Contains(text, noise) {
			t.Errorf("%q is in\n%s", noise, text)
		}
	}
	if _, there, err = w.Manifest(t.Context(), "shop", "none"); there || err != nil {
		t.Errorf("a policy that is not there: %v, %v", there, err)
	}
	if np.Annotations[lastApplied] == "" {
		t.Error("the object itself was changed")
	}
}
