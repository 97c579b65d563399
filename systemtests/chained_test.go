package systemtests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// A plugin that another program appends to the CNI configuration is called for each pod, with the result of Flowkeep's,
// also after a restart of netplugin.
func TestChainedPlugin(t *testing.T) {
	w := setup(t)
	ns := w.namespace("chained", nil)
	dir := filepath.Join(w.Dir, "node1", "cni")
	file, calls := filepath.Join(dir, "conf", "10-flowkeep.conflist"), filepath.Join(t.TempDir(), "calls")
	plugin := filepath.Join(dir, "bin", "fk-test-chained")
	w.must(os.WriteFile(plugin, fmt.Appendf(nil, `#!/bin/sh
conf=$(cat)
[ "$CNI_COMMAND" = ADD ] || exit 0
echo "$CNI_ARGS" >>%q
printf '%%s' "$conf" | jq -c .prevResult
`, calls), 0o755)) // #nosec G306 -- a program
	before, err := os.ReadFile(file)
	w.must(err)
	w.Cleanup(func() { w.must(os.WriteFile(file, before, 0o644)); w.must(os.Remove(plugin)) }) // #nosec G306
	var conf map[string]any
	w.must(json.Unmarshal(before, &conf))
	conf["plugins"] = append(conf["plugins"].([]any), map[string]any{"type": "fk-test-chained"})
	text, err := json.Marshal(conf)
	w.must(err)
	w.must(os.WriteFile(file, text, 0o644)) // #nosec G306 -- as the runtime's other files
	// netplugin leaves out CNI 1.1, which the plugin may not know
	w.must(cluster.Until(w.ctx, time.Minute, func() error {
		if text, err = os.ReadFile(file); err == nil && strings.Contains(string(text), "cniVersions") {
			err = errors.New("the configuration lists versions of CNI although a plugin is chained")
		}
		return err
	}))
	// containerd reads the directory when it changes
	sees := func(pod string) {
		w.Helper()
		w.must(cluster.Until(w.ctx, time.Minute, func() error {
			w.run(ns, pod+"@node1")
			said, err := os.ReadFile(calls)
			if strings.Contains(string(said), "K8S_POD_NAME="+pod) {
				return nil
			}
			_ = w.DeletePod(context.WithoutCancel(w.ctx), ns, pod)
			return errors.Join(err, fmt.Errorf("%s did not pass through the chained plugin: %s", pod, said))
		}))
	}
	sees("a")
	w.again("node1-netplugin")
	w.must(w.Kill(w.ctx, "node1-netplugin"))
	w.must(w.Start(w.ctx, "node1-netplugin"))
	w.must(w.AwaitReady(w.ctx, "node1-netplugin", 30*time.Second))
	sees("b")
	w.settles(w.open("a", "b", "tcp", 80, "no policy"))
	if after, err := os.ReadFile(file); err != nil || string(after) != string(text) {
		t.Errorf("the configuration was written:\n%s (%v)", after, err)
	}
}
