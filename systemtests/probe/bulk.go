package main

import (
	"flag"
	"fmt"
	"io"
	"net"
	"time"
)

// bulkCommand sends a stream to an echo server and takes it back; it fails unless all comes back in time.
func bulkCommand(args []string) error {
	flags := flag.NewFlagSet("bulk", flag.ContinueOnError)
	size := flags.Int64("size", 200_000, "bytes")
	timeout := flags.Duration("timeout", 5*time.Second, "how long it may take")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 || *size <= 0 {
		return fmt.Errorf("bulk wants one ADDRESS, and a size above 0:\n%s", usage)
	}
	conn, err := net.DialTimeout("tcp", flags.Arg(0), *timeout)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(*timeout)); err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() {
		_, err := io.CopyN(conn, zeros{}, *size)
		sent <- err
	}()
	if _, err := io.CopyN(io.Discard, conn, *size); err != nil {
		return fmt.Errorf("take back %d bytes: %w", *size, err)
	}
	return <-sent
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }
