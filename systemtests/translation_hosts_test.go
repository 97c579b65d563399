package systemtests

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// servedHostPort is where hosts serve behind Services.
const servedHostPort = 7080

// hosts returns the addresses of both nodes and of a host outside of the cluster.
func (w *world) hosts() map[string][]netip.Addr {
	w.Helper()
	out := map[string][]netip.Addr{"node1": w.nodeIPs("node1"), "node2": w.nodeIPs("node2")}
	for _, f := range families {
		if ip, err := w.ControlPlaneIP(w.ctx, f); err == nil {
			out["outside"] = append(out["outside"], ip)
		}
	}
	return out
}

// hostService makes a Service without a selector in front of a host, and returns the ways to it.
func (w *world) hostService(ns, name string, addresses []netip.Addr) (ways []cluster.Expectation) {
	w.Helper()
	w.apply(ns, fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: %s}, spec: {ipFamilyPolicy: PreferDualStack,
		ports: [{name: t, port: 8000, targetPort: %[2]d}, {name: u, port: 8000, targetPort: %[2]d, protocol: UDP}]}}`,
		name, servedHostPort))
	for _, a := range addresses {
		family := map[bool]string{true: "IPv4", false: "IPv6"}[a.Is4()]
		w.apply(ns, fmt.Sprintf(`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %[1]s-%[2]s,
			labels: {kubernetes.io/service-name: %[1]s}}, addressType: %[3]s, endpoints: [{addresses: [%[4]q]}],
			ports: [{name: t, port: %[5]d, protocol: TCP}, {name: u, port: %[5]d, protocol: UDP}]}`,
			name, strings.ToLower(family), family, a, servedHostPort))
	}
	ips, err := w.ServiceIPs(w.ctx, ns, name)
	w.must(err)
	for _, ip := range ips {
		for _, proto := range []string{"tcp", "udp"} {
			ways = append(ways, cluster.Expectation{Proto: proto, To: ip, Port: 8000, Why: "Service in front of " + name})
		}
	}
	return ways
}

// translatedHosts: endpoints that are no pods are the own node, as hostNetwork pods are, another, and hosts outside.
// Policies of the client see their addresses.
func (w *world) translatedHosts(ns string) {
	at := map[string]string{"node1": w.NodeNS("node1"), "node2": w.NodeNS("node2"), "outside": w.ControlPlaneNS()}
	ways := map[string][]cluster.Expectation{}
	for name, addresses := range w.hosts() {
		stop, err := w.Serve(w.ctx, at[name], servedHostPort, addresses...)
		w.must(err)
		w.Cleanup(stop)
		ways[name] = w.hostService(ns, name, addresses)
	}
	for name := range ways {
		w.settles(through(w, ways[name], "a", true), through(w, ways[name], "c", true))
	}
	var peers []string
	for _, a := range w.hosts()["node2"] {
		peers = append(peers, fmt.Sprintf("{ipBlock: {cidr: %s}}", netip.PrefixFrom(a, a.BitLen())))
	}
	w.policy(ns, "a", fmt.Sprintf(`{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{to: [%s]}]}`,
		strings.Join(peers, ", ")))
	w.settles(through(w, ways["node2"], "a", true), through(w, ways["outside"], "a", false),
		through(w, ways["outside"], "c", true))
	w.deletePolicy(ns, "a")
}

// translatedCleanUp: kube-proxy deletes the node's UDP connections to endpoints that serve no more, in all zones of the
// kernel. It leaves those that Open vSwitch has translated to endpoints that serve.
func (w *world) translatedCleanUp(ns string) {
	if kernel, err := w.KernelDatapath(w.ctx, "node1"); err != nil || !kernel {
		w.Skipf("kube-proxy sees connections of the kernel alone: %v", err)
	}
	w.named("b", "c")
	w.label(ns, "cleaned", "yes", "b")
	from, err := cluster.EnterNetNS(w.pods["a"].NetNS)
	w.must(err)
	defer from.Close()
	node, err := cluster.EnterNetNS(w.NodeNS("node1"))
	w.must(err)
	defer node.Close()
	ips := w.namedService(ns, "cleaned", "type: NodePort,")
	var kept []net.Conn
	for _, to := range w.frontendsOf(ns, "cleaned", ips) {
		conn, err := from.Dial("udp", to, settling)
		w.must(err)
		defer conn.Close()
		kept = append(kept, conn)
	}
	w.must(w.servedAlone(kept, "b"))
	before := w.translatedEntries()
	for range 2 {
		for _, ip := range ips {
			own := w.ownClient(node, ns, ip, kept)
			w.label(ns, "cleaned", nil, "c")
			w.must(cluster.Until(w.ctx, settling, func() error { // kube-proxy deletes it
				return errors.Join(w.servedAlone([]net.Conn{own}, "b"), w.servedAlone(kept, "b"))
			}))
			own.Close()
		}
	}
	after := w.translatedEntries()
	for entry := range before {
		if !after[entry] {
			w.Errorf("kube-proxy has deleted %s, whose endpoint serves", entry)
		}
	}
	if len(before) < len(kept) {
		w.Errorf("%d connections in the zone of translations, want %d: %v", len(before), len(kept), before)
	}
}

// ownClient adds the endpoint c, and returns a connection of the node itself that kube-proxy has led there.
func (w *world) ownClient(node *cluster.NetNS, ns string, ip netip.Addr, kept []net.Conn) (own net.Conn) {
	w.Helper()
	w.label(ns, "cleaned", "yes", "c")
	w.must(cluster.Until(w.ctx, settling, func() (err error) {
		if err := w.servedAlone(kept, "b"); err != nil {
			return err
		}
		if own, err = node.Dial("udp", netip.AddrPortFrom(ip, 8001), settling); err != nil {
			return err
		}
		if err = w.servedAlone([]net.Conn{own}, "c"); err != nil {
			own.Close()
		}
		return err
	}))
	return own
}

// servedAlone returns an error unless a pod serves all of the connections.
func (w *world) servedAlone(conns []net.Conn, want string) error {
	for _, conn := range conns {
		if pod, err := w.who(conn); err != nil || pod != want {
			return fmt.Errorf("%v is served by %q, want %s: %w", conn.RemoteAddr(), pod, want, err)
		}
	}
	return nil
}

// frontendsOf returns the addresses and ports of a Service, node ports of another node among them.
func (w *world) frontendsOf(ns, name string, ips []netip.Addr) (list []netip.AddrPort) {
	w.Helper()
	var made struct {
		Spec struct{ Ports []struct{ NodePort uint16 } }
	}
	w.must(w.Get(w.ctx, cluster.PathOf("Service", ns, name), &made))
	for _, ip := range ips {
		list = append(list, netip.AddrPortFrom(ip, 8001))
	}
	for _, ip := range w.nodeIPs("node2") {
		list = append(list, netip.AddrPortFrom(ip, made.Spec.Ports[0].NodePort))
	}
	return list
}

// translatedEntries returns the UDP connections of the pod a that node1's switch has translated, with their ids.
func (w *world) translatedEntries() map[string]bool {
	w.Helper()
	text, err := w.ConntrackIDs(w.ctx, "node1")
	w.must(err)
	out := map[string]bool{}
	for line := range strings.Lines(text) {
		ours := slices.ContainsFunc(w.pods["a"].IPs, func(a netip.Addr) bool {
			return strings.HasPrefix(line, fmt.Sprintf("udp,orig=(src=%s,", a))
		})
		original, _, _ := strings.Cut(line, "),")
		_, rest, identified := strings.Cut(line, ",id=")
		id, _, _ := strings.Cut(rest, ",")
		if ours && identified && strings.Contains(line, ",zone=65519") {
			out[original+"),id="+id] = true
		}
	}
	return out
}
