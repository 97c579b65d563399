package systemtests

import (
	"flag"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

var edits = flag.Int("edits", 50, "how often a policy is edited under probes of IPv4, and then of IPv6")

// editPace leaves a change the time to arrive before the next, and where it is to be told how many took too long, thrice the time that it may take.
func editPace() time.Duration {
	if *edits >= manyEdits {
		return 3 * switchOverMS * time.Millisecond
	}
	return cluster.Stretch(50 * time.Millisecond)
}

// With manyEdits edits of a policy, as in the part edits-1000 of make test-full, probes send at 1 kHz, of which a machine
// must reach the share diligent, and the p99 of the switch-over is at most switchOverMS.
const (
	manyEdits    = 1000
	diligent     = 0.8
	switchOverMS = 50
)

// A policy is edited again and again: what all its versions allow loses not one packet, what none allows gets none through. Its versions differ in both
// directions; the pairs are of one node and of two, and first of IPv4 and then of IPv6: with more of them at once the probes themselves keep two processors
// so busy that little is seen of the rest.
func TestPolicyIsEditedUnderTraffic(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.run(ns, "d@node2", "e@node2")
	w.edited(ns, "IPv4", editedWays{
		always:    []cluster.Expectation{w.one("a", "b", "tcp", 4, true), w.one("e", "b", "udp", 4, true)},
		never:     []cluster.Expectation{w.one("c", "b", "udp", 4, false), w.one("c", "b", "tcp", 4, false), w.one("b", "c", "tcp", 4, false)},
		sometimes: []cluster.Expectation{w.one("d", "b", "udp", 4, true), w.one("d", "b", "tcp", 4, true)},
	})
	w.edited(ns, "IPv6", editedWays{
		always:    []cluster.Expectation{w.one("a", "b", "udp", 6, true), w.one("b", "e", "tcp", 6, true)},
		never:     []cluster.Expectation{w.one("b", "c", "udp", 6, false), w.one("c", "b", "tcp", 6, false)},
		sometimes: []cluster.Expectation{w.one("d", "b", "udp", 6, true), w.one("d", "b", "tcp", 6, true)},
	})
}

// editedWays are those that all versions of a policy allow, that none does, and that some do; of these the first is looked at, and is of UDP.
type editedWays struct{ always, never, sometimes []cluster.Expectation }

func (w *world) edited(ns, family string, ways editedWays) {
	w.Helper()
	api, err := w.API(w.ctx)
	w.must(err)
	path := cluster.PathOf("NetworkPolicy", ns, "")
	versions := w.editedVersions()
	w.must(api.Do(w.ctx, http.MethodPost, path, versions[0]))
	w.settles(ways.always, ways.never, ways.sometimes)
	// A slow machine asks far less often, and must ask ten times between two edits.
	stop, err := w.WatchEdges(w.ctx, ways.sometimes[0], 1000*min(cluster.Slowness(), 4))
	w.must(err)
	streams := slices.Concat(ways.always, ways.never)
	var answers []float64                                 // of the API server, after so many ms
	asked := map[bool][]int64{}                           // when a version was written that changes what d may
	diligence := w.watch(5*time.Second, streams, func() { // loss is judged here, not delay
		pace := time.NewTicker(editPace())
		defer pace.Stop()
		for i := range *edits {
			<-pace.C
			next := (i + 1) % len(versions)
			if next != 0 { // as version 2
				asked[next == 2] = append(asked[next == 2], time.Now().UnixNano())
			}
			began := time.Now()
			w.must(api.Do(w.ctx, http.MethodPut, path+"/edited", versions[next]))
			answers = append(answers, float64(time.Since(began).Microseconds())/1000)
		}
		<-pace.C
	})
	w.printSwitchOver(family, asked, stop)
	slices.Sort(answers)
	w.print(fmt.Sprintf("%-48s %8.1f %8.1f %8.1f", "of which the API server takes to answer, "+family, at(answers, 0.5), at(answers, 0.99), at(answers, 1)))
	w.printDiligence(diligence, streamRate(streams))
	w.must(api.Do(w.ctx, http.MethodPut, path+"/edited", versions[1]))
	w.settles(ways.always, ways.never, closed(ways.sometimes))
	w.must(api.Do(w.ctx, http.MethodDelete, path+"/edited", nil))
}

// editedVersions let a and e into b and b out to e, each in other words; the first and the last let d in too.
func (w *world) editedVersions() [][]byte {
	w.Helper()
	version := func(ingress, egress string) []byte {
		return fmt.Appendf(nil, `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"edited"},
			"spec":{"podSelector":{"matchLabels":{"app":"b"}},"policyTypes":["Ingress","Egress"],"ingress":[%s],"egress":[%s]}}`, ingress, egress)
	}
	only := func(apps string) string {
		return `{"podSelector":{"matchExpressions":[{"key":"app","operator":"In","values":[` + apps + `]}]}}`
	}
	var blocks []string
	for _, ip := range w.pods["e"].IPs {
		blocks = append(blocks, fmt.Sprintf(`{"ipBlock":{"cidr":"%s/%d"}}`, ip, ip.BitLen()))
	}
	const ports = `"ports":[{"port":79,"endPort":81},{"port":80,"protocol":"UDP"}]`
	return [][]byte{
		version(`{"from":[`+only(`"a","d","e"`)+`]}`, `{"to":[`+only(`"e"`)+`]}`),
		version(`{"from":[`+only(`"a","e"`)+`],"ports":[{"port":80},{"port":80,"protocol":"UDP"}]}`, `{"to":[`+strings.Join(blocks, ",")+`]}`),
		version(`{"from":[`+only(`"d"`)+`]},{"from":[`+only(`"a","e"`)+`],`+ports+`}`, `{"to":[`+only(`"e","nobody"`)+`],`+ports+`}`),
	}
}

// printSwitchOver is of the pair that only some versions allow: from the request to the API server to the first packet that meets
// the new verdict. Where the next edit came first it took longer than the pace, which is all that is known of it.
func (w *world) printSwitchOver(family string, asked map[bool][]int64, stop func() ([]cluster.Edge, error)) {
	w.Helper()
	edges, err := stop()
	w.must(err)
	for _, open := range []bool{false, true} {
		all := latencies(asked[open], edges, open, editPace())
		if len(all) < len(asked[open])/10 { // the others were overtaken
			w.Errorf("%s: %d of %d switch-overs (open: %v) were seen", family, len(all), len(asked[open]), open)
			continue
		}
		overtaken := len(asked[open]) - len(all)
		all = append(all, slices.Repeat([]float64{math.Inf(1)}, overtaken)...)
		w.print(fmt.Sprintf("%-48s %8.1f %8.1f %8.1f   (%d overtaken by the next edit, +Inf)", fmt.Sprintf("policy edited %d times under traffic, %s, %s", *edits, map[bool]string{false: "dropped", true: "allowed"}[open], family), at(all, 0.5), at(all, 0.99), at(all, 1), overtaken))
		if p99 := at(all, 0.99); *edits >= manyEdits && p99 > switchOverMS {
			w.Errorf("%s: the switch-over (open: %v) takes %.1f ms, p99: more than %d", family, open, p99, switchOverMS)
		}
	}
}

// printDiligence tells whether the probes asked as often as they were to: a machine that lets them ask seldom loses no packets.
func (w *world) printDiligence(part, perSecond float64) {
	w.Helper()
	w.print(fmt.Sprintf("%-48s %8.0f %% of %.0f Hz, the laziest of them", "probes asked", 100*part, perSecond))
	if *edits >= manyEdits && part < diligent {
		w.Errorf("a probe asked %.0f %% of %.0f times a second, want %.0f %% at least: what it did not meet shows nothing", 100*part, perSecond, 100*diligent)
	}
}

// print is for whoever reads the tables; else the test's log has it.
func (w *world) print(line string) {
	w.Helper()
	if *printTable {
		fmt.Println(line)
	} else {
		w.Log(line)
	}
}
