package check

import "syscall"

// dontFragment makes a UDP socket send packets that must not be fragmented, whatever path MTU the kernel knows.
func dontFragment(network, _ string, c syscall.RawConn) error {
	level, option, value := syscall.IPPROTO_IP, syscall.IP_MTU_DISCOVER, syscall.IP_PMTUDISC_PROBE
	if network == "udp6" {
		level, option, value = syscall.IPPROTO_IPV6, syscall.IPV6_MTU_DISCOVER, syscall.IPV6_PMTUDISC_PROBE
	}
	var failure error
	err := c.Control(func(fd uintptr) { failure = syscall.SetsockoptInt(int(fd), level, option, value) })
	if err != nil {
		return err
	}
	return failure
}
