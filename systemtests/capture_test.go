package systemtests

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

const begins = "a pod's packets are captured"

// capturing is a netctl capture that is under way.
type capturing struct {
	text string // standard output
	err  error
	done chan struct{}
}

// capture begins one, and returns when it has begun.
func (w *world) capture(pod cluster.Pod, id string, args ...string) *capturing {
	w.Helper()
	captures := func() (n int) { // of this pod; other tests capture others
		for line := range strings.Lines(w.netpluginLog(pod.Node)) {
			if strings.Contains(line, begins) && strings.Contains(line, pod.Namespace+"/"+pod.Name) {
				n++
			}
		}
		return n
	}
	began := captures()
	c := &capturing{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.text, c.err = w.NetctlAs(w.ctx, "", append([]string{"capture", id}, args...)...)
	}()
	for captures() == began {
		select {
		case <-c.done:
			w.Fatalf("netctl capture %s %v: %v\n%s", id, args, c.err, c.text)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return c
}

func (w *world) netpluginLog(node string) string {
	text, err := w.LogText(node + "-netplugin")
	w.must(err)
	return text
}

func (c *capturing) wait() (string, error) { <-c.done; return c.text, c.err }

// A capture shows what a pod sends, also what is denied, and of what is sent to it what was let through; tcpdump reads the file.
func TestCapture(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.policy(ns, "only-a", `{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 80}]}]}`)
	ways := append(w.way("a", "b", "tcp", 80, true, "a may"), w.way("c", "b", "tcp", 80, false, "c may not")...)
	w.settles(ways)
	file := filepath.Join(t.TempDir(), "b.pcap")
	at := w.capture(w.pods["b"], ns+"/b", "-w", file, "--filter", "tcp port 80", "--duration", "8s")
	from := w.capture(w.pods["c"], ns+"/c", "--filter", "tcp dst port 80", "--duration", "8s")
	w.settles(ways)
	if _, err := at.wait(); err != nil {
		t.Fatal(err)
	}
	denied, err := from.wait()
	a, b, c := w.ip("a", 4), w.ip("b", 4), w.ip("c", 4)
	if err != nil || !regexp.MustCompile(`Out IP `+regexp.QuoteMeta(c)+`:\d+ > `+regexp.QuoteMeta(b)+`:80: TCP \[S\]`).MatchString(denied) || strings.Contains(denied, " In ") {
		t.Errorf("what c sends and what is denied: %v\n%s", err, denied)
	}
	read, err := exec.CommandContext(w.ctx, "tcpdump", "-n", "-r", file).CombinedOutput()
	if err != nil {
		t.Fatalf("tcpdump: %v\n%s", err, read)
	}
	for _, want := range []string{"IP " + a + `\.\d+ > ` + b + `\.80: Flags \[S\]`, "IP " + b + `\.80 > ` + a + `\.\d+: Flags \[S\.\]`} {
		if !regexp.MustCompile(want).Match(read) {
			t.Errorf("no %s in the file:\n%.2000s", want, read)
		}
	}
	if regexp.MustCompile(`IP ` + regexp.QuoteMeta(c) + `\.\d+ > `).Match(read) { // b itself may still send it the end of a connection from before the policy
		w.leak("the file has packets that were denied:\n%.2000s", read)
	}
}

// A capture ends with its pod, and leaves a whole file.
func TestCaptureEndsWithThePod(t *testing.T) {
	w := setup(t)
	ns := w.namespace("net", nil)
	w.run(ns, "a@node1", "b@node2")
	file := filepath.Join(t.TempDir(), "b.pcap")
	c := w.capture(w.pods["b"], ns+"/b", "-w", file)
	if _, err := w.NetctlAs(w.ctx, "", "capture", ns+"/b"); err == nil || !strings.Contains(err.Error(), "netctl: pod "+ns+"/b is being captured already") {
		t.Errorf("a second capture: %v", err)
	}
	w.settles(w.way("a", "b", "tcp", 80, true, "nothing isolates b"))
	w.remove(ns)
	if _, err := c.wait(); err != nil {
		t.Error(err)
	}
	if out, err := exec.CommandContext(w.ctx, "tcpdump", "-n", "-r", file).CombinedOutput(); err != nil || strings.Contains(string(out), "truncated") {
		t.Errorf("tcpdump: %v\n%s", err, out)
	}
	if st, err := os.Stat(file); err != nil || st.Size() < 100 {
		t.Errorf("%v, %v", st, err)
	}
}

// Packets are for those who may see packets: not for who may view, and in one namespace for who has the role there.
func TestCaptureAccess(t *testing.T) {
	w := setup(t)
	w.withRBAC()
	ns, other := w.namespace("shop", nil), w.namespace("other", nil)
	w.run(ns, "a@node1")
	w.run(other, "b@node1")
	viewer, own := w.robot(ns, "viewer"), w.robot(ns, "own")
	w.bind("clusterrolebinding", "view-"+ns, "--clusterrole=flowkeep-view", "--serviceaccount="+ns+":viewer")
	_, err := w.Kubectl(w.ctx, "", "-n", ns, "create", "rolebinding", "own", "--clusterrole=flowkeep-capture", "--serviceaccount="+ns+":own")
	w.must(err)
	for _, c := range []struct {
		who, pod string
		may      bool
	}{{viewer, ns + "/a", false}, {own, ns + "/a", true}, {own, other + "/b", false}} {
		out, err := w.NetctlAs(w.ctx, c.who, "capture", c.pod, "--duration", "200ms")
		if (err == nil) != c.may {
			t.Errorf("%s of %s: %v\n%s", c.pod, filepath.Base(c.who), err, out)
		}
		if !c.may && err != nil && !strings.Contains(err.Error(), "flowkeep-admin") {
			t.Errorf("which role is needed is not told: %v", err)
		}
	}
}
