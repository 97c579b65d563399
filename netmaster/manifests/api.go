package manifests

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
)

// RoundTrip answers a request of client-go as an API server does.
func (s *Source) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		defer req.Body.Close()
	}
	k, namespace, name, ok := s.route(req.URL.Path)
	switch {
	case req.Method == http.MethodPost && strings.HasSuffix(req.URL.Path, "/events"):
		text, err := io.ReadAll(req.Body)
		return reply(req, http.StatusCreated, bytes.NewReader(text)), err
	case req.Method == http.MethodPatch && strings.Contains(req.URL.Path, "/events/"):
		return reply(req, http.StatusOK, strings.NewReader(`{"apiVersion": "v1", "kind": "Event"}`)), nil
	case !ok || req.Method != http.MethodGet:
		message := fmt.Sprintf("manifests are not an API server: %s %s", req.Method, req.URL.Path)
		return failure(req, http.StatusNotFound, metav1.StatusReasonNotFound, message), nil
	}
	q := req.URL.Query()
	selector, err := labels.Parse(q.Get("labelSelector"))
	if err != nil {
		return failure(req, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error()), nil
	}
	v := view{
		source:    s,
		kind:      k,
		namespace: namespace,
		selector:  selector,
		bare:      strings.Contains(req.Header.Get("Accept"), "as=PartialObjectMetadata"),
	}
	switch {
	case name != "":
		return v.get(req, name), nil
	case q.Get("watch") == "true" || q.Get("watch") == "1":
		return v.watch(req, q), nil
	}
	return v.list(req), nil
}

// route returns the kind of a path such as /apis/networking.k8s.io/v1/namespaces/shop/networkpolicies/db.
func (s *Source) route(path string) (k *kind, namespace, name string, ok bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		parts = parts[3:]
	default:
		return nil, "", "", false
	}
	if len(parts) >= 3 && parts[0] == "namespaces" {
		namespace, parts = parts[1], parts[2:]
	}
	if k, ok = s.kinds[parts[0]]; !ok || len(parts) > 2 {
		return nil, "", "", false
	}
	if len(parts) == 2 {
		name = parts[1]
	}
	return k, namespace, name, true
}

// view is the part of a kind that a request is about. With bare set, objects have their metadata only.
type view struct {
	source    *Source
	kind      *kind
	namespace string
	selector  labels.Selector
	bare      bool
}

// text returns an object as the request wants it.
func (v *view) text(o *object) json.RawMessage {
	if !v.bare {
		return o.text
	}
	meta := o.meta
	meta.TypeMeta = metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}
	text, err := json.Marshal(&meta)
	if err != nil {
		return o.text
	}
	return text
}

func (v *view) get(req *http.Request, name string) *http.Response {
	v.source.mu.Lock()
	o, ok := v.kind.objects[v.namespace+"/"+name]
	v.source.mu.Unlock()
	if !ok {
		message := fmt.Sprintf("%s %q not found", v.kind.resource, name)
		return failure(req, http.StatusNotFound, metav1.StatusReasonNotFound, message)
	}
	return reply(req, http.StatusOK, bytes.NewReader(v.text(&o)))
}

// all returns the objects of the view in order, and the version they are of.
func (v *view) all() (list []object, version uint64) {
	v.source.mu.Lock()
	defer v.source.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(v.kind.objects)) {
		if o := v.kind.objects[key]; o.matches(v.selector, v.namespace) {
			list = append(list, o)
		}
	}
	return list, v.source.version
}

func (v *view) list(req *http.Request) *http.Response {
	objects, version := v.all()
	out := struct {
		metav1.TypeMeta `json:",inline"`
		metav1.ListMeta `json:"metadata"`
		Items           []json.RawMessage `json:"items"`
	}{
		TypeMeta: metav1.TypeMeta{APIVersion: v.kind.GroupVersion().String(), Kind: v.kind.Kind + "List"},
		ListMeta: metav1.ListMeta{ResourceVersion: strconv.FormatUint(version, 10)},
		Items:    []json.RawMessage{},
	}
	if v.bare {
		out.TypeMeta = metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}
	}
	for i := range objects {
		out.Items = append(out.Items, v.text(&objects[i]))
	}
	text, err := json.Marshal(out)
	if err != nil {
		return failure(req, http.StatusInternalServerError, metav1.StatusReasonInternalError, err.Error())
	}
	return reply(req, http.StatusOK, bytes.NewReader(text))
}

// watch answers with a stream of events until the request ends. With sendInitialEvents it begins with all objects and a
// bookmark (KEP-3157).
func (v *view) watch(req *http.Request, q url.Values) *http.Response {
	since, err := strconv.ParseUint(q.Get("resourceVersion"), 10, 64)
	initial := q.Get("sendInitialEvents") == "true"
	if (err != nil || since == 0) && !initial {
		initial = true // "from any version"
	}
	v.source.mu.Lock()
	expired := since < v.kind.lost && !initial
	v.source.mu.Unlock()
	if expired {
		message := fmt.Sprintf("too old resource version: %d", since)
		return failure(req, http.StatusGone, metav1.StatusReasonExpired, message)
	}
	out, in := io.Pipe()
	go func() {
		enc := json.NewEncoder(in)
		if initial {
			var sendErr error
			if since, sendErr = v.sendAll(enc, q.Get("allowWatchBookmarks") == "true"); sendErr != nil {
				in.CloseWithError(sendErr)
				return
			}
		}
		in.CloseWithError(v.follow(req.Context(), enc, since))
	}()
	return reply(req, http.StatusOK, out)
}

// watchEvent is an event on the wire (metav1.WatchEvent).
type watchEvent struct {
	Type   watch.EventType `json:"type"`
	Object json.RawMessage `json:"object"`
}

// sendAll sends every object as added, and a bookmark behind them.
func (v *view) sendAll(enc *json.Encoder, bookmark bool) (version uint64, err error) {
	objects, version := v.all()
	for i := range objects {
		if err := enc.Encode(watchEvent{watch.Added, v.text(&objects[i])}); err != nil {
			return 0, err
		}
	}
	if !bookmark {
		return version, nil
	}
	mark := map[string]any{
		"apiVersion": v.kind.GroupVersion().String(),
		"kind":       v.kind.Kind,
		"metadata": map[string]any{
			"resourceVersion": strconv.FormatUint(version, 10),
			"annotations":     map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		},
	}
	text, err := json.Marshal(mark)
	if err != nil {
		return 0, err
	}
	return version, enc.Encode(watchEvent{watch.Bookmark, text})
}

// follow sends the events after a version until ctx ends.
func (v *view) follow(ctx context.Context, enc *json.Encoder, since uint64) error {
	for {
		v.source.mu.Lock()
		n, _ := slices.BinarySearchFunc(v.kind.events, since+1, func(e event, version uint64) int {
			return cmp.Compare(e.version, version)
		})
		events := slices.Clone(v.kind.events[n:])
		lost, changed := v.kind.lost > since, v.source.changed
		v.source.mu.Unlock()
		if lost {
			return io.EOF // the client lists again
		}
		for i := range events {
			e := &events[i]
			since = e.version
			if what, ok := v.eventOf(e); ok {
				if err := enc.Encode(watchEvent{what, v.text(&e.object)}); err != nil {
					return err
				}
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// eventOf returns the event as the view sees it: an object that leaves the selection is deleted.
func (v *view) eventOf(e *event) (watch.EventType, bool) {
	is := e.kind != watch.Deleted && e.object.matches(v.selector, v.namespace)
	was := e.before != nil && e.before.matches(v.selector, v.namespace)
	switch {
	case is && was:
		return watch.Modified, true
	case is:
		return watch.Added, true
	case was:
		return watch.Deleted, true
	}
	return "", false
}

func reply(req *http.Request, code int, body io.Reader) *http.Response {
	closer, ok := body.(io.ReadCloser)
	if !ok {
		closer = io.NopCloser(body)
	}
	return &http.Response{
		Status:        http.StatusText(code),
		StatusCode:    code,
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        http.Header{"Content-Type": {"application/json"}},
		Body:          closer,
		ContentLength: -1,
		Request:       req,
	}
}

func failure(req *http.Request, code int, reason metav1.StatusReason, message string) *http.Response {
	text, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure,
		Code:     int32(code), //nolint:gosec // a status code
		Reason:   reason,
		Message:  message,
	})
	if err != nil {
		text = []byte(message)
	}
	return reply(req, code, bytes.NewReader(text))
}
