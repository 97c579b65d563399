package systemtests

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// tally is what netctl top tells of a place.
type tally struct{ Packets, Bytes, Connections uint64 }

func (t tally) plus(o tally) tally {
	return tally{t.Packets + o.Packets, t.Bytes + o.Bytes, t.Connections + o.Connections}
}

// tallies are by "NAME ingress[0]" or, of what is denied, "NAME ingress[-1]".
func (w *world) tallies(namespace string) (map[string]tally, error) {
	text, err := w.Netctl(w.ctx, "top", "-n", namespace, "--limit", "0", "-o", "json")
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, text)
	}
	var all struct {
		Counters []struct {
			Policy, Direction string
			Rule              int
			Count             tally
		}
	}
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, err
	}
	out := map[string]tally{}
	for _, c := range all.Counters {
		out[fmt.Sprintf("%s %s[%d]", strings.TrimPrefix(c.Policy, namespace+"/"), c.Direction, c.Rule)] = c.Count
	}
	return out, nil
}

// settled returns the counts once they no longer change.
func (w *world) settled(namespace string) map[string]tally {
	w.Helper()
	return w.still(func() (map[string]tally, error) { return w.tallies(namespace) })
}

// maxReadingAge returns more than the age of the reading of its switch that netplugin answers with: 1 s and some time.
func maxReadingAge() time.Duration { return time.Second + cluster.Stretch(100*time.Millisecond) }

// still waits until two counts are equal. Between them the switches add to the flows' counters what the datapath has
// counted, and netplugin reads the counters from the beginning. The reading of the first count may have begun before.
func (w *world) still(count func() (map[string]tally, error)) (last map[string]tally) {
	w.Helper()
	w.must(cluster.Until(w.ctx, 3*settling, func() error {
		for _, node := range []string{"node1", "node2"} {
			if err := w.AwaitStatistics(w.ctx, node); err != nil {
				return err
			}
		}
		for range 2 {
			cluster.Undisturbed(w.ctx, maxReadingAge())
			now, err := count()
			if err != nil {
				return err
			}
			if fmt.Sprint(now) != fmt.Sprint(last) {
				last = now
				return errors.New("the counts still change")
			}
		}
		return nil
	}))
	return last
}

// counts waits until what is counted is exactly this, and stays so.
func (w *world) counts(namespace, what string, want map[string]tally) {
	w.Helper()
	w.must(cluster.Until(w.ctx, 3*settling, func() error {
		got, err := w.tallies(namespace)
		for place, t := range want {
			if err == nil && got[place] != t {
				err = fmt.Errorf("%s: %s counted %+v, want %+v", what, place, got[place], t)
			}
		}
		return err
	}))
	if got := w.settled(namespace); fmt.Sprint(got) != fmt.Sprint(want) {
		w.Errorf("%s: counted at last\n%v, want\n%v", what, got, want)
	}
}

const word = "what is counted"

// frames are so many datagrams with word in them, as the switch counts them.
func frames(to netip.Addr, packets, connections int) tally {
	header := 14 + 20 + 8
	if to.Is6() {
		header += 20
	}
	return tally{uint64(packets), uint64(packets * (header + len(word))), uint64(connections)}
}

// talk opens sockets to a pod, each of which sends datagrams one after another; those that are answered are waited for.
func (w *world) talk(from, to string, port uint16, sockets, datagrams int, answered bool) (sent tally) {
	w.Helper()
	for range sockets {
		for _, conn := range w.dial("udp", from, to, port) {
			for range datagrams {
				w.must(say(conn, answered))
			}
			conn.Close()
		}
	}
	for _, ip := range w.pods[to].IPs {
		if answered {
			sent = sent.plus(frames(ip, 2*sockets*datagrams, sockets))
		} else {
			sent = sent.plus(frames(ip, sockets*datagrams, 0))
		}
	}
	return sent
}

// dial opens a socket from a pod to each address of another.
func (w *world) dial(proto, from, to string, port uint16) (list []net.Conn) {
	w.Helper()
	ns, err := cluster.EnterNetNS(w.pods[from].NetNS)
	w.must(err)
	defer ns.Close()
	for _, ip := range w.pods[to].IPs {
		conn, err := ns.Dial(proto, netip.AddrPortFrom(ip, port), settling)
		w.must(err)
		list = append(list, conn)
	}
	return list
}

// say sends word once, and waits for the answer if there is to be one.
func say(conn net.Conn, answered bool) error {
	err := conn.SetDeadline(time.Now().Add(cluster.Stretch(settling)))
	if err == nil {
		_, err = conn.Write([]byte(word))
	}
	if buf := make([]byte, 100); err == nil && answered {
		_, err = conn.Read(buf)
	}
	return err
}

// What is counted is what was sent, to the packet: per rule with its connections, and denied per policy that isolates. It goes on
// over an edit, over netplugin killed while packets pass, and over a switch that loses its flows.
func TestCounters(t *testing.T) {
	w := setup(t)
	s := &scene{world: w, ns: threePods(w)}
	rules := func(third string) {
		w.policy(s.ns, "db", fmt.Sprintf(`{podSelector: {matchLabels: {app: b}}, ingress: [
			{from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 80, protocol: UDP}, {port: 80}]},
			{from: [{podSelector: {matchLabels: {app: c}}}], ports: [{port: 81, protocol: UDP}]},
			{from: [{podSelector: {matchLabels: {app: c}}}], ports: [{port: %s, protocol: UDP}]}]}`, third))
	}
	rules("90")
	w.policy(s.ns, "all", `{podSelector: {}, policyTypes: [Ingress]}`)
	w.settles(w.open("a", "b", "udp", 80, "rule 0"), w.open("c", "b", "udp", 81, "rule 1"), w.shut("c", "b", "udp", 80, "no rule"))

	want := w.settled(s.ns)
	add := func(sent tally, places ...string) {
		for _, p := range places {
			want[p] = want[p].plus(sent)
		}
	}
	some := func(answers int) {
		add(w.talk("a", "b", 80, 3, answers, true), "db ingress[0]")
		add(w.talk("c", "b", 81, 2, 2, true), "db ingress[1]")
		add(w.talk("c", "b", 80, 1, 4, false), "db ingress[-1]", "all ingress[-1]")
	}
	some(5)
	w.counts(s.ns, "at first", want)

	window := cluster.Stretch(12 * time.Second)
	time.Sleep(window + 2*time.Second)
	add(w.talk("a", "b", 80, 1, 1, true), "db ingress[0]")
	w.counts(s.ns, "rule 0 alone", want)
	w.unused(s.ns, window)

	add(w.talk("a", "b", 80, 2, 2, true), "db ingress[0]")
	w.must(w.AwaitStatistics(w.ctx, "node1")) // so that the flows have counted them; netplugin has not read it
	w.policy(s.ns, "db", `{podSelector: {matchLabels: {app: b}}, ingress: [
		{from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 80, protocol: UDP}]}, {from: [{podSelector: {matchLabels: {app: c}}}], ports: [{port: 81, protocol: UDP}]}]}`)
	delete(want, "db ingress[2]")
	if text, err := w.Netctl(w.ctx, "policy", "wait", s.ns+"/db"); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	edited := time.Now()
	some(2)
	w.counts(s.ns, "after an edit", want)

	w.written("node1", edited) // with what the flows had counted that the edit removed
	s.again("node1-netplugin")
	w.must(w.Kill(w.ctx, "node1-netplugin"))
	some(7)
	w.must(w.Start(w.ctx, "node1-netplugin"))
	w.must(w.AwaitReady(w.ctx, "node1-netplugin", 30*time.Second))
	w.counts(s.ns, "after netplugin was killed", want)
	packets, err := w.Metric(w.ctx, "node1-netplugin", "flowkeep_netplugin_rule_packets_total", `policy="`+s.ns+`/db"`, `rule="0"`)
	if err != nil || uint64(packets) != want["db ingress[0]"].Packets {
		t.Errorf("the metric says %v (%v), want %d", packets, err, want["db ingress[0]"].Packets)
	}

	s.again("node1-vswitchd")
	w.must(w.Kill(w.ctx, "node1-vswitchd"))
	w.must(w.Start(w.ctx, "node1-vswitchd"))
	w.settles(w.open("a", "b", "udp", 80, "the switch is back"), w.open("c", "b", "udp", 81, "the switch is back"))
	after := w.settled(s.ns)
	for place, t := range want {
		if got := after[place]; got.Packets < t.Packets || got.Bytes < t.Bytes || got.Connections < t.Connections {
			w.Errorf("a restart of the switch: %s had counted %+v, and has %+v", place, t, got)
		}
	}
	want = after
	some(3)
	w.counts(s.ns, "after a restart of the switch", want)
}

// written waits until netplugin has written its counters to disk after a point in time.
func (w *world) written(node string, after time.Time) {
	w.Helper()
	w.must(cluster.Until(w.ctx, time.Minute, func() error {
		file, err := os.Stat(filepath.Join(w.Dir, node, "flowkeep", "state", "counters.db"))
		if err == nil && !file.ModTime().After(after) {
			err = fmt.Errorf("%s were written at %v, not after %v", file.Name(), file.ModTime(), after)
		}
		return err
	}))
}

// unused tells of the rules that nobody has used for a time, of none else, and of none that is younger.
func (w *world) unused(namespace string, window time.Duration) {
	w.Helper()
	for since, says := range map[string][]string{
		window.String(): {"2 rules matched nothing", "1 did", namespace + "/db  ingress[1]", namespace + "/db  ingress[2]"},
		"10h":           {"0 rules matched nothing", "counted only since", "counts only since"},
	} {
		text, err := w.Netctl(w.ctx, "unused", "-n", namespace, "--since", since)
		for _, s := range says {
			if err != nil || !strings.Contains(text, s) {
				w.Errorf("unused --since %s (%v) does not say %q:\n%s", since, err, s, text)
			}
		}
	}
}
