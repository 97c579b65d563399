package hostnet

import (
	"testing"

	"github.com/vishvananda/netlink"
)

// A switch that is busy for a moment loses nothing of what waits in a tap; other links keep the queue they have.
func TestATapHoldsWhatComesAtOnce(t *testing.T) {
	h := host(t)
	in(t, h, func() error {
		gw, err := netlink.LinkByName(Gateway)
		if err != nil {
			return err
		}
		if err := netlink.LinkDel(gw); err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = Gateway
		if err := netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TAP}); err != nil {
			return err
		}
		wire, err := netlink.LinkByName(Wire)
		if err != nil {
			return err
		}
		if err := Setup(nodeConfig()); err != nil {
			return err
		}
		for name, want := range map[string]int{Gateway: tapQueue, Wire: wire.Attrs().TxQLen} {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if got := link.Attrs().TxQLen; got != want {
				t.Errorf("%s holds %d packets, want %d", name, got, want)
			}
		}
		return nil
	})
}
