package watch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// Link knows whether the API server answers, for each resource that is watched. Safe for concurrent use.
type Link struct {
	mu      sync.Mutex
	trouble map[string]string // by resource
}

// NewLink makes a link that knows of no trouble.
func NewLink() *Link { return &Link{trouble: map[string]string{}} }

// Problem is empty while all that is watched can be.
func (l *Link) Problem() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for _, text := range slices.Sorted(maps.Values(l.trouble)) {
		if !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return strings.Join(out, "; ")
}

func (l *Link) failed(resource string, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trouble[resource] = err.Error()
}

func (l *Link) worked(resource string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.trouble, resource)
}

// Wrap listens to what the API server answers; use it as a client's transport wrapper.
func (l *Link) Wrap(next http.RoundTripper) http.RoundTripper { return &listener{l, next} }

type listener struct {
	link *Link
	next http.RoundTripper
}

// RoundTrip notes how lists and watches of whole resources fare.
func (t *listener) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(r)
	resource := wholeResource(r.URL.Path)
	switch {
	case r.Method != http.MethodGet || resource == "":
	case err != nil:
		t.link.failed(resource, err)
	case resp.StatusCode < 300:
		t.link.worked(resource)
	case resp.StatusCode != http.StatusGone && resp.StatusCode != http.StatusTooManyRequests:
		t.link.failed(resource, fmt.Errorf("the API server answers %q to a request for %s", resp.Status, resource))
	}
	return resp, err
}

// wholeResource is what a list or watch of all namespaces is of; empty if that is not watched. An object may have a resource's name.
func wholeResource(path string) string {
	for resource, suffix := range watched {
		if strings.HasSuffix(path, suffix) {
			return resource
		}
	}
	return ""
}

var watched = map[string]string{"namespaces": "/api/v1/namespaces", "pods": "/api/v1/pods", "nodes": "/api/v1/nodes",
	"networkpolicies": "/apis/networking.k8s.io/v1/networkpolicies"}
