package systemtests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// bySwitch restarts all netplugins so that Open vSwitch translates Services, until the test ends.
func (w *world) bySwitch() {
	w.Helper()
	for i := range nodesOf(*shape, *mode) {
		name := fmt.Sprintf("node%d-netplugin", i+1)
		w.again(name)
		w.Cleanup(func() { _ = w.Stop(context.Background(), name) }) // it has the flag
		w.must(w.Stop(w.ctx, name))
		w.translating(name)
	}
}

// translating starts a netplugin with which Open vSwitch translates Services. It compares the switch's flows more
// often than by default, so that translatedDrift does not wait for a minute.
func (w *world) translating(name string) {
	w.Helper()
	w.must(w.StartWith(w.ctx, name, "--services", "ovs", "--drift-check-interval", "10s"))
	w.awaitNetplugin(name)
}

// TestServicesInOpenVSwitch: with --services ovs, Open vSwitch translates what pods send to Services, before policies.
func TestServicesInOpenVSwitch(t *testing.T) {
	w := setup(t)
	w.bySwitch()
	ns := threePods(w)
	for _, part := range []struct {
		name string
		test func(*world, string)
	}{
		{"frontends", (*world).translatedFrontends},
		{"policy", (*world).translatedPolicy},
		{"one source port", (*world).oneSourcePort},
		{"inspection", (*world).translatedInspection},
		{"hosts as endpoints", (*world).translatedHosts},
		{"rejection", (*world).translatedRejection},
		{"endpoints", (*world).translatedEndpoints},
		{"clean-up of kube-proxy", (*world).translatedCleanUp},
		{"affinity", (*world).translatedAffinity},
		{"restart of netplugin", (*world).translatedRestart},
		{"drift", (*world).translatedDrift},
		{"NodeLocal DNSCache", (*world).translatedDNSCache},
		{"without kube-proxy", (*world).translatedAlone},
		{"restart of ovs-vswitchd", (*world).translatedSwitch},
	} {
		t.Run(part.name, func(t *testing.T) {
			inner := *w
			inner.T, inner.ctx = t, t.Context()
			part.test(&inner, ns)
			if text, code := inner.verify("--independent"); code != 0 || !strings.Contains(text, "read 8 groups") {
				t.Errorf("netctl verify exits with %d:\n%s", code, text)
			}
		})
	}
}

// translatedFrontends: ClusterIPs and node ports, of endpoints on the node, on another, and of the pod itself.
func (w *world) translatedFrontends(ns string) {
	b, c := service(w, ns, "b"), service(w, ns, "c")
	ports := w.nodePort(ns, "c")
	w.settles(through(w, b, "a", true), through(w, b, "c", true), through(w, c, "a", true),
		through(w, b, "b", true), through(w, c, "c", true),
		w.at("node1", ports, w.pods["a"], true, "its own node, and an endpoint on another"),
		w.at("node2", ports, w.pods["a"], true, "another node"), w.at("node2", ports, w.pods["c"], true, "itself"),
		w.open("a", "b", "tcp", 80, "no Service"))
}

// translatedPolicy: policies of both ends see the endpoint.
func (w *world) translatedPolicy(ns string) {
	b, c := service(w, ns, "b"), service(w, ns, "c")
	ports := w.nodePort(ns, "b")
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}},
		ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	w.settles(through(w, b, "a", true), through(w, b, "c", false), through(w, b, "b", true), through(w, c, "b", true),
		w.at("node1", ports, w.pods["c"], false, "c is no peer"),
		w.at("node2", ports, w.pods["a"], true, "a is a peer"))
	w.deletePolicy(ns, "b")
	w.policy(ns, "a", `{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress],
		egress: [{to: [{podSelector: {matchLabels: {app: c}}}]}]}`)
	w.settles(through(w, c, "a", true), through(w, b, "a", false), w.at("node2", ports, w.pods["a"], false, "not b"))
	w.deletePolicy(ns, "a")
	w.settles(through(w, b, "a", true))
}

// translatedInspection compares what netctl shows of a Service with what was sent: the translator, the endpoint, the
// verdict there, and the counts of opened connections.
func (w *world) translatedInspection(ns string) {
	b, ports := service(w, ns, "b"), w.nodePort(ns, "b")
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}},
		ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	w.settles(through(w, b, "a", true), through(w, b, "c", false))
	by, led := "svc/"+ns+"/b", ": translated to "
	w.says(ns+"/a", by+":8000/tcp", true, "targetPort 80: ALLOWED", led, "frontend of Service "+ns+"/b")
	w.says(ns+"/c", by+":8000/udp", false, "targetPort 80: DENIED", led)
	w.says(ns+"/a", fmt.Sprintf("node2:%d/tcp", ports["tcp"]), true, "Service "+ns+"/np-b", "by port", led)
	w.must(cluster.Until(w.ctx, settling, func() error {
		text, err := w.Netctl(w.ctx, "service", "show", ns+"/b", "-o", "json")
		if err != nil {
			return err
		}
		var s inspect.ServedService
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			return err
		}
		opened := uint64(0)
		for i := range s.Endpoints {
			opened += s.Endpoints[i].Opened
		}
		for i := range s.Nodes {
			n := &s.Nodes[i]
			if n.TranslatedBy != inspect.TranslatedByOVS || !n.Held || len(n.Refused) > 0 || n.Problem != "" {
				return fmt.Errorf("node %s: %+v", n.Node, n)
			}
		}
		if len(s.Nodes) < 2 || opened == 0 {
			return fmt.Errorf("%d nodes, %d packets opened connections:\n%s", len(s.Nodes), opened, text)
		}
		return nil
	}))
	w.deletePolicy(ns, "b")
}

// translatedRejection: a Service without endpoints, and an address without a Service, refuse TCP at once.
func (w *world) translatedRejection(ns string) {
	w.apply(ns, `{apiVersion: v1, kind: Service, metadata: {name: nobody}, spec: {ipFamilyPolicy: PreferDualStack,
		selector: {app: nobody}, ports: [{port: 8000}]}}`)
	ips, err := w.ServiceIPs(w.ctx, ns, "nobody")
	w.must(err)
	from, err := cluster.EnterNetNS(w.pods["a"].NetNS)
	w.must(err)
	defer from.Close()
	for _, ip := range ips {
		for _, port := range []uint16{8000, 1} { // the second is no frontend
			w.must(cluster.Until(w.ctx, settling, func() error {
				conn, err := from.Dial("tcp", netip.AddrPortFrom(ip, port), 10*time.Second)
				if err == nil {
					conn.Close()
					return fmt.Errorf("%v port %d: connected", ip, port)
				}
				if !strings.Contains(err.Error(), "refused") {
					return fmt.Errorf("%v port %d: %w, want a refusal", ip, port, err)
				}
				return nil
			}))
		}
	}
}

// named has pods respond with their names, over UDP.
func (w *world) named(pods ...string) {
	w.Helper()
	for _, pod := range pods {
		for _, ip := range w.pods[pod].IPs {
			w.namedAt(w.pods[pod].NetNS, netip.AddrPortFrom(ip, 9100), pod)
		}
	}
}

// namedAt has an address of a network namespace respond with a name, over UDP.
func (w *world) namedAt(netns string, to netip.AddrPort, name string) {
	w.Helper()
	at, err := cluster.EnterNetNS(netns)
	w.must(err)
	defer at.Close()
	p, err := at.ListenUDP(to)
	w.must(err)
	w.Cleanup(func() { p.Close() })
	go func() {
		for buf := make([]byte, 64); ; {
			_, from, err := p.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = p.WriteTo([]byte(name), from)
			}
		}
	}()
}

// who returns which pod responds, and tries again for a while: packets may be lost on a busy machine.
func (w *world) who(conn net.Conn) (pod string, err error) {
	err = cluster.Until(w.ctx, settling, func() error {
		if _, err := conn.Write([]byte("who")); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(cluster.Stretch(time.Second))); err != nil {
			return err
		}
		buf := make([]byte, 64)
		n, err := conn.Read(buf)
		pod = string(buf[:n])
		return err
	})
	return pod, err
}

// namedService makes a Service in front of the servers of named, of which selected pods have the label.
func (w *world) namedService(ns, name, fields string) []netip.Addr {
	w.Helper()
	w.apply(ns, fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: %[1]s},
		spec: {ipFamilyPolicy: PreferDualStack, %[2]s selector: {%[1]s: "yes"}, ports: [{port: 8001, targetPort: 9100, protocol: UDP}]}}`, name, fields))
	ips, err := w.ServiceIPs(w.ctx, ns, name)
	w.must(err)
	return ips
}

// servedBy waits until new clients of a pod get all of the pods, and no other.
func (w *world) servedBy(from *cluster.NetNS, to netip.Addr, pods ...string) {
	w.Helper()
	w.must(cluster.Until(w.ctx, settling, func() error {
		seen := map[string]int{}
		for range 24 {
			conn, err := from.Dial("udp", netip.AddrPortFrom(to, 8001), settling)
			if err != nil {
				return err
			}
			pod, err := w.who(conn)
			conn.Close()
			if err != nil {
				return err
			}
			seen[pod]++
		}
		for _, p := range pods {
			if seen[p] == 0 || len(seen) != len(pods) {
				return fmt.Errorf("%v is served by %v, want %v", to, seen, pods)
			}
		}
		return nil
	}))
}

// unserved returns how many connections node1 has reported as ended because their endpoint served no more.
func (w *world) unserved() (float64, error) {
	return w.Metric(w.ctx, "node1-netplugin", "flowkeep_netplugin_connections_cut_total", `reason="service"`)
}

// translatedEndpoints: an open UDP connection follows when its endpoint serves no more, and netplugin reports it.
func (w *world) translatedEndpoints(ns string) {
	w.named("b", "c")
	w.label(ns, "moves", "yes", "b")
	from, err := cluster.EnterNetNS(w.pods["a"].NetNS)
	w.must(err)
	defer from.Close()
	for _, ip := range w.namedService(ns, "moves", "") {
		w.servedBy(from, ip, "b")
		before, err := w.unserved()
		w.must(err)
		conn, err := from.Dial("udp", netip.AddrPortFrom(ip, 8001), settling)
		w.must(err)
		defer conn.Close()
		if pod, err := w.who(conn); err != nil || pod != "b" {
			w.Fatalf("%v: served by %q: %v", ip, pod, err)
		}
		w.label(ns, "moves", "yes", "c")
		w.servedBy(from, ip, "b", "c")
		if pod, err := w.who(conn); err != nil || pod != "b" {
			w.Errorf("%v: moved to %q when another endpoint came: %v", ip, pod, err)
		}
		w.label(ns, "moves", nil, "b")
		w.must(cluster.Until(w.ctx, settling, func() error {
			if pod, err := w.who(conn); err != nil || pod != "c" {
				return fmt.Errorf("%v: served by %q: %w", ip, pod, err)
			}
			return nil
		}))
		after, err := w.unserved()
		w.must(err)
		kernel, err := w.KernelDatapath(w.ctx, "node1") // where kube-proxy may have been there first
		w.must(err)
		if after <= before && !kernel {
			w.Errorf("%v connections were reported as ended, %v before", after, before)
		}
		w.label(ns, "moves", "yes", "b")
		w.label(ns, "moves", nil, "c")
	}
}

// sticky returns the pod that serves a client of a Service with affinity, and fails the test unless it is one for all
// its connections.
func (w *world) sticky(from *cluster.NetNS, to netip.Addr) (pod string) {
	w.Helper()
	for range 12 {
		conn, err := from.Dial("udp", netip.AddrPortFrom(to, 8001), settling)
		w.must(err)
		got, err := w.who(conn)
		conn.Close()
		w.must(err)
		if pod != "" && got != pod {
			w.Errorf("%v: a client with affinity went from %s to %s", to, pod, got)
		}
		pod = got
	}
	return pod
}

// affine makes a Service with affinity to b first, and then to c too. It returns a function that fails the test if a is
// not kept with b.
func (w *world) affine(ns, name string) (keeps func(why string)) {
	w.Helper()
	w.named("b", "c")
	w.label(ns, name, "yes", "b")
	from, err := cluster.EnterNetNS(w.pods["a"].NetNS)
	w.must(err)
	w.Cleanup(from.Close)
	ips := w.namedService(ns, name, "sessionAffinity: ClientIP,")
	for _, ip := range ips {
		w.must(cluster.Until(w.ctx, settling, func() error {
			if pod := w.sticky(from, ip); pod != "b" {
				return fmt.Errorf("%v is served by %q", ip, pod)
			}
			return nil
		}))
	}
	w.label(ns, name, "yes", "c")
	w.holds("node1", ns+"/"+name, "/c")
	return func(why string) {
		w.Helper()
		for _, ip := range ips {
			if pod := w.sticky(from, ip); pod != "b" {
				w.Errorf("%s: %v is served by %s", why, ip, pod)
			}
		}
	}
}

// translatedAffinity: a client keeps its endpoint when others come and go, and when netplugin restarts.
func (w *world) translatedAffinity(ns string) {
	keeps := w.affine(ns, "sticks")
	keeps("another endpoint has come")
	w.must(w.Kill(w.ctx, "node1-netplugin"))
	w.translating("node1-netplugin")
	keeps("netplugin has restarted")
}

// translatedRestart: connections to Services lose nothing while netplugin is killed and starts again.
func (w *world) translatedRestart(ns string) {
	ways := append(through(w, service(w, ns, "b"), "a", true), through(w, service(w, ns, "c"), "a", true)...)
	w.settles(ways)
	w.watch(stall, ways, func() {
		w.must(w.Kill(w.ctx, "node1-netplugin"))
		time.Sleep(time.Second)
		w.translating("node1-netplugin")
		time.Sleep(500 * time.Millisecond)
	})
}

// translatedDrift: groups that another program deletes are restored within a second, with the flows that name them.
func (w *world) translatedDrift(ns string) {
	b := service(w, ns, "b")
	w.settles(through(w, b, "a", true))
	groups, err := w.Groups(w.ctx, "node1")
	w.must(err)
	if len(groups) == 0 {
		w.Fatal("node1 has no groups")
	}
	w.must(w.DeleteGroups(w.ctx, "node1"))
	w.must(cluster.Until(w.ctx, time.Second, func() error {
		have, err := w.Groups(w.ctx, "node1")
		if err == nil && !slices.Equal(have, groups) {
			err = fmt.Errorf("groups were deleted, and node1 has\n%s\nwant\n%s", strings.Join(have, "\n"),
				strings.Join(groups, "\n"))
		}
		return err
	}))
	if text, code := w.verify(); code != 0 {
		w.Errorf("netctl verify exits with %d:\n%s", code, text)
	}
	w.settles(through(w, b, "a", true))
}

// translatedAlone: without kube-proxy's rules, pods reach Services, and netplugin reaches netmaster.
func (w *world) translatedAlone(ns string) {
	for _, node := range []string{"node1", "node2"} {
		w.again(node + "-proxy")
		w.must(w.Stop(w.ctx, node+"-proxy"))
		for _, family := range []string{"ip", "ip6"} {
			_, err := w.RunIn(w.ctx, w.NodeNS(node), "nft", "delete", "table", family, "kube-proxy")
			w.must(err)
		}
	}
	b, ports := service(w, ns, "b"), w.nodePort(ns, "b")
	w.settles(through(w, b, "a", true), through(w, b, "c", true),
		w.at("node2", ports, w.pods["a"], true, "a node port"))
	w.must(w.Kill(w.ctx, "node1-netplugin"))
	w.translating("node1-netplugin")
	w.settles(through(w, b, "a", true))
}

// translatedSwitch: after a restart of ovs-vswitchd pods reach Services again, and clients keep their endpoints.
func (w *world) translatedSwitch(ns string) {
	b := service(w, ns, "b")
	w.settles(through(w, b, "a", true))
	keeps := w.affine(ns, "stays")
	cluster.Undisturbed(w.ctx, cluster.Window(12*time.Second)) // netplugin reads the clients with affinity every 10 s
	w.again("node1-vswitchd")
	w.must(w.Kill(w.ctx, "node1-vswitchd"))
	w.must(w.Start(w.ctx, "node1-vswitchd"))
	w.must(w.AwaitReady(w.ctx, "node1-netplugin", settling))
	w.settles(through(w, b, "a", true), through(w, b, "c", true))
	keeps("ovs-vswitchd has restarted")
}

// TestServicesTable prints what a pod reaches by a Service, as a part of what it reaches by the pod's address, with
// kube-proxy and with Open vSwitch translating. It asserts nothing.
func TestServicesTable(t *testing.T) {
	if !*printTable {
		t.Skip("a table to print: run with -table")
	}
	w := setup(t)
	ns := threePods(w)
	fmt.Printf("\n%-40s %12s %12s\n", "by the Service, of by the pod's address", "throughput", "connections")
	for _, by := range []string{"kube-proxy", "Open vSwitch"} {
		if by != "kube-proxy" {
			w.bySwitch()
		}
		for _, to := range []string{"b", "c"} {
			w.apply(ns, fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: fast-%[1]s}, spec: {selector: {app: %[1]s},
				ports: [{name: web, port: 80}, {name: iperf, port: 5299}]}}`, to))
			ips, err := w.ServiceIPs(w.ctx, ns, "fast-"+to)
			w.must(err)
			service := w.pods[to]
			service.IPs = ips
			w.settles([]cluster.Expectation{{From: w.pods["a"], Proto: "tcp", To: ips[0], Port: 80, Open: true}})
			var rates, connects [2]float64
			for range 3 { // in turn, since the machine has other work
				for i, at := range []cluster.Pod{w.pods[to], service} {
					rate, err := w.Throughput(w.ctx, w.pods["a"], at)
					w.must(err)
					opened, err := w.Connects(w.ctx, w.pods["a"], at, 80)
					w.must(err)
					rates[i], connects[i] = rates[i]+rate, connects[i]+opened
				}
			}
			where := map[string]string{"b": "same node", "c": "another node"}[to]
			fmt.Printf("%-40s %12.2f %12.2f\n", by+", "+where, rates[1]/rates[0], connects[1]/connects[0])
		}
	}
}
