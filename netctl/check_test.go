package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/netctl/check"
	corev1 "k8s.io/api/core/v1"
)

// checkedCluster is an API server with nodes whose pods run what netctl check runs in them: clients print whether the
// policies permit their connections. It keeps objects by path.
type checkedCluster struct {
	mu      sync.Mutex
	objects map[string]map[string]any
	nodes   []string
	noDNS   bool
	// leaks are clients whose connections no policy terminates, broken the addresses that no client reaches.
	leaks, broken []string
	// interrupts is the request at which netctl is interrupted.
	interrupts string
	// waiting is why containers do not start.
	waiting string
	silent  bool // logs cannot be read
	seen    []string
}

func newChecked(t *testing.T) (*bench, *checkedCluster) {
	t.Helper()
	b, s := newCluster(t, nil)
	c := &checkedCluster{objects: map[string]map[string]any{}, nodes: []string{"node1", "node2"}}
	s.refuse = func(w http.ResponseWriter, r *http.Request) bool { c.serve(w, r); return true }
	return b, c
}

func (c *checkedCluster) serve(w http.ResponseWriter, r *http.Request) {
	at := strings.TrimPrefix(r.URL.Path, "/behind/a/path")
	c.mu.Lock()
	c.seen = append(c.seen, r.Method+" "+at)
	if c.interrupts != "" && strings.HasPrefix(r.Method+" "+path.Base(at), c.interrupts) {
		c.interrupts = ""
		c.mu.Unlock()
		_, _ = io.Copy(io.Discard, r.Body) // until then the server does not notice that the client has gone
		_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
		<-r.Context().Done()
		return
	}
	if strings.HasSuffix(at, "/log") {
		c.mu.Unlock()
		c.log(w, r, at)
		return
	}
	defer c.mu.Unlock()
	switch r.Method {
	case http.MethodPost:
		c.create(w, r, at)
	case http.MethodDelete:
		for name := range c.objects {
			in := "/namespaces/" + path.Base(at) + "/"
			if name == at || strings.HasPrefix(name, at+"/") || strings.Contains(name, in) {
				delete(c.objects, name)
			}
		}
		fmt.Fprint(w, "{}")
	default:
		c.get(w, r, at)
	}
}

// create completes objects as controllers and nodes do.
func (c *checkedCluster) create(w http.ResponseWriter, r *http.Request, at string) {
	var o map[string]any
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		panic(err)
	}
	name := o["metadata"].(map[string]any)["name"].(string)
	switch path.Base(at) {
	case "services":
		o["spec"].(map[string]any)["clusterIPs"] = []string{"10.96.0.9", "fd96::9"}
	case "pods":
		n := map[string]int{check.Near: 1, check.Far: 2, check.Friend: 3, check.Stranger: 4}[name]
		o["status"] = map[string]any{
			"phase":  "Running",
			"podIPs": []map[string]string{{"ip": fmt.Sprintf("10.244.0.%d", n)}, {"ip": fmt.Sprintf("fd00::%d", n)}},
		}
		if c.waiting != "" {
			state := map[string]any{"waiting": map[string]string{"reason": c.waiting, "message": "no such image"}}
			o["status"] = map[string]any{"phase": "Pending", "containerStatuses": []any{map[string]any{"state": state}}}
		}
	}
	c.objects[at+"/"+name] = o
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, "{}")
}

func (c *checkedCluster) get(w http.ResponseWriter, r *http.Request, at string) {
	var o any
	switch {
	case at == "/api/v1/nodes":
		items := []any{}
		for _, name := range c.nodes {
			ready := map[string]any{"conditions": []map[string]string{{"type": "Ready", "status": "True"}}}
			items = append(items, map[string]any{"metadata": map[string]string{"name": name}, "status": ready})
		}
		o = map[string]any{"items": items}
	case strings.HasSuffix(at, "/endpointslices"):
		slice := map[string]any{
			"endpoints": []any{map[string]any{"addresses": []string{"192.0.2.10"}}},
			"ports":     []any{map[string]int{"port": 6443}},
		}
		o = map[string]any{"items": []any{slice}}
	case at == "/api/v1/namespaces/kube-system/services" && r.URL.Query().Get("labelSelector") == "k8s-app=kube-dns":
		items := []any{}
		if !c.noDNS {
			items = append(items, map[string]any{})
		}
		o = map[string]any{"items": items}
	case at == ownApps+"/daemonsets/netplugin":
		o = map[string]any{"spec": map[string]any{"template": map[string]any{"spec": corev1.PodSpec{
			Containers: []corev1.Container{{Name: "netplugin", Image: "flowkeep/flowkeep:v1"}},
		}}}}
	case strings.HasSuffix(at, "/serviceaccounts/default"):
		o = map[string]any{}
	default:
		var ok bool
		if o, ok = c.objects[at]; !ok {
			w.WriteHeader(http.StatusNotFound)
			o = map[string]any{"kind": "Status", "message": "there is no " + at}
		}
	}
	_ = json.NewEncoder(w).Encode(o)
}

// log is that of a client, which follows the policies until netctl has gone.
func (c *checkedCluster) log(w http.ResponseWriter, r *http.Request, at string) {
	if c.silent {
		w.WriteHeader(http.StatusBadGateway)
		fmt.Fprint(w, `{"kind": "Status", "message": "dial tcp 192.0.2.11:10250: no route to host"}`)
		return
	}
	pod := strings.TrimSuffix(at, "/log")
	c.mu.Lock()
	spec := c.objects[pod]["spec"].(map[string]any)
	c.mu.Unlock()
	command := spec["containers"].([]any)[0].(map[string]any)["command"].([]any)
	var probes []check.Probe
	if err := json.Unmarshal([]byte(command[3].(string)), &probes); err != nil {
		panic(err)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for number := 1; ; {
		for _, p := range probes {
			open := c.permits(path.Base(pod), path.Dir(path.Dir(pod)), p.Address)
			e := check.Event{Number: number, Probe: p, Open: open, Error: "i/o timeout"}
			_ = json.NewEncoder(w).Encode(e)
			number++
		}
		w.(http.Flusher).Flush()
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
	}
}

func (c *checkedCluster) permits(client, namespace, address string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	policies := "/apis/networking.k8s.io/v1" + strings.TrimPrefix(namespace, "/api/v1") + "/networkpolicies/"
	_, ingress := c.objects[policies+"servers"]
	_, egress := c.objects[policies+"stranger"]
	denied := client == check.Stranger && (egress || ingress && !strings.HasSuffix(address, ":8081"))
	return !slices.Contains(c.broken, address) && (!denied || slices.Contains(c.leaks, client))
}

// left are the objects that netctl has not removed.
func (c *checkedCluster) left() (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.objects {
		names = append(names, name)
	}
	return names
}

// TestCheck_AllIsWell: each check is ok or skipped with its reason, and nothing is left.
func TestCheck_AllIsWell(t *testing.T) {
	b, c := newChecked(t)
	c.noDNS = true
	b.prints(0, "check", "RESULT", "pod to pod, across nodes", "stranger", "192.0.2.10:6443",
		"no Service with the label k8s-app=kube-dns", "time to force", "checks are ok, 0 failed, 1 skipped")
	out, errOut, code := b.run("check", "-o", "json")
	var r check.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v: %s", code, err, errOut)
	}
	for i := range r.Rows {
		if row := &r.Rows[i]; row.Check == "time to force" && (row.Seconds == nil || *row.Seconds > 5) {
			t.Errorf("%+v", row)
		}
	}
	nodes := strings.Join(r.Nodes, " ")
	if r.Failed != 0 || r.Skipped != 1 || r.Image != "flowkeep/flowkeep:v1" || nodes != "node1 node2" {
		t.Errorf("%+v", r)
	}
	for _, progress := range []string{"starting pod far on node2", "removing namespace flowkeep-check-"} {
		if !strings.Contains(errOut, progress) {
			t.Errorf("no %q in the progress: %s", progress, errOut)
		}
	}
	if left := c.left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestCheck_OneNode: what needs two is skipped.
func TestCheck_OneNode(t *testing.T) {
	b, c := newChecked(t)
	c.nodes = c.nodes[:1]
	b.prints(0, "check", "there is one node that takes pods", "0 failed")
}

// TestCheck_NamesTheFailure: the row of what does not work fails, others do not, and the namespace is removed.
func TestCheck_NamesTheFailure(t *testing.T) {
	for _, test := range []struct {
		name          string
		leaks, broken []string
		failed        string
	}{
		{"missing route", nil, []string{"10.244.0.2:8080"}, "pod to pod, across nodes"},
		{"no policy", []string{check.Stranger}, nil, "time to force"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b, c := newChecked(t)
			c.leaks, c.broken = test.leaks, test.broken
			out, errOut, code := b.run("check", "-o", "json", "--limit", "300ms")
			var r check.Report
			if err := json.Unmarshal([]byte(out), &r); err != nil {
				t.Fatalf("%v: %s", err, errOut)
			}
			failed := map[string]bool{}
			for i := range r.Rows {
				if r.Rows[i].Verdict == check.Failed {
					failed[r.Rows[i].Check] = true
				}
			}
			if code != exitResult || !failed[test.failed] || !strings.Contains(errOut, "checks failed: see above") {
				t.Errorf("exit code %d, failed %v: %s", code, failed, errOut)
			}
			if test.name == "missing route" && failed["pod to pod, one node"] {
				t.Errorf("failed %v", failed)
			}
			if left := c.left(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestCheck_CleansUp after errors and interrupts, which have the exit code of a failure.
func TestCheck_CleansUp(t *testing.T) {
	for _, test := range []struct {
		name, interrupts, waiting string
		silent                    bool
		said                      string
	}{
		{"interrupted while it creates a Service", "POST services", "", false, "interrupted"},
		{"interrupted while it waits for pods", "GET far", "", false, "interrupted"},
		{"interrupted while it writes a policy", "POST networkpolicies", "", false, "interrupted"},
		{"no image", "", "ImagePullBackOff", false, "near on node1 does not start: ImagePullBackOff: no such image"},
		{"no logs", "", "", true, "friend has no results: the API server answers \"502 Bad Gateway\": dial tcp"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b, c := newChecked(t)
			c.interrupts, c.waiting, c.silent = test.interrupts, test.waiting, test.silent
			_, errOut, code := b.run("check", "--limit", "300ms", "--timeout", "2s")
			if code != exitTrouble || !strings.Contains(errOut, test.said) {
				t.Errorf("exit code %d: %s", code, errOut)
			}
			if left := c.left(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestCheck_PodsHaveLeastPrivileges: what the pods run is not root, has no capabilities and no token.
func TestCheck_PodsHaveLeastPrivileges(t *testing.T) {
	pod := check.Server("near", "node1", "image")
	of := pod.Spec.Containers[0].SecurityContext
	if !*pod.Spec.SecurityContext.RunAsNonRoot || *pod.Spec.AutomountServiceAccountToken ||
		*of.AllowPrivilegeEscalation || !*of.ReadOnlyRootFilesystem ||
		!slices.Equal(of.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("%+v %+v", pod.Spec, of)
	}
	if check.Namespace("x").Labels["pod-security.kubernetes.io/enforce"] != "restricted" {
		t.Error("the namespace does not enforce it")
	}
}

// TestCheck_Usage refuses what makes no sense.
func TestCheck_Usage(t *testing.T) {
	b, _ := newChecked(t)
	b.prints(exitUsage, "check --nodes a,b,c", "give one or two")
	b.prints(exitUsage, "check --outside 192.0.2.1", "write HOST:PORT")
	b.prints(exitUsage, "check pods", `has no command "pods"`)
	b.prints(exitUnreachable, "check --context nowhere", "127.0.0.1:1")
}
