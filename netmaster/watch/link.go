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

	"github.com/flowkeep/flowkeep/internal/etcdrestore"
)

// Link records, for each watched resource, whether the API server responds, and notices that etcd was restored from a
// backup. Safe for concurrent use.
type Link struct {
	restored chan error // the first restore that was noticed

	mu       sync.Mutex
	problems map[string]string // by resource
}

// NewLink returns a Link without problems.
func NewLink() *Link { return &Link{restored: make(chan error, 1), problems: map[string]string{}} }

// Problem returns why resources that determine enforcement cannot be watched; empty if they can.
func (l *Link) Problem() string { return l.problem(false) }

// ServicesProblem returns why Services and EndpointSlices cannot be watched; empty if they can.
func (l *Link) ServicesProblem() string { return l.problem(true) }

func (l *Link) problem(services bool) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for _, resource := range slices.Sorted(maps.Keys(l.problems)) {
		text := l.problems[resource]
		if slices.Contains(serviceResources, resource) == services && !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

func (l *Link) failed(resource string, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.problems[resource] = err.Error()
}

func (l *Link) worked(resource string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.problems, resource)
}

// Wrap records the API server's responses, and watches for a restore of etcd (Watcher.Guard). Use it as a client's
// transport wrapper.
func (l *Link) Wrap(next http.RoundTripper) http.RoundTripper {
	return &listener{l, etcdrestore.Wrap(l.noteRestore)(next)}
}

func (l *Link) noteRestore(err error) {
	select {
	case l.restored <- err:
	default: // noticed before
	}
}

type listener struct {
	link *Link
	next http.RoundTripper
}

// RoundTrip records the results of lists and watches of whole resources.
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

// wholeResource returns the watched resource that a request lists in all namespaces; empty if there is none.
func wholeResource(path string) string {
	for resource, suffix := range watched {
		if strings.HasSuffix(path, suffix) {
			return resource
		}
	}
	return ""
}

var watched = map[string]string{"namespaces": "/api/v1/namespaces", "pods": "/api/v1/pods", "nodes": "/api/v1/nodes",
	"networkpolicies": "/apis/networking.k8s.io/v1/networkpolicies",
	"services":        "/api/v1/services", "endpointslices": "/apis/discovery.k8s.io/v1/endpointslices"}
