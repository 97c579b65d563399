package nodestate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// groups of the kernel's news that may mean another state.
var groups = []uint{
	unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
	unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
}

// Follow signals on the channel when the kernel says that links, addresses, routes or rules of this network namespace changed, until ctx
// ends. What it misses, a poll finds. Changes of routes that node state does not have (KeepsRoute) are not signalled.
func Follow(ctx context.Context, moved chan<- struct{}, desired *Destinations, log *slog.Logger) error {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, groups...)
	if err != nil {
		return fmt.Errorf("follow the network's changes: %w", err)
	}
	defer s.Close()
	wake := unix.Timeval{Sec: 1} // to see that ctx has ended
	if err := s.SetReceiveTimeout(&wake); err != nil {
		return fmt.Errorf("follow the network's changes: %w", err)
	}
	for ctx.Err() == nil {
		messages, _, err := s.Receive()
		concerns := func(m syscall.NetlinkMessage) bool {
			isRoute := m.Header.Type == unix.RTM_NEWROUTE || m.Header.Type == unix.RTM_DELROUTE
			return !isRoute || KeepsRoute(m.Data, desired.get())
		}
		switch {
		case err == nil && !slices.ContainsFunc(messages, concerns):
		case err == nil, errors.Is(err, unix.ENOBUFS): // more news than the socket holds: news all the same
			signal(moved)
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		default:
			log.Warn("could not watch the network", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
	return nil
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
