package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"
)

const (
	genevePort  = 6081 // RFC 8926, 3.3
	ethernet    = 14
	udpHeader   = 8
	geneveBytes = 8
)

// seen is what capture has counted.
type seen struct {
	Geneve int    `json:"geneve"` // UDP to port 6081
	Bare   int    `json:"bare"`   // with an address of the networks, not in a tunnel
	First  string `json:"first"`  // of the bare ones
	Large  int    `json:"large"`  // bytes of the largest Geneve packet
}

// captureCommand counts what passes an interface, in both directions; it prints "ready" when it hears.
func captureCommand(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("capture wants INTERFACE and CIDRs:\n%s", usage)
	}
	var networks []netip.Prefix
	for _, text := range args[1:] {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return err
		}
		networks = append(networks, p)
	}
	link, err := net.InterfaceByName(args[0])
	if err != nil {
		return err
	}
	fd, err := packetSocket(link.Index)
	if err != nil {
		return fmt.Errorf("capture on %s: %w", args[0], err)
	}
	defer syscall.Close(fd)
	stop := untilSignal()
	fmt.Println("ready")
	var s seen
	for buf := make([]byte, 1<<16); ; {
		select {
		case <-stop:
			return json.NewEncoder(os.Stdout).Encode(s)
		default:
		}
		n, _, err := syscall.Recvfrom(fd, buf, 0)
		if err == nil {
			s.count(buf[:n], networks)
		} else if !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// packetSocket hears everything of an interface; reading gives up after a while, so that signals are seen.
func packetSocket(index int) (int, error) {
	all := int(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, syscall.ETH_P_ALL)))
	fd, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW, all)
	if err != nil {
		return 0, err
	}
	wait := syscall.Timeval{Usec: 50_000}
	err = errors.Join(syscall.Bind(fd, &syscall.SockaddrLinklayer{Protocol: uint16(all), Ifindex: index}),
		syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &wait))
	if err != nil {
		return 0, errors.Join(err, syscall.Close(fd))
	}
	return fd, nil
}

func (s *seen) count(frame []byte, networks []netip.Prefix) {
	src, dst, proto, payload, ok := ipPacket(frame)
	if !ok {
		return
	}
	if proto == syscall.IPPROTO_UDP && len(payload) >= udpHeader && binary.BigEndian.Uint16(payload[2:]) == genevePort {
		s.Geneve++
		s.Large = max(s.Large, len(frame)-ethernet)
		return
	}
	if slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(src) || p.Contains(dst) }) {
		if s.Bare++; s.First == "" {
			s.First = fmt.Sprintf("%s → %s protocol %d", src, dst, proto)
		}
	}
}

// ipPacket reads a frame; of IPv6 extension headers nothing is known.
func ipPacket(frame []byte) (src, dst netip.Addr, proto byte, payload []byte, ok bool) {
	if len(frame) < ethernet+20 {
		return src, dst, 0, nil, false
	}
	ip := frame[ethernet:]
	switch etherType := binary.BigEndian.Uint16(frame[12:]); {
	case etherType == syscall.ETH_P_IP && len(ip) >= int(ip[0]&15)*4:
		return netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:])), ip[9], ip[ip[0]&15*4:], true
	case etherType == syscall.ETH_P_IPV6 && len(ip) >= 40:
		return netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:])), ip[6], ip[40:], true
	}
	return src, dst, 0, nil, false
}

// forgeCommand sends one UDP datagram with any source: bare, or in a Geneve tunnel of which both ends are said.
func forgeCommand(args []string) error {
	flags := flag.NewFlagSet("forge", flag.ContinueOnError)
	tunnel := flags.String("tunnel", "", "SOURCE,DESTINATION of the tunnel around it; empty: none")
	vni := flags.Uint("vni", 0xf1, "virtual network identifier of the tunnel")
	plain := flags.Bool("plain", false, "send the tunnel's packet by an ordinary UDP socket, with the address that it gets")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 2 {
		return fmt.Errorf("forge wants SOURCE and DESTINATION:PORT:\n%s", usage)
	}
	src, err := netip.ParseAddr(flags.Arg(0))
	if err != nil {
		return err
	}
	dst, err := netip.ParseAddrPort(flags.Arg(1))
	if err != nil {
		return err
	}
	packet := datagram(src, dst, 40000, binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixNano())))
	if *tunnel == "" {
		return sendRaw(packet, dst.Addr())
	}
	var ends [2]netip.Addr
	if from, to, ok := cut(*tunnel); ok {
		ends = [2]netip.Addr{from, to}
	} else {
		return fmt.Errorf("-tunnel %s: want SOURCE,DESTINATION", *tunnel)
	}
	inside := encapsulated(packet, uint32(*vni))
	if *plain {
		return sendPlain(inside, ends[1])
	}
	return sendRaw(datagram(ends[0], netip.AddrPortFrom(ends[1], genevePort), 50000, inside), ends[1])
}

func cut(text string) (from, to netip.Addr, ok bool) {
	for i := range text {
		if text[i] == ',' {
			from, err := netip.ParseAddr(text[:i])
			to, err2 := netip.ParseAddr(text[i+1:])
			return from, to, err == nil && err2 == nil
		}
	}
	return from, to, false
}

// encapsulated puts an IPv4 packet into an Ethernet frame and that behind a Geneve header (RFC 8926, 3.4).
func encapsulated(packet []byte, vni uint32) []byte {
	b := make([]byte, geneveBytes+ethernet, geneveBytes+ethernet+len(packet))
	binary.BigEndian.PutUint16(b[2:], 0x6558) // Ethernet
	binary.BigEndian.PutUint32(b[4:], vni<<8)
	frame := b[geneveBytes:]
	copy(frame, []byte{2, 0xf1, 0, 0, 0, 0x47, 2, 0xf1, 0, 0, 0, 0x47})
	binary.BigEndian.PutUint16(frame[12:], syscall.ETH_P_IP)
	return append(b, packet...)
}

// datagram is UDP in IPv4; a UDP checksum of 0 is none (RFC 768).
func datagram(src netip.Addr, dst netip.AddrPort, port uint16, payload []byte) []byte {
	b := make([]byte, 20+udpHeader, 20+udpHeader+len(payload))
	b[0], b[8], b[9] = 0x45, 64, syscall.IPPROTO_UDP
	binary.BigEndian.PutUint16(b[2:], uint16(cap(b)))
	from, to := src.As4(), dst.Addr().As4()
	copy(b[12:], from[:])
	copy(b[16:], to[:])
	binary.BigEndian.PutUint16(b[10:], checksum(b[:20]))
	binary.BigEndian.PutUint16(b[20:], port)
	binary.BigEndian.PutUint16(b[22:], dst.Port())
	binary.BigEndian.PutUint16(b[24:], uint16(udpHeader+len(payload)))
	return append(b, payload...)
}

// sendRaw sends a whole IPv4 packet, whatever source it names.
func sendRaw(packet []byte, to netip.Addr) error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_RAW, syscall.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	return syscall.Sendto(fd, packet, 0, &syscall.SockaddrInet4{Addr: to.As4()})
}

func sendPlain(payload []byte, to netip.Addr) error {
	conn, err := net.Dial("udp", netip.AddrPortFrom(to, genevePort).String())
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write(payload)
	return err
}
