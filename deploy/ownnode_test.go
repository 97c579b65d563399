package deploy

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/apitest"
	"github.com/flowkeep/flowkeep/internal/refusal"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// asker writes to an API server, as somebody.
type asker struct {
	*testing.T
	url    string
	client *http.Client
}

func (a *asker) send(method, path string, body any, as map[string]string) (code int, answer string) {
	a.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		a.Fatal(err)
	}
	req, err := http.NewRequestWithContext(a.Context(), method, a.url+path, bytes.NewReader(text))
	if err != nil {
		a.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer admin")
	req.Header.Set("Content-Type", map[string]string{http.MethodPatch: "application/merge-patch+json"}[method])
	if method != http.MethodPatch {
		req.Header.Set("Content-Type", "application/json")
	}
	for k, v := range as {
		req.Header.Set(k, v)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		a.Fatal(err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		a.Fatal(err)
	}
	return resp.StatusCode, string(out)
}

// until sends again until it succeeds: the API server takes kinds and policies up a moment after they were written.
func (a *asker) until(what string, done func() (bool, string)) {
	a.Helper()
	tick, end := time.NewTicker(50*time.Millisecond), time.After(time.Minute)
	defer tick.Stop()
	for {
		ok, why := done()
		if ok {
			return
		}
		select {
		case <-tick.C:
		case <-end:
			a.Fatalf("%s never happened: %s", what, why)
		}
	}
}

// agent is how a request looks that comes with the token of an agent's pod on a node; without one, with a token that is of no pod.
func agent(name, node string) map[string]string {
	as := map[string]string{"Impersonate-User": "system:serviceaccount:flowkeep-system:" + name, "Impersonate-Group": "system:masters"}
	if node != "" {
		as["Impersonate-Extra-authentication.kubernetes.io%2Fnode-name"] = node
	}
	return as
}

// An agent's token, which is good for the objects of all nodes by RBAC, writes that of its own node alone; administrators write all.
func TestAgentsWriteOfTheirOwnNode(t *testing.T) {
	a := &asker{t, apitest.New(t, "").URL, &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}}
	for _, file := range []string{"crds/nodenetworkstates.yaml", "crds/macvtapnodes.yaml"} {
		if code, text := a.send(http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", objects(t, file)[0], nil); code != http.StatusCreated {
			t.Fatalf("%s: %d %s", file, code, text)
		}
	}
	kinds := []struct{ agent, path, version, kind string }{
		{"node-state", "/apis/nmstate.io/v1/nodenetworkstates", "nmstate.io/v1", "NodeNetworkState"},
		{"macvtap", "/apis/macvtap.network.kubevirt.io/v1alpha1/macvtapnodes", "macvtap.network.kubevirt.io/v1alpha1", "MacvtapNode"},
	}
	made := func(version, kind, name string) map[string]any {
		o := map[string]any{"apiVersion": version, "kind": kind, "metadata": map[string]any{"name": name}}
		if kind == "NodeNetworkState" {
			o["spec"] = map[string]any{"nodeName": name}
		}
		return o
	}
	for _, k := range kinds { // as administrator, and so without any policy
		a.until("an object of "+k.kind, func() (bool, string) {
			code, text := a.send(http.MethodPost, k.path, made(k.version, k.kind, "node2"), nil)
			return code == http.StatusCreated, text
		})
	}
	for i, o := range objects(t, "own-node.yaml") {
		path := "/apis/admissionregistration.k8s.io/v1/" + []string{"validatingadmissionpolicies", "validatingadmissionpolicybindings"}[i]
		if code, text := a.send(http.MethodPost, path, o, nil); code != http.StatusCreated {
			t.Fatalf("%d %s", code, text)
		}
	}
	label := map[string]any{"metadata": map[string]any{"labels": map[string]any{"x": "y"}}}
	for _, k := range kinds {
		a.until("the refusal of another node's "+k.kind, func() (bool, string) {
			code, text := a.send(http.MethodPatch, k.path+"/node2", label, agent(k.agent, "node1"))
			return code == http.StatusForbidden && strings.Contains(text, "and no other"), fmt.Sprint(code, text)
		})
		for _, test := range []struct {
			what, method, path string
			body               any
			as                 map[string]string
			code               int
		}{
			{"makes its own", http.MethodPost, k.path, made(k.version, k.kind, "node1"), agent(k.agent, "node1"), http.StatusCreated},
			{"writes its own", http.MethodPatch, k.path + "/node1", label, agent(k.agent, "node1"), http.StatusOK},
			{"writes its own status", http.MethodPatch, k.path + "/node1/status", label, agent(k.agent, "node1"), http.StatusOK},
			{"makes another's", http.MethodPost, k.path, made(k.version, k.kind, "node3"), agent(k.agent, "node1"), http.StatusForbidden},
			{"writes another's status", http.MethodPatch, k.path + "/node2/status", label, agent(k.agent, "node1"), http.StatusForbidden},
			{"has a token of no pod", http.MethodPatch, k.path + "/node1", label, agent(k.agent, ""), http.StatusForbidden},
			{"is an administrator", http.MethodPatch, k.path + "/node2", label, nil, http.StatusOK},
			{"is node-config, which writes all", http.MethodPatch, k.path + "/node2", label, agent("node-config", "node1"), http.StatusOK},
		} {
			code, text := a.send(test.method, test.path, test.body, test.as)
			if code != test.code {
				t.Errorf("%s: who %s: %d, want %d: %s", k.kind, test.what, code, test.code, text)
			}
			if code == http.StatusForbidden {
				hinted(t, text, "--node-name must be")
			}
		}
	}
	as := agent("node-state", "node1")
	as["Impersonate-Group"] = "system:authenticated" // which no role allows anything
	if code, text := a.send(http.MethodPatch, kinds[0].path+"/node1", label, as); code != http.StatusForbidden {
		t.Errorf("without a role: %d %s", code, text)
	} else {
		hinted(t, text, "bind the role")
	}
}

// hinted: what an agent's log says of a refusal is what helps.
func hinted(t *testing.T, refused, want string) {
	t.Helper()
	status := new(apierrors.StatusError)
	if err := json.Unmarshal([]byte(refused), &status.ErrStatus); err != nil {
		t.Fatal(err)
	}
	if err := refusal.Explained(status, "bind the role"); !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want %q", err, want)
	}
}
