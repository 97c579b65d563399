package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"
)

// ICMP and ICMPv6 echo message types (RFC 792, RFC 4443).
const (
	echoRequest4, echoReply4 = 8, 0
	echoRequest6, echoReply6 = 128, 129
	icmpHeader               = 8
)

// icmpLink pings one address over a raw socket. The identifier tells its answers from those of other pings.
type icmpLink struct {
	*net.IPConn
	request, reply byte
	id             uint16
}

func dialICMP(address string, from net.IP) (link, error) {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return nil, fmt.Errorf("icmp wants an address without a port: %w", err)
	}
	network, request, reply := "ip4:icmp", byte(echoRequest4), byte(echoReply4)
	if ip.Is6() {
		network, request, reply = "ip6:ipv6-icmp", echoRequest6, echoReply6
	}
	conn, err := net.DialIP(network, source(from), &net.IPAddr{IP: ip.AsSlice()})
	if err != nil {
		return nil, err
	}
	return &icmpLink{IPConn: conn, request: request, reply: reply, id: uint16(os.Getpid()) ^ uint16(time.Now().UnixNano())}, nil
}

func source(from net.IP) *net.IPAddr {
	if from == nil {
		return nil
	}
	return &net.IPAddr{IP: from}
}

func (l *icmpLink) ask(n uint64) error {
	_, err := l.Write(echoMessage(l.request, l.id, n))
	return err
}

func (l *icmpLink) answer() (uint64, error) {
	buf := make([]byte, 1500)
	for {
		size, _, err := l.ReadFromIP(buf)
		if err != nil {
			return 0, err
		}
		n, err := parseEcho(buf[:size], l.reply, l.id)
		if err == nil {
			return n, nil
		}
	}
}

func echoMessage(kind byte, id uint16, n uint64) []byte {
	m := make([]byte, icmpHeader, icmpHeader+questionSize)
	m[0] = kind
	binary.BigEndian.PutUint16(m[4:], id)
	binary.BigEndian.PutUint16(m[6:], uint16(n))
	m = binary.BigEndian.AppendUint64(m, n)
	binary.BigEndian.PutUint16(m[2:], checksum(m)) // the kernel does it again for ICMPv6
	return m
}

var errNotOurs = errors.New("not an answer to this ping")

func parseEcho(m []byte, kind byte, id uint16) (uint64, error) {
	if len(m) < icmpHeader+questionSize || m[0] != kind || binary.BigEndian.Uint16(m[4:]) != id {
		return 0, errNotOurs
	}
	return binary.BigEndian.Uint64(m[icmpHeader:]), nil
}

// checksum is the Internet checksum (RFC 1071) of a message whose checksum field is zero.
func checksum(m []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(m); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(m[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
