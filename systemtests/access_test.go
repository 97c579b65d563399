package systemtests

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// kubeconfig writes one for somebody, with these credentials of a user entry, and gives its name.
func (w *world) kubeconfig(credentials string) string {
	w.Helper()
	text, err := w.Kubectl(w.ctx, "", "config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}")
	w.must(err)
	file := filepath.Join(w.TempDir(), "kubeconfig")
	w.must(os.WriteFile(file, fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: %q, certificate-authority: %s}}], users: [{name: u, user: {%s}}]}`, text, filepath.Join(w.Dir, "pki", "ca.crt"), credentials), 0o600))
	return file
}

// person has a certificate of the cluster's authority.
func (w *world) person(name string) (kubeconfig string) {
	w.Helper()
	file := filepath.Join(w.TempDir(), "person")
	script := `openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$2" -keyout "$3.key" -out "$3.csr" &&
		openssl x509 -req -in "$3.csr" -CA "$1/ca.crt" -CAkey "$1/ca.key" -CAserial "$3.srl" -CAcreateserial -days 1 -out "$3.crt"`
	if out, err := exec.CommandContext(w.ctx, "bash", "-c", script, "sign", filepath.Join(w.Dir, "pki"), name, file).CombinedOutput(); err != nil {
		w.Fatalf("%v: %s", err, out)
	}
	return w.kubeconfig(fmt.Sprintf("client-certificate: %s.crt, client-key: %s.key", file, file))
}

// robot is a ServiceAccount with a token.
func (w *world) robot(namespace, name string) (kubeconfig string) {
	w.Helper()
	_, err := w.Kubectl(w.ctx, "", "-n", namespace, "create", "serviceaccount", name)
	w.must(err)
	token, err := w.Kubectl(w.ctx, "", "-n", namespace, "create", "token", name)
	w.must(err)
	return w.kubeconfig("token: " + strings.TrimSpace(token))
}

// bind gives a role, and takes it away when the test ends.
func (w *world) bind(kind, name string, args ...string) {
	w.Helper()
	_, err := w.Kubectl(w.ctx, "", append([]string{"create", kind, name}, args...)...)
	w.must(err)
	w.Cleanup(func() { _, _ = w.Kubectl(w.ctx, "", "delete", kind, name, "--ignore-not-found") })
}

func (w *world) withRBAC() {
	w.Helper()
	w.whole("this sandbox lets everybody do everything")
}

// whole skips a test where the sandbox is a small one, which lacks what the test needs.
func (w *world) whole(otherwise string) {
	w.Helper()
	if args, err := os.ReadFile(filepath.Join(w.Dir, "args")); err != nil || strings.Contains(string(args), "--small") {
		w.Skipf("%s (%v)", otherwise, err)
	}
}

// With nothing but a kubeconfig, whoever has the role is answered, and nobody else.
func TestAccessByKubeconfig(t *testing.T) {
	w := setup(t)
	w.withRBAC()
	ns, other := w.namespace("shop", nil), w.namespace("other", nil)
	w.run(ns, "a@node1", "b@node2")
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	w.policy(other, "deny", `{podSelector: {}, policyTypes: [Ingress]}`)
	w.settles(w.way("a", "b", "tcp", 80, true, "a may"))
	jane, robot := w.person("jane-"+w.id), w.robot(ns, "robot")
	refused := func(kubeconfig, who string, args ...string) {
		t.Helper()
		if text, err := w.NetctlAs(w.ctx, kubeconfig, args...); err == nil || text != "" || !strings.Contains(err.Error(), who) || !strings.Contains(err.Error(), "--clusterrole=flowkeep-view") {
			t.Errorf("netctl %v for %s: %v\n%s", args, who, err, text)
		}
	}
	answered := func(kubeconfig, says string, args ...string) {
		t.Helper()
		if text, err := w.NetctlAs(w.ctx, kubeconfig, args...); err != nil || !strings.Contains(text, says) {
			t.Errorf("netctl %v: %v, no %q in\n%s", args, err, says, text)
		}
	}
	for _, args := range [][]string{{"status"}, {"explain", ns + "/a", ns + "/b:80"}, {"flows", "node1"}, {"policy", "wait", ns + "/b"}, {"policy", "wait", ns + "/b", "--timeout", "2m"}} {
		refused(jane, "jane-"+w.id, args...)
		refused(robot, "system:serviceaccount:"+ns+":robot", args...)
	}
	w.bind("clusterrolebinding", "jane-"+w.id, "--clusterrole=flowkeep-view", "--user=jane-"+w.id)
	w.must(cluster.Until(w.ctx, settling, func() error { _, err := w.NetctlAs(w.ctx, jane, "db"); return err }))
	answered(jane, "netmaster", "status")
	answered(jane, "allowed by "+ns+"/b ingress[0]", "explain", ns+"/a", ns+"/b:80")
	answered(jane, "table 43", "flows", "node2", "--policy", ns+"/b")
	answered(jane, "in force on 1 node", "policy", "wait", ns+"/b", "--timeout", "2m") // a watch
	refused(robot, "robot", "status")

	// Who may edit a namespace may wait for its policies, and for no others.
	w.bind("rolebinding", "robot-edits", "-n", ns, "--clusterrole=edit", "--serviceaccount="+ns+":robot")
	w.must(cluster.Until(w.ctx, settling, func() error { _, err := w.NetctlAs(w.ctx, robot, "policy", "wait", ns+"/b"); return err }))
	answered(robot, "in force on 1 node", "policy", "wait", ns+"/b", "--timeout", "2m")
	refused(robot, "robot", "policy", "wait", other+"/deny")
	refused(robot, "robot", "policy", "show", ns+"/b")
	answered("", "netmaster", "status", "--as", "jane-"+w.id)

	w.again("netmaster")
	w.must(w.Stop(w.ctx, "netmaster"))
	_, err := w.NetctlAs(w.ctx, jane, "status")
	w.must(w.Start(w.ctx, "netmaster"))
	if err == nil || !strings.Contains(err.Error(), "does not reach netmaster") {
		t.Errorf("without netmaster: %v", err)
	}
	w.must(cluster.Until(w.ctx, settling, func() error { _, err := w.NetctlAs(w.ctx, jane, "status"); return err }))
}

// Whoever is not the API server's front proxy may say what they like.
func TestForgedUsersAreRefused(t *testing.T) {
	w := setup(t)
	server, err := w.Kubectl(w.ctx, "", "config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}")
	w.must(err)
	at := strings.TrimSuffix(server, ":6443") + ":7444/apis/inspect.flowkeep.io/v1alpha1/status/answer"
	ask := func(cert string) (int, error) {
		conf := &tls.Config{InsecureSkipVerify: true}
		if cert != "" {
			pair, err := tls.LoadX509KeyPair(filepath.Join(w.Dir, cert+".crt"), filepath.Join(w.Dir, cert+".key"))
			w.must(err)
			conf.Certificates = []tls.Certificate{pair}
		}
		transport := &http.Transport{TLSClientConfig: conf}
		defer transport.CloseIdleConnections()
		r, err := http.NewRequestWithContext(w.ctx, http.MethodGet, at, nil)
		w.must(err)
		r.Header.Set("X-Remote-User", "admin")
		r.Header.Set("X-Remote-Group", "system:masters")
		resp, err := (&http.Client{Transport: transport, Timeout: cluster.Stretch(10 * time.Second)}).Do(r)
		if err != nil {
			return 0, err
		}
		resp.Body.Close()
		return resp.StatusCode, nil
	}
	if code, err := ask("pki/front-proxy-client"); code != http.StatusOK {
		t.Fatalf("the front proxy itself: %d, %v", code, err) // or what follows proves nothing
	}
	for _, cert := range []string{"", "pki/admin", "pki/apiserver", "pki/node1", "flowkeep/pki/admin", "flowkeep/pki/node1"} {
		if code, err := ask(cert); code == http.StatusOK || code != 0 && code != http.StatusUnauthorized {
			t.Errorf("with %q: %d, %v", cert, code, err)
		}
	}
}

var listening = regexp.MustCompile(`(?m)^\S+\s+\S+\s+\S+\s+\S+\s+(\S+)\s+\S+\s+(users:.*)$`)

// What netctl wants of a node comes by the connection that the node opened: nothing of Flowkeep's listens there to anybody else.
func TestNodesListenToNobody(t *testing.T) {
	w := setup(t)
	if _, err := w.NetctlAs(w.ctx, "", "flows", "node1"); err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{"node1", "node2"} {
		out, err := exec.CommandContext(w.ctx, "nsenter", "--net="+w.NodeNS(node), "--", "ss", "-Hltunp").Output()
		w.must(err)
		found := listening.FindAllStringSubmatch(string(out), -1)
		if !strings.Contains(string(out), "kubelet") || len(found) == 0 {
			t.Fatalf("%s: ss tells nothing:\n%s", node, out)
		}
		for _, f := range found {
			ours := strings.Contains(f[2], `"netplugin"`) || strings.Contains(f[2], `"ovs`) || strings.Contains(f[2], `"netmaster"`)
			if ours && !strings.HasPrefix(f[1], "127.0.0.1:") && !strings.HasPrefix(f[1], "[::1]:") {
				t.Errorf("%s: %s listens at %s", node, f[2], f[1])
			}
		}
	}
}
