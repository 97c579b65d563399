package systemtests

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

func TestDefaultDeny(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.policy(ns, "deny", `{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress]}`)
	w.settles(everyProto(w, "a", "b", false, "ingress denied, same node"), everyProto(w, "c", "b", false, "ingress denied, across"),
		everyProto(w, "b", "c", true, "b may speak"), everyProto(w, "a", "c", true, "others are not isolated"))
	w.policy(ns, "deny", `{podSelector: {matchLabels: {app: b}}, policyTypes: [Egress]}`)
	w.settles(everyProto(w, "b", "a", false, "egress denied, same node"), everyProto(w, "b", "c", false, "egress denied, across"),
		everyProto(w, "a", "b", true, "b may be spoken to"))
	w.deletePolicy(ns, "deny")
	w.settles(everyProto(w, "b", "a", true, "the policy is gone"), everyProto(w, "c", "b", true, "the policy is gone"))
}

func TestAllowRules(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	other := w.namespace("other", map[string]string{"team": "x"})
	w.run(other, "x@node2")
	for _, c := range []struct {
		name, rule string
		a, c, x    bool // who may reach b on TCP 80
	}{
		{"pod selector", `{from: [{podSelector: {matchLabels: {app: a}}}]}`, true, false, false},
		{"namespace selector", `{from: [{namespaceSelector: {matchLabels: {team: x}}}]}`, false, false, true},
		{"both", `{from: [{namespaceSelector: {}, podSelector: {matchExpressions: [{key: app, operator: In, values: [c, x]}]}}]}`, false, true, true},
		{"everyone on port 80", `{ports: [{port: 80}]}`, true, true, true},
		{"named port", `{ports: [{port: web}]}`, true, true, true},
		{"name of no port", `{ports: [{port: nobody}]}`, false, false, false},
		{"port range", `{ports: [{port: 70, endPort: 80}]}`, true, true, true},
		{"port range beside", `{ports: [{port: 81, endPort: 90}]}`, false, false, false},
		{"another protocol", `{ports: [{port: 80, protocol: UDP}]}`, false, false, false},
		{"all but x's own block", fmt.Sprintf(`{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [%s/32]}}, {ipBlock: {cidr: "::/0", except: ["%s/128"]}}]}`, w.ip("x", 4), w.ip("x", 6)), true, true, false},
		{"empty from", `{from: []}`, true, true, true},
	} {
		w.policy(ns, "allow", fmt.Sprintf(`{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress], ingress: [%s]}`, c.rule))
		w.settles(w.way("a", "b", "tcp", 80, c.a, c.name), w.way("c", "b", "tcp", 80, c.c, c.name), w.way("x", "b", "tcp", 80, c.x, c.name))
	}
}

func (w *world) ip(pod string, family int) string {
	w.Helper()
	ip, ok := w.pods[pod].IP(family)
	if !ok {
		if family == 4 {
			return "192.0.2.1"
		}
		return "2001:db8::1"
	}
	return ip.String()
}

func TestPoliciesAddUp(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.policy(ns, "ports", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 80}]}]}`)
	w.policy(ns, "peers", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: c}}}], ports: [{port: 81}]}]}`)
	w.settles(w.open("a", "b", "tcp", 80, "first policy"), w.open("c", "b", "tcp", 81, "second policy"),
		w.shut("a", "b", "tcp", 81, "no cross product"), w.shut("c", "b", "tcp", 80, "no cross product"), w.shut("a", "b", "udp", 80, "TCP only"),
		w.shut("a", "b", "icmp", 0, "ICMP has no port"))
	w.policy(ns, "any", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	w.settles(w.open("a", "b", "icmp", 0, "a rule without ports"), w.open("a", "b", "udp", 81, "a rule without ports"), w.shut("c", "b", "icmp", 0, "not its rule"))
}

func TestPodJoinsAndLeavesPolicies(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {role: client}}}]}]}`)
	w.settles(w.shut("a", "b", "tcp", 80, "not a client yet"))
	w.run(ns, "d@node2")
	w.label(ns, "role", "client", "a", "d")
	w.settles(w.open("a", "b", "tcp", 80, "a client now"), w.open("d", "b", "tcp", 80, "a new pod"), w.shut("c", "b", "tcp", 80, "no client"))
	w.label(ns, "role", nil, "a")
	w.settles(w.shut("a", "b", "tcp", 80, "no client any more"), w.open("d", "b", "tcp", 80, "still one"))
	w.policy(ns, "servers", `{podSelector: {matchLabels: {role: server}}, policyTypes: [Ingress]}`)
	w.label(ns, "role", "server", "c")
	w.settles(w.shut("a", "c", "tcp", 80, "isolated by its new label"), w.open("a", "d", "tcp", 80, "no server"))
	w.label(ns, "role", nil, "c")
	w.settles(w.open("a", "c", "tcp", 80, "no server any more"))
}

// A policy selects other pods after an edit: those that it selects no longer are un-isolated, the others isolated, live connections included; where both versions
// let somebody in nothing is lost. The pods are of one node, and then of two.
func TestPodSelectorIsEdited(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.run(ns, "d@node2", "e@node1")
	selects := func(app string) {
		w.policy(ns, "moves", fmt.Sprintf(`{podSelector: {matchLabels: {app: %s}}, ingress: [{from: [{podSelector: {matchLabels: {app: d}}}]}]}`, app))
	}
	selects("b")
	before := "b"
	for _, after := range []string{"a", "c"} {
		ending := w.transports("e", after, 80, "isolated by the edit")
		staying := []cluster.Expectation{w.one("d", before, "tcp", 4, true), w.one("d", before, "udp", 6, true), w.one("d", after, "udp", 4, true), w.one("d", after, "tcp", 6, true)}
		opening := w.transports("e", before, 80, "no longer isolated")
		w.settles(ending, staying, closed(opening))
		w.live(ending, staying, func() { selects(after) })
		w.settles(closed(ending), staying, opening)
		before = after
	}
}

// A pod that is told to end keeps its rights, as a client and as a peer, for as long as it runs, and gets no others.
func TestTerminatingPodKeepsItsRights(t *testing.T) {
	w := setup(t)
	ns := w.namespace("ending", nil)
	w.run(ns, "a@node1", "c@node2")
	spec := specOf("b@node1")
	spec.Linger = int(cluster.Stretch(20 * time.Second).Seconds()) // what looks at it must be over by then, and remove waits for its end
	ending, err := w.RunPods(w.ctx, ns, spec)
	w.must(err)
	w.pods["b"] = ending[0]
	w.policy(ns, "deny", `{podSelector: {}, policyTypes: [Ingress, Egress]}`)
	w.policy(ns, "a", `{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: b}}}]}]}`)
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}], policyTypes: [Ingress, Egress], egress: [{to: [{podSelector: {matchLabels: {app: c}}}]}]}`)
	w.policy(ns, "c", `{podSelector: {matchLabels: {app: c}}, ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]}`)
	ways := slices.Concat(w.transports("a", "b", 80, "b's client"), w.transports("b", "c", 80, "b as a client"), w.shut("c", "b", "udp", 80, "no client of b's"))
	w.settles(ways)
	api, err := w.API(w.ctx)
	w.must(err)
	path := cluster.PathOf("Pod", ns, "b")
	w.watch(stall, ways, func() {
		w.must(api.Do(w.ctx, http.MethodDelete, path, nil))
		time.Sleep(cluster.Window(3 * time.Second)) // of the wall's: the kubelet counts no other, and then ends b
	})
	var seen struct {
		Metadata struct{ DeletionTimestamp string }
	}
	w.must(w.Get(w.ctx, path, &seen))
	if seen.Metadata.DeletionTimestamp == "" {
		t.Error("b was not told to end: nothing is shown")
	}
}

// A new pod is isolated from its first packet on: strangers ask at the address that it will get while it comes up.
// Addresses are given out in order, so it can be told.
func TestNewPodIsNeverOpen(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.policy(ns, "deny", `{podSelector: {matchLabels: {isolated: "yes"}}, policyTypes: [Ingress]}`)
	var ways []cluster.Expectation
	for _, f := range families {
		last, ok := w.pods["a"].IP(f)
		if ip, _ := w.pods["b"].IP(f); cluster.GivenLater(ip, last) {
			last = ip
		}
		for _, proto := range []string{"udp", "icmp"} {
			if ok {
				ways = append(ways, cluster.Expectation{From: w.pods["c"], Proto: proto, To: cluster.NextAddresses(last, 1)[0].First, Port: 80, Why: "isolated from the start"})
			}
		}
	}
	var pod cluster.Pod
	w.watch(0, ways, func() {
		pods, err := w.RunPods(w.ctx, ns, cluster.PodSpec{Name: "new", Node: "node1", Labels: map[string]string{"isolated": "yes"}, Ports: map[int]string{80: ""}})
		w.must(err)
		pod = pods[0]
		time.Sleep(time.Second)
	})
	w.pods["new"] = pod
	if counts := w.datagramsOf("new"); slices.Max(counts) > 0 {
		w.leak("%v datagrams came to the new pod, of each family: none may, whether or not it was up to answer", counts)
	}
	for _, e := range ways {
		if !slices.Contains(pod.IPs, e.To) {
			w.Errorf("the new pod was expected to get %v and has %v: nothing was shown", e.To, pod.IPs)
		}
	}
}

// A pod is let in as a peer when its peer's node has heard of it, and not before: a node whose netplugin stands still denies it.
func TestPeersAreLetInWhenTheirPeersNodeHasHeardOfThem(t *testing.T) {
	w := setup(t)
	ns := w.namespace("heard", nil)
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: late}}}]}]}`)
	w.run(ns, "b@node1", "free@node1")
	w.resumes("node1-netplugin")
	w.must(w.Signal(w.ctx, "node1-netplugin", syscall.SIGSTOP))
	w.run(ns, "late@node2")
	w.settles(everyProto(w, "late", "free", true, "no policy isolates it"))
	w.settles(everyProto(w, "late", "b", false, "node1 has not heard of it"))
	w.must(w.Signal(w.ctx, "node1-netplugin", syscall.SIGCONT))
	w.settles(everyProto(w, "late", "b", true, "its rule"))
}

// Connections that live when the policies change: those still allowed lose nothing, the others end within a second.
func TestLiveConnectionsAreJudgedAgain(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchExpressions: [{key: app, operator: In, values: [a, c]}]}}]}]}`)
	var staying, ending []cluster.Expectation
	for _, proto := range []string{"tcp", "udp"} {
		staying = append(staying, w.open("a", "b", proto, 80, "allowed before and after")...)
		ending = append(ending, w.open("c", "b", proto, 80, "its permission goes")...)
	}
	w.settles(staying, ending)
	w.live(ending, staying, func() {
		w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	})
	of := func(side string) {
		w.must(w.Patch(w.ctx, cluster.PathOf("Namespace", "", ns), fmt.Sprintf(`{"metadata": {"labels": {"side": %q}}}`, side)))
	}
	of("in")
	w.policy(ns, "c", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{namespaceSelector: {matchLabels: {side: in}}, podSelector: {matchLabels: {app: c}}}]}]}`)
	w.settles(staying, ending)
	w.live(ending, staying, func() { of("out") })
}

// Ten thousand peers in one policy: the last of them counts, and nobody beside them.
func TestPolicyOfTenThousandPeers(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	var blocks []string
	for i := range 10000 - 2 {
		blocks = append(blocks, fmt.Sprintf("{ipBlock: {cidr: 198.18.%d.%d/32}}", i>>8, i&255))
	}
	blocks = append(blocks, fmt.Sprintf("{ipBlock: {cidr: %s/32}}", w.ip("a", 4)), fmt.Sprintf(`{ipBlock: {cidr: "%s/128"}}`, w.ip("a", 6)))
	w.policy(ns, "huge", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [`+strings.Join(blocks, ", ")+`]}]}`)
	w.settles(w.open("a", "b", "tcp", 80, "the last peer"), w.shut("c", "b", "tcp", 80, "no peer"))
	w.deletePolicy(ns, "huge")
	w.settles(w.open("c", "b", "tcp", 80, "the policy is gone"))
}
