package hostnet

import (
	"errors"
	"fmt"
	"log/slog"
	"syscall"

	"github.com/vishvananda/netlink"
)

// The kinds of datapath that Open vSwitch has, and how to leave the choice to Datapath.
const (
	DatapathAuto   = "auto"
	DatapathSystem = "system" // the kernel's, of its module openvswitch
	DatapathNetdev = "netdev" // ovs-vswitchd's own, in userspace
)

// Datapath is the kind of datapath to use where wanted is asked for: auto is the kernel's where the kernel has the module
// openvswitch, which is loaded by this question, and ovs-vswitchd's own elsewhere. The choice and its reason are logged.
func Datapath(wanted string, log *slog.Logger) (string, error) {
	return datapath(wanted, log, func() error {
		_, err := netlink.GenlFamilyGet("ovs_datapath")
		return err
	})
}

func datapath(wanted string, log *slog.Logger, probe func() error) (string, error) {
	switch wanted {
	case DatapathSystem, DatapathNetdev:
		return wanted, nil
	case DatapathAuto:
	default:
		return "", fmt.Errorf("datapath type %q: use %s, %s or %s", wanted, DatapathAuto, DatapathSystem, DatapathNetdev)
	}
	switch err := probe(); {
	case err == nil:
		log.Info("using the kernel's datapath", "type", DatapathSystem)
		return DatapathSystem, nil
	case errors.Is(err, syscall.ENOENT):
		log.Warn("using the userspace datapath, which is slower: the kernel has no module openvswitch", "type", DatapathNetdev)
		return DatapathNetdev, nil
	default:
		return "", fmt.Errorf("ask the kernel for its module openvswitch: %w (or choose with --datapath-type)", err)
	}
}
