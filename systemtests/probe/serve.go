package main

import (
	"errors"
	"io"
	"net"
	"net/netip"
)

// server echoes TCP, UDP and, where the kernel has it, SCTP on one address.
type server struct {
	tcp  net.Listener
	udp  net.PacketConn
	sctp net.Listener // nil: the kernel has none
}

// listen serves until Close.
func listen(address string) (*server, error) {
	tcp, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	udp, err := net.ListenPacket("udp", tcp.Addr().String())
	if err != nil {
		return nil, errors.Join(err, tcp.Close())
	}
	s := &server{tcp: tcp, udp: udp}
	if at, err := netip.ParseAddrPort(tcp.Addr().String()); err == nil {
		s.sctp, err = listenSCTP(at)
		if err != nil && !errors.Is(err, errNoSCTP) {
			return nil, errors.Join(err, s.Close())
		}
	}
	if s.sctp != nil {
		go serveStreams(s.sctp)
	}
	go serveStreams(s.tcp)
	go s.serveUDP()
	return s, nil
}

func (s *server) addr() string { return s.tcp.Addr().String() }

func (s *server) Close() error {
	err := errors.Join(s.tcp.Close(), s.udp.Close())
	if s.sctp != nil {
		err = errors.Join(err, s.sctp.Close())
	}
	return err
}

// serveStreams echoes what comes by each connection until the listener is closed.
func serveStreams(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			// It ends when the client closes the connection. SCTP has no splice(2), so hide the types that use it.
			_, _ = io.Copy(struct{ io.Writer }{conn}, struct{ io.Reader }{conn})
		}()
	}
}

func (s *server) serveUDP() {
	buf := make([]byte, 65536)
	for {
		n, from, err := s.udp.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = s.udp.WriteTo(buf[:n], from) // lost answers are what the client counts
		}
	}
}
