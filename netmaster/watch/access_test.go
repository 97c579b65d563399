package watch

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/netmaster/access"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	k8stesting "k8s.io/client-go/testing"
)

func TestReview(t *testing.T) {
	client := fake.NewClientset()
	var asked authorizationv1.SubjectAccessReviewSpec
	var answer authorizationv1.SubjectAccessReviewStatus
	var fault error
	client.PrependReactor("create", "subjectaccessreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
		asked = a.(k8stesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).Spec
		return true, &authorizationv1.SubjectAccessReview{Status: answer}, fault
	})
	a := NewAccess(client, slog.New(slog.DiscardHandler))
	r := &access.Request{User: access.User{Name: "jane", UID: "7", Groups: []string{"a", "b"}, Extra: map[string][]string{"scopes": {"x"}}}, Verb: "get", Resource: "wait", Name: "answer", Namespace: "shop"}
	for _, c := range []struct {
		answer  authorizationv1.SubjectAccessReviewStatus
		fault   error
		allowed bool
		fails   bool
	}{
		{authorizationv1.SubjectAccessReviewStatus{Allowed: true}, nil, true, false},
		{authorizationv1.SubjectAccessReviewStatus{}, nil, false, false},
		{authorizationv1.SubjectAccessReviewStatus{Allowed: true, Denied: true}, nil, false, false},
		{authorizationv1.SubjectAccessReviewStatus{EvaluationError: "webhook is away"}, nil, false, true},
		{authorizationv1.SubjectAccessReviewStatus{Denied: true, EvaluationError: "webhook is away"}, nil, false, false},
		{authorizationv1.SubjectAccessReviewStatus{Allowed: true}, errors.New("connection refused"), false, true},
	} {
		answer, fault = c.answer, c.fault
		allowed, _, err := a.Review(t.Context(), r)
		if allowed != c.allowed || (err != nil) != c.fails {
			t.Errorf("%+v, %v: %v, %v", c.answer, c.fault, allowed, err)
		}
	}
	attributes := *asked.ResourceAttributes
	if asked.User != "jane" || asked.UID != "7" || strings.Join(asked.Groups, ",") != "a,b" || asked.Extra["scopes"][0] != "x" ||
		attributes != (authorizationv1.ResourceAttributes{Namespace: "shop", Verb: "get", Group: "inspect.flowkeep.io", Version: "v1alpha1", Resource: "wait", Name: "answer"}) {
		t.Errorf("asked %+v", asked)
	}
}

// What the API server publishes is told now, when it changes, and when it is gone; other ConfigMaps are not.
func TestFollowFrontProxy(t *testing.T) {
	own := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: frontProxyNamespace, Name: frontProxyName}, Data: map[string]string{"n": "1"}}
	other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: frontProxyNamespace, Name: "other"}, Data: map[string]string{"n": "other"}}
	client := fake.NewClientset(own, other)
	watching := make(chan struct{}, 9)
	client.PrependWatchReactor("configmaps", func(k8stesting.Action) (bool, apiwatch.Interface, error) {
		watching <- struct{}{}
		return false, nil, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan string, 9)
	done := make(chan error, 1)
	go func() {
		done <- NewAccess(client, slog.New(slog.DiscardHandler)).FollowFrontProxy(ctx, func(data map[string]string) {
			if data == nil {
				told <- "gone"
			} else {
				told <- data["n"]
			}
		})
	}()
	next := func(want string) {
		t.Helper()
		select {
		case got := <-told:
			if got != want {
				t.Errorf("told %q, want %q", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%q is not told", want)
		}
	}
	next("1")
	<-watching
	maps := client.CoreV1().ConfigMaps(frontProxyNamespace)
	own.Data = map[string]string{"n": "2"}
	if _, err := maps.Update(ctx, own, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	next("2")
	if err := maps.Delete(ctx, frontProxyName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	next("gone")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Netmaster says that it is there by a change of its APIService, which may be refused.
func TestAnnounce(t *testing.T) {
	var seen []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Method+" "+r.URL.Path+" "+r.Header.Get("Content-Type"))
		w.WriteHeader(http.StatusForbidden)
	}))
	defer s.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	NewAccess(client, slog.New(slog.DiscardHandler)).Announce(t.Context())
	const want = "PATCH /apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.inspect.flowkeep.io application/merge-patch+json"
	if len(seen) != 1 || seen[0] != want {
		t.Errorf("%q, want %q", seen, want)
	}
}
