package hostnet

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// sysctlInterval is the time between two reads of the sysctls that Setup sets.
	sysctlInterval = 500 * time.Millisecond
	// watchBuffer is the size of a netlink socket's receive buffer, in bytes.
	watchBuffer = 1 << 20
)

// routeGroups are the rtnetlink(7) groups with changes of what Setup writes.
var routeGroups = []uint{
	unix.RTNLGRP_LINK,
	unix.RTNLGRP_NEIGH,
	unix.RTNLGRP_IPV4_IFADDR,
	unix.RTNLGRP_IPV6_IFADDR,
	unix.RTNLGRP_IPV4_ROUTE,
	unix.RTNLGRP_IPV6_ROUTE,
	unix.RTNLGRP_IPV4_RULE,
	unix.RTNLGRP_IPV6_RULE,
	unix.RTNLGRP_IPV4_NETCONF,
	unix.RTNLGRP_IPV6_NETCONF,
}

// Watched is what decides whether a change concerns Setup.
type Watched struct {
	Table     int          // of Services
	Priority  int          // of the first policy rule
	Six       bool         // the node has IPv6 podCIDRs
	Strict    bool         // as Config.Strict
	Addresses []netip.Addr // the node's own, which decide about routes to other nodes
}

func (w *Watched) tables() []int { return Numbers{Table: w.Table}.tables() }

// Reports has the functions that Watch calls, from several goroutines.
type Reports struct {
	// Changed is called after each change that may concern what Setup writes, Setup's own writes among them.
	Changed func()
	// By is called for changes by other programs where the program is known; those of policy rules, routes, addresses
	// and neighbours before Changed. May be nil.
	By func(Change)
	// IsKnown reports whether a thing was repaired before. Routing daemons replace routes all the time: of a replaced
	// route that was not, no program is searched for. May be nil if By is.
	IsKnown func(Change) bool
	// Root is the node's root directory, where its /proc is.
	Root string
}

// Watch reports changes of this network namespace until ctx ends, or until it fails to receive messages. It marks kept
// before, where nftables changed or the node's own packets lost a rule or a route. It calls watched from several
// goroutines. Sysctls are read twice a second.
func Watch(ctx context.Context, watched func() Watched, kept *Kept, reports Reports) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() { kept.unwatched.Store(err != nil) }()
	routes, err := subscribe(unix.NETLINK_ROUTE, routeGroups...)
	if err != nil {
		return err
	}
	defer routes.Close()
	filters, err := subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return err
	}
	defer filters.Close()
	links, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open a netlink socket: %w", err)
	}
	defer links.Close()
	var senders *programs
	if reports.By != nil {
		senders = openPrograms(reports.Root)
		defer senders.close()
	}
	filtersChanged := func() {
		kept.touch()
		reports.Changed()
	}
	if kept.unwatched.Load() {
		kept.ownLost.Store(true) // meanwhile
	}
	filtersChanged() // between the last Setup and the subscription
	var all sync.WaitGroup
	concernsRoutes := func(m *syscall.NetlinkMessage) bool {
		w := watched()
		isConcerned := concernsRoutes(links, w, m)
		if isConcerned {
			reports.route(&w, senders, m)
		}
		if isOwnLost(&w, m) {
			kept.ownLost.Store(true)
		}
		return isConcerned
	}
	var change transaction
	concernsNftables := func(m *syscall.NetlinkMessage) bool {
		reports.tables(&change, senders, m)
		return concernsNftables(m)
	}
	routesLost := func() {
		kept.ownLost.Store(true) // a message about it may be among those that were lost
		reports.Changed()
	}
	failed := make(chan error, 2)
	watch := func(s *nl.NetlinkSocket, concerns messageFilter, changed, lost func()) {
		all.Go(func() {
			failed <- receive(ctx, s, concerns, changed, lost)
			cancel() // the other one too
		})
	}
	watch(routes, concernsRoutes, reports.Changed, routesLost)
	watch(filters, concernsNftables, filtersChanged, filtersChanged)
	pollSysctls(ctx, watched, reports.Changed) // on this goroutine, whose thread may be in another network namespace
	all.Wait()
	return cmp.Or(<-failed, <-failed)
}

// route reports the program that sent the request behind an rtnetlink message. It looks at once: the program may end.
func (r *Reports) route(w *Watched, senders *programs, m *syscall.NetlinkMessage) {
	if r.By == nil {
		return
	}
	if c, ok := changedRoute(w, m); ok && (m.Header.Type != unix.RTM_NEWROUTE || r.IsKnown(c)) {
		r.report(c.Object, c.Name, senders.ofPort(m.Header.Pid))
	}
}

// tables reports the program behind a transaction of nftables, of which m is the next message.
func (r *Reports) tables(t *transaction, senders *programs, m *syscall.NetlinkMessage) {
	names, by := t.add(m)
	if r.By == nil || len(names) == 0 || ownNft.mayHave(by.port, time.Now()) {
		return
	}
	program := senders.ofThread(by.thread, by.name)
	for _, name := range names {
		r.report(ObjectNftables, name, program)
	}
}

func (r *Reports) report(object, name, program string) {
	if program != "" {
		r.By(Change{Object: object, Name: name, Program: program})
	}
}

// WatchTable calls changed once, and after each change of the nftables tables of a name, until ctx ends, or until it
// fails to receive messages.
func WatchTable(ctx context.Context, name string, changed func()) error {
	filters, err := subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return err
	}
	defer filters.Close()
	changed() // between the last comparison and the subscription
	concerns := func(m *syscall.NetlinkMessage) bool {
		attrs, known := nftablesAttrs(m)
		return !known || nameOf(attrs[attrTable]) == name
	}
	return receive(ctx, filters, concerns, changed, changed)
}

// subscribeTo is nl.Subscribe but in tests.
var subscribeTo = nl.Subscribe

func subscribe(family int, groups ...uint) (*nl.NetlinkSocket, error) {
	s, err := subscribeTo(family, groups...)
	if err != nil {
		return nil, fmt.Errorf("subscribe to changes of the host's network: %w", err)
	}
	wake := unix.Timeval{Sec: 1} // to see that the context has ended
	_ = s.SetReceiveBufferSize(watchBuffer, true)
	if err := s.SetReceiveTimeout(&wake); err != nil {
		s.Close()
		return nil, fmt.Errorf("subscribe to changes of the host's network: %w", err)
	}
	return s, nil
}

// messageFilter reports whether a netlink message concerns Setup.
type messageFilter func(*syscall.NetlinkMessage) bool

// receive calls changed for messages that concern Setup, and lost after messages were lost, until ctx ends. Where
// messages cannot be received it calls lost and returns the error.
func receive(ctx context.Context, s *nl.NetlinkSocket, concerns messageFilter, changed, lost func()) error {
	for ctx.Err() == nil {
		messages, _, err := s.Receive()
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOBUFS):
			lost()
			continue
		case err != nil:
			lost()
			return fmt.Errorf("receive changes of the host's network: %w", err)
		}
		isConcerned := false
		for i := range messages {
			isConcerned = concerns(&messages[i]) || isConcerned // each: it may keep what it reads
		}
		if isConcerned {
			changed()
		}
	}
	return nil
}

// pollSysctls reads sysctls: the kernel sends no message for most of them.
func pollSysctls(ctx context.Context, watched func() Watched, changed func()) {
	tick := time.NewTicker(sysctlInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if now := watched(); SysctlsDiffer(&now) {
				changed()
			}
		case <-ctx.Done():
			return
		}
	}
}

// concernsRoutes reports whether an rtnetlink message may be about a thing that Setup writes. On a node with many
// routes and neighbours most messages are about others.
func concernsRoutes(links *netlink.Handle, watched Watched, m *syscall.NetlinkMessage) bool {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return concernsLink(m.Data)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return concernsAddress(links, watched.Addresses, m)
	case unix.RTM_DELNEIGH:
		return len(m.Data) >= unix.SizeofNdMsg && isOurLink(links, indexOf(m.Data))
	case unix.RTM_NEWNEIGH:
		return concernsNextHop(links, m.Data)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return concernsRoute(m, watched.tables()) || concernsPodsRoute(links, m)
	case unix.RTM_NEWNETCONF, unix.RTM_DELNETCONF:
		return concernsSysctl(links, watched.Strict, m.Data)
	default: // rules
		return true
	}
}

// concernsNextHop reports whether a message about a neighbour entry is about that of a next hop, which a program has
// changed. Those of pods change all the time, and decide nothing.
func concernsNextHop(links *netlink.Handle, data []byte) bool {
	if len(data) < unix.SizeofNdMsg {
		return false
	}
	attrs, err := nl.ParseRouteAttr(data[unix.SizeofNdMsg:])
	if err != nil {
		return true
	}
	return slices.ContainsFunc(attrs, func(attr syscall.NetlinkRouteAttr) bool {
		a, _ := netip.AddrFromSlice(attr.Value)
		return attr.Attr.Type == unix.NDA_DST && isNextHop(a) && isOurLink(links, indexOf(data))
	})
}

// concernsSysctl reports whether a message about sysctls is about one of Flowkeep's ports, or about all interfaces; or
// about the first strict link of a node.
func concernsSysctl(links *netlink.Handle, strict bool, data []byte) bool {
	c, err := parseNetconf(data)
	switch {
	case err != nil:
		return true
	case c.index == allLinks || isOurLink(links, c.index):
		return true
	case isPodsLink(links, c.index):
		return c.count == 1 // the message about a new link has all sysctls
	}
	return !strict && c.filter == strictFilter
}

// netconf is what a message about sysctls of a link has (rtnetlink(7), RTM_NEWNETCONF).
type netconf struct {
	index  int // of the link, or allLinks
	filter int // rp_filter, 0 where the message has none
	count  int // of the sysctls
}

// allLinks is the index in messages about the values for all links.
const allLinks = -1

// parseNetconf parses a message about sysctls (linux/netconf.h).
func parseNetconf(data []byte) (c netconf, err error) {
	const header, attrIndex, attrFilter = 4, 1, 3 // struct netconfmsg, NETCONFA_IFINDEX, NETCONFA_RP_FILTER
	if len(data) < header {
		return c, unix.EINVAL
	}
	attrs, err := nl.ParseRouteAttr(data[header:])
	if err != nil {
		return c, err
	}
	values := map[uint16]int{}
	for _, a := range attrs {
		if len(a.Value) >= 4 {
			values[a.Attr.Type] = int(int32(binary.NativeEndian.Uint32(a.Value)))
		}
	}
	index, ok := values[attrIndex]
	if !ok {
		return c, unix.EINVAL
	}
	return netconf{index: index, filter: values[attrFilter], count: len(attrs) - 1}, nil
}

// concernsLink reports whether a message is about one of Flowkeep's ports, about a pod's link that is down, or about
// another link that has gone up: the kernel removed the routes over that one, and sent no message for those of IPv4.
func concernsLink(data []byte) bool {
	if len(data) < unix.SizeofIfInfomsg {
		return false
	}
	up := binary.NativeEndian.Uint32(data[8:])&unix.IFF_UP != 0
	upChanged := binary.NativeEndian.Uint32(data[12:])&unix.IFF_UP != 0
	attrs, err := nl.ParseRouteAttr(data[unix.SizeofIfInfomsg:])
	if err != nil {
		return true
	}
	for _, a := range attrs {
		if a.Attr.Type == unix.IFLA_IFNAME {
			name := nl.BytesToString(a.Value)
			if strings.HasPrefix(name, PodPrefix) {
				return !up
			}
			return slices.Contains(Devices, name) || up && upChanged
		}
	}
	return false
}

// concernsRoute reports whether a message is about a route of Flowkeep, about one of its tables, or about a route that
// replaced another one, for which there is no message of its own.
func concernsRoute(m *syscall.NetlinkMessage, tables []int) bool {
	if len(m.Data) < unix.SizeofRtMsg {
		return false
	}
	short, protocol := int(m.Data[4]), m.Data[5]
	if protocol == protocolFlowkeep || slices.Contains(tables, short) || m.Header.Flags&unix.NLM_F_REPLACE != 0 {
		return true
	}
	return short == unix.RT_TABLE_COMPAT && slices.Contains(tables, tableOf(m))
}

// tableOf returns the table of a route whose number does not fit in the header, or 0.
func tableOf(m *syscall.NetlinkMessage) int {
	attrs, err := nl.ParseRouteAttr(m.Data[unix.SizeofRtMsg:])
	if err != nil {
		return 0
	}
	for _, a := range attrs {
		if a.Attr.Type == unix.RTA_TABLE && len(a.Value) >= 4 {
			return int(binary.NativeEndian.Uint32(a.Value))
		}
	}
	return 0
}

// concernsPodsRoute reports whether a message is about a route that the kernel added for the node's end of a pod's
// link. Such a link has none. For IPv6 the route is the first sign: the address follows after duplicate address
// detection (RFC 4862).
func concernsPodsRoute(links *netlink.Handle, m *syscall.NetlinkMessage) bool {
	isNew := m.Header.Type == unix.RTM_NEWROUTE
	if !isNew || len(m.Data) < unix.SizeofRtMsg || m.Data[5] != unix.RTPROT_KERNEL {
		return false
	}
	attrs, err := nl.ParseRouteAttr(m.Data[unix.SizeofRtMsg:])
	if err != nil {
		return true
	}
	for _, a := range attrs {
		if a.Attr.Type == unix.RTA_OIF && len(a.Value) >= 4 {
			return isPodsLink(links, int(binary.NativeEndian.Uint32(a.Value)))
		}
	}
	return false
}

// isOurLink reports whether an interface index is one of Flowkeep's ports, or of a link that is gone.
func isOurLink(links *netlink.Handle, index int) bool {
	link, err := links.LinkByIndex(index)
	return err != nil || slices.Contains(Devices, link.Attrs().Name)
}

// indexOf returns the interface index of a message about an address or a neighbour.
func indexOf(data []byte) int { return int(binary.NativeEndian.Uint32(data[4:])) }

// concernsAddress reports whether a message is about an address of one of Flowkeep's ports, about a new one of the
// node's end of a pod's link, which has none, or about one of the node's own.
func concernsAddress(links *netlink.Handle, own []netip.Addr, m *syscall.NetlinkMessage) bool {
	if len(m.Data) < unix.SizeofIfAddrmsg {
		return false
	}
	index, isNew := indexOf(m.Data), m.Header.Type == unix.RTM_NEWADDR
	return isOurLink(links, index) || isNew && isPodsLink(links, index) || hasAddress(m.Data, own)
}

// hasAddress reports whether a message about an address is about one of some.
func hasAddress(data []byte, some []netip.Addr) bool {
	attrs, err := nl.ParseRouteAttr(data[unix.SizeofIfAddrmsg:])
	return err != nil || slices.ContainsFunc(attrs, func(a syscall.NetlinkRouteAttr) bool {
		address, _ := netip.AddrFromSlice(a.Value)
		isAddress := a.Attr.Type == unix.IFA_ADDRESS || a.Attr.Type == unix.IFA_LOCAL
		return isAddress && slices.ContainsFunc(some, func(own netip.Addr) bool { return own.WithZone("") == address })
	})
}

func isPodsLink(links *netlink.Handle, index int) bool {
	link, err := links.LinkByIndex(index)
	return err == nil && strings.HasPrefix(link.Attrs().Name, PodPrefix)
}
