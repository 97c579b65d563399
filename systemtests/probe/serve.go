package main

import (
	"errors"
	"io"
	"net"
)

// server echoes TCP and UDP on one address.
type server struct {
	tcp net.Listener
	udp net.PacketConn
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
	go s.serveTCP()
	go s.serveUDP()
	return s, nil
}

func (s *server) addr() string { return s.tcp.Addr().String() }

func (s *server) Close() error { return errors.Join(s.tcp.Close(), s.udp.Close()) }

func (s *server) serveTCP() {
	for {
		conn, err := s.tcp.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			_, _ = io.Copy(conn, conn) // the client's going away is how it ends
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
