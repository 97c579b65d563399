// Package links reads the links of this network namespace as far as macvtap needs them, and reports changes.
package links

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/flowkeep/flowkeep/macvtap"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A burst of changes is read once: after quiet, or after patience at the latest.
const (
	quiet    = 100 * time.Millisecond
	patience = time.Second
	// resync is how often links are read without a message of the kernel's.
	resync = 30 * time.Second
)

// Follow calls handle with all links, sorted by name, at the start and when a link in the list changes, until ctx ends.
// Each change reads the full list, so an overflow of the netlink socket loses no change. Calls of handle do not
// overlap.
func Follow(ctx context.Context, log *slog.Logger, handle func([]macvtap.Link)) error {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return fmt.Errorf("follow the changes of links: %w", err)
	}
	wake := unix.Timeval{Sec: 1} // to see that ctx has ended
	if err := s.SetReceiveTimeout(&wake); err != nil {
		s.Close()
		return fmt.Errorf("follow the changes of links: %w", err)
	}
	moved, ended := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(ended)
		defer s.Close()
		receive(ctx, s, moved, log)
	}()
	defer func() { <-ended }()
	var last []macvtap.Link
	for first := true; ; first = false {
		now, err := Read()
		switch {
		case err != nil:
			log.Warn("could not list links; retrying", "err", err)
		case first || !slices.Equal(last, now):
			last = now
			handle(slices.Clone(now))
		}
		if !wait(ctx, moved) {
			return nil
		}
	}
}

// receive signals messages of the kernel's.
func receive(ctx context.Context, s *nl.NetlinkSocket, moved chan<- struct{}, log *slog.Logger) {
	for ctx.Err() == nil {
		_, _, err := s.Receive()
		switch {
		case err == nil, errors.Is(err, unix.ENOBUFS):
			select {
			case moved <- struct{}{}:
			default:
			}
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		default:
			log.Warn("could not watch links", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}

// wait until links moved and are quiet again, or are due to be read anyway. False: ctx has ended.
func wait(ctx context.Context, moved <-chan struct{}) bool {
	due := time.NewTimer(resync)
	defer due.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-due.C:
		return true
	case <-moved:
	}
	end := time.NewTimer(patience)
	defer end.Stop()
	for {
		still := time.NewTimer(quiet)
		select {
		case <-moved:
			still.Stop()
			continue
		case <-still.C:
		case <-end.C:
			still.Stop()
		case <-ctx.Done():
			still.Stop()
		}
		return ctx.Err() == nil
	}
}

// Read lists the links of this network namespace, by name.
func Read() (list []macvtap.Link, err error) {
	found, err := rtnl.Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list the links: %w", err)
	}
	kinds := map[int]string{}
	told := false
	for _, l := range found {
		kinds[l.Attrs().Index] = kind(l)
		told = told || l.Attrs().ParentDev != ""
	}
	for _, l := range found {
		list = append(list, linkOf(l, kinds, told))
	}
	slices.SortFunc(list, func(a, b macvtap.Link) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// kind of rtnetlink; a device has none.
func kind(l netlink.Link) string {
	if _, ok := l.(*netlink.Device); ok {
		return ""
	}
	return l.Type()
}

// linkOf reads a link. Where the kernel reports links' hardware (since 5.14), a link without a report has none.
func linkOf(l netlink.Link, kinds map[int]string, told bool) macvtap.Link {
	a := l.Attrs()
	out := macvtap.Link{
		Name: a.Name, Index: a.Index, Kind: kinds[a.Index], Loopback: a.Flags&net.FlagLoopback != 0,
		Up:     a.RawFlags&unix.IFF_UP != 0 && a.RawFlags&unix.IFF_LOWER_UP != 0,
		Master: a.MasterIndex, MasterKind: kinds[a.MasterIndex], MAC: a.HardwareAddr.String(), MTU: a.MTU,
	}
	if out.Kind == "" && a.EncapType == "ether" && !out.Loopback {
		out.Physical = a.ParentDev != "" || !told && hasDevice("/sys/class/net", a.Name, a.Index)
	}
	return out
}

// hasDevice asks sysfs, if it is that of this network namespace. Where it isn't, nothing is known against it.
func hasDevice(sysfs, name string, index int) bool {
	text, err := os.ReadFile(filepath.Join(sysfs, name, "ifindex"))
	if err != nil || strings.TrimSpace(string(text)) != strconv.Itoa(index) {
		return true
	}
	_, err = os.Stat(filepath.Join(sysfs, name, "device"))
	return err == nil
}
