package native

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"github.com/vishvananda/netlink"
)

// bondOption is one of a bond's options: how it is read from and written to netlink's form, where -1 is not said.
type bondOption struct {
	live    bool // may change while the bond is up and has ports
	low     int
	high    int    // 0: as much as fits into 32 bits
	initial string // of a new bond, where the kernel begins with another value than 0
	field   func(*netlink.Bond) *int
}

// bondOptions without primary, which names a port.
var bondOptions = map[string]bondOption{
	"miimon":        {live: true, field: func(b *netlink.Bond) *int { return &b.Miimon }},
	optionUpDelay:   {live: true, field: func(b *netlink.Bond) *int { return &b.UpDelay }},
	optionDownDelay: {live: true, field: func(b *netlink.Bond) *int { return &b.DownDelay }},
	"use_carrier":   {live: true, high: 1, initial: "1", field: func(b *netlink.Bond) *int { return &b.UseCarrier }},
	"arp_interval":  {live: true, field: func(b *netlink.Bond) *int { return &b.ArpInterval }},
	"resend_igmp": {live: true, high: 255, initial: "1",
		field: func(b *netlink.Bond) *int { return &b.ResendIgmp }},
	"num_grat_arp": {live: true, high: 255, initial: "1",
		field: func(b *netlink.Bond) *int { return &b.NumPeerNotif }},
	"all_slaves_active": {live: true, field: func(b *netlink.Bond) *int { return &b.AllSlavesActive }},
	"min_links":         {live: true, field: func(b *netlink.Bond) *int { return &b.MinLinks }},
	"lp_interval":       {live: true, low: 1, field: func(b *netlink.Bond) *int { return &b.LpInterval }},
	"packets_per_slave": {high: 65535, initial: "1", field: func(b *netlink.Bond) *int { return &b.PacketsPerSlave }},
	"xmit_hash_policy":  {live: true, field: func(b *netlink.Bond) *int { return (*int)(&b.XmitHashPolicy) }},
	"fail_over_mac":     {field: func(b *netlink.Bond) *int { return (*int)(&b.FailOverMac) }},
	"primary_reselect":  {live: true, field: func(b *netlink.Bond) *int { return (*int)(&b.PrimaryReselect) }},
	"lacp_rate":         {field: func(b *netlink.Bond) *int { return (*int)(&b.LacpRate) }},
	"ad_select":         {field: func(b *netlink.Bond) *int { return (*int)(&b.AdSelect) }},
}

// The delays of a bond, which the kernel keeps as multiples of miimon.
const (
	optionUpDelay   = "updelay"
	optionDownDelay = "downdelay"
)

const optionPrimary = "primary"

// onlyIn are options that the kernel has in these modes alone.
var onlyIn = map[string][]string{
	"lacp_rate": {"802.3ad"}, "ad_select": {"802.3ad"}, "min_links": {"802.3ad"},
	optionPrimary: {"active-backup", "balance-tlb", "balance-alb"}, "primary_reselect": {"active-backup", "balance-tlb", "balance-alb"},
	"packets_per_slave": {"balance-rr"},
	"xmit_hash_policy":  {"balance-xor", "802.3ad", "balance-tlb"},
}

// bondSet lays options, as a document has them, over others.
func bondSet(have *bondSpec, doc *bondDoc) (*bondSpec, error) {
	out := have.without("")
	if doc.Mode != nil {
		if _, ok := nmstate.BondModes[*doc.Mode]; !ok {
			return nil, fmt.Errorf("link-aggregation.mode: %q is none of %s", *doc.Mode,
				strings.Join(sortedKeys(nmstate.BondModes), ", "))
		}
		if out.Mode != *doc.Mode {
			out = &bondSpec{Mode: *doc.Mode, Options: map[string]string{}}
		}
	}
	if out.Mode == "" {
		return nil, errors.New("link-aggregation.mode: a new bond needs a mode, such as active-backup")
	}
	for _, name := range sortedKeys(doc.Options) {
		value, err := bondValue(name, doc.Options[name])
		if err != nil {
			return nil, fmt.Errorf("link-aggregation.options.%s: %w", name, err)
		}
		if modes := onlyIn[name]; modes != nil && !slices.Contains(modes, out.Mode) {
			return nil, fmt.Errorf("link-aggregation.options.%s: the mode %s has no such option, only %s", name, out.Mode, strings.Join(modes, ", "))
		}
		out.Options[name] = value
	}
	for option, other := range map[string]string{"miimon": "arp_interval", "arp_interval": "miimon"} {
		_, named := doc.Options[option]
		if _, both := doc.Options[other]; named && !both && out.Options[option] != "0" && out.Options[other] != "" {
			out.Options[other] = "0" // as the kernel does it
		}
	}
	return out, nil
}

// contradiction refuses what the kernel would refuse, or undo by itself.
func (b *bondSpec) contradiction(d *interfaceDoc) error {
	on := func(option string) bool { v := b.Options[option]; return v != "" && v != "0" }
	switch {
	case on("miimon") && on("arp_interval"):
		return errors.New("link-aggregation.options: miimon and arp_interval exclude each other: set one of them to 0")
	case deref(d.MAC) != "" && b.Mode == "active-backup" && b.Options["fail_over_mac"] == "active":
		return errors.New("mac-address: a bond with fail_over_mac: active has that of its active port: leave it out")
	}
	return nil
}

// monitorless refuses to turn on ARP monitoring: without targets, which the backend does not set, the kernel takes
// ports for dead. A bond that has it keeps it.
func (b *bondSpec) monitorless(was *bondSpec) error {
	const option = "arp_interval"
	if v := b.Options[option]; v == "" || v == "0" || v == was.Options[option] {
		return nil
	}
	return errors.New("link-aggregation.options.arp_interval: needs arp_ip_target, which is not supported by the " +
		"native backend: use miimon")
}

// checkDelays refuses a delay that is no multiple of miimon: the kernel would round it.
func (b *bondSpec) checkDelays(doc *bondDoc) error {
	monitor, err := strconv.Atoi(cmp.Or(b.Options["miimon"], "0"))
	if err != nil {
		return fmt.Errorf("link-aggregation.options.miimon: %w", err)
	}
	for _, name := range []string{optionUpDelay, optionDownDelay} {
		delay, err := strconv.Atoi(cmp.Or(b.Options[name], "0"))
		_, named := doc.Options[name]
		_, monitorNamed := doc.Options["miimon"]
		switch {
		case delay == 0 && err == nil || !named && !monitorNamed:
		case monitor == 0:
			return fmt.Errorf("link-aggregation.options.%s: needs miimon, which is 0: set it, or set %s to 0", name, name)
		case delay%monitor != 0:
			return fmt.Errorf("link-aggregation.options.%s: must be a multiple of miimon, which is %d, not %d",
				name, monitor, delay)
		}
	}
	return nil
}

// bondValue takes numbers and texts alike, as people write both.
func bondValue(name string, raw json.RawMessage) (string, error) {
	text := string(raw)
	if err := json.Unmarshal(raw, &text); err != nil && text == "" {
		return "", err
	}
	if name == optionPrimary {
		return text, nil
	}
	if _, ok := bondOptions[name]; !ok {
		return "", fmt.Errorf("is not supported by the native backend, which has primary, %s", strings.Join(sortedKeys(bondOptions), ", "))
	}
	n, err := strconv.Atoi(text)
	names := nmstate.BondOptions[name]
	if names == nil {
		low, high := bondOptions[name].low, cmp.Or(bondOptions[name].high, math.MaxInt32)
		if err != nil || n < low || n > high {
			return "", fmt.Errorf("must be a whole number from %d to %d, not %s", low, high, raw)
		}
		return strconv.Itoa(n), nil
	}
	for _, value := range sortedKeys(names) {
		if value == text || err == nil && names[value] == int64(n) {
			return value, nil
		}
	}
	return "", fmt.Errorf("must be one of %s, not %s", strings.Join(sortedKeys(names), ", "), raw)
}

// bondRead takes a bond's options from netlink's form; nameOf finds a port by its index.
func bondRead(b *netlink.Bond, nameOf func(int) string) *bondSpec {
	out := &bondSpec{Options: map[string]string{}}
	for name, mode := range nmstate.BondModes {
		if mode == int64(b.Mode) {
			out.Mode = name
		}
	}
	for name, o := range bondOptions {
		if modes := onlyIn[name]; modes != nil && !slices.Contains(modes, out.Mode) {
			continue
		}
		if v := *o.field(b); v >= 0 {
			out.Options[name] = strconv.Itoa(v)
			for value, n := range nmstate.BondOptions[name] {
				if n == int64(v) {
					out.Options[name] = value
				}
			}
		}
	}
	if port := nameOf(b.Primary); b.Primary > 0 && port != "" {
		out.Options[optionPrimary] = port
	}
	return out
}

// bondWrite puts those options into netlink's form that are named.
func bondWrite(b *netlink.Bond, options map[string]string) error {
	for name, text := range options {
		o, ok := bondOptions[name]
		if !ok {
			continue
		}
		n, named := nmstate.BondOptions[name][text]
		if !named {
			var err error
			if n, err = strconv.ParseInt(text, 10, 32); err != nil {
				return fmt.Errorf("bond option %s: %w", name, err)
			}
		}
		*o.field(b) = int(n)
	}
	return nil
}
