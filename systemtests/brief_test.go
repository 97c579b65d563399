package systemtests

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// What depends on the datapath, once, with one set of pods: `make test-kernel ARGS=-short` has no time for more. Each step
// is a test of its own elsewhere, with all its cases.
func TestInBrief(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	protos := []string{"tcp", "udp", "icmp"}
	if !errors.Is(kernelSCTP(), errNoSCTP) {
		protos = append(protos, "sctp")
	}
	each := func(from, to string, open bool, why string) (list []cluster.Expectation) {
		for _, proto := range protos {
			list = append(list, w.way(from, to, proto, 80, open, why)...)
		}
		return list
	}
	services := *shape != "no-proxy" || translatesInSwitch()
	b := []cluster.Expectation(nil)
	if services {
		b = service(w, ns, "b")
	}
	w.settles(each("a", "b", true, "no policy, same node"), each("c", "b", true, "no policy, across"),
		through(w, b, "a", true), through(w, b, "c", true), through(w, b, "b", true))

	from := func(peers string) {
		w.policy(ns, "b", fmt.Sprintf(`{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchExpressions: [{key: app, operator: In, values: [%s]}]}}],
			ports: [{port: 80}, {port: 80, protocol: UDP}, {port: 80, protocol: SCTP}]}]}`, peers))
	}
	from("a, c")
	noPing := append(w.shut("a", "b", "icmp", 0, "no rule of ICMP"), w.shut("c", "b", "tcp", 81, "no rule of port 81")...)
	ways := func(who string, open bool, why string) (list []cluster.Expectation) {
		return slices.DeleteFunc(each(who, "b", open, why), func(e cluster.Expectation) bool { return e.Proto == "icmp" })
	}
	staying, ending := ways("a", true, "allowed before and after"), ways("c", true, "its permission goes")
	w.settles(staying, ending, noPing)
	w.live(ending, staying, func() { from("a") })
	w.settles(staying, closed(ending), noPing, through(w, b, "a", true), through(w, b, "c", false))

	s := &scene{world: w, ns: ns, allowed: staying, refused: closed(ending)}
	s.unharmed(func() { s.killAndStart("node1-netplugin") })
	s.again("node1-vswitchd")
	s.watch(0, s.refused, func() {
		s.must(s.Kill(s.ctx, "node1-vswitchd"))
		s.must(s.Start(s.ctx, "node1-vswitchd"))
		s.settles(s.allowed)
	})
	from("c")
	s.settles(closed(staying), ending, through(w, b, "c", true))
}
