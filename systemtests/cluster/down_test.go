package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
)

// A sandbox that goes down leaves a sandbox whose name begins with its own, as test and test-quiet.
func TestDown_LeavesOtherSandboxes(t *testing.T) {
	netns.New(t).Enter(t) // links that down removes are this namespace's
	root, err := SourceRoot()
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("unit%d", os.Getpid())
	c, other := &Cluster{Name: name}, &Cluster{Name: name + "-quiet"}
	for _, c := range []*Cluster{c, other} {
		t.Cleanup(func() { _ = c.removeNetNS("node1") }) // the test reports what it finds
		if err := c.addNetNS("node1"); err != nil {
			t.Fatal(err)
		}
	}
	inside := exec.Command("nsenter", "--net="+other.NodeNS("node1"), "--", "sleep", "60")
	if err := inside.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- inside.Wait() }()
	t.Cleanup(func() { _ = inside.Process.Kill() }) // it may have ended

	down := exec.Command(filepath.Join(root, "systemtests/sandbox/down"))
	down.Env = append(os.Environ(), "FLOWKEEP_SANDBOX="+name)
	if out, err := down.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := os.Stat(c.NodeNS("node1")); !os.IsNotExist(err) {
		t.Errorf("the sandbox's own namespace is still there: %v", err)
	}
	if _, err := os.Stat(other.NodeNS("node1")); err != nil {
		t.Errorf("the other sandbox's namespace is gone: %v", err)
	}
	select {
	case err := <-ended:
		t.Errorf("the process in the other sandbox ended: %v", err)
	default:
	}
}

func TestAddNetNS_Dash(t *testing.T) {
	if err := (&Cluster{Name: "unit"}).addNetNS("quiet-node1"); err == nil {
		t.Error("a name that another sandbox could have was taken")
	}
}
