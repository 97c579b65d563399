package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// installed is an API server with Flowkeep in it, whose nodes do what pods say. It keeps what is there, by path.
type installed struct {
	mu       sync.Mutex
	there    map[string]bool
	nodes    []string
	pods     map[string]*corev1.Pod // in Flowkeep's namespace
	others   []corev1.Pod
	versions []string          // of CustomResourceDefinitions of nmstate.io
	fails    map[string]string // nodes whose cleaning fails, and with which words; empty words: they do not answer
	noted    map[string]string // for a run that goes on
	later    []corev1.Pod      // those that cleaned nodes without force
	ending   int               // how often the namespace is still there, once its pods are gone
	due      time.Time         // when a pod of Open vSwitch that is deleted should be gone
	wired    int               // how often a pod of Flowkeep's own still has the network; below zero: it never loses it
	broken   bool              // nodes cannot be listed
	stops    string            // the change at which what was begun is interrupted
	changes  []string          // in their order
}

func newInstalled(t *testing.T) (*bench, *installed) {
	t.Helper()
	b, s := newCluster(t, nil)
	i := &installed{there: map[string]bool{}, nodes: []string{"node1", "node2"}, pods: map[string]*corev1.Pod{}, fails: map[string]string{}, versions: []string{"v1"}}
	i.install()
	s.refuse = func(w http.ResponseWriter, r *http.Request) bool { i.serve(w, r); return true }
	return b, i
}

func (i *installed) install() {
	u := uninstall{crds: true}
	for _, path := range u.rest() {
		i.there[path] = true
	}
	for _, path := range []string{"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/flowkeep-what-if", "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.inspect.flowkeep.io",
		ownApps + "/daemonsets/netplugin", ownApps + "/deployments/netmaster", rbac + "/clusterrolebindings/jane-sees"} {
		i.there[path] = true
	}
}

// now changes or looks at what is there: a request that netctl has given up may still be answered.
func (i *installed) now(change func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change()
}

const noted = ownNamespace + "/configmaps/" + note

func (i *installed) serve(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	path := strings.TrimPrefix(r.URL.Path, "/behind/a/path")
	items := []any{}
	if r.Method != http.MethodGet && i.stops != "" && strings.HasPrefix(r.Method+" "+path, i.stops) {
		i.stops = ""
		_, _ = io.Copy(io.Discard, r.Body) // until then nobody notices that the client has gone
		_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
		<-r.Context().Done() // the request of what was interrupted
		return
	}
	switch {
	case r.Method == http.MethodDelete:
		i.changes = append(i.changes, "DELETE "+path)
		if name := filepath.Base(path); strings.HasPrefix(path, ownNamespace+"/pods/") && i.pods[name] != nil {
			delete(i.pods, name)
		} else if !i.there[path] {
			w.WriteHeader(http.StatusNotFound)
		}
		if path == ownApps+"/daemonsets/openvswitch" {
			for _, p := range i.pods {
				if p.Labels["app.kubernetes.io/name"] == "openvswitch" {
					p.DeletionTimestamp = &metav1.Time{Time: i.due}
				}
			}
		}
		if path == ownNamespace {
			maps.DeleteFunc(i.pods, func(_ string, p *corev1.Pod) bool { return p.Labels["app.kubernetes.io/name"] != "openvswitch" })
			maps.DeleteFunc(i.there, func(path string, _ bool) bool {
				return strings.HasPrefix(path, ownNamespace+"/") || strings.HasPrefix(path, ownApps+"/")
			})
		}
		if path != ownNamespace || i.ending == 0 {
			delete(i.there, path)
		}
		fmt.Fprint(w, "{}")
		return
	case r.Method == http.MethodPost && path == "/api/v1/namespaces":
		i.there[ownNamespace], i.ending = true, 2
		i.changes = slices.DeleteFunc(i.changes, func(c string) bool { return c == "DELETE "+ownNamespace })
		w.WriteHeader(http.StatusCreated)
		return
	case r.Method == http.MethodPost && strings.HasSuffix(path, "/configmaps"):
		m := new(corev1.ConfigMap)
		body, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(body, m); err != nil {
			panic(err)
		}
		i.there[path+"/"+m.Name], i.noted = true, m.Data
		w.WriteHeader(http.StatusCreated)
		return
	case r.Method == http.MethodPost:
		p := new(corev1.Pod)
		body, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(body, p); err != nil {
			panic(err)
		}
		i.changes = append(i.changes, "POST "+p.Spec.NodeName)
		if c := &p.Spec.Containers[0]; c.Image != "flowkeep/flowkeep:v1" || !p.Spec.HostNetwork {
			panic(fmt.Sprintf("%+v", p.Spec))
		} else if !slices.Contains(c.Command, "--force") {
			i.later = append(i.later, *p)
		}
		p.Status.Phase = corev1.PodSucceeded
		if why, bad := i.fails[p.Spec.NodeName]; bad {
			p.Status.Phase = corev1.PodPending
			if why != "" {
				p.Status.Phase = corev1.PodFailed
				p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: why}}}}
			}
		}
		i.pods[p.Name] = p
		w.WriteHeader(http.StatusCreated)
		return
	case path == ownApps+"/daemonsets/netplugin" && i.there[path]:
		fmt.Fprint(w, `{"spec": {"template": {"spec": {"containers": [{"name": "netplugin", "image": "flowkeep/flowkeep:v1"}],
			"volumes": [{"name": "cni-conf", "hostPath": {"path": "/k3s/net.d"}}, {"name": "openvswitch", "hostPath": {"path": "/run/openvswitch"}}]}}}}`)
		return
	case path == noted && i.there[path]:
		_ = json.NewEncoder(w).Encode(corev1.ConfigMap{Data: i.noted})
		return
	case strings.HasPrefix(path, registrations) && i.there[path]:
		d := map[string]any{"spec": map[string]any{"versions": []map[string]string{{"name": "v1alpha1"}}}}
		if strings.HasSuffix(path, ".nmstate.io") {
			var versions []map[string]string
			for _, v := range i.versions {
				versions = append(versions, map[string]string{"name": v})
			}
			d = map[string]any{"spec": map[string]any{"versions": versions}}
		}
		_ = json.NewEncoder(w).Encode(d)
		return
	case path == ownNamespace && i.there[path] && slices.Contains(i.changes, "DELETE "+path) && i.ending > 0:
		if len(i.pods) == 0 {
			i.ending--
		}
		if i.ending == 0 {
			delete(i.there, path)
		}
		fmt.Fprint(w, `{"metadata": {"deletionTimestamp": "2026-11-22T10:00:00Z"}}`)
		return
	case i.there[path]:
		fmt.Fprint(w, "{}")
		return
	case path == ownApps+"/daemonsets", path == ownApps+"/deployments":
		for have := range i.there {
			if filepath.Dir(have) == path {
				items = append(items, map[string]any{"metadata": map[string]any{"name": filepath.Base(have)}})
			}
		}
	case strings.HasPrefix(path, "/api/v1/nodes/") && slices.Contains(i.nodes, filepath.Base(path)), path == ownNamespace+"/serviceaccounts/default" && i.there[ownNamespace]:
		fmt.Fprint(w, "{}")
		return
	case path == "/api/v1/nodes" && i.broken:
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprint(w, `{"message": "no nodes today"}`)
		return
	case path == "/api/v1/nodes":
		for _, n := range i.nodes {
			items = append(items, map[string]any{"metadata": map[string]any{"name": n}})
		}
	case path == "/api/v1/pods":
		for _, p := range i.others {
			items = append(items, p)
		}
	case path == ownNamespace+"/pods":
		for _, p := range i.pods {
			items = append(items, p)
		}
		if i.wired != 0 {
			i.wired--
			items = append(items, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "memcached-1"}, Spec: corev1.PodSpec{NodeName: "node1"}, Status: corev1.PodStatus{PodIP: "10.244.1.7"}})
			if i.wired == 0 {
				i.changes = append(i.changes, "memcached-1 is gone")
			}
		}
	default:
		w.WriteHeader(http.StatusNotFound)
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"items": items})
}

func TestUninstall(t *testing.T) {
	b, i := newInstalled(t)
	i.ending = 3
	b.prints(0, "uninstall --yes --crds --wait 20s", "deleted deployments/netmaster", "deleted daemonsets/netplugin", "2 nodes are clean", "deleted daemonsets/openvswitch", "deleted namespaces/flowkeep-system",
		"Flowkeep is uninstalled\n")
	if len(i.there) != 1 || !i.there[rbac+"/clusterrolebindings/jane-sees"] {
		t.Errorf("left: %v", i.there)
	}
	at := func(change string) int { return slices.Index(i.changes, change) }
	if order := []int{at("DELETE " + ownApps + "/daemonsets/netplugin"), at("POST node1"), at("DELETE " + ownApps + "/daemonsets/openvswitch"), at("DELETE " + ownNamespace)}; !slices.IsSorted(order) || order[0] < 0 {
		t.Errorf("%v of %v", order, i.changes)
	}
	b.prints(0, "uninstall --crds", "nothing of Flowkeep's is in the cluster\n") // again; it need not ask
}

// A namespace that does not go is no end of it.
func TestUninstallWaitsUntilItIsGone(t *testing.T) {
	b, i := newInstalled(t)
	i.ending = 1 << 20
	b.prints(1, "uninstall --yes --wait 2s", "2 nodes are clean", "deleted, but not gone within 2s: namespaces/flowkeep-system")
	i.now(func() { i.changes, i.ending = i.changes[len(i.changes)-1:], 2 })
	b.prints(0, "uninstall --yes --wait 20s", "Flowkeep is uninstalled, but for 7 CustomResourceDefinitions (--crds)\n")
	if slices.Contains(i.changes, "POST node1") {
		t.Errorf("nodes were cleaned again: %v", i.changes)
	}
	b.prints(0, "uninstall --yes", "nothing of Flowkeep's is in the cluster, but for 7 CustomResourceDefinitions (--crds)\n")
	b.prints(0, "uninstall --yes --crds", "is gone already, so nodes are not looked at", "Flowkeep is uninstalled\n")
}

// CustomResourceDefinitions of these names that are another project's stay.
func TestUninstallLeavesOthersDefinitions(t *testing.T) {
	b, i := newInstalled(t)
	i.versions = []string{"v1beta1", "v1"}
	b.prints(0, "uninstall --yes --crds --wait 20s", "nodenetworkstates.nmstate.io stays: with the versions v1beta1, v1 it is not Flowkeep's")
	for _, name := range []string{"nodenetworkstates.nmstate.io", "nodenetworkconfigurationpolicies.nmstate.io"} {
		if !i.there[registrations+name] {
			t.Errorf("%s is gone", name)
		}
	}
	if i.there[registrations+"networkpolicysets.fleet.flowkeep.io"] {
		t.Error("Flowkeep's own stay too")
	}
}

// While pods have their network from Flowkeep nothing is changed, unless it is forced.
func TestUninstallWithPods(t *testing.T) {
	b, i := newInstalled(t)
	pod := func(namespace, name string, change func(*corev1.Pod)) {
		p := corev1.Pod{Spec: corev1.PodSpec{NodeName: "node1"}, Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.244.1.7"}}
		p.Namespace, p.Name = namespace, name
		if change != nil {
			change(&p)
		}
		i.others = append(i.others, p)
	}
	pod("kube-system", "proxy", func(p *corev1.Pod) { p.Spec.HostNetwork = true })
	pod("flowkeep-system", "memcached", nil)
	pod("shop", "job", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	pod("shop", "waits", func(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodPending} })
	others := len(i.others)
	pod("shop", "web", nil)
	b.prints(1, "uninstall --yes", "not uninstalled, as 1 pod would lose the network: shop/web on node1; remove them first, or use --force")
	pod("shop", "api", nil)
	pod("shop", "db", nil)
	pod("shop", "cache", nil)
	b.prints(1, "uninstall --yes", "as 4 pods would lose the network: shop/web on node1, shop/api on node1, shop/db on node1, and 1 more; remove")
	if len(i.changes) > 0 || i.there[noted] {
		t.Errorf("changed: %v", i.changes)
	}
	all := i.others
	i.others = i.others[:others]
	i.fails["node1"] = "no space"
	b.prints(1, "uninstall --yes --wait 2s", "not clean: node1 (no space)")
	i.now(func() { delete(i.fails, "node1") })
	i.others = all // on the way there is nothing more to lose
	b.prints(0, "uninstall --yes --wait 20s", "Flowkeep is uninstalled")
	i.install()
	b.prints(0, "uninstall --yes --force --wait 20s", "Flowkeep is uninstalled")
}

// Flowkeep's own pods lose the network while there is still netplugin to take their links away: without it they would never go, nor would the namespace.
func TestUninstallWithPodsOfItsOwn(t *testing.T) {
	b, i := newInstalled(t)
	i.wired = 3
	b.prints(0, "uninstall --yes --wait 20s", "Flowkeep is uninstalled")
	at := func(change string) int { return slices.Index(i.changes, change) }
	if order := []int{at("DELETE " + ownApps + "/deployments/netmaster"), at("memcached-1 is gone"), at("DELETE " + ownApps + "/daemonsets/netplugin")}; !slices.IsSorted(order) || order[0] < 0 {
		t.Errorf("%v of %v", order, i.changes)
	}
	i.install()
	i.now(func() { i.wired, i.changes = -1, nil })
	b.prints(1, "uninstall --yes --wait 1s", "deleted, but not gone within 1s: pods memcached-1 on node1; run it again when their nodes are back, or with --leave-nodes")
	if at("DELETE "+ownApps+"/daemonsets/netplugin") >= 0 {
		t.Errorf("without netplugin they stay: %v", i.changes)
	}
	b.prints(0, "uninstall --yes --wait 1s --leave-nodes", "Flowkeep is uninstalled")
}

// Interrupted at whichever change it goes on from there, and cleans the nodes all the same.
func TestUninstallInterrupted(t *testing.T) {
	for _, at := range []string{"POST " + ownNamespace + "/configmaps", "DELETE " + ownApps + "/daemonsets/netplugin", "DELETE " + ownApps + "/deployments/netmaster", "POST " + ownNamespace + "/pods",
		"DELETE " + ownApps + "/daemonsets/openvswitch", "DELETE " + rbac + "/clusterroles/flowkeep-admin", "DELETE " + ownNamespace} {
		t.Run(at, func(t *testing.T) {
			b, i := newInstalled(t)
			i.now(func() { i.stops = at })
			b.prints(1, "uninstall --yes --crds --wait 20s", "interrupted: run it again to go on")
			b.prints(0, "uninstall --yes --crds --wait 20s", "Flowkeep is uninstalled")
			if len(i.there) != 1 || !slices.Contains(i.changes, "POST node1") || !slices.Contains(i.changes, "POST node2") {
				t.Errorf("left: %v; changes: %v", i.there, i.changes)
			}
		})
	}
}

// A node that cannot be cleaned is named, and what could clean it stays until it is, or is left.
func TestUninstallWithNodesThatAreNot(t *testing.T) {
	b, i := newInstalled(t)
	i.fails["node2"] = ""
	i.fails["node1"] = "bridge fk0 is still there"
	b.prints(1, "uninstall --yes --state --wait 2s", "not clean within 2s: node1 (bridge fk0 is still there); node2 (Pending)")
	i.now(func() {
		if !i.there[ownApps+"/daemonsets/openvswitch"] || !i.there[ownNamespace] || i.there[ownApps+"/daemonsets/netplugin"] {
			t.Errorf("left: %v", i.there)
		}
		delete(i.fails, "node1")
	})
	b.prints(1, "uninstall --yes --state --wait 2s", "not clean within 2s: node2 (Pending)") // it finds the image again, and tries the one that had failed
	for _, node := range []string{"node1", "node2"} {                                        // their kubelets end nothing
		p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}}
		p.Name, p.Labels = "openvswitch-"+node, map[string]string{"app.kubernetes.io/name": "openvswitch"}
		i.now(func() { i.pods[p.Name], i.ending, i.due = p, 1, time.Now().Add(time.Hour) })
	}
	b.prints(1, "uninstall --yes --state --wait 2s --leave-nodes", "going on without: not clean within 2s: node2 (Pending)", "deleted namespaces/flowkeep-system", "deleted, but not gone within 2s")
	i.now(func() {
		if i.pods["openvswitch-node2"] != nil {
			t.Error("the pod of a node that is left is waited for")
		}
		if i.pods["openvswitch-node1"] == nil {
			t.Fatal("the pod of a node that is there is not waited for")
		}
		i.pods["openvswitch-node1"].DeletionTimestamp = &metav1.Time{Time: time.Now().Add(-time.Second)}
	})
	b.prints(1, "uninstall --yes --wait 2s", "deleted, but not gone within 2s") // it may be a moment late
	b.prints(0, "uninstall --yes --wait 2s --leave-nodes", "Flowkeep is uninstalled")
	for path := range i.there {
		if !strings.Contains(path, "customresourcedefinitions") && !strings.HasSuffix(path, "jane-sees") {
			t.Errorf("left: %s", path)
		}
	}
}

// A node that was left is cleaned when it is back, as the run that left it said: by what is installed no more, and where the installation had things.
func TestUninstallOfNodesThatWereLeft(t *testing.T) {
	b, i := newInstalled(t)
	i.fails["node2"] = ""
	b.prints(1, "uninstall --yes --nodes node2", "leave --nodes out")
	const again = "netctl uninstall --nodes node2 --image flowkeep/flowkeep:v1 --state --cni-conf-dir /k3s/net.d"
	b.prints(0, "uninstall --yes --state --wait 2s --leave-nodes", "going on without: not clean within 2s: node2 (Pending)", "Flowkeep is uninstalled", "as they were: node2; when back: "+again+"\n")
	b.prints(1, "uninstall --yes --nodes node3 --image x", "there is no node node3")
	b.prints(1, "uninstall --yes --nodes node2", "give --image")
	b.prints(1, "uninstall --nodes node2 --image x", "not uninstalled")
	i.now(func() {
		if i.there[ownNamespace] || len(i.later) > 0 {
			t.Errorf("changed: %v", i.changes)
		}
	})
	b.prints(1, strings.TrimPrefix(again, "netctl ")+" --yes --wait 2s", "not clean within 2s: node2 (Pending)")
	i.now(func() { delete(i.fails, "node2") })
	b.prints(0, "uninstall --nodes node2 --yes --state --wait 20s", "1 node is clean", "deleted namespaces/flowkeep-system") // a run before noted what it was told
	if i.there[ownNamespace] || len(i.later) != 2 {
		t.Fatalf("left: %v; pods: %v", i.there, i.later)
	}
	for _, p := range i.later {
		c := &p.Spec.Containers[0]
		mounted := func(dir string) bool {
			return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == dir })
		}
		if p.Spec.NodeName != "node2" || p.Spec.RestartPolicy != corev1.RestartPolicyOnFailure || !slices.Contains(c.Command, "--state") || !slices.Contains(c.Command, "--cni-conf-dir=/k3s/net.d") ||
			!slices.Contains(c.Command, "--cni-bin-dir=/opt/cni/bin") || !mounted("/k3s/net.d") || !mounted("/opt/cni/bin") || mounted("/etc/cni/net.d") || mounted("/run/openvswitch") {
			t.Errorf("%+v", p.Spec)
		}
	}
	b.prints(0, "uninstall --yes --crds --wait 20s", "Flowkeep is uninstalled")
}

// An API server that is away for a moment is no reason to leave nodes.
func TestUninstallWithAnAPIServerThatFails(t *testing.T) {
	b, i := newInstalled(t)
	i.fails["node2"] = "no space"
	b.prints(1, "uninstall --yes --wait 20s", "not clean: node2 (no space)")
	i.now(func() { i.changes, i.broken = nil, true })
	b.prints(1, "uninstall --yes --wait 20s --leave-nodes", "no nodes today")
	i.now(func() {
		if len(i.changes) > 0 || !i.there[ownNamespace] {
			t.Errorf("it went on: %v", i.changes)
		}
	})
}

// After an installation that followed an uninstall that stopped, nodes are not taken for clean because they once were.
func TestUninstallOfASecondInstallation(t *testing.T) {
	b, i := newInstalled(t)
	i.fails["node2"] = "no space"
	b.prints(1, "uninstall --yes --wait 20s", "not clean: node2 (no space)")
	i.now(func() {
		i.install()
		delete(i.fails, "node2")
		i.fails["node1"] = "it is back"
	})
	b.prints(1, "uninstall --yes --wait 20s", "not clean: node1 (it is back)")
}

// Without the DaemonSet nobody knows how nodes are cleaned; they are not left without a word.
func TestUninstallWithoutAnImage(t *testing.T) {
	b, i := newInstalled(t)
	delete(i.there, ownApps+"/daemonsets/netplugin")
	b.prints(1, "uninstall --yes", "give --image, or --leave-nodes")
	if len(i.changes) > 0 {
		t.Errorf("changed: %v", i.changes)
	}
	b.prints(0, "uninstall --yes --wait 20s --image flowkeep/flowkeep:v1", "2 nodes are clean", "Flowkeep is uninstalled")
	i.install()
	delete(i.there, ownApps+"/daemonsets/netplugin")
	b.prints(0, "uninstall --yes --wait 20s --leave-nodes", "going on without: no image to clean nodes with", "Flowkeep is uninstalled")
}

// Where waiting helps nobody it does not wait.
func TestUninstallWhereAllFail(t *testing.T) {
	b, i := newInstalled(t)
	i.nodes, i.fails["node1"] = i.nodes[:1], "no space"
	b.prints(1, "uninstall --yes --wait 30s", "not clean: node1 (no space)")
}

func TestUninstallAsks(t *testing.T) {
	b, i := newInstalled(t)
	b.prints(1, "uninstall", "not uninstalled")
	if len(i.changes) > 0 {
		t.Error(i.changes)
	}
	b.prints(2, "uninstall --yes --server 127.0.0.1:1", "asks netmaster itself")
}

// What is removed by name is what deploy/ and the chart have, and nothing else.
func TestUninstallKnowsAllThatIsInstalled(t *testing.T) {
	kinds := map[string][]string{}
	for _, pattern := range []string{"../deploy/flowkeep.yaml", "../deploy/roles.yaml", "../deploy/own-node.yaml", "../deploy/chart/templates/*.yaml"} {
		files, _ := filepath.Glob(pattern)
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, called := range regexp.MustCompile(`include "flowkeep.clusterBinding".* "role" "([\w-]+)"`).FindAllStringSubmatch(string(text), -1) {
				kinds["ClusterRoleBinding"] = append(kinds["ClusterRoleBinding"], called[1])
			}
			for _, document := range strings.Split(string(text), "\n---") {
				kind := regexp.MustCompile(`(?m)^kind: (\w+)`).FindStringSubmatch(document)
				named := regexp.MustCompile(`(?m)^(?:metadata: \{|  )name: ([\w-]+)(?:, namespace: ([\w-]+))?`).FindStringSubmatch(document)
				if kind != nil && named != nil {
					key := kind[1]
					if named[2] == "kube-system" {
						key += " in kube-system"
					}
					kinds[key] = append(kinds[key], named[1])
				}
			}
		}
	}
	for kind, want := range map[string][]string{"ClusterRole": ownClusterRoles, "ClusterRoleBinding": ownBindings, "Role in kube-system": ownSystemRoles, "ValidatingAdmissionPolicy": ownAdmission, "ValidatingAdmissionPolicyBinding": ownAdmission} {
		have := kinds[kind]
		slices.Sort(have)
		have, want = slices.Compact(have), slices.Sorted(slices.Values(want))
		if !slices.Equal(have, want) {
			t.Errorf("%s: deploy has\n%v, and uninstall removes\n%v", kind, have, want)
		}
	}
}
