package access

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// maxBody limits a query, in bytes.
	maxBody = 16 << 20
	// defaultWithin is the time limit of a response if netctl gives none.
	defaultWithin = 30 * time.Second
	// maxWithin is the largest time limit that netctl can give.
	maxWithin = 15 * time.Minute
)

var (
	errNoSuchPath = errors.New("no such path")
	errNoSuchKind = errors.New("this netmaster does not know the question: netctl is newer")
)

// requestOf returns the request's attributes as the API server has authorised them, without the user.
func requestOf(r *http.Request, kinds []string) (Request, error) {
	rest, ok := strings.CutPrefix(r.URL.Path, inspect.Prefix+"/")
	if !ok {
		return Request{}, errNoSuchPath
	}
	parts := strings.Split(rest, "/")
	var out Request
	if parts[0] == "namespaces" && len(parts) > 2 {
		if out.Namespace = parts[1]; out.Namespace == "" {
			return Request{}, errNoSuchPath
		}
		parts = parts[2:]
	}
	if out.Resource = parts[0]; !slices.Contains(kinds, out.Resource) {
		return Request{}, fmt.Errorf("%w: %q", errNoSuchKind, out.Resource)
	}
	watch := isWatch(r)
	switch {
	case r.Method == http.MethodGet && !watch && len(parts) == 2 && parts[1] == inspect.AnswerName:
		out.Verb, out.Name = "get", parts[1]
	case r.Method == http.MethodGet && watch && len(parts) == 1:
		out.Verb = "watch"
	case r.Method == http.MethodPost && len(parts) == 1:
		out.Verb = "create"
	default:
		return Request{}, errNoSuchPath
	}
	return out, nil
}

// isWatch parses the parameter as the API server does, so that both agree on the verb.
func isWatch(r *http.Request) bool {
	values := r.URL.Query()[inspect.WatchParam]
	return len(values) > 0 && (values[0] == "true" || values[0] == "1")
}

// questionOf decodes the query, and verifies that it matches what was authorised.
func questionOf(w http.ResponseWriter, r *http.Request, req *Request) (*inspect.Question, error) {
	text := []byte(r.URL.Query().Get(inspect.QuestionParam))
	if r.Method == http.MethodPost {
		var err error
		if text, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody)); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "read the question: %v", err)
		}
	}
	q := &inspect.Question{Kind: req.Resource}
	if len(text) > 0 {
		if err := json.Unmarshal(text, q); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "the question is not JSON as it should be: %v", err)
		}
	}
	if q.Kind != req.Resource {
		return nil, status.Errorf(codes.InvalidArgument, "a question of kind %q does not belong at %s", q.Kind,
			req.Resource)
	}
	if req.Namespace != "" && inspect.NamespaceOf(q) != req.Namespace {
		return nil, status.Errorf(codes.PermissionDenied, "the question is not of namespace %s alone", req.Namespace)
	}
	return q, nil
}

func within(r *http.Request) (time.Duration, error) {
	text := r.URL.Query().Get(inspect.WithinParam)
	if text == "" {
		return defaultWithin, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, status.Errorf(codes.InvalidArgument, "%s=%q: write a duration, such as 15s", inspect.WithinParam,
			text)
	}
	return min(d, maxWithin), nil
}
