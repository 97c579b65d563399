package native

import (
	"fmt"
	"net/netip"
	"strings"
)

// verb is what a step does.
type verb int

const (
	createLink verb = iota + 1
	deleteLink
	attachPort // to Text
	detachPort // from Text
	setUp
	setDown
	setMTU // to Number
	setMAC // to Text
	setIPv6
	setAutoconf
	tuneLink // bridge, bond, ethernet, Open vSwitch's bridge: as Link is
	tunePort // of a bridge: as Link is
	setLLDP
	addAddress
	deleteAddress
	addRoute
	deleteRoute
	addRule
	deleteRule
	setResolver
)

// Step is one change, inert. Was is for people.
type Step struct {
	verb    verb
	name    string // the interface
	link    *link  // as it shall be
	text    string
	number  int
	on      bool
	address netip.Prefix
	route   *route
	rule    *rule
	dns     *resolver
	was     string
}

// String returns a text for users: "set mtu of eth1 to 1450 (was 1500)".
func (s Step) String() string {
	text := s.what()
	if s.was != "" {
		text += " (was " + s.was + ")"
	}
	return text
}

func (s Step) what() string {
	s.name, s.text = shown(s.name), shown(s.text)
	switch s.verb {
	case createLink:
		return fmt.Sprintf("create %s %s%s", s.link.Type, s.name, s.link.details())
	case deleteLink:
		return fmt.Sprintf("remove %s %s", s.link.Type, s.name)
	case attachPort:
		return fmt.Sprintf("attach %s to %s", s.name, s.text)
	case detachPort:
		return fmt.Sprintf("detach %s from %s", s.name, s.text)
	case setUp:
		return "set " + s.name + " up"
	case setDown:
		return "set " + s.name + " down"
	case setMTU:
		return fmt.Sprintf("set mtu of %s to %d", s.name, s.number)
	case setMAC:
		return fmt.Sprintf("set mac-address of %s to %s", s.name, s.text)
	case setIPv6:
		return onOff(s.on) + " ipv6 on " + s.name
	case setAutoconf:
		return onOff(s.on) + " ipv6 autoconf on " + s.name
	case tuneLink, tunePort:
		return fmt.Sprintf("set options of %s: %s", s.name, s.text)
	case setLLDP:
		return onOff(s.on) + " lldp on " + s.name
	case addAddress:
		return fmt.Sprintf("add address %s to %s", s.address, s.name)
	case deleteAddress:
		return fmt.Sprintf("remove address %s from %s", s.address, s.name)
	case addRoute:
		return "add route " + s.route.String()
	case deleteRoute:
		return "remove route " + s.route.String()
	case addRule:
		return "add rule " + s.rule.String()
	case deleteRule:
		return "remove rule " + s.rule.String()
	case setResolver:
		text := fmt.Sprintf("set DNS servers to %s, search to %s", list(s.dns.Servers), list(s.dns.Search))
		if len(s.dns.Options) > 0 || s.on {
			text += ", options to " + list(s.dns.Options)
		}
		return text
	}
	return "do nothing"
}

func onOff(on bool) string {
	if on {
		return "enable"
	}
	return "disable"
}

func list(items []string) string {
	if len(items) == 0 {
		return "none"
	}
	return strings.Join(items, " ")
}

// details of a link to be made.
func (l *link) details() string {
	switch {
	case l.VLAN != nil:
		return fmt.Sprintf(" (id %d on %s)", l.VLAN.ID, l.Base)
	case l.VXLAN != nil:
		return fmt.Sprintf(" (id %d)", l.VXLAN.ID)
	case l.Type == typeVeth:
		return " (peer " + l.Base + ")"
	case l.Bond != nil:
		return " (" + l.Bond.Mode + ")"
	case l.Type == typeVRF:
		return fmt.Sprintf(" (table %d)", l.VRFTable)
	case l.Type == typeOVSInterface:
		return " (on " + shown(l.Controller) + ")"
	case l.Base != "":
		return " (on " + l.Base + ")"
	}
	return ""
}

func (r *route) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s", r.Dst)
	if r.Type != "" {
		fmt.Fprintf(&b, " %s", r.Type)
	}
	if r.Via.IsValid() {
		fmt.Fprintf(&b, " via %s", r.Via)
	}
	if r.Link != "" {
		fmt.Fprintf(&b, " on %s", r.Link)
	}
	for _, h := range r.Hops {
		fmt.Fprintf(&b, " (%s on %s)", h.Via, h.Link)
	}
	if r.Metric != 0 {
		fmt.Fprintf(&b, " metric %d", r.Metric)
	}
	if r.Table != mainTable {
		fmt.Fprintf(&b, " table %d", r.Table)
	}
	return b.String()
}

func (r *rule) String() string {
	var b strings.Builder
	if r.Priority >= 0 {
		fmt.Fprintf(&b, "%d: ", r.Priority)
	}
	fmt.Fprintf(&b, "from %s to %s", prefixText(r.From), prefixText(r.To))
	if r.Iif != "" {
		fmt.Fprintf(&b, " iif %s", r.Iif)
	}
	if r.Mark != 0 || r.Mask != 0 {
		fmt.Fprintf(&b, " fwmark %#x/%#x", r.Mark, r.Mask)
	}
	if r.Action != "" {
		return b.String() + " " + r.Action
	}
	fmt.Fprintf(&b, " table %d", r.Table)
	if r.Suppress > 0 {
		fmt.Fprintf(&b, " suppress_prefixlength %d", r.Suppress-1)
	}
	return b.String()
}

func prefixText(p netip.Prefix) string {
	if !p.IsValid() {
		return "all"
	}
	return p.String()
}
