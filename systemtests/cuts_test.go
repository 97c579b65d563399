package systemtests

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// cut is what netctl cuts tells of one.
type cut struct {
	Reason      string         `json:"reason"`
	Connections int            `json:"connections"`
	Protocols   map[string]int `json:"protocols"`
	Endpoint    string         `json:"endpoint"`
	Why         string         `json:"why"`
}

// cuts are those that speak of the namespace, of all nodes.
func (w *world) cuts(namespace string) (found []cut) {
	w.Helper()
	text, err := w.Netctl(w.ctx, "cuts", "-o", "json")
	w.must(err)
	var all struct {
		Nodes []struct {
			Problem string `json:"problem"`
			Cuts    []cut  `json:"cuts"`
		} `json:"nodes"`
	}
	w.must(json.Unmarshal([]byte(text), &all))
	for _, n := range all.Nodes {
		if n.Problem != "" {
			w.Error(n.Problem)
		}
		for _, c := range n.Cuts {
			if strings.Contains(c.Why, namespace+"/") {
				found = append(found, c)
			}
		}
	}
	return found
}

// tellsCut waits until cuts of this reason are told that amount to as many connections of each protocol; for UDP what was asked
// shortly before still counts as one.
func (w *world) tellsCut(namespace, why string, each int) {
	w.Helper()
	w.must(cluster.Until(w.ctx, settling, func() error {
		got := map[string]int{}
		var said []string
		for _, c := range w.cuts(namespace) {
			said = append(said, fmt.Sprintf("%d: %s", c.Connections, c.Why))
			if c.Why == why {
				for p, n := range c.Protocols {
					got[p] += n
				}
			}
		}
		if got["TCP"] != each || got["UDP"] < each {
			return fmt.Errorf("want %d TCP and UDP connections %q, told are %v of\n  %s", each, why, got, strings.Join(said, "\n  "))
		}
		return nil
	}))
}

// ended is how long after a change the connections that it takes the permission from may still live.
const ended = time.Second

// live streams along ways that end and ways that stay while change runs. The first must end within a second of its being made: no answer comes to the
// client after that, and nothing of the client's to the server. The others must not miss an answer.
func (w *world) live(ending, staying []cluster.Expectation, change func()) {
	w.Helper()
	streams := w.streams(ending)
	var over time.Time
	w.watch(stall, staying, func() {
		w.allHeard(ending)
		change()
		cluster.Undisturbed(w.ctx, cluster.Stretch(ended))
		over = time.Now()
		silence := w.unheard(ending, "it should have ended")
		cluster.Undisturbed(w.ctx, cluster.Stretch(700*time.Millisecond))
		silence()
	})
	for i, r := range w.stop(streams) {
		if r.Received == 0 || r.LastAnswer.After(over) {
			w.Errorf("%v: should have ended, and was answered %v later; answered %d of %d", streams[i].Expectation, r.LastAnswer.Sub(over), r.Received, r.Sent)
		}
	}
}

func (w *world) transports(from, to string, port int, why string) (list []cluster.Expectation) {
	w.Helper()
	for _, proto := range []string{"tcp", "udp"} {
		list = append(list, w.open(from, to, proto, port, why)...)
	}
	return list
}

// A label that goes, an edited policy in the other direction, and a new policy: each ends exactly the connections that it takes the
// permission from, and netctl tells how many and for which rule. What another rule allows goes on.
func TestCutConnectionsAreTold(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	families := len(w.pods["b"].IPs)
	w.policy(ns, "db", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {client: "yes"}}}]}, {from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 80}, {port: 80, protocol: UDP}]}]}`)
	w.settles(w.way("c", "b", "tcp", 80, false, "the label is missing")) // or what follows is open because no policy is there yet
	w.label(ns, "client", "yes", "a", "c")
	ending, staying := slices.Concat(w.transports("c", "b", 80, "its label goes"), w.transports("a", "b", 81, "its label goes")), w.transports("a", "b", 80, "another rule allows it")
	w.settles(ending, staying)
	w.live(ending, staying, func() { w.label(ns, "client", nil, "a", "c") })
	w.tellsCut(ns, fmt.Sprintf("lived on %s/db ingress[0]; denied by %s/db ingress", ns, ns), 2*families)

	ending, staying = w.transports("a", "c", 80, "no policy yet"), w.transports("a", "c", 81, "no policy, then allowed")
	w.settles(ending, staying)
	w.live(ending, staying, func() {
		w.policy(ns, "out", `{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{ports: [{port: 81}, {port: 81, protocol: UDP}]}]}`)
	})
	w.tellsCut(ns, fmt.Sprintf("lived while nothing isolated the pod; denied by %s/out egress", ns), families)

	ending = staying
	w.live(ending, nil, func() {
		w.policy(ns, "out", `{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{ports: [{port: 80}]}]}`)
	})
	w.tellsCut(ns, fmt.Sprintf("lived on %s/out egress[0]; denied by %s/out egress", ns, ns), families)
}

// When a pod is gone its connections end, are told, and nothing of them is left for whoever gets its address.
func TestADeadPodsConnectionsAreForgotten(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	ending, staying := w.transports("c", "a", 80, "c dies"), w.transports("a", "b", 80, "nobody dies")
	w.settles(ending, staying)
	dead := w.pods["c"]
	streams := w.streams(ending)
	w.watch(stall, staying, func() {
		time.Sleep(time.Second)
		w.must(w.DeletePod(w.ctx, ns, "c"))
		w.must(cluster.Until(w.ctx, 30*time.Second, func() error {
			if _, err := os.Stat(dead.NetNS); !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("the pod is being ended (%w)", err)
			}
			return nil
		}))
		w.must(cluster.Until(w.ctx, time.Second, func() error {
			dump, err := w.Conntrack(w.ctx, dead.Node)
			if err != nil {
				return err
			}
			for _, ip := range dead.IPs {
				if from := fmt.Sprintf("orig=(src=%v,", ip); strings.Contains(dump, from) { // what others send to it now is theirs
					return fmt.Errorf("%s still remembers connections of %v:\n%s", dead.Node, ip, dump)
				}
			}
			return nil
		}))
	})
	w.stop(streams)
	w.must(cluster.Until(w.ctx, settling, func() error {
		told := 0
		for _, c := range w.cuts(ns) {
			if c.Why == fmt.Sprintf("pod %s/c is gone", ns) {
				told += c.Protocols["UDP"]
			}
		}
		if want := len(dead.IPs); told < want { // TCP's are gone as soon as the kubelet has ended the server
			return fmt.Errorf("%d UDP connections of the dead pod are told, want %d: %+v", told, want, w.cuts(ns))
		}
		return nil
	}))
}
