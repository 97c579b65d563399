package watch

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ErrWentBack is of an API server whose versions are lower than those that were watched. What was watched since may never have been, and a watch that goes on
// from then is not told of what is new until the versions are as high again.
var ErrWentBack = errors.New("the API server has gone back in time, as when etcd is restored from a backup: everything is to be read anew")

// Guard looks again and again whether the API server has gone back in time, until ctx ends; ErrWentBack says that it has, and only a new Watcher is of use.
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
	one := metav1.ListOptions{Limit: 1} // without a version: what etcd has now
	core := w.client.CoreV1()
	for resource, now := range map[string]func() (metav1.ListInterface, error){
		"namespaces": func() (metav1.ListInterface, error) { return core.Namespaces().List(ctx, one) },
		"pods":       func() (metav1.ListInterface, error) { return core.Pods("").List(ctx, one) },
		"nodes":      func() (metav1.ListInterface, error) { return core.Nodes().List(ctx, one) },
		"networkpolicies": func() (metav1.ListInterface, error) {
			return w.client.NetworkingV1().NetworkPolicies("").List(ctx, one)
		},
	} {
		watched := w.position[resource]()
		list, err := now()
		if err != nil { // the watches tell
			continue
		}
		if there := list.GetResourceVersion(); lower(there, watched) {
			return fmt.Errorf("%w: it is at version %s of %s, and version %s was watched", ErrWentBack, there, resource, watched)
		}
	}
	return nil
}

// lower compares versions; where one is none, nothing is concluded.
func lower(a, b string) bool {
	x, errX := strconv.ParseUint(a, 10, 64)
	y, errY := strconv.ParseUint(b, 10, 64)
	return errX == nil && errY == nil && x > 0 && x < y
}
