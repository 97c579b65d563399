// Package etcdrestore makes clients of the API server notice that etcd was restored from a backup.
//
// The versions of the API server are then lower than those that clients have seen. It accepts a watch from such a
// version, and sends nothing until its versions are as high again; deletions by the restore have no events. A restore
// needs a restart of the API server, which ends all watches: it is enough to compare versions when a watch starts.
package etcdrestore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// ErrRestored is the error of an API server that was restored to an older state. What was read before may not be there
// any more.
var ErrRestored = errors.New(
	"the API server was restored to an older state, as from an etcd backup: everything must be read again")

const (
	checkTimeout = 30 * time.Second // of the request for the present version
	maxResponse  = 8 << 20          // of that request, in bytes, should the server send whole objects
)

// metadataOnly is the media type of lists without specs and statuses, with a fallback.
const metadataOnly = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"

// Wrap returns a wrapper for the transport of a client. Before each list or watch from a version, the transport
// requests the present version of the same resource, by a list of at most one object. If that version is lower, it
// calls restored with an error that wraps ErrRestored, and responds with 410 (Gone) itself: then reflectors list again.
// If the list fails, the request fails in the same way. It costs one request for each start of a watch, which lasts for
// 5 to 10 minutes. The function restored must not block; calls may be concurrent, and there is one for each watch.
func Wrap(restored func(error)) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper { return &transport{next, restored} }
}

// Cause returns the error of a restore if a context was cancelled with one, otherwise nil.
func Cause(ctx context.Context) error {
	if err := context.Cause(ctx); errors.Is(err, ErrRestored) {
		return err
	}
	return nil
}

type transport struct {
	next     http.RoundTripper
	restored func(error)
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	from := r.URL.Query().Get("resourceVersion")
	if r.Method != http.MethodGet || from == "" || from == "0" {
		return t.next.RoundTrip(r)
	}
	now, refusal, err := t.version(r)
	if err != nil {
		return nil, err // as of the request itself, because clients distinguish kinds of network errors
	}
	if refusal != nil {
		return refusal, nil
	}
	if isLower(now, from) {
		err := fmt.Errorf("%w: it is at version %s of %s, and version %s was read", ErrRestored, now, r.URL.Path, from)
		t.restored(err)
		return gone(r, err), nil
	}
	return t.next.RoundTrip(r)
}

// version returns the present version of the resource that a request lists or watches; empty if the request is for one
// object. A response other than 200 is returned as the refusal.
func (t *transport) version(r *http.Request) (now string, refusal *http.Response, err error) {
	ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
	defer cancel()
	resp, err := t.next.RoundTrip(versionRequest(ctx, r))
	if err != nil {
		return "", nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	if err != nil {
		return "", nil, err
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body, resp.Request = io.NopCloser(bytes.NewReader(text)), r
		return "", resp, nil
	}
	var list struct {
		metav1.TypeMeta
		metav1.ListMeta `json:"metadata"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return "", nil, err
	}
	if !strings.HasSuffix(list.Kind, "List") {
		return "", nil, nil
	}
	return list.ResourceVersion, nil, nil
}

// versionRequest returns the request for the present version. It has the selectors of the original, by which the API
// server may restrict what the client may list.
func versionRequest(ctx context.Context, r *http.Request) *http.Request {
	out := r.Clone(ctx)
	query := out.URL.Query()
	for _, key := range []string{
		"watch", "resourceVersion", "resourceVersionMatch", "sendInitialEvents", "allowWatchBookmarks",
		"timeoutSeconds",
	} {
		query.Del(key)
	}
	query.Set("limit", "1")
	out.URL.RawQuery = query.Encode()
	out.Header.Set("Accept", metadataOnly)
	return out
}

// isLower reports whether version a is lower than b; false if either is no number.
func isLower(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// gone returns the API server's response to a watch from a version that it no longer has.
func gone(r *http.Request, why error) *http.Response {
	text, err := json.Marshal(&metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Code:     http.StatusGone,
		Reason:   metav1.StatusReasonExpired,
		Message:  why.Error(),
	})
	if err != nil {
		text = nil
	}
	return &http.Response{
		Status:        http.StatusText(http.StatusGone),
		StatusCode:    http.StatusGone,
		Header:        http.Header{"Content-Type": {"application/json"}},
		ContentLength: int64(len(text)),
		Body:          io.NopCloser(bytes.NewReader(text)),
		Request:       r,
	}
}
