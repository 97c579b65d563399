package hostnet

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/flowkeep/flowkeep/api/wellknown"
)

// message returns a netlink message with a header of its family and attributes.
func message(kind, flags uint16, port uint32, header []byte, attrs ...*nl.RtAttr) *syscall.NetlinkMessage {
	m := &syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: kind, Flags: flags, Pid: port}, Data: header}
	for _, a := range attrs {
		m.Data = append(m.Data, a.Serialize()...)
	}
	return m
}

// routeHeader returns the header of a message about a route.
func routeHeader(family, bits, table, protocol uint8) []byte {
	return []byte{family, bits, 0, 0, table, protocol, 0, 0, 0, 0, 0, 0}
}

func number(kind int, n uint32) *nl.RtAttr {
	return nl.NewRtAttr(kind, binary.NativeEndian.AppendUint32(nil, n))
}

func address(kind int, text string) *nl.RtAttr {
	return nl.NewRtAttr(kind, netip.MustParseAddr(text).AsSlice())
}

func TestChangedRoute(t *testing.T) {
	const ours, other = protocolFlowkeep, unix.RTPROT_STATIC
	const replace = unix.NLM_F_REPLACE
	dst, table := address(unix.RTA_DST, "10.244.2.0"), number(unix.RTA_TABLE, 26214)
	const inMain, inServices = "10.244.2.0/24 in table 254", "10.244.2.0/24 in table 26214"
	priority, kernels := number(unix.FRA_PRIORITY, 60), nl.NewRtAttr(unix.FRA_PROTOCOL, []byte{unix.RTPROT_KERNEL})
	hop := address(unix.NDA_DST, "169.254.102.1")
	local, v6 := address(unix.IFA_LOCAL, "10.244.1.1"), address(unix.IFA_ADDRESS, "fd00::1")
	rule, local0 := make([]byte, unix.SizeofRtMsg), make([]byte, unix.SizeofRtMsg)
	local0[4] = unix.RT_TABLE_LOCAL
	v4 := routeHeader(unix.AF_INET, 24, unix.RT_TABLE_MAIN, ours)
	static := routeHeader(unix.AF_INET, 24, unix.RT_TABLE_MAIN, other)
	anyV6 := routeHeader(unix.AF_INET6, 0, unix.RT_TABLE_MAIN, ours)
	addr, neigh := make([]byte, unix.SizeofIfAddrmsg), make([]byte, unix.SizeofNdMsg)
	for name, c := range map[string]struct {
		m    *syscall.NetlinkMessage
		want Change // without an object: none
	}{
		"rule":             {message(unix.RTM_DELRULE, 0, 1, rule, priority, kernels), Change{"rule", "60", ""}},
		"rule of another":  {message(unix.RTM_DELRULE, 0, 1, rule, priority), Change{}},
		"another rule":     {message(unix.RTM_DELRULE, 0, 1, rule, number(unix.FRA_PRIORITY, 4711)), Change{}},
		"rule added":       {message(unix.RTM_NEWRULE, 0, 1, rule, priority, kernels), Change{}},
		"the first rule":   {message(unix.RTM_NEWRULE, 0, 1, local0), Change{"rule", "0", ""}},
		"a first rule":     {message(unix.RTM_NEWRULE, 0, 1, rule), Change{}},
		"route":            {message(unix.RTM_DELROUTE, 0, 1, v4, dst), Change{"route", inMain, ""}},
		"large table":      {message(unix.RTM_DELROUTE, 0, 1, v4, dst, table), Change{"route", inServices, ""}},
		"own new route":    {message(unix.RTM_NEWROUTE, replace, 1, v4, dst), Change{}},
		"another route":    {message(unix.RTM_DELROUTE, 0, 1, static, dst), Change{}},
		"route replaced":   {message(unix.RTM_NEWROUTE, replace, 1, static, dst), Change{"route", inMain, ""}},
		"route added":      {message(unix.RTM_NEWROUTE, unix.NLM_F_CREATE, 1, static, dst), Change{}},
		"default of IPv6":  {message(unix.RTM_DELROUTE, 0, 1, anyV6), Change{"route", "::/0 in table 254", ""}},
		"address":          {message(unix.RTM_DELADDR, 0, 1, addr, local), Change{"address", "10.244.1.1", ""}},
		"address of IPv6":  {message(unix.RTM_DELADDR, 0, 1, addr, v6), Change{"address", "fd00::1", ""}},
		"neighbour":        {message(unix.RTM_DELNEIGH, 0, 1, neigh, hop), Change{"neighbour", "169.254.102.1", ""}},
		"neighbour, no IP": {message(unix.RTM_DELNEIGH, 0, 1, neigh), Change{}},
		"link":             {message(unix.RTM_NEWLINK, 0, 1, make([]byte, unix.SizeofIfInfomsg)), Change{}},
		"short rule":       {message(unix.RTM_DELRULE, 0, 1, rule[:5]), Change{}},
		"short route":      {message(unix.RTM_DELROUTE, 0, 1, v4[:11]), Change{}},
		"short address":    {message(unix.RTM_DELADDR, 0, 1, addr[:3]), Change{}},
		"broken attribute": {message(unix.RTM_DELRULE, 0, 1, append(slices.Clone(rule), 200, 0, 6, 0)), Change{}},
	} {
		t.Run(name, func(t *testing.T) {
			c.m.Data = slices.Clip(c.m.Data)
			got, ok := changedRoute(&Watched{Priority: wellknown.RulePriority}, c.m)
			if want := c.want != (Change{}); ok != want || ok && got != c.want {
				t.Errorf("%+v, %v; want %+v, %v", got, ok, c.want, want)
			}
		})
	}
}

// TestTransaction: the objects of a transaction are those of its sender, and of no other.
func TestTransaction(t *testing.T) {
	text := func(kind int, s string) *nl.RtAttr { return nl.NewRtAttr(kind, nl.ZeroTerminated(s)) }
	id := nl.NewRtAttr(2, binary.BigEndian.AppendUint32(nil, 4711))
	table := func(port uint32, name string) *syscall.NetlinkMessage {
		header := []byte{unix.NFPROTO_INET, 0, 0, 0}
		return message(nftMessage(unix.NFT_MSG_DELTABLE), 0, port, header, text(attrTable, name))
	}
	rule := func(comment ...*nl.RtAttr) *syscall.NetlinkMessage {
		chain := []*nl.RtAttr{text(unix.NFTA_RULE_TABLE, "filter"), text(unix.NFTA_RULE_CHAIN, "FORWARD")}
		header := []byte{unix.NFPROTO_IPV6, 0, 0, 0}
		return message(nftMessage(unix.NFT_MSG_DELRULE), 0, 7, header, append(chain, comment...)...)
	}
	ours := rule(text(unix.NFTA_RULE_USERDATA, forwardMark))
	end := func(port uint32) *syscall.NetlinkMessage {
		return message(nftMessage(unix.NFT_MSG_NEWGEN), 0, port, []byte{0, 0, 0, 0}, id, text(3, "nft"))
	}
	for name, c := range map[string]struct {
		messages []*syscall.NetlinkMessage
		want     []string
	}{
		"tables": {
			[]*syscall.NetlinkMessage{table(7, TableName), table(7, TableName), ours, end(7)},
			[]string{TableName, "ip6 filter FORWARD"},
		},
		"another's rule":  {[]*syscall.NetlinkMessage{rule(), end(7)}, nil},
		"others' tables":  {[]*syscall.NetlinkMessage{table(7, "other"), end(7)}, nil},
		"the end is lost": {[]*syscall.NetlinkMessage{table(6, TableName), end(7)}, nil},
		"twice":           {[]*syscall.NetlinkMessage{table(7, TableName), end(7), end(7)}, nil},
		"no end":          {[]*syscall.NetlinkMessage{table(7, TableName)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var change transaction
			var got []string
			var by generation
			for _, m := range c.messages {
				got, by = change.add(m)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("objects %q, want %q", got, c.want)
			}
			if want := (generation{7, 4711, "nft"}); len(got) > 0 && by != want {
				t.Errorf("sender %+v, want %+v", by, want)
			}
		})
	}
}

// TestReports_ReplacedRoutes: no program is searched for that replaces a route which was never repaired.
func TestReports_ReplacedRoutes(t *testing.T) {
	header := routeHeader(unix.AF_INET, 24, unix.RT_TABLE_MAIN, unix.RTPROT_STATIC)
	m := message(unix.RTM_NEWROUTE, unix.NLM_F_REPLACE, 1, header, address(unix.RTA_DST, "10.244.2.0"))
	for _, known := range []bool{false, true} {
		p := &programs{proc: "/proc", table: bytes.NewReader(nil), lookups: budget{limit: 9, interval: time.Hour}}
		r := Reports{By: func(Change) {}, IsKnown: func(Change) bool { return known }}
		r.route(new(Watched), p, m)
		if searched := p.lookups.count > 0; searched != known {
			t.Errorf("known %v: searched %v", known, searched)
		}
	}
}
