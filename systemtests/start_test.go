package systemtests

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

var starts = flag.Int("starts", 24, "how many pods are started while their policies change")

// beginning is what "probe first" saw.
type beginning struct {
	Tries []struct {
		Proto, Address  string
		Asked, Answered int
		FirstMillis     float64
	}
	Heard int
}

// starters begin with the probe as their first instruction; every fourth has an init container, the first of each node a hostPort.
func starters(namespace string, count int, targets []string) (list []object) {
	first := func(name string, duration time.Duration) object {
		args := []string{"first", "-for", cluster.Stretch(duration).String(), "-each", cluster.Stretch(50 * time.Millisecond).String()}
		return object{"name": name, "image": "flowkeep.local/probe:sandbox", "imagePullPolicy": "Never", "args": append(args, targets...)}
	}
	for i := range count {
		main := first("main", 3*time.Second)
		if i < 2 {
			main["ports"] = []object{{"containerPort": 80, "hostPort": hostPort, "protocol": "UDP"}}
		}
		spec := object{"nodeName": fmt.Sprintf("node%d", i%2+1), "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false, "containers": []object{main}}
		if i%4 == 3 {
			spec["initContainers"] = []object{first("init", 500*time.Millisecond)}
		}
		list = append(list, object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": fmt.Sprintf("start%d", i), "namespace": namespace, "labels": object{"role": "starter"}}, "spec": spec})
	}
	return list
}

type object = map[string]any

const hostPort = 17080

// atOnce is how many are created together: two cores that start more are busy with nothing else.
func atOnce() int {
	if cluster.IsEmulated() {
		return max(int(12/cluster.Slowness()), 2)
	}
	return 12
}

// startCount returns how many pods are started. An emulated machine starts two at once, and a sixth of the system tests
// there is to take 35 minutes: it starts half as many.
func startCount() int {
	if cluster.IsEmulated() {
		return *starts / 2
	}
	return *starts
}

// Pods start in a storm while their policies change, also the one that isolates them. From its first instruction each may reach one pod and nobody else, and
// nobody may reach it: not one forbidden packet passes, in either direction. How long ADD waited for the policies is printed.
func TestPodsStartWhileTheirPoliciesChange(t *testing.T) {
	w := setup(t)
	ns := w.namespace("start", nil)
	w.run(ns, "ok@node1", "vault@node1", "cellar@node2", "stranger@node2")
	changing := w.isolateInTurns(ns)
	var targets []string
	forbidden := map[string]bool{}
	for pod, protocols := range map[string][]string{"ok": {"tcp"}, "vault": {"tcp", "udp"}, "cellar": {"udp", "icmp"}} {
		for _, ip := range w.pods[pod].IPs {
			for _, proto := range protocols {
				address := netip.AddrPortFrom(ip, 80).String()
				if proto == "icmp" {
					address = ip.String()
				}
				forbidden[address] = pod != "ok"
				targets = append(targets, proto, address)
			}
		}
	}
	door, err := w.RunPods(w.ctx, ns, cluster.PodSpec{Name: "door", Node: "node1", Ports: map[int]string{80: ""}, HostPort: hostPort + 1})
	w.must(err)
	w.pods["door"] = door[0]
	before, knocks := w.datagramsOf("vault", "cellar"), w.datagramsOf("door")
	realised := w.realiseBuckets()
	busy, rest := context.WithCancel(w.ctx)
	var around sync.WaitGroup
	w.sprayHostPorts(busy, &around)
	around.Go(func() { changing(busy) })
	count := startCount()
	began, seen, last := time.Now(), map[string]beginning{}, w.lastAddresses()
	for wave := range slices.Chunk(starters(ns, count, targets), atOnce()) {
		sprayed := w.sprayFuture(&around, last, len(wave))
		w.create(ns, wave)
		pods := w.finished(ns)
		maps.Copy(seen, w.beginnings(pods))
		for node, ip := range sprayed(pods) {
			last[node] = ip
		}
		w.must(w.Delete(w.ctx, cluster.PathOf("Pod", ns, "")+"?labelSelector=role%3Dstarter", time.Minute))
	}
	took := time.Since(began)
	rest()
	around.Wait()

	if want := count + count/4; len(seen) != want {
		w.Errorf("%d containers told what they saw, want %d", len(seen), want)
	}
	answered := 0
	var firsts []float64
	for name, b := range seen {
		if b.Heard > 0 {
			w.leak("%s: received %d datagrams of pods that may not send to it", name, b.Heard)
		}
		for _, try := range b.Tries {
			switch {
			case forbidden[try.Address] && try.Answered > 0:
				w.leak("%s: %s %s answered %d of %d times, the first %.0f ms after the start",
					name, try.Proto, try.Address, try.Answered, try.Asked, try.FirstMillis)
			case !forbidden[try.Address] && try.Answered > 0:
				answered++
				firsts = append(firsts, try.FirstMillis)
			}
		}
	}
	if after := w.datagramsOf("vault", "cellar"); !slices.Equal(before, after) {
		w.leak("forbidden pods took in datagrams: %v before, %v after", before, after)
	}
	if after := w.datagramsOf("door"); slices.Equal(knocks, after) {
		w.Error("nobody came by a hostPort that is open: nothing is shown of those that are not")
	}
	if answered < count {
		w.Errorf("only %d ways that are allowed were answered: nothing is shown", answered)
	}
	slices.Sort(firsts)
	waited := w.realiseBuckets()
	w.print(fmt.Sprintf("%d pods started in %.0f s: ADD waited for policies p50 ≤ %.1f ms, p99 ≤ %.1f ms, %.0f %% of it at most %.0f ms; first answer p50 %.1f ms after the first instruction",
		count, took.Seconds(), 1000*quantile(realised, waited, 0.5), 1000*quantile(realised, waited, 0.99), 100*within(realised, waited, promisedStart), 1000*promisedStart, at(firsts, 0.5)))
	if count >= manyStarts && within(realised, waited, promisedStart) < 0.5 {
		w.Errorf("ADD waited for policies for more than %.0f ms, p50", 1000*promisedStart)
	}
}

// With manyStarts pod starts, as in the part starts-200 of make test-full, the median wait for policies is at most
// promisedStart seconds. netplugin's histogram has a bucket with that bound.
const (
	manyStarts    = 200
	promisedStart = 0.15
)

// create makes pods all at once.
func (w *world) create(namespace string, pods []object) {
	w.Helper()
	api, err := w.API(w.ctx)
	w.must(err)
	failures := make([]error, len(pods))
	var all sync.WaitGroup
	for i, pod := range pods {
		all.Go(func() {
			text, err := json.Marshal(pod)
			if err == nil {
				err = api.Do(w.ctx, http.MethodPost, cluster.PathOf("Pod", namespace, ""), text)
			}
			failures[i] = err
		})
	}
	all.Wait()
	w.must(errors.Join(failures...))
}

// podList is what the API server tells of them.
type podList struct {
	Items []struct {
		Metadata struct{ Name string }
		Spec     struct{ NodeName string }
		Status   struct {
			Phase                                    string
			PodIPs                                   []struct{ IP netip.Addr }
			ContainerStatuses, InitContainerStatuses []struct {
				Name  string
				State struct {
					Terminated *struct{ Message string }
				}
			}
		}
	}
}

// finished waits until all starters that there are have ended well.
func (w *world) finished(namespace string) (list podList) {
	w.Helper()
	w.must(cluster.Until(w.ctx, 5*time.Minute, func() error {
		list = podList{}
		if err := w.Get(w.ctx, cluster.PathOf("Pod", namespace, "")+"?labelSelector=role%3Dstarter", &list); err != nil {
			return err
		}
		for _, p := range list.Items {
			if p.Status.Phase != "Succeeded" {
				return fmt.Errorf("pod %s is %s", p.Metadata.Name, p.Status.Phase)
			}
		}
		return nil
	}))
	return list
}

// beginnings are the last words of the starters, by pod and container.
func (w *world) beginnings(list podList) map[string]beginning {
	w.Helper()
	seen := map[string]beginning{}
	for _, p := range list.Items {
		for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			var b beginning
			if c.State.Terminated == nil {
				w.Fatalf("%s %s has no last words", p.Metadata.Name, c.Name)
			}
			w.must(json.Unmarshal([]byte(c.State.Terminated.Message), &b))
			seen[p.Metadata.Name+" "+c.Name] = b
		}
	}
	return seen
}

// place is what addresses are given out from in turn.
type place struct {
	node string
	four bool
}

// lastAddresses are those given out last.
func (w *world) lastAddresses() map[place]netip.Addr {
	last := map[place]netip.Addr{}
	for _, p := range w.pods {
		for _, ip := range p.IPs {
			if at := (place{p.Node, ip.Is4()}); cluster.GivenLater(ip, last[at]) {
				last[at] = ip
			}
		}
	}
	return last
}

// spray sends datagrams to so many addresses, round and round, until the context ends.
func (w *world) spray(ctx context.Context, around *sync.WaitGroup, netns string, first netip.Addr, count, port int, perSecond float64) {
	around.Go(func() {
		_, _ = w.RunIn(ctx, netns, w.Bin+"/probe", "spray", "-rate", fmt.Sprintf("%.0f", perSecond),
			first.String(), fmt.Sprint(count), fmt.Sprint(port)) // ends with ctx
	})
}

// sprayFuture has the stranger send to the addresses that come next at each place, twice as many as half of the wave needs. The function that it returns ends it,
// complains of pods that have got other addresses, and gives those that were given out last.
func (w *world) sprayFuture(around *sync.WaitGroup, last map[place]netip.Addr, count int) (stop func(podList) map[place]netip.Addr) {
	w.Helper()
	ctx, rest := context.WithCancel(w.ctx)
	targets := map[netip.Addr]bool{}
	for _, ip := range last {
		for _, run := range cluster.NextAddresses(ip, count) {
			w.spray(ctx, around, w.pods["stranger"].NetNS, run.First, run.Count, 80, 500*float64(run.Count)/float64(count))
			for next, n := run.First, 0; n < run.Count; next, n = next.Next(), n+1 {
				targets[next] = true
			}
		}
	}
	return func(pods podList) map[place]netip.Addr {
		w.Helper()
		rest()
		given := map[place]netip.Addr{}
		for _, p := range pods.Items {
			for _, ip := range p.Status.PodIPs {
				if !targets[ip.IP] {
					w.Errorf("%s has the address %v, which nobody asked: nothing is shown", p.Metadata.Name, ip.IP)
				}
				if at := (place{p.Spec.NodeName, ip.IP.Is4()}); cluster.GivenLater(ip.IP, given[at]) {
					given[at] = ip.IP
				}
			}
		}
		return given
	}
}

// sprayHostPorts has a host outside send to the starters' hostPorts, and now and then to that of a pod that takes it in.
func (w *world) sprayHostPorts(ctx context.Context, around *sync.WaitGroup) {
	w.Helper()
	for _, ip := range append(w.nodeIPs("node1"), w.nodeIPs("node2")...) {
		w.spray(ctx, around, w.ControlPlaneNS(), ip, 1, hostPort, 200)
		w.spray(ctx, around, w.ControlPlaneNS(), ip, 1, hostPort+1, 10)
	}
}

// isolateInTurns has one policy isolate the starters, and returns what has another take its place again and again: it is made, at once the one before is
// deleted, and no version lets the starters reach more than the one pod, or anybody reach them. An instant in which neither isolates would show. Every other one
// selects them in other words, and so by a group of its own.
func (w *world) isolateInTurns(namespace string) (change func(context.Context)) {
	w.Helper()
	api, err := w.API(w.ctx)
	w.must(err)
	path := cluster.PathOf("NetworkPolicy", namespace, "")
	turn := func(i int) []byte {
		selector := []string{`"matchLabels":{"role":"starter"}`, `"matchExpressions":[{"key":"role","operator":"In","values":["starter"]}]`}[i%2]
		return fmt.Appendf(nil, `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"turn%[1]d"},"spec":{"podSelector":{%[2]s},
			"policyTypes":["Ingress","Egress"],"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"nobody%[1]d"}}}]}],
			"egress":[{"to":[{"podSelector":{"matchLabels":{"app":"ok"}}}],"ports":[{"port":%[3]d,"endPort":90}]},{"to":[{"ipBlock":{"cidr":"198.18.%[4]d.0/24"}}]}]}}`, i, selector, 78+i%3, i%250)
	}
	w.must(api.Do(w.ctx, http.MethodPost, path, turn(0)))
	return func(ctx context.Context) {
		pace := time.NewTicker(cluster.Stretch(200 * time.Millisecond))
		defer pace.Stop()
		for i := 1; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-pace.C:
			}
			err := api.Do(w.ctx, http.MethodPost, path, turn(i))
			if err == nil {
				err = api.Do(w.ctx, http.MethodDelete, fmt.Sprintf("%s/turn%d", path, i-1), nil)
			}
			if err != nil {
				w.Error(err)
				return
			}
		}
	}
}

func (w *world) datagramsOf(pods ...string) (counts []int) {
	w.Helper()
	for _, p := range pods {
		for _, f := range families {
			n, err := w.Datagrams(w.ctx, w.pods[p].NetNS, f)
			w.must(err)
			counts = append(counts, n)
		}
	}
	return counts
}

// realiseBuckets is the histogram of both nodes: how many pods waited no longer than so many seconds.
func (w *world) realiseBuckets() map[float64]float64 {
	w.Helper()
	bounds := []float64{promisedStart, math.Inf(1)}
	for i := range 16 {
		bounds = append(bounds, 0.0005*float64(int(1)<<i))
	}
	out := map[float64]float64{}
	for _, le := range bounds {
		for _, node := range []string{"node1", "node2"} {
			n, err := w.Metric(w.ctx, node+"-netplugin", "flowkeep_netplugin_realize_seconds_bucket", fmt.Sprintf(`le="%v"`, le))
			w.must(err)
			out[le] += n
		}
	}
	return out
}

// within is how many, as a part of one, of those that were counted in between waited for no longer than a bucket's bound.
func within(before, after map[float64]float64, bound float64) float64 {
	all := after[math.Inf(1)] - before[math.Inf(1)]
	return (after[bound] - before[bound]) / max(all, 1)
}

// quantile is the upper bound of the bucket that it falls into, of what was counted in between.
func quantile(before, after map[float64]float64, q float64) float64 {
	for _, bound := range slices.Sorted(maps.Keys(after)) {
		if within(before, after, bound) >= q {
			return bound
		}
	}
	return math.Inf(1)
}
