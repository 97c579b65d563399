package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/netplugin/responder"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// answeringSwitch is a real switch with the flows of a node of three pods, and the agent's answers.
type answeringSwitch struct {
	*testing.T
	sw       *ovstest.Switch
	session  *ofctl.Session
	compiler *pipeline.Compiler
	pods     []*netns.Namespace
	registry *prometheus.Registry
}

const (
	answerGateway, answerWire, answerFirstPod = 1, 2, 3
	answerPods                                = 3
)

var answerGatewayMAC = ofctl.MAC{2, 0, 0, 0, 0, 1}

// podAddr returns an address of a pod's, with the last part n.
func podAddr(six bool, n int) netip.Addr {
	if six {
		return netip.MustParseAddr(fmt.Sprintf("fd00:10:244:1::%x", n))
	}
	return netip.MustParseAddr(fmt.Sprintf("10.244.1.%d", n))
}

// startAnswering starts all of it. The rest of the test runs in the switch's network namespace.
func startAnswering(t *testing.T) *answeringSwitch {
	t.Helper()
	netns.New(t).Enter(t)
	s := &answeringSwitch{T: t, registry: prometheus.NewRegistry()}
	ports := []string{"gw", "wire"}
	s.ip("link", "add", "gw", "type", "veth", "peer", "name", "gw-end")
	s.ip("link", "add", "wire", "type", "veth", "peer", "name", "wire-end")
	for i := range answerPods {
		ports = append(ports, s.addPod(i))
	}
	for _, p := range append([]string{"gw-end", "wire-end"}, ports...) {
		s.ip("link", "set", p, "up")
	}
	s.sw = ovstest.StartOn(t, "netdev", ports)
	var err error
	if s.session, err = ofctl.Connect(t.Context(), s.sw.Management()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.session.Close() })
	if err := s.session.EnsureMeters(t.Context(), pipeline.AnswerMeters()); err != nil {
		t.Fatal(err)
	}
	cfg := pipeline.Config{
		Gateway:      pipeline.Device{Port: answerGateway, MAC: answerGatewayMAC},
		Wire:         pipeline.Device{Port: answerWire, MAC: ofctl.MAC{2, 0, 0, 0, 0, 2}},
		Out:          pipeline.Device{Port: answerWire, MAC: ofctl.MAC{2, 0, 0, 0, 0, 2}},
		GatewayAddrs: []netip.Addr{podAddr(false, 1), podAddr(true, 1)},
		PodCIDRs:     []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:10:244:1::/64")},
		Answers:      true,
	}
	s.compiler = pipeline.New(cfg, nil)
	for i := range answerPods {
		s.compiler.PutEndpoint(s.endpoint(i))
	}
	s.commit()
	r := &runner{agent: &agent{
		cfg:     Config{OVSRunDir: s.sw.Dir, Bridge: s.sw.Bridge},
		log:     slog.New(slog.DiscardHandler),
		workers: workers{answers: newAnswers(s.registry)},
	}}
	r.answers.config.Store(&cfg)
	done := make(chan struct{})
	go func() { defer close(done); r.keepAnswering(t.Context()) }()
	t.Cleanup(func() { <-done })
	s.awaitAnswers()
	return s
}

// awaitAnswers waits until the switch hands packets on, and packets are answered.
func (s *answeringSwitch) awaitAnswers() {
	s.Helper()
	c, err := s.dial(answerPods-1, "udp", podAddr(false, 97), 80)
	if err != nil {
		s.Fatal(err)
	}
	for deadline := time.Now().Add(answerWithin); !errors.Is(err, syscall.ECONNREFUSED); {
		if time.Now().After(deadline) {
			s.Fatalf("nothing is answered: %v", err)
		}
		_, _ = c.Write([]byte("hello"))
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, err = c.Read(make([]byte, 9))
	}
}

func (s *answeringSwitch) ip(args ...string) {
	s.Helper()
	s.command("ip", args...)
}

func (s *answeringSwitch) command(name string, args ...string) {
	s.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		s.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// podMAC returns a pod's Ethernet address.
func (s *answeringSwitch) podMAC(i int) ofctl.MAC { return ofctl.MAC{2, 0, 0, 0, 1, byte(i)} }

// addPod attaches a network namespace by a pair of links, and returns the name of the one that is the switch's port.
func (s *answeringSwitch) addPod(i int) string {
	s.Helper()
	port, pod := fmt.Sprintf("p%d", i), netns.NewNamed(s, "pod")
	s.pods = append(s.pods, pod)
	s.ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "address", s.podMAC(i).String(), "netns", pod.Name())
	pod.Do(func() {
		s.command("ethtool", "-K", "eth0", "tx", "off") // the userspace datapath fills in no checksums
		s.ip("link", "set", "eth0", "up")
		for _, six := range []bool{false, true} {
			gateway, bits := podAddr(six, 1).String(), podAddr(six, 1).BitLen()
			s.ip("address", "add", fmt.Sprintf("%s/%d", podAddr(six, 10+i), bits), "dev", "eth0", "nodad")
			s.ip("neighbour", "add", gateway, "lladdr", answerGatewayMAC.String(), "dev", "eth0")
			s.ip("route", "add", gateway, "dev", "eth0")
			s.ip("route", "add", "default", "via", gateway)
		}
	})
	return port
}

func (s *answeringSwitch) endpoint(i int) pipeline.LocalEndpoint {
	return pipeline.LocalEndpoint{
		ID:        fmt.Sprintf("ns/p%d", i),
		Port:      uint32(answerFirstPod + i),
		MAC:       s.podMAC(i),
		Addresses: []netip.Addr{podAddr(false, 10+i), podAddr(true, 10+i)},
	}
}

func (s *answeringSwitch) commit() {
	s.Helper()
	mods, _ := s.compiler.Take()
	if err := s.session.Commit(s.Context(), mods); err != nil {
		s.Fatal(err)
	}
	s.sw.AppCtl(s, "revalidator/purge")
}

// dial connects from a pod.
func (s *answeringSwitch) dial(pod int, network string, to netip.Addr, port uint16) (c net.Conn, err error) {
	s.pods[pod].Do(func() {
		c, err = net.DialTimeout(network, netip.AddrPortFrom(to, port).String(), answerWithin)
	})
	if c != nil {
		s.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(answerWithin))
	}
	return c, err
}

// answerWithin is how long a test waits for an error: the machine may stand still meanwhile.
const answerWithin = 30 * time.Second

// wantError writes until a connection has an error, and compares it.
func (s *answeringSwitch) wantError(c net.Conn, want syscall.Errno, why string) {
	s.Helper()
	_ = c.SetDeadline(time.Now().Add(answerWithin))
	switch _, err := c.Write([]byte("hello")); {
	case errors.Is(err, want): // the answer to an earlier packet
		return
	case err != nil:
		s.Errorf("%s: write: %v", why, err)
	}
	if _, err := c.Read(make([]byte, 9)); !errors.Is(err, want) {
		s.Errorf("%s: read: %v, want %v", why, err, want)
	}
}

// gone ends a pod as netplugin does: its flows, and what conntrack knows of it.
func (s *answeringSwitch) gone(i int) {
	s.Helper()
	s.compiler.RemoveEndpoint(s.endpoint(i).ID)
	s.commit()
	s.sw.AppCtl(s, "dpctl/flush-conntrack")
}

// Clients of an address without a pod see an error: those that connect, and those whose server has just ended.
func TestAnswers_ClientsSeeErrors(t *testing.T) {
	s := startAnswering(t)
	const server = 1
	living := map[string]net.Conn{}
	for _, six := range []bool{false, true} {
		for _, port := range []uint16{80, 50051} {
			name := fmt.Sprintf("IPv6 %v, port %d", six, port)
			s.pods[server].Do(func() {
				l, err := net.Listen("tcp", netip.AddrPortFrom(podAddr(six, 10+server), port).String())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { l.Close() })
			})
			c, err := s.dial(0, "tcp", podAddr(six, 10+server), port)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			living["TCP, "+name] = c
			udp, err := s.dial(0, "udp", podAddr(six, 10+server), port)
			if err != nil {
				t.Fatal(err)
			}
			living["UDP, "+name] = udp
		}
	}
	s.gone(server)
	for name, c := range living {
		want := syscall.ECONNRESET
		if strings.HasPrefix(name, "UDP") {
			want = syscall.ECONNREFUSED
		}
		s.wantError(c, want, name)
	}
	for _, six := range []bool{false, true} {
		if _, err := s.dial(0, "tcp", podAddr(six, 99), 80); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("IPv6 %v: a new connection: %v", six, err)
		}
	}
}

// A sender whose policies deny it the address sees nothing.
func TestAnswers_DeniedSendersSeeNothing(t *testing.T) {
	s := startAnswering(t)
	isolation := &policy.Rule{Direction: policy.Egress, AppliedTo: policy.Key{1}}
	isolation.Key = policy.RuleKey(isolation)
	s.compiler.Apply(policy.NodeUpdate{
		Rules: []policy.RuleChange{{Key: isolation.Key, Rule: isolation}},
		Groups: []policy.GroupUpdate{{
			Key:     policy.Key{1},
			Kind:    policy.AppliedToGroup,
			Replace: true,
			Added:   []netip.Addr{podAddr(false, 12)},
		}},
	})
	s.commit()
	before := s.counter("flowkeep_netplugin_answers_total", "")
	denied, err := s.dial(2, "udp", podAddr(false, 99), 80)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := denied.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	allowed, err := s.dial(0, "udp", podAddr(false, 99), 80)
	if err != nil {
		t.Fatal(err)
	}
	s.wantError(allowed, syscall.ECONNREFUSED, "another pod") // so what was sent before has been looked at
	answers := func() float64 { return s.counter("flowkeep_netplugin_answers_total", "") - before }
	for deadline := time.Now().Add(answerWithin); answers() < 1 && time.Now().Before(deadline); { // counted when sent
		time.Sleep(time.Millisecond)
	}
	if n := answers(); n != 1 {
		t.Errorf("%v answers, want 1", n)
	}
	_ = denied.SetReadDeadline(time.Now())
	if _, err := denied.Read(make([]byte, 9)); !errors.Is(err, syscall.ETIMEDOUT) && !isTimeout(err) {
		t.Errorf("the denied pod has %v", err)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// counter returns a counter of the responder's, of one reason where it is not empty.
func (s *answeringSwitch) counter(name, reason string) (sum float64) {
	s.Helper()
	families, err := s.registry.Gather()
	if err != nil {
		s.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (reason == "" || m.GetLabel()[0].GetValue() == reason) {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// A flood is answered at the rate of its port's meter, and counted beyond; other pods are answered meanwhile.
func TestAnswers_FloodIsBounded(t *testing.T) {
	s := startAnswering(t)
	meter := pipeline.AnswerMeters()[0]
	const flood = 3000
	before, began := s.counter("flowkeep_netplugin_answers_total", ""), time.Now()
	c, err := s.dial(0, "udp", podAddr(false, 99), 80)
	if err != nil {
		t.Fatal(err)
	}
	for range flood {
		_, _ = c.Write([]byte("hello")) // some fail with the error that answers an earlier one
	}
	other, err := s.dial(2, "udp", podAddr(false, 98), 80)
	if err != nil {
		t.Fatal(err)
	}
	s.wantError(other, syscall.ECONNREFUSED, "another pod during the flood")
	deadline := time.Now().Add(answerWithin)
	for s.counter("flowkeep_netplugin_answers_suppressed_total", "meter") == 0 && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	answered := s.counter("flowkeep_netplugin_answers_total", "") - before
	took := time.Since(began).Seconds()
	if limit := float64(meter.Burst) + took*float64(meter.Rate) + 2; answered == 0 || answered > limit {
		t.Errorf("%v answers in %.1f s, want some and no more than %v", answered, took, limit)
	}
	if n := s.counter("flowkeep_netplugin_answers_suppressed_total", "meter"); n == 0 {
		t.Error("nothing was suppressed by a meter")
	}
}

// Packets are answered without a drop log too, and not where the switch has no meters, or refuses a flow that names one.
func TestAnswers_NeedMeters(t *testing.T) {
	a, s := tellingAgent(t)
	attach := func(why string, answers bool) {
		t.Helper()
		if err := a.do(t.Context(), func() {
			a.session = nil
			_ = a.attach(t.Context(), s)
			n := 0
			for k := range s.holds {
				if k.table == pipeline.TableUnreachable {
					n++
				}
			}
			if (n > 0) != answers || (len(s.meters) > 0) != answers || a.node.answers != answers {
				t.Errorf("%s: %d flows, %d meters, want some: %v", why, n, len(s.meters), answers)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	a.cfg.DropLogRate = 0
	attach("without a drop log", true)
	if len(s.meters) != len(pipeline.AnswerMeters()) {
		t.Errorf("%d meters without a drop log", len(s.meters))
	}
	s.meters, s.meterless = nil, ofctl.ErrNoMeters
	attach("without meters", false)
	s.meterless = nil
	attach("with meters again", true)
	clear(s.holds)
	s.refuses = func(f *ofctl.Flow) bool {
		return f.Table == pipeline.TableUnreachable && len(f.Actions) > 0
	}
	if err := a.do(t.Context(), func() {
		a.session = nil
		if err := a.attach(t.Context(), s); err == nil {
			t.Error("a refused flow was taken")
		}
	}); err != nil {
		t.Fatal(err)
	}
	s.meters = nil
	attach("where flows are refused", false)
}

// The switch hands on as much of a packet as an answer quotes.
func TestAnswers_FrameLength(t *testing.T) {
	if pipeline.AnswerBytes != responder.MaxFrame {
		t.Errorf("the switch hands %d bytes on, an answer takes %d", pipeline.AnswerBytes, responder.MaxFrame)
	}
}
