package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// connectsCommand opens and resets TCP connections as fast as it can and prints how many a second succeeded. One that
// times out does not count: where packets are lost the rate is lower. Any other error ends it.
func connectsCommand(args []string) error {
	flags := flag.NewFlagSet("connects", flag.ContinueOnError)
	duration := flags.Duration("for", 3*time.Second, "how long")
	workers := flags.Int("workers", 4, "how many at once")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 || *workers <= 0 {
		return fmt.Errorf("connects wants one ADDRESS, and workers above 0:\n%s", usage)
	}
	var count atomic.Int64
	var failed atomic.Value
	var wg sync.WaitGroup
	start := time.Now()
	for range *workers {
		wg.Go(func() {
			for time.Since(start) < *duration {
				err := connectOnce(flags.Arg(0))
				var timeout net.Error
				switch {
				case err == nil:
					count.Add(1)
				case !errors.As(err, &timeout) || !timeout.Timeout():
					failed.Store(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err, ok := failed.Load().(error); ok {
		return err
	}
	fmt.Printf("%.0f\n", float64(count.Load())/time.Since(start).Seconds())
	return nil
}

// connectOnce ends with a reset, so that no port waits for a late segment.
func connectOnce(address string) error {
	conn, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	return conn.Close()
}
