package hostnet

import (
	"errors"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/internal/testkit/slow"
)

// reportLimit is the time within which Watch reports a change, at slowness 1.
const reportLimit = time.Second

// nftMessage returns the type of a netlink message of nftables.
func nftMessage(kind uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | kind }

// A watchCase is a change by another program. Watch reports it because of a message of the kernel that has one of the
// types, or because sysctls differ; with neither it must not report it.
type watchCase struct {
	command string
	types   []uint16
	sysctls bool
}

// Cases of nodes that are prepared.
const (
	strictNode     = "marks, with a strict link"
	forwardFlushed = "FORWARD flushed, which dropped"
)

// Commands of watchCases.
const (
	otherRoute   = "ip route replace 10.244.2.0/24 via 192.0.2.99 proto static"
	arrivalRoute = "ip -6 route add 2001:db8::/32 dev under table 26215"
	flushForward = "iptables-nft -F FORWARD"
	otherForward = "iptables-nft -N OTHER; iptables-nft -A FORWARD -j OTHER; iptables-nft -P FORWARD ACCEPT"
)

// watchedNode returns what Watch is to heed of nodeConfig's node.
func watchedNode(strict bool) func() Watched {
	w := Watched{Table: serviceTable, Six: true, Strict: strict, Addresses: nodeConfig().Self.Addresses}
	return func() Watched { return w }
}

// watchCases has each change that Setup repairs, and some of other parts of the network.
var watchCases = map[string]watchCase{
	"rule":                   {"ip rule del pref 60", []uint16{unix.RTM_DELRULE}, false},
	"IPv6 rule":              {"ip -6 rule del pref 100", []uint16{unix.RTM_DELRULE}, false},
	"route":                  {"ip route del 10.244.2.0/24", []uint16{unix.RTM_DELROUTE}, false},
	"route replaced":         {otherRoute, []uint16{unix.RTM_NEWROUTE}, false},
	"Services' table":        {"ip route flush table 26214", []uint16{unix.RTM_DELROUTE}, false},
	"address":                {"ip addr flush dev " + Gateway, []uint16{unix.RTM_DELADDR}, false},
	"link down":              {"ip link set " + Gateway + " down", []uint16{unix.RTM_NEWLINK}, false},
	"MTU":                    {"ip link set " + Wire + " mtu 1280", []uint16{unix.RTM_NEWLINK}, false},
	"neighbour":              {"ip neigh del 169.254.102.1 dev " + Gateway, []uint16{unix.RTM_DELNEIGH}, false},
	"a next hop's MAC":       {otherMAC + "169.254.102.4", []uint16{unix.RTM_NEWNEIGH}, false},
	"another neighbour":      {otherMAC + "10.244.1.5", nil, false},
	"own packets' table":     {"ip -6 route flush table 26216", []uint16{unix.RTM_DELROUTE}, false},
	"translated table":       {"ip route flush table 26217", []uint16{unix.RTM_DELROUTE}, false},
	"flush":                  {"nft flush ruleset", []uint16{nftMessage(unix.NFT_MSG_DELTABLE)}, false},
	"nftables rule":          {"nft flush chain inet flowkeep raw", []uint16{nftMessage(unix.NFT_MSG_DELRULE)}, false},
	"forwarding":             {"echo 0 >/proc/sys/net/ipv4/conf/" + Wire + "/forwarding", []uint16{unix.RTM_NEWNETCONF}, true},
	"sysctl":                 {"echo 1 >/proc/sys/net/ipv6/conf/" + Gateway + "/accept_ra", nil, true},
	"FORWARD drops":          {"iptables-nft -P FORWARD DROP", []uint16{nftMessage(unix.NFT_MSG_NEWCHAIN)}, false},
	forwardFlushed:           {flushForward, []uint16{nftMessage(unix.NFT_MSG_DELRULE)}, false},
	"FORWARD accepts":        {otherForward, nil, false},
	"another chain":          {"iptables-nft -N OTHER; iptables-nft -A OTHER -j ACCEPT", nil, false},
	"a pod's link, filter":   {"echo 0 >/proc/sys/net/ipv4/conf/fkp1/rp_filter", []uint16{unix.RTM_NEWNETCONF}, false},
	"a pod's link, IPv6":     {"echo 0 >/proc/sys/net/ipv6/conf/fkp1/disable_ipv6", []uint16{unix.RTM_NEWROUTE}, false},
	"a pod's link, down":     {"ip link set fkp1 down", []uint16{unix.RTM_NEWLINK}, false},
	"another link's address": {"ip addr add 192.0.2.77/24 dev under", nil, false},
	"another route":          {"ip route add 198.51.100.0/24 dev under", nil, false},
	"another nftables table": {"nft add table inet other", nil, false},
	"the node's address":     {"ip addr flush dev under", []uint16{unix.RTM_DELADDR}, false},
	"uplink down and up":     {"ip link set under down; ip link set under up", []uint16{unix.RTM_NEWLINK}, false},
	"another link":           {"ip link add other type bridge", nil, false},
	"a strict link":          {"echo 1 >/proc/sys/net/ipv4/conf/under/rp_filter", []uint16{unix.RTM_NEWNETCONF}, false},
	"a loose link":           {"echo 2 >/proc/sys/net/ipv4/conf/under/rp_filter", nil, false},
	strictNode:               {"echo 0 >/proc/sys/net/ipv4/conf/all/src_valid_mark", nil, true},
	"another table's route":  {arrivalRoute, []uint16{unix.RTM_NEWROUTE}, false},
}

// otherMAC is a command that makes a neighbour entry for the address behind it.
const otherMAC = "ip neigh replace lladdr 02:f1:00:00:00:55 dev fk-gw nud permanent to "

// TestWatch_ReportsChanges makes each change on a node of its own. All nodes are made before the first change: for
// seconds the kernel sends messages about links that were made.
func TestWatch_ReportsChanges(t *testing.T) {
	if sysctlInterval > reportLimit/2 { // the promise of a second, without the speed of this machine
		t.Errorf("sysctls are read every %s", sysctlInterval)
	}
	nodes := map[string]*watchedHost{}
	for name := range watchCases {
		nodes[name] = newWatchedHost(t, name)
	}
	awaitQuiet(t, nodes, 3*time.Second)
	for name, n := range nodes {
		t.Run(name, func(t *testing.T) {
			c := watchCases[name]
			for len(n.changed) > 0 { // late messages about links
				t.Logf("reported at %v before the change", <-n.changed)
			}
			n.kept.invalid.Store(false)
			c.expect(t, n.Namespace, n.watched, n.changed)
			if ofNftables := slices.ContainsFunc(c.types, isNftables); ofNftables != n.kept.invalid.Load() {
				t.Errorf("the nftables tables are compared whatever their generation: %v", !ofNftables)
			}
		})
	}
}

// A watchedHost is a node on which Watch runs.
type watchedHost struct {
	*netns.Namespace
	watched func() Watched
	kept    *Kept
	changed chan time.Time // of the reports
}

// newWatchedHost returns the node for a watchCase.
func newWatchedHost(t *testing.T, name string) *watchedHost {
	t.Helper()
	n := &watchedHost{
		Namespace: host(t),
		watched:   watchedNode(name == strictNode),
		kept:      new(Kept),
		changed:   make(chan time.Time, 100),
	}
	cfg := nodeConfig()
	cfg.Strict = n.watched().Strict
	in(t, n.Namespace, func() error {
		if name == forwardFlushed {
			shell(t, "iptables-nft -P FORWARD DROP")
		}
		shell(t, `ip link add fkp1 type veth peer name podend; echo 1 >/proc/sys/net/ipv6/conf/fkp1/disable_ipv6
			echo 3 >/proc/sys/net/ipv6/conf/fkp1/dad_transmits
			echo 1 >/proc/sys/net/ipv4/conf/fkp1/rp_filter; ip link set fkp1 up; ip link set podend up`)
		return Setup(cfg)
	})
	watch(t, n.Namespace, n.watched, n.kept, func() {
		select {
		case n.changed <- time.Now():
		default:
		}
	})
	return n
}

// watch runs Watch in a network namespace until the test ends. It returns when that has subscribed.
func watch(t *testing.T, h *netns.Namespace, watched func() Watched, kept *Kept, changed func()) {
	t.Helper()
	subscribed, ended := make(chan struct{}), make(chan error, 1)
	var once sync.Once
	reports := Reports{Changed: func() {
		changed()
		once.Do(func() { close(subscribed) })
	}}
	go h.Do(func() { ended <- Watch(t.Context(), watched, kept, reports) })
	t.Cleanup(func() { // the context has ended
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-subscribed:
	case <-time.After(time.Minute):
		t.Fatal("Watch does not subscribe")
	}
}

// awaitQuiet waits until no node has reported anything for a while, and removes the reports before.
func awaitQuiet(t *testing.T, nodes map[string]*watchedHost, quiet time.Duration) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for since := time.Now(); time.Since(since) < quiet; time.Sleep(10 * time.Millisecond) {
		for name, n := range nodes {
			for len(n.changed) > 0 {
				if since = time.Now(); since.After(deadline) {
					t.Fatalf("%s: reports without end", name)
				}
				<-n.changed
			}
		}
	}
}

func isNftables(messageType uint16) bool { return messageType>>8 == unix.NFNL_SUBSYS_NFTABLES }

// expect runs the command, and compares what Watch reports with what the change is to cause.
func (c *watchCase) expect(t *testing.T, h *netns.Namespace, watched func() Watched, changed <-chan time.Time) {
	t.Helper()
	messages := listen(t, h, watched)
	timers := slow.WatchTimers()
	in(t, h, func() error { shell(t, c.command); return nil })
	made := time.Now()
	if len(c.types) == 0 && !c.sysctls {
		select {
		case <-changed:
			t.Error("reported, though nothing of Flowkeep's changed")
		case <-time.After(2 * sysctlInterval / 3):
		}
		timers.Stop()
		return
	}
	var at time.Time
	select {
	case at = <-changed:
	case <-time.After(time.Minute):
		t.Error("not reported")
	}
	if took, limit := at.Sub(made), slow.Stretch(reportLimit)+timers.Stop(); took > limit {
		t.Errorf("LATE reported after %v, limit %v", took, limit)
	}
	c.expectCause(t, h, watched, messages)
}

// expectCause fails the test unless the change itself is a reason for a report: Watch may have reported another one.
func (c *watchCase) expectCause(t *testing.T, h *netns.Namespace, watched func() Watched, messages func() []uint16) {
	t.Helper()
	in(t, h, func() error {
		if now := watched(); c.sysctls && !SysctlsDiffer(&now) {
			t.Error("the sysctls do not differ")
		}
		return nil
	})
	got := messages()
	for _, want := range c.types {
		if !slices.Contains(got, want) {
			t.Errorf("no message of type %d concerns Setup, only %d", want, got)
		}
	}
}

// listen subscribes to the messages that Watch subscribes to. Messages takes those that the kernel has sent until then,
// and returns the types of those that concern Setup.
func listen(t *testing.T, h *netns.Namespace, watched func() Watched) (messages func() []uint16) {
	t.Helper()
	var routes, filters *nl.NetlinkSocket
	var links *netlink.Handle
	in(t, h, func() (err error) {
		if routes, err = subscribe(unix.NETLINK_ROUTE, routeGroups...); err != nil {
			return err
		}
		if filters, err = subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES); err != nil {
			return err
		}
		links, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	return func() []uint16 {
		defer routes.Close()
		defer filters.Close()
		defer links.Close()
		concerns := func(m *syscall.NetlinkMessage) bool { return concernsRoutes(links, watched(), m) }
		return append(typesOf(t, routes, concerns), typesOf(t, filters, concernsNftables)...)
	}
}

// typesOf empties a socket, and returns the types of the messages that a filter lets pass.
func typesOf(t *testing.T, s *nl.NetlinkSocket, concerns messageFilter) (types []uint16) {
	t.Helper()
	if err := s.SetReceiveTimeout(&unix.Timeval{Usec: 1000}); err != nil {
		t.Fatal(err)
	}
	for {
		messages, _, err := s.Receive()
		if errors.Is(err, unix.EAGAIN) {
			return types
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := range messages {
			if concerns(&messages[i]) {
				types = append(types, messages[i].Header.Type)
			}
		}
	}
}
