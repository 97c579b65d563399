package cluster

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// NetNS makes sockets in a network namespace from within this process: thousands of packets need no program started.
// Safe for concurrent use.
type NetNS struct{ calls chan func() }

// EnterNetNS takes the path of a network namespace. Its sockets outlive Close.
func EnterNetNS(path string) (*NetNS, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	n := &NetNS{calls: make(chan func())}
	entered := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
		entered <- err
		for err == nil {
			call, ok := <-n.calls
			if !ok {
				return
			}
			call()
		}
	}()
	if err := <-entered; err != nil {
		return nil, fmt.Errorf("enter the network namespace %s: %w", path, err)
	}
	return n, nil
}

// Close ends the thread in the namespace; nothing may be asked of it afterwards.
func (n *NetNS) Close() { close(n.calls) }

func (n *NetNS) run(f func()) {
	done := make(chan struct{})
	n.calls <- func() { defer close(done); f() }
	<-done
}

// Dial connects over tcp or udp; a UDP socket has sent nothing yet.
func (n *NetNS) Dial(proto string, to netip.AddrPort, timeout time.Duration) (conn net.Conn, err error) {
	if proto == "udp" {
		n.run(func() { conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)) })
		return conn, err
	}
	var fd int
	family := syscall.AF_INET
	if to.Addr().Is6() {
		family = syscall.AF_INET6
	}
	n.run(func() {
		fd, err = syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	})
	if err != nil {
		return nil, fmt.Errorf("make a socket: %w", err)
	}
	file := os.NewFile(uintptr(fd), to.String())
	defer file.Close() // FileConn has its own
	if err := connect(file, to, timeout); err != nil {
		return nil, err
	}
	return net.FileConn(file)
}

// DialFrom returns a UDP socket on a local port; it has sent nothing yet. The port may still be that of a socket that was
// closed: a program that another test starts holds copies of all sockets until it executes.
func (n *NetNS) DialFrom(port int, to netip.AddrPort) (conn net.Conn, err error) {
	dialer := net.Dialer{LocalAddr: &net.UDPAddr{Port: port}, Control: reuseAddress}
	n.run(func() { conn, err = dialer.Dial("udp", to.String()) })
	return conn, err
}

// reuseAddress sets SO_REUSEADDR (socket(7)).
func reuseAddress(_, _ string, conn syscall.RawConn) error {
	var err error
	controlErr := conn.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	})
	return errors.Join(controlErr, err)
}

// connect waits in the runtime's poller, not in the thread.
func connect(file *os.File, to netip.AddrPort, timeout time.Duration) error {
	var address syscall.Sockaddr
	if to.Addr().Is6() {
		address = &syscall.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	} else {
		address = &syscall.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	if err := file.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = raw.Write(func(fd uintptr) bool {
		result = syscall.Connect(int(fd), address)
		return !errors.Is(result, syscall.EINPROGRESS) && !errors.Is(result, syscall.EALREADY)
	})
	if err != nil {
		return err
	}
	if errors.Is(result, syscall.EISCONN) {
		return nil
	}
	return result
}

// Listen takes TCP connections; whoever accepts one says what comes of it.
func (n *NetNS) Listen(at netip.AddrPort) (l net.Listener, err error) {
	n.run(func() { l, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at)) })
	return l, err
}

// ListenUDP takes datagrams for an address, and sends from there.
func (n *NetNS) ListenUDP(at netip.AddrPort) (c *net.UDPConn, err error) {
	n.run(func() { c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at)) })
	return c, err
}

// Echo answers over TCP and UDP on these addresses and ports until the function it returns is called. Addresses, not all of
// them: what answers a datagram must answer from where it was sent to.
func (n *NetNS) Echo(addrs []netip.Addr, ports []int) (stop func(), err error) {
	var open []interface{ Close() error }
	stop = func() {
		for _, c := range open {
			_ = c.Close()
		}
	}
	for _, a := range addrs {
		for _, port := range ports {
			tcp, udp, err := n.listen(netip.AddrPortFrom(a, uint16(port)))
			if err != nil {
				stop()
				return nil, fmt.Errorf("answer on %v, port %d: %w", a, port, err)
			}
			open = append(open, tcp, udp)
			go echoTCP(tcp)
			go echoUDP(udp)
		}
	}
	return stop, nil
}

func (n *NetNS) listen(at netip.AddrPort) (tcp net.Listener, udp net.PacketConn, err error) {
	if tcp, err = n.Listen(at); err != nil {
		return nil, nil, err
	}
	if udp, err = n.ListenUDP(at); err != nil {
		return nil, nil, errors.Join(err, tcp.Close())
	}
	return tcp, udp, nil
}

func echoTCP(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			buf := make([]byte, 4096)
			for {
				size, err := conn.Read(buf)
				if err != nil {
					return
				}
				if _, err := conn.Write(buf[:size]); err != nil {
					return
				}
			}
		}()
	}
}

func echoUDP(c net.PacketConn) {
	buf := make([]byte, 4096)
	for {
		size, from, err := c.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = c.WriteTo(buf[:size], from) // lost answers are what the asker counts
		}
	}
}
