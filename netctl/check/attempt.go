package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
)

// Sizes of the headers of a UDP datagram.
const (
	headers4 = 20 + 8
	headers6 = 40 + 8
)

// attempt tries a probe once. The note says more about a success.
func (p *Probe) attempt(ctx context.Context) (note string, err error) {
	switch p.Kind {
	case KindTCP:
		return "", connect(ctx, p.Address)
	case KindMTU:
		return echoWhole(ctx, p.Address)
	case KindDNS:
		list, err := net.DefaultResolver.LookupHost(ctx, p.Address)
		return strings.Join(list, ", "), err
	}
	return "", fmt.Errorf("there is no probe of kind %q", p.Kind)
}

func connect(ctx context.Context, address string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return cause(err)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // many connections are opened: none waits for its last packets
	}
	return conn.Close()
}

// cause returns an error of a connection without its addresses, which contain the port of the attempt.
func cause(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}

// echoWhole sends a datagram of the size that the interface permits, and waits for it to come back.
func echoWhole(ctx context.Context, address string) (note string, err error) {
	d := net.Dialer{Control: dontFragment}
	conn, err := d.DialContext(ctx, "udp", address)
	if err != nil {
		return "", cause(err)
	}
	defer conn.Close()
	size, err := largest(conn.LocalAddr())
	if err != nil {
		return "", err
	}
	sent := bytes.Repeat([]byte("flowkeep"), size/8+1)[:size]
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return "", err
		}
	}
	if _, err := conn.Write(sent); err != nil {
		return "", cause(err)
	}
	got := make([]byte, size+1)
	n, err := conn.Read(got)
	if err != nil {
		return "", fmt.Errorf("a packet of the interface's MTU gets no reply: %w", cause(err))
	}
	if !bytes.Equal(got[:n], sent) {
		return "", fmt.Errorf("the reply has %d bytes of %d", n, size)
	}
	return fmt.Sprintf("%d bytes", size+headers(conn.LocalAddr())), nil
}

func headers(local net.Addr) int {
	if a, ok := local.(*net.UDPAddr); ok && a.IP.To4() == nil {
		return headers6
	}
	return headers4
}

// largest returns how many bytes a datagram may have that leaves from a local address.
func largest(local net.Addr) (int, error) {
	a, ok := local.(*net.UDPAddr)
	if !ok {
		return 0, fmt.Errorf("%v is no UDP address", local)
	}
	links, err := net.Interfaces()
	if err != nil {
		return 0, err
	}
	const maxDatagram = 65535 - headers4 // on loopback
	for i := range links {
		addresses, err := links[i].Addrs()
		if err != nil {
			continue // the link is gone
		}
		for _, of := range addresses {
			if n, ok := of.(*net.IPNet); ok && n.IP.Equal(a.IP) {
				return min(links[i].MTU-headers(local), maxDatagram), nil
			}
		}
	}
	return 0, fmt.Errorf("no interface has the address %v", a.IP)
}
