package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apifeed "github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/internal/keyed"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/internal/reference"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// until waits for what other goroutines do.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for ; !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("never happened: " + what)
		}
	}
}

// world is a state directory, key material, and a fake API server that can be away.
type world struct {
	*testing.T
	dir, pki string
	client   *fake.Clientset

	mu      sync.Mutex
	away    bool
	watched map[string]bool // resources that the netmaster started last watches
	reports []string
	log     strings.Builder
}

// Write takes the log.
func (w *world) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(b)
}

func (w *world) logged(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Contains(w.log.String(), text)
}

func newWorld(t *testing.T, objects ...runtime.Object) *world {
	t.Helper()
	for _, name := range []string{"node1", "node2"} {
		isIt := func(o runtime.Object) bool { n, ok := o.(*corev1.Node); return ok && n.Name == name }
		if !slices.ContainsFunc(objects, isIt) {
			objects = append(objects, nodeObject(name))
		}
	}
	w := &world{
		T:       t,
		dir:     t.TempDir(),
		pki:     filepath.Join(t.TempDir(), "pki"),
		client:  fake.NewClientset(objects...),
		watched: map[string]bool{},
	}
	for _, err := range []error{mtls.Init(w.pki), mtls.IssueServer(w.pki, []string{"127.0.0.1"}), mtls.IssueNode(w.pki, "node1"), mtls.IssueNode(w.pki, "node2")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	w.client.PrependReactor("list", "*", func(k8stesting.Action) (bool, runtime.Object, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.away {
			return true, nil, errors.New("connection refused by the test")
		}
		return false, nil, nil
	})
	w.client.PrependWatchReactor("*", func(a k8stesting.Action) (bool, apiwatch.Interface, error) {
		var opts metav1.ListOptions
		if watchAction, ok := a.(k8stesting.WatchActionImpl); ok {
			opts = watchAction.ListOptions
		}
		started, err := w.client.Tracker().Watch(a.GetResource(), a.GetNamespace(), opts)
		w.sees(a.GetResource().Resource) // not before: changes from now on reach the watch
		return true, started, err
	})
	return w
}

// sees notes that netmaster watches a resource.
func (w *world) sees(resource string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watched[resource] = true
}

// watching waits until netmaster watches what it has listed: the fake API server keeps no change between the two for a
// watch.
func (w *world) watching() {
	w.Helper()
	for _, resource := range []string{"namespaces", "networkpolicies", "nodes", "pods", "services", "endpointslices"} {
		until(w.T, resource+" are watched", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.watched[resource]
		})
	}
}

func (w *world) apiServer(away bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.away = away
}

// Emit records the Events that users see.
func (w *world) Emit(reason wellknown.EventReason, namespace, name, _, message string) {
	event := wellknown.EventOf(reason)
	if event == nil || event.Writer != wellknown.NetmasterEvents {
		w.Errorf("netmaster writes Events of reason %s, of which api/wellknown knows nothing", reason)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reports = append(w.reports, fmt.Sprintf("%s %s/%s %s: %s", event.Kind, namespace, name, reason, message))
}

func (w *world) reported(parts ...string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.reports, func(r string) bool {
		return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(r, p) })
	})
}

func (w *world) files(name string) mtls.Files {
	return keyFiles(w.pki, name)
}

// keyFiles returns the files of a certificate.
func keyFiles(dir, name string) mtls.Files {
	return mtls.Files{
		CA:   filepath.Join(dir, "ca.crt"),
		Cert: filepath.Join(dir, name+".crt"),
		Key:  filepath.Join(dir, name+".key"),
	}
}

// master is a running netmaster.
type master struct {
	*world
	addr   string
	health *process.Health
	reg    *prometheus.Registry
	cancel context.CancelFunc
	done   chan error
}

func (w *world) start(change ...func(*Config)) *master {
	w.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(w, nil))
	w.mu.Lock()
	w.watched = map[string]bool{}
	w.mu.Unlock()
	watcher, err := watch.New(w.client, nil, log)
	if err != nil {
		w.Fatal(err)
	}
	m := &master{world: w, addr: listener.Addr().String(), health: new(process.Health), reg: prometheus.NewRegistry(), done: make(chan error, 1)}
	cfg := Config{Listener: listener, TLS: w.files("server"), StateDir: w.dir,
		Version: "test", Watcher: watcher, Logger: log, Registerer: m.reg, Health: m.health, Report: w,
		NoPodCIDRs: true, StaticPodNamespaces: []string{"ns"}}
	for _, f := range change {
		f(&cfg)
	}
	cfg.Health.SetReady("state", "starting")
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	go func() { m.done <- Run(ctx, cfg) }()
	w.Cleanup(m.stop)
	return m
}

func (m *master) stop() {
	m.Helper()
	if m.cancel == nil {
		return
	}
	m.cancel()
	m.cancel = nil
	if err := <-m.done; err != nil {
		m.Error(err)
	}
	declared := reference.NewMetrics()
	DeclareMetrics(declared)
	families, err := m.reg.Gather()
	if err != nil {
		m.Error(err)
	}
	for _, f := range families {
		if !declared.Has(f.GetName()) {
			m.Errorf("DeclareMetrics knows nothing of %s", f.GetName())
		}
	}
}

func (m *master) ready() {
	m.Helper()
	until(m.T, "ready", func() bool { return m.health.NotReady() == "" })
}

// leads returns a condition: the metrics show that it leads in this epoch. The metrics of an earlier term remain until
// they are next set.
func (m *master) leads(epoch uint64) func() bool {
	return func() bool {
		return m.metric("netmaster_leads") == 1 && m.metric("netmaster_epoch") == float64(epoch)
	}
}

func (m *master) metric(name string) float64 {
	m.Helper()
	families, err := m.reg.Gather()
	if err != nil {
		m.Fatal(err)
	}
	sum := -1.0
	for _, f := range families {
		if f.GetName() == "flowkeep_"+name {
			sum = 0
			for _, x := range f.GetMetric() {
				sum += x.GetGauge().GetValue() + x.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// node is a node's end of the feed: it keeps what it was sent over reconnections.
type node struct {
	*world
	name string

	mu       sync.Mutex
	revision uint64
	rules    map[policy.Key]*policy.Rule
	groups   map[policy.GroupKind]map[policy.Key]map[netip.Addr]bool
	settled  map[string]bool
	wired    []wire.Announcement
	sent     int // rules and groups in the updates of this connection
	updates  int // of this connection
	welcomed bool
	infos    []policy.NodeInfo
	keyed    keyed.Set // of which infos are made
	services keyed.Set
	stream   grpc.BidiStreamingClient[apifeed.NodeMessage, apifeed.MasterMessage]
	end      func()
	traffic  string
	links    *policy.Links
	versions [2]uint32        // of the protocol; zero: this build's
	ended    error            // why the connection ended
	wrong    []wire.RuleError // told in acks
	mute     bool             // acknowledges nothing
}

func (w *world) node(name string) *node {
	return &node{world: w, name: name, rules: map[policy.Key]*policy.Rule{}, settled: map[string]bool{},
		groups: map[policy.GroupKind]map[policy.Key]map[netip.Addr]bool{policy.PeerGroup: {}, policy.AppliedToGroup: {}}}
}

func (n *node) hello() *wire.Hello {
	if n.versions == [2]uint32{} {
		n.versions = [2]uint32{apifeed.MinVersion, apifeed.MaxVersion}
	}
	h := &wire.Hello{
		Node:        n.name,
		Program:     "test",
		Versions:    wire.Versions{Min: n.versions[0], Max: n.versions[1]},
		Revision:    n.revision,
		Announced:   n.wired,
		TrafficMode: n.traffic,
		Links:       n.links,
	}
	h.Nodes, h.Services = n.keyed.Sums(), n.services.Sums()
	for k, r := range n.rules {
		h.Held = append(h.Held, wire.Held{Key: k, Hash: r.Hash()})
	}
	for kind, groups := range n.groups {
		for k, members := range groups {
			h.Held = append(h.Held, wire.Held{Group: kind, Key: k, Hash: policy.MembersHash(maps.Keys(members))})
		}
	}
	return h
}

// connect says hello, and takes over what comes, until the connection ends.
func (n *node) connect(m *master) {
	n.Helper()
	config, err := n.files(n.name).ClientConfig()
	if err != nil {
		n.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+m.addr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		n.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stream, err = apifeed.NewFeedClient(conn).Stream(ctx); err != nil {
		n.Fatal(err)
	}
	n.sent, n.updates, n.welcomed = 0, 0, false
	for part := range wire.HelloParts(n.hello()) {
		if err := n.stream.Send(part); err != nil && !errors.Is(err, io.EOF) { // refused: receive is told why
			n.Fatal(err)
		}
	}
	done := make(chan struct{})
	stream := n.stream
	go func() { defer close(done); n.receive(stream) }()
	var once sync.Once
	n.end = func() { once.Do(func() { cancel(); <-done; conn.Close() }) }
	n.Cleanup(n.end)
}

// comeBack connects until the node is served.
func (n *node) comeBack(m *master) {
	n.Helper()
	served := false
	for limit := time.Now().Add(patience); !served; {
		if time.Now().After(limit) {
			n.Fatal("never served: " + n.name)
		}
		if n.end != nil {
			n.end()
		}
		n.is(func() bool { n.ended = nil; return true })()
		n.connect(m)
		until(n.T, n.name+" is served or refused", n.is(func() bool {
			served = n.updates > 0
			return served || n.ended != nil
		}))
	}
}

func (n *node) receive(stream grpc.BidiStreamingClient[apifeed.NodeMessage, apifeed.MasterMessage]) {
	var updates wire.UpdateAssembler
	for {
		msg, err := stream.Recv()
		if err != nil {
			n.mu.Lock()
			n.ended = err
			n.mu.Unlock()
			return
		}
		n.mu.Lock()
		n.welcomed = n.welcomed || msg.GetWelcome() != nil
		if m := msg.GetNodes(); m != nil {
			if n.infos, err = wire.ToNodes(m); err != nil {
				n.Error(err)
			}
		}
		if m := msg.GetKeyed(); m != nil {
			n.takeKeyed(m)
		}
		if m := msg.GetUpdate(); m != nil {
			u, whole, err := updates.Add(m)
			if err != nil {
				n.Error(err)
			}
			if whole {
				n.update(&u)
			}
			if whole && !n.mute {
				_ = stream.Send(wire.FromAck(&wire.Ack{Revision: u.Revision, Errors: n.wrong}))
			}
		}
		n.mu.Unlock()
	}
}

// takeKeyed takes a change of the list of nodes, or of Services, over.
func (n *node) takeKeyed(m *apifeed.Keyed) {
	set := &n.keyed
	if m.Set == apifeed.KeyedSet_KEYED_SET_SERVICES {
		set = &n.services
	}
	d, err := wire.ToKeyed(m)
	if err == nil {
		err = set.Apply(&d)
	}
	if err == nil {
		n.infos, err = wire.NodeList(&n.keyed)
	}
	if err != nil {
		n.Error(err)
	}
}

func (n *node) update(u *policy.NodeUpdate) {
	n.revision = u.Revision
	n.updates++
	n.sent += len(u.Rules) + len(u.Groups)
	for _, r := range u.Rules {
		if r.Rule == nil {
			delete(n.rules, r.Key)
		} else {
			n.rules[r.Key] = r.Rule
		}
	}
	for _, g := range u.Groups {
		if g.Gone {
			delete(n.groups[g.Kind], g.Key)
			continue
		}
		members := n.groups[g.Kind][g.Key]
		if members == nil || g.Replace {
			members = map[netip.Addr]bool{}
			n.groups[g.Kind][g.Key] = members
		}
		for _, a := range g.Removed {
			delete(members, a)
		}
		for _, a := range g.Added {
			members[a] = true
		}
		for _, k := range g.Alike {
			n.groups[g.Kind][k] = maps.Clone(members)
		}
	}
	for _, s := range u.Settled {
		n.settled[s.ID] = true
	}
}

func (n *node) say(msg *apifeed.NodeMessage) {
	n.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.stream.Send(msg); err != nil {
		n.Fatal(err)
	}
}

// is reads the node's state safely.
func (n *node) is(f func() bool) func() bool {
	return func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return f()
	}
}

// peers are all addresses in peer groups.
func (n *node) peers() string {
	var out []string
	for _, members := range n.groups[policy.PeerGroup] {
		for a := range members {
			out = append(out, a.String())
		}
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), " ")
}

// isolates tells whether rules that let nothing through apply to an address in these directions, and in no other.
func (n *node) isolates(address string, in ...policy.Direction) func() bool {
	return n.is(func() bool {
		had := map[policy.Direction]bool{}
		for _, r := range n.rules {
			if n.groups[policy.AppliedToGroup][r.AppliedTo][netip.MustParseAddr(address)] && len(r.Peers) == 0 {
				had[r.Direction] = true
			}
		}
		ok := len(had) == len(in)
		for _, d := range in {
			ok = ok && had[d]
		}
		return ok
	})
}

// Objects.

func ns(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// nodeObject returns a Node without podCIDRs. The address ends as the name does.
func nodeObject(name string) *corev1.Node {
	address := "192.0.2." + strings.TrimPrefix(name, "node")
	addresses := []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Addresses: addresses}}
}

// pod returns a pod with an address in its status. It has no sandbox, so that nodes of tests need not announce it.
func pod(name, app, node, ip string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{
			PodIP:      ip,
			Phase:      corev1.PodRunning,
			Conditions: sandbox(corev1.ConditionFalse),
		}}
}

func sandbox(status corev1.ConditionStatus) []corev1.PodCondition {
	return []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: status}}
}

func netpol(t *testing.T, name, spec string) *networkingv1.NetworkPolicy {
	t.Helper()
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	if err := yaml.UnmarshalStrict([]byte(spec), &np.Spec); err != nil {
		t.Fatal(err)
	}
	return np
}

const webToDB = `{podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 5432}]}]}`

// shop is a db on node1, a web on node2, and a policy between them.
func shop(t *testing.T) []runtime.Object {
	return []runtime.Object{ns("ns"), nodeObject("node1"), nodeObject("node2"), pod("db", "db", "node1", "10.0.1.1"), pod("web", "web", "node2", "10.0.2.1"), netpol(t, "p", webToDB)}
}

func announce(a *wire.Announcement) *apifeed.NodeMessage {
	return &apifeed.NodeMessage{Message: &apifeed.NodeMessage_Announce{Announce: wire.FromAnnouncement(a)}}
}

func withdraw(a *wire.Announcement) *apifeed.NodeMessage {
	return &apifeed.NodeMessage{Message: &apifeed.NodeMessage_Withdraw{Withdraw: wire.FromAnnouncement(a)}}
}
