package systemtests

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// How long a change of policies, and the readiness of a Service, may take before a test fails. The goals are far below;
// two cores that run a whole cluster and the probes are not the place to hold them.
const settling = 30 * time.Second

// stall is how long a busy machine may leave a stream without answers; whether one was lost, UDP tells.
const stall = 5 * time.Second

var families = []int{4, 6}

// world is one test's part of the cluster: namespaces of its own, removed with it.
type world struct {
	*testing.T
	*cluster.Cluster
	ctx  context.Context
	id   string
	pods map[string]cluster.Pod
	// backends are the pods' ports behind those of Services, where there is one.
	backends map[netip.AddrPort]netip.AddrPort
	machine  *cluster.Machine
}

// setup returns the test's part of the cluster. Shared tests run in parallel from here on.
func setup(t *testing.T) *world {
	t.Helper()
	if isShared(t.Name()) {
		t.Parallel()
	}
	return setupOn(t, theCluster)
}

func setupOn(t *testing.T, c *cluster.Cluster) *world {
	t.Helper()
	w := &world{T: t, Cluster: c, ctx: t.Context(), id: strings.ToLower(rand.Text()[:6]), pods: map[string]cluster.Pod{}, backends: map[netip.AddrPort]netip.AddrPort{}, machine: cluster.WatchMachine(t.Context())}
	w.Cleanup(w.describeFailure)
	if *hook == "" { // what the test before restarted may be on its way still
		w.must(w.AwaitConnected(w.ctx, 30*time.Second))
		if !isShared(t.Name()) { // others start pods meanwhile
			w.must(w.AwaitNoLeftPods(w.ctx, 2*time.Minute))
		}
	}
	return w
}

// crash matches the line at which the Go runtime begins to report that a program crashed, or that it had a data race.
var crash = regexp.MustCompile(`(?m)^(panic: |fatal error: |WARNING: DATA RACE).*`)

// describeFailure says what Flowkeep itself thinks when a test has failed.
func (w *world) describeFailure() {
	if !w.Failed() || *hook != "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cluster.Stretch(10*time.Second))
	defer cancel()
	w.Logf("what was around it: %s", w.machine)
	text, err := w.Netctl(ctx, "status")
	w.Logf("netctl status (%v):\n%s", err, text)
	for _, name := range []string{"netmaster", "node1-netplugin", "node2-netplugin"} {
		log, err := w.LogText(name)
		for _, line := range crash.FindAllString(log, -1) {
			w.Logf("%s of %s: %s", cluster.Crash, name, line)
		}
		lines := strings.Split(strings.TrimSpace(log), "\n")
		w.Logf("last lines of %s (%v):\n%s", name, err, strings.Join(lines[max(0, len(lines)-8):], "\n"))
	}
}

// leak fails the test because a denied packet passed. The gate does not repeat the test then.
func (w *world) leak(format string, args ...any) {
	w.Helper()
	w.Errorf("%s %s", cluster.Leak, fmt.Sprintf(format, args...))
}

// within fails the test if a time that was measured since began exceeds its limit on this machine. The longest time by
// which a timer was late since then is allowed.
func (w *world) within(limit, took time.Duration, began time.Time, format string, args ...any) {
	w.Helper()
	timing := cluster.Timing{What: fmt.Sprintf(format, args...), Took: took, Limit: limit, Late: w.machine.LateSince(began)}
	if err := timing.Err(); err != nil {
		w.Error(err)
		return
	}
	w.Log(timing)
}

// alone fails a shared test before it changes something that the packets of all tests meet: a flow by hand that opens a
// node lets pass what other tests take for denied (docs/testing.md).
func (w *world) alone(change string) {
	w.Helper()
	if err := sharedChange(w.T.Name(), change); err != nil {
		w.Fatal(err)
	}
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// namespace makes one with labels; its full name, which is returned, is unique.
func (w *world) namespace(name string, labels map[string]string) string {
	w.Helper()
	full := name + "-" + w.id
	all := maps.Clone(labels)
	if all == nil {
		all = map[string]string{}
	}
	all["test"] = w.id
	var text strings.Builder
	for k, v := range all {
		fmt.Fprintf(&text, "%q: %q, ", k, v)
	}
	w.apply("", fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s, labels: {%s}}}", full, strings.TrimSuffix(text.String(), ", ")))
	w.Cleanup(func() { w.remove(full) })
	// each of the controller manager's watches waits up to 30 s before it asks an API server again that was away, and this takes two
	w.must(cluster.Until(w.ctx, 2*time.Minute, func() error {
		return w.Get(w.ctx, cluster.PathOf("ServiceAccount", full, "default"), nil)
	}))
	return full
}

// remove waits until the API server has no pods and policies of a namespace. The nodes may end the pods later: a test
// that has the cluster to itself waits for that when it begins, see setupOn.
func (w *world) remove(namespace string) {
	ctx := context.Background()
	for _, kind := range []string{"NetworkPolicy", "Pod"} {
		if err := w.Delete(ctx, cluster.PathOf(kind, namespace, ""), 30*time.Second); err != nil {
			w.Error(err)
		}
	}
	api, err := w.API(ctx)
	if err == nil {
		err = api.Do(ctx, http.MethodDelete, cluster.PathOf("Namespace", "", namespace), nil)
	}
	gone, ok := errors.AsType[*cluster.StatusError](err)
	if err != nil && (!ok || gone.Code != http.StatusNotFound) { // a test may remove what it made
		w.Error(err)
	}
}

// apply takes a manifest, in which TEST stands for what makes this test's names its own; see Cluster.Apply.
func (w *world) apply(namespace, manifest string) {
	w.Helper()
	w.must(w.Apply(w.ctx, namespace, strings.ReplaceAll(manifest, "TEST", w.id)))
}

func (w *world) deletePolicy(namespace, name string) {
	w.Helper()
	w.must(w.Delete(w.ctx, cluster.PathOf("NetworkPolicy", namespace, name), settling))
}

// label sets a label of pods; nil removes it.
func (w *world) label(namespace, key string, value any, pods ...string) {
	w.Helper()
	for _, pod := range pods {
		w.must(w.Label(w.ctx, namespace, pod, map[string]any{key: value}))
	}
}

// policy applies a NetworkPolicy; spec is YAML in flow style.
func (w *world) policy(namespace, name, spec string) {
	w.Helper()
	w.apply(namespace, fmt.Sprintf("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: %s}, spec: %s}", name, spec))
}

func specOf(pod string) cluster.PodSpec {
	name, node, _ := strings.Cut(pod, "@")
	return cluster.PodSpec{Name: name, Node: node, Labels: map[string]string{"app": name}, Ports: map[int]string{80: "web", 81: ""}}
}

// run starts pods, each "name@node", with the label app=name; all listen on 80 (named web) and 81.
func (w *world) run(namespace string, pods ...string) {
	w.Helper()
	var specs []cluster.PodSpec
	for _, p := range pods {
		specs = append(specs, specOf(p))
	}
	running, err := w.RunPods(w.ctx, namespace, specs...)
	w.must(err)
	for _, p := range running {
		w.pods[p.Name] = p
	}
}

// way is one expectation a family: from and to are names of pods.
func (w *world) way(from, to, proto string, port int, open bool, why string) (list []cluster.Expectation) {
	w.Helper()
	sender, ok := w.pods[from]
	target, ok2 := w.pods[to]
	if !ok || !ok2 {
		w.Fatalf("no pod %s or %s", from, to)
	}
	for _, f := range families {
		if ip, ok := target.IP(f); ok {
			list = append(list, cluster.Expectation{From: sender, Proto: proto, To: ip, Port: port, Open: open, Why: why})
		}
	}
	return list
}

func (w *world) open(from, to, proto string, port int, why string) []cluster.Expectation {
	w.Helper()
	return w.way(from, to, proto, port, true, why)
}

func (w *world) shut(from, to, proto string, port int, why string) []cluster.Expectation {
	w.Helper()
	return w.way(from, to, proto, port, false, why)
}

// one is the way of one family, or of the only one that there is, to port 80.
func (w *world) one(from, to, proto string, family int, open bool) cluster.Expectation {
	w.Helper()
	ways := w.way(from, to, proto, 80, open, map[bool]string{true: "allowed for now at least", false: "never allowed"}[open])
	return ways[(family-4)/2%len(ways)]
}

// settles fails the test unless all the expectations come true and stay so.
func (w *world) settles(lists ...[]cluster.Expectation) {
	w.Helper()
	var all []cluster.Expectation
	for _, l := range lists {
		all = append(all, l...)
	}
	if err := w.Settle(w.ctx, settling, all); err != nil {
		w.Error(err)
	}
}

// busy tells whether a stream along the way asks all the time: what does not connect asks now and then.
func busy(e cluster.Expectation) bool { return e.Open || e.Proto != "tcp" }

// streamRate is how often a second each busy stream along the ways asks.
func streamRate(ways []cluster.Expectation) float64 {
	n := 0
	for _, e := range ways {
		if busy(e) {
			n++
		}
	}
	return cluster.StreamRate(n)
}

// streams starts one along each way, and leaves the processors as much for those that run beside them.
func (w *world) streams(ways []cluster.Expectation, beside ...cluster.Expectation) []*cluster.Stream {
	w.Helper()
	return w.streamsAt(streamRate(slices.Concat(ways, beside)), ways)
}

func (w *world) streamsAt(perSecond float64, ways []cluster.Expectation) (list []*cluster.Stream) {
	w.Helper()
	for _, e := range ways {
		s, err := w.StartStream(w.ctx, e, perSecond)
		w.must(err)
		list = append(list, s)
	}
	for _, s := range list {
		w.must(s.AwaitBegin())
	}
	return list
}

// watch streams along all the ways while during runs, which begins when the open streams have answers. It fails the test
// if a denied stream got an answer or reached its server, if an open stream misses more answers than the kernel dropped,
// or if it had none for longer than maxGap. It returns how much the least busy stream sent, as a part of what it should.
// The streams of the additional ways (beside) share the rate.
func (w *world) watch(maxGap time.Duration, ways []cluster.Expectation, during func(), beside ...cluster.Expectation) (diligence float64) {
	w.Helper()
	silence := w.unheard(slices.DeleteFunc(slices.Clone(ways), func(e cluster.Expectation) bool { return e.Open }), "nothing should")
	dropped := w.CountDrops(w.ctx, w.namespacesOf(ways))
	streams, began := w.streams(ways, beside...), time.Now()
	defer func() { // also when during ends the test: it reports the denied packets that passed before
		w.Helper()
		rate, passed := streamRate(slices.Concat(ways, beside)), time.Since(began).Seconds()
		reports := w.stop(streams)
		w.judge(maxGap, began, streams, reports, dropped())
		silence()
		diligence = 1
		for i, r := range reports {
			if busy(ways[i]) {
				diligence = min(diligence, float64(r.Sent)/(ways[i].Rate(rate)*passed))
			}
		}
	}()
	for _, s := range streams {
		s.AwaitAnswer()
	}
	during()
	return 0 // the deferred function sets it
}

// judge fails the test for the reports of streams: a denied one was answered, an open one misses more answers than the
// kernel dropped, or had none for longer than maxGap since a time.
func (w *world) judge(maxGap time.Duration, began time.Time, streams []*cluster.Stream, reports []cluster.Report, drops uint64) {
	w.Helper()
	gap := time.Duration(0)
	var longest cluster.Expectation
	for i, r := range reports {
		e := streams[i].Expectation
		subtracted, err := streams[i].Judge(r, drops)
		if drops -= subtracted; err != nil {
			w.Error(err)
		}
		if subtracted > 0 {
			w.Logf("NOTE %s %v: %d of %d questions, all within the %d packets that the kernel has dropped",
				cluster.Lost, e, subtracted, r.Sent, drops+subtracted)
		}
		if e.Open && r.Gap() > gap {
			gap, longest = r.Gap(), e
		}
		w.Logf("%v %s: %d asked, %d answered, longest gap %.0f ms from %s", e.From, r.Proto, r.Sent, r.Received,
			r.LongestGapMillis, r.LongestGapBegan.Format("15:04:05.000"))
	}
	if gap > 0 {
		w.within(maxGap, gap, began, "%v without an answer", longest)
	}
}

// namespacesOf returns the network namespaces of the clients and of the known servers of ways.
func (w *world) namespacesOf(ways []cluster.Expectation) (list []string) {
	for _, e := range ways {
		list = append(list, e.From.NetNS)
		if netns, _, known := w.server(e); known {
			list = append(list, netns)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// stop ends streams together and returns their reports. One that fails does not keep the others from being judged.
func (w *world) stop(streams []*cluster.Stream) []cluster.Report {
	w.Helper()
	reports := make([]cluster.Report, len(streams))
	failures := make([]error, len(streams))
	var wg sync.WaitGroup
	for i, s := range streams {
		wg.Go(func() { reports[i], failures[i] = s.Stop() })
	}
	wg.Wait()
	if err := errors.Join(failures...); err != nil {
		w.Error(err)
	}
	return reports
}
