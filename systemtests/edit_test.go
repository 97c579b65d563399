package systemtests

import (
	"flag"
	"fmt"
	"math"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

var edits = flag.Int("edits", 100, "how often a policy is edited under probes")

// editPace leaves a change the time to arrive before the next.
var editPace = cluster.Stretch(50 * time.Millisecond)

// A policy is edited again and again: what all its versions allow loses not one packet, what none allows gets none through.
func TestPolicyIsEditedUnderTraffic(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.run(ns, "d@node2")
	api, err := w.API(w.ctx)
	w.must(err)
	path := "/apis/networking.k8s.io/v1/namespaces/" + ns + "/networkpolicies"
	version := func(rules string) []byte {
		return fmt.Appendf(nil, `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"edited"},
			"spec":{"podSelector":{"matchLabels":{"app":"b"}},"ingress":[%s]}}`, rules)
	}
	versions := [][]byte{
		version(`{"from":[{"podSelector":{"matchExpressions":[{"key":"app","operator":"In","values":["a","d"]}]}}]}`),
		version(`{"from":[{"podSelector":{"matchLabels":{"app":"a"}}}],"ports":[{"port":80},{"port":80,"protocol":"UDP"}]}`),
		version(`{"from":[{"podSelector":{"matchLabels":{"app":"d"}}}]},{"from":[{"podSelector":{"matchLabels":{"app":"a"}}}],"ports":[{"port":79,"endPort":81},{"port":80,"protocol":"UDP"}]}`),
	}
	w.must(api.Do(w.ctx, http.MethodPost, path, versions[0]))
	var always, never, sometimes []cluster.Expectation
	for _, proto := range []string{"tcp", "udp"} {
		always = append(always, w.open("a", "b", proto, 80, "allowed by every version")...)
		never = append(never, w.shut("c", "b", proto, 80, "allowed by no version")...)
		sometimes = append(sometimes, w.open("d", "b", proto, 80, "allowed by some versions")[:1]...)
	}
	w.settles(always, never, sometimes)
	stop, err := w.WatchEdges(w.ctx, sometimes[1])
	w.must(err)
	asked := map[bool][]int64{}                               // when a version was written that changes what d may
	w.watch(5*time.Second, append(always, never...), func() { // loss is judged here, not delay
		pace := time.NewTicker(editPace)
		defer pace.Stop()
		for i := range *edits {
			<-pace.C
			next := (i + 1) % len(versions)
			if next != 0 { // as version 2
				asked[next == 2] = append(asked[next == 2], time.Now().UnixNano())
			}
			w.must(api.Do(w.ctx, http.MethodPut, path+"/edited", versions[next]))
		}
		<-pace.C
	})
	edges, err := stop()
	w.must(err)
	w.printSwitchOver(asked, edges)
	w.must(api.Do(w.ctx, http.MethodPut, path+"/edited", versions[1]))
	for i := range sometimes {
		sometimes[i].Open = false
	}
	w.settles(always, never, sometimes)
}

// printSwitchOver is of the pair that only some versions allow: from the request to the API server to the first packet that meets
// the new verdict. Where the next edit came first it took longer than the pace, which is all that is known of it.
func (w *world) printSwitchOver(asked map[bool][]int64, edges []cluster.Edge) {
	w.Helper()
	for _, open := range []bool{false, true} {
		all := latencies(asked[open], edges, open, editPace)
		if len(all) < len(asked[open])/10 { // the others were overtaken
			w.Errorf("%d of %d switch-overs (open: %v) were seen", len(all), len(asked[open]), open)
			continue
		}
		overtaken := len(asked[open]) - len(all)
		all = append(all, slices.Repeat([]float64{math.Inf(1)}, overtaken)...)
		text := fmt.Sprintf("%-48s %8.1f %8.1f %8.1f   (%d overtaken by the next edit, +Inf)", fmt.Sprintf("policy edited %d times under traffic, %s", *edits, map[bool]string{false: "dropped", true: "allowed"}[open]), at(all, 0.5), at(all, 0.99), at(all, 1), overtaken)
		w.Log(text)
		if *printTable {
			fmt.Println(text)
		}
	}
}
