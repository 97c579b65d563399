package systemtests

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// setDryRun sets the annotation of existing policies, or removes it.
func (w *world) setDryRun(namespace string, on bool, policies ...string) {
	w.Helper()
	value := "null"
	if on {
		value = `"dry-run"`
	}
	for _, name := range policies {
		w.must(w.Patch(w.ctx, cluster.PathOf("NetworkPolicy", namespace, name), fmt.Sprintf(`{"metadata": {"annotations": {"flowkeep.io/enforcement": %s}}}`, value)))
	}
}

// dryRunPolicy applies a NetworkPolicy that never is anything but a dry run.
func (w *world) dryRunPolicy(namespace, name, spec string) {
	w.Helper()
	w.apply(namespace, fmt.Sprintf("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: %s, annotations: {flowkeep.io/enforcement: dry-run}}, spec: %s}", name, spec))
}

// dryRun returns the output of netctl dry-run for a policy, or for all: counts by "NAME ingress[0]", and pairs.
func (w *world) dryRun(namespace string, args ...string) (counts map[string]tally, pairs []dryRunPair, err error) {
	text, err := w.Netctl(w.ctx, append([]string{"dry-run", "-n", namespace, "-o", "json"}, args...)...)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %s", err, text)
	}
	var all struct {
		Policies []struct {
			Counters []struct {
				Policy, Direction string
				Rule              int
				Count             tally
			}
		}
		Pairs []dryRunPair
	}
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, nil, err
	}
	counts = map[string]tally{}
	for _, p := range all.Policies {
		for _, c := range p.Counters {
			counts[fmt.Sprintf("%s %s[%d]", strings.TrimPrefix(c.Policy, namespace+"/"), c.Direction, c.Rule)] = c.Count
		}
	}
	return counts, all.Pairs, nil
}

type dryRunPair struct {
	drop
	DryRun      bool `json:"audit"`
	Connections int  `json:"connections"`
}

// stage puts a default-deny and a policy that allows, both in a dry run: what they would let through and what not, all is open.
func (w *world) stage(ns string) (ways []cluster.Expectation) {
	w.dryRunPolicy(ns, "deny", `{podSelector: {matchExpressions: [{key: app, operator: In, values: [a, b]}]}, policyTypes: [Ingress]}`)
	w.dryRunPolicy(ns, "allow", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 80}, {port: 80, protocol: UDP}]}]}`)
	ways = slices.Concat(everyProto(w, "a", "b", true, "allowed"), everyProto(w, "c", "b", true, "a dry run denies nothing"), everyProto(w, "c", "a", true, "a dry run denies nothing"))
	w.settles(ways)
	return ways
}

// sees waits until the output of netctl dry-run is the wanted one.
func (w *world) sees(namespace string, says func(counts map[string]tally, pairs []dryRunPair) error, args ...string) {
	w.Helper()
	w.must(cluster.Until(w.ctx, 3*settling, func() error {
		counts, pairs, err := w.dryRun(namespace, args...)
		if err == nil {
			err = says(counts, pairs)
		}
		return err
	}))
}

// is tells whether a pair is of these pods, which are of one namespace.
func (p *dryRunPair) is(from, to, protocol string, port int) bool {
	name := func(e dropEnd) string { return e.Pod[strings.Index(e.Pod, "/")+1:] }
	return p.DryRun && name(p.From) == from && name(p.To) == to && p.Protocol == protocol && p.Port == port
}

// Everything passes; what a dry run would have let through and denied is counted to the packet, and told with who, whom and why. So are
// connections that were there before. Of what is enforced nothing of it is said.
func TestDryRun(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.settles(w.open("c", "a", "tcp", 81, "no policy yet"), w.open("c", "a", "udp", 81, "no policy yet"))
	old := slices.Concat(w.dial("tcp", "c", "a", 81), w.dial("udp", "c", "a", 81))
	for _, conn := range old {
		w.must(say(conn, true))
	}
	w.stage(ns)
	for _, conn := range old { // one after another: of what lives a packet a second is told
		w.seesLive(ns, conn)
	}

	want := w.settledDryRun(ns)
	add := func(sent tally, places ...string) {
		for _, p := range places {
			want[p] = want[p].plus(sent)
		}
	}
	add(w.talk("a", "b", 80, 3, 5, true), "allow ingress[0]")
	add(w.talk("c", "b", 81, 2, 2, true), "allow ingress[-1]", "deny ingress[-1]")
	add(w.talk("a", "b", 81, 1, 4, true), "allow ingress[-1]", "deny ingress[-1]")
	add(w.talk("c", "a", 80, 1, 1, true), "deny ingress[-1]")
	w.sees(ns, func(counts map[string]tally, _ []dryRunPair) error {
		if fmt.Sprint(counts) != fmt.Sprint(want) {
			return fmt.Errorf("counted\n%v, want\n%v", counts, want)
		}
		return nil
	})
	if got := w.settledDryRun(ns); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("counted at last\n%v, want\n%v", got, want)
	}
	w.sees(ns, w.pairsOfAllow(ns), "allow")
	w.sees(ns, func(_ map[string]tally, pairs []dryRunPair) error {
		if !slices.ContainsFunc(pairs, func(p dryRunPair) bool {
			return p.is("c", "a", "UDP", 80) && slices.Equal(p.Policies, []string{ns + "/deny"})
		}) {
			return fmt.Errorf("c → a is not among %+v", pairs)
		}
		return nil
	}, "deny")

	if enforced, err := w.tallies(ns); err != nil || len(enforced) > 0 {
		t.Errorf("netctl top takes a dry run for enforced: %v, %v", enforced, err)
	}
	if denied := w.drops("-n", ns); len(denied) > 0 {
		t.Errorf("netctl drops takes a dry run for enforced: %+v", denied)
	}
	log, err := w.LogText(w.pods["b"].Node + "-netplugin")
	if w.must(err); !slices.ContainsFunc(strings.Split(log, "\n"), func(line string) bool {
		return strings.Contains(line, "would have been denied by a dry run") && strings.Contains(line, ns+"/allow")
	}) {
		t.Error("netplugin's log does not tell")
	}
}

// seesLive has a connection of before, c's to a, go on until it is told.
func (w *world) seesLive(ns string, conn net.Conn) {
	w.Helper()
	protocol, six := strings.ToUpper(conn.RemoteAddr().Network()), strings.Contains(conn.RemoteAddr().String(), "[")
	w.sees(ns, func(_ map[string]tally, pairs []dryRunPair) error {
		w.must(say(conn, true))
		if !slices.ContainsFunc(pairs, func(p dryRunPair) bool { return p.is("c", "a", protocol, 81) && p.six() == six }) {
			return fmt.Errorf("the connection of before to %v is not among %+v", conn.RemoteAddr(), pairs)
		}
		return nil
	}, "deny")
	w.must(conn.Close())
}

// pairsOfAllow returns the pairs that the policy allow would have denied in TestDryRun.
func (w *world) pairsOfAllow(ns string) func(map[string]tally, []dryRunPair) error {
	return func(_ map[string]tally, pairs []dryRunPair) error {
		told := 0
		for _, p := range pairs {
			if p.To.Pod != ns+"/b" || p.is("a", "b", p.Protocol, 80) {
				w.Errorf("allow would not have denied %+v", p)
			}
			asTalked := p.is("c", "b", "UDP", 81) && p.Connections == 2 && p.Packets >= 2 && strings.Contains(p.Failed, "has app=c, wanted: app=a") ||
				p.is("a", "b", "UDP", 81) && p.Connections == 1 && strings.Contains(p.Remedy, "use port ")
			if asTalked && p.Reason == "ingress" && p.Node == w.pods["b"].Node && p.Note == "" && p.Rule == ns+"/allow ingress[0]" && slices.Equal(p.Policies, []string{ns + "/allow", ns + "/deny"}) {
				told++
			}
		}
		if told != 2*len(w.pods["b"].IPs) {
			return fmt.Errorf("%d are told as they should be, of %+v", told, pairs)
		}
		return nil
	}
}

// Without the annotation the packets of a dry run are denied within a second, and netctl dry-run names the policy as
// enforced. With the annotation all of them pass again.
func TestADryRunEnds(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	ways := w.stage(ns)
	ending, staying := w.transports("c", "b", 80, "its dry run is over"), w.transports("a", "b", 80, "allowed")
	w.live(ending, staying, func() { w.setDryRun(ns, false, "allow") })
	w.settles(w.shut("c", "b", "tcp", 80, "enforced"), w.shut("a", "b", "tcp", 81, "enforced"), w.open("a", "b", "tcp", 80, "allowed"), w.open("c", "a", "tcp", 80, "deny is still in a dry run"))
	if text, err := w.Netctl(w.ctx, "dry-run", ns+"/allow"); err == nil || !strings.Contains(err.Error(), "is enforced, not in a dry run: kubectl annotate") {
		t.Errorf("dry-run of what is enforced: %v\n%s", err, text)
	}
	w.setDryRun(ns, true, "allow")
	w.settles(ways)
}

// settledDryRun waits until nothing more is counted for dry runs.
func (w *world) settledDryRun(namespace string) map[string]tally {
	w.Helper()
	return w.still(func() (map[string]tally, error) {
		counts, _, err := w.dryRun(namespace)
		return counts, err
	})
}
