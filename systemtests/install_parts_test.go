package systemtests

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// parts are what the manifests leave out unless it is wanted.
var parts = []string{"memcached", "nodeState", "macvtap", "policySync"}

// partsStart: the chart with all parts, applied over what is installed, starts them, and each does something; with the rights that it gives.
func (w *world) partsStart() {
	w.Helper()
	file := filepath.Join(w.Dir, "flowkeep", "flowkeep.yaml")
	text, err := os.ReadFile(file)
	w.must(err)
	said := func(pattern string) string {
		found := regexp.MustCompile(pattern).FindSubmatch(text)
		if found == nil {
			w.Fatalf("%s has no %s", file, pattern)
		}
		return string(found[1])
	}
	values := []string{"namespace.create=true", "policySync.replicas=1", "images.tag=" + said(`image: flowkeep\.invalid/flowkeep:(\S+)`),
		"network.clusterCIDRs={" + said(`cluster-cidrs: "(.*)"`) + "}", "network.serviceCIDRs={" + said(`service-cidrs: "(.*)"`) + "}"}
	args := []string{"-print"}
	for _, part := range parts {
		values = append(values, part+".enabled=true")
	}
	for _, value := range values {
		args = append(args, "--set", value)
	}
	script, err := filepath.Abs("../scripts/manifests")
	w.must(err)
	cmd := exec.CommandContext(w.ctx, script, args...)
	var wrong strings.Builder
	cmd.Stderr = &wrong
	manifests, err := cmd.Output()
	if err != nil {
		w.Fatalf("%v: %s", err, &wrong)
	}
	w.must(os.WriteFile(file, manifests, 0o600)) // what is there goes with it
	_, err = w.Kubectl(w.ctx, "", "apply", "-f", file)
	w.must(err)
	for _, what := range []string{"deployment/memcached", "deployment/netmaster", "daemonset/netplugin", "daemonset/node-state", "daemonset/macvtap"} {
		_, err := w.Kubectl(w.ctx, "", "-n", system, "rollout", "status", what, "--timeout="+cluster.Stretch(2*time.Minute).String())
		w.must(err)
	}
	for _, one := range []struct {
		part, says string
		ask        func() (string, error)
	}{
		{"memcached", `"connected": true`, func() (string, error) { return w.NetctlAs(w.ctx, "", "cache", "-o", "json") }},
		{"node-state", "/node1", func() (string, error) { return w.Kubectl(w.ctx, "", "get", "nodenetworkstates", "-o", "name") }},
		{"macvtap", "/node1", func() (string, error) { return w.Kubectl(w.ctx, "", "get", "macvtapnodes", "-o", "name") }},
		{"policy-sync", "nothing is sent until the hub has it", func() (string, error) { return w.logs("policy-sync") }}, // this is no hub
	} {
		w.must(cluster.Until(w.ctx, time.Minute, func() error {
			text, err := one.ask()
			if err == nil && !strings.Contains(text, one.says) {
				err = fmt.Errorf("%s is not at work, %q is not in: %s", one.part, one.says, text)
			}
			return err
		}))
	}
}

// logs are those of a part's pods.
func (w *world) logs(part string) (string, error) {
	return w.Kubectl(w.ctx, "", "-n", system, "logs", "--prefix", "--tail=-1", "-l", "app.kubernetes.io/name="+part)
}
