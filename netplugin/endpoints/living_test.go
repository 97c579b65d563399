package endpoints

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
)

// TestSweep_SparesPodsWhoseNamespaceIsNotSeen starts with a state in which the path of a living pod's network namespace
// does not exist, as where the runtime's directory is not mounted.
func TestSweep_SparesPodsWhoseNamespaceIsNotSeen(t *testing.T) {
	w, pod := newWorld(t), netns.NewNamed(t, "pod")
	e := w.mustAdd(w.request("web", pod))
	path := w.files.path("c-web", "eth0")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text = []byte(strings.ReplaceAll(string(text), pod.Path(), pod.Path()+"-elsewhere"))
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	w.restart()
	w.know("10.9.0.0/28", "fd09::/120")
	if err := w.sweep(); err != nil {
		t.Error(err)
	}
	if l := w.links(); !slices.Contains(l, e.HostIfName) || len(w.List()) != 1 || w.parts.ports[e.HostIfName] == 0 {
		t.Errorf("after the sweep: links %v, ports %v, %d endpoints", l, w.parts.ports, len(w.List()))
	}
	w.end(pod, e.HostIfName)
	if err := w.sweep(); err != nil {
		t.Error(err)
	}
	w.empty("the pod's end")
}

// TestAdd_RefusesASecondInterface adds another interface to a sandbox, and takes it away again as a runtime does after a
// failure: the first is as it was.
func TestAdd_RefusesASecondInterface(t *testing.T) {
	w, pod := newWorld(t), netns.NewNamed(t, "pod")
	first := w.mustAdd(w.request("web", pod))
	second := w.request("web", pod)
	second.IfName = "net1"
	if _, err := w.add(second); !errors.Is(err, ErrSecondInterface) || !strings.Contains(err.Error(), "eth0") {
		t.Errorf("a second interface: %v", err)
	}
	if err := w.del(second.ContainerID, second.IfName); err != nil {
		t.Errorf("DEL of the second: %v", err)
	}
	if open, ok := w.parts.open["c-web/eth0"]; !ok || !open.Equal(first) {
		t.Errorf("the first is %+v", open)
	}
	if err := w.check("c-web"); err != nil {
		t.Errorf("CHECK of the first: %v", err)
	}
}

// TestEnsurePorts_RecreatesThoseOfRunningPods removes ports behind the manager's back.
func TestEnsurePorts_RecreatesThoseOfRunningPods(t *testing.T) {
	w, pod, other := newWorld(t), netns.NewNamed(t, "pod"), netns.NewNamed(t, "other")
	e := w.mustAdd(w.request("web", pod))
	ended := w.mustAdd(w.request("db", other))
	w.end(other, ended.HostIfName)
	clear(w.parts.ports)
	var created []string
	var err error
	w.node.Do(func() { created, _, err = w.EnsurePorts(context.Background(), map[string]bool{}) })
	if err != nil || !slices.Equal(created, []string{e.HostIfName}) || w.parts.ports[e.HostIfName] == 0 {
		t.Errorf("recreated %v: %v; ports %v", created, err, w.parts.ports)
	}
	w.node.Do(func() { created, _, err = w.EnsurePorts(context.Background(), map[string]bool{e.HostIfName: true}) })
	if err != nil || len(created) > 0 {
		t.Errorf("with all ports there: recreated %v: %v", created, err)
	}
}
