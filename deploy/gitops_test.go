package deploy

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/flowkeep/flowkeep/internal/apitest"
)

const (
	registration = "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.inspect.flowkeep.io"
	authority    = "/api/v1/namespaces/flowkeep-system/secrets/flowkeep-authority"
)

var (
	kubectl = filepath.Join(apitest.Programs(), "kubectl")
	helm    = filepath.Join(apitest.Programs(), "../tools/helm")
)

// A gitops is an API server to which a tool applies the manifests while netmaster runs.
type gitops struct {
	asker
	netmaster, dir, address string
	byHelm, serverSide      bool
}

// newGitops starts an API server that reaches netmaster, a program, at an address of this machine.
func newGitops(t *testing.T, netmaster string, byHelm, serverSide bool) *gitops {
	t.Helper()
	g := &gitops{netmaster: netmaster, dir: t.TempDir(), address: ownAddress(t), byHelm: byHelm, serverSide: serverSide}
	front := filepath.Join(g.dir, "front")
	for _, args := range [][]string{{"init"}, {"issue", "--admin"}} {
		args = append([]string{"pki"}, append(args, "--dir", front)...)
		if out, err := exec.Command(netmaster, args...).CombinedOutput(); err != nil {
			t.Fatalf("netmaster %s: %v: %s", args, err, out)
		}
	}
	api := apitest.New(t, "netmaster,system:serviceaccount:flowkeep-system:netmaster,2\n",
		"--requestheader-client-ca-file="+filepath.Join(front, "ca.crt"),
		"--proxy-client-cert-file="+filepath.Join(front, "admin.crt"),
		"--proxy-client-key-file="+filepath.Join(front, "admin.key"),
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--enable-aggregator-routing", "--allow-privileged")
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	g.asker = asker{T: t, url: api.URL, client: client}
	t.Cleanup(client.CloseIdleConnections)
	for _, user := range []string{apitest.Admin, "netmaster"} {
		g.write(user+".kubeconfig", fmt.Sprintf(`{clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}],
users: [{name: u, user: {token: %s}}], contexts: [{name: c, context: {cluster: c, user: u}}], current-context: c}`,
			api.URL, user))
	}
	return g
}

// ownAddress returns an address of this machine that an EndpointSlice may have.
func ownAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	t.Skip("the machine has no IPv4 address but loopback")
	return ""
}

func (g *gitops) write(name, text string) {
	g.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, name), []byte(text), 0o600); err != nil {
		g.Fatal(err)
	}
}

// buildNetmaster builds netmaster in a folder of the test.
func buildNetmaster(t *testing.T) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "netmaster")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", program, "../netmaster")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

// run runs a program as an administrator.
func (g *gitops) run(stdin, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(g.Context(), program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(g.dir, "admin.kubeconfig"), "HOME="+g.dir)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (g *gitops) must(stdin, program string, args ...string) string {
	g.Helper()
	out, err := g.run(stdin, program, args...)
	if err != nil {
		g.Fatalf("%s %s: %v: %s", program, args, err, out)
	}
	return out
}

// apply applies the manifests of a version, as a user who forces nothing.
func (g *gitops) apply(version string) {
	g.Helper()
	server := fmt.Sprintf("--server-side=%v", g.serverSide)
	if g.byHelm {
		g.must("", helm, "upgrade", "--install", "flowkeep", "chart", "--namespace", "flowkeep-system",
			"--create-namespace", server, "--set", "images.tag="+version+",logLevel="+logLevels[version])
		return
	}
	g.must(manifests(g.T, version), kubectl, "apply", server, "-f", "-")
}

var logLevels = map[string]string{"main": "info", "v2": "debug"}

// manifests returns deploy/flowkeep.yaml as it is in a version.
func manifests(t *testing.T, version string) string {
	t.Helper()
	return strings.NewReplacer(`version: "main"`, fmt.Sprintf("version: %q", version),
		"=info", "="+logLevels[version]).Replace(string(read(t, "flowkeep.yaml")))
}

// unchanged fails unless another application of a version would change nothing, and what netmaster has written is there.
func (g *gitops) unchanged(when, version string) {
	g.Helper()
	text := manifests(g.T, version)
	if g.byHelm {
		text = g.must("", helm, "get", "manifest", "flowkeep", "--namespace", "flowkeep-system")
		if want := fmt.Sprintf("version: %q", version); !strings.Contains(text, want) {
			g.Errorf("%s: the release has no %s", when, want)
		}
	}
	// Helm adds metadata that no manifest has, so that a server-side application of the manifests would remove it. Whether
	// another manager has taken fields from Helm is seen by the next upgrade, which would end with a conflict.
	way := fmt.Sprintf("--server-side=%v", g.serverSide && !g.byHelm)
	if out, err := g.run(text, kubectl, "diff", way, "-f", "-"); err != nil {
		g.Errorf("%s: kubectl diff %s: %v:\n%s", when, way, err, out)
	}
	g.written(when)
}

// written fails unless netmaster's certificates are where it writes them.
func (g *gitops) written(when string) {
	g.Helper()
	for path, field := range map[string][]string{registration: {"spec", "caBundle"}, authority: {"data"}} {
		if at(g.get(path), field...) == nil {
			g.Errorf("%s: %s has no %v", when, path, field)
		}
	}
}

// get returns an object, nil if there is none.
func (g *gitops) get(path string) (o map[string]any) {
	g.Helper()
	code, text := g.send(http.MethodGet, path, nil, nil)
	if code == http.StatusOK {
		if err := json.Unmarshal([]byte(text), &o); err != nil {
			g.Fatal(err)
		}
	}
	return o
}

// start starts netmaster with the arguments of the manifests and ports of its own. The returned function ends it, as a
// rollout does.
func (g *gitops) start() (stop func()) {
	g.Helper()
	var args []string
	for _, o := range objects(g.T, "flowkeep.yaml") {
		if o["kind"] != "Deployment" || at(o, "metadata", "name") != "netmaster" {
			continue
		}
		for _, a := range at(at(o, "spec", "template", "spec", "containers").([]any)[0], "args").([]any) {
			if arg := strings.ReplaceAll(a.(string), "$(HOST_IPS)", g.address); !strings.HasPrefix(arg, "--memcached") {
				args = append(args, arg)
			}
		}
	}
	args = append(args, "--kubeconfig="+filepath.Join(g.dir, "netmaster.kubeconfig"), "--state-dir="+g.TempDir(),
		"--page-address=")
	for _, flag := range []string{"listen", "access-listen", "sign-listen", "http-listen"} {
		args = append(args, fmt.Sprintf("--%s=:%d", flag, freePort(g.T)))
	}
	cmd := exec.Command(g.netmaster, args...)
	log := new(bytes.Buffer)
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		g.Fatal(err)
	}
	stop = func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Wait()
		}
	}
	g.Cleanup(func() {
		stop()
		if g.Failed() {
			g.Logf("netmaster:\n%s", log)
		}
	})
	return stop
}

// leads waits until a netmaster leads that the API server reaches, by another registration than before. It returns the
// registration's UID.
func (g *gitops) leads(before any) (uid any) {
	g.Helper()
	g.until("a netmaster that leads", func() (bool, string) {
		o := g.get(registration)
		uid = at(o, "metadata", "uid")
		conditions, _ := at(o, "status", "conditions").([]any)
		available := slices.ContainsFunc(conditions, func(c any) bool { return at(c, "status") == "True" })
		return available && uid != before && at(o, "spec", "caBundle") != nil, fmt.Sprint(o)
	})
	return uid
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// TestManifests_AppliedAgain applies the manifests again and again while netmasters run, restart and lead in turn: each
// time a comparison finds nothing to change, and netmaster keeps what it has written. No field has two managers with
// different values, so that nobody has to force a new version.
func TestManifests_AppliedAgain(t *testing.T) {
	for _, program := range []string{kubectl, helm} {
		if _, err := os.Stat(program); err != nil {
			t.Skip("the system tests and scripts/lint build it: ", err)
		}
	}
	netmaster := buildNetmaster(t)
	for name, way := range map[string]struct{ byHelm, serverSide bool }{
		"kubectl, three-way merge":   {false, false},
		"kubectl, server-side apply": {false, true},
		"helm, three-way merge":      {true, false},
		"helm, server-side apply":    {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGitops(t, netmaster, way.byHelm, way.serverSide)
			g.apply("main")
			stop := g.start()
			uid := g.leads(nil)
			for range 2 {
				g.unchanged("netmaster has started", "main")
				g.apply("main")
			}
			g.written("applied again")
			standby := g.start()
			g.until("a standby", func() (bool, string) {
				data := at(g.get("/api/v1/namespaces/flowkeep-system/configmaps/netmaster-standbys"), "data")
				entries, _ := data.(map[string]any)
				return len(entries) == 2, fmt.Sprint(data) // the leader has an entry too
			})
			stop()
			uid = g.leads(uid)
			g.unchanged("the standby leads", "main")
			g.apply("v2")
			g.unchanged("a new version is applied", "v2")
			standby()
			g.start()
			g.leads(uid)
			g.unchanged("all netmasters have restarted", "v2")
			if g.byHelm {
				g.lifecycle()
			}
		})
	}
}

// lifecycle takes the release back to its first version, and removes it.
func (g *gitops) lifecycle() {
	g.Helper()
	g.must("", helm, "rollback", "flowkeep", "1", "--namespace", "flowkeep-system")
	g.unchanged("the release is rolled back", "main")
	g.must("", helm, "uninstall", "flowkeep", "--namespace", "flowkeep-system")
	docs := string(read(g.T, "../docs/install.md"))
	_, docs, _ = strings.Cut(docs, "\n## Uninstall")
	for _, left := range g.left() {
		if !strings.Contains(docs, "`"+left+"`") {
			g.Errorf("helm uninstall leaves %s, which docs/install.md does not name", left)
		}
	}
}

// left returns the objects that helm uninstall leaves, as "Kind name", without those of the API server itself.
func (g *gitops) left() (list []string) {
	g.Helper()
	var kinds []string
	for kind := range strings.FieldsSeq(g.must("", kubectl, "api-resources", "--verbs=list", "-o", "name")) {
		if !strings.HasPrefix(kind, "events") {
			kinds = append(kinds, kind)
		}
	}
	out := g.must("", kubectl, "get", "-A", "--ignore-not-found", "-o",
		`jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.namespace}{"\n"}{end}`, strings.Join(kinds, ","))
	for line := range strings.Lines(out) {
		cells := strings.Fields(line)
		ours := strings.Contains(line, "flowkeep") || len(cells) == 3 && cells[2] == "flowkeep-system"
		ofCRD := strings.HasPrefix(line, "APIService ") && !strings.Contains(line, "inspect")
		if ours && !ofCRD && !slices.Contains(list, cells[0]+" "+cells[1]) {
			list = append(list, cells[0]+" "+cells[1])
		}
	}
	if len(list) == 0 {
		g.Error("helm uninstall leaves nothing, not even the namespace")
	}
	return list
}
