package main

import (
	"flag"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// clientsAtOnce bounds the sockets that are open together.
const clientsAtOnce = 200

// clientsCommand asks once over UDP from each of many addresses and prints how many were answered. The addresses must be
// local: ip route add local PREFIX dev lo.
func clientsCommand(args []string) error {
	flags := flag.NewFlagSet("clients", flag.ContinueOnError)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 3 {
		return fmt.Errorf("clients wants FIRST, COUNT and ADDRESS:\n%s", usage)
	}
	first, err := netip.ParseAddr(flags.Arg(0))
	if err != nil {
		return err
	}
	count, err := strconv.Atoi(flags.Arg(1))
	if err != nil {
		return err
	}
	var answered atomic.Int64
	var wg sync.WaitGroup
	slots := make(chan struct{}, clientsAtOnce)
	for range count {
		source := net.IP(first.AsSlice())
		first = first.Next()
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if attempt("udp", flags.Arg(2), source, 2*time.Second) == nil {
				answered.Add(1)
			}
		})
	}
	wg.Wait()
	fmt.Println(answered.Load())
	return nil
}
