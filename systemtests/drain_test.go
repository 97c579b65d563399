package systemtests

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// TestNodeIsDrained_WithoutNetplugin: pods of a node end while its netplugin does not run, by a drain and by force.
// netplugin deletes their ports when it starts.
func TestNodeIsDrained_WithoutNetplugin(t *testing.T) {
	w := setup(t)
	const node = "node1"
	ports := func() []string {
		list, err := w.Ports(w.ctx, node)
		w.must(err)
		slices.Sort(list)
		return list
	}
	before := ports()
	ns := w.namespace("drained", nil)
	w.run(ns, "a@"+node, "b@"+node, "c@"+node)
	w.again(node + "-netplugin")
	w.must(w.Stop(w.ctx, node+"-netplugin"))
	w.Cleanup(func() { w.kubectl("uncordon", node) })
	w.kubectl("delete", "pod", "c", "-n", ns, "--grace-period=0", "--force")
	w.kubectl("drain", node, "--ignore-daemonsets", "--force", "--pod-selector", "app in (a, b)", "--grace-period=1",
		"--timeout", fmt.Sprint(cluster.Stretch(time.Minute)))
	for _, pod := range []string{"a", "b", "c"} {
		if err := w.Get(w.ctx, cluster.PathOf("Pod", ns, pod), nil); err == nil {
			t.Errorf("pod %s has not ended", pod)
		}
	}
	if now := ports(); len(now) < len(before)+3 {
		t.Errorf("ports without netplugin: %v, before the pods: %v: nothing is shown", now, before)
	}
	w.must(w.Start(w.ctx, node+"-netplugin"))
	w.awaitNetplugin(node + "-netplugin")
	w.must(cluster.Until(w.ctx, time.Minute, func() error {
		if now := ports(); !slices.Equal(now, before) {
			return fmt.Errorf("ports %v, before the pods: %v", now, before)
		}
		return nil
	}))
}
