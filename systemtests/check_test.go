package systemtests

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// checkReport is what netctl check -o json prints.
type checkReport struct {
	OK, Failed, Skipped int
	Rows                []struct {
		Check, Stage, From, To, Expected, Verdict, Detail string
		Family                                            int
		Seconds                                           *float64
	}
}

// rows returns the rows of a check with a verdict, as text.
func (r *checkReport) rows(verdict string) (texts []string) {
	for _, row := range r.Rows {
		if row.Verdict == verdict {
			texts = append(texts, fmt.Sprintf("%s, %s, IPv%d: %s → %s %s: %s", row.Stage, row.Check, row.Family,
				row.From, row.To, row.Expected, row.Detail))
		}
	}
	return texts
}

// netctl starts netctl as cluster-admin.
func (w *world) netctl(args ...string) (*exec.Cmd, *strings.Builder, *strings.Builder) {
	w.Helper()
	cmd := exec.CommandContext(w.ctx, filepath.Join(w.Dir, "flowkeep", "bin", "netctl"), args...)
	cmd.Env = []string{"KUBECONFIG=" + filepath.Join(w.Dir, "admin.kubeconfig"), "HOME=/nonexistent"}
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errOut
	w.must(cmd.Start())
	return cmd, &out, &errOut
}

// ofChecks selects the namespaces of netctl check.
const ofChecks = "app.kubernetes.io/name=flowkeep-check"

// checkNamespace waits for the namespace of a run of netctl check.
func (w *world) checkNamespace() (name string) {
	w.Helper()
	w.must(cluster.Until(w.ctx, settling, func() error {
		list, err := w.Kubectl(w.ctx, "", "get", "namespaces", "-l", ofChecks, "-o", "name")
		if err == nil && list == "" {
			err = errors.New("netctl check makes no namespace")
		}
		name = strings.TrimPrefix(strings.TrimSpace(list), "namespace/")
		return err
	}))
	return name
}

// noCheckNamespace fails the test if a run of netctl check has left its namespace.
func (w *world) noCheckNamespace() {
	w.Helper()
	list, err := w.Kubectl(w.ctx, "", "get", "namespaces", "-l", ofChecks, "-o", "name")
	if err != nil || list != "" {
		w.Errorf("%v: %s is left", err, list)
	}
}

// TestCheck: netctl check finds nothing on a cluster where all is well, fails in the right rows where a policy denies
// what should pass, and removes its namespace, also after an interrupt.
func TestCheck(t *testing.T) {
	w := setup(t)
	image, err := w.NetctlImage(w.ctx)
	w.must(err)
	wait := cluster.Stretch(time.Minute).String()

	cmd, out, errOut := w.netctl("check", "--image", image, "--wait", wait, "--limit", wait, "-o", "json")
	err = cmd.Wait()
	var r checkReport
	if json.Unmarshal([]byte(out.String()), &r) != nil || err != nil {
		t.Fatalf("%v: %s%s", err, out, errOut)
	}
	if r.Failed > 0 || r.OK < 20 {
		t.Errorf("%d are ok, failed:\n%s", r.OK, strings.Join(r.rows("failed"), "\n"))
	}
	for _, row := range r.Rows {
		if row.Check == "time to force" {
			if row.Seconds == nil {
				t.Errorf("%s: no time to force", row.Stage)
				continue
			}
			t.Logf("%s: in force after %.3f s", row.Stage, *row.Seconds)
		}
	}
	t.Logf("skipped: %s", strings.Join(r.rows("skipped"), "\n"))
	w.noCheckNamespace()

	w.checkFindsADeniedPair(image, wait)

	cmd, _, errOut = w.netctl("check", "--image", image, "--wait", wait)
	w.checkNamespace()
	w.must(cmd.Process.Signal(os.Interrupt))
	err = cmd.Wait()
	if cmd.ProcessState.ExitCode() != 4 || !strings.Contains(errOut.String(), "netctl: interrupted") {
		t.Errorf("interrupted: %v: %s", err, errOut)
	}
	w.noCheckNamespace()
}

// checkFindsADeniedPair writes a policy that isolates the server on the other node.
func (w *world) checkFindsADeniedPair(image, wait string) {
	w.Helper()
	limit := cluster.Stretch(10 * time.Second).String()
	cmd, out, errOut := w.netctl("check", "--image", image, "--wait", wait, "--limit", limit, "-o", "json")
	const far = "{matchLabels: {app.kubernetes.io/component: far}}"
	w.policy(w.checkNamespace(), "isolated", "{podSelector: "+far+", policyTypes: [Ingress]}")
	err := cmd.Wait()
	var r checkReport
	if json.Unmarshal([]byte(out.String()), &r) != nil || cmd.ProcessState.ExitCode() != 1 {
		w.Fatalf("with a policy that isolates a server: %v: %s%s", err, out, errOut)
	}
	failed := map[string]bool{}
	for _, row := range r.Rows {
		if row.Verdict == "failed" && row.Stage == "no policy" {
			failed[row.Check] = true
		}
	}
	for check, want := range map[string]bool{
		"pod to pod, across nodes": true,
		"Service":                  true,
		"MTU":                      true,
		"pod to pod, one node":     false,
		"port of a rule":           false,
		"outside":                  false,
	} {
		if failed[check] != want {
			w.Errorf("%s: failed=%v, failed are\n%s", check, failed[check], strings.Join(r.rows("failed"), "\n"))
		}
	}
	w.noCheckNamespace()
}

// TestNetctlWeb: netctl web serves the web UI with the answers that netmaster gives the user of the kubeconfig.
func TestNetctlWeb(t *testing.T) {
	w := setup(t)
	w.withRBAC()
	jane := w.person("jane-" + w.id)
	netctl := filepath.Join(w.Dir, "flowkeep", "bin", "netctl")
	cmd := exec.CommandContext(w.ctx, netctl, "web", "--no-browser", "--kubeconfig", jane)
	cmd.Env = []string{"HOME=/nonexistent"}
	out, err := cmd.StdoutPipe()
	w.must(err)
	w.must(cmd.Start())
	url, err := bufio.NewReader(out).ReadString('\n')
	w.must(err)
	at, token, _ := strings.Cut(strings.TrimSpace(url), "#token=")
	overview := func() (int, string) {
		r, err := http.NewRequestWithContext(w.ctx, http.MethodGet, at+"api/overview", http.NoBody)
		w.must(err)
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(r)
		w.must(err)
		defer answer.Body.Close()
		var said struct{ Line, Error string }
		w.must(json.NewDecoder(answer.Body).Decode(&said))
		return answer.StatusCode, said.Line + said.Error
	}
	if code, text := overview(); code == http.StatusOK || !strings.Contains(text, "flowkeep-view") {
		t.Errorf("without a role: %d: %s", code, text)
	}
	w.bind("clusterrolebinding", "web-"+w.id, "--clusterrole=flowkeep-view", "--user=jane-"+w.id)
	w.must(cluster.Until(w.ctx, settling, func() error {
		code, text := overview()
		if code != http.StatusOK || !strings.Contains(text, " in force on ") && !strings.Contains(text, "degraded") {
			return fmt.Errorf("with flowkeep-view: %d: %s", code, text)
		}
		return nil
	}))
	w.must(cmd.Process.Signal(os.Interrupt))
	w.must(cmd.Wait())
}
