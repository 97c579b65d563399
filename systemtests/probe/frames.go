package main

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

const allProtocols = syscall.ETH_P_ALL

// linkSocket sends and takes whole frames of a link.
func linkSocket(device string) (fd int, address syscall.SockaddrLinklayer, err error) {
	dev, err := net.InterfaceByName(device)
	if err != nil {
		return 0, address, err
	}
	address = syscall.SockaddrLinklayer{Protocol: allProtocols>>8 | allProtocols&0xff<<8, Ifindex: dev.Index}
	if fd, err = syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW, int(address.Protocol)); err != nil {
		return 0, address, fmt.Errorf("packet socket: %w", err)
	}
	return fd, address, syscall.Bind(fd, &address)
}

// framesCommand sends the frames that it reads, one a line in hexadecimal. With -repeat it sends them again and again,
// until the process is killed.
func framesCommand(args []string) error {
	flags := flag.NewFlagSet("frames", flag.ContinueOnError)
	device := flags.String("dev", "eth0", "link to send on")
	pause := flags.Duration("pause", 0, "between two frames")
	repeat := flags.Bool("repeat", false, "send them again and again")
	if err := flags.Parse(args); err != nil {
		return err
	}
	fd, address, err := linkSocket(*device)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	var frames [][]byte
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		frame, err := hex.DecodeString(lines.Text())
		if err != nil {
			return fmt.Errorf("frame %d: %w", len(frames)+1, err)
		}
		frames = append(frames, frame)
	}
	if err := lines.Err(); err != nil {
		return err
	}
	for again := len(frames) > 0; again; again = *repeat {
		for i, frame := range frames {
			err := syscall.Sendto(fd, frame, 0, &address)
			noCarrier := *repeat && errors.Is(err, syscall.ENOBUFS)
			if err != nil && !noCarrier {
				return fmt.Errorf("send frame %d: %w", i+1, err)
			}
			time.Sleep(*pause)
		}
	}
	return nil
}

// hearCommand prints the frames that come in and hold the token, until SIGTERM.
func hearCommand(args []string) error {
	flags := flag.NewFlagSet("hear", flag.ContinueOnError)
	device := flags.String("dev", "eth0", "link to listen on")
	if err := flags.Parse(args); err != nil {
		return err
	}
	token, err := hex.DecodeString(flags.Arg(0))
	if err != nil || len(token) == 0 {
		return fmt.Errorf("hear wants a token in hexadecimal:\n%s", usage)
	}
	fd, _, err := linkSocket(*device)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	signals, stop := untilSignal(), make(chan struct{})
	go func() { <-signals; close(stop) }()
	fmt.Println("listening")
	return hear(fd, token, stop, func(frame []byte) { fmt.Println(hex.EncodeToString(frame)) })
}

// hear calls found for each frame that comes in and contains the token; see takeAll. On a busy machine this process may
// not have had a processor before stop was closed.
func hear(fd int, token []byte, stop <-chan struct{}, found func(frame []byte)) error {
	wait := syscall.NsecToTimeval((50 * time.Millisecond).Nanoseconds())
	if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &wait); err != nil {
		return fmt.Errorf("time-out of a packet socket: %w", err)
	}
	return takeAll(fd, make([]byte, 1<<16), stop, func(frame []byte) {
		if bytes.Contains(frame, token) {
			found(frame)
		}
	})
}

// maxDrain is how long takeAll reads a queue that does not become empty.
const maxDrain = 10 * time.Second

// takeAll calls took for each packet that comes in at a packet socket, until stop is closed, and then for those in the
// socket's queue. The socket has a time-out for receiving, after which takeAll looks at stop.
func takeAll(fd int, buf []byte, stop <-chan struct{}, took func(packet []byte)) error {
	flags, end := 0, time.Time{}
	for {
		n, from, err := syscall.Recvfrom(fd, buf, flags)
		link, _ := from.(*syscall.SockaddrLinklayer)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EAGAIN):
			if flags != 0 {
				return nil // the queue is empty after the end
			}
		case err != nil:
			return fmt.Errorf("take a packet: %w", err)
		case link != nil && link.Pkttype != syscall.PACKET_OUTGOING:
			took(buf[:n])
		}
		switch {
		case flags == 0 && isClosed(stop):
			flags, end = syscall.MSG_DONTWAIT, time.Now().Add(maxDrain)
		case flags != 0 && time.Now().After(end):
			return nil
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
