package endpoints

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// makeLink makes the pair: one end, in the pod, with addresses and routes; the other, here, up and without any.
func makeLink(e *Endpoint, cfg *Network) error {
	if err := removeLink(e); err != nil {
		return err
	}
	pod, err := ns.GetNS(e.NetNS)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNetNS, err)
	}
	defer pod.Close()
	if err := notOurs(pod); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = e.HostIfName, cfg.MTU
	veth := &netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         e.IfName,
		PeerHardwareAddr: e.MAC[:],
		PeerNamespace:    netlink.NsFd(int(pod.Fd())),
	}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("create the pod's link %s: %w", e.HostIfName, err)
	}
	host, err := netlink.LinkByName(e.HostIfName)
	if err != nil {
		return err
	}
	if _, err := sealLink(e.HostIfName); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(host); err != nil {
		return err
	}
	return pod.Do(func(ns.NetNS) error { return setUpPod(e, cfg) })
}

// notOurs refuses the node's own network namespace: the pod's routes would replace the node's.
func notOurs(pod ns.NetNS) error {
	own, err := ns.GetCurrentNS()
	if err != nil {
		return fmt.Errorf("open the node's network namespace: %w", err)
	}
	defer own.Close()
	var a, b unix.Stat_t
	if err := errors.Join(unix.Fstat(int(own.Fd()), &a), unix.Fstat(int(pod.Fd()), &b)); err != nil {
		return fmt.Errorf("compare network namespaces: %w", err)
	}
	if a.Dev == b.Dev && a.Ino == b.Ino {
		return fmt.Errorf("%w: %s is the node's own", ErrNetNS, pod.Path())
	}
	return nil
}

// ErrNetNS is returned for a network namespace that no pod can be wired in.
var ErrNetNS = errors.New("not a pod's network namespace")

// setUpPod runs in the pod's network namespace.
func setUpPod(e *Endpoint, cfg *Network) error {
	for name, value := range map[string]string{"accept_dad": "0", "accept_ra": "0", "disable_ipv6": "0"} {
		_ = os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf", e.IfName, name), []byte(value), 0)
	}
	link, err := netlink.LinkByName(e.IfName)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetMTU(link, cfg.MTU); err != nil {
		return fmt.Errorf("set the MTU to %d: %w", cfg.MTU, err)
	}
	if err := checksumOffload(e.IfName, cfg.ChecksumOffload); err != nil {
		return fmt.Errorf("set checksum offload to %v: %w", cfg.ChecksumOffload, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	for _, a := range e.Addresses {
		if err := addAddress(link, a, cfg.gatewayFor(a), cfg.GatewayMAC); err != nil {
			return err
		}
	}
	return nil
}

// addAddress gives the link an address of its own and the way to everything else, by the gateway.
func addAddress(link netlink.Link, a, gateway netip.Addr, mac MAC) error {
	full := hostNet(a)
	err := netlink.AddrAdd(link, &netlink.Addr{IPNet: full, Flags: ifaNoDAD})
	if err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("add address %s: %w", a, err)
	}
	if !gateway.IsValid() {
		return fmt.Errorf("no gateway for %s: the node has no pod CIDR of its family", a)
	}
	gw := net.IP(gateway.AsSlice())
	neigh := &netlink.Neigh{
		LinkIndex:    link.Attrs().Index,
		Family:       familyOf(a),
		State:        netlink.NUD_PERMANENT,
		IP:           gw,
		HardwareAddr: mac[:],
	}
	if err := netlink.NeighSet(neigh); err != nil {
		return fmt.Errorf("set the gateway's neighbour entry: %w", err)
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: hostNet(gateway)}
	if err := netlink.RouteReplace(route); err != nil {
		return fmt.Errorf("add the route to the gateway: %w", err)
	}
	all := &net.IPNet{IP: make(net.IP, a.BitLen()/8), Mask: net.CIDRMask(0, a.BitLen())}
	if err := netlink.RouteReplace(&netlink.Route{
		LinkIndex: link.Attrs().Index,
		Dst:       all,
		Gw:        gw,
		Flags:     int(netlink.FLAG_ONLINK),
	}); err != nil {
		return fmt.Errorf("add the default route: %w", err)
	}
	return nil
}

func familyOf(a netip.Addr) int {
	if a.Is6() {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

const ifaNoDAD = 0x02 // IFA_F_NODAD, linux/if_addr.h

func hostNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: net.IP(a.AsSlice()), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// checksumOffload sets the checksum offload of TCP and UDP, and of SCTP if the device supports it.
func checksumOffload(ifName string, on bool) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer e.Close()
	known, err := e.Features(ifName)
	if err != nil {
		return err
	}
	want := map[string]bool{"tx-checksum-ip-generic": on}
	if _, ok := known[featureSCTP]; ok {
		want[featureSCTP] = on
	}
	return e.Change(ifName, want)
}

const featureSCTP = "tx-checksum-sctp"

// removeLink deletes the endpoint's veth pair, also from the pod's namespace. A missing link is no error.
func removeLink(e *Endpoint) error {
	link, err := netlink.LinkByName(e.HostIfName)
	if err != nil {
		var gone netlink.LinkNotFoundError
		if errors.As(err, &gone) {
			return nil
		}
		return err
	}
	return deleteLink(link)
}

// deleteLink deletes a link. It is no error if the kernel removes the link meanwhile, as it does for the veth pairs of
// a namespace that has ended.
func deleteLink(link netlink.Link) error {
	if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete the link %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// linkGone reports whether the node's end of a pod's link is missing. That alone does not prove that the pod has ended:
// see hasEnded.
func linkGone(e *Endpoint) bool {
	_, err := netlink.LinkByName(e.HostIfName)
	var gone netlink.LinkNotFoundError
	return errors.As(err, &gone)
}

// checkLink returns an error if the pod's end differs from what Add created. Additions by the pod are accepted.
func checkLink(e *Endpoint, cfg *Network) error {
	host, err := netlink.LinkByName(e.HostIfName)
	if err != nil {
		return fmt.Errorf("the node's end %s: %w", e.HostIfName, err)
	}
	pod, err := ns.GetNS(e.NetNS)
	if err != nil {
		return fmt.Errorf("open the pod's network namespace: %w", err)
	}
	defer pod.Close()
	return pod.Do(func(ns.NetNS) error {
		link, err := netlink.LinkByName(e.IfName)
		isEnd := err == nil && link.Attrs().ParentIndex == host.Attrs().Index
		if !isEnd && hasBridgedEnd(host) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s in the pod: %w", e.IfName, err)
		}
		if !isEnd {
			return fmt.Errorf("%s in the pod is not the other end of %s", e.IfName, e.HostIfName)
		}
		if have := link.Attrs().HardwareAddr; !bytes.Equal(have, e.MAC[:]) {
			return fmt.Errorf("%s has the MAC %s, not %s", e.IfName, have, e.MAC)
		}
		return checkAddresses(link, e, cfg)
	})
}

// hasBridgedEnd reports whether the other end of the node's link is a port of a bridge in this network namespace. By
// KubeVirt's bridge binding it is, under another name and MAC; the guest has the pod's MAC and addresses, and the link
// with the pod's name is a dummy.
func hasBridgedEnd(host netlink.Link) bool {
	links, err := rtnl.Dump(netlink.LinkList)
	return err == nil && slices.ContainsFunc(links, func(l netlink.Link) bool {
		a := l.Attrs()
		isEnd := l.Type() == "veth" && a.Index == host.Attrs().ParentIndex && a.ParentIndex == host.Attrs().Index
		return isEnd && a.MasterIndex != 0
	})
}

// checkAddresses looks for the addresses, and for the way out of each.
func checkAddresses(link netlink.Link, e *Endpoint, cfg *Network) error {
	have, err := rtnl.Dump(func() ([]netlink.Addr, error) {
		return netlink.AddrList(link, netlink.FAMILY_ALL)
	})
	if err != nil {
		return err
	}
	for _, want := range e.Addresses {
		if !hasAddress(have, want) {
			return fmt.Errorf("%s has lost its address %s", e.IfName, want)
		}
		gateway := cfg.gatewayFor(want)
		if !gateway.IsValid() {
			continue // the node's pod CIDRs are not known yet
		}
		routes, err := rtnl.Dump(func() ([]netlink.Route, error) {
			return netlink.RouteList(link, familyOf(want))
		})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(routes,
			func(r netlink.Route) bool { return r.Gw.Equal(net.IP(gateway.AsSlice())) && isDefault(r.Dst) }) {
			return fmt.Errorf("%s has lost its default route by %s", e.IfName, gateway)
		}
	}
	return nil
}

func isDefault(dst *net.IPNet) bool {
	if dst == nil {
		return true
	}
	ones, _ := dst.Mask.Size()
	return ones == 0
}

func hasAddress(have []netlink.Addr, want netip.Addr) bool {
	for _, a := range have {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && ip.Unmap() == want {
			return true
		}
	}
	return false
}
