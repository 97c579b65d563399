// Package try tests make try: netmaster with manifests in place of an API server, and two nodes.
package try

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/slow"
)

// dir is the directory of make try.
const dir = "/var/lib/flowkeep-sandbox/try"

// script runs one of the repository's scripts.
func script(t *testing.T, name string, env ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), slow.Stretch(5*time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join("..", "..", "scripts", name))
	cmd.Env = append(os.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second // processes that stay up have the output too
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		t.Fatalf("%s: %v\n%s", name, err, &out)
	}
	return out.String()
}

// down runs make try-down, and fails if a network namespace is left.
func down(t *testing.T) {
	t.Helper()
	script(t, "try-down")
	if left, err := filepath.Glob("/run/netns/fk-try-*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// netctl runs netctl in the namespace of netmaster, as the environment that make try names does.
func netctl(t *testing.T, args ...string) (out string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", append([]string{"-c", `. "$0"; netctl "$@"`, dir + "/netctl.env"}, args...)...)
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	return text.String(), cmd.ProcessState.ExitCode()
}

// addresses are those of a pod's record.
var addresses = regexp.MustCompile(`"addresses":\[[^]]*\]`)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// expect runs netctl try matrix with a file of expected verdicts.
func expect(t *testing.T, lines string) (out string, code int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "expected.txt")
	write(t, file, lines)
	return netctl(t, "try", "matrix", "--expect", file)
}

// TestTry follows docs/try.md: the shop, a changed policy, a new pod, an invalid file, and the end of it.
func TestTry(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("makes network namespaces")
	}
	down(t) // of a run that was killed
	t.Cleanup(func() { down(t) })
	out := script(t, "try")
	if !strings.Contains(out, "shop/db (node1)") || !strings.Contains(out, "it stays up") || strings.Contains(out, "mixed") {
		t.Errorf("make try prints:\n%s", out)
	}
	shop, err := os.ReadFile("../../deploy/demo/expected.txt")
	if err != nil {
		t.Fatal(err)
	}
	if out, code := expect(t, string(shop)); code != 0 {
		t.Errorf("the shop: exit code %d\n%s", code, out)
	}
	t.Run("README", checkReadme)
	manifests := dir + "/manifests"
	policies, err := os.ReadFile(manifests + "/policies.yaml")
	if err != nil {
		t.Fatal(err)
	}
	t.Run("changed", func(t *testing.T) {
		write(t, manifests+"/policies.yaml", strings.Replace(string(policies), "ports: [{port: 5432}]", "ports: [{port: 5433}]", 1))
		out, code := expect(t, string(shop))
		if code != 1 || !strings.Contains(out, "shop/api") || strings.Count(out, "\n") != 2 {
			t.Errorf("exit code %d\n%s", code, out)
		}
		write(t, manifests+"/policies.yaml", string(policies))
		if out, code := expect(t, string(shop)); code != 0 {
			t.Errorf("changed back: exit code %d\n%s", code, out)
		}
	})
	t.Run("new pod", func(t *testing.T) {
		write(t, manifests+"/dns.yaml", `apiVersion: v1
kind: Pod
metadata: {name: dns, namespace: outside}
spec: {containers: [{name: c, image: none, ports: [{containerPort: 53, protocol: UDP}]}]}
`)
		out, code := expect(t, string(shop)+"* outside/dns:53/udp open\nshop/db * shut\n")
		if code != 0 {
			t.Errorf("exit code %d\n%s", code, out)
		}
		if err := os.Remove(manifests + "/dns.yaml"); err != nil {
			t.Fatal(err)
		}
		if out, code := netctl(t, "try", "matrix", "-o", "list"); code != 0 || strings.Contains(out, "dns") {
			t.Errorf("removed: exit code %d\n%s", code, out)
		}
	})
	t.Run("interrupted", func(t *testing.T) { // between the start of a pod's server and the record of its addresses
		records, err := filepath.Glob(dir + "/pods/*.json")
		if err != nil || len(records) != 4 {
			t.Fatalf("records of pods: %v %v", records, err)
		}
		for _, path := range records {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			write(t, path, addresses.ReplaceAllString(string(text), `"addresses":null`))
		}
		if out, code := expect(t, string(shop)); code != 0 {
			t.Errorf("exit code %d\n%s", code, out)
		}
	})
	t.Run("invalid", func(t *testing.T) {
		write(t, manifests+"/policies.yaml", strings.Replace(string(policies), "podSelector", "podSelectr", 1))
		out, code := netctl(t, "try", "matrix")
		if code != 4 || !strings.Contains(out, `policies.yaml, document 1 (line 1)`) || !strings.Contains(out, "podSelectr") {
			t.Errorf("exit code %d\n%s", code, out)
		}
		if out, code := netctl(t, "policy", "ls"); code != 0 || !strings.Contains(out, "default-deny") {
			t.Errorf("the policies before are not kept: exit code %d\n%s", code, out)
		}
	})
}

// assigned matches what netplugin numbers in the order in which rules arrive.
var assigned = regexp.MustCompile(`0x[0-9a-f]+|(conj_id=|conjunction\()\d+`)

// checkReadme compares the flows that README.md shows of the demo's policy for db with those of the shop.
func checkReadme(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	out, code := netctl(t, "flows", "node1", "--policy", "shop/db")
	if err := compareReadme(string(readme), out); code != 0 || err != nil {
		t.Errorf("exit code %d, README.md shows others: %v\n%s", code, err, out)
	}
}

// compareReadme returns how the flows in a README differ from the output of netctl flows. Of numbers only that of the
// flows counts.
func compareReadme(readme, out string) error {
	_, block, _ := strings.Cut(readme, "netctl flows node1 --policy shop/db\n")
	var want []string
	for line := range strings.Lines(block) {
		code, indented := strings.CutPrefix(line, "    ")
		if !indented && line != "\n" {
			break
		}
		if code = strings.TrimSpace(code); code != "" {
			want = append(want, assigned.ReplaceAllString(code, "${1}N"))
		}
	}
	if len(want) < 2 || !strings.HasPrefix(out, want[0]+"\n") {
		return fmt.Errorf("it shows %q", want)
	}
	return compareOutput(want, assigned.ReplaceAllString(out, "${1}N"))
}

func TestCompareReadme(t *testing.T) {
	const readme = "The flows: netctl flows node1 --policy shop/db\n\n" +
		"    2 flows on node1\n    …\n      7  60001  reg7=0x1,conj_id=2  drop\n\nText.\n"
	for name, c := range map[string]struct {
		out  string
		same bool
	}{
		"other packets and numbers": {"2 flows on node1\n  0  60001  reg7=0xa,conj_id=3  drop\nany\n", true},
		"another number of flows":   {"3 flows on node1\n  0  60001  reg7=0xa,conj_id=3  drop\nany\n", false},
		"another register":          {"2 flows on node1\n  0  60001  reg6=0xa,conj_id=3  drop\nany\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := compareReadme(readme, c.out); (err == nil) != c.same {
				t.Error(err)
			}
		})
	}
}
