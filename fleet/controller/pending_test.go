package controller

import (
	"fmt"
	"testing"
)

// lateWatcher starts the watches of a resource when released.
type lateWatcher struct {
	watcher
	resource string
	release  chan struct{}
}

func (l *lateWatcher) start(f feed, to sink) {
	if f.resource.Resource != l.resource {
		l.watcher.start(f, to)
		return
	}
	go func() {
		<-l.release
		l.watcher.start(f, to)
	}()
}

// TestRestart_WhileObjectsAreRead: while a restarted controller waits for the policies of a kind, or for a class's
// ConfigMap, it leaves all statuses as they are.
func TestRestart_WhileObjectsAreRead(t *testing.T) {
	h, r := sent(t, 2)
	h.says("Gateway", "web", "Programmed", "True")
	h.says("LimitPolicy", "slow", "fleet.flowkeep.io/Accepted", "True")
	r.idle()
	r.stop()
	for _, resource := range []string{"limitpolicies", "configmaps"} {
		t.Run(resource, func(t *testing.T) {
			late := &lateWatcher{resource: resource, release: make(chan struct{})}
			h.options = func(o *Options) {
				inspect := o.inspect
				o.inspect = func(c *controller, w watcher) watcher {
					late.watcher = inspect(c, w)
					return late
				}
			}
			again := h.start()
			again.ready()
			h.eventually(func() error { // all that it could report by now is reported
				w := again.inner.world
				if n := w.bundles.outstanding() + w.statuses.tells.outstanding(); n > 0 {
					return fmt.Errorf("%d bundles and statuses are to be processed", n)
				}
				if again.metric("flowkeep_policy_sync_decision_seconds") == 0 {
					return fmt.Errorf("nothing is decided yet")
				}
				return nil
			})
			if n := again.writes(); n != 0 {
				t.Errorf("%v writes before %s are read: %v", n, resource, again.written())
			}
			close(late.release)
			again.idle()
			if n := again.writes(); n != 0 {
				t.Errorf("%v writes after %s are read: %v", n, resource, again.written())
			}
			again.stop()
		})
	}
}
