package systemtests

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// says asks until netctl explains so: EndpointSlices come a moment after the pods.
func (w *world) says(from, to string, allowed bool, wants ...string) {
	w.Helper()
	w.must(cluster.Until(w.ctx, settling, func() error {
		text, fine := w.explain(from, to)
		missing := slices.DeleteFunc(slices.Clone(wants), func(want string) bool { return strings.Contains(text, want) })
		if fine != allowed || len(missing) > 0 || strings.Contains(text, "!!!") || strings.Contains(text, "no proof") {
			return fmt.Errorf("%s → %s: fine: %v, without %q:\n%s", from, to, fine, missing, text)
		}
		return nil
	}))
}

// What netctl explains of a Service is what packets to it meet: by its name, its address and a node's port, at each backend.
func TestExplainServices(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	inside, ports := service(w, ns, "b"), w.nodePort(ns, "b")
	outside := cluster.Pod{Name: "outside", Node: "control plane", NetNS: w.ControlPlaneNS()}
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: c}}}], ports: [{port: 80}, {port: 80, protocol: UDP}]}]}`)
	w.settles(through(w, inside, "a", false), through(w, inside, "c", true), w.at("node1", ports, outside, false, "outside is no peer"))

	by := "svc/" + ns + "/b"
	w.says(ns+"/a", by+":8000/tcp", false, "port t TCP/8000 → targetPort 80: DENIED", ns+"/b", "label app=c on pod "+ns+"/a")
	w.says(ns+"/c", by+":t", true, "port t TCP/8000 → targetPort 80: ALLOWED", "allowed by "+ns+"/b ingress[0]")
	w.says(ns+"/c", by, true, "port u UDP/8000 → targetPort 80: ALLOWED")
	w.says(ns+"/c", "b."+ns+".svc.cluster.local:8000/udp", true, "UDP/80: ALLOWED")
	ips, err := w.ServiceIPs(w.ctx, ns, "b")
	w.must(err)
	for _, ip := range ips {
		host := ip.String()
		if ip.Is6() {
			host = "[" + host + "]"
		}
		w.says(ns+"/a", host+":8000/tcp", false, "Service "+ns+"/b", "DENIED")
	}
	w.says("world", fmt.Sprintf("node1:%d/tcp", ports["tcp"]), false, "Service "+ns+"/np-b", "by port")
	if _, err := w.NetctlAs(w.ctx, "", "explain", ns+"/a", ns+"/np-b"); err == nil || !strings.Contains(err.Error(), "ask for svc/"+ns+"/np-b") {
		t.Errorf("a Service where a pod's name belongs: %v", err)
	}

	w.apply(ns, `{apiVersion: v1, kind: Service, metadata: {name: local}, spec: {internalTrafficPolicy: Local, selector: {app: b}, ports: [{port: 8000, targetPort: 80}]}}`)
	w.apply(ns, `{apiVersion: v1, kind: Service, metadata: {name: nobody}, spec: {selector: {app: nobody}, ports: [{port: 8000, targetPort: 80}]}}`)
	w.says(ns+"/c", "svc/"+ns+"/local:8000", false, "node2 has none of its endpoints, and internalTrafficPolicy is Local")
	w.says(ns+"/c", "svc/"+ns+"/nobody:8000", false, "NOBODY ANSWERS: it has no endpoints")
	var ways []cluster.Expectation
	for _, name := range []string{"local", "nobody"} {
		ips, err := w.ServiceIPs(w.ctx, ns, name)
		w.must(err)
		for _, ip := range ips {
			ways = append(ways, cluster.Expectation{From: w.pods["c"], Proto: "tcp", To: ip, Port: 8000, Why: "Service " + name})
		}
	}
	w.settles(ways)
}

// What was in force before a change is explained as it was then, and a revision that is not kept is said to be gone.
func TestExplainAt(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.policy(ns, "shut", `{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress]}`)
	w.settles(w.way("a", "b", "tcp", 80, false, "b is shut"))
	text, err := w.Netctl(w.ctx, "status", "-o", "json")
	w.must(err)
	var st struct{ Revision uint64 }
	w.must(json.Unmarshal([]byte(text), &st))
	w.deletePolicy(ns, "shut")
	w.settles(w.way("a", "b", "tcp", 80, true, "nothing isolates b"))

	a, b := ns+"/a", ns+"/b:80"
	at := func(at string) (string, error) { return w.NetctlAs(w.ctx, "", "explain", "--at", at, a, b) }
	if text, err := at(fmt.Sprint(st.Revision)); err == nil || !strings.Contains(text, "AS IT WAS at revision") || !strings.Contains(text, "isolated by "+ns+"/shut") || strings.Contains(text, "Open vSwitch of") {
		t.Errorf("before: %v\n%s", err, text)
	}
	if text, err := w.NetctlAs(w.ctx, "", "explain", a, b); err != nil || strings.Contains(text, "shut") {
		t.Errorf("now: %v\n%s", err, text)
	}
	for when, says := range map[string]string{"1": "is not kept: the oldest that is, is", "10000h": "the oldest revision that is", fmt.Sprint(st.Revision + 1e9): "is not there yet", "yesterday": "write a revision"} {
		if text, err := at(when); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v\n%s", when, err, text)
		}
	}
}
