package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"time"
)

// Socket options of path MTU discovery (ip(7), ipv6(7)); package syscall lacks those of IPv6.
const (
	pmtuDo         = 2
	ipv6MTU        = 24
	ipv6DiscoverMe = 23
)

// sizeCommand sends UDP in IP packets of just this size that nobody may fragment.
func sizeCommand(args []string) error {
	flags := flag.NewFlagSet("size", flag.ContinueOnError)
	timeout := flags.Duration("timeout", time.Second, "how long an answer may take")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 2 {
		return fmt.Errorf("size wants ADDRESS and BYTES:\n%s", usage)
	}
	bytes, err := strconv.Atoi(flags.Arg(1))
	if err != nil {
		return fmt.Errorf("%q is no number of bytes", flags.Arg(1))
	}
	verdict, err := sized(flags.Arg(0), bytes, *timeout)
	if err == nil {
		fmt.Println(verdict)
	}
	return err
}

// sized is "open" if a packet of the size was answered, "large N" if it is larger than the way, of N bytes, takes, else "shut".
func sized(address string, bytes int, timeout time.Duration) (string, error) {
	conn, err := net.Dial("udp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	udp, _ := conn.(*net.UDPConn)
	headers, level, discover, known := 20+8, syscall.IPPROTO_IP, syscall.IP_MTU_DISCOVER, syscall.IP_MTU
	if remote, _ := conn.RemoteAddr().(*net.UDPAddr); remote.IP.To4() == nil {
		headers, level, discover, known = 40+8, syscall.IPPROTO_IPV6, ipv6DiscoverMe, ipv6MTU
	}
	if bytes < headers+questionSize {
		return "", fmt.Errorf("%d bytes do not hold the headers and a question", bytes)
	}
	raw, err := udp.SyscallConn()
	if err != nil {
		return "", err
	}
	if err := control(raw, func(fd int) error { return syscall.SetsockoptInt(fd, level, discover, pmtuDo) }); err != nil {
		return "", err
	}
	payload, buf := make([]byte, bytes-headers), make([]byte, 1<<16)
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); {
		if _, err := conn.Write(payload); errors.Is(err, syscall.EMSGSIZE) {
			var mtu int
			err := control(raw, func(fd int) (err error) { mtu, err = syscall.GetsockoptInt(fd, level, known); return err })
			return fmt.Sprintf("large %d", mtu), err
		} else if err != nil {
			return "", err
		}
		if err := conn.SetReadDeadline(time.Now().Add(timeout / 4)); err != nil {
			return "", err
		}
		if _, err := conn.Read(buf); err == nil {
			return "open", nil
		}
	}
	return "shut", nil
}

func control(raw syscall.RawConn, f func(fd int) error) error {
	var inner error
	err := raw.Control(func(fd uintptr) { inner = f(int(fd)) })
	return errors.Join(err, inner)
}
