package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/apitest"
)

// A real kubectl finds netctl as its plugin, passes arguments and exit codes, and completes.
func TestKubectlPlugin(t *testing.T) {
	kubectl := filepath.Join(apitest.Programs(), "kubectl")
	if _, err := os.Stat(kubectl); err != nil {
		t.Skip("there is no kubectl: the system tests build it")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{pluginName, completionName} {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"plugin list", 0, filepath.Join(dir, pluginName)},
		{"flowkeep --version", 0, "kubectl flowkeep version"},
		{"flowkeep help", 0, "kubectl flowkeep [command]"},
		{"flowkeep policy show --help", 0, "kubectl flowkeep policy show"},
		{"flowkeep lint -f ../deploy/demo", 0, ""},
		{"flowkeep lint -f none.yaml", exitUsage, "netctl: stat none.yaml"},
		{"flowkeep status", exitTrouble, "netctl: no cluster is known"},
		{"__complete flowkeep pol", 0, "policy"},
		{"__complete flowkeep policy sh", 0, "show"},
	} {
		cmd := exec.Command(kubectl, strings.Fields(c.args)...)
		cmd.Env = append(os.Environ(), asNetctl+"=1", "PATH="+dir, "HOME="+dir, "KUBECONFIG="+filepath.Join(dir, "none"))
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(string(out), c.want) {
			t.Errorf("kubectl %s: code %d, want %d with %q:\n%s", c.args, code, c.code, c.want, out)
		}
	}
}
