package page

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	answers "github.com/flowkeep/flowkeep/netmaster/inspect"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// world is a netmaster without a cluster: a real engine that answers real questions.
type world struct {
	*testing.T
	mu      sync.Mutex
	engine  *resolve.Engine
	asked   []string // kinds of questions
	away    bool     // the engine does not answer
	refuse  func(q *inspect.Question) error
	dropped map[string][]inspect.DropRecord // by node
	nodes   []feed.NodeStatus
	yaml    map[string]string
}

// markup is what strangers would like a page to take for its own.
const markup = `<img src=x onerror="window.hacked=1"><script>window.hacked=2</script>`

func newWorld(t *testing.T) *world {
	return &world{T: t, engine: resolve.New(1), yaml: map[string]string{}, dropped: map[string][]inspect.DropRecord{}, nodes: []feed.NodeStatus{
		{Name: "node1", Connected: true, Since: time.Now().Add(-time.Hour), Version: "v1", Sent: 4, Realised: 4},
		{Name: "node2", Connected: true, Since: time.Now().Add(-time.Minute), Version: "v1", Sent: 4, Realised: 3, Pending: 2},
		{Name: "node3", Refused: "its certificate is of " + markup}}}
}

// shop is four pods, of which one is everybody's, one the other's, and one a stranger's.
func shop(t *testing.T) *world {
	w := newWorld(t)
	peer := func(app string) []policy.Peer { return []policy.Peer{{Pods: ptr(is("app", app))}} }
	tcp := func(port uint16) []policy.PolicyPort {
		return []policy.PolicyPort{{Protocol: policy.TCP, First: port, Last: port}}
	}
	p := func(name, app string, rules ...policy.PolicyRule) *policy.Policy {
		return &policy.Policy{Namespace: "shop", Name: name, Generation: 3, AppliedTo: is("app", app), IsolatesIngress: true, Ingress: rules}
	}
	db := p("db", "db", policy.PolicyRule{Peers: peer("api"), Ports: tcp(5432)})
	db.IsolatesEgress, db.Problems = true, []string{"spec.ingress[1]: " + markup + " is no port"}
	w.engine.Apply(resolve.Batch{
		Namespaces: []policy.Namespace{{Name: "shop"}, {Name: "outside"}},
		Endpoints: []*policy.Endpoint{pod("shop", "web", 2, "app", "web"), pod("shop", "api", 3, "app", "api"), pod("shop", "db", 4, "app", "db", "note", markup),
			pod("outside", "intruder", 5, "app", "intruder")},
		Policies: []*policy.Policy{db, p("web", "web", policy.PolicyRule{AnyPeer: true, Ports: tcp(80)}), p("api", "api", policy.PolicyRule{Peers: peer("web"), Ports: tcp(8080)})},
	})
	w.yaml["shop/db"] = "# " + markup + "\n" + policyYAML("db", "db", "api", 5432)
	return w
}

func policyYAML(name, app, from string, port int) string {
	return fmt.Sprintf(`apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: %s, namespace: shop}
spec:
  podSelector: {matchLabels: {app: %s}}
  policyTypes: [Ingress, Egress]
  ingress:
  - from: [{podSelector: {matchLabels: {app: %s}}}]
    ports: [{port: %d}]
`, name, app, from, port)
}

func pod(namespace, name string, n int, labels ...string) *policy.Endpoint {
	e := &policy.Endpoint{Namespace: namespace, Name: name, UID: namespace + name, Node: "node1", Labels: map[string]string{},
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), netip.MustParseAddr(fmt.Sprintf("fd00::%x", n))}}
	for i := 0; i < len(labels); i += 2 {
		e.Labels[labels[i]] = labels[i+1]
	}
	return e
}

func is(key, value string) policy.Selector {
	return policy.Selector{Requirements: []policy.Requirement{{Key: key, Operator: policy.In, Values: []string{value}}}}
}

func ptr[T any](v T) *T { return &v }

// apply changes the cluster.
func (w *world) apply(b resolve.Batch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.engine.Apply(b)
}

func (w *world) Do(_ context.Context, f func(*resolve.Engine)) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.away {
		return errors.New("netmaster is stopping")
	}
	f(w.engine)
	return nil
}

func (w *world) setAway(away bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.away = away
}

func (w *world) Nodes() []feed.NodeStatus { return w.nodes }

func (w *world) Node(name string) feed.NodeStatus {
	for _, n := range w.nodes {
		if n.Name == name {
			return n
		}
	}
	return feed.NodeStatus{Name: name}
}

func (w *world) Infos() []policy.NodeInfo { return []policy.NodeInfo{{Name: "node1"}} }

func (w *world) Standing(_ string, _ *policy.Extent) (out []feed.Standing) {
	for _, n := range w.nodes {
		out = append(out, feed.Standing{NodeStatus: n, Needs: true, Behind: n.Realised < n.Sent})
	}
	return out
}

func (w *world) Watch(id string) *feed.Watch { return feed.NewServer(feed.Config{}).Watch(id) }

func (w *world) QueryStream(context.Context, string, []byte, func([]byte) error) error {
	return errors.New("no streams here")
}

func (w *world) Query(_ context.Context, node string, body []byte) ([]byte, error) {
	var q inspect.NodeQuery
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	switch q.Kind {
	case inspect.QueryStatus:
		return json.Marshal(inspect.NodeStatus{Version: "v1", SwitchConnected: true, Datapath: "netdev", Endpoints: 2, Flows: 120})
	case inspect.QueryDrops:
		w.mu.Lock()
		defer w.mu.Unlock()
		return json.Marshal(inspect.NodeDrops{Records: w.dropped[node], DropCounts: inspect.DropCounts{Untold: uint64(len(w.dropped[node]))}})
	case inspect.QueryTrace:
		out := inspect.NodeTraces{Node: node}
		for _, p := range q.Packets {
			out.Traces = append(out.Traces, inspect.Trace{Packet: p, Passed: true, Out: "port 3", Steps: []inspect.TraceStep{{TableName: "ingress", Priority: 100, Match: "ip", Note: "applied-to " + markup}}})
		}
		return json.Marshal(out)
	}
	return nil, errors.New("it does not know the question")
}

func (w *world) Version(context.Context, string, string) (watch.Version, bool, error) {
	return watch.Version{}, false, nil
}

func (w *world) Manifest(_ context.Context, namespace, name string) (string, bool, error) {
	text, ok := w.yaml[namespace+"/"+name]
	if !ok {
		return "", false, errors.New("the API server is away")
	}
	return text, true, nil
}

// Answer counts the questions.
func (w *world) Answer(ctx context.Context, q *inspect.Question) (*inspect.Answer, error) {
	w.mu.Lock()
	w.asked = append(w.asked, q.Kind)
	w.mu.Unlock()
	if w.refuse != nil {
		if err := w.refuse(q); err != nil {
			return nil, err
		}
	}
	s := answers.NewServer(answers.Config{Owner: w, Nodes: w, API: w, Version: "v1", Problems: func() []string { return []string{"memcached says " + markup} }, Labels: func() (uint64, uint64) { return 0, 0 }})
	return s.Answer(ctx, q)
}

// deny is a node's word that it denied somebody something.
func (w *world) deny(from, to int, port uint16) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dropped["node1"] = append(w.dropped["node1"], inspect.DropRecord{First: time.Now(), Last: time.Now(), Reason: inspect.DroppedByIngress, From: pod("", "", from).Addresses[0], To: pod("", "", to).Addresses[0],
		Protocol: policy.TCP, Port: port, Packets: 3, Connections: 2, Pod: "shop/db", Policies: []policy.Origin{{Policy: "shop/db", Rule: -1}}})
}

func (w *world) kinds() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string{}, w.asked...)
}

// serve is the page on a port of its own.
func (w *world) serve(tokenFile string) (*Server, *httptest.Server) {
	w.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.Fatal(err)
	}
	s, err := serverOn(listener, Config{TokenFile: tokenFile, Inspector: w, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		w.Fatal(err)
	}
	h := &httptest.Server{Listener: listener, Config: &http.Server{Handler: s.Handler()}}
	h.Start()
	w.Cleanup(h.Close)
	return s, h
}
