package try

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Serve accepts TCP connections and echoes UDP datagrams at ports until ctx ends. It prints a line when all listen.
func Serve(ctx context.Context, ports []Port, out io.Writer) error {
	for _, p := range ports {
		address := net.JoinHostPort("", strconv.Itoa(int(p.Number)))
		if p.Protocol == "udp" {
			conn, err := net.ListenPacket("udp", address)
			if err != nil {
				return err
			}
			defer conn.Close()
			go echo(conn)
			continue
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		defer l.Close()
		go accept(l)
	}
	fmt.Fprintln(out, "listening")
	<-ctx.Done()
	return nil
}

func echo(conn net.PacketConn) {
	buf := make([]byte, 2048)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		_, _ = conn.WriteTo(buf[:n], from)
	}
}

func accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		conn.Close()
	}
}

// Target is a port of an address.
type Target struct {
	Protocol string // tcp or udp
	Address  string // HOST:PORT
}

// ParseTarget reads a target such as tcp:10.244.1.2:80.
func ParseTarget(text string) (Target, error) {
	protocol, address, ok := strings.Cut(text, ":")
	if !ok || protocol != "tcp" && protocol != "udp" {
		return Target{}, fmt.Errorf("target %q: write tcp:ADDRESS:PORT or udp:ADDRESS:PORT", text)
	}
	return Target{protocol, address}, nil
}

// ParsePort reads a port such as 80, 80/tcp or 53/udp.
func ParsePort(text string) (Port, error) {
	number, protocol, ok := strings.Cut(text, "/")
	if !ok {
		protocol = "tcp"
	}
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || n == 0 || protocol != "tcp" && protocol != "udp" {
		return Port{}, fmt.Errorf("port %q: write PORT, PORT/tcp or PORT/udp", text)
	}
	return Port{Protocol: protocol, Number: uint16(n)}, nil
}

// Connect reports which targets answer within a timeout.
func Connect(ctx context.Context, targets []Target, timeout time.Duration) []bool {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	open := make([]bool, len(targets))
	var all sync.WaitGroup
	for i, t := range targets {
		all.Go(func() { open[i] = t.answers(ctx) == nil })
	}
	all.Wait()
	return open
}

// retryInterval is the time after which a datagram without a reply is sent again.
const retryInterval = 200 * time.Millisecond

func (t Target) answers(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, t.Protocol, t.Address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if t.Protocol == "tcp" {
		return nil
	}
	buf := make([]byte, 16)
	for ctx.Err() == nil {
		if _, err := conn.Write([]byte("flowkeep try")); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(retryInterval)); err != nil {
			return err
		}
		if _, err := conn.Read(buf); err == nil {
			return nil
		} else if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() {
			return err
		}
	}
	return ctx.Err()
}
