package systemtests

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// anotherVersion has the images of another version made, whose flows are in other tables, while the test goes on; images waits for them.
func anotherVersion(t *testing.T) (images func() string) {
	dir := t.TempDir()
	made := make(chan error, 1)
	go func() {
		out, err := exec.CommandContext(t.Context(), "sandbox/another", dir).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("sandbox/another: %w: %s", err, out)
		}
		made <- err
	}()
	t.Cleanup(func() { // it writes there
		if made != nil {
			<-made
		}
	})
	return func() string {
		t.Helper()
		err := <-made
		made = nil
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
}

// rollout is a scene in which kubectl brings other versions, and back.
type rollout struct {
	*versions
	manifests  string // of the other version
	own, other string // tags of images
}

// rollsOut: another version by kubectl apply, back by kubectl rollout undo, and versions that do not work, under load: nothing that is allowed is lost,
// nothing that is denied passes, and what does not come up stays on one node. Then a new switch.
func (w *world) rollsOut(ns string, images func() string) {
	w.Helper()
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: c}}}]}]}`)
	s := &scene{world: w, ns: ns}
	for _, proto := range []string{"tcp", "udp"} {
		s.allowed = append(s.allowed, w.open("a", "c", proto, 80, "allowed, across")...)
		s.allowed = append(s.allowed, w.open("c", "b", proto, 80, "allowed, same node")...)
		s.refused = append(s.refused, w.shut("a", "b", proto, 80, "denied, across")...)
	}
	s.refused = append(s.refused, w.shut("b", "c", "udp", 80, "denied, same node")...)
	w.settles(s.allowed, s.refused)
	r := &rollout{versions: &versions{scene: s}}
	r.prepare(images())
	counted := r.counted()
	r.underLoad("up by kubectl apply", r.apply)
	r.runs(r.other)
	counted = r.goOn(counted)
	r.underLoad("down by kubectl rollout undo", r.undo)
	r.runs(r.own)
	r.goOn(counted)
	r.broken()
	r.newSwitch()
}

// prepare brings the images to the nodes, and writes the manifests of their version.
func (r *rollout) prepare(images string) {
	r.Helper()
	r.manifests = filepath.Join(r.TempDir(), "another.yaml")
	for _, node := range []string{"node1", "node2"} {
		for _, image := range []string{"flowkeep", "openvswitch"} {
			out, err := exec.CommandContext(r.ctx, "ctr", "-a", filepath.Join(r.Dir, node, "containerd.sock"), "-n", "k8s.io", "images", "import", filepath.Join(images, image+".tar")).CombinedOutput()
			if err != nil {
				r.Fatalf("%v: %s", err, out)
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(r.Dir, "flowkeep", "flowkeep.yaml"))
	r.must(err)
	tag := regexp.MustCompile(`(image: flowkeep\.invalid/\w+):(\S+)`)
	r.own, r.other = string(tag.FindSubmatch(text)[2]), "another"
	r.must(os.WriteFile(r.manifests, tag.ReplaceAll(text, []byte("$1:"+r.other)), 0o600))
}

func (r *rollout) kubectl(args ...string) string {
	r.Helper()
	text, err := r.Kubectl(r.ctx, "", append([]string{"-n", system}, args...)...)
	r.must(err)
	return text
}

// rolled waits until a workload is what it is meant to be.
func (r *rollout) rolled(what string) {
	r.Helper()
	r.kubectl("rollout", "status", what, "--timeout="+cluster.Stretch(time.Minute).String())
	r.Logf("%s is rolled out %s after the streams began", what, time.Since(r.watched).Round(100*time.Millisecond))
}

// apply and undo are what docs/upgrade.md says.
func (r *rollout) apply() {
	r.applied("-l", "app.kubernetes.io/name!=netplugin")
	r.rolled("deployment/netmaster")
	r.applied()
	r.rolled("daemonset/netplugin")
}

func (r *rollout) applied(which ...string) {
	r.Helper()
	_, err := r.Kubectl(r.ctx, "", append([]string{"apply", "-f", r.manifests}, which...)...)
	r.must(err)
}

func (r *rollout) undo() {
	for _, what := range []string{"daemonset/netplugin", "deployment/netmaster"} {
		r.kubectl("rollout", "undo", what)
		r.rolled(what)
	}
}

// runs: all pods but the switches' are of this version, their programs say so, and the switches have its flows alone.
func (r *rollout) runs(tag string) {
	r.Helper()
	images := strings.Fields(r.kubectl("get", "pods", "-l", "app.kubernetes.io/name in (netmaster, netplugin)", "-o", "jsonpath={.items[*].spec.containers[*].image}"))
	if want := slices.Repeat([]string{"flowkeep.invalid/flowkeep:" + tag}, 4); !slices.Equal(images, want) {
		r.Errorf("the pods' images are %v, want %v", images, want)
	}
	cookie, programs := "cookie=0xf101", 0
	if tag == r.other {
		cookie, programs = "cookie=0xf1fe", 4
	}
	r.must(cluster.Until(r.ctx, settling, func() error {
		status, err := r.Netctl(r.ctx, "status", "-o", "wide")
		if err == nil && strings.Count(status, r.other) != programs {
			err = fmt.Errorf("netctl status should name version %q %d times, of both netmasters and both nodes:\n%s", r.other, programs, status)
		}
		return err
	}))
	for node, flows := range r.dump() {
		for _, f := range flows {
			if !strings.HasPrefix(f.Text, cookie) {
				r.Errorf("%s has flows of another version: %s", node, f.Text)
				break
			}
		}
	}
}

func (r *rollout) counted() map[string]tally {
	r.Helper()
	all, err := r.tallies(r.ns)
	r.must(err)
	return all
}

// goOn: no sum is smaller than it was.
func (r *rollout) goOn(before map[string]tally) (now map[string]tally) {
	r.Helper()
	now = r.counted()
	for _, place := range []string{"b ingress[0]", "b ingress[-1]", "c ingress[0]", "c ingress[-1]"} {
		was, is := before[place], now[place]
		if was.Packets == 0 || is.Packets < was.Packets || is.Bytes < was.Bytes || is.Connections < was.Connections {
			r.Errorf("%s had counted %+v before the roll-out, and has %+v", place, was, is)
		}
	}
	r.Logf("counted before: %v, after: %v", before, now)
	return now
}

// broken: a version that dies at its start, and then one that does not find netmaster, come to one node and stay there; what is in force stays in force.
func (r *rollout) broken() {
	r.Helper()
	good := strings.TrimSpace(r.kubectl("get", "controllerrevisions", "-l", "app.kubernetes.io/name=netplugin", "--sort-by=.revision", "-o", "jsonpath={.items[-1:].revision}"))
	var args []string
	r.must(json.Unmarshal([]byte(r.kubectl("get", "daemonset", "netplugin", "-o", "jsonpath={.spec.template.spec.containers[0].args}")), &args))
	was, last := r.netplugins(), len(args)
	r.watched = time.Now()
	r.watch(stall, append(r.allowed, r.refused...), func() {
		r.withFlag("add", "--no-such-flag", last)
		stuck := ""
		r.must(cluster.Until(r.ctx, time.Minute, func() error {
			for node, p := range r.netplugins() {
				if p.restarts >= 2 {
					stuck = node
					return nil
				}
			}
			return errors.New("no pod has died twice")
		}))
		r.staysAt(stuck, was)
		r.withFlag("replace", "--server-name=nobody.example", last)
		r.must(cluster.Until(r.ctx, time.Minute, func() error {
			if err := r.AwaitReady(r.ctx, stuck+"-netplugin", 0); err == nil || !strings.Contains(err.Error(), "netmaster: ") || strings.Contains(err.Error(), "netmaster: starting") {
				return fmt.Errorf("%s does not say that it has yet to find netmaster, but: %w", stuck, err)
			}
			return nil
		}))
		r.staysAt(stuck, was)
		r.kubectl("rollout", "undo", "daemonset/netplugin", "--to-revision="+good)
		r.rolled("daemonset/netplugin")
	})
	r.stillEnforces()
	r.policy(r.ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: c}}}]}]}`)
	r.settles(r.allowed, r.refused)
}

// withFlag is a version whose netplugin gets one more flag, at this place.
func (r *rollout) withFlag(op, flag string, place int) {
	r.Helper()
	r.kubectl("patch", "daemonset", "netplugin", "--type=json", "-p", fmt.Sprintf(`[{"op": %q, "path": "/spec/template/spec/containers/0/args/%d", "value": %q}]`, op, place, flag))
}

type netpluginPod struct {
	uid      string
	restarts int
}

// netplugins are the pods by their nodes.
func (r *rollout) netplugins() map[string]netpluginPod {
	r.Helper()
	pods := map[string]netpluginPod{}
	text := r.kubectl("get", "pods", "-l", "app.kubernetes.io/name=netplugin", "-o",
		`jsonpath={range .items[*]}{.spec.nodeName} {.metadata.uid} {.status.containerStatuses[0].restartCount}{"\n"}{end}`)
	for line := range strings.Lines(text) {
		var node string
		var p netpluginPod
		if n, _ := fmt.Sscan(line, &node, &p.uid, &p.restarts); n >= 2 { // one that was just made has no status
			pods[node] = p
		}
	}
	return pods
}

// staysAt: all other nodes have the pods that they had.
func (r *rollout) staysAt(stuck string, was map[string]netpluginPod) {
	r.Helper()
	for node, p := range r.netplugins() {
		if (p == was[node]) == (node == stuck) {
			r.Errorf("the broken version is at %s: %s had the pod %v and has %v", stuck, node, was[node], p)
		}
	}
}

// newSwitch: its DaemonSet has another version since the roll-out, and nothing happened; when its pod on a node is deleted, nothing passes that is denied, and what
// is allowed passes again without anybody doing more.
func (r *rollout) newSwitch() {
	r.Helper()
	pod := func() (name, image string) {
		text := r.kubectl("get", "pods", "-l", "app.kubernetes.io/name=openvswitch", "--field-selector=spec.nodeName=node2", "-o",
			`jsonpath={range .items[*]}{.metadata.name} {.spec.containers[0].image}{"\n"}{end}`)
		_, err := fmt.Sscan(text, &name, &image)
		r.must(err)
		return name, image
	}
	name, image := pod()
	if !strings.HasSuffix(image, ":"+r.own) {
		r.Errorf("the switch of node2 is of %s before somebody has deleted its pod", image)
	}
	streams := r.streams(r.allowed)
	r.watch(0, r.refused, func() {
		r.kubectl("delete", "pod", name) // and wait until it is gone
		r.settles(r.allowed)
	})
	if _, image := pod(); !strings.HasSuffix(image, ":"+r.other) {
		r.Errorf("the new switch of node2 is of %s", image)
	}
	for i, report := range r.stop(streams) {
		r.Logf("a new switch on node2: %v %s: no answer for %.1f s, %d of %d lost", streams[i].From, report.Proto, report.LongestGapMillis/1000, report.Sent-report.Received, report.Sent)
	}
	r.settles(r.allowed, r.refused)
}
