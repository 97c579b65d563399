// Package dptype chooses the type of an Open vSwitch datapath (column datapath_type of table Bridge,
// ovs-vswitchd.conf.db(5)).
package dptype

import (
	"errors"
	"fmt"
	"log/slog"
	"syscall"

	"github.com/vishvananda/netlink"
)

// The types of a datapath, and Auto, which leaves the choice to Choose.
const (
	Auto   = "auto"
	System = "system" // the kernel's, of its module openvswitch
	Netdev = "netdev" // ovs-vswitchd's own, in userspace
)

// Choose returns the type to use for wanted: for Auto, System if the kernel has the module openvswitch and Netdev
// otherwise. The query loads the module. The choice and its reason are logged.
func Choose(wanted string, log *slog.Logger) (string, error) {
	return choose(wanted, log, func() error {
		_, err := netlink.GenlFamilyGet("ovs_datapath")
		return err
	})
}

func choose(wanted string, log *slog.Logger, probe func() error) (string, error) {
	switch wanted {
	case System, Netdev:
		return wanted, nil
	case Auto:
	default:
		return "", fmt.Errorf("datapath type %q: use %s, %s or %s", wanted, Auto, System, Netdev)
	}
	switch err := probe(); {
	case err == nil:
		log.Info("using the kernel's datapath", "type", System)
		return System, nil
	case errors.Is(err, syscall.ENOENT):
		log.Warn("using the userspace datapath, which is slower: the kernel has no module openvswitch", "type", Netdev)
		return Netdev, nil
	default:
		return "", fmt.Errorf("query the kernel's module openvswitch: %w; or choose with --datapath-type", err)
	}
}
