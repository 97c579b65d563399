package systemtests

import (
	"testing"
)

// Datagrams that are sent at ten times a pod's limit arrive at the limit, on one node and across, also after a restart
// of netplugin; other pods have no limit.
func TestBandwidth(t *testing.T) {
	w := setup(t)
	ns := w.namespace("bandwidth", nil)
	const ingress, egress, sent = 8e6, 4e6, 40e6
	b := specOf("b@node1")
	b.Annotations = map[string]string{"kubernetes.io/ingress-bandwidth": "8M", "kubernetes.io/egress-bandwidth": "4M"}
	pods, err := w.RunPods(w.ctx, ns, specOf("a@node1"), b, specOf("c@node2"))
	w.must(err)
	for _, p := range pods {
		w.pods[p.Name] = p
	}
	w.settles(w.open("a", "b", "tcp", 80, "no policy"), w.open("c", "b", "tcp", 80, "no policy"))
	rate := func(from, to string, want float64) {
		w.Helper()
		got, err := w.DatagramRate(w.ctx, w.pods[from], w.pods[to], sent)
		w.must(err)
		t.Logf("%s → %s: sent %.0f Mbit/s, %.1f Mbit/s arrived", from, to, sent/1e6, got/1e6)
		if want == 0 && got < 2*ingress || want > 0 && (got < 0.6*want || got > 1.5*want) {
			t.Errorf("%s → %s: %.1f Mbit/s arrive, the limit is %.0f", from, to, got/1e6, want/1e6)
		}
	}
	rate("a", "c", 0)
	rate("a", "b", ingress)
	rate("c", "b", ingress)
	rate("b", "a", egress)
	tcp, err := w.Throughput(w.ctx, w.pods["b"], w.pods["c"])
	w.must(err)
	t.Logf("b → c by TCP: %.1f Mbit/s", tcp/1e6)
	if tcp < 0.4*egress || tcp > 1.5*egress {
		t.Errorf("a TCP connection of b carries %.1f Mbit/s, the limit is %.0f", tcp/1e6, egress/1e6)
	}
	w.must(w.Kill(w.ctx, "node1-netplugin"))
	w.must(w.Start(w.ctx, "node1-netplugin"))
	w.awaitNetplugin("node1-netplugin")
	rate("b", "c", egress)
	if text, code := w.verify(); code != 0 {
		t.Errorf("verify exits with %d:\n%s", code, text)
	}
}
