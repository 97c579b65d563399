package systemtests

import (
	"archive/tar"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// bundle runs netctl bundle and gives the files in the archive, without the folder that they are in.
func (w *world) bundle(args ...string) (files map[string]string, failed error) {
	w.Helper()
	path := filepath.Join(w.TempDir(), "case.tar.gz")
	_, failed = w.NetctlAs(w.ctx, "", append([]string{"bundle", "-o", path}, args...)...)
	f, err := os.Open(path)
	w.must(err)
	defer f.Close()
	zip, err := gzip.NewReader(f)
	w.must(err)
	files = map[string]string{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, failed
		}
		w.must(err)
		text, err := io.ReadAll(r)
		w.must(err)
		files[strings.TrimPrefix(h.Name, "case/")] = string(text)
	}
}

// keys are the secrets that there are on the machine: the middle of each private key, a token, and what a Secret holds.
func (w *world) keys(namespace string) (list []string) {
	w.Helper()
	for _, dir := range []string{"pki", "flowkeep/pki"} {
		files, err := filepath.Glob(filepath.Join(w.Dir, dir, "*.key"))
		w.must(err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			w.must(err)
			list = append(list, strings.Split(string(text), "\n")[1])
		}
	}
	if len(list) < 5 {
		w.Fatalf("only %d keys are known", len(list))
	}
	token, err := w.Kubectl(w.ctx, "", "-n", namespace, "create", "token", "default")
	w.must(err)
	const secret = "the-secret-of-this-test"
	w.apply(namespace, `{apiVersion: v1, kind: Secret, metadata: {name: hidden}, stringData: {password: `+secret+`}}`)
	return append(list, strings.TrimSpace(token), secret, base64.StdEncoding.EncodeToString([]byte(secret)))
}

// The archive has what support needs and no secrets; a node that is away is told, and leaves the rest.
func TestBundle(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.policy(ns, "only-a", `{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	w.settles(w.way("a", "b", "tcp", 80, true, "a may"), w.way("c", "b", "tcp", 80, false, "c may not"))
	secrets := w.keys(ns)
	check := func(files map[string]string) {
		t.Helper()
		for name, text := range files {
			for _, secret := range secrets {
				if strings.Contains(text, secret) {
					t.Errorf("%s has a secret in it: %s", name, secret)
				}
			}
		}
	}
	files, err := w.bundle()
	if err != nil {
		t.Errorf("%v; errors.txt:\n%s", err, files["errors.txt"])
	}
	check(files)
	node := "nodes/" + w.pods["b"].Node
	for name, says := range map[string]string{"versions.txt": "netplugin on node2", "status.json": "node1", "state/policies.json": "app=a of namespace " + ns, "state/endpoints.json": ns, "state/db.json": "revision",
		"netmaster/log.txt": "node connected", "netmaster/metrics.txt": "flowkeep_netmaster_revision", "netmaster/flags.json": "access-listen", "objects/networkpolicies.yaml": "only-a", "objects/nodes.yaml": "node1",
		node + "/flows.txt": ns + "/only-a ingress[0]", node + "/log.txt": "level=", node + "/metrics.txt": "flowkeep_netplugin_", node + "/flags.json": "traffic-mode", node + "/rules.json": "members",
		node + "/ovs/version.txt": "ovs-vswitchd", node + "/ovs/dpif-show.txt": "fk0"} {
		if !strings.Contains(files[name], says) {
			t.Errorf("%s: no %q in\n%.500s", name, says, files[name])
		}
	}
	w.again("node2-netplugin")
	w.must(w.Stop(w.ctx, "node2-netplugin"))
	files, err = w.bundle()
	w.must(w.Start(w.ctx, "node2-netplugin"))
	w.must(w.AwaitReady(w.ctx, "node2-netplugin", settling))
	if err == nil || !strings.Contains(files["errors.txt"], "nodes/node2") || files["nodes/node1/flows.txt"] == "" || files["nodes/node2/flows.txt"] != "" {
		t.Errorf("without node2: %v; errors.txt:\n%s", err, files["errors.txt"])
	}
	check(files)
}
