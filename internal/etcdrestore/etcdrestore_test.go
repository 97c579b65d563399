package etcdrestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

const list = `{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": %q}, "items": []}`

// server responds to lists with a version, or with an error, and opens watches without events.
type server struct {
	code     int
	body     string
	requests []string
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests = append(s.requests, r.URL.RequestURI()+" "+r.Header.Get("Accept"))
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Query().Get("watch") == "" {
		w.WriteHeader(s.code)
		_, _ = io.WriteString(w, s.body)
	}
}

func TestWrap(t *testing.T) {
	for name, c := range map[string]struct {
		from     string
		code     int
		body     string
		restored bool
		failure  func(error) bool // nil: the watch is opened
	}{
		"no version":          {"", 500, "", false, nil},
		"any version":         {"0", 500, "", false, nil},
		"the present version": {"10", 200, fmt.Sprintf(list, "10"), false, nil},
		"an older version":    {"9", 200, fmt.Sprintf(list, "10"), false, nil},
		"a newer version":     {"10", 200, fmt.Sprintf(list, "9"), true, apierrors.IsResourceExpired},
		"no number":           {"10", 200, fmt.Sprintf(list, "x"), false, nil},
		"one object":          {"10", 200, `{"kind": "Pod", "metadata": {"resourceVersion": "9"}}`, false, nil},
		"a refused list":      {"10", 403, `{"kind": "Status", "apiVersion": "v1", "reason": "Forbidden", "code": 403}`, false, apierrors.IsForbidden},
		"a busy server":       {"10", 429, "", false, apierrors.IsTooManyRequests},
		"no JSON":             {"10", 200, "<html>", false, func(err error) bool { return err != nil }},
	} {
		t.Run(name, func(t *testing.T) {
			s := &server{code: c.code, body: c.body}
			at := httptest.NewServer(s)
			defer at.Close()
			var got error
			cfg := &rest.Config{Host: at.URL}
			cfg.Wrap(Wrap(func(err error) { got = err }))
			client, err := dynamic.NewForConfig(cfg)
			if err != nil {
				t.Fatal(err)
			}
			pods := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).Namespace("shop")
			w, err := pods.Watch(t.Context(), metav1.ListOptions{ResourceVersion: c.from, FieldSelector: "metadata.name=db", AllowWatchBookmarks: true})
			if err == nil {
				w.Stop()
			}
			if (err != nil) != (c.failure != nil) || err != nil && !c.failure(err) {
				t.Errorf("the watch: %v", err)
			}
			if errors.Is(got, ErrRestored) != c.restored {
				t.Errorf("restored: %v", got)
			}
			if checks := len(s.requests) > 0 && strings.Contains(s.requests[0], "limit=1"); checks != (c.from == "10" || c.from == "9") {
				t.Errorf("requests: %q", s.requests)
			}
		})
	}
}

func TestWrap_Request(t *testing.T) {
	s := &server{code: 200, body: fmt.Sprintf(list, "10")}
	at := httptest.NewServer(s)
	defer at.Close()
	client := &http.Client{Transport: Wrap(nil)(http.DefaultTransport)}
	for _, query := range []string{
		"watch=1&resourceVersion=10&fieldSelector=a%3Db&timeoutSeconds=300&allowWatchBookmarks=true",
		"watch=true&resourceVersion=10&fieldSelector=a%3Db&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
		"resourceVersion=10&fieldSelector=a%3Db",
	} {
		s.requests = nil
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at.URL+"/api/v1/pods?"+query, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "application/x")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		want := []string{"/api/v1/pods?fieldSelector=a%3Db&limit=1 " + metadataOnly, "/api/v1/pods?" + query + " application/x"}
		if fmt.Sprint(s.requests) != fmt.Sprint(want) {
			t.Errorf("%q, want %q", s.requests, want)
		}
	}
}

func TestCause(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	if err := Cause(ctx); err != nil {
		t.Error(err)
	}
	stop(fmt.Errorf("%w: x", ErrRestored))
	if err := Cause(ctx); !errors.Is(err, ErrRestored) {
		t.Error(err)
	}
	other, stopOther := context.WithCancelCause(t.Context())
	stopOther(errors.New("x"))
	if err := Cause(other); err != nil {
		t.Error(err)
	}
}
