package try

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDifferences: the last line about a cell counts, a cell without a line differs, a line without a cell is unused.
func TestDifferences(t *testing.T) {
	cells := []Cell{{"a/x", "a/y:80", Open}, {"a/y", "a/x:53/udp", Shut}, {"b/z", "a/y:80", Mixed}}
	for text, want := range map[string]string{
		"* * shut\na/x a/y:80 open\nb/z * mixed":         "[] []",
		"a/x a/y:80 open # comment\n\n* a/x:53/udp shut": "[b/z a/y:80 mixed ''] []",
		"* * open":             "[a/y a/x:53/udp shut 'open' b/z a/y:80 mixed 'open'] []",
		"* * shut\nc/c * open": "[a/x a/y:80 open 'shut' b/z a/y:80 mixed 'shut'] [2]",
	} {
		expected, err := ReadExpected("f", strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		different, unused := Differences(cells, expected)
		var got, lines []string
		for _, d := range different {
			got = append(got, fmt.Sprintf("%s %s %s '%s'", d.From, d.To, d.Verdict, d.Expected))
		}
		for _, e := range unused {
			lines = append(lines, fmt.Sprint(e.Line))
		}
		if text := fmt.Sprint(got, " ", lines); text != want {
			t.Errorf("%s, want %s", text, want)
		}
	}
	for _, text := range []string{"a b", "a b c d", "a b opened"} {
		if _, err := ReadExpected("f", strings.NewReader("# x\n"+text)); err == nil || !strings.Contains(err.Error(), "f, line 2") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestWantedPod: what cannot be tried is left out with a note.
func TestWantedPod(t *testing.T) {
	pod := func(node string, host bool, ports ...corev1.ContainerPort) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "x"},
			Spec: corev1.PodSpec{
				NodeName:    node,
				HostNetwork: host,
				Containers:  []corev1.Container{{Ports: ports}},
			},
		}
	}
	p, note := wantedPod(pod("node1", false,
		corev1.ContainerPort{ContainerPort: 80},
		corev1.ContainerPort{ContainerPort: 53, Protocol: corev1.ProtocolUDP},
		corev1.ContainerPort{ContainerPort: 9, Protocol: corev1.ProtocolSCTP}))
	if p == nil || !reflect.DeepEqual(p.Ports, []Port{{"tcp", 80}, {"udp", 53}}) || !strings.Contains(note, "9/sctp") {
		t.Errorf("%+v, %q", p, note)
	}
	if len(p.NetNS) > 32 || !strings.HasPrefix(p.NetNS, "fk-try-") || strings.Count(p.NetNS, "-") != 2 {
		t.Errorf("network namespace %q", p.NetNS)
	}
	for _, left := range []*corev1.Pod{pod("node1", true), pod("", false)} {
		if p, note := wantedPod(left); p != nil || !strings.HasPrefix(note, "a/x is left out") {
			t.Errorf("%+v, %q", p, note)
		}
	}
}

// TestConnect: a served TCP or UDP port is open, others are not.
func TestConnect(t *testing.T) {
	var ports []Port
	for _, protocol := range []string{"tcp", "udp"} {
		ports = append(ports, Port{Protocol: protocol, Number: freePort(t, protocol)})
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	listening := &lineWriter{line: make(chan string, 1)}
	go func() { ended <- Serve(ctx, ports, listening) }()
	<-listening.line
	var targets []Target
	for _, text := range []string{
		fmt.Sprintf("tcp:127.0.0.1:%d", ports[0].Number),
		fmt.Sprintf("udp:127.0.0.1:%d", ports[1].Number),
		fmt.Sprintf("tcp:127.0.0.1:%d", freePort(t, "tcp")),
		fmt.Sprintf("udp:127.0.0.1:%d", freePort(t, "udp")),
	} {
		target, err := ParseTarget(text)
		if err != nil {
			t.Fatal(err)
		}
		targets = append(targets, target)
	}
	if got := Connect(ctx, targets, time.Minute); fmt.Sprint(got) != "[true true false false]" {
		t.Errorf("%v", got)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, text := range []string{"80", "sctp:1:2", ""} {
		if _, err := ParseTarget(text); err == nil {
			t.Errorf("target %q is accepted", text)
		}
	}
	for _, text := range []string{"0", "x", "80/sctp", "65536"} {
		if _, err := ParsePort(text); err == nil {
			t.Errorf("port %q is accepted", text)
		}
	}
}

// freePort returns a port of the loopback interface that nothing serves.
func freePort(t *testing.T, protocol string) uint16 {
	t.Helper()
	if protocol == "udp" {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return uint16(c.LocalAddr().(*net.UDPAddr).Port) //nolint:gosec // a port
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port) //nolint:gosec // a port
}

// lineWriter sends what is written to it.
type lineWriter struct{ line chan string }

func (w *lineWriter) Write(p []byte) (int, error) {
	w.line <- string(bytes.TrimSpace(p))
	return len(p), nil
}
