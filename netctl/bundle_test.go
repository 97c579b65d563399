package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/yaml"
)

// unpack gives the files of an archive by name, without the folder that they are in.
func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		folder, name, ok := strings.Cut(h.Name, "/")
		if !ok || folder != strings.TrimSuffix(filepath.Base(path), ".tar.gz") || strings.Contains(name, "..") || h.Mode != 0o600 {
			t.Errorf("%s (%o) is in the archive", h.Name, h.Mode)
		}
		files[name] = string(text)
	}
}

// planted are secrets that people put where they do not belong.
var planted = []string{"kEyMaTeRiAl", "eyJhbGciOiJSUzI1NiJ9", "hunter2", "s3same", "swordfish", "cGFzc3dvcmQ", "annotated-secret", "from-the-environment"}

const plantedLog = `level=INFO msg="a key" key="-----BEGIN EC PRIVATE KEY-----\nkEyMaTeRiAl\n-----END EC PRIVATE KEY-----"
level=INFO msg=request header="Authorization: Bearer eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2ln"
level=INFO msg="connect" url=https://admin:hunter2@etcd.example/x password=s3same token: "hunter2"
level=INFO msg="Basic cGFzc3dvcmQ6eA==" kept=kept-words
`

// supported is a cluster whose programs tell of themselves.
func supported() map[string]any {
	answers := shop()
	answers[inspect.AskCuts], answers[inspect.AskCounters], answers[inspect.AskDryRuns], answers[inspect.AskLint] = inspect.Cuts{}, struct{}{}, inspect.DryRuns{}, struct{}{}
	answers[inspect.AskSupport] = inspect.Support{Program: "netplugin", Version: "v1", Flags: map[string]string{"tls-key": "/etc/flowkeep/node.key", "state-dir": "/var/lib/flowkeep"}, Log: plantedLog,
		Metrics: "flowkeep_up 1\n", Switch: []inspect.SwitchWord{{Command: "version", Text: "ovs-vswitchd 3.1.0\n"}, {Command: "dpif/show", Text: "options: {psk=\"swordfish\", remote_ip=10.0.0.2}\n"}}}
	return answers
}

// objects answers what is asked of the API server itself, in parts of one object.
func objects(w http.ResponseWriter, r *http.Request) bool {
	path := strings.TrimPrefix(r.URL.Path, "/behind/a/path")
	if strings.HasPrefix(path, inspect.Prefix) {
		return false
	}
	object := func(name string) string {
		return `{"metadata":{"name":"` + name + `","managedFields":[1],"annotations":{"note":"annotated-secret","flowkeep.io/enforcement":"dry-run"}},"spec":{"podSelector":{"matchLabels":{"token":"a-label"}}},"status":{"addresses":[1],"images":["annotated-secret"]}}`
	}
	switch {
	case path == "/version":
		_, _ = io.WriteString(w, `{"gitVersion":"v1.36.3"}`)
	case path == "/api/v1/events":
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"kind":"Status","message":"events are forbidden"}`)
	case path == "/apis/networking.k8s.io/v1/networkpolicies" && r.URL.Query().Get("continue") == "":
		_, _ = io.WriteString(w, `{"metadata":{"continue":"more"},"items":[`+object("first")+`]}`)
	case path == "/apis/networking.k8s.io/v1/networkpolicies":
		_, _ = io.WriteString(w, `{"items":[`+object("second")+`]}`)
	default:
		_, _ = io.WriteString(w, `{"items":[`+object("it")+`]}`)
	}
	return true
}

func TestBundle(t *testing.T) {
	b, s := newCluster(t, supported())
	t.Setenv("SOME_TOKEN", "from-the-environment")
	s.refuse = objects
	path := filepath.Join(t.TempDir(), "case.tar.gz")
	out, errOut, code := b.run("bundle", "-o", path)
	if code != exitFailed || !strings.Contains(errOut, "! objects/events.yaml: the API server answers") || !strings.Contains(errOut, "errors.txt in it lists 1 problem") || !strings.HasPrefix(out, path+": ") {
		t.Errorf("exit code %d\n%s%s", code, out, errOut)
	}
	files := unpack(t, path)
	for _, name := range []string{"versions.txt", "status.json", "status.txt", "state/policies.json", "state/endpoints.json", "state/cuts.json", "state/db.json", "state/cache.json", "netmaster/log.txt",
		"netmaster/metrics.txt", "netmaster/flags.json", "nodes/node1/flows.txt", "nodes/node1/log.txt", "nodes/node2/metrics.txt", "nodes/node1/flags.json", "nodes/node1/rules.json", "nodes/node1/ovs/version.txt",
		"nodes/node1/ovs/dpif-show.txt", "objects/networkpolicies.yaml", "objects/namespaces.yaml", "objects/nodes.yaml", "objects/kubernetes-version.json", "errors.txt"} {
		text, ok := files[name]
		if !ok {
			t.Errorf("%s is not in the archive", name)
		}
		var v any
		if strings.HasSuffix(name, ".json") && json.Unmarshal([]byte(text), &v) != nil || strings.HasSuffix(name, ".yaml") && yaml.Unmarshal([]byte(text), &v) != nil {
			t.Errorf("%s cannot be read:\n%s", name, text)
		}
	}
	for name, text := range files {
		for _, secret := range planted {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %q in it:\n%s", name, secret, text)
			}
		}
	}
	for name, says := range map[string]string{"nodes/node1/log.txt": "kept-words", "nodes/node1/ovs/dpif-show.txt": "remote_ip=10.0.0.2", "objects/networkpolicies.yaml": "flowkeep.io/enforcement: dry-run",
		"netmaster/flags.json": "/etc/flowkeep/node.key", "versions.txt": "ovs-vswitchd 3.1.0", "errors.txt": "objects/events.yaml", "nodes/node1/flows.txt": "peer shop/db ingress[0]"} {
		if !strings.Contains(files[name], says) {
			t.Errorf("%s: no %q in\n%s", name, says, files[name])
		}
	}
	for _, says := range []string{"name: first", "name: second", "token: a-label"} {
		if !strings.Contains(files["objects/networkpolicies.yaml"], says) {
			t.Errorf("no %q in\n%s", says, files["objects/networkpolicies.yaml"])
		}
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
}

// What one node, or one question, does not give leaves the rest.
func TestBundleLacks(t *testing.T) {
	b, s := newCluster(t, supported())
	s.refuse = objects
	dir := t.TempDir()
	path := filepath.Join(dir, "x.tar.gz")
	s.script = nil
	delete(s.answers, inspect.AskSupport)
	delete(s.answers, inspect.AskFlows)
	if _, errOut, code := b.run("bundle", "-o", path, "--node", "node2", "--node", "node7"); code != exitFailed || !strings.Contains(errOut, "! nodes/node7: netmaster knows no such node") {
		t.Errorf("exit code %d\n%s", code, errOut)
	}
	files := unpack(t, path)
	if text := files["errors.txt"]; strings.Count(text, "\n") != 5 || !strings.Contains(text, "nodes/node2/flows.txt: ") || strings.Contains(text, "node1") || files["state/db.json"] == "" {
		t.Errorf("errors.txt:\n%s", text)
	}
	b, _ = newCluster(t, supported())
	if _, errOut, code := b.run("bundle", "-o", path, "--max-size", "0"); code != exitUsage {
		t.Errorf("exit code %d\n%s", code, errOut)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("%v is left, %v", entries, err)
	}
}

// Where there is nothing to be had, or no place for it, nothing is left; what was there before stays.
func TestNoBundle(t *testing.T) {
	b, s := newCluster(t, nil)
	s.refuse = func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "x.tar.gz")
	if err := os.WriteFile(path, []byte("of before"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.prints(exitUnreachable, "bundle -o "+path, "nothing can be had: the API server does not reach netmaster")
	s.refuse = func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"kind":"Status","message":"User \"jane\" may not","code":403}`)
		return true
	}
	b.prints(exitTrouble, "bundle -o "+path, "--clusterrole=flowkeep-admin --user=jane")
	b.prints(exitTrouble, "bundle -o "+filepath.Join(dir, "none", "x.tar.gz"), "choose another place with -o")
	text, err := os.ReadFile(path)
	entries, _ := os.ReadDir(dir)
	if err != nil || string(text) != "of before" || len(entries) != 1 {
		t.Errorf("%q, %v; %v is left", text, err, entries)
	}
}

// Who interrupts it finds nothing left.
func TestBundleInterrupted(t *testing.T) {
	b, s := newCluster(t, supported())
	s.refuse = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/support/answer") {
			return false
		}
		if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
			t.Error(err)
		}
		<-r.Context().Done()
		return true
	}
	dir := t.TempDir()
	b.prints(exitTrouble, "bundle -o "+filepath.Join(dir, "x.tar.gz"), "interrupted: no archive is left")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("%v is left, %v", entries, err)
	}
}

func TestBundleIsBounded(t *testing.T) {
	answers := supported()
	answers[inspect.AskSupport] = inspect.Support{Log: strings.Repeat("a long log\n", 100_000), Metrics: "small 1\n"}
	b, s := newCluster(t, answers)
	s.refuse = objects
	path := filepath.Join(t.TempDir(), "x.tar.gz")
	_, errOut, code := b.run("bundle", "-o", path, "--max-size", "1")
	files := unpack(t, path)
	total := 0
	for _, text := range files {
		total += len(text)
	}
	if _, there := files["netmaster/log.txt"]; there || files["netmaster/metrics.txt"] == "" || total > 1<<20+4<<10 || code != exitFailed || !strings.Contains(files["errors.txt"], "do not fit any more") {
		t.Errorf("exit code %d, %d bytes\n%s", code, total, errOut)
	}
}

// The direct way has no objects, and says so.
func TestBundleDirectly(t *testing.T) {
	b := newBench(t, supported())
	path := filepath.Join(t.TempDir(), "x.tar.gz")
	b.prints(exitFailed, "bundle -o "+path, "objects: this is a direct connection to netmaster")
	if files := unpack(t, path); files["nodes/node1/log.txt"] == "" {
		t.Errorf("%v", files)
	}
	b.fail(status.Error(codes.PermissionDenied, "not yours"))
	b.prints(exitTrouble, "bundle -o "+path, "nothing can be had: ", "not yours")
}

func TestScrub(t *testing.T) {
	for text, want := range map[string]string{
		"password=x y":                   "password=(left out) y",
		`"apiKey": "a b\" c", "n": 1`:    `"apiKey": (left out), "n": 1`,
		`msg="token: abc"`:               `msg="token: (left out)"`,
		"policy shop/token-reader":       "policy shop/token-reader",
		"-----BEGIN PRIVATE KEY-----\nx": "(left out)",
		"https://10.0.0.1:7443/x":        "https://10.0.0.1:7443/x",
	} {
		if got := string(scrubWords([]byte(text))); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := string(scrub([]byte("matchLabels:\n  token: a-label"))); !strings.Contains(got, "a-label") {
		t.Error(got)
	}
	if slices.Contains(planted, leftOut) {
		t.Error("the test tests nothing")
	}
}
