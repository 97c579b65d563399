package verdicts

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
)

// digestPort is where a pod returns the digest of what a client sends.
const digestPort = 8082

// digest has a network namespace return the digest of each stream that it gets.
func (s *serviceSwitch) digest(in *netns.Namespace) {
	s.Helper()
	in.Do(func() {
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", digestPort))
		must(s, err)
		s.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					sum := sha256.New()
					if _, err := io.Copy(sum, c); err == nil {
						_, _ = c.Write(sum.Sum(nil))
					}
				}()
			}
		}()
	})
}

// arrivesWhole sends a stream to a Service that leads to digestPort, and compares the digest.
func (s *serviceSwitch) arrivesWhole(to netip.AddrPort, why string) {
	s.Helper()
	stream := bytes.Repeat([]byte("flowkeep"), 1<<16)
	want := sha256.Sum256(stream)
	c, err := s.dial(0, "tcp", to, serviceWait)
	must(s, err)
	_ = c.SetDeadline(time.Now().Add(10 * serviceWait))
	if _, err := c.Write(stream); err != nil {
		s.Fatalf("%s, %s: %v", why, to, err)
	}
	must(s, c.(*net.TCPConn).CloseWrite())
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, want[:]) {
		s.Errorf("%s, %s: digest %x: %v, want %x", why, to, got, err, want)
	}
}

// TestServices_StreamsArriveWhole: segments that are larger than the MTU until the interface sends them, with checksums
// that are not computed yet, pass the translation.
func TestServices_StreamsArriveWhole(t *testing.T) {
	s := startServices(t)
	for _, pod := range []int{1, 0} { // the second is the client itself
		s.digest(s.pods[pod])
		s.putAt(digestPort, nil, both(pod)...)
		for _, f := range serviceFamilies {
			s.arrivesWhole(at(vip(f, 7), 80), fmt.Sprintf("to pod %d", pod))
		}
	}
}

const narrowMTU = 1300

// far returns the address of a host that the node routes to by a link that is narrower than those of pods.
func far(f service.Family) netip.Addr { return hostOf(f, 246, 10) }

// addFar adds the host, and has the node's stack route.
func (s *serviceSwitch) addFar() *netns.Namespace {
	s.Helper()
	host := netns.NewNamed(s, "far")
	s.ip("link", "add", "near", "type", "veth", "peer", "name", "eth0", "netns", host.Name())
	s.ip("link", "set", "near", "up", "mtu", fmt.Sprint(narrowMTU))
	addresses := func(dev string, own, other int) {
		s.computesChecksums(dev)
		for _, f := range serviceFamilies {
			a := fmt.Sprintf("%s/%d", hostOf(f, 246, own), s.cfg.PodCIDRs[int(f)/6].Bits())
			s.ip("address", "add", a, "dev", dev, "nodad")
			if other != 0 {
				s.ip("route", "add", "default", "via", hostOf(f, 246, other).String())
			}
		}
	}
	addresses("near", 1, 0)
	host.Do(func() {
		s.ip("link", "set", "eth0", "up", "mtu", fmt.Sprint(narrowMTU))
		addresses("eth0", 10, 1)
	})
	s.command("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
	return host
}

// TestServices_EndpointsOnHosts: an endpoint is the node itself, as a pod in its network is, or a host that the node
// routes to. It sees the client; policies see its address.
func TestServices_EndpointsOnHosts(t *testing.T) {
	s := startServices(t)
	s.serve(-1)
	s.serveIn(s.addFar().Do, -2, []netip.Addr{far(service.IPv4), far(service.IPv6)})
	for want, host := range map[int]func(service.Family) netip.Addr{
		-1: func(f service.Family) netip.Addr { return nodeIP(f, 1) },
		-2: far,
	} {
		s.put(nil, host(service.IPv4), host(service.IPv6))
		for _, f := range serviceFamilies {
			for _, to := range []netip.AddrPort{at(vip(f, 7), 80), at(nodeIP(f, 1), 30080), at(nodeIP(f, 2), 30080)} {
				s.reaches(0, want, to, "a host")
			}
		}
		deny := allow(policy.Egress, 0, 2)
		s.policies(deny)
		for _, f := range serviceFamilies {
			s.blocked(0, at(vip(f, 7), 80), "egress does not allow the host")
		}
		s.compiler.Apply(policy.NodeUpdate{Rules: []policy.RuleChange{{Key: deny.Key}}})
		s.commit()
	}
}

// TestServices_PathMTU: a client learns that the way to the endpoint is narrower than its own link, as a property of
// the Service's address. The userspace datapath of Open vSwitch 3.1 changes the MTU in errors over IPv6 that it
// translates: it takes it for the checksum of the connection's protocol.
func TestServices_PathMTU(t *testing.T) {
	s := startServices(t)
	s.addFar()
	s.put(nil, far(service.IPv4), far(service.IPv6))
	for _, f := range serviceFamilies {
		if f == service.IPv6 && s.datapath == "netdev" {
			continue
		}
		fd, level, option := s.unfragmented(at(vip(f, 7), 80)), unix.IPPROTO_IP, unix.IP_MTU
		if f == service.IPv6 {
			level, option = unix.IPPROTO_IPV6, unix.IPV6_MTU
		}
		mtu := 0
		for deadline := time.Now().Add(serviceWait); mtu != narrowMTU && time.Now().Before(deadline); {
			_, sent := unix.Write(fd, make([]byte, narrowMTU+1))
			if sent != nil && !errors.Is(sent, unix.EMSGSIZE) {
				t.Fatalf("IPv%d: %v", f, sent)
			}
			time.Sleep(10 * time.Millisecond) // the error comes by the node
			var err error
			mtu, err = unix.GetsockoptInt(fd, level, option)
			must(t, err)
		}
		if mtu != narrowMTU {
			t.Errorf("IPv%d: path MTU %d, want %d", f, mtu, narrowMTU)
		}
	}
}

// socketAddress returns the family of an address and its form for system calls.
func socketAddress(a netip.AddrPort) (family int, address unix.Sockaddr) {
	if a.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// unfragmented returns a socket of pod 0 over UDP of which no datagram is fragmented.
func (s *serviceSwitch) unfragmented(to netip.AddrPort) (fd int) {
	s.Helper()
	family, address := socketAddress(to)
	level, option := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER
	if to.Addr().Is6() {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER
	}
	s.pods[0].Do(func() {
		var err error
		fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		must(s, err)
		s.Cleanup(func() { _ = unix.Close(fd) })
		must(s, unix.SetsockoptInt(fd, level, option, unix.IP_PMTUDISC_DO))
		must(s, unix.Connect(fd, address))
	})
	return fd
}

// TestKernelDatapathServicesOverSCTP: the kernel's datapath translates addresses and ports of SCTP.
func TestKernelDatapathServicesOverSCTP(t *testing.T) {
	ovstest.NeedKernelDatapath(t)
	if testing.Short() {
		t.Skip("takes a minute in a virtual machine")
	}
	s := startServices(t)
	overSCTP := func(svc *service.Service) {
		svc.Ports = append(svc.Ports, service.Port{Name: "sctp", Protocol: policy.SCTP, Port: 80, NodePort: 30080})
	}
	for _, pod := range []int{0, 1} {
		s.serveSCTP(pod)
	}
	for _, pod := range []int{1, 0} { // the second is the client itself
		s.put(overSCTP, both(pod)...)
		for _, f := range serviceFamilies {
			for _, to := range []netip.AddrPort{at(vip(f, 7), 80), at(nodeIP(f, 2), 30080)} {
				if err := s.associates(0, to, pod, serviceWait); err != nil {
					t.Errorf("%s to pod %d: %v", to, pod, err)
				}
			}
			deny := allow(policy.Egress, 0, 2)
			s.policies(deny)
			wait := serviceWait
			if pod != 0 {
				wait = noService
			}
			err := s.associates(0, at(vip(f, 7), 80), pod, wait)
			if denied := pod != 0; (err != nil) != denied {
				t.Errorf("%sIPv%d: egress does not allow pod %d: %v", leak(denied), f, pod, err)
			}
			s.compiler.Apply(policy.NodeUpdate{Rules: []policy.RuleChange{{Key: deny.Key}}})
			s.commit()
		}
	}
}

const protoSCTP = 132

// serveSCTP has a pod respond with its number to the first message of each association.
func (s *serviceSwitch) serveSCTP(pod int) {
	s.Helper()
	s.pods[pod].Do(func() {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, protoSCTP)
		must(s, err)
		must(s, unix.Bind(fd, &unix.SockaddrInet6{Port: echoPort}))
		must(s, unix.Listen(fd, 16))
		must(s, unix.SetNonblock(fd, true))
		file := os.NewFile(uintptr(fd), "sctp")
		l, err := net.FileListener(file)
		must(s, errors.Join(err, file.Close()))
		s.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					if _, err := c.Read(make([]byte, 16)); err == nil {
						fmt.Fprint(c, pod)
						_, _ = c.Read(make([]byte, 16)) // until the client ends the association
					}
				}()
			}
		}()
	})
}

// associates returns an error unless a pod's association with an address is served by a pod.
func (s *serviceSwitch) associates(from int, to netip.AddrPort, want int, wait time.Duration) error {
	s.Helper()
	family, address := socketAddress(to)
	var fd int
	var err error
	s.pods[from].Do(func() { fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, protoSCTP) })
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	limit := unix.NsecToTimeval(int64(wait))
	for _, option := range []int{unix.SO_SNDTIMEO, unix.SO_RCVTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &limit); err != nil {
			return err
		}
	}
	for err = syscall.EINTR; errors.Is(err, syscall.EINTR); err = unix.Connect(fd, address) {
	}
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if _, err := unix.Write(fd, []byte("x")); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	b := make([]byte, 16)
	n, err := unix.Read(fd, b)
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	if got := string(b[:n]); got != fmt.Sprint(want) {
		return fmt.Errorf("pod %s responds", got)
	}
	return nil
}
