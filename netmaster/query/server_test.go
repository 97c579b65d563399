package query

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/labelcache"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/store"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// owner holds an engine. With a fault, Do returns it without a call.
type owner struct {
	mu     sync.Mutex // held by what uses the engine
	engine *resolve.Engine
	fault  error
}

func (o *owner) Do(ctx context.Context, f func(*resolve.Engine)) error {
	if o.fault != nil {
		return o.fault
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	f(o.engine)
	return nil
}

// world returns the engine's world. It is safe for concurrent use.
func (o *owner) world() *policy.World {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.engine.World()
}

// nodes answer what they are told, if they are told anything; nil never answers.
type nodes struct {
	list    []feed.NodeStatus
	infos   []policy.NodeInfo
	answers map[string]any

	mu    sync.Mutex
	asked []inspect.NodeQuery
}

func (n *nodes) Nodes() []feed.NodeStatus { return n.list }

func (n *nodes) Node(name string) feed.NodeStatus {
	if i := slices.IndexFunc(n.list, func(s feed.NodeStatus) bool { return s.Name == name }); i >= 0 {
		return n.list[i]
	}
	return feed.NodeStatus{Name: name}
}

// Standing takes a node for behind that has not acknowledged all it was sent.
func (n *nodes) Standing(_ string, e *policy.Extent) (out []feed.Standing) {
	for _, name := range e.Nodes {
		st := feed.Standing{NodeStatus: feed.NodeStatus{Name: name}, Needs: true}
		if i := slices.IndexFunc(n.list, func(s feed.NodeStatus) bool { return s.Name == name }); i >= 0 {
			st.NodeStatus = n.list[i]
			st.Behind = st.Realised < st.Sent
		}
		out = append(out, st)
	}
	return out
}

func (n *nodes) Watch(id string) *feed.Watch { return feed.NewServer(feed.Config{}).Watch(id) }

func (n *nodes) Infos() []policy.NodeInfo { return n.infos }

func (n *nodes) Query(ctx context.Context, node string, body []byte) ([]byte, error) {
	var q inspect.NodeQuery
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	n.mu.Lock()
	n.asked = append(n.asked, q)
	n.mu.Unlock()
	switch answer := n.answers[node].(type) {
	case nil:
		<-ctx.Done()
		return nil, fmt.Errorf("node %s does not respond: %w", node, ctx.Err())
	case error:
		return nil, answer
	case func(inspect.NodeQuery) any:
		v := answer(q)
		if err, bad := v.(error); bad {
			return nil, err
		}
		return json.Marshal(v)
	case string:
		return []byte(answer), nil
	default:
		return json.Marshal(answer)
	}
}

// QueryStream hands on each of a list of answers.
func (n *nodes) QueryStream(ctx context.Context, node string, body []byte, each func([]byte) error) error {
	var q inspect.NodeQuery
	if err := json.Unmarshal(body, &q); err != nil {
		return err
	}
	n.mu.Lock()
	n.asked = append(n.asked, q)
	n.mu.Unlock()
	answer := n.answers[node]
	if f, ok := answer.(func(inspect.NodeQuery) any); ok {
		answer = f(q)
	}
	switch answer := answer.(type) {
	case error:
		return answer
	case func(context.Context, func([]byte) error) error:
		return answer(ctx, each)
	case []string:
		for _, a := range answer {
			if err := each([]byte(a)); err != nil {
				return err
			}
		}
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

// place is a small cluster: a database, its callers, and one in another namespace.
type place struct {
	t     *testing.T
	admin context.Context
	owner *owner
	nodes *nodes
	*Server
}

func newPlace(t *testing.T) *place {
	t.Helper()
	s, err := store.Open(filepath.Join(t.TempDir(), "policy.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	p := &place{t: t, admin: as(t, func(dir string) (string, error) { return "admin", mtls.IssueAdmin(dir) }), owner: &owner{engine: resolve.New(7)},
		nodes: &nodes{answers: map[string]any{}}}
	p.Server = NewServer(Config{Owner: p.owner, Nodes: p.nodes, Store: s, Cache: labelcache.New(labelcache.Config{}), Version: "v1", Problems: func() []string { return nil },
		Labels: func() labelcache.Stamp { return labelcache.Stamp{Term: 1, Revision: p.owner.engine.Revision()} }})
	pod := func(namespace, name, address, node string, labels ...string) *policy.Endpoint {
		e := &policy.Endpoint{Namespace: namespace, Name: name, UID: name, Node: node, Labels: map[string]string{"app": labels[0]}}
		if address != "" {
			e.Addresses = []netip.Addr{netip.MustParseAddr(address)}
		}
		return e
	}
	host, done := pod("shop", "host", "192.0.2.1", "node1", "host"), pod("shop", "done", "10.0.0.9", "node1", "job")
	host.HostNetwork, done.Finished = true, true
	db := pod("shop", "db", "10.0.0.2", "node1", "db")
	db.Ports = []policy.NamedPort{{Name: "sql", Protocol: policy.TCP, Number: 5432}}
	p.owner.engine.Apply(resolve.Batch{
		Namespaces: []policy.Namespace{{Name: "shop"}, {Name: "shopping"}},
		Endpoints: []*policy.Endpoint{db, pod("shop", "api", "10.0.0.3", "node2", "api"), pod("shop", "new", "", "", "new"), pod("shopping", "bag", "10.0.0.4", "node2", "bag"),
			pod("shopping", "twin1", "10.0.0.5", "node1", "x"), pod("shopping", "twin2", "10.0.0.5", "node2", "x"), host, done},
		Policies: []*policy.Policy{
			{Namespace: "shop", Name: "db", Generation: 3, AppliedTo: is("app", "db"), IsolatesIngress: true, IsolatesEgress: true, Problems: []string{"port 0 is none"},
				Ingress: []policy.PolicyRule{
					{Peers: []policy.Peer{{Pods: ptr(is("app", "api"))}}, Ports: []policy.PolicyPort{{Protocol: policy.TCP, First: 5432, Last: 5432}, {Protocol: policy.UDP, First: 0, Last: 65535}, {Protocol: policy.TCP, First: 80, Last: 90}}},
					{Peers: []policy.Peer{{Block: &policy.IPBlock{CIDR: netip.MustParsePrefix("10.0.0.0/8"), Except: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}}}, AnyPort: true},
					{AnyPeer: true, Ports: []policy.PolicyPort{{Protocol: policy.TCP, Name: "sql"}}}}},
			{Namespace: "shopping", Name: "none", AppliedTo: is("app", "nobody"), IsolatesIngress: true}},
		Announced: []resolve.Announcement{{Node: "node1", Namespace: "shop", Name: "db", UID: "db", Addresses: db.Addresses}},
	})
	return p
}

func is(key, value string) policy.Selector {
	return policy.Selector{Requirements: []policy.Requirement{{Key: key, Operator: policy.In, Values: []string{value}}}}
}

func ptr[T any](v T) *T { return &v }

// as is a context in which somebody with the certificate asks.
func as(t *testing.T, issue func(dir string) (string, error)) context.Context {
	t.Helper()
	dir := t.TempDir()
	if err := mtls.Init(dir); err != nil {
		t.Fatal(err)
	}
	name, err := issue(dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, name+".crt"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return peer.NewContext(t.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}}})
}

func asked[T any](p *place, q inspect.Question) (out T, err error) {
	p.t.Helper()
	a, err := p.Ask(p.admin, &q)
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal(a.Body, &out); err != nil {
		p.t.Fatalf("%+v was answered %s: %v", q, a.Body, err)
	}
	return out, nil
}

// Nobody but an administrator is answered: not a node, not one without a certificate.
func TestAuthorise_AdministratorsOnly(t *testing.T) {
	p := newPlace(t)
	node := as(t, func(dir string) (string, error) { return "node1", mtls.IssueNode(dir, "node1") })
	bare := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{}})
	for _, c := range []struct {
		ctx  context.Context
		code codes.Code
	}{{t.Context(), codes.Unauthenticated}, {peer.NewContext(t.Context(), &peer.Peer{}), codes.PermissionDenied}, {bare, codes.PermissionDenied}, {node, codes.PermissionDenied}} {
		for _, kind := range []string{inspect.AskStatus, inspect.AskPolicies, inspect.AskEndpoints, inspect.AskFlows, inspect.AskDB, inspect.AskCache, inspect.AskLookup, inspect.AskCuts, inspect.AskExplain, inspect.AskMatrix, inspect.AskCounters, inspect.AskUnused, inspect.AskLint, "anything"} {
			if a, err := p.Ask(c.ctx, &inspect.Question{Kind: kind}); status.Code(err) != c.code || a != nil {
				t.Errorf("%s: %v, %v; want %v", kind, a, err, c.code)
			}
		}
	}
	if _, err := asked[any](p, inspect.Question{Kind: "weather"}); status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "netctl is newer") {
		t.Errorf("an unknown question: %v", err)
	}
}

func TestPolicies(t *testing.T) {
	p := newPlace(t)
	p.nodes.list = []feed.NodeStatus{{Name: "node1", Connected: true, Sent: 8, Realised: 8}}
	list, err := asked[[]inspect.Policy](p, inspect.Question{Kind: inspect.AskPolicies})
	if err != nil || len(list) != 2 || list[0].Name != "db" || list[1].Name != "none" || list[0].Rules != nil {
		t.Fatalf("%+v, %v", list, err)
	}
	if d := list[0]; d.Pods != 1 || d.AppliedTo != nil || len(d.Nodes) != 1 || d.Nodes[0].State != "realised" || len(d.Problems) != 1 {
		t.Errorf("%+v", d)
	}
	counted, err := asked[[]inspect.Policy](p, inspect.Question{Kind: inspect.AskPolicies, Counts: true})
	if err != nil || len(counted) != len(list) || counted[0].Nodes != nil ||
		*counted[0].InForce != (inspect.InForce{Realised: 1, Nodes: 1}) || counted[0].Pods != list[0].Pods {
		t.Errorf("with counts: %+v, %v", counted, err)
	}
	names, err := asked[[]inspect.Policy](p, inspect.Question{Kind: inspect.AskPolicies, Names: true})
	if err != nil || len(names) != 2 || !reflect.DeepEqual(names[0], inspect.Policy{Namespace: "shop", Name: "db"}) {
		t.Errorf("%+v, %v", names, err)
	}
	pods, err := asked[[]inspect.Endpoint](p, inspect.Question{Kind: inspect.AskEndpoints, Names: true, Namespace: "shop"})
	if err != nil || len(pods) == 0 || pods[0].Namespace != "shop" || pods[0].Labels != nil {
		t.Errorf("%+v, %v", pods, err)
	}
	if list, _ = asked[[]inspect.Policy](p, inspect.Question{Kind: inspect.AskPolicies, Namespace: "shop"}); len(list) != 1 || list[0].Namespace != "shop" {
		t.Errorf("of shop, which is not shopping: %+v", list)
	}
	list, err = asked[[]inspect.Policy](p, inspect.Question{Kind: inspect.AskPolicies, ID: "shop/db"})
	if err != nil || len(list) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	db := list[0]
	if db.Generation != 3 || !slices.Equal(db.AppliedTo, []string{"shop/db"}) || !slices.Equal(db.Directions, []string{"ingress", "egress"}) || !slices.Equal(db.Problems, []string{"port 0 is none"}) ||
		len(db.Nodes) != 1 || db.Nodes[0].Name != "node1" || db.Nodes[0].State != "realised" {
		t.Errorf("%+v", db)
	}
	var text []string
	for _, r := range db.Rules {
		if r.Index >= 0 {
			text = append(text, fmt.Sprintf("%s[%d] %s from %v", r.Direction, r.Index, r.Ports, r.Peers))
		}
	}
	slices.Sort(text)
	all := strings.Join(text, "\n")
	for _, want := range []string{"TCP/5432", "UDP", "TCP/80-90", "shop/api", "ingress[1] all from", "10.0.0.0/8 except 10.1.0.0/16", "ingress[2] TCP/5432 from [{everyone"} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in\n%s", want, all)
		}
	}
	if _, err := asked[any](p, inspect.Question{Kind: inspect.AskPolicies, ID: "shop/nobody"}); status.Code(err) != codes.NotFound {
		t.Errorf("a policy that is none: %v", err)
	}
}

func TestEndpoints(t *testing.T) {
	p := newPlace(t)
	list, err := asked[[]inspect.Endpoint](p, inspect.Question{Kind: inspect.AskEndpoints})
	if err != nil {
		t.Fatal(err)
	}
	states := map[string]string{}
	for _, e := range list {
		states[e.Namespace+"/"+e.Name] = e.State
	}
	for id, want := range map[string]string{"shop/db": "wired", "shop/api": "known", "shop/new": "no address", "shop/host": "host network", "shop/done": "finished", "shopping/twin1": "contested address"} {
		if states[id] != want {
			t.Errorf("%s is %q, want %q", id, states[id], want)
		}
	}
	if list, _ = asked[[]inspect.Endpoint](p, inspect.Question{Kind: inspect.AskEndpoints, Namespace: "shopping"}); len(list) != 3 {
		t.Errorf("of shopping: %+v", list)
	}
	list, err = asked[[]inspect.Endpoint](p, inspect.Question{Kind: inspect.AskEndpoints, ID: "shop/db"})
	if err != nil || len(list) != 1 || list[0].Node != "node1" || fmt.Sprint(list[0].Addresses) != "[10.0.0.2]" || !slices.Equal(list[0].Ingress, []string{"shop/db"}) ||
		!slices.Equal(list[0].Egress, []string{"shop/db"}) || len(list[0].Ports) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := asked[any](p, inspect.Question{Kind: inspect.AskEndpoints, ID: "shop/nobody"}); status.Code(err) != codes.NotFound {
		t.Errorf("a pod that is none: %v", err)
	}
}

// Whoever is away, refused, silent, talks nonsense or has lost his switch is a problem; who is well is none.
func TestStatus(t *testing.T) { synctest.Test(t, testStatus) }

func testStatus(t *testing.T) {
	p := newPlace(t)
	p.nodes.list = []feed.NodeStatus{{Name: "away"}, {Name: "refused", Refused: "too old"}, {Name: "well", Connected: true}, {Name: "silent", Connected: true}, {Name: "nonsense", Connected: true},
		{Name: "fails", Connected: true}, {Name: "no switch", Connected: true}, {Name: "drifts", Connected: true}, {Name: "deaf", Connected: true}}
	p.nodes.answers = map[string]any{"well": inspect.NodeStatus{SwitchConnected: true, Flows: 9}, "nonsense": "hello", "fails": errors.New("no such question"), "no switch": inspect.NodeStatus{DatabaseProblem: "ovsdb-server does not respond"},
		"drifts": inspect.NodeStatus{SwitchConnected: true, DriftCheck: inspect.DriftCheck{Last: inspect.DriftCount{Missing: 1, Extra: 3}, Problem: "the flows are not repaired"}}, "deaf": inspect.NodeStatus{SwitchConnected: true, SwitchProblem: "it takes no packets"}}
	began := time.Now()
	st, err := asked[inspect.Status](p, inspect.Question{Kind: inspect.AskStatus})
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took != nodeTimeout {
		t.Errorf("one silent node holds the answer up for %v", took)
	}
	problems := strings.Join(st.Problems, "\n")
	for _, want := range []string{"node away is not connected", "node refused is refused and enforces what it last had: too old", "node silent is connected but does not report its status", "node nonsense is connected but does not report",
		"node fails is connected but does not report its status: no such " +
			"question", "node no switch has no connection to its Open vSwitch", "node no switch: ovsdb-server does not respond",
		"another program changes the flows of node drifts: its last drift check found 1 missing, 0 changed, 3 " +
			"extra", "node drifts: the flows are not repaired", "node deaf: it takes no packets"} {
		if !strings.Contains(problems, want) {
			t.Errorf("no %q in\n%s", want, problems)
		}
	}
	if len(st.Problems) != 10 || st.Policies != 2 || st.Endpoints != 8 || st.Revision == 0 || st.Nodes[2].Own == nil || st.Nodes[2].Own.Flows != 9 {
		t.Errorf("%+v", st)
	}
	p.nodes.list = p.nodes.list[2:3]
	if st, err := asked[inspect.Status](p, inspect.Question{Kind: inspect.AskStatus}); err != nil || len(st.Problems) > 0 {
		t.Errorf("a healthy cluster: %+v, %v", st, err)
	}
}

func TestFlows(t *testing.T) { synctest.Test(t, testFlows) }

func testFlows(t *testing.T) {
	p := newPlace(t)
	list, _ := asked[[]inspect.Policy](p, inspect.Question{Kind: inspect.AskPolicies, ID: "shop/db"})
	key := list[0].Rules[0].Key
	p.nodes.answers["node1"] = inspect.NodeFlows{Node: "node1", Flows: []inspect.Flow{{Table: 40, Rules: []policy.Key{key}, Origins: []policy.Origin{{Policy: "other/one"}}, Note: "allow other/one"}}}
	nf, err := asked[inspect.NodeFlows](p, inspect.Question{Kind: inspect.AskFlows, Node: "node1", ID: "shop/db"})
	if err != nil || len(nf.Flows) != 1 || !slices.ContainsFunc(nf.Flows[0].Origins, func(o policy.Origin) bool { return o.Policy == "shop/db" }) || !strings.Contains(nf.Flows[0].Note, "shop/db") {
		t.Errorf("%+v, %v", nf, err)
	}
	if q := p.nodes.asked[0]; q.Kind != inspect.QueryFlows || !slices.Contains(q.Rules, key) || len(q.Rules) != len(list[0].Rules) {
		t.Errorf("the node was asked %+v", q)
	}
	if _, err := asked[inspect.NodeFlows](p, inspect.Question{Kind: inspect.AskFlows, Node: "node1"}); err != nil || p.nodes.asked[1].Rules != nil {
		t.Errorf("all flows: %v, the node was asked %+v", err, p.nodes.asked[1])
	}
	if _, err := asked[any](p, inspect.Question{Kind: inspect.AskFlows, Node: "node1", ID: "shop/nobody"}); status.Code(err) != codes.NotFound || len(p.nodes.asked) != 2 {
		t.Errorf("of a policy that is none: %v", err)
	}
	p.nodes.answers["node2"] = "hello"
	if _, err := asked[any](p, inspect.Question{Kind: inspect.AskFlows, Node: "node2"}); err == nil || !strings.Contains(err.Error(), "node2") {
		t.Errorf("nonsense: %v", err)
	}
	// a node that does not answer is named before who asks has given up
	var end context.CancelFunc
	p.admin, end = context.WithTimeout(p.admin, 3*time.Second) // a tenth of it is left for the answer
	defer end()
	if _, err := asked[any](p, inspect.Question{Kind: inspect.AskFlows, Node: "node3"}); err == nil || !strings.Contains(err.Error(), "node node3 does not respond") || p.admin.Err() != nil {
		t.Errorf("a silent node: %v; who asked: %v", err, p.admin.Err())
	}
}

func TestLookup(t *testing.T) {
	p := newPlace(t)
	q := inspect.Question{Kind: inspect.AskLookup, Namespace: "shop", Selector: ptr(is("app", "api"))}
	for _, source := range []labelcache.Source{labelcache.Computed, labelcache.InProcess} {
		if l, err := asked[inspect.Lookup](p, q); err != nil || l.Source != string(source) || !slices.Equal(l.Endpoints, []string{"shop/api"}) {
			t.Errorf("%+v, %v; want it from %s", l, err, source)
		}
	}
	q.Selector = ptr(is("app", "nobody"))
	if l, err := asked[inspect.Lookup](p, q); err != nil || l.Endpoints == nil || len(l.Endpoints) > 0 {
		t.Errorf("a selector that chooses nobody: %+v, %v", l, err)
	}
	for _, q := range []inspect.Question{{Kind: inspect.AskLookup}, {Kind: inspect.AskLookup, Namespace: "shop"}, {Kind: inspect.AskLookup, Selector: &policy.Selector{}}} {
		if _, err := asked[any](p, q); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%+v: %v", q, err)
		}
	}
	if c, err := asked[inspect.Cache](p, inspect.Question{Kind: inspect.AskCache}); err != nil || c.Entries != 2 || c.Hits != 1 || c.Misses != 2 || c.Connected {
		t.Errorf("the cache: %+v, %v", c, err)
	}
}

func TestDB(t *testing.T) {
	p := newPlace(t)
	if db, err := asked[inspect.DB](p, inspect.Question{Kind: inspect.AskDB}); err != nil || db.Error != "" || db.Problems == nil || len(db.Problems) > 0 || db.Waiting != 0 {
		t.Errorf("%+v, %v", db, err)
	}
}

// While the owner is away everything that needs it says so, and nothing is made up.
func TestWithoutTheOwner(t *testing.T) {
	p := newPlace(t)
	p.owner.fault = errors.New("netmaster is stopping")
	for _, q := range []inspect.Question{{Kind: inspect.AskStatus}, {Kind: inspect.AskPolicies}, {Kind: inspect.AskPolicies, ID: "shop/db"}, {Kind: inspect.AskEndpoints}, {Kind: inspect.AskEndpoints, ID: "shop/db"},
		{Kind: inspect.AskFlows, Node: "node1", ID: "shop/db"}, {Kind: inspect.AskLookup, Namespace: "shop", Selector: &policy.Selector{}}} {
		if _, err := asked[any](p, q); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "netmaster is stopping") {
			t.Errorf("%+v: %v", q, err)
		}
	}
}

// Who waits for nothing, for no policy, or as one too many, is told so.
func TestWait_Rejected(t *testing.T) {
	p := newPlace(t)
	for _, q := range []inspect.Question{{Kind: inspect.AskWait}, {Kind: inspect.AskWait, ID: "shop/db"}, {Kind: inspect.AskWait, ID: "db", Wait: &inspect.WaitFor{}}} {
		if _, err := asked[any](p, q); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%+v: %v", q, err)
		}
	}
	for range maxWaiters {
		p.policies.waiters <- struct{}{}
	}
	if _, err := asked[any](p, inspect.Question{Kind: inspect.AskWait, ID: "shop/db", Wait: &inspect.WaitFor{}}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one too many: %v", err)
	}
}
