package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// Arrival is what came in along one way.
type Arrival struct {
	Packets uint64    `json:"packets"`
	First   time.Time `json:"first,omitzero"`
	Last    time.Time `json:"last,omitzero"`
}

// way is what a client sends to a server. The port is 0 of ICMP, of which echo requests alone count.
type way struct {
	proto string
	from  netip.Addr
	to    netip.AddrPort
}

// arrivalsCommand counts what comes in along ways until SIGTERM. Unlike an answer, a packet is counted though nobody answers it, or the answer is denied.
func arrivalsCommand(args []string) error {
	flags := flag.NewFlagSet("arrivals", flag.ContinueOnError)
	device := flags.String("dev", "eth0", "link to listen on")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ways, err := parseWays(flags.Args())
	if err != nil {
		return err
	}
	signals, stop := untilSignal(), make(chan struct{})
	go func() { <-signals; close(stop) }()
	seen, err := arrivals(*device, ways, func() { fmt.Println("listening") }, stop)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(seen)
}

func parseWays(args []string) (ways []way, err error) {
	if len(args) == 0 || len(args)%3 != 0 {
		return nil, fmt.Errorf("arrivals wants triples of PROTO, SOURCE and ADDRESS:\n%s", usage)
	}
	for ; len(args) > 0; args = args[3:] {
		w := way{proto: args[0]}
		if w.from, err = netip.ParseAddr(args[1]); err != nil {
			return nil, err
		}
		if w.proto == "icmp" {
			to, err := netip.ParseAddr(args[2])
			if err != nil {
				return nil, err
			}
			w.to = netip.AddrPortFrom(to, 0)
		} else if w.to, err = netip.ParseAddrPort(args[2]); err != nil {
			return nil, err
		}
		ways = append(ways, w)
	}
	return ways, nil
}

// arrivals has a socket for each way, to which the kernel gives nothing else: beside thousands of packets a second that are not asked for it costs
// next to nothing. ready is called when all listen.
func arrivals(device string, ways []way, ready func(), stop <-chan struct{}) ([]Arrival, error) {
	seen, failures := make([]Arrival, len(ways)), make([]error, len(ways))
	var all sync.WaitGroup
	for i, w := range ways {
		fd, err := w.socket(device)
		if err != nil {
			return nil, err
		}
		defer syscall.Close(fd)
		all.Go(func() { failures[i] = seen[i].count(fd, stop) })
	}
	ready()
	all.Wait()
	return seen, errors.Join(failures...)
}

// socket takes nothing before it has its filter, for it is of no protocol until it is bound.
func (w way) socket(device string) (int, error) {
	dev, err := net.InterfaceByName(device)
	if err != nil {
		return 0, err
	}
	filter, err := w.filter()
	if err != nil {
		return 0, err
	}
	fd, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW, 0)
	if err != nil {
		return 0, fmt.Errorf("packet socket: %w", err)
	}
	program := syscall.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := syscall.Syscall6(syscall.SYS_SETSOCKOPT, uintptr(fd), syscall.SOL_SOCKET, syscall.SO_ATTACH_FILTER, uintptr(unsafe.Pointer(&program)), unsafe.Sizeof(program), 0)
	if errno != 0 {
		return 0, fmt.Errorf("filter of a packet socket: %w", errno)
	}
	wait := syscall.NsecToTimeval((50 * time.Millisecond).Nanoseconds())
	if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &wait); err != nil {
		return 0, fmt.Errorf("time-out of a packet socket: %w", err)
	}
	return fd, syscall.Bind(fd, &syscall.SockaddrLinklayer{Protocol: allProtocols>>8 | allProtocols&0xff<<8, Ifindex: dev.Index})
}

func (a *Arrival) count(fd int, stop <-chan struct{}) error {
	return takeAll(fd, make([]byte, snapped), stop, func([]byte) {
		now := time.Now()
		if a.Packets++; a.Packets == 1 {
			a.First = now
		}
		a.Last = now
	})
}

// snapped is how much of a packet is taken: that there was one is enough.
const snapped = 64

// Instructions of the kernel's packet filter (linux/filter.h).
const (
	loadByte, loadHalf, loadWord = 0x30, 0x28, 0x20 // at an offset
	loadByteAfter, loadHalfAfter = 0x50, 0x48       // at an offset behind the IPv4 header
	headerLength                 = 0xb1             // of IPv4, from its first byte
	jumpEqual, give              = 0x15, 0x06
)

// check is one value that a packet must have for the filter to let it through.
type check struct {
	load   uint16
	offset uint32
	want   uint32
}

// filter takes what goes along the way: of packets in fragments the first, of IPv6 those without extension headers.
func (w way) filter() ([]syscall.SockFilter, error) {
	number, known := map[string]uint32{"tcp": 6, "udp": 17, "sctp": 132, "icmp": 1}[w.proto]
	from, to := w.from.Unmap(), w.to.Addr().Unmap()
	if !known || from.Is4() != to.Is4() {
		return nil, fmt.Errorf("%s from %v to %v is no way", w.proto, w.from, w.to)
	}
	if from.Is4() {
		last := check{loadHalfAfter, 14 + 2, uint32(w.to.Port())}
		if w.proto == "icmp" {
			last = check{loadByteAfter, 14, echoRequest4}
		}
		checks := append([]check{{loadHalf, 12, syscall.ETH_P_IP}, {loadByte, 23, number}}, addressChecks(26, from, to)...)
		return compiled(append(checks, last)), nil
	}
	last := check{loadHalf, 14 + 40 + 2, uint32(w.to.Port())}
	if w.proto == "icmp" {
		number, last = 58, check{loadByte, 14 + 40, echoRequest6}
	}
	checks := append([]check{{loadHalf, 12, syscall.ETH_P_IPV6}, {loadByte, 20, number}}, addressChecks(22, from, to)...)
	return compiled(append(checks, last)), nil
}

// addressChecks are of source and destination, which follow each other from an offset on.
func addressChecks(offset uint32, addrs ...netip.Addr) (list []check) {
	for _, a := range addrs {
		for bytes := a.AsSlice(); len(bytes) > 0; bytes = bytes[4:] {
			list = append(list, check{loadWord, offset, uint32(bytes[0])<<24 | uint32(bytes[1])<<16 | uint32(bytes[2])<<8 | uint32(bytes[3])})
			offset += 4
		}
	}
	return list
}

// compiled lets through what passes all checks.
func compiled(checks []check) (list []syscall.SockFilter) {
	list = []syscall.SockFilter{{Code: headerLength, K: 14}}
	for i, c := range checks {
		toDrop := uint8(2*(len(checks)-i-1) + 1)
		list = append(list, syscall.SockFilter{Code: c.load, K: c.offset}, syscall.SockFilter{Code: jumpEqual, Jf: toDrop, K: c.want})
	}
	return append(list, syscall.SockFilter{Code: give, K: snapped}, syscall.SockFilter{Code: give, K: 0})
}
