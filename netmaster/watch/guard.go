package watch

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ErrWentBack is the error of an API server with versions lower than those that were watched. Objects watched since
// then may not exist, and watches deliver nothing new until the versions are as high again.
var ErrWentBack = errors.New(
	"the API server was restored to an older state, as from an etcd backup: everything must be read again")

// Guard checks repeatedly until ctx ends whether the API server was restored to an older state. It then returns
// ErrWentBack, and a new Watcher is needed.
func (w *Watcher) Guard(ctx context.Context, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if err := w.wentBack(ctx, every); err != nil {
			return err
		}
	}
}

func (w *Watcher) wentBack(ctx context.Context, most time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	one := metav1.ListOptions{Limit: 1} // without a version: etcd's present state
	core := w.client.CoreV1()
	for resource, now := range map[string]func() (metav1.ListInterface, error){
		"namespaces": func() (metav1.ListInterface, error) { return core.Namespaces().List(ctx, one) },
		"pods":       func() (metav1.ListInterface, error) { return core.Pods("").List(ctx, one) },
		"nodes":      func() (metav1.ListInterface, error) { return core.Nodes().List(ctx, one) },
		"networkpolicies": func() (metav1.ListInterface, error) {
			return w.client.NetworkingV1().NetworkPolicies("").List(ctx, one)
		},
		"services": func() (metav1.ListInterface, error) { return core.Services("").List(ctx, one) },
		"endpointslices": func() (metav1.ListInterface, error) {
			return w.client.DiscoveryV1().EndpointSlices("").List(ctx, one)
		},
	} {
		watched := w.position[resource]()
		list, err := now()
		if err != nil { // the watches report it
			continue
		}
		if there := list.GetResourceVersion(); lower(there, watched) {
			return fmt.Errorf("%w: it is at version %s of %s, and version %s was watched", ErrWentBack, there,
				resource, watched)
		}
	}
	return nil
}

// lower reports whether version a is lower than b; false if either is no number.
func lower(a, b string) bool {
	x, errX := strconv.ParseUint(a, 10, 64)
	y, errY := strconv.ParseUint(b, 10, 64)
	return errX == nil && errY == nil && x > 0 && x < y
}
