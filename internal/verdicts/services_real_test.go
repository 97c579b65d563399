package verdicts

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
)

// serviceSwitch is a real switch that translates Services, with pods that have stacks of their own. The node's stack is
// the network namespace of the switch; it has the address of a pod elsewhere too.
type serviceSwitch struct {
	*testing.T
	datapath string
	sw       *ovstest.Switch
	session  *ofctl.Session
	compiler *pipeline.Compiler
	cfg      pipeline.Config
	pods     []*netns.Namespace
	dialed   int // over UDP
}

const (
	serviceGateway, serviceWire, serviceFirstPod = 1, 2, 3
	servicePods                                  = 4
	echoPort                                     = 8080
	// serviceWait is how long a response may take on a loaded machine, noService how long none is waited for.
	serviceWait = 20 * time.Second
	noService   = 300 * time.Millisecond
)

var (
	serviceGatewayMAC = ofctl.MAC{2, 0, 0, 0, 0, 1}
	serviceWireMAC    = ofctl.MAC{2, 0, 0, 0, 0, 2}
	serviceFamilies   = []service.Family{service.IPv4, service.IPv6}
)

// hostOf returns an address of a family in a network with the last part n.
func hostOf(f service.Family, network, n int) netip.Addr {
	if f == service.IPv6 {
		return netip.MustParseAddr(fmt.Sprintf("fd00:10:%d::%x", network, n))
	}
	return netip.MustParseAddr(fmt.Sprintf("10.%d.1.%d", network, n))
}

// podIP returns a pod's address, vip a Service's; elsewhere is a pod of another node.
func podIP(f service.Family, i int) netip.Addr  { return hostOf(f, 244, 10+i) }
func vip(f service.Family, n int) netip.Addr    { return hostOf(f, 96, n) }
func elsewhere(f service.Family) netip.Addr     { return hostOf(f, 245, 10) }
func nodeIP(f service.Family, n int) netip.Addr { return hostOf(f, 192, n) }

func serviceConfig() pipeline.Config {
	cfg := pipeline.Config{
		Gateway: pipeline.Device{Port: serviceGateway, MAC: serviceGatewayMAC},
		Wire:    pipeline.Device{Port: serviceWire, MAC: serviceWireMAC},
		Out:     pipeline.Device{Port: serviceWire, MAC: serviceWireMAC},
		Services: pipeline.Services{
			Translated: true,
			Node:       "n1",
		},
	}
	for _, f := range serviceFamilies {
		bits := map[service.Family]int{service.IPv4: 24, service.IPv6: 64}[f]
		cfg.GatewayAddrs = append(cfg.GatewayAddrs, hostOf(f, 244, 1))
		cfg.NodeAddrs = append(cfg.NodeAddrs, nodeIP(f, 1))
		cfg.PodCIDRs = append(cfg.PodCIDRs, netip.PrefixFrom(podIP(f, 0), bits).Masked())
		cfg.ServiceCIDRs = append(cfg.ServiceCIDRs, netip.PrefixFrom(vip(f, 0), bits).Masked())
		cfg.Services.NodeAddrs = append(cfg.Services.NodeAddrs, nodeIP(f, 1), nodeIP(f, 2))
	}
	return cfg
}

// startServices starts all of it. The rest of the test runs in the switch's network namespace.
func startServices(t *testing.T) *serviceSwitch {
	t.Helper()
	s := &serviceSwitch{T: t, datapath: serviceDatapath(t), cfg: serviceConfig()}
	runInParallel(t, s.datapath)
	netns.New(t).Enter(t)
	s.cfg.Services.Held = s.datapath == "netdev"
	s.cfg.Services.SCTPPorts = s.datapath == "system"
	ports := []string{"gw", "wire"}
	s.ip("link", "add", "gw", "type", "veth", "peer", "name", "gw-end", "address", serviceGatewayMAC.String())
	s.ip("link", "add", "wire", "type", "veth", "peer", "name", "wire-end", "address", serviceWireMAC.String())
	for i := range servicePods {
		ports = append(ports, s.addPod(i))
	}
	for _, p := range ports { // of themselves they send nothing
		s.command("sysctl", "-qw", "net.ipv6.conf."+p+".disable_ipv6=1")
	}
	for _, p := range append([]string{"gw-end", "wire-end"}, ports...) {
		s.ip("link", "set", p, "up")
	}
	s.addNode()
	s.sw = ovstest.StartOn(t, s.datapath, ports)
	s.session = connect(t, s.sw)
	must(t, s.session.EnsureGroups(t.Context(), pipeline.ServiceGroups()))
	s.compiler = pipeline.New(s.cfg, nil)
	for i := range servicePods {
		s.compiler.PutEndpoint(s.endpoint(i))
	}
	s.commit()
	for i := range servicePods {
		s.serve(i)
	}
	return s
}

// addNode gives the node its addresses and its way to pods.
func (s *serviceSwitch) addNode() {
	s.Helper()
	for _, dev := range []string{"gw-end", "wire-end"} {
		s.computesChecksums(dev)
		s.command("sysctl", "-qw", "net.ipv4.conf."+dev+".rp_filter=0")
	}
	s.command("sysctl", "-qw", "net.ipv4.conf.all.rp_filter=0")
	for _, f := range serviceFamilies {
		for _, a := range []netip.Addr{nodeIP(f, 1), elsewhere(f)} {
			s.ip("address", "add", fmt.Sprintf("%s/%d", a, a.BitLen()), "dev", "wire-end", "nodad")
		}
		gateway := hostOf(f, 244, 1)
		s.ip("address", "add", fmt.Sprintf("%s/%d", gateway, s.cfg.PodCIDRs[0].Bits()), "dev", "gw-end", "nodad")
		for i := range servicePods {
			s.ip("neighbour", "replace", podIP(f, i).String(), "lladdr", s.podMAC(i).String(), "dev", "gw-end")
		}
	}
}

func (s *serviceSwitch) ip(args ...string) {
	s.Helper()
	s.command("ip", args...)
}

func (s *serviceSwitch) command(name string, args ...string) {
	s.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		s.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// computesChecksums has an interface compute checksums where the datapath does not: the userspace datapath.
func (s *serviceSwitch) computesChecksums(dev string) {
	s.Helper()
	if s.datapath == "netdev" {
		s.command("ethtool", "-K", dev, "tx", "off")
	}
}

func (s *serviceSwitch) podMAC(i int) ofctl.MAC { return ofctl.MAC{2, 0, 0, 0, 1, byte(i)} }

// addPod attaches a network namespace by a pair of links, and returns the name of the one that is the switch's port.
func (s *serviceSwitch) addPod(i int) string {
	s.Helper()
	port, pod := fmt.Sprintf("p%d", i), netns.NewNamed(s, "pod")
	s.pods = append(s.pods, pod)
	peer := []string{"peer", "name", "eth0", "address", s.podMAC(i).String(), "netns", pod.Name()}
	s.ip(append([]string{"link", "add", port, "type", "veth"}, peer...)...)
	pod.Do(func() {
		s.computesChecksums("eth0")
		s.ip("link", "set", "eth0", "up")
		for _, f := range serviceFamilies {
			gateway := hostOf(f, 244, 1).String()
			s.ip("address", "add", fmt.Sprintf("%s/%d", podIP(f, i), podIP(f, i).BitLen()), "dev", "eth0", "nodad")
			s.ip("neighbour", "add", gateway, "lladdr", serviceGatewayMAC.String(), "dev", "eth0")
			s.ip("route", "add", gateway, "dev", "eth0")
			s.ip("route", "add", "default", "via", gateway)
		}
	})
	return port
}

func (s *serviceSwitch) endpoint(i int) pipeline.LocalEndpoint {
	e := pipeline.LocalEndpoint{ID: fmt.Sprintf("ns/%d", i), Port: serviceFirstPod + uint32(i), MAC: s.podMAC(i)}
	for _, f := range serviceFamilies {
		e.Addresses = append(e.Addresses, podIP(f, i))
	}
	return e
}

// commit brings the switch up to date, in one bundle, and waits for the datapath.
func (s *serviceSwitch) commit() (mods []ofctl.FlowMod) {
	s.Helper()
	mods, _ = s.compiler.Take()
	must(s, s.session.Commit(s.Context(), mods))
	s.sw.AppCtl(s, "revalidator/purge")
	return mods
}

// serve has a pod, or (-1) the pod elsewhere, return its number and the client's address, over TCP and UDP.
func (s *serviceSwitch) serve(i int) {
	s.Helper()
	if i < 0 {
		s.serveIn(func(f func()) { f() }, i, s.servedBy(i))
		return
	}
	s.serveIn(s.pods[i].Do, i, s.servedBy(i))
}

// serveIn is serve in a network namespace, at its addresses.
func (s *serviceSwitch) serveIn(in func(func()), i int, addresses []netip.Addr) {
	s.Helper()
	in(func() {
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", echoPort))
		must(s, err)
		s.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go echoStream(c, i)
			}
		}()
		for _, a := range addresses { // one socket each, which responds from its address
			p, err := net.ListenPacket("udp", at(a, echoPort).String())
			must(s, err)
			s.Cleanup(func() { p.Close() })
			go echoPackets(p, i)
		}
	})
}

func (s *serviceSwitch) servedBy(i int) (out []netip.Addr) {
	for _, f := range serviceFamilies {
		if i < 0 {
			out = append(out, elsewhere(f), nodeIP(f, 1))
		} else {
			out = append(out, podIP(f, i))
		}
	}
	return out
}

func echoStream(c net.Conn, i int) {
	defer c.Close()
	b := make([]byte, 1)
	for {
		if _, err := c.Read(b); err != nil {
			return
		}
		fmt.Fprintf(c, "%d %s\n", i, c.RemoteAddr())
	}
}

func echoPackets(p net.PacketConn, i int) {
	b := make([]byte, 1<<16)
	for {
		n, from, err := p.ReadFrom(b)
		if err != nil {
			return
		}
		_, _ = p.WriteTo(append(fmt.Appendf(nil, "%d %s ", i, from), b[:n]...), from) // as large as the request
	}
}

// dial opens a connection of a pod's. Each over UDP has a port of its own: conntrack would take one with the port of an
// earlier one for that.
func (s *serviceSwitch) dial(pod int, network string, to netip.AddrPort, wait time.Duration) (c net.Conn, err error) {
	s.Helper()
	d := net.Dialer{Timeout: wait}
	if network == "udp" {
		s.dialed++
		d.LocalAddr = &net.UDPAddr{Port: 20000 + s.dialed}
	}
	s.pods[pod].Do(func() { c, err = d.DialContext(s.Context(), network, to.String()) })
	if err == nil {
		s.Cleanup(func() { c.Close() })
	}
	return c, err
}

// ask sends a request by a connection, and returns the number of the pod that responds and the client that it sees.
func (s *serviceSwitch) ask(c net.Conn, request []byte, wait time.Duration) (pod int, client netip.Addr, err error) {
	s.Helper()
	_ = c.SetDeadline(time.Now().Add(wait))
	if _, err := c.Write(request); err != nil {
		return 0, client, err
	}
	b := make([]byte, 1<<16)
	n, err := c.Read(b)
	if err != nil {
		return 0, client, err
	}
	var from string
	if _, err := fmt.Sscan(string(b[:n]), &pod, &from); err != nil || len(request) > 1 && n < len(request) {
		s.Fatalf("response of %d bytes: %v", n, err)
	}
	return pod, netip.MustParseAddrPort(from).Addr().Unmap(), nil
}

// get opens a connection for one request.
func (s *serviceSwitch) get(pod int, network string, to netip.AddrPort, wait time.Duration) (int, netip.Addr, error) {
	s.Helper()
	c, err := s.dial(pod, network, to, wait)
	if err != nil {
		return 0, netip.Addr{}, err
	}
	defer c.Close()
	return s.ask(c, []byte("x"), wait)
}

// reaches fails the test unless a request of a pod is answered by the endpoint want, with the client's own address.
func (s *serviceSwitch) reaches(pod, want int, to netip.AddrPort, why string) {
	s.Helper()
	for _, network := range []string{"tcp", "udp"} {
		got, client, err := s.get(pod, network, to, serviceWait)
		if own := podIP(service.FamilyOf(to.Addr()), pod); err != nil || got != want || client != own {
			s.Errorf("%s: pod %d to %s by %s: from pod %d as %s: %v; want pod %d",
				why, pod, to, network, got, client, err, want)
		}
	}
}

// blocked fails the test if a request of a pod is answered.
func (s *serviceSwitch) blocked(pod int, to netip.AddrPort, why string) {
	s.Helper()
	for _, network := range []string{"tcp", "udp"} {
		got, _, err := s.get(pod, network, to, noService)
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			answered := err == nil || errors.Is(err, syscall.ECONNREFUSED)
			s.Errorf("%s%s: pod %d to %s by %s: answered by pod %d: %v", leak(answered), why, pod, to, network, got, err)
		}
	}
}

// put sets a Service with ready endpoints at the given addresses, and commits.
func (s *serviceSwitch) put(change func(*service.Service), endpoints ...netip.Addr) []ofctl.FlowMod {
	s.Helper()
	return s.putAt(echoPort, change, endpoints...)
}

// putAt is put with endpoints at another port.
func (s *serviceSwitch) putAt(port uint16, change func(*service.Service), endpoints ...netip.Addr) []ofctl.FlowMod {
	s.Helper()
	svc := &service.Service{
		Namespace:  "ns",
		Name:       "web",
		ClusterIPs: []netip.Addr{vip(service.IPv4, 7), vip(service.IPv6, 7)},
		Ports: []service.Port{
			{Name: "tcp", Protocol: policy.TCP, Port: 80, NodePort: 30080},
			{Name: "udp", Protocol: policy.UDP, Port: 80, NodePort: 30080},
		},
	}
	if change != nil {
		change(svc)
	}
	slice := &service.Slice{Namespace: "ns", Name: "web-1", Service: "web", Ports: []service.SlicePort{
		{Name: "tcp", Protocol: policy.TCP, Port: port},
		{Name: "udp", Protocol: policy.UDP, Port: port},
		{Name: "sctp", Protocol: policy.SCTP, Port: port},
	}}
	for _, a := range endpoints {
		slice.Endpoints = append(slice.Endpoints, service.Endpoint{Address: a, Ready: true, Serving: true})
	}
	if problems := s.compiler.PutService(svc, []*service.Slice{slice}); len(problems) > 0 {
		s.Fatalf("problems: %q", problems)
	}
	return s.commit()
}

// sentBy returns how many packets have left by a port.
func (s *serviceSwitch) sentBy(port string) string {
	s.Helper()
	_, tx, _ := strings.Cut(s.sw.OFCtl(s, "dump-ports", port), "tx pkts=")
	n, _, _ := strings.Cut(tx, ",")
	return n
}

// both returns the addresses of pods, of both families.
func both(pods ...int) (out []netip.Addr) {
	for _, i := range pods {
		for _, f := range serviceFamilies {
			out = append(out, podIP(f, i))
		}
	}
	return out
}

func at(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// tracked returns the connections that the switch knows in a zone.
func (s *serviceSwitch) tracked(zone uint16) []string {
	s.Helper()
	text := s.sw.AppCtl(s, "dpctl/dump-conntrack", fmt.Sprintf("zone=%d", zone))
	return strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
}
