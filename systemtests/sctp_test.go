package systemtests

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

var errNoSCTP = errors.New("this kernel has no SCTP: make test-kernel has one")

// kernelSCTP asks the kernel, which pods share with the test.
func kernelSCTP() error {
	const protocolSCTP = 132
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, protocolSCTP)
	if errors.Is(err, syscall.EPROTONOSUPPORT) || errors.Is(err, syscall.ESOCKTNOSUPPORT) {
		return errNoSCTP
	}
	if err != nil {
		return err
	}
	return syscall.Close(fd)
}

func needSCTP(t *testing.T) {
	t.Helper()
	switch err := kernelSCTP(); {
	case errors.Is(err, errNoSCTP):
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
}

// verdicts is what b should answer to one client, by protocol and port.
type verdicts struct{ sctp80, sctp81, tcp80, udp80 bool }

func (w *world) meets(from string, v verdicts, why string) (list []cluster.Expectation) {
	w.Helper()
	list = append(w.way(from, "b", "sctp", 80, v.sctp80, why), w.way(from, "b", "sctp", 81, v.sctp81, why)...)
	list = append(list, w.way(from, "b", "tcp", 80, v.tcp80, why)...)
	return append(list, w.way(from, "b", "udp", 80, v.udp80, why)...)
}

// A rule of one protocol says nothing of the others: SCTP is allowed and denied by rules of its own, by port, range and name.
func TestSCTPPolicies(t *testing.T) {
	needSCTP(t)
	w := setup(t)
	ns := threePods(w)
	all := verdicts{true, true, true, true}
	w.settles(w.meets("a", all, "no policy, same node"), w.meets("c", all, "no policy, across"))
	for _, c := range []struct {
		name, rules string
		want        verdicts
	}{
		{"default deny", ``, verdicts{}},
		{"everything", `{}`, all},
		{"SCTP 80", `{ports: [{port: 80, protocol: SCTP}]}`, verdicts{sctp80: true}},
		{"TCP 80", `{ports: [{port: 80, protocol: TCP}]}`, verdicts{tcp80: true}},
		{"UDP 80", `{ports: [{port: 80, protocol: UDP}]}`, verdicts{udp80: true}},
		{"SCTP without a port", `{ports: [{protocol: SCTP}]}`, verdicts{sctp80: true, sctp81: true}},
		{"a range of SCTP", `{ports: [{port: 81, endPort: 90, protocol: SCTP}]}`, verdicts{sctp81: true}},
		{"a name of SCTP", `{ports: [{port: web-sctp, protocol: SCTP}]}`, verdicts{sctp80: true}},
		{"TCP's name, said to be SCTP", `{ports: [{port: web, protocol: SCTP}]}`, verdicts{}},
	} {
		w.policy(ns, "b", fmt.Sprintf(`{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress], ingress: [%s]}`, c.rules))
		w.settles(w.meets("a", c.want, c.name+", same node"), w.meets("c", c.want, c.name+", across"))
	}
	w.deletePolicy(ns, "b")
	w.policy(ns, "c", `{podSelector: {matchLabels: {app: c}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: b}}}], ports: [{port: 80, protocol: SCTP}]}]}`)
	w.settles(w.meets("c", verdicts{sctp80: true}, "egress of SCTP 80"), w.meets("a", all, "a is not isolated"), w.shut("c", "a", "sctp", 80, "a is no peer"))
}

// An association that lives ends with its permission, the one beside it goes on.
func TestSCTPAssociationsAreJudgedAgain(t *testing.T) {
	needSCTP(t)
	w := setup(t)
	ns := threePods(w)
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{ports: [{port: 80, protocol: SCTP}]}]}`)
	staying, ending := w.open("a", "b", "sctp", 80, "allowed before and after"), w.open("c", "b", "sctp", 80, "its permission goes")
	w.settles(staying, ending)
	w.live(ending, staying, func() {
		w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 80, protocol: SCTP}]}]}`)
	})
	w.settles(staying, closed(ending))
}

// The pod behind a Service is judged, of SCTP too.
func TestSCTPService(t *testing.T) {
	needSCTP(t)
	w := setup(t)
	ns := threePods(w)
	w.apply(ns, `{apiVersion: v1, kind: Service, metadata: {name: b}, spec: {type: NodePort, ipFamilyPolicy: PreferDualStack, selector: {app: b},
		ports: [{port: 8000, targetPort: 80, protocol: SCTP}]}}`)
	ips, err := w.ServiceIPs(w.ctx, ns, "b")
	w.must(err)
	ways := func(from string, open bool) (list []cluster.Expectation) {
		for _, ip := range ips {
			list = append(list, cluster.Expectation{From: w.pods[from], Proto: "sctp", To: ip, Port: 8000, Open: open, Why: "Service in front of b"})
		}
		return list
	}
	w.settles(ways("a", true), ways("c", true), ways("b", true))
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: c}}}], ports: [{port: 80, protocol: SCTP}]}]}`)
	w.settles(ways("a", false), ways("c", true))
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: c}}}], ports: [{port: 80}]}]}`)
	w.settles(ways("c", false), w.open("c", "b", "tcp", 80, "a rule of TCP"))
}

// Whoever gets a dead pod's address finds none of its associations.
func TestSCTPOfADeadPodIsForgotten(t *testing.T) {
	needSCTP(t)
	w := setup(t)
	ns := threePods(w)
	w.settles(w.open("c", "a", "sctp", 80, "c dies"))
	dead := w.pods["c"]
	remembered := func() (found string) {
		dump, err := w.Conntrack(w.ctx, dead.Node)
		w.must(err)
		for line := range strings.Lines(dump) {
			if strings.HasPrefix(line, "sctp,") && slices.ContainsFunc(dead.IPs, func(ip netip.Addr) bool { return strings.Contains(line, fmt.Sprintf("orig=(src=%v,", ip)) }) {
				found += line
			}
		}
		return found
	}
	if remembered() == "" {
		t.Error("conntrack never knew of the association: nothing is shown")
	}
	w.must(w.DeletePod(w.ctx, ns, "c"))
	w.must(cluster.Until(w.ctx, settling, func() error {
		if left := remembered(); left != "" {
			return fmt.Errorf("%s still remembers:\n%s", dead.Node, left)
		}
		return nil
	}))
}
