package native

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
)

// bondOption is one of a bond's options: how it is read from and written to netlink's form, where -1 is not said.
type bondOption struct {
	live  bool // may change while the bond is up and has ports
	field func(*netlink.Bond) *int
	names map[string]int // of an option that has names; nil: a number
}

// bondModes are nmstate's, and the kernel's, names.
var bondModes = map[string]netlink.BondMode{
	"balance-rr": netlink.BOND_MODE_BALANCE_RR, "active-backup": netlink.BOND_MODE_ACTIVE_BACKUP, "balance-xor": netlink.BOND_MODE_BALANCE_XOR,
	"broadcast": netlink.BOND_MODE_BROADCAST, "802.3ad": netlink.BOND_MODE_802_3AD, "balance-tlb": netlink.BOND_MODE_BALANCE_TLB,
	"balance-alb": netlink.BOND_MODE_BALANCE_ALB,
}

// bondOptions without primary, which names a port.
var bondOptions = map[string]bondOption{
	"miimon":            {live: true, field: func(b *netlink.Bond) *int { return &b.Miimon }},
	"updelay":           {live: true, field: func(b *netlink.Bond) *int { return &b.UpDelay }},
	"downdelay":         {live: true, field: func(b *netlink.Bond) *int { return &b.DownDelay }},
	"use_carrier":       {live: true, field: func(b *netlink.Bond) *int { return &b.UseCarrier }},
	"arp_interval":      {live: true, field: func(b *netlink.Bond) *int { return &b.ArpInterval }},
	"resend_igmp":       {live: true, field: func(b *netlink.Bond) *int { return &b.ResendIgmp }},
	"num_grat_arp":      {live: true, field: func(b *netlink.Bond) *int { return &b.NumPeerNotif }},
	"all_slaves_active": {live: true, field: func(b *netlink.Bond) *int { return &b.AllSlavesActive }},
	"min_links":         {live: true, field: func(b *netlink.Bond) *int { return &b.MinLinks }},
	"lp_interval":       {live: true, field: func(b *netlink.Bond) *int { return &b.LpInterval }},
	"packets_per_slave": {field: func(b *netlink.Bond) *int { return &b.PacketsPerSlave }},
	"xmit_hash_policy": {live: true, field: func(b *netlink.Bond) *int { return (*int)(&b.XmitHashPolicy) },
		names: map[string]int{"layer2": 0, "layer3+4": 1, "layer2+3": 2, "encap2+3": 3, "encap3+4": 4, "vlan+srcmac": 5}},
	"fail_over_mac": {field: func(b *netlink.Bond) *int { return (*int)(&b.FailOverMac) },
		names: map[string]int{"none": 0, "active": 1, "follow": 2}},
	"primary_reselect": {live: true, field: func(b *netlink.Bond) *int { return (*int)(&b.PrimaryReselect) },
		names: map[string]int{"always": 0, "better": 1, "failure": 2}},
	"lacp_rate": {field: func(b *netlink.Bond) *int { return (*int)(&b.LacpRate) }, names: map[string]int{"slow": 0, "fast": 1}},
	"ad_select": {field: func(b *netlink.Bond) *int { return (*int)(&b.AdSelect) },
		names: map[string]int{"stable": 0, "bandwidth": 1, "count": 2}},
}

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
		if _, ok := bondModes[*doc.Mode]; !ok {
			return nil, fmt.Errorf("link-aggregation.mode: %q is none of %s", *doc.Mode, strings.Join(sortedKeys(bondModes), ", "))
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
	return out, nil
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
	o, ok := bondOptions[name]
	if !ok {
		return "", fmt.Errorf("is not supported by the native backend, which has primary, %s", strings.Join(sortedKeys(bondOptions), ", "))
	}
	n, err := strconv.Atoi(text)
	if o.names == nil {
		if err != nil || n < 0 {
			return "", fmt.Errorf("must be a whole number, not %s", raw)
		}
		return strconv.Itoa(n), nil
	}
	for _, said := range sortedKeys(o.names) {
		if said == text || err == nil && o.names[said] == n {
			return said, nil
		}
	}
	return "", fmt.Errorf("must be one of %s, not %s", strings.Join(sortedKeys(o.names), ", "), raw)
}

// bondRead takes a bond's options from netlink's form; nameOf finds a port by its index.
func bondRead(b *netlink.Bond, nameOf func(int) string) *bondSpec {
	out := &bondSpec{Options: map[string]string{}}
	for name, mode := range bondModes {
		if mode == b.Mode {
			out.Mode = name
		}
	}
	for name, o := range bondOptions {
		if modes := onlyIn[name]; modes != nil && !slices.Contains(modes, out.Mode) {
			continue
		}
		if v := *o.field(b); v >= 0 {
			out.Options[name] = strconv.Itoa(v)
			for said, n := range o.names {
				if n == v {
					out.Options[name] = said
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
		n, named := o.names[text]
		if !named {
			var err error
			if n, err = strconv.Atoi(text); err != nil {
				return fmt.Errorf("bond option %s: %w", name, err)
			}
		}
		*o.field(b) = n
	}
	return nil
}
