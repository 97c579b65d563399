package check

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func addresses(texts ...string) (list []netip.Addr) {
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

func lines(checks []Check) string {
	var b strings.Builder
	for i := range checks {
		c := &checks[i]
		to := fmt.Sprintf("%s %s open=%v", c.Probe.Kind, c.Probe.Address, c.Open)
		if c.Skipped != "" {
			to = "skipped: " + c.Skipped
		}
		fmt.Fprintf(&b, "%v: %s: %s: %s\n", c.Stage, c.Name, c.Client, to)
	}
	return b.String()
}

// TestPlan: a single-stack cluster of one node without DNS has the checks that it can have, and names the others.
func TestPlan(t *testing.T) {
	facts := Facts{
		Near:    addresses("10.1.0.2"),
		Service: addresses("10.2.0.9"),
		Outside: []string{"192.0.2.1:6443"},
		NoDNS:   "there is none",
	}
	const want = `no policy: pod to pod, across nodes: : skipped: there is one node that takes pods
no policy: pod to pod, one node: friend: tcp 10.1.0.2:8080 open=true
no policy: pod to pod, one node: stranger: tcp 10.1.0.2:8080 open=true
no policy: Service: friend: tcp 10.2.0.9:80 open=true
no policy: Service: stranger: tcp 10.2.0.9:80 open=true
no policy: port of a rule: stranger: tcp 10.1.0.2:8081 open=true
no policy: MTU: friend: mtu 10.1.0.2:8080 open=true
no policy: IPv6: : skipped: pods have no IPv6 address
no policy: outside: friend: tcp 192.0.2.1:6443 open=true
no policy: DNS: friend: skipped: there is none
ingress policy: pod to pod, one node: friend: tcp 10.1.0.2:8080 open=true
ingress policy: pod to pod, one node: stranger: tcp 10.1.0.2:8080 open=false
ingress policy: Service: friend: tcp 10.2.0.9:80 open=true
ingress policy: Service: stranger: tcp 10.2.0.9:80 open=false
ingress policy: port of a rule: stranger: tcp 10.1.0.2:8081 open=true
egress policy: port of a rule: stranger: tcp 10.1.0.2:8081 open=false
policies deleted: pod to pod, one node: stranger: tcp 10.1.0.2:8080 open=true
policies deleted: Service: stranger: tcp 10.2.0.9:80 open=true
policies deleted: port of a rule: stranger: tcp 10.1.0.2:8081 open=true
`
	if got := lines(Plan(&facts)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	facts.Near, facts.Far = addresses("10.1.0.2", "fd00::2"), addresses("10.1.1.2", "fd00:1::2")
	facts.Service, facts.Name, facts.NoDNS = addresses("10.2.0.9", "fd01::9"), "server.x.svc", ""
	both := lines(Plan(&facts))
	for _, part := range []string{
		"ingress policy: pod to pod, across nodes: stranger: tcp [fd00:1::2]:8080 open=false",
		"MTU: friend: mtu 10.1.1.2:8080 open=true",
		"DNS: friend: dns server.x.svc open=true", "Service: friend: tcp [fd01::9]:80 open=true",
	} {
		if !strings.Contains(both, part) {
			t.Errorf("there is no %q in\n%s", part, both)
		}
	}
	if strings.Contains(both, "skipped") {
		t.Errorf("skipped:\n%s", both)
	}
}

// TestTracker_FailuresEndLate: failures end by a timeout, in any order, when attempts that started later have ended
// already. The state is open if fewer than three started after the latest success, else shut since the first of these.
func TestTracker_FailuresEndLate(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	begin := time.Now()
	for range 2000 {
		var successes, failures []outcome
		latest, text := -1, ""
		for i := range 12 {
			o := outcome{start: begin.Add(time.Duration(i) * time.Second)}
			if random.IntN(3) > 0 {
				latest, successes, text = i, append(successes, o), text+"+"
				continue
			}
			o.err = errors.New("no")
			failures, text = append(failures, o), text+"-"
		}
		random.Shuffle(len(failures), func(i, j int) { failures[i], failures[j] = failures[j], failures[i] })
		tr := tracker{}
		for _, o := range slices.Concat(successes, failures) {
			tr.add(&o)
		}
		if want := 12-1-latest < minFailures; tr.open != want || !tr.known {
			t.Fatalf("%s: open=%v known=%v", text, tr.open, tr.known)
		}
		if e := tr.event(Probe{}, begin); !tr.open && e.Ago != -time.Duration(latest+1)*time.Second {
			t.Fatalf("%s: shut since %v", text, -e.Ago)
		}
	}
}

// TestTracker_LostPackets: one failure among successes is none, and one success after failures opens at once.
func TestTracker_LostPackets(t *testing.T) {
	begin := time.Now()
	tr := tracker{}
	want := "" // of each attempt: + it changed to open, - to shut, . it changed nothing
	for i, ok := range []bool{true, false, false, true, false, false, false, false, true} {
		o := outcome{start: begin.Add(time.Duration(i))}
		if !ok {
			o.err = errors.New("no")
		}
		switch changed := tr.add(&o); {
		case !changed:
			want += "."
		case tr.open:
			want += "+"
		default:
			want += "-"
		}
	}
	if want != "+.....-.+" {
		t.Errorf("changes %s", want)
	}
}

// TestJudge has each way in which a check ends.
func TestJudge(t *testing.T) {
	begin := time.Now()
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	change := Change{Sent: at(100), Done: at(110)}
	open := Check{Name: "x", Stage: Removed, Open: true}
	shut := Check{Name: "x", Stage: IngressPolicy}
	seen := func(ms int) State { return State{Known: true, Open: true, Since: at(0), Seen: at(ms), Note: "note"} }
	const wasShut = "proves nothing: it was shut before the policy"
	const notSince = "no attempt since the policies changed has ended"
	for name, c := range map[string]struct {
		check Check
		state State
		want  string
	}{
		"skipped":          {Check{Skipped: "why"}, State{}, "skipped why -"},
		"no event":         {shut, State{}, "failed no attempt has ended -"},
		"leak":             {shut, seen(500), "failed connections open -"},
		"refused":          {open, State{Known: true, Error: "connection refused"}, "failed connection refused -"},
		"shut before":      {shut, State{Known: true, Since: at(50)}, "failed " + wasShut + " -"},
		"shut":             {shut, State{Known: true, Since: at(150)}, "ok  ≤ 40ms"},
		"before the reply": {shut, State{Known: true, Since: at(105)}, "ok  ≤ 0s"},
		"a SYN repeated": {open, State{Known: true, Open: true, Since: at(90), Arrived: at(150), Seen: at(500)},
			"ok  ≤ 40ms"},
		"open again":         {open, State{Known: true, Open: true, Since: at(123), Seen: at(500)}, "ok  ≤ 13ms"},
		"open all the while": {open, seen(500), "ok note -"},
		"not seen since":     {open, seen(90), "failed " + notSince + " -"},
	} {
		t.Run(name, func(t *testing.T) {
			r := Judge(&c.check, c.state, change)
			took := r.Took()
			if took == "" {
				took = "-"
			}
			if got := strings.Join([]string{r.Verdict, r.Detail, took}, " "); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestSettled: what stays open must be seen open after the policy is in force, not before.
func TestSettled(t *testing.T) {
	begin := time.Now()
	checks := []Check{{Client: Friend, Open: true}, {Client: Stranger}, {Skipped: "why"}}
	change := Change{Sent: begin, Done: begin}
	states := map[string]State{
		Friend:   {Known: true, Open: true, Seen: begin.Add(time.Second)},
		Stranger: {Known: true, Open: true},
	}
	observed := func(client string, _ Probe) State { return states[client] }
	if Settled(checks, change, observed) {
		t.Error("settled while the stranger connects")
	}
	states[Stranger] = State{Known: true, Since: begin.Add(2 * time.Second)}
	if Settled(checks, change, observed) {
		t.Error("settled although the friend was not seen since")
	}
	states[Friend] = State{Known: true, Open: true, Seen: begin.Add(3 * time.Second)}
	if !Settled(checks, change, observed) {
		t.Error("not settled")
	}
}

// TestJudgeStage: the time to force is that of the slowest connection, and none if one leaks.
func TestJudgeStage(t *testing.T) {
	begin := time.Now()
	checks := []Check{
		{Stage: IngressPolicy, Client: "a"},
		{Stage: IngressPolicy, Client: "b"},
		{Stage: IngressPolicy, Client: "c", Open: true},
	}
	states := map[string]State{
		"a": {Known: true, Since: begin.Add(10 * time.Millisecond)},
		"b": {Known: true, Since: begin.Add(30 * time.Millisecond)},
		"c": {Known: true, Open: true, Since: begin.Add(90 * time.Millisecond), Seen: begin.Add(time.Second)},
	}
	force := func() Row {
		observed := func(client string, _ Probe) State { return states[client] }
		rows := JudgeStage(IngressPolicy, checks, Change{begin, begin}, observed)
		return rows[len(rows)-1]
	}
	if r := force(); r.Check != "time to force" || r.Verdict != OK || r.Took() != "≤ 30ms" {
		t.Errorf("%+v: %s", r, r.Took())
	}
	states["a"] = State{Known: true, Open: true, Seen: begin.Add(time.Second)}
	if r := force(); r.Verdict != Failed || r.Took() != "" {
		t.Errorf("%+v: %s", r, r.Took())
	}
}

// events reads what Watch prints until a condition on the latest event of each probe is met.
func events(t *testing.T, r io.Reader, until func(latest map[Probe]Event) bool) {
	t.Helper()
	latest, number := map[Probe]Event{}, 0
	for decoder := json.NewDecoder(r); !until(latest); {
		var e Event
		if err := decoder.Decode(&e); err != nil {
			t.Fatalf("%v; the latest events: %+v", err, latest)
		}
		if number++; e.Number != number {
			t.Fatalf("event %d has the number %d", number, e.Number)
		}
		latest[e.Probe] = e
	}
}

// TestWatch: each kind of probe succeeds at a server, and fails without one; a server that ends is noticed.
func TestWatch(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	go accept(tcp)
	go echo(udp)
	ends := Probe{Kind: KindTCP, Address: tcp.Addr().String(), Often: true}
	good := []Probe{ends, {Kind: KindMTU, Address: udp.LocalAddr().String()}, {Kind: KindDNS, Address: "localhost"}}
	bad := []Probe{{Kind: KindTCP, Address: "127.0.0.1:0"}, {Kind: KindMTU, Address: "127.0.0.1:0"}, {Kind: "none"}}
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Watch(ctx, slices.Concat(good, bad), in) }()
	events(t, out, func(latest map[Probe]Event) bool {
		for p, e := range latest {
			if p != ends && e.Open != slices.Contains(good, p) {
				t.Fatalf("%+v", e)
			}
			if p.Kind == KindMTU && e.Open && e.Note != "65535 bytes" && runtime.GOOS == "linux" {
				t.Fatalf("loopback's MTU: %q", e.Note)
			}
		}
		if len(latest) == len(good)+len(bad) && slices.Contains(good, ends) {
			tcp.Close()
			good = good[1:]
		}
		return len(good) == 2 && !latest[ends].Open
	})
	cancel()
	in.Close()
	if err := <-ended; err != nil && !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
}

// TestServe listens until it is ended, and fails if a port is taken.
func TestServe(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, []int{0, 0}, in) }()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "listening\n" {
		t.Errorf("%q: %v", line, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	l, err := net.Listen("tcp4", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	want := fmt.Sprintf("serve port %d", port)
	if err := Serve(t.Context(), []int{port}, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a port that is taken: %v", err)
	}
}

// TestNodes leaves out nodes that take no pods.
func TestNodes(t *testing.T) {
	node := func(name string, ready corev1.ConditionStatus, change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
		if change != nil {
			change(n)
		}
		return n
	}
	got := Nodes([]*corev1.Node{
		node("f", corev1.ConditionTrue, nil),
		node("e", corev1.ConditionTrue, func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectPreferNoSchedule}}
		}),
		node("d", corev1.ConditionTrue, func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectNoSchedule}}
		}),
		node("c", corev1.ConditionTrue, func(n *corev1.Node) { n.Spec.Unschedulable = true }),
		node("b", corev1.ConditionFalse, nil),
		node("a", corev1.ConditionTrue, func(n *corev1.Node) { n.Status.NodeInfo.OperatingSystem = "windows" }),
	})
	if strings.Join(got, " ") != "e f" {
		t.Errorf("%v", got)
	}
}
