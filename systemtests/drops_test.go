package systemtests

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// drop is what netctl drops tells of one.
type drop struct {
	Node     string   `json:"node"`
	Reason   string   `json:"reason"`
	From     dropEnd  `json:"from"`
	To       dropEnd  `json:"to"`
	Protocol string   `json:"protocol"`
	Port     int      `json:"port"`
	Packets  int      `json:"packets"`
	Pod      string   `json:"pod"`
	Policies []string `json:"policies"`
	Rule     string   `json:"rule"`
	Failed   string   `json:"failed"`
	Remedy   string   `json:"remedy"`
	Note     string   `json:"note"`
}

type dropEnd struct {
	Address string `json:"address"`
	Pod     string `json:"pod"`
}

func (d *drop) six() bool { return strings.Contains(d.From.Address, ":") }

// drops are those from or to the namespace's pods.
func (w *world) drops(args ...string) (found []drop) {
	w.Helper()
	text, err := w.Netctl(w.ctx, append([]string{"drops", "-o", "json"}, args...)...)
	w.must(err)
	var all struct {
		Nodes []struct {
			Node, Problem string
		} `json:"nodes"`
		Drops []drop `json:"drops"`
	}
	w.must(json.Unmarshal([]byte(text), &all))
	for _, n := range all.Nodes {
		if n.Problem != "" {
			w.Errorf("node %s: %s", n.Node, n.Problem)
		}
	}
	return all.Drops
}

// tellsDrop waits until a drop is told that is as wanted, of each family that both pods have.
func (w *world) tellsDrop(list func() []drop, from, to, protocol string, port int, says func(*drop) bool) {
	w.Helper()
	for _, f := range families {
		if _, ok := w.pods[strings.Split(to, "/")[1]].IP(f); !ok {
			continue
		}
		w.must(cluster.Until(w.ctx, settling, func() error {
			all := list()
			if slices.ContainsFunc(all, func(d drop) bool {
				return d.From.Pod == from && d.To.Pod == to && d.Protocol == protocol && d.Port == port && d.six() == (f == 6) && says(&d)
			}) {
				return nil
			}
			return fmt.Errorf("IPv%d: %s → %s %s %d is not told as it should be among\n  %+v", f, from, to, protocol, port, all)
		}))
	}
}

// What is denied is told, of both directions, protocols and families, with the policies and the rule that was the nearest; what is allowed
// never is; and the packets fare as ever.
func TestDrops(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	a, b, c := ns+"/a", ns+"/b", ns+"/c"
	w.policy(ns, "only-a", `{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 80}, {port: 80, protocol: UDP}]}]}`)
	w.policy(ns, "nowhere", `{podSelector: {matchLabels: {app: c}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: b}}}]}]}`)
	live := w.follow("-n", ns)
	var ways []cluster.Expectation
	for _, proto := range []string{"tcp", "udp"} {
		ways = slices.Concat(ways, w.open("a", "b", proto, 80, "a may"), w.shut("a", "b", proto, 81, "another port"), w.shut("c", "b", proto, 80, "c may not"), w.shut("c", "a", proto, 80, "c may go to b only"))
	}
	w.settles(ways)
	list := func() []drop { return w.drops("-n", ns) }
	ingress := func(says string) func(*drop) bool {
		return func(d *drop) bool {
			return d.Reason == "ingress" && d.Node == w.pods["b"].Node && d.Pod == b && slices.Equal(d.Policies, []string{ns + "/only-a"}) && d.Rule == ns+"/only-a ingress[0]" &&
				d.Packets > 0 && d.Note == "" && strings.Contains(d.Failed+d.Remedy, says)
		}
	}
	egress := func(d *drop) bool {
		return d.Reason == "egress" && d.Node == w.pods["c"].Node && d.Pod == c && slices.Equal(d.Policies, []string{ns + "/nowhere"}) && strings.Contains(d.Failed, "has app=a, wanted: app=b")
	}
	for _, from := range []func() []drop{list, live} {
		for _, proto := range []string{"TCP", "UDP"} {
			w.tellsDrop(from, c, b, proto, 80, ingress("label app=a on pod "+c))
			w.tellsDrop(from, a, b, proto, 81, ingress("use port "))
			w.tellsDrop(from, c, a, proto, 80, egress)
		}
	}
	for _, d := range append(list(), live()...) {
		if d.From.Pod == a && d.Port == 80 || d.From.Pod == b || d.Note != "" {
			t.Errorf("told, and nobody denied it: %+v", d)
		}
	}
	if only := w.drops("--pod", a); !slices.ContainsFunc(only, func(d drop) bool { return d.From.Pod == a }) || slices.ContainsFunc(only, func(d drop) bool { return d.From.Pod != a && d.To.Pod != a }) {
		t.Errorf("--pod %s tells %+v", a, only)
	}
	w.deletePolicy(ns, "only-a")
	w.settles(w.open("c", "b", "tcp", 80, "the policy is gone"))
	w.tellsDrop(list, c, b, "TCP", 80, func(d *drop) bool { return strings.Contains(d.Note, "allow it") })
}

// What a pod sends as somebody else is told, with who it was.
func TestForgedPacketsAreTold(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	for _, f := range families {
		victim, ok := w.pods["a"].IP(f)
		if !ok {
			continue
		}
		to, _ := w.pods["b"].IP(f)
		add := []string{"ip", "addr", "add", fmt.Sprintf("%v/%d", victim, victim.BitLen()), "dev", "eth0"}
		if f == 6 {
			add = append(add, "nodad")
		}
		_, err := w.RunIn(w.ctx, w.pods["c"].NetNS, add...)
		w.must(err)
		w.sendAs("c", victim, netip.AddrPortFrom(to, 80))
		w.must(cluster.Until(w.ctx, settling, func() error {
			all := w.drops("-n", ns)
			if slices.ContainsFunc(all, func(d drop) bool {
				return d.Reason == "forged" && d.Pod == ns+"/c" && d.From.Address == victim.String() && d.To.Address == to.String() && d.Protocol == "UDP" && d.Port == 80
			}) {
				return nil
			}
			return fmt.Errorf("IPv%d: what c sent as %v is not among %+v", f, victim, all)
		}))
	}
}

// One pod that floods hides no other's drops, and those who follow go on when netmaster was away.
func TestDropsSurvive(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.policy(ns, "shut", `{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress]}`)
	w.policy(ns, "in", `{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress]}`)
	w.settles(w.shut("c", "b", "udp", 80, "nobody may"), w.shut("a", "c", "udp", 80, "a may go nowhere"))
	live := w.follow("-n", ns, "--since", "0s")
	to, _ := w.pods["b"].IP(4)
	_, err := w.RunIn(w.ctx, w.pods["c"].NetNS, "bash", "-c", fmt.Sprintf("for i in {1..20000}; do echo x >/dev/udp/%v/$((i%%60000+1)); done 2>/dev/null", to))
	w.must(err)
	w.settles(w.shut("a", "c", "tcp", 81, "a may go nowhere"))
	w.tellsDrop(live, ns+"/a", ns+"/c", "TCP", 81, func(d *drop) bool { return d.Reason == "egress" })
	w.must(cluster.Until(w.ctx, settling, func() error { // the meters' counters are read every few seconds
		text, err := w.Netctl(w.ctx, "drops", w.pods["b"].Node)
		if err == nil && !strings.Contains(text, "above --drop-log-rate") {
			err = fmt.Errorf("packets above the rate are not reported:\n%.500s", text)
		}
		return err
	}))
	w.again("netmaster")
	w.must(w.Kill(w.ctx, "netmaster"))
	w.must(w.Start(w.ctx, "netmaster"))
	w.must(w.AwaitReady(w.ctx, "netmaster", 30*time.Second))
	w.settles(w.shut("a", "c", "tcp", 80, "a may go nowhere"))
	w.tellsDrop(live, ns+"/a", ns+"/c", "TCP", 80, func(d *drop) bool { return d.Reason == "egress" })
}

// follow runs netctl drops -f until the test ends; what it gives are the lines so far.
func (w *world) follow(args ...string) func() []drop {
	w.Helper()
	cmd := exec.CommandContext(w.ctx, "bash", append([]string{"-c", `. "$0"; exec netctl drops -f -o json "$@"`, filepath.Join(w.Dir, "flowkeep", "netctl.env")}, args...)...)
	out, err := cmd.StdoutPipe()
	w.must(err)
	w.must(cmd.Start())
	lines := make(chan drop, 1<<16)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			var d drop
			if json.Unmarshal(s.Bytes(), &d) == nil {
				lines <- d
			}
		}
	}()
	w.Cleanup(func() {
		_ = cmd.Process.Kill()
		for range lines {
		}
		_ = cmd.Wait()
	})
	var seen []drop
	return func() []drop {
		for {
			select {
			case d, ok := <-lines:
				if !ok {
					w.Error("netctl drops -f ended")
					return seen
				}
				seen = append(seen, d)
			case <-time.After(time.Millisecond):
				return seen
			}
		}
	}
}
