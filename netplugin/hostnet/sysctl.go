package hostnet

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// HasIPv6 reports whether pods of a node have IPv6 addresses.
func HasIPv6(n policy.NodeInfo) bool {
	return slices.ContainsFunc(n.PodCIDRs, func(p netip.Prefix) bool { return p.Addr().Is6() })
}

// HasIPv4 reports whether pods of a node have IPv4 addresses.
func HasIPv4(n policy.NodeInfo) bool {
	return slices.ContainsFunc(n.PodCIDRs, func(p netip.Prefix) bool { return p.Addr().Is4() })
}

// liberal has the kernel's conntrack take TCP segments as they come: that of the bridge sees only one direction of a
// connection to a Service that the node's own programs answer, and would find a stream invalid after 64 KiB.
const liberal = "netfilter/nf_conntrack_tcp_be_liberal"

// forwardingSix has the kernel forward IPv6, and pass over router advertisements (see keepAdvertised).
const forwardingSix = "ipv6/conf/all/forwarding"

// wantedSysctls returns the values below /proc/sys/net, by path. Six is for a node with IPv6 podCIDRs: of another one
// the node's own IPv6 stays as it is. Strict is for a node with a strict link.
func wantedSysctls(six, strict bool) map[string]string {
	set := map[string]string{
		"ipv4/ip_forward":              "1",
		"ipv4/conf/all/rp_filter":      "0",
		"ipv4/conf/all/send_redirects": "0",
		liberal:                        "1",
	}
	if six {
		set[forwardingSix] = "1"
	}
	if strict {
		set[sourceMark] = "1"
	}
	for _, name := range Devices {
		set["ipv4/conf/"+name+"/rp_filter"] = "0"
		set["ipv4/conf/"+name+"/send_redirects"] = "0"
		set["ipv4/conf/"+name+"/forwarding"] = "1"
		set["ipv6/conf/"+name+"/accept_dad"] = "0"
		set["ipv6/conf/"+name+"/accept_ra"] = "0"
		set["ipv6/conf/"+name+"/disable_ipv6"] = "0"
	}
	return set
}

// SysctlsDiffer reports whether a sysctl that Setup sets has another value. The kernel sends no message about most of
// them.
func SysctlsDiffer(w *Watched) bool {
	for name, value := range wantedSysctls(w.Six, w.Strict) {
		if have, err := os.ReadFile(sysctlPath(name)); err == nil && strings.TrimSpace(string(have)) != value {
			return true
		}
	}
	return false
}

func sysctlPath(name string) string { return filepath.Join("/proc/sys/net", name) }

func sysctls(cfg *Config) error {
	for name, value := range wantedSysctls(HasIPv6(cfg.Self), cfg.Strict) {
		have, err := os.ReadFile(sysctlPath(name))
		if err == nil && strings.TrimSpace(string(have)) == value {
			continue
		}
		if errors.Is(err, os.ErrNotExist) && (name == liberal || strings.HasPrefix(name, "ipv6")) {
			continue // a node without IPv6, or without the kernel's conntrack
		}
		if cfg.waits("sysctl", name) {
			cfg.Postponed = cfg.Postponed || HasIPv6(cfg.Self) && strings.HasSuffix(name, "/disable_ipv6")
			continue
		}
		if err := os.WriteFile(sysctlPath(name), []byte(value), 0); err != nil {
			return fmt.Errorf("set sysctl %s to %s: %w", name, value, err)
		}
		cfg.changed("sysctl", name)
	}
	return nil
}

// keepAdvertised sets accept_ra=2 on links with a route by router advertisement, before the kernel forwards IPv6: at
// that moment the kernel removes such routes of links with accept_ra=1, and accepts no more.
func keepAdvertised(cfg *Config) error {
	if !HasIPv6(cfg.Self) {
		return nil
	}
	routes, err := filteredRoutes(netlink.FAMILY_V6,
		&netlink.Route{Protocol: unix.RTPROT_RA}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return fmt.Errorf("list routes of router advertisements: %w", err)
	}
	for i := range routes {
		link, err := netlink.LinkByIndex(routes[i].LinkIndex)
		if err != nil {
			continue // it is gone meanwhile
		}
		name := "ipv6/conf/" + link.Attrs().Name + "/accept_ra"
		have, err := os.ReadFile(sysctlPath(name))
		if err != nil || strings.TrimSpace(string(have)) != "1" {
			continue
		}
		if err := os.WriteFile(sysctlPath(name), []byte("2"), 0); err != nil {
			return fmt.Errorf("set sysctl %s to 2: %w", name, err)
		}
		cfg.changed("sysctl", name)
	}
	return nil
}
