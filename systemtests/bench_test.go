package systemtests

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

var printTable = flag.Bool("table", false, "print the tables of latency and throughput; make bench does")

// How often a policy is made and removed for the table of latencies.
const (
	toggles    = 60
	togglePace = 200 * time.Millisecond
)

// edgeRate is how often a second a way is asked whether it is open where that is all there is to do.
const edgeRate = 5000

// TestLatencyTable prints how long it takes from the request to the API server to the first packet that meets the new
// verdict. It judges nothing.
func TestLatencyTable(t *testing.T) {
	if !*printTable {
		t.Skip("a table to print: run with -table")
	}
	w := setup(t)
	ns := threePods(w)
	api, err := w.API(w.ctx)
	w.must(err)
	fmt.Printf("\n%-48s %8s %8s %8s\n", fmt.Sprintf("policy written to the API → packet, %d times", toggles), "p50 ms", "p99 ms", "max ms")
	for _, from := range []string{"a", "c"} {
		way := w.open(from, "b", "udp", 80, "before")[:1]
		w.settles(way)
		stop, err := w.WatchEdges(w.ctx, way[0], edgeRate)
		w.must(err)
		asked := w.toggle(api, ns)
		edges, err := stop()
		w.must(err)
		for _, open := range []bool{false, true} {
			name := fmt.Sprintf("%s, %s", map[string]string{"a": "same node", "c": "across"}[from], map[bool]string{false: "dropped", true: "allowed"}[open])
			all := latencies(asked[open], edges, open, togglePace/2)
			if len(all) < toggles {
				w.Errorf("%s: %d of %d changes were seen", name, len(all), toggles)
				continue
			}
			fmt.Printf("%-48s %8.1f %8.1f %8.1f\n", name, at(all, 0.5), at(all, 0.99), at(all, 1))
		}
	}
	fmt.Println("goal: p50 10 ms or less, p99 50 ms or less; Open vSwitch alone: 0.24 ms dropped, 1.3 ms allowed")
}

// toggle makes and removes a policy that denies everything to b, and returns when it asked for each, in Unix nanoseconds.
func (w *world) toggle(api *cluster.API, ns string) map[bool][]int64 {
	w.Helper()
	path := "/apis/networking.k8s.io/v1/namespaces/" + ns + "/networkpolicies"
	body := []byte(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"toggled"},
		"spec":{"podSelector":{"matchLabels":{"app":"b"}},"policyTypes":["Ingress"]}}`)
	asked := map[bool][]int64{}
	pace := time.NewTicker(togglePace)
	defer pace.Stop()
	for range toggles {
		<-pace.C
		asked[false] = append(asked[false], time.Now().UnixNano())
		w.must(api.Do(w.ctx, http.MethodPost, path, body))
		<-pace.C
		asked[true] = append(asked[true], time.Now().UnixNano())
		w.must(api.Do(w.ctx, http.MethodDelete, path+"/toggled", nil))
	}
	<-pace.C
	return asked
}

// latencies are in ms, sorted: from each moment to the edge of the kind that comes before the next such moment; a moment without one
// was overtaken by the next change. An edge is when the first question of its kind was sent: where a busy machine
// keeps packets waiting it may lie before the moment, by less than early; that counts as 0.
func latencies(asked []int64, edges []cluster.Edge, open bool, early time.Duration) (out []float64) {
	for n, t := range asked {
		i := slices.IndexFunc(edges, func(e cluster.Edge) bool { return e.Open == open && e.UnixNanos >= t-early.Nanoseconds() })
		if i >= 0 && (n+1 == len(asked) || edges[i].UnixNanos < asked[n+1]-early.Nanoseconds()) {
			out = append(out, max(0, float64(edges[i].UnixNanos-t)/1e6))
		}
	}
	slices.Sort(out)
	return out
}

func at(sorted []float64, q float64) float64 { return sorted[int(q*float64(len(sorted)-1))] }

// clausePolicies × clausesEach address blocks stand in front of the one that lets the client in.
const clausePolicies, clausesEach = 50, 2000

// TestThroughputTable prints what a connection carries and how many connections a second there are, beside the floors of
// the same switch. It judges nothing.
func TestThroughputTable(t *testing.T) {
	if !*printTable {
		t.Skip("a table to print: run with -table")
	}
	w := setup(t)
	ns := threePods(w)
	floor, err := w.MakeFloor(w.ctx)
	w.Cleanup(func() { w.must(floor.Remove(context.Background())) })
	w.must(err)
	stop, err := w.Serve(w.ctx, floor.B.NetNS, 80)
	w.must(err)
	defer stop()
	bare := func() carried {
		w.must(floor.Flows(w.ctx, "in_port=1,actions=output:2", "in_port=2,actions=output:1"))
		return w.measure(floor.A, floor.B)
	}
	tracked := func() carried {
		w.must(floor.Flows(w.ctx, "arp,in_port=1,actions=output:2", "arp,in_port=2,actions=output:1", "ip,actions=ct(table=1)",
			"table=1,ct_state=+trk+new,ip,actions=ct(commit),resubmit(,2)", "table=1,ct_state=+trk+est,ip,actions=resubmit(,2)",
			"table=2,in_port=1,actions=output:2", "table=2,in_port=2,actions=output:1"))
		return w.measure(floor.A, floor.B)
	}
	pods := func() carried { return w.measure(w.pods["a"], w.pods["b"]) }
	fmt.Printf("\n%-48s %10s %8s %12s %8s\n", "one TCP connection; connections (same node)", "Gbit/s", "ratio", "conns/s", "ratio")
	printRow("a bare switch: one flow", bare, bare)
	printRow("conntrack alone", bare, tracked)
	printRow("Flowkeep, no policy", bare, pods)
	for i := range clausePolicies {
		w.policy(ns, fmt.Sprintf("many%d", i), blocksPolicy(i))
	}
	w.policy(ns, "last", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	w.must(cluster.Until(w.ctx, time.Minute, func() error {
		flows, err := w.Flows(w.ctx, "node1")
		if err == nil && len(flows) < clausePolicies*clausesEach {
			err = fmt.Errorf("%d flows so far", len(flows))
		}
		return err
	}))
	printRow(fmt.Sprintf("Flowkeep, %d clauses", clausePolicies*clausesEach), bare, pods)
	fmt.Println("goal: 0.9 of the bare switch or more, with 100000 clauses")
}

// printRow measures a way three times, each beside the floor, and prints medians.
func printRow(name string, floor, way func() carried) {
	var bits, bitsRatio, connects, connectsRatio []float64
	for range 3 {
		f, c := floor(), way()
		bits, connects = append(bits, c.bits), append(connects, c.connects)
		bitsRatio, connectsRatio = append(bitsRatio, c.bits/f.bits), append(connectsRatio, c.connects/f.connects)
	}
	fmt.Printf("%-48s %10.2f %8.2f %12.0f %8.2f\n", name, median(bits)/1e9, median(bitsRatio), median(connects), median(connectsRatio))
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

func blocksPolicy(i int) string {
	var blocks []string
	for j := range clausesEach {
		n := i*clausesEach + j
		blocks = append(blocks, fmt.Sprintf("{ipBlock: {cidr: 198.%d.%d.%d/32}}", 18+n>>16, n>>8&255, n&255))
	}
	return fmt.Sprintf(`{podSelector: {matchLabels: {app: b}}, ingress: [{from: [%s], ports: [{port: %d}]}]}`, strings.Join(blocks, ", "), 1000+i)
}

// carried is what a way carries: bits a second of one connection, and connections a second.
type carried struct{ bits, connects float64 }

func (w *world) measure(from, to cluster.Pod) (c carried) {
	w.Helper()
	var err error
	c.bits, err = w.Throughput(w.ctx, from, to)
	w.must(err)
	c.connects, err = w.Connects(w.ctx, from, to, 80)
	w.must(err)
	return c
}
