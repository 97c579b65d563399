package watch

import (
	"context"
	"fmt"
	"time"
)

// policyResources determine the rules of a pod.
var policyResources = []string{"namespaces", "networkpolicies"}

// Confirm waits until the batches of Take contain every namespace and policy that the API server had when Confirm
// was called, or newer ones. It waits for late watches until ctx ends. Keep must have been called.
func (w *Watcher) Confirm(ctx context.Context, list Lister) error {
	if err := w.fresh.catchUpAll(ctx, policyResources, list); err != nil {
		return fmt.Errorf("confirm that all policies are known: %w", err)
	}
	return nil
}

// Lag returns what the latest watch has not delivered yet, and for how long the API server is known to have it; 0 if
// no comparison waits for a watch.
func (w *Watcher) Lag() (what string, lasts time.Duration) {
	w.fresh.mu.Lock()
	defer w.fresh.mu.Unlock()
	for resource, l := range w.fresh.lags {
		if d := time.Since(l.since); d >= lasts {
			what, lasts = fmt.Sprintf("the watch of %s lacks %s", resource, l.what), d
		}
	}
	return what, lasts
}
