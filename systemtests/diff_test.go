package systemtests

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// diffed is what netctl diff tells.
type diffed struct {
	Policies []struct {
		Policy, Action string
	}
	Groups []struct {
		Name string
		Pods []string
	}
	Differences []difference
	Live        struct {
		Connections int
		Cuts        []struct {
			Connections int
			Protocols   map[string]int
			Examples    []string
		}
		Unknown map[string]string
	}
	Notes []string
}

type difference struct {
	From, To     []int
	Gained, Lost string
	Because      []struct{ Direction, Effect, Policy string }
}

// diff is netctl's answer, and its exit code.
func (w *world) diff(args ...string) (d diffed, code int) {
	w.Helper()
	text, code := w.diffText(append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		w.Fatalf("%v: %s", err, text)
	}
	return d, code
}

func (w *world) diffText(args ...string) (text string, code int) {
	w.Helper()
	text, err := w.Netctl(w.ctx, append([]string{"diff"}, args...)...)
	if failure := (*exec.ExitError)(nil); err != nil && !errors.As(err, &failure) {
		w.Fatal(err)
	} else if err != nil {
		code = failure.ExitCode()
	}
	return text, code
}

// changes is what the diff says of two pods: what is gained and what is lost.
func (d *diffed) changes(from, to string) (gained, lost string) {
	in := func(list []int, pod string) bool {
		return slices.ContainsFunc(list, func(i int) bool { return slices.Contains(d.Groups[i].Pods, pod) })
	}
	gained, lost = "none", "none"
	for _, x := range d.Differences {
		if in(x.From, from) && in(x.To, to) {
			gained, lost = x.Gained, x.Lost
		}
	}
	return gained, lost
}

// manifest writes a NetworkPolicy to a file.
func (w *world) manifest(namespace, name, spec string) (file string) {
	w.Helper()
	file = filepath.Join(w.TempDir(), name+".yaml")
	w.must(os.WriteFile(file, fmt.Appendf(nil, "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: %s, namespace: %s}, spec: %s}\n", name, namespace, spec), 0o600))
	return file
}

const onlyA = `{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 80}, {port: 80, protocol: UDP}]}]}`

// What netctl diff says of a policy is what packets meet once it is applied, and the connections that it says would be cut are.
func TestDiff(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	a, b, c := ns+"/a", ns+"/b", ns+"/c"
	file := w.manifest(ns, "only-a", onlyA)
	ending, staying := slices.Concat(w.transports("c", "b", 80, "c may not"), w.transports("a", "b", 81, "not this port")), w.transports("a", "b", 80, "a may")
	w.settles(ending, staying)
	var d diffed
	w.live(ending, staying, func() {
		var code int
		if d, code = w.diff("-f", file); code != 1 {
			t.Errorf("exit code %d", code)
		}
		w.policy(ns, "only-a", onlyA)
	})
	const twoPorts = "all but TCP 80; UDP 80"
	for pair, want := range map[[2]string]string{{a, b}: twoPorts, {c, b}: "all", {b, a}: "none", {c, a}: "none", {b, c}: "none", {a, c}: "none"} {
		if gained, lost := d.changes(pair[0], pair[1]); gained != "none" || lost != want {
			t.Errorf("%v: gained %s, lost %s, want %s", pair, gained, lost, want)
		}
	}
	w.settles(w.way("a", "b", "tcp", 80, true, "not in the diff"), w.way("a", "b", "tcp", 81, false, "in the diff"), w.way("a", "b", "udp", 81, false, "in the diff"), w.way("a", "b", "icmp", 0, false, "in the diff"),
		w.way("c", "b", "tcp", 80, false, "in the diff"), w.way("c", "b", "udp", 80, false, "in the diff"), w.way("b", "c", "tcp", 80, true, "not in the diff"), w.way("c", "a", "tcp", 81, true, "not in the diff"))
	if want := []struct{ Direction, Effect, Policy string }{{"ingress", "isolates", ns + "/only-a"}}; len(d.Differences) == 0 || !reflect.DeepEqual(d.Differences[0].Because, want) {
		t.Errorf("%+v", d.Differences)
	}
	protocols, examples := map[string]int{}, ""
	for _, cut := range d.Live.Cuts {
		for p, n := range cut.Protocols {
			protocols[p] += n
		}
		examples += strings.Join(cut.Examples, "\n")
	}
	if each := 2 * len(w.pods["b"].IPs); protocols["TCP"] < each || protocols["UDP"] < each || len(d.Live.Unknown) > 0 || !strings.Contains(examples, " → "+b+" (") {
		t.Errorf("live: %+v", d.Live)
	}
	w.tellsCut(ns, fmt.Sprintf("lived while nothing isolated the pod; denied by %s/only-a ingress", ns), 2*len(w.pods["b"].IPs))

	if text, code := w.diffText("-f", file); code != 0 || !strings.HasPrefix(text, "nothing would change\n") {
		t.Errorf("exit code %d of what is in force:\n%s", code, text)
	}
	d, code := w.diff("--delete", "-f", file)
	if gained, lost := d.changes(a, b); code != 1 || gained != twoPorts || lost != "none" {
		t.Errorf("--delete: exit code %d, gained %s, lost %s", code, gained, lost)
	}
	w.offlineAgrees(w.manifest(ns, "none", `{podSelector: {}, policyTypes: [Ingress, Egress]}`))
	w.deletePolicy(ns, "only-a")
	w.settles(w.way("c", "b", "tcp", 80, true, "removed"), w.way("a", "b", "tcp", 81, true, "removed"))
	if _, code := w.diffText("-f", w.manifest(ns, "bad", `{podSelector: {}, ingress: [{from: [{}]}]}`)); code != 2 {
		t.Errorf("exit code %d of what the API server would refuse", code)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// offlineAgrees compares what netmaster says of a manifest with what follows from the objects alone.
func (w *world) offlineAgrees(file string) {
	w.Helper()
	dump := filepath.Join(w.TempDir(), "cluster.yaml")
	w.must(cluster.Until(w.ctx, settling, func() error { // pods of other tests may be on their way out
		text, err := w.Kubectl(w.ctx, "", "get", "ns,pods,netpol", "-A", "-o", "yaml")
		if err != nil {
			return err
		}
		if err := os.WriteFile(dump, []byte(text), 0o600); err != nil {
			return err
		}
		with, code := w.diff("-f", file, "--no-connections")
		without, code2 := w.diff("--offline", "-f", dump, "-f", file)
		if code != 1 || code2 != 1 || !reflect.DeepEqual(with.Differences, without.Differences) || !reflect.DeepEqual(with.Groups, without.Groups) {
			return fmt.Errorf("netmaster (%d): %+v\noffline (%d): %+v", code, with, code2, without)
		}
		return nil
	}))
}

// The API server passes on as warnings what a policy would change, and goes on where netmaster is away.
func TestWebhook(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.review()
	file := w.manifest(ns, "only-a", onlyA)
	streams := w.streams(w.transports("c", "b", 80, "lives"))
	w.warns([]string{"apply", "--dry-run=server", "-f", file}, `Warning: Flowkeep: [0-9]+ allowed -> denied, 0 denied -> allowed; live connections that would be cut: [1-9]`,
		`would no longer reach `+ns+`/b at all \([0-9]+ live\): isolated for ingress by `+ns+`/only-a`, `networkpolicy.networking.k8s.io/only-a created \(server dry run\)`)
	w.stop(streams)
	if text := w.kubectl("get", "networkpolicy", "-n", ns); strings.Contains(text, "only-a") {
		t.Errorf("the dry run has left something:\n%s", text)
	}
	w.warns([]string{"apply", "-f", file}, `Warning: Flowkeep: [0-9]+ allowed -> denied, 0 denied -> allowed\n`, `only-a created`)
	w.settles(w.way("c", "b", "tcp", 80, false, "applied"))
	w.warns([]string{"delete", "--dry-run=server", "-f", file}, `Warning: Flowkeep: 0 allowed -> denied, [0-9]+ denied -> allowed`, `no longer isolated for ingress by `+ns+`/only-a`)
	if text := w.kubectl("label", "--overwrite", "networkpolicy", "only-a", "-n", ns, "x=y"); strings.Contains(text, "Warning") {
		t.Errorf("a label is warned of:\n%s", text)
	}
	w.again("netmaster")
	w.must(w.Stop(w.ctx, "netmaster"))
	text := w.kubectl("apply", "--dry-run=server", "-f", w.manifest(ns, "other", onlyA))
	w.must(w.Start(w.ctx, "netmaster"))
	w.must(w.AwaitReady(w.ctx, "netmaster", settling))
	if !strings.Contains(text, "other created") {
		t.Errorf("without netmaster: %s", text)
	}
}

// review has the API server ask netmaster, with the manifest that users are given.
func (w *world) review() {
	w.Helper()
	_, err := w.Kubectl(w.ctx, read(w.T, "../deploy/webhook.yaml"), "apply", "-f", "-")
	w.must(err)
	w.Cleanup(func() { w.kubectl("delete", "validatingwebhookconfiguration", "flowkeep-what-if") })
}

// kubectl is what it prints, warnings included.
func (w *world) kubectl(args ...string) string {
	w.Helper()
	cmd := exec.Command(filepath.Join(w.Bin, "kubectl"), append([]string{"--kubeconfig", filepath.Join(w.Dir, "admin.kubeconfig")}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.Errorf("%v: %v: %s", args, err, out)
	}
	return string(out)
}

// warns runs kubectl until it prints all the patterns: the API server takes a moment to know of the webhook, and netmaster of pods.
func (w *world) warns(args []string, patterns ...string) {
	w.Helper()
	w.must(cluster.Until(w.ctx, settling, func() error {
		text := w.kubectl(args...)
		for _, p := range patterns {
			if !regexp.MustCompile(p).MatchString(text) {
				return fmt.Errorf("kubectl %v does not print %q:\n%s", args, p, text)
			}
		}
		return nil
	}))
}
