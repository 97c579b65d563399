package check

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"syscall"
)

// Serve accepts TCP connections and returns datagrams at ports until ctx ends. It prints a line when it listens at all.
// Without IPv6 in the kernel it serves IPv4.
func Serve(ctx context.Context, ports []int, out io.Writer) error {
	config := net.ListenConfig{Control: func(network, address string, c syscall.RawConn) error {
		if network == "udp4" || network == "udp6" {
			return dontFragment(network, address, c)
		}
		return nil
	}}
	families := []string{"4"}
	if l, err := config.ListenPacket(ctx, "udp6", "[::]:0"); err == nil {
		families = append(families, "6")
		l.Close()
	}
	for _, port := range ports {
		for _, family := range families {
			address := net.JoinHostPort("", strconv.Itoa(port))
			l, err := config.Listen(ctx, "tcp"+family, address)
			if err != nil {
				return fmt.Errorf("serve port %d: %w", port, err)
			}
			defer l.Close()
			go accept(l)
			conn, err := config.ListenPacket(ctx, "udp"+family, address)
			if err != nil {
				return fmt.Errorf("serve port %d: %w", port, err)
			}
			defer conn.Close()
			go echo(conn)
		}
	}
	fmt.Fprintln(out, "listening")
	<-ctx.Done()
	return nil
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

func echo(conn net.PacketConn) {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		_, _ = conn.WriteTo(buf[:n], from) // the client sees what is missing
	}
}
