package webui

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// api returns a handler that sends the result of f as JSON.
func (s *Server) api(f func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, of := noteOrigin(r.Context())
		v, err := f(r.WithContext(ctx))
		if err != nil {
			code, text := statusOf(err)
			fail(w, code, text)
			return
		}
		body, err := json.Marshal(v)
		if err != nil {
			fail(w, http.StatusInternalServerError, err.Error())
			return
		}
		if of.cached != nil {
			w.Header().Set(inspect.CachedHeader, of.cached.String())
		}
		reply(w, http.StatusOK, body)
	})
}

func reply(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = w.Write(body) // the client may be gone
}

// fail sends an error as JSON, with the section of the documentation about it.
func fail(w http.ResponseWriter, code int, text string) {
	body, _ := json.Marshal(map[string]string{"error": text, "help": helpFor(text)}) // strings always encode
	reply(w, code, body)
}

// badRequest returns an error that the client caused.
func badRequest(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

var httpCodes = map[codes.Code]int{
	codes.InvalidArgument:    http.StatusBadRequest,
	codes.NotFound:           http.StatusNotFound,
	codes.FailedPrecondition: http.StatusConflict,
	codes.PermissionDenied:   http.StatusForbidden,
	codes.ResourceExhausted:  http.StatusTooManyRequests,
	codes.Unimplemented:      http.StatusNotImplemented,
	codes.Unavailable:        http.StatusServiceUnavailable,
	codes.DeadlineExceeded:   http.StatusGatewayTimeout,
	codes.Canceled:           http.StatusServiceUnavailable,
}

func statusOf(err error) (code int, text string) {
	st, _ := status.FromError(err)
	return cmp.Or(httpCodes[st.Code()], http.StatusInternalServerError), st.Message()
}

// overview is the response to the UI's regular poll.
type overview struct {
	Status inspect.Status `json:"status"`
	// Line summarises the health, as netctl status does.
	Line string `json:"line"`
	// Help are the sections of the documentation about the status' problems, as paths from the page.
	Help []string `json:"help"`
	// Features are the optional kinds of queries that this netmaster supports.
	Features []string `json:"features"`
}

func (s *Server) overview(r *http.Request) (any, error) {
	st, err := get[inspect.Status](r.Context(), s.ask, inspect.Question{Kind: inspect.AskStatus})
	if err != nil {
		return nil, err
	}
	out := overview{
		Status: st,
		Line: fmt.Sprintf("healthy: %s in force on %s%s", count(st.Policies-st.DryRuns, "policy", "policies"),
			count(len(st.Nodes), "node", "nodes"), st.DryRunsText()),
	}
	if n := len(st.Problems); n > 0 {
		out.Line = "degraded: " + count(n, "problem", "problems")
	}
	for _, problem := range st.Problems {
		out.Help = append(out.Help, problemHelp(problem))
	}
	return out, nil
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// matrix is the matrix with the labels of each group's pods, for searching.
type matrix struct {
	inspect.Matrix
	// Labels are the "key=value" labels of each group's pods; nil if there are too many pods.
	Labels [][]string `json:"labels"`
	// Cached describes the state of the matrix and where it was found.
	Cached *inspect.Cached `json:"cached,omitempty"`
}

// maxLabelled limits the pods whose labels are sent to a browser.
const maxLabelled = 5000

func (s *Server) matrix(r *http.Request) (any, error) {
	q, err := matrixQuestion(r)
	if err != nil {
		return nil, err
	}
	x, of, err := getCached[inspect.Matrix](r.Context(), s.ask, inspect.Question{Kind: inspect.AskMatrix, Matrix: q})
	if err != nil {
		return nil, err
	}
	pods := 0
	for i := range x.Groups {
		pods += len(x.Groups[i].Pods)
	}
	if pods > maxLabelled {
		return matrix{Matrix: x, Cached: of}, nil
	}
	ask := inspect.Question{Kind: inspect.AskEndpoints}
	if len(q.Namespaces) == 1 {
		ask.Namespace = q.Namespaces[0]
	}
	list, err := get[[]inspect.Endpoint](r.Context(), s.ask, ask)
	return matrix{x, labelsOf(x.Groups, list), of}, err
}

// labelsOf returns the labels of each group's pods, sorted.
func labelsOf(groups []explain.Group, list []inspect.Endpoint) [][]string {
	labels := map[string]map[string]string{}
	for i := range list {
		labels[list[i].Namespace+"/"+list[i].Name] = list[i].Labels
	}
	out := make([][]string, len(groups))
	for i := range groups {
		out[i] = []string{}
		for _, pod := range groups[i].Pods {
			for k, v := range labels[pod] {
				out[i] = append(out[i], k+"="+v)
			}
		}
		slices.Sort(out[i])
		out[i] = slices.Compact(out[i])
	}
	return out
}

// matrixQuestion parses ns (repeatable), port (PORT/PROTOCOL or PORT) and outside.
func matrixQuestion(r *http.Request) (*explain.Question, error) {
	query := r.URL.Query()
	q := &explain.Question{Namespaces: query["ns"], Outside: query.Get("outside") != ""}
	slices.Sort(q.Namespaces)
	q.Namespaces = slices.Compact(q.Namespaces)
	text := query.Get("port")
	if text == "" {
		return q, nil
	}
	number, name, _ := strings.Cut(text, "/")
	n, err := strconv.ParseUint(number, 10, 16)
	protocols := map[string]policy.Protocol{"": policy.TCP, "TCP": policy.TCP, "UDP": policy.UDP, "SCTP": policy.SCTP}
	protocol, ok := protocols[strings.ToUpper(name)]
	if err != nil || n == 0 || !ok {
		return nil, badRequest("port %q: write a number between 1 and 65535, and a protocol if it is not TCP: 53/udp",
			text)
	}
	q.Protocol, q.Port = protocol, uint16(n)
	return q, nil
}

func (s *Server) explain(r *http.Request) (any, error) {
	query := r.URL.Query()
	if err := inspect.ParseName(query.Get("from")); err != nil {
		return nil, badRequest("%v", err)
	}
	to, err := inspect.ParseTarget(query.Get("to"))
	if err != nil {
		return nil, badRequest("%v", err)
	}
	x, err := get[inspect.Explained](r.Context(), s.ask, inspect.Question{
		Kind:     inspect.AskExplain,
		From:     query.Get("from"),
		To:       &to,
		Unproved: query.Get("proof") == "",
	})
	if err != nil {
		return nil, err
	}
	return explainedOf(&x), nil
}

// maxListed limits the product of policies and nodes in a list.
const maxListed = 2_000_000

// policies returns the policies with the number of their pods.
func (s *Server) policies(r *http.Request) (any, error) {
	ns := r.URL.Query().Get("ns")
	st, err := get[inspect.Status](r.Context(), s.ask, inspect.Question{Kind: inspect.AskStatus})
	if err != nil {
		return nil, err
	}
	if ns == "" && st.Policies*len(st.Nodes) > maxListed {
		return nil, status.Errorf(codes.ResourceExhausted, "there are %d policies: choose a namespace", st.Policies)
	}
	return get[[]inspect.Policy](r.Context(), s.ask, inspect.Question{Kind: inspect.AskPolicies, Namespace: ns})
}

// shown is a policy with its rules and manifest.
type shown struct {
	inspect.Policy
	YAML string `json:"yaml"`
	// YAMLProblem is why the manifest is missing.
	YAMLProblem string `json:"yamlProblem,omitempty"`
}

func (s *Server) policy(r *http.Request) (any, error) {
	id := r.URL.Query().Get("id")
	if id == "" {
		return nil, badRequest("say which policy: id=NAMESPACE/NAME")
	}
	list, err := get[[]inspect.Policy](r.Context(), s.ask, inspect.Question{Kind: inspect.AskPolicies, ID: id})
	if err != nil {
		return nil, err
	}
	if len(list) != 1 {
		return nil, errors.New("netmaster answers with another number of policies than one")
	}
	out := shown{Policy: list[0]}
	m, err := get[inspect.Manifest](r.Context(), s.ask, inspect.Question{Kind: inspect.AskManifest, ID: id})
	if err != nil {
		_, out.YAMLProblem = statusOf(err)
	}
	out.YAML = m.YAML
	return out, nil
}

// drops returns the drops within a duration: within=10m.
func (s *Server) drops(r *http.Request) (any, error) {
	const longest = 7 * 24 * time.Hour
	within, err := time.ParseDuration(r.URL.Query().Get("within"))
	if err != nil || within <= 0 || within > longest {
		return nil, badRequest("say how far back: within=10m")
	}
	return get[inspect.Drops](r.Context(), s.ask,
		inspect.Question{Kind: inspect.AskDrops, Drops: &inspect.DropsQuestion{Within: within}})
}
