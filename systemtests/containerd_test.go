package systemtests

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// runtimeSendsStatus stops netplugin on node1, whose runtime sends STATUS. The Node stays Ready until the last success of
// STATUS is more than five minutes ago, and is Ready again when netplugin is back. Connections of pods stay open.
func runtimeSendsStatus(w *world) {
	ns := w.namespace("runtime", nil)
	w.run(ns, "a@node1", "c@node2")
	if version, _ := w.nodeStatus("node1"); !strings.HasPrefix(version, "containerd://2.") {
		w.Fatalf("the runtime of node1 is %s", version)
	}
	w.awaitSTATUS("node1")
	w.Cleanup(func() { _ = w.Start(context.WithoutCancel(w.ctx), "node1-netplugin") })
	w.watch(stall, everyProto(w, "c", "a", true, "allowed"), func() {
		w.must(w.Stop(w.ctx, "node1-netplugin"))
		for end := time.Now().Add(40 * time.Second); time.Now().Before(end); time.Sleep(time.Second) {
			if _, problem := w.nodeStatus("node1"); problem != "" {
				w.Fatalf("netplugin is away, and node1 is not Ready: %s", problem)
			}
		}
		ready, last := filepath.Join(w.Dir, "node1", "flowkeep", "ready"), time.Now().Add(-5*time.Minute)
		w.must(os.Chtimes(ready, last, last))
		w.awaitNode("node1", "netplugin does not answer")
		w.must(w.Start(w.ctx, "node1-netplugin"))
		w.must(w.AwaitReady(w.ctx, "node1-netplugin", time.Minute))
		w.awaitNode("node1", "")
	})
	w.run(ns, "b@node1")
	w.settles(everyProto(w, "b", "c", true, "a new pod"), everyProto(w, "c", "b", true, "a new pod"))
	w.must(w.DeletePod(w.ctx, ns, "a"))
	w.must(cluster.Until(w.ctx, time.Minute, func() error {
		text, err := w.RunIn(w.ctx, w.NodeNS("node1"), "grep", "--recursive", "--files-with-matches", ns,
			filepath.Join(w.Dir, "node1", "flowkeep", "state", "endpoints"))
		if left := strings.Fields(text); err == nil && len(left) != 1 {
			err = fmt.Errorf("one pod is left on node1, and the attachments %v", left)
		}
		return err
	}))
}

// nodeStatus returns the version of a node's runtime, and why the node is not Ready.
func (w *world) nodeStatus(name string) (runtime, problem string) {
	w.Helper()
	var node struct {
		Status struct {
			Conditions []struct{ Type, Status, Message string }
			NodeInfo   struct{ ContainerRuntimeVersion string }
		}
	}
	w.must(w.Get(w.ctx, "/api/v1/nodes/"+name, &node))
	problem = "it has no condition Ready"
	for _, c := range node.Status.Conditions {
		if c.Type == "Ready" {
			problem = c.Message
			if c.Status == "True" {
				problem = ""
			}
		}
	}
	return node.Status.NodeInfo.ContainerRuntimeVersion, problem
}

// awaitNode waits until a node is Ready, or not Ready with a text in the reason.
func (w *world) awaitNode(name, want string) {
	w.Helper()
	w.must(cluster.Until(w.ctx, time.Minute, func() error {
		if _, problem := w.nodeStatus(name); (problem == "") != (want == "") || !strings.Contains(problem, want) {
			return fmt.Errorf("%s is not Ready: %q, want %q", name, problem, want)
		}
		return nil
	}))
}

// awaitSTATUS waits until the runtime of a node has sent STATUS to netplugin.
func (w *world) awaitSTATUS(node string) {
	w.Helper()
	w.must(cluster.Until(w.ctx, time.Minute, func() error {
		_, err := w.Metric(w.ctx, node+"-netplugin", "flowkeep_netplugin_cni_seconds_count", `command="STATUS"`)
		return err
	}))
}
