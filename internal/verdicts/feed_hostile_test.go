package verdicts

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apifeed "github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/internal/wire"
	masterfeed "github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	nodefeed "github.com/flowkeep/flowkeep/netplugin/feed"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"
)

type rawStream = grpc.BidiStreamingClient[apifeed.NodeMessage, apifeed.MasterMessage]

// dial opens a stream with a certificate, for what no netplugin would say.
func (m *master) dial(certificate string, options ...grpc.CallOption) rawStream {
	m.t.Helper()
	config, err := files(m.dir, certificate).ClientConfig()
	must(m.t, err)
	conn, err := grpc.NewClient("passthrough:///"+m.addr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	must(m.t, err)
	m.t.Cleanup(func() { conn.Close() })
	stream, err := apifeed.NewFeedClient(conn).Stream(context.Background(), options...)
	must(m.t, err)
	return stream
}

// TestNetmastersOwnCertificateIsNoNodes: with it a standby forwards questions to the leader, and is no node.
func TestNetmastersOwnCertificateIsNoNodes(t *testing.T) {
	m := startMaster(t)
	config, err := files(m.dir, "server").ClientConfig()
	must(t, err)
	conn, err := grpc.NewClient("passthrough:///"+m.addr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	must(t, err)
	defer conn.Close()
	stream, err := apifeed.NewFeedClient(conn).Stream(t.Context())
	must(t, err)
	send(t, stream, helloMessage(hello("node1")))
	if err := end(stream); status.Code(err) != codes.PermissionDenied {
		t.Error(err)
	}
}

func hello(node string) *apifeed.Hello {
	return &apifeed.Hello{Node: node, ProgramVersion: "v0", MinVersion: apifeed.MinVersion, MaxVersion: apifeed.MaxVersion}
}

func helloMessage(h *apifeed.Hello) *apifeed.NodeMessage {
	return &apifeed.NodeMessage{Message: &apifeed.NodeMessage_Hello{Hello: h}}
}

func announcement(name string, address byte) *apifeed.Announcement {
	return wire.FromAnnouncement(&wire.Announcement{Namespace: "ns", Name: name, UID: "u", Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, address})}})
}

// send sends a message. When the server has ended the stream already, Send returns io.EOF and Recv has the reason.
func send(t *testing.T, stream rawStream, m *apifeed.NodeMessage) {
	t.Helper()
	if err := stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

// end is why a stream ended.
func end(stream rawStream) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for limit := time.Now().Add(3 * time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("waited in vain for " + what)
		}
	}
}

// counted is the sum of a metric.
func counted(t *testing.T, reg *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := reg.Gather()
	must(t, err)
	for _, f := range families {
		if f.GetName() == name {
			for _, x := range f.GetMetric() {
				sum += x.GetCounter().GetValue() + x.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// oldCodec is how version 1 of the protocol encoded.
type oldCodec struct{}

func (oldCodec) Marshal(any) ([]byte, error) {
	return json.Marshal(map[string]any{"hello": map[string]any{"node": "node1"}})
}
func (oldCodec) Unmarshal([]byte, any) error { return errors.New("not reached") }
func (oldCodec) Name() string                { return "flowkeep-json" }
func init()                                  { encoding.RegisterCodec(oldCodec{}) }
func (m *master) status(node string) masterfeed.NodeStatus {
	for _, n := range m.feed.Nodes() {
		if n.Name == node {
			return n
		}
	}
	return masterfeed.NodeStatus{}
}

// TestHostileNodesAreRefused: each is told why, with a code, and counted; none is connected.
func TestHostileNodesAreRefused(t *testing.T) {
	reg := prometheus.NewRegistry()
	var mu sync.Mutex
	told := map[string]int{}
	m := startMaster(t, func(m *master) {
		m.config = func(c *masterfeed.Config) {
			c.Registerer, c.HelloTimeout = reg, 300*time.Millisecond
			c.Refused = func(node, message string) { mu.Lock(); defer mu.Unlock(); told[node+": "+message]++ }
		}
	})
	must(t, mtls.IssueAdmin(m.dir))
	m.feed.Ready()
	node, other := policytest.Nodes[0], policytest.Nodes[1]
	with := func(change func(*apifeed.Hello)) []*apifeed.NodeMessage {
		h := hello(node)
		change(h)
		return []*apifeed.NodeMessage{helloMessage(h)}
	}
	ack := func(change func(*apifeed.Ack)) []*apifeed.NodeMessage {
		a := new(apifeed.Ack)
		change(a)
		return []*apifeed.NodeMessage{helloMessage(hello(node)), {Message: &apifeed.NodeMessage_Ack{Ack: a}}}
	}
	announce := func(a *apifeed.Announcement) []*apifeed.NodeMessage {
		return []*apifeed.NodeMessage{helloMessage(hello(node)), {Message: &apifeed.NodeMessage_Announce{Announce: a}}}
	}
	for name, test := range map[string]struct {
		certificate string
		say         []*apifeed.NodeMessage
		code        codes.Code
		want        string
	}{
		"another's name":        {node, []*apifeed.NodeMessage{helloMessage(hello(other))}, codes.PermissionDenied, "claims to be"},
		"changes its name":      {node, append(with(func(h *apifeed.Hello) { h.More = true }), helloMessage(hello(other))), codes.PermissionDenied, "claims to be"},
		"no name":               {node, []*apifeed.NodeMessage{helloMessage(hello(""))}, codes.PermissionDenied, "claims to be"},
		"an administrator":      {"admin", []*apifeed.NodeMessage{helloMessage(hello(node))}, codes.PermissionDenied, "not a node's"},
		"newer":                 {node, with(func(h *apifeed.Hello) { h.MinVersion, h.MaxVersion = 7, 9 }), codes.FailedPrecondition, "speaks versions 7 to 9 of the feed, this netmaster 2 to 6: upgrade the older"},
		"older":                 {node, with(func(h *apifeed.Hello) { h.MinVersion, h.MaxVersion = 0, 1 }), codes.FailedPrecondition, "upgrade the older"},
		"no version":            {node, with(func(h *apifeed.Hello) { h.MinVersion, h.MaxVersion = 0, 0 }), codes.FailedPrecondition, "upgrade the older"},
		"says nothing":          {node, nil, codes.DeadlineExceeded, "not said hello"},
		"never ends its hello":  {node, with(func(h *apifeed.Hello) { h.More = true }), codes.DeadlineExceeded, "not said hello"},
		"no hello":              {node, ack(func(*apifeed.Ack) {})[1:], codes.InvalidArgument, "must be a hello"},
		"empty message":         {node, []*apifeed.NodeMessage{{}}, codes.InvalidArgument, "must be a hello"},
		"two hellos":            {node, []*apifeed.NodeMessage{helloMessage(hello(node)), helloMessage(hello(node))}, codes.InvalidArgument, "second hello"},
		"nonsense held":         {node, with(func(h *apifeed.Hello) { h.HeldRules = []byte{1} }), codes.InvalidArgument, "no list of keys"},
		"loopback":              {node, announce(wire.FromAnnouncement(&wire.Announcement{Namespace: "a", Name: "b", Addresses: []netip.Addr{netip.MustParseAddr("::1")}})), codes.InvalidArgument, "no pod's address"},
		"no pod":                {node, announce(new(apifeed.Announcement)), codes.InvalidArgument, "not a pod's name"},
		"endless errors":        {node, ack(func(a *apifeed.Ack) { a.Errors = slices.Repeat([]*apifeed.RuleError{{}}, 1000) }), codes.InvalidArgument, "1000 errors"},
		"a large error":         {node, ack(func(a *apifeed.Ack) { a.Errors = []*apifeed.RuleError{{Message: strings.Repeat("x", 2000)}} }), codes.InvalidArgument, "larger than"},
		"larger than a message": {node, with(func(h *apifeed.Hello) { h.HeldRules = make([]byte, apifeed.MaxNodeMessage) }), codes.ResourceExhausted, "larger than max"},
	} {
		before := counted(t, reg, "flowkeep_netmaster_feed_refused_total")
		stream := m.dial(test.certificate)
		for _, message := range test.say {
			_ = stream.Send(message)
		}
		if err := end(stream); status.Code(err) != test.code || !strings.Contains(status.Convert(err).Message(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
		eventually(t, name+" to be counted", func() bool { return counted(t, reg, "flowkeep_netmaster_feed_refused_total") == before+1 })
		if test.certificate == node {
			eventually(t, name+" to be shown", func() bool {
				st := m.status(node)
				return !st.Connected && strings.Contains(st.Refused, test.want)
			})
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for message := range told {
		if !strings.HasPrefix(message, node+": ") {
			t.Errorf("told of %q", message)
		}
	}
	if len(told) < 14 {
		t.Errorf("%d refusals were told", len(told))
	}
}

// TestRefusal_LoggedOnce, and is gone once the node is served.
func TestRefusal_LoggedOnce(t *testing.T) {
	var mu sync.Mutex
	told := 0
	m := startMaster(t, func(m *master) {
		m.config = func(c *masterfeed.Config) { c.Refused = func(string, string) { mu.Lock(); told++; mu.Unlock() } }
	})
	m.feed.Ready()
	node := policytest.Nodes[0]
	for range 5 {
		stream := m.dial(node)
		h := hello(node)
		h.MinVersion, h.MaxVersion = 7, 7
		send(t, stream, helloMessage(h))
		if err := end(stream); status.Code(err) != codes.FailedPrecondition {
			t.Fatal(err)
		}
	}
	mu.Lock()
	if told != 1 {
		t.Errorf("told %d times", told)
	}
	mu.Unlock()
	stop := m.join(node, node, newHolder())
	defer stop()
	eventually(t, "the node to be served", func() bool { st := m.status(node); return st.Connected && st.Refused == "" })
}

// TestVersionOneIsRefused: it spoke JSON.
func TestVersionOneIsRefused(t *testing.T) {
	m := startMaster(t)
	m.feed.Ready()
	stream := m.dial(policytest.Nodes[0], grpc.CallContentSubtype("flowkeep-json"))
	_ = stream.Send(&apifeed.NodeMessage{})
	if err := end(stream); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "version 1") {
		t.Error(err)
	}
}

// TestANodeCannotAnnounceWithoutEnd: what it may announce is bounded, over one connection and its hello.
func TestANodeCannotAnnounceWithoutEnd(t *testing.T) {
	m := startMaster(t, func(m *master) {
		m.config = func(c *masterfeed.Config) {
			c.Events = func(context.Context, masterfeed.Event) error { return nil }
		}
	})
	m.feed.Ready()
	node := policytest.Nodes[0]
	stream := m.dial(node)
	h := hello(node)
	for i := range wire.MaxAnnounced {
		h.Announced = append(h.Announced, announcement(fmt.Sprint("pod", i), byte(i)))
	}
	send(t, stream, helloMessage(h))
	again := &apifeed.NodeMessage{Message: &apifeed.NodeMessage_Announce{Announce: announcement("pod7", 9)}}
	send(t, stream, again) // no more than before
	send(t, stream, &apifeed.NodeMessage{Message: &apifeed.NodeMessage_Withdraw{Withdraw: announcement("pod7", 9)}})
	send(t, stream, &apifeed.NodeMessage{Message: &apifeed.NodeMessage_Announce{Announce: announcement("more", 9)}})
	eventually(t, "the connection", func() bool { return m.status(node).Connected })
	_ = stream.Send(again)
	if err := end(stream); status.Code(err) != codes.ResourceExhausted {
		t.Error(err)
	}
}

// TestTheNewestStreamOfANodeCounts: it ends the older ones, also those that do not listen, and nothing is heard of them after it.
func TestTheNewestStreamOfANodeCounts(t *testing.T) {
	var mu sync.Mutex
	var log []string
	m := startMaster(t, func(m *master) {
		m.events = func(ev masterfeed.Event) {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case ev.Connected != nil:
				log = append(log, "hello of "+ev.Connected.Program)
			case ev.Announce != nil:
				log = append(log, "announce of "+ev.Announce.UID)
			case ev.Gone:
				log = append(log, "gone")
			}
		}
	})
	m.feed.Ready()
	node := policytest.Nodes[0]
	var streams []rawStream
	for i := range 10 {
		stream := m.dial(node)
		h := hello(node)
		h.ProgramVersion = fmt.Sprint(i)
		send(t, stream, helloMessage(h))
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		for range 200 {
			a := announcement("pod", 1)
			a.Uid = h.ProgramVersion
			if stream.Send(&apifeed.NodeMessage{Message: &apifeed.NodeMessage_Announce{Announce: a}}) != nil {
				break
			}
		}
		streams = append(streams, stream)
	}
	for i, stream := range streams[:9] {
		if err := end(stream); status.Code(err) != codes.Aborted {
			t.Errorf("stream %d: %v", i, err)
		}
	}
	eventually(t, "the last stream", func() bool { return m.status(node).Version == "9" })
	must(t, streams[9].CloseSend())
	eventually(t, "its end", func() bool { return !m.status(node).Connected })
	mu.Lock()
	defer mu.Unlock()
	now := ""
	for _, line := range log {
		if whose, ok := strings.CutPrefix(line, "hello of "); ok {
			now = whose
		} else if whose, ok := strings.CutPrefix(line, "announce of "); ok && whose != now {
			t.Fatalf("stream %s was heard after the hello of %s", whose, now)
		} else if line == "gone" && now != "9" {
			t.Errorf("gone after the hello of %s", now)
		}
	}
}

// TestANodeThatTakesNothingIsLetGo: it holds nobody up, what waits for it is bounded, and it may come back.
func TestANodeThatTakesNothingIsLetGo(t *testing.T) {
	m := startMaster(t, func(m *master) {
		m.config = func(c *masterfeed.Config) { c.SendTimeout = 5 * time.Second }
	})
	w := crowd(60_000)
	m.apply(worldBatch(w))
	m.feed.Ready()
	deaf, good := policytest.Nodes[0], policytest.Nodes[1]
	stream := m.dial(deaf)
	send(t, stream, helloMessage(hello(deaf)))
	h := newHolder()
	stop := m.join(good, good, h)
	defer stop()
	want := wanted(worldBatch(w), good)
	h.until(t, "the other node's span", func() bool { return h.same(want) })
	eventually(t, "the deaf node to be let go", func() bool {
		st := m.status(deaf)
		return !st.Connected && strings.Contains(st.Refused, "no longer receives updates")
	})
	back := newHolder()
	defer m.join(deaf, deaf, back)()
	want = wanted(worldBatch(w), deaf)
	back.until(t, "the deaf node's span", func() bool { return back.same(want) })
}

// crowd is one pod on each node, which n pods may reach.
func crowd(n int) *policy.World {
	w := &policy.World{Namespaces: []policy.Namespace{{Name: "ns"}}}
	for i, node := range policytest.Nodes {
		w.Endpoints = append(w.Endpoints, &policy.Endpoint{Namespace: "ns", Name: node, Node: node, Labels: map[string]string{"app": "db"}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, byte(i + 1)})}})
	}
	for i := range n {
		w.Endpoints = append(w.Endpoints, &policy.Endpoint{Namespace: "ns", Name: fmt.Sprint("web", i), Node: "elsewhere", Labels: map[string]string{"app": "web"},
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(2 + i>>16), byte(i >> 8), byte(i)}), netip.AddrFrom16([16]byte{0: 0xfd, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})}})
	}
	app := func(name string) policy.Selector {
		return policy.Selector{Requirements: []policy.Requirement{{Key: "app", Operator: policy.In, Values: []string{name}}}}
	}
	web := app("web")
	w.Policies = []*policy.Policy{{Namespace: "ns", Name: "p", AppliedTo: app("db"), IsolatesIngress: true, Ingress: []policy.PolicyRule{{AnyPort: true, Peers: []policy.Peer{{Pods: &web}}}}}}
	return w
}

// TestAPolicyLargerThanAMessageArrives.
func TestAPolicyLargerThanAMessageArrives(t *testing.T) {
	m := startMaster(t)
	w := crowd(1)
	rule := &w.Policies[0].Ingress[0]
	for i := range 150_000 {
		a := netip.AddrFrom16([16]byte{0: 0x20, 1: 1, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})
		rule.Peers = append(rule.Peers, policy.Peer{Block: &policy.IPBlock{CIDR: netip.PrefixFrom(a, 128)}})
	}
	m.apply(worldBatch(w))
	m.feed.Ready()
	node := policytest.Nodes[0]
	h := newHolder()
	defer m.join(node, node, h)()
	want := wanted(worldBatch(w), node)
	h.until(t, "the rule", func() bool { return h.same(want) })
	if len(h.rules) != 2 {
		t.Errorf("%d rules", len(h.rules))
	}
}

// TestNodesTellWhatIsNotInForce: by rule; netmaster says itself which policies those are, whatever the node says.
func TestNodesTellWhatIsNotInForce(t *testing.T) {
	reg := prometheus.NewRegistry()
	acks := make(chan *wire.Ack, 100)
	m := startMaster(t, func(m *master) {
		m.config = func(c *masterfeed.Config) { c.Registerer = reg }
		m.events = func(ev masterfeed.Event) {
			if ev.Ack != nil {
				acks <- ev.Ack
			}
		}
	})
	w := crowd(1)
	m.apply(worldBatch(w))
	m.feed.Ready()
	node := policytest.Nodes[0]
	h := newHolder()
	var key policy.Key
	for k, r := range wanted(worldBatch(w), node).rules {
		if len(r.Peers) > 0 {
			key = k
		}
	}
	h.wrong = []wire.RuleError{{Rules: []policy.Key{key, {9}}, Origins: []policy.Origin{{Policy: "kube-system/dns"}}, Message: "refused"}, {Rules: []policy.Key{{9}}, Origins: []policy.Origin{{Policy: "kube-system/dns"}}, Message: "not mine"}}
	stop := m.join(node, node, h)
	defer stop()
	eventually(t, "the errors", func() bool { return len(m.status(node).Errors) == 2 })
	st := m.status(node)
	if e := st.Errors[0]; len(e.Origins) != 1 || e.Origins[0] != (policy.Origin{Policy: "ns/p"}) || !e.Concerns(key) || e.Concerns(policy.Key{8}) || st.Realised != st.Sent {
		t.Errorf("%+v", st)
	}
	if e := st.Errors[1]; len(e.Origins) != 0 || e.Concerns(key) {
		t.Errorf("%+v", e)
	}
	if a := <-acks; len(a.Errors) != 2 || len(a.Errors[0].Origins) != 1 {
		t.Errorf("%+v", a)
	}
	if n := counted(t, reg, "flowkeep_netmaster_feed_errors"); n != 2 {
		t.Errorf("%v errors are counted", n)
	}
	h.mu.Lock()
	h.wrong = nil
	h.mu.Unlock()
	e := *w.Endpoints[2]
	e.Addresses = nil
	m.apply(resolve.Batch{Endpoints: []*policy.Endpoint{&e}})
	eventually(t, "the errors to go", func() bool { return len(m.status(node).Errors) == 0 })
	if n := counted(t, reg, "flowkeep_netmaster_feed_errors"); n != 0 {
		t.Errorf("%v errors are counted", n)
	}
}

// strange is a netmaster that answers a hello with what it is told to.
type strange struct {
	apifeed.UnimplementedFeedServer
	say []*apifeed.MasterMessage
	err error
}

func (s *strange) Stream(stream grpc.BidiStreamingServer[apifeed.NodeMessage, apifeed.MasterMessage]) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	for _, m := range s.say {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	if s.err == nil {
		<-stream.Context().Done()
	}
	return s.err
}

// TestNodesRefuseAStrangeNetmaster: one of another version, or that makes no sense, changes nothing; the log says why.
func TestNodesRefuseAStrangeNetmaster(t *testing.T) {
	dir := t.TempDir()
	must(t, mtls.Init(dir))
	must(t, mtls.IssueServer(dir, []string{"127.0.0.1"}))
	must(t, mtls.IssueNode(dir, "node1"))
	update := func(u *apifeed.Update) *apifeed.MasterMessage {
		return &apifeed.MasterMessage{Message: &apifeed.MasterMessage_Update{Update: u}}
	}
	welcome := wire.FromWelcome(apifeed.MaxVersion, "v1", 0, 0)
	for name, test := range map[string]struct {
		netmaster strange
		want      string
	}{
		"refuses the version": {strange{err: status.Error(codes.FailedPrecondition, "node node1 speaks versions 2 to 2 of the feed, this netmaster 7 to 9")}, "netmaster refuses this node; enforcing the last good rules"},
		"newer":               {strange{say: []*apifeed.MasterMessage{wire.FromWelcome(99, "v99", 0, 0)}}, "v99 speaks version 99 of the feed"},
		"no welcome":          {strange{say: []*apifeed.MasterMessage{update(&apifeed.Update{Last: true})}}, "no welcome"},
		"another rule":        {strange{say: []*apifeed.MasterMessage{welcome, update(&apifeed.Update{Last: true, Rules: []*apifeed.Rule{{Key: make([]byte, 16), Direction: 1, AppliedTo: make([]byte, 16), AnyPeer: true}}})}}, "not that of its content"},
		"half an update":      {strange{say: []*apifeed.MasterMessage{welcome, update(&apifeed.Update{Revision: 1, RemovedRules: make([]byte, 16)}), update(&apifeed.Update{Revision: 2, Last: true})}}, "before it was complete"},
		"nodes":               {strange{say: []*apifeed.MasterMessage{welcome, {Message: &apifeed.MasterMessage_Nodes{Nodes: &apifeed.Nodes{Nodes: []*apifeed.NodeInfo{{}}}}}}}, "not the name of a node"},
	} {
		t.Run(name, func(t *testing.T) {
			conf, err := files(dir, "server").ServerConfig()
			must(t, err)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			must(t, err)
			g := grpc.NewServer(grpc.Creds(credentials.NewTLS(conf)))
			apifeed.RegisterFeedServer(g, &test.netmaster)
			go func() { _ = g.Serve(l) }()
			defer g.Stop()
			log := new(safeBuffer)
			h := newHolder()
			h.rules[policy.Key{}] = &policy.Rule{}
			c := nodefeed.New(nodefeed.Config{Servers: []string{l.Addr().String()}, TLS: func() (*tls.Config, error) { return files(dir, "node1").ClientConfig() },
				Node: "node1", Version: "test", Logger: slog.New(slog.NewTextHandler(log, nil)), Handler: h})
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() { defer close(done); c.Run(ctx) }()
			eventually(t, "the log", func() bool { return strings.Contains(log.String(), test.want) })
			if p := c.Problem(); !c.Connected() && p == "" {
				t.Error("no problem is told")
			}
			cancel()
			<-done
			if h.received != 0 || h.revision != 0 || len(h.rules) != 1 {
				t.Error("something was taken over")
			}
		})
	}
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
