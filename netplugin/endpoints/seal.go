package endpoints

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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
	out := map[string]string{}
	for _, s := range seals {
		out[filepath.Join(s.family, "conf", ifName, s.name)] = strconv.Itoa(s.value)
	}
	return out
}

var seals = []struct {
	family, name string
	value        int
	sent         rtnl.Sysctl
}{
	{"ipv6", "disable_ipv6", 1, rtnl.DisableIPv6},
	{"ipv4", "rp_filter", 1, rtnl.RPFilter},
	{"ipv4", "arp_ignore", 8, rtnl.ARPIgnore}, // reply for no address
	{"ipv4", "forwarding", 0, rtnl.Forwarding},
}

// isSealed reports whether a link is known to have the sysctls.
func isSealed(link *rtnl.Link) bool {
	for _, s := range seals {
		if value, ok := link.Sysctl(s.sent); !ok || value != s.value {
			return false
		}
	}
	return true
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

// LinkRepair is a change of a pod's link that SealLinks undid.
type LinkRepair struct {
	Name         string
	Index        int
	HadAddresses bool // of another program; else its sysctls or its state differed
}

// SealLinks sets pods' links up, removes their addresses on the node, and keeps the node's stack from taking their
// packets, where another program has changed that. It returns the links that it changed. A link that was created after
// links were read is sealed already.
func (m *Manager) SealLinks(links *rtnl.Links) (repaired []LinkRepair, err error) {
	var errs []error
	for _, e := range m.List() {
		link := links.Named(e.HostIfName)
		if link == nil {
			continue
		}
		index := link.Attrs().Index
		addresses := links.Addresses[index]
		removed, removeErr := removeAddresses(link, addresses)
		wrote, sealErr := restoreLink(link)
		if removed || wrote {
			// the kernel adds link-local addresses, where a sysctl has it do so
			added := slices.ContainsFunc(addresses, func(a netlink.Addr) bool { return !a.IP.IsLinkLocalUnicast() })
			repaired = append(repaired, LinkRepair{e.HostIfName, index, added})
		}
		if err := errors.Join(removeErr, sealErr); err != nil && !linkGone(&e) {
			errs = append(errs, fmt.Errorf("pod %s: %w", e.ID(), err))
		}
	}
	return repaired, errors.Join(errs...)
}

// restoreLink seals a link and sets it up, and reports whether it was otherwise.
func restoreLink(link *rtnl.Link) (wrote bool, err error) {
	sealed, sealErr := false, error(nil)
	if !isSealed(link) {
		sealed, sealErr = sealLink(link.Attrs().Name)
	}
	up, upErr := setUp(link)
	return sealed || up, errors.Join(sealErr, upErr)
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
