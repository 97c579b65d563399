package endpoints

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// sealed returns the sysctls by which the node's stack takes nothing from its end of a pod's link, by path below
// /proc/sys/net. On the userspace datapath the link is an ordinary device of the node. Reverse path filtering refuses
// every IPv4 source on a link that has neither an address nor a route (RFC 3704; the kernel's ip-sysctl, rp_filter).
// hostnet's nftables rules drop the same packets: either layer suffices while the other is missing.
func sealed(ifName string) map[string]string {
	return map[string]string{
		"ipv6/conf/" + ifName + "/disable_ipv6": "1",
		"ipv4/conf/" + ifName + "/rp_filter":    "1",
		"ipv4/conf/" + ifName + "/arp_ignore":   "8", // reply for no address
		"ipv4/conf/" + ifName + "/forwarding":   "0",
	}
}

// sealLink sets the sysctls that differ, and reports whether one did.
func sealLink(ifName string) (wrote bool, err error) {
	for name, value := range sealed(ifName) {
		path := filepath.Join("/proc/sys/net", name)
		have, err := os.ReadFile(path)
		if err == nil && strings.TrimSpace(string(have)) == value {
			continue
		}
		if errors.Is(err, os.ErrNotExist) && strings.HasPrefix(name, "ipv6") {
			continue // a node without IPv6
		}
		if err := os.WriteFile(path, []byte(value), 0); err != nil {
			return wrote, fmt.Errorf("set sysctl %s to %s: %w", name, value, err)
		}
		wrote = true
	}
	return wrote, nil
}

// setUp sets a link up, and reports whether it was down.
func setUp(link netlink.Link) (wrote bool, err error) {
	if link.Attrs().Flags&net.FlagUp != 0 {
		return false, nil
	}
	return true, netlink.LinkSetUp(link)
}

// SealLinks sets pods' links up, removes their addresses on the node, and keeps the node's stack from taking their
// packets, where another program has changed that. It returns the names of links that it changed.
func (m *Manager) SealLinks() (changed []string, err error) {
	var errs []error
	addresses, err := addressesByLink()
	if err != nil {
		errs = append(errs, err)
	}
	for _, e := range m.List() {
		if linkGone(&e) {
			continue
		}
		wrote, err := restoreLink(e.HostIfName, addresses)
		if wrote {
			changed = append(changed, e.HostIfName)
		}
		if err != nil && !linkGone(&e) {
			errs = append(errs, fmt.Errorf("pod %s: %w", e.ID(), err))
		}
	}
	return changed, errors.Join(errs...)
}

// restoreLink seals a link and sets it up, and reports whether it was otherwise.
func restoreLink(name string, addresses map[int][]netlink.Addr) (wrote bool, err error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return false, err
	}
	removed, removeErr := removeAddresses(link, addresses[link.Attrs().Index])
	sealed, sealErr := sealLink(name)
	up, upErr := setUp(link)
	return removed || sealed || up, errors.Join(removeErr, sealErr, upErr)
}

// addressesByLink returns the addresses of this network namespace by interface index.
func addressesByLink() (map[int][]netlink.Addr, error) {
	list, err := rtnl.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	out := map[int][]netlink.Addr{}
	for _, a := range list {
		out[a.LinkIndex] = append(out[a.LinkIndex], a)
	}
	return out, nil
}

// removeAddresses removes addresses of a pod's link: reverse path filtering would accept sources of their subnets
// (RFC 3704, 2.2). The kernel removes the subnets' routes with them.
func removeAddresses(link netlink.Link, list []netlink.Addr) (wrote bool, err error) {
	for i := range list {
		err := netlink.AddrDel(link, &list[i])
		if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) { // it is gone meanwhile
			return wrote, fmt.Errorf("remove address %s from %s: %w", list[i].IPNet, link.Attrs().Name, err)
		}
		wrote = true
	}
	return wrote, nil
}
