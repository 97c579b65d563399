package native

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func (k *kernel) setMTU(ctx context.Context, s Step) error {
	if k.isSwitchs(ctx, s.name) {
		if err := k.ovs.request(ctx, s.name, s.number, ""); err != nil {
			return err
		}
		return awaitLink(ctx, s.name, func(l netlink.Link) bool { return l != nil && l.Attrs().MTU == s.number })
	}
	return k.changeLink(ctx, s.name, func(l netlink.Link) error { return netlink.LinkSetMTU(l, s.number) })
}

func (k *kernel) changeMAC(ctx context.Context, s Step) error {
	mac, err := net.ParseMAC(s.text)
	if err != nil {
		return err
	}
	if k.isSwitchs(ctx, s.name) {
		if err := k.ovs.request(ctx, s.name, 0, s.text); err != nil {
			return err
		}
		return awaitLink(ctx, s.name, func(l netlink.Link) bool { return l != nil && l.Attrs().HardwareAddr.String() == s.text })
	}
	return k.changeLink(ctx, s.name, func(l netlink.Link) error { return k.setMAC(l, mac) })
}

// changeLink changes a link, and one that is busy while it is down: some drivers take another MAC address or MTU only then.
func (k *kernel) changeLink(ctx context.Context, name string, change func(netlink.Link) error) error {
	err := withLink(name, change)
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	was, showErr := k.show(ctx, nil)
	if showErr != nil {
		return errors.Join(err, showErr)
	}
	down := was.upAmong(append([]string{name}, was.bondPorts(name)...))
	if len(down) == 0 {
		return err
	}
	for _, each := range down {
		if err = withLink(each, netlink.LinkSetDown); err != nil {
			break
		}
	}
	if err == nil {
		if err = withLink(name, change); errors.Is(err, unix.EBUSY) {
			err = fmt.Errorf("%w, also while %s is down", err, strings.Join(down, " and "))
		}
	}
	return errors.Join(err, k.upAgain(context.WithoutCancel(ctx), was, down))
}

// upAgain has what going down took along: VLANs upon it that were up, IPv6 addresses, routes.
func (k *kernel) upAgain(ctx context.Context, was *network, down []string) error {
	for _, name := range down {
		if err := withLink(name, netlink.LinkSetUp); err != nil {
			return err
		}
	}
	now, err := k.show(ctx, nil)
	if err != nil {
		return err
	}
	steps, stuck := wayBack(now, now.withWhatWas(was))
	for _, s := range steps {
		if err := k.do(ctx, s); err != nil {
			stuck = errors.Join(stuck, fmt.Errorf("%s: %w", s, err))
		}
	}
	return stuck
}

// withWhatWas is the network with all that links lose as they go down.
func (n *network) withWhatWas(was *network) *target {
	to := &target{network: *n.clone()}
	for name, before := range was.Links {
		if l := to.Links[name]; l != nil {
			l.Up, l.Addresses = before.Up, slices.Clone(before.Addresses)
		}
	}
	for _, r := range was.Routes {
		if !slices.ContainsFunc(to.Routes, func(o route) bool { return o.sameKey(&r) }) {
			to.Routes = append(to.Routes, r)
		}
	}
	return to
}

// takenDown are the links that go down with one that is busy while it is up, and come up again.
func (n *network) takenDown(name string) []string { return n.following(name, isVLAN) }

func isVLAN(kind string) bool { return kind == typeVLAN }

// following returns a link, a bond's ports, and the links of some types upon them, and upon these.
func (n *network) following(name string, of func(kind string) bool) (names []string) {
	for _, each := range append([]string{name}, n.bondPorts(name)...) {
		names = append(names, each)
		for _, above := range n.above(each) {
			if of(n.Links[above].Type) {
				names = append(names, n.following(above, of)...)
			}
		}
	}
	return names
}

// bondPorts are those of a bond, whose MAC address is theirs too.
func (n *network) bondPorts(name string) []string {
	if l := n.Links[name]; l == nil || l.Type != typeBond {
		return nil
	}
	return n.ports(name)
}

func (n *network) upAmong(names []string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return n.Links[name] == nil || !n.Links[name].Up })
}
