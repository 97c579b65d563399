package clean

import (
	"context"
	"errors"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// taps returns the macvtap devices in the node's network namespace. They go with the state directory, which has their
// records: without these no agent would remove them.
func taps(_ context.Context, cfg *Config) (out []thing, err error) {
	if !cfg.State || cfg.TapLinks == nil {
		return nil, nil
	}
	list, err := cfg.TapLinks()
	for _, l := range list {
		out = append(out, thing{"macvtap device " + l.Attrs().Name, func(context.Context) error {
			if err := netlink.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
				return err
			}
			return nil
		}})
	}
	return out, err
}
