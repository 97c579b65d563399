package endpoints

import (
	"errors"
	"fmt"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/vishvananda/netlink"
)

// FitMTU gives pods that were attached with another MTU the present one. What a pod has set itself stays while its end
// at the node is as it should be. A link that links lacks is read again. FitMTU waits for no request: pods with one
// under way are left to the next call.
func (m *Manager) FitMTU(links *rtnl.Links) error {
	network, _ := m.current()
	var errs []error
	for _, e := range m.List() {
		if link := links.Named(e.HostIfName); link != nil && link.Attrs().MTU == network.MTU {
			continue
		}
		if !e.Realised || linkGone(&e) { // what is gone is Check's and Sweep's
			continue
		}
		if err := m.fitOne(&e, network.MTU); err != nil {
			errs = append(errs, fmt.Errorf("set the MTU of %s to %d: %w", e.ID(), network.MTU, err))
		}
	}
	return errors.Join(errs...)
}

// fitOne changes the pod's end first: the MTU of the node's end shows whether both are done.
func (m *Manager) fitOne(e *Endpoint, mtu int) error {
	unlock, _ := m.locks.lockOr(e.ContainerID)
	if unlock == nil {
		return nil
	}
	defer unlock()
	host, err := netlink.LinkByName(e.HostIfName)
	if err != nil || host.Attrs().MTU == mtu {
		return nil // the pod ended meanwhile, or was attached later
	}
	pod, err := ns.GetNS(e.NetNS)
	if err != nil {
		return err
	}
	defer pod.Close()
	if err := pod.Do(func(ns.NetNS) error {
		link, err := netlink.LinkByName(e.IfName)
		if err != nil || link.Attrs().ParentIndex != host.Attrs().Index {
			return nil //nolint:nilerr // what has the name there is the pod's own make
		}
		return netlink.LinkSetMTU(link, mtu)
	}); err != nil {
		return err
	}
	return netlink.LinkSetMTU(host, mtu)
}
