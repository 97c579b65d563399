package hostnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// kernelHasIPv6 reports whether this machine's kernel was booted without ipv6.disable=1.
func kernelHasIPv6() bool {
	_, err := os.Stat("/proc/net/if_inet6")
	return err == nil
}

// A kernel without IPv6 (ipv6.disable=1) has no policy rules of the family: an IPv4 node is set up, and torn down. The
// kernel that scripts/kernel -no-ipv6 boots answers by itself; elsewhere the test does.
func TestSetup_KernelWithoutIPv6(t *testing.T) {
	if os.Getenv("FLOWKEEP_NO_IPV6") != "" && kernelHasIPv6() {
		t.Fatal("this kernel has IPv6")
	}
	h := host(t)
	cfg := nodeConfig()
	cfg.Self.PodCIDRs = prefixes("10.244.1.0/24")
	defer func(before func(int) ([]netlink.Rule, error)) { listRules = before }(listRules)
	list := listRules
	listRules = func(family int) ([]netlink.Rule, error) {
		if family == netlink.FAMILY_V6 && kernelHasIPv6() {
			return nil, unix.EAFNOSUPPORT
		}
		return list(family)
	}
	in(t, h, func() error { return Setup(cfg) })
	after := picture(t, h)
	holds(t, after, "route 10.244.2.0/24 via 192.0.2.12", "masquerade", "table inet flowkeep")
	in(t, h, func() error {
		if SysctlsDiffer(&Watched{}) {
			t.Error("sysctls differ after Setup")
		}
		return Setup(cfg)
	})
	if again := picture(t, h); again != after {
		t.Errorf("a second Setup makes of\n%s\nthis:\n%s", after, again)
	}
	in(t, h, func() error {
		if names, err := Remains(DefaultNumbers); err != nil || len(names) == 0 {
			t.Errorf("remains: %v (%v)", names, err)
		}
		if err := teardown(); err != nil {
			return err
		}
		names, err := Remains(DefaultNumbers)
		if len(names) > 0 {
			t.Errorf("after the teardown: %v", names)
		}
		return err
	})
	listRules = func(int) ([]netlink.Rule, error) { return nil, unix.EPERM }
	in(t, h, func() error {
		if err := Setup(cfg); !errors.Is(err, unix.EPERM) {
			t.Errorf("another error of the kernel: %v", err)
		}
		return nil
	})
}

// sysctl writes values, NAME=VALUE.
func sysctl(values ...string) error {
	for _, v := range values {
		name, value, _ := strings.Cut(v, "=")
		if err := os.WriteFile(sysctlPath(name), []byte(value), 0); err != nil {
			return err
		}
	}
	return nil
}

// advertise sends a router advertisement (RFC 4861, 4.2) from a link, in this network namespace.
func advertise(ctx context.Context, link, from string) error {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255)
		}), err)
	}}
	c, err := lc.ListenPacket(ctx, "ip6:ipv6-icmp", from+"%"+link)
	if err != nil {
		return err
	}
	defer c.Close()
	// type, code, checksum (the kernel's), hop limit, flags, lifetime of 30 minutes, reachable, retransmission
	_, err = c.WriteTo([]byte{134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}, &net.IPAddr{IP: net.ParseIP("ff02::1"), Zone: link})
	return err
}

// advertisedRoute returns the default route of a router advertisement, "" if there is none.
func advertisedRoute(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("ip", "-6", "route", "show", "default").Output()
	if err != nil {
		t.Error(err)
	}
	return strings.TrimSpace(string(out))
}

// takesAdvertisement sends router advertisements, as a router does, until the node has the default route. It reports
// whether the node took one.
func takesAdvertisement(t *testing.T, router string) bool {
	t.Helper()
	for range 600 {
		if err := advertise(t.Context(), "under-peer", router); err != nil {
			t.Fatal(err)
		}
		if advertisedRoute(t) != "" {
			return true
		}
		time.Sleep(50 * time.Millisecond)
	}
	return false
}

// Router advertisements are the node's business: an IPv4 node does not forward IPv6, and one with IPv6 pods keeps its
// default route, and takes the next advertisement.
func TestSetup_RouterAdvertisements(t *testing.T) {
	const router = "fe80::9999"
	for _, six := range []bool{false, true} {
		t.Run(fmt.Sprintf("six %v", six), func(t *testing.T) {
			h := host(t)
			cfg := nodeConfig()
			if !six {
				cfg.Self.PodCIDRs = prefixes("10.244.1.0/24")
			}
			in(t, h, func() error {
				err := sysctl("ipv6/conf/all/forwarding=0", "ipv6/conf/under/accept_ra=1", "ipv6/conf/under/accept_ra_from_local=1")
				if err != nil {
					return err
				}
				if out, err := exec.Command("ip", "address", "add", router+"/64", "dev", "under-peer", "nodad").CombinedOutput(); err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
				if !takesAdvertisement(t, router) {
					t.Fatal("the kernel takes no router advertisement: nothing is shown")
				}
				if err := Setup(cfg); err != nil {
					return err
				}
				if advertisedRoute(t) == "" {
					t.Error("the node's default route is gone")
				}
				forwards, err := os.ReadFile(sysctlPath(forwardingSix))
				if got := strings.TrimSpace(string(forwards)) == "1"; err != nil || got != six {
					t.Errorf("the node forwards IPv6: %v (%v)", got, err)
				}
				if SysctlsDiffer(&Watched{Six: six}) {
					t.Error("sysctls differ after Setup")
				}
				if out, err := exec.Command("ip", "-6", "route", "flush", "default").CombinedOutput(); err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
				if !takesAdvertisement(t, router) {
					t.Error("the next router advertisement is passed over")
				}
				return nil
			})
		})
	}
}
