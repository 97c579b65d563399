package main

import (
	"errors"
	"net"
	"syscall"
	"testing"
)

// TestHear_QueuedFrames: frames in the queue of the socket are printed after the end.
func TestHear_QueuedFrames(t *testing.T) {
	fd, _, err := linkSocket("lo")
	if errors.Is(err, syscall.EPERM) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	server, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	client, err := net.Dial("udp", server.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	const sent, token = 10, "a token that nobody else sends"
	for range sent {
		if _, err := client.Write([]byte(token)); err != nil {
			t.Fatal(err)
		}
	}
	for range sent { // the link's sockets get a packet before the server does
		if _, err := server.Read(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
	}
	stop, heard := make(chan struct{}), 0
	close(stop)
	if err := hear(fd, []byte(token), stop, func([]byte) { heard++ }); err != nil || heard != sent {
		t.Errorf("%d of %d frames heard, %v", heard, sent, err)
	}
}
