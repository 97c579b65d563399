package kube

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/apitest"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/internal/testkit/slow"
	"github.com/flowkeep/flowkeep/nodestate"
	v1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/native"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// shared is one API server for the tests of this package, with the CRDs, the role of agents, and the garbage collector of
// Kubernetes.
var shared struct {
	sync.Once
	*apitest.Server
	err error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.Server != nil {
		shared.Stop()
	}
	os.Exit(code)
}

// cluster is the real API server, and one node.
type cluster struct {
	*testing.T
	*Client // of an administrator
}

func config(token string) *rest.Config {
	insecure := rest.TLSClientConfig{Insecure: true}
	return &rest.Config{Host: shared.URL, BearerToken: token, QPS: 1000, Burst: 1000, TLSClientConfig: insecure}
}

func newCluster(t *testing.T, node string) *cluster {
	t.Helper()
	if why := apitest.Missing(); why != "" {
		t.Skip(why)
	}
	begins := false
	shared.Do(func() {
		begins = true
		shared.Server, shared.err = apitest.Start("admin,admin,1,system:masters\nagent,agent,2\n")
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	admin, err := New(config("admin"), node)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(admin.Close)
	c := &cluster{t, admin}
	if begins {
		c.prepare()
	}
	t.Cleanup(c.remove)
	return c
}

// remove deletes the Node and its object after the test, so that the test can run again.
func (c *cluster) remove() {
	ctx := context.WithoutCancel(c.Context())
	for _, err := range []error{
		c.nodes.Delete(ctx, c.node, metav1.DeleteOptions{}),
		c.states.Delete().Resource(v1.ResourceState).Name(c.node).Do(ctx).Error(),
	} {
		if err != nil && !apierrors.IsNotFound(err) {
			c.Error(err)
		}
	}
}

// prepare has the API server know what a cluster with Flowkeep knows.
func (c *cluster) prepare() {
	c.Helper()
	for _, name := range []string{"nodenetworkstates", "nodenetworkconfigurationpolicies"} {
		c.must(c.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", c.file("crds/"+name+".yaml")))
	}
	for _, document := range strings.Split(c.file("roles.yaml"), "\n---\n") {
		if strings.Contains(document, "metadata: {name: flowkeep-node-state}") {
			c.must(c.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", document))
		}
	}
	c.must(c.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: agent}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: flowkeep-node-state}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: agent}]`))
	c.until("the API server has the kinds", func() (bool, any) {
		_, err := c.get(c.Context())
		return err == nil, err
	})
	c.must(shared.StartControllers("admin", "garbage-collector-controller"))
}

func (c *cluster) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) file(name string) string {
	c.Helper()
	text, err := os.ReadFile("../../deploy/" + name)
	c.must(err)
	return string(text)
}

// post creates an object. Parameters are a key and its value.
func (c *cluster) post(path, yaml string, parameters ...string) error {
	request := c.states.Post().AbsPath(path).SetHeader("Content-Type", "application/yaml").Body([]byte(yaml))
	for i := 0; i < len(parameters); i += 2 {
		request.Param(parameters[i], parameters[i+1])
	}
	return request.Do(c.Context()).Error()
}

// until waits for a condition; seen is for the message.
func (c *cluster) until(what string, is func() (ok bool, seen any)) {
	c.Helper()
	tick, end := time.NewTicker(50*time.Millisecond), time.After(slow.Stretch(time.Minute))
	defer tick.Stop()
	for {
		ok, seen := is()
		if ok {
			return
		}
		select {
		case <-tick.C:
		case <-end:
			c.Fatalf("%s: not so: %+v", what, seen)
		}
	}
}

// makeNode creates the Node, in a second in which no other object was made, and returns its UID.
func (c *cluster) makeNode() string {
	c.Helper()
	second := time.Now().Unix()
	c.until("another second", func() (bool, any) { return time.Now().Unix() > second, nil })
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.node}}
	n, err := c.nodes.Create(c.Context(), n, metav1.CreateOptions{})
	c.must(err)
	return string(n.UID)
}

// deleteNode deletes the Node, and waits until it is gone.
func (c *cluster) deleteNode(policy metav1.DeletionPropagation) {
	c.Helper()
	c.must(c.nodes.Delete(c.Context(), c.node, metav1.DeleteOptions{PropagationPolicy: &policy}))
	c.until("the Node is gone", func() (bool, any) {
		_, err := c.nodes.Get(c.Context(), c.node, metav1.GetOptions{})
		return apierrors.IsNotFound(err), err
	})
}

// patch changes the node's object.
func (c *cluster) patch(text string) {
	c.Helper()
	request := c.states.Patch(types.MergePatchType).Resource(v1.ResourceState).Name(c.node)
	c.must(request.Body([]byte(text)).Do(c.Context()).Error())
}

// becomes waits until the node's object goes with a Node and its condition has a reason, and returns the condition's
// message.
func (c *cluster) becomes(owner, reason string) (message string) {
	c.Helper()
	c.until("the object goes with "+owner+" and is "+reason, func() (bool, any) {
		o, err := c.get(c.Context())
		if err != nil || o == nil {
			return false, err
		}
		is := meta.FindStatusCondition(o.Status.Conditions, v1.ConditionInSync)
		if is == nil || o.Status.ObservedGeneration != o.Generation {
			return false, o.Status
		}
		message = is.Message
		return ownerOf(o) == owner && is.Reason == reason, o
	})
	return message
}

// agent is one that runs on the node.
type agent struct {
	*native.Backend
	process.Health
	reads atomic.Int32 // how often it has read the node's network
	stop  func()
}

// Show counts.
func (a *agent) Show(ctx context.Context) (nmstate.State, error) {
	a.reads.Add(1)
	return a.Backend.Show(ctx)
}

// agent starts the node's agent in a network namespace, with the rights of agents.
func (c *cluster) agent(ns *netns.Namespace) *agent {
	c.Helper()
	client, err := New(config("agent"), c.node)
	c.must(err)
	journal, err := nodestate.OpenJournal(c.TempDir())
	c.must(err)
	moved, log := make(chan struct{}, 1), slog.New(slog.DiscardHandler)
	a := &agent{Backend: native.New(native.Config{Bridge: "fk0"})}
	cfg := nodestate.Config{
		Backends: []nodestate.Backend{a}, Objects: client, Changed: client.Changed(), Moved: moved, Journal: journal,
		Destinations: new(nodestate.Destinations), Boot: "boot", Poll: time.Hour, Revert: time.Minute, Bridge: "fk0",
		Log: log, Health: &a.Health, Metrics: nodestate.NewMetrics(prometheus.NewRegistry()),
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { client.Watch(ctx) })
	all.Go(func() {
		ns.Do(func() { _ = nodestate.Follow(ctx, moved, cfg.Destinations, log) })
	})
	all.Go(func() {
		ns.Do(func() { nodestate.New(cfg).Run(ctx) })
	})
	a.stop = sync.OnceFunc(func() {
		cancel()
		all.Wait()
		client.Close()
		a.Close()
		_ = journal.Close()
	})
	c.Cleanup(a.stop)
	return a
}

// hasAddress reports whether the wished-for bridge is in a namespace, with its address.
func hasAddress(ns *netns.Namespace) (has bool) {
	ns.Do(func() {
		out, _ := exec.Command("ip", "addr", "show", "br9").Output()
		has = strings.Contains(string(out), "203.0.113.9/24")
	})
	return has
}

const wish = `{"spec": {"desiredState": {"interfaces": [{"name": "br9", "type": "linux-bridge", "state": "up",
	"ipv4": {"enabled": true, "address": [{"ip": "203.0.113.9", "prefix-length": 24}]}}]}}}`

// TestObjectGoesWithItsNode (U05): a real kernel, API server and garbage collector. A machine that takes the name of a
// removed node does not get what was desired of that. A Node that is deleted by mistake changes no interface.
func TestObjectGoesWithItsNode(t *testing.T) {
	first, second := netns.New(t), netns.New(t)
	c := newCluster(t, "node1")
	uid := c.makeNode()
	a := c.agent(first)
	has := func(ns *netns.Namespace, want bool) {
		t.Helper()
		if hasAddress(ns) != want {
			t.Fatalf("the address is there: %v", !want)
		}
	}
	c.becomes(uid, v1.ReasonInSync)
	c.patch(wish)
	c.becomes(uid, v1.ReasonInSync)
	has(first, true)

	c.deleteNode(metav1.DeletePropagationBackground)
	c.until("the agent reports the loss", func() (bool, any) {
		return strings.Contains(a.NotReady(), "the Node was deleted"), a.NotReady()
	})
	if o, err := c.get(t.Context()); o != nil || err != nil {
		t.Errorf("the object did not go with its Node: %+v %v", o, err)
	}
	has(first, true)
	uid = c.makeNode() // as the kubelet does
	c.becomes(uid, v1.ReasonInSync)
	c.until("the agent is ready", func() (bool, any) { return a.NotReady() == "", a.NotReady() })
	if o, _ := c.get(t.Context()); o.Spec.DesiredState != nil {
		t.Errorf("the new object has a desired state: %s", o.Spec.DesiredState.Raw)
	}
	has(first, true)

	c.patch(wish)
	c.becomes(uid, v1.ReasonInSync)
	c.deleteNode(metav1.DeletePropagationOrphan)
	uid = c.makeNode()
	c.becomes(uid, v1.ReasonInSync) // the agent that had it goes on
	has(first, true)

	a.stop()
	c.deleteNode(metav1.DeletePropagationOrphan)
	uid = c.makeNode()
	c.agent(second)
	why := c.becomes("", v1.ReasonFailing)
	if !strings.Contains(why, "an earlier Node node1") {
		t.Error(why)
	}
	has(second, false)
	_, command, _ := strings.Cut(why, "-p '")
	command, _, _ = strings.Cut(command, "'")
	c.patch(command)
	c.becomes(uid, v1.ReasonInSync)
	has(second, true)
}

// TestObjectsOfManyNodesGo (U05): nothing stays of nodes that come and go.
func TestObjectsOfManyNodesGo(t *testing.T) {
	c := newCluster(t, "many")
	const nodes = 100
	many := metav1.ListOptions{LabelSelector: "many"}
	for i := range nodes {
		name := fmt.Sprintf("many%d", i)
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"many": ""}}}
		n, err := c.nodes.Create(t.Context(), n, metav1.CreateOptions{})
		c.must(err)
		client, err := New(config("agent"), name)
		c.must(err)
		_, err = client.Create(t.Context(), nodeOf(n), v1.NodeNetworkStateStatus{})
		client.Close()
		c.must(err)
	}
	left := func() (names []string) {
		var list v1.NodeNetworkStateList
		c.must(c.states.Get().Resource(v1.ResourceState).Do(t.Context()).Into(&list))
		for _, o := range list.Items {
			if strings.HasPrefix(o.Name, "many") {
				names = append(names, o.Name)
			}
		}
		return names
	}
	if n := len(left()); n != nodes {
		t.Fatalf("%d objects", n)
	}
	c.must(c.nodes.DeleteCollection(t.Context(), metav1.DeleteOptions{}, many))
	c.until("no object is left", func() (bool, any) { return len(left()) == 0, left() })
}

// TestNameThatReadsAsANumber (U23): YAML reads 60e7 as a number. Without quotes it is refused with its place; in quotes
// the interface is made, and other readers of YAML get its name.
func TestNameThatReadsAsANumber(t *testing.T) {
	c := newCluster(t, "node3")
	state := func(name string) string {
		return fmt.Sprintf("{interfaces: [{name: %s, type: linux-bridge, state: up}], "+
			"routes: {config: [{destination: 198.51.100.0/24, next-hop-interface: %[1]s}]}}", name)
	}
	const nns = "{apiVersion: nmstate.io/v1, kind: NodeNetworkState, metadata: {name: node3}, " +
		"spec: {nodeName: node3, desiredState: %s}}"
	const nncp = "{apiVersion: nmstate.io/v1, kind: NodeNetworkConfigurationPolicy, metadata: {name: names}, " +
		"spec: {desiredState: %s}}"
	for kind, object := range map[string]string{v1.ResourceState: nns, v1.ResourcePolicy: nncp} {
		path := "/apis/nmstate.io/v1/" + kind
		c.until(kind+" is refused", func() (bool, any) {
			err := c.post(path, fmt.Sprintf(object, state("60e7")), "dryRun", "All")
			text := fmt.Sprint(err)
			return strings.Contains(text, "interfaces[0].name in body must be of type string") &&
				strings.Contains(text, "config[0].next-hop-interface in body must be of type string"), text
		})
		c.must(c.post(path, fmt.Sprintf(object, state(`"60e7"`)), "dryRun", "All"))
	}
	uid := c.makeNode()
	c.must(c.post("/apis/nmstate.io/v1/"+v1.ResourceState, fmt.Sprintf(nns, state(`"60e7"`))))
	ns := netns.New(t)
	c.agent(ns)
	c.becomes(uid, v1.ReasonInSync)
	ns.Do(func() {
		if out, err := exec.Command("ip", "link", "show", "60e7").CombinedOutput(); err != nil {
			t.Errorf("%s", out)
		}
	})
	request := c.states.Get().Resource(v1.ResourceState).Name("node3").SetHeader("Accept", "application/yaml")
	text, err := request.Do(t.Context()).Raw()
	c.must(err)
	if n := strings.Count(string(text), `: "60e7"`); n < 4 || strings.Contains(string(text), ": 60e7") {
		t.Errorf("%d names in quotes:\n%s", n, text)
	}
}
