package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/macvtap"
	"github.com/flowkeep/flowkeep/macvtap/agent"
	"github.com/flowkeep/flowkeep/macvtap/api/v1alpha1"
	"github.com/flowkeep/flowkeep/macvtap/deviceplugin"
	"github.com/flowkeep/flowkeep/macvtap/report"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

type object = map[string]any

// server answers as an API server in miniature: objects by path, with versions, lists, watches and conflicts.
type server struct {
	*testing.T
	mu       sync.Mutex
	objects  map[string]object // by path
	removed  map[string]object // likewise
	version  int
	watchers map[chan object]string // what they watch: a collection's path
	away     bool
	noGroup  bool
	puts     int
	before   func(path string) // a put
	clients  []context.CancelFunc
}

const (
	nodePath   = "/api/v1/nodes/node1"
	ownPath    = "/apis/macvtap.network.kubevirt.io/v1alpha1/macvtapnodes/node1"
	policyPath = "/apis/macvtap.network.kubevirt.io/v1alpha1/namespaces/ns/macvtapnetworknodepolicies/p"
)

// collection is the path of the list that an object is in, for all namespaces.
func collection(path string) string {
	path = path[:strings.LastIndexByte(path, '/')]
	before, after, namespaced := strings.Cut(path, "/namespaces/")
	if namespaced {
		_, resource, _ := strings.Cut(after, "/")
		path = before + "/" + resource
	}
	return path
}

func newServer(t *testing.T) (*server, *Client) {
	s := &server{T: t, objects: map[string]object{}, removed: map[string]object{}, watchers: map[chan object]string{}}
	at := httptest.NewServer(s)
	t.Cleanup(at.Close)
	t.Cleanup(at.CloseClientConnections)
	s.put(nodePath, `{"kind": "Node", "apiVersion": "v1", "metadata": {"name": "node1", "uid": "n", "labels": {"aware": "true"}}, "status": {"phase": "x"}}`)
	c, err := newClient(&rest.Config{Host: at.URL, QPS: 1000, Burst: 1000}, "node1", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s, c
}

// put stores an object, and tells who watches.
func (s *server) put(path, text string) {
	var o object
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		s.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store(path, o)
}

func (s *server) store(path string, o object) {
	s.version++
	o["metadata"].(object)["resourceVersion"] = strconv.Itoa(s.version)
	kind := "MODIFIED"
	if s.objects[path] == nil {
		kind = "ADDED"
	}
	s.objects[path] = o
	s.tell(path, kind)
}

func (s *server) tell(path, kind string) {
	for w, what := range s.watchers {
		if what == collection(path) {
			w <- object{"type": kind, "object": s.objects[path]}
		}
	}
}

func (s *server) remove(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.objects[path]["metadata"].(object)["resourceVersion"] = strconv.Itoa(s.version)
	s.tell(path, "DELETED")
	s.removed[path] = s.objects[path]
	delete(s.objects, path)
}

func (s *server) locked(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

func (s *server) get(path string, into any) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	text, err := json.Marshal(s.objects[path])
	if err != nil || s.objects[path] == nil {
		return false
	}
	if err := json.Unmarshal(text, into); err != nil {
		s.Error(err)
	}
	return true
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, name string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: reason, Code: int32(code), Details: &metav1.StatusDetails{Name: name},
	})
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	s.mu.Lock()
	away, noGroup, before := s.away, s.noGroup, s.before
	s.mu.Unlock()
	path, status := strings.CutSuffix(r.URL.Path, "/status")
	list := strings.HasSuffix(path, "s")
	switch {
	case away:
		refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "")
	case noGroup && strings.HasPrefix(path, "/apis/"):
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, "")
	case r.URL.Query().Get("sendInitialEvents") != "":
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "")
	case r.URL.Query().Get("watch") != "":
		s.watch(w, r)
	case r.Method == http.MethodGet && list:
		s.list(w, path)
	case r.Method == http.MethodGet:
		s.one(w, path)
	case r.Method == http.MethodPost:
		s.write(w, r, path+"/node1", false)
	case r.Method == http.MethodPut && status:
		if before != nil {
			before(path)
		}
		s.write(w, r, path, true)
	default:
		s.Errorf("%s %s", r.Method, r.URL)
	}
}

func (s *server) list(w http.ResponseWriter, path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind, version := "NodeList", "v1"
	switch {
	case strings.HasSuffix(path, "macvtapnodes"):
		kind, version = "MacvtapNodeList", "macvtap.network.kubevirt.io/v1alpha1"
	case strings.HasSuffix(path, "policies"):
		kind, version = "MacvtapNetworkNodePolicyList", "macvtap.network.kubevirt.io/v1alpha1"
	}
	items := []object{}
	for at, o := range s.objects {
		if collection(at) == path {
			items = append(items, o)
		}
	}
	_ = json.NewEncoder(w).Encode(object{"kind": kind, "apiVersion": version, "metadata": object{"resourceVersion": strconv.Itoa(s.version)}, "items": items})
}

func (s *server) one(w http.ResponseWriter, path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects[path] == nil {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, "x")
		return
	}
	_ = json.NewEncoder(w).Encode(s.objects[path])
}

func (s *server) write(w http.ResponseWriter, r *http.Request, path string, replace bool) {
	var o object
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		s.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.puts++
	old := s.objects[path]
	switch {
	case replace && old == nil:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, "x")
		return
	case replace && old["metadata"].(object)["resourceVersion"] != o["metadata"].(object)["resourceVersion"]:
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict, "x")
		return
	case replace:
		next := object{"status": o["status"]}
		for k, v := range old {
			if k != "status" {
				next[k] = v
			}
		}
		meta := object{}
		for k, v := range old["metadata"].(object) {
			meta[k] = v
		}
		next["metadata"] = meta
		o = next
	default:
		o["metadata"].(object)["uid"] = "made"
		delete(o, "status")
	}
	s.store(path, o)
	_ = json.NewEncoder(w).Encode(o)
}

func (s *server) watch(w http.ResponseWriter, r *http.Request) {
	events := make(chan object, 100)
	s.mu.Lock()
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	for kind, objects := range map[string]map[string]object{"DELETED": s.removed, "MODIFIED": s.objects} { // what came and went since the list
		for at, o := range objects {
			if v, _ := strconv.Atoi(o["metadata"].(object)["resourceVersion"].(string)); collection(at) == r.URL.Path && v > from {
				events <- object{"type": kind, "object": o}
			}
		}
	}
	s.watchers[events] = r.URL.Path
	ctx, cancel := context.WithCancel(r.Context())
	s.clients = append(s.clients, cancel)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watchers, events)
		s.mu.Unlock()
	}()
	w.(http.Flusher).Flush()
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			s.mu.Lock()
			text, _ := json.Marshal(e)
			s.mu.Unlock()
			_, _ = w.Write(text)
			w.(http.Flusher).Flush()
		}
	}
}

// leave has the server answer nothing well any more, and its watches end.
func (s *server) leave(is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = is
	for _, end := range s.clients {
		end()
	}
}

// told is what Follow told last.
type told struct {
	intent *agent.Intent
	err    error
}

// follow gives what waits for something to be told.
func follow(t *testing.T, c *Client) (await func(what string, is func(told) bool) told) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	news, ended := make(chan told, 1000), make(chan struct{})
	go func() {
		defer close(ended)
		c.Follow(ctx, func(i *agent.Intent, err error) { news <- told{i, err} })
	}()
	t.Cleanup(func() { stop(); <-ended })
	return func(what string, is func(told) bool) told {
		t.Helper()
		limit := time.After(time.Minute)
		for {
			select {
			case n := <-news:
				if is(n) {
					return n
				}
			case <-limit:
				t.Fatalf("never told: %s", what)
			}
		}
	}
}

const aPolicy = `{"kind": "MacvtapNetworkNodePolicy", "apiVersion": "macvtap.network.kubevirt.io/v1alpha1",
	"metadata": {"name": "p", "namespace": "ns", "uid": "p", "generation": %d}, "spec": {"parentSelector": [{"parentIface": "eth%d", "resourceName": "data"}]}}`

func TestFollow(t *testing.T) {
	s, c := newServer(t)
	await := follow(t, c)
	await("labels, and no policies", func(n told) bool {
		return n.err == nil && n.intent.Labels["aware"] == "true" && len(n.intent.Policies) == 0 && !n.intent.Absent
	})
	s.put(policyPath, fmt.Sprintf(aPolicy, 1, 0))
	await("a policy", func(n told) bool {
		return n.err == nil && len(n.intent.Policies) == 1 && n.intent.Policies[0].Entries[0].Parent == "eth0"
	})
	s.put(policyPath, fmt.Sprintf(aPolicy, 2, 1))
	await("an edit", func(n told) bool { return n.err == nil && n.intent.Policies[0].Entries[0].Parent == "eth1" })
	s.put(nodePath, `{"kind": "Node", "apiVersion": "v1", "metadata": {"name": "node1", "uid": "n", "labels": {}}}`)
	await("the label is gone", func(n told) bool { return n.err == nil && len(n.intent.Labels) == 0 })
	s.remove(policyPath)
	await("the policy is gone", func(n told) bool { return n.err == nil && len(n.intent.Policies) == 0 })
	s.leave(true)
	await("the API server is away", func(n told) bool { return n.err != nil && n.intent == nil })
	s.leave(false)
	await("it is back", func(n told) bool { return n.err == nil && n.intent != nil })
	s.remove(nodePath)
	await("there is no such Node", func(n told) bool { return n.err != nil && strings.Contains(n.err.Error(), "--node-name") })
}

func TestGroupUnknown(t *testing.T) {
	s, c := newServer(t)
	s.locked(func() { s.noGroup = true })
	await := follow(t, c)
	await("there are no policies at all", func(n told) bool { return n.err == nil && n.intent.Absent && n.intent.Labels["aware"] == "true" })
	if err := c.Report(t.Context(), reportOf(c, "eth0")); err == nil || !strings.Contains(err.Error(), "kubectl apply -f deploy/crds") {
		t.Error(err)
	}
}

// reportOf is that the policies that c knows choose among these links.
func reportOf(c *Client, links ...string) agent.Report {
	in := macvtap.Input{Labels: map[string]string{"aware": "true"}}
	for _, p := range c.listed() {
		in.Policies = append(in.Policies, report.Policy(p))
	}
	for _, l := range links {
		in.Links = append(in.Links, macvtap.Link{Name: l, Physical: true, Up: true})
	}
	return agent.Report{Facts: report.Facts{In: in, Exposure: macvtap.Select(in)}, Registrations: map[string]deviceplugin.State{"data": {Registered: true}}}
}

func TestReport(t *testing.T) {
	s, c := newServer(t)
	if err := c.Report(t.Context(), agent.Report{}); err == nil {
		t.Error("reported before anything is followed")
	}
	s.put("/api/v1/nodes/node0", `{"kind": "Node", "apiVersion": "v1", "metadata": {"name": "node0"}}`)
	s.put(policyPath, fmt.Sprintf(aPolicy, 1, 0))
	await := follow(t, c)
	await("a policy", func(n told) bool { return n.err == nil && len(n.intent.Policies) == 1 })
	other := v1alpha1.PolicyNode{Node: "node0", State: v1alpha1.StateExposed}
	once := sync.OnceFunc(func() { // another node is quicker
		var p object
		s.get(policyPath, &p)
		p["status"] = object{"nodes": []any{other}}
		text, _ := json.Marshal(p)
		s.put(policyPath, string(text))
	})
	s.locked(func() {
		s.before = func(path string) {
			if path == policyPath {
				once()
			}
		}
	})
	r := reportOf(c, "eth0", "eth1")
	if err := c.Report(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	var n v1alpha1.MacvtapNode
	if !s.get(ownPath, &n) || n.Status.Summary != "data (eth0)" || len(n.OwnerReferences) != 1 || n.OwnerReferences[0].UID != "n" || len(n.Status.Conditions) != 6 {
		t.Errorf("%+v", n)
	}
	var p v1alpha1.MacvtapNetworkNodePolicy
	if !s.get(policyPath, &p) || len(p.Status.Nodes) != 2 || p.Status.Nodes[0].Node != "node0" || p.Status.Nodes[1].State != v1alpha1.StateExposed {
		t.Errorf("%+v", p.Status)
	}
	await("the own entry", func(told) bool { e := c.listed(); return len(e) == 1 && len(e[0].Status.Nodes) == 2 })
	var puts int
	s.locked(func() { puts = s.puts })
	same := func() (is bool) {
		s.locked(func() { is = s.puts == puts })
		return is
	}
	if err := c.Report(t.Context(), r); err != nil || !same() {
		t.Errorf("%v: the same was written again", err)
	}
	// What the report doesn't know of is not told of.
	s.put(policyPath, fmt.Sprintf(aPolicy, 2, 1))
	await("an edit", func(n told) bool { return n.err == nil && n.intent.Policies[0].Entries[0].Parent == "eth1" })
	if err := c.Report(t.Context(), r); err != nil || !same() {
		t.Errorf("%v: an old report speaks of a new policy", err)
	}
	// Who deletes the object gets it again.
	s.remove(ownPath)
	await("it is gone", func(told) bool { return c.latest() == nil })
	if err := c.Report(t.Context(), reportOf(c, "eth1")); err != nil || !s.get(ownPath, &n) || n.Status.Summary != "data (eth1)" {
		t.Errorf("%v: %+v", err, n.Status)
	}
}

// Entries of nodes that are gone are taken out of policies by those that are there, one after the other, and nothing is told of a node that is
// not there itself.
func TestNodesThatAreGone(t *testing.T) {
	s, c := newServer(t)
	s.put("/api/v1/nodes/node3", `{"kind": "Node", "apiVersion": "v1", "metadata": {"name": "node3"}}`)
	var p object
	if err := json.Unmarshal(fmt.Appendf(nil, aPolicy, 1, 0), &p); err != nil {
		t.Fatal(err)
	}
	p["status"] = object{"nodes": []any{object{"node": "node0", "state": "Exposed"}, object{"node": "node2", "state": "Exposed"}, object{"node": "node3", "state": "Exposed"}}}
	text, _ := json.Marshal(p)
	s.put(policyPath, string(text))
	await := follow(t, c)
	await("a policy", func(n told) bool { return n.err == nil && len(n.intent.Policies) == 1 })
	says := func() (nodes string) {
		var p v1alpha1.MacvtapNetworkNodePolicy
		s.get(policyPath, &p)
		for _, n := range p.Status.Nodes {
			nodes += n.Node + " "
		}
		return nodes
	}
	want := "node0 node1 node3 " // node3 is there, and node0 is node3's to look after
	for end := time.Now().Add(time.Minute); says() != want && time.Now().Before(end); {
		if err := c.Report(t.Context(), reportOf(c, "eth0")); err != nil { // one after the other: the watch tells of each write in its time
			t.Fatal(err)
		}
	}
	if err := c.Report(t.Context(), reportOf(c, "eth0")); err != nil || says() != want {
		t.Errorf("%v: %s", err, says())
	}
	s.remove(nodePath)
	await("there is no such Node", func(n told) bool { return n.err != nil })
	s.remove(ownPath)
	await("its object is gone", func(told) bool { return c.latest() == nil })
	if err := c.Report(t.Context(), reportOf(c, "eth1")); err == nil || !strings.Contains(err.Error(), "there is no Node node1") {
		t.Error(err)
	}
	if s.get(ownPath, new(object)) {
		t.Error("an object of a node that is not there would stay for ever")
	}
}

func TestConditions(t *testing.T) {
	r := agent.Report{HoldersWhy: "no socket", Trouble: []agent.Trouble{{Reason: agent.ReasonConfig, Message: "x"}, {Reason: agent.ReasonUnknown, Message: "away"}}}
	r.Registrations = map[string]deviceplugin.State{"a": {Registered: true}, "b": {Why: "no kubelet"}}
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		r.Facts.Exposure.Resources = append(r.Facts.Exposure.Resources, macvtap.Resource{Name: name, Parents: []macvtap.Parent{{Link: "eth0", Capacity: 1}}})
	}
	status, changed := statusOf(r, v1alpha1.MacvtapNodeStatus{}, metav1.Now())
	said := map[string]string{}
	for _, c := range status.Conditions {
		said[c.Type] = string(c.Status) + " " + c.Message
	}
	if !changed || said[conditionRegistered] != "False the kubelet does not follow b, c, d, e, f, 1 more: no kubelet" ||
		said[conditionPolicies] != "False away" || said[conditionInUse] != "False no socket" {
		t.Errorf("%v", said)
	}
	if _, again := statusOf(r, status, metav1.NewTime(time.Now().Add(time.Hour))); again {
		t.Error("the same status is another an hour later")
	}
	if m := bounded(strings.Repeat("ä", 600)); len(m) > 1000 || strings.Contains(m, "\ufffd") {
		t.Errorf("%d", len(m))
	}
}
