package systemtests

import (
	"strings"
	"testing"
)

// explain is netctl's answer, and whether its exit code says that all is allowed and as it should be.
func (w *world) explain(from, to string) (text string, fine bool) {
	w.Helper()
	text, err := w.NetctlAs(w.ctx, "", "explain", from, to)
	return text, err == nil
}

// What netctl explains is what packets meet; a switch that was tampered with is told before all else.
func TestExplain(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.policy(ns, "only-a", `{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 80}]}]}`)
	w.settles(w.way("a", "b", "tcp", 80, true, "a may"), w.way("c", "b", "tcp", 80, false, "c may not"), w.way("a", "b", "tcp", 81, false, "another port"))
	b := ns + "/b"
	for _, c := range []struct {
		from, to string
		allowed  bool
		says     string
	}{
		{ns + "/a", b + ":80", true, "allowed by " + ns + "/only-a ingress[0]"},
		{ns + "/c", b + ":80/tcp", false, "label app=a on pod " + ns + "/c"},
		{ns + "/a", b + ":81", false, "use port TCP/80"},
		{b, ns + "/c:80/udp", true, "no policy isolates " + b},
		{"world", b + ":80", false, "selectors choose pods"},
		{w.pods["b"].Node, b + ":81", true, "a node always reaches its own pods"},
	} {
		text, fine := w.explain(c.from, c.to)
		if fine != c.allowed || !strings.Contains(text, c.says) || strings.Contains(text, "!!!") || strings.Contains(text, "no proof") {
			t.Errorf("%s → %s: fine: %v, without %q:\n%s", c.from, c.to, fine, c.says, text)
		}
	}
	w.driftChecks(w.pods["b"].Node, "0") // or the flow is deleted before netctl has read it
	w.byHand(w.pods["b"].Node, "add-flow", "table=40,priority=65535,ip,actions=goto_table:50")
	text, fine := w.explain(ns+"/c", b+":80")
	w.byHand(w.pods["b"].Node, "--strict", "del-flows", "table=40,priority=65535,ip")
	if fine || !strings.HasPrefix(text, "!!! Open vSwitch of node "+w.pods["b"].Node+" lets it pass") {
		t.Errorf("a flow that opens the node is not told first:\n%s", text)
	}
}
