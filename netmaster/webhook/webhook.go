// Package webhook answers the API server's admission reviews of NetworkPolicies with warnings: what they would change. It
// denies nothing, and it answers in time whether or not the change could be computed by then.
//
// A dry run is told in full, with the live connections that would be cut; a real change in a line, for it should not wait, and
// nodes are not asked.
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
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// Judge tells what attempts would change.
type Judge interface {
	Diff(ctx context.Context, attempts []explain.Attempt, connections bool) (*inspect.Diff, error)
}

// Config is a handler's.
type Config struct {
	Judge  Judge
	Logger *slog.Logger
	// Ready is why no verdict can be relied on yet; empty when it can.
	Ready func() string
	// Registerer may be nil.
	Registerer prometheus.Registerer
}

// Limits.
const (
	mostBody    = 8 << 20 // two objects, each of at most what etcd takes, twice
	mostReviews = 32      // that are read at once
	mostAtWork  = 2       // that are computed at once
	longest     = 10 * time.Second
	unsaid      = 2 * time.Second // where the API server does not say how long it waits
	briefest    = time.Second     // what a real change may wait
	margin      = 200 * time.Millisecond
)

// Handler answers reviews. It is safe for concurrent use.
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

// New makes a handler.
func New(cfg Config) *Handler {
	h := &Handler{cfg: cfg, reviews: make(chan struct{}, mostReviews), places: make(chan struct{}, mostAtWork),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "flowkeep_netmaster_webhook_reviews_total",
			Help: "Admission reviews of NetworkPolicies, by outcome: told what changes, nothing to tell, late, or failed."}, []string{"outcome"})}
	for _, o := range []string{outcomeTold, outcomeLate, outcomeFailed, outcomeNone} {
		h.total.WithLabelValues(o)
	}
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(h.total)
	}
	return h
}

// ServeHTTP answers an AdmissionReview; what is none is refused, which the API server passes over.
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
	ctx, cancel := context.WithTimeout(r.Context(), patience(r))
	defer cancel()
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, mostBody)).Decode(&review); err != nil || review.Request == nil {
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

// patience is how long the API server waits, less what the way takes.
func patience(r *http.Request) time.Duration {
	d, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || d <= 0 {
		d = unsaid
	}
	return max(min(d, longest)-margin, margin)
}

// review is what is to be said of a request.
func (h *Handler) review(ctx context.Context, req *admissionv1.AdmissionRequest) (warnings []string, outcome string) {
	attempt, err := attemptOf(req)
	switch {
	case err != nil:
		return []string{prefix + "what this changes is not known: " + err.Error()}, outcomeFailed
	case attempt == nil:
		return nil, outcomeNone
	}
	if why := h.cfg.Ready(); why != "" {
		return []string{prefix + "what this changes is not known: " + why}, outcomeFailed
	}
	dry := req.DryRun != nil && *req.DryRun
	if !dry {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, briefest)
		defer cancel()
	}
	d, err := h.compute(ctx, *attempt, dry)
	switch {
	case err == nil:
		return describe(d, dry)
	case errors.Is(err, errBusy):
		return nil, outcomeLate
	case ctx.Err() != nil:
		return []string{prefix + "what this changes could not be computed in time; netctl diff tells"}, outcomeLate
	}
	h.cfg.Logger.Warn("what a policy would change is not known", "namespace", req.Namespace, "name", req.Name, "error", err)
	return []string{prefix + "what this changes is not known: " + err.Error()}, outcomeFailed
}

// attemptOf is what the request would do; nil if it changes no policy's specification.
func attemptOf(req *admissionv1.AdmissionRequest) (*explain.Attempt, error) {
	if req.Resource.Group != networkingv1.GroupName || req.Resource.Resource != "networkpolicies" || req.SubResource != "" {
		return nil, nil
	}
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

// compute does not outlast ctx; what it has begun goes on, and keeps its place until it is over. Only a dry run waits for one.
func (h *Handler) compute(ctx context.Context, a explain.Attempt, dry bool) (*inspect.Diff, error) {
	select {
	case h.places <- struct{}{}:
	default:
		if !dry {
			return nil, errBusy
		}
		select {
		case h.places <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	type answer struct {
		d   *inspect.Diff
		err error
	}
	done := make(chan answer, 1)
	go func() {
		defer func() { <-h.places }()
		defer func() {
			if p := recover(); p != nil {
				h.cfg.Logger.Error("computing what a policy would change failed", "policy", a.Policy.ID(), "panic", p)
				done <- answer{nil, errInternal}
			}
		}()
		// nodes that are slow are left out early enough for the rest to be told
		asking := ctx
		if deadline, ok := ctx.Deadline(); ok {
			var cancel context.CancelFunc
			asking, cancel = context.WithDeadline(ctx, deadline.Add(-time.Until(deadline)/4))
			defer cancel()
		}
		d, err := h.cfg.Judge.Diff(asking, []explain.Attempt{a}, dry)
		done <- answer{d, err}
	}()
	select {
	case a := <-done:
		return a.d, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
