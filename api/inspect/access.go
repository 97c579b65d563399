package inspect

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"google.golang.org/grpc/codes"
)

// The API group under which netmaster answers behind the API server (docs/decisions/007). A question of a kind is a request for the
// resource of that name:
//
//	GET  Prefix/KIND/answer?question={…}                        verb get: one answer
//	POST Prefix/KIND                                            verb create: the same, for questions too long for a URL
//	GET  Prefix/KIND?watch=true&question={…}                    verb watch: Events, a line each, for as long as it takes
//	…    Prefix/namespaces/NAMESPACE/KIND…                      kinds that are of one namespace (NamespaceOf)
const (
	Group      = "inspect.flowkeep.io"
	APIVersion = "v1alpha1"
	Prefix     = "/apis/" + Group + "/" + APIVersion
	AnswerName = "answer"
	// Service is whom the API server asks for netmaster, ServiceNamespace where it is.
	Service          = "netmaster"
	ServiceNamespace = "flowkeep-system"
	// LongestQuery is how long a question in a URL may be, in bytes.
	LongestQuery = 6 << 10
)

// Query parameters, and the header of netmaster's answers that says who answered, with its version.
const (
	QuestionParam = "question"
	WithinParam   = "within" // how long the answer may take, a time.Duration
	WatchParam    = "watch"
	ServedBy      = "Flowkeep-Netmaster"
)

// Event is a line of a watch. Empty lines between them say that netmaster is still there.
type Event struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
	// Cached is that of an Answer.
	Cached *Cached `json:"cached,omitempty"`
}

// Types of Event: an Answer's body, or a Failure that ends the watch.
const (
	EventAnswer  = "ANSWER"
	EventFailure = "ERROR"
)

// Failure is what Kubernetes calls a Status: why there is no answer.
type Failure struct {
	Kind       string     `json:"kind"`
	APIVersion string     `json:"apiVersion"`
	Status     string     `json:"status"`
	Message    string     `json:"message"`
	Reason     string     `json:"reason"`
	Code       int        `json:"code"`
	GRPC       codes.Code `json:"grpc"`
}

// httpCodes are what gRPC's codes are in HTTP; others are 500.
var httpCodes = map[codes.Code]int{codes.InvalidArgument: http.StatusBadRequest, codes.Unauthenticated: http.StatusUnauthorized, codes.PermissionDenied: http.StatusForbidden,
	codes.NotFound: http.StatusNotFound, codes.FailedPrecondition: http.StatusConflict, codes.ResourceExhausted: http.StatusTooManyRequests,
	codes.Unimplemented: http.StatusNotImplemented, codes.Unavailable: http.StatusServiceUnavailable, codes.DeadlineExceeded: http.StatusGatewayTimeout}

var reasons = map[int]string{http.StatusBadRequest: "BadRequest", http.StatusUnauthorized: "Unauthorized", http.StatusForbidden: "Forbidden", http.StatusNotFound: "NotFound",
	http.StatusConflict: "Conflict", http.StatusTooManyRequests: "TooManyRequests", http.StatusServiceUnavailable: "ServiceUnavailable", http.StatusGatewayTimeout: "Timeout"}

// NewFailure returns the Failure of a gRPC code.
func NewFailure(code codes.Code, message string) Failure {
	status, ok := httpCodes[code]
	if !ok {
		status = http.StatusInternalServerError
	}
	reason, ok := reasons[status]
	if !ok {
		reason = "InternalError"
	}
	return Failure{Kind: "Status", APIVersion: "v1", Status: "Failure", Message: message, Reason: reason, Code: status, GRPC: code}
}

// NamespaceOf returns the namespace of a query whose response concerns no other namespace, "" for the whole cluster.
func NamespaceOf(q *Question) string {
	switch q.Kind {
	case AskWait, AskCapture:
		namespace, _, _ := strings.Cut(q.ID, "/")
		return namespace
	case AskTrace:
		return namespaceOfBoth(q)
	case AskFrontends:
		return namespaceOfService(q)
	}
	return ""
}

// namespaceOfService returns that of one Service, or the one whose Services are listed. A node's own response has
// numbers of the whole cluster.
func namespaceOfService(q *Question) string {
	if q.FromNode {
		return ""
	}
	if namespace, _, ok := strings.Cut(q.ID, "/"); ok {
		return namespace
	}
	return q.Namespace
}

// namespaceOfBoth returns the namespace of two pods. The endpoints of a Service may be in any namespace.
func namespaceOfBoth(q *Question) string {
	if q.To == nil || !IsPod(q.From) || !IsPod(q.To.Name) || isService(q.To.Name) {
		return ""
	}
	from, _, _ := strings.Cut(q.From, "/")
	if to, _, _ := strings.Cut(q.To.Name, "/"); from != to {
		return ""
	}
	return from
}

// RoleFor returns the ClusterRole that permits a kind of query: flowkeep-view has all kinds except those whose
// responses hold more than policies and flows.
func RoleFor(kind string) string {
	if kind == AskSupport || kind == AskCapture || kind == AskTrace {
		return "flowkeep-admin"
	}
	return "flowkeep-view"
}

// PathOf returns the path of a query's resource.
func PathOf(q *Question) string {
	path := Prefix
	if namespace := NamespaceOf(q); namespace != "" {
		path += "/namespaces/" + url.PathEscape(namespace)
	}
	return path + "/" + url.PathEscape(q.Kind)
}
