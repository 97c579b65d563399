// Package webhook responds to admission reviews of NetworkPolicies with warnings about what they would change. It
// denies nothing, and responds in time even if the change could not be computed.
//
// A dry run gets all changes, with the live connections that would be terminated. A real change gets one line
// without querying nodes, as it must not be delayed. A user who may not create a diff gets only what depends on the
// policy's own namespace.
//
// Reviews arrive through the aggregated API (docs/decisions/031): netmaster/access admits only the API server.
package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/whatif"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// Judge computes what attempts would change.
type Judge interface {
	Diff(ctx context.Context, r whatif.Request) (*inspect.Diff, error)
}

// Config configures a Handler.
type Config struct {
	Judge  Judge
	Logger *slog.Logger
	// Ready returns why verdicts are unreliable; empty if they are reliable.
	Ready func() string
	// May reports whether a user may create a diff of all namespaces.
	May func(ctx context.Context, user *authenticationv1.UserInfo) (bool, error)
	// Registerer may be nil.
	Registerer prometheus.Registerer
}

// Limits. Larger input is rejected before it is read.
const (
	maxBody     = 1 << 20   // bytes of a review
	maxObject   = 384 << 10 // bytes of a policy
	maxEntries  = 4000      // rules, peers, ports, exceptions and values of labels of a policy
	maxReviews  = 8         // read at a time
	maxAtWork   = 2         // computed at a time
	maxTimeout  = 10 * time.Second
	timeout     = 2 * time.Second // default if the API server gives none
	realTimeout = time.Second     // for a real change
	margin      = 200 * time.Millisecond
)

// Limits of a comparison: for a dry run about two seconds of a core, for a real change half a second.
var (
	dryBounds  = explain.Bounds{Steps: 100_000_000, Bytes: 48 << 20}
	realBounds = explain.Bounds{Steps: 20_000_000, Bytes: 48 << 20}
)

// Handler serves reviews. Safe for concurrent use.
type Handler struct {
	cfg     Config
	reviews chan struct{}
	places  chan struct{}
	total   *prometheus.CounterVec
}

// Outcomes of reviews, for the metric.
const (
	outcomeTold   = "told"
	outcomeLate   = "late"
	outcomeFailed = "failed"
	outcomeNone   = "nothing"
)

// New returns a handler.
func New(cfg Config) *Handler {
	h := &Handler{
		cfg:     cfg,
		reviews: make(chan struct{}, maxReviews),
		places:  make(chan struct{}, maxAtWork),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "flowkeep_netmaster_webhook_reviews_total",
			Help: "Admission reviews of NetworkPolicies, by outcome: told (warnings list what changes), " +
				"nothing (there is nothing to report), late, or failed."}, []string{"outcome"}),
	}
	for _, o := range []string{outcomeTold, outcomeLate, outcomeFailed, outcomeNone} {
		h.total.WithLabelValues(o)
	}
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(h.total)
	}
	return h
}

// ServeHTTP serves an AdmissionReview. The API server ignores errors.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case h.reviews <- struct{}{}:
		defer func() { <-h.reviews }()
	default:
		http.Error(w, "too many reviews at once", http.StatusServiceUnavailable)
		return
	}
	if r.Method != http.MethodPost {
		http.Error(w, "post an AdmissionReview of admission.k8s.io/v1", http.StatusMethodNotAllowed)
		return
	}
	if r.ContentLength > maxBody {
		h.total.WithLabelValues(outcomeFailed).Inc()
		http.Error(w, fmt.Sprintf("a review of more than %d bytes is not read", maxBody),
			http.StatusRequestEntityTooLarge)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeLimit(r))
	defer cancel()
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(timeLimit(r)))
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&review); err != nil ||
		review.Request == nil {
		http.Error(w, "this is no AdmissionReview of admission.k8s.io/v1", http.StatusBadRequest)
		return
	}
	warnings, outcome := h.review(ctx, review.Request)
	h.total.WithLabelValues(outcome).Inc()
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true, Warnings: bound(warnings)}
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(&review); err != nil {
		h.cfg.Logger.Debug("an admission review was not taken", "error", err)
	}
}

// timeLimit returns how long the API server waits, less a margin for the transfer.
func timeLimit(r *http.Request) time.Duration {
	d, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || d <= 0 {
		d = timeout
	}
	return max(min(d, maxTimeout)-margin, margin)
}

// review returns the warnings about a request.
func (h *Handler) review(ctx context.Context, req *admissionv1.AdmissionRequest) (warnings []string, outcome string) {
	switch {
	case !ofPolicies(req):
		return nil, outcomeNone
	case len(req.Object.Raw) > maxObject || len(req.OldObject.Raw) > maxObject:
		return tooLarge()
	}
	if why := h.cfg.Ready(); why != "" {
		return unknown(why)
	}
	dry := req.DryRun != nil && *req.DryRun
	if !dry {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, realTimeout)
		defer cancel()
	}
	if !h.place(ctx, dry) {
		if !dry {
			return nil, outcomeLate
		}
		return late()
	}
	defer func() { <-h.places }()
	attempt, err := attemptOf(req)
	switch {
	case err != nil:
		return unknown(err.Error())
	case attempt == nil:
		return nil, outcomeNone
	case entries(attempt.Policy) > maxEntries:
		return tooLarge()
	}
	whole := h.seesAll(ctx, &req.UserInfo)
	d, err := h.compute(ctx, attempt, dry, whole)
	switch {
	case err == nil:
		return describe(d, dry, whole)
	case ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, explain.ErrTooMany):
		return late()
	}
	h.cfg.Logger.Warn("could not compute what a policy would change", "namespace", req.Namespace, "name", req.Name,
		"error", err)
	return unknown(err.Error())
}

func unknown(why string) ([]string, string) {
	return []string{prefix + "what this changes is not known: " + why}, outcomeFailed
}

func late() ([]string, string) {
	return []string{prefix + "what this changes could not be computed in time; netctl diff shows it"}, outcomeLate
}

func tooLarge() ([]string, string) {
	return []string{
		prefix + "what this changes is not computed, for the policy is too large; netctl diff shows it",
	}, outcomeLate
}

// ofPolicies reports whether a request is about NetworkPolicies themselves.
func ofPolicies(req *admissionv1.AdmissionRequest) bool {
	return req.Resource.Group == networkingv1.GroupName && req.Resource.Resource == "networkpolicies" &&
		req.SubResource == ""
}

// entries returns the number of a policy's parts that may have to be compared with each pod.
func entries(p *policy.Policy) (n int) {
	of := func(s *policy.Selector) (n int) {
		if s != nil {
			for i := range s.Requirements {
				n += 1 + len(s.Requirements[i].Values)
			}
		}
		return n
	}
	n = of(&p.AppliedTo)
	for _, rules := range [][]policy.PolicyRule{p.Ingress, p.Egress} {
		for i := range rules {
			n += 1 + len(rules[i].Peers) + len(rules[i].Ports)
			for k := range rules[i].Peers {
				peer := &rules[i].Peers[k]
				if n += of(peer.Pods) + of(peer.Namespaces); peer.Block != nil {
					n += len(peer.Block.Except)
				}
			}
		}
	}
	return n
}

// seesAll reports whether a user may see other namespaces; false if that is unknown.
func (h *Handler) seesAll(ctx context.Context, user *authenticationv1.UserInfo) bool {
	may, err := h.cfg.May(ctx, user)
	if err != nil {
		h.cfg.Logger.Debug("could not check whether a user may create a diff", "user", user.Username, "error", err)
	}
	return may && err == nil
}

// attemptOf returns the change of a request; nil if it changes no policy's specification.
func attemptOf(req *admissionv1.AdmissionRequest) (*explain.Attempt, error) {
	np, old := &networkingv1.NetworkPolicy{}, &networkingv1.NetworkPolicy{}
	for into, raw := range map[*networkingv1.NetworkPolicy][]byte{np: req.Object.Raw, old: req.OldObject.Raw} {
		if len(raw) == 0 {
			continue
		}
		if err := json.Unmarshal(raw, into); err != nil {
			return nil, fmt.Errorf("the object cannot be read: %w", err)
		}
	}
	switch req.Operation {
	case admissionv1.Create:
	case admissionv1.Update:
		if reflect.DeepEqual(np.Spec, old.Spec) && reflect.DeepEqual(np.Annotations, old.Annotations) {
			return nil, nil
		}
	case admissionv1.Delete:
		np = old
	default:
		return nil, nil
	}
	np.Namespace = req.Namespace
	if np.Name == "" {
		np.Name = "the new policy"
	}
	if req.Name != "" {
		np.Name = req.Name
	}
	a := whatif.Attempt(np, req.Operation == admissionv1.Delete)
	a.ModeOmitted = false // this is the object as it will be
	return &a, nil
}

// place waits for permission to compute. A real change does not wait.
func (h *Handler) place(ctx context.Context, wait bool) bool {
	select {
	case h.places <- struct{}{}:
		return true
	default:
	}
	if !wait {
		return false
	}
	select {
	case h.places <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// compute computes the difference until ctx ends. If the user may not see other namespaces, their data is not used.
func (h *Handler) compute(ctx context.Context, a *explain.Attempt, dry, whole bool) (d *inspect.Diff, err error) {
	defer func() {
		if p := recover(); p != nil {
			h.cfg.Logger.Error("computing what a policy would change failed", "policy", a.Policy.ID(), "panic", p)
			d, err = nil, errInternal
		}
	}()
	// slow nodes are left out early enough for the rest to be written
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-time.Until(deadline)/4))
		defer cancel()
	}
	r := whatif.Request{Attempts: []explain.Attempt{*a}, Connections: dry && whole, Bounds: realBounds}
	if dry {
		r.Bounds = dryBounds
	}
	if !whole {
		r.Namespace = a.Policy.Namespace
	}
	return h.cfg.Judge.Diff(ctx, r)
}
