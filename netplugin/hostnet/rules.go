package hostnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

var families46 = []int{netlink.FAMILY_V4, netlink.FAMILY_V6}

// rules moves the look-up of the local table behind that of Services: what a Service translated to the node's own
// address must go through the bridge too. The new rule comes before the old one goes. Rules of other programs stay.
func rules(cfg *Config) error {
	wanted := wantedRules(cfg)
	var errs []error
	for _, family := range families46 {
		errs = append(errs, setRules(cfg, family, wanted[family]))
	}
	return errors.Join(errs...)
}

// rulesAlone sets the rules where links or routes could not be set. The tables that keep packets have blackholes,
// which need no link: packets must not pass a table without routes by.
func rulesAlone(cfg *Config) error {
	var errs []error
	discards := append(translatedWithoutLink(cfg), geneveRoutes(cfg)...)
	for _, p := range cfg.Self.PodCIDRs {
		discards = append(discards, blackhole(cfg.numbers().Table, netip.PrefixFrom(p.Addr(), 0)))
	}
	for i := range discards {
		if err := netlink.RouteAdd(&discards[i]); err == nil {
			cfg.changed("route", routeName(&discards[i]))
		} else if !errors.Is(err, unix.EEXIST) {
			errs = append(errs, fmt.Errorf("route to %s: %w", routeName(&discards[i]), err))
		}
	}
	return errors.Join(append(errs, rules(cfg))...)
}

// AddRules adds policy rules that are missing beside others of the same numbers, and changes nothing else: at a start
// flows of this version may need one that an earlier version did not write, and flows of an earlier one what Setup
// removes. Rules of other numbers wait for the routes that they look up, as in Setup.
func AddRules(cfg *Config) error {
	cfg.ownChanged = false
	var errs []error
	for family, wanted := range wantedRules(cfg) {
		have, err := rulesOf(family)
		if err != nil {
			errs = append(errs, fmt.Errorf("list policy rules: %w", err))
		}
		if !slices.Contains(numbersOf(have), cfg.numbers()) {
			continue
		}
		for _, r := range wanted {
			errs = append(errs, ensureRule(cfg, r, have))
		}
	}
	if cfg.ownChanged && cfg.Kept != nil {
		cfg.Kept.ownLost.Store(true) // for Setup: see lookUpAgain
	}
	return errors.Join(errs...)
}

// setRules adds the wanted rules of a family, and removes Flowkeep's others. A family without podCIDRs has none; there
// the kernel's look-up of the table local is first again.
func setRules(cfg *Config, family int, wanted []*netlink.Rule) error {
	have, err := rulesOf(family)
	if err != nil {
		return fmt.Errorf("list policy rules: %w", err)
	}
	for _, r := range wanted {
		if err := ensureRule(cfg, r, have); err != nil {
			return err
		}
	}
	known := append(knownNumbers(cfg.Earlier...), cfg.numbers())
	if len(wanted) > 0 {
		for _, text := range takenRules(have, cfg.numbers(), known) {
			cfg.taken(text)
		}
	}
	hasLocal := len(wanted) > 0 || slices.ContainsFunc(have, isKernelsLocal)
	moved := func(r netlink.Rule) bool { return looksUpServices(&r) && isFlowkeepsOf(&r, known) }
	if !hasLocal && slices.ContainsFunc(have, moved) {
		if err := addKernelsLocal(family); err != nil {
			return err
		}
		cfg.changed("rule", "0")
		hasLocal = true
	}
	remove := func(r *netlink.Rule) bool {
		first := len(wanted) > 0 && isKernelsLocal(*r)
		return first || isFlowkeepsOf(r, known) && !isWanted(r, wanted) && (hasLocal || !isMovedLocal(r))
	}
	return removeRules(family, remove, func(r, behind *netlink.Rule, err error) error {
		switch {
		case behind == nil && err == nil:
			cfg.changed("rule", fmt.Sprint(r.Priority))
		case behind != nil && isWanted(behind, wanted): // one of the same effect, with no protocol
			return nil
		case behind != nil && !isKernelsLocal(*r):
			cfg.taken(err.Error())
			return nil
		}
		return err
	})
}

func isWanted(r *netlink.Rule, wanted []*netlink.Rule) bool {
	return slices.ContainsFunc(wanted, func(w *netlink.Rule) bool { return keyOf(r) == keyOf(w) })
}

func wantedRules(cfg *Config) map[int][]*netlink.Rule {
	n, out := cfg.numbers(), map[int][]*netlink.Rule{}
	for _, p := range cfg.Self.PodCIDRs {
		family, gateway := familyOf(p.Addr()), hostNet(p.Masked().Addr().Next())
		out[family] = append(out[family],
			newRule(family, n.Priority+wellknown.LocalRule, unix.RT_TABLE_LOCAL, nil, nil),
			newRule(family, n.Priority+wellknown.GatewayLocalRule, unix.RT_TABLE_LOCAL, ipNet(p), gateway),
			newRule(family, n.Priority+wellknown.ServiceRule, n.Table, ipNet(p), nil))
		if p.Addr().Is4() {
			out[family] = append(out[family], returningRule(n, p))
		} else {
			out[family] = append(out[family], arrivalRules(n)...)
		}
		out[family] = append(out[family], translatedRule(n, p), ownRule(n, p), replyRule(n, p))
		if cfg.hasTunnels(family) {
			out[family] = append(out[family], geneveRule(n, p))
		}
	}
	if forged := wantedForgedRules(cfg); len(forged) > 0 {
		out[netlink.FAMILY_V6] = append(out[netlink.FAMILY_V6], forged...)
	}
	return out
}

// newRule returns a rule for all packets, or for those with the source that come by the gateway. Its protocol is the
// kernel's: systemd-networkd removes rules of another protocol that are not its own when it starts
// (networkd.conf(5), ManageForeignRoutingPolicyRules).
func newRule(family, pref, table int, src, dst *net.IPNet) *netlink.Rule {
	r := netlink.NewRule()
	r.Protocol = unix.RTPROT_KERNEL
	r.Family, r.Priority, r.Table, r.Src, r.Dst = family, pref, table, src, dst
	if src != nil {
		r.IifName = Gateway
	}
	return r
}

func ensureRule(cfg *Config, want *netlink.Rule, have []netlink.Rule) error {
	if slices.ContainsFunc(have, func(r netlink.Rule) bool { return keyOf(&r) == keyOf(want) }) {
		return nil
	}
	if want.Mark != 0 && cfg.waits("rule", fmt.Sprint(want.Priority)) {
		return nil // the others are a layer of their own
	}
	err := addRule(want)
	if errors.Is(err, os.ErrExist) { // one of another program, which takenRules reports
		return nil
	}
	if err != nil {
		return fmt.Errorf("add policy rule %d: %w", want.Priority, err)
	}
	cfg.changed("rule", fmt.Sprint(want.Priority))
	cfg.noteOwn(want.Table)
	return nil
}

// ruleKey has all attributes of a policy rule (rtnetlink(7), linux/fib_rules.h); two rules with the same key are equal.
type ruleKey struct {
	priority, table    int
	protocol           uint8
	src, dst, iif, oif string
	mark, mask         uint32
	other              string // rare attributes, which two of Flowkeep's rules have
}

func keyOf(r *netlink.Rule) ruleKey {
	k := ruleKey{
		priority: max(r.Priority, 0),
		table:    r.Table,
		protocol: r.Protocol,
		src:      netText(r.Src),
		dst:      netText(r.Dst),
		iif:      r.IifName,
		oif:      r.OifName,
		mark:     r.Mark,
		other:    otherAttributes(r),
	}
	if r.Mask != nil {
		k.mask = *r.Mask
	}
	return k
}

func netText(n *net.IPNet) string {
	if n == nil || n.IP == nil {
		return ""
	}
	return n.String()
}

// otherAttributes returns rare ones as text, empty if there are none.
func otherAttributes(r *netlink.Rule) string {
	text := ""
	add := func(is bool, name string, value any) {
		if is {
			text += fmt.Sprintf(" %s %v", name, value)
		}
	}
	add(r.Invert, "not", true)
	add(r.Tos != 0, "tos", r.Tos)
	add(r.TunID != 0, "tun_id", r.TunID)
	add(r.Goto >= 0, "goto", r.Goto)
	add(r.Flow >= 0, "realms", r.Flow)
	add(r.SuppressPrefixlen >= 0, "suppress_prefixlength", r.SuppressPrefixlen)
	add(r.SuppressIfgroup >= 0, "suppress_ifgroup", r.SuppressIfgroup)
	add(r.IPProto != 0, "ipproto", r.IPProto)
	if r.Dport != nil {
		add(true, "dport", *r.Dport)
	}
	if r.Sport != nil {
		add(true, "sport", *r.Sport)
	}
	add(r.UIDRange != nil, "uidrange", r.UIDRange)
	return text
}

// ruleText returns a rule much as ip-rule(8) prints it.
func ruleText(r *netlink.Rule) string {
	k := keyOf(r)
	text := fmt.Sprintf("%d:", k.priority)
	for _, part := range []struct{ name, value string }{
		{"from", k.src}, {"to", k.dst}, {"iif", k.iif}, {"oif", k.oif},
	} {
		if part.value != "" {
			text += " " + part.name + " " + part.value
		}
	}
	if k.mark != 0 || k.mask != 0 {
		text += fmt.Sprintf(" fwmark %#x/%#x", k.mark, k.mask)
	}
	if text += k.other; r.Goto < 0 {
		text += fmt.Sprintf(" lookup %d", k.table)
	}
	return fmt.Sprintf("%q", text)
}

// isFlowkeepsOf reports whether a rule is as Flowkeep writes it with any of the numbers.
func isFlowkeepsOf(r *netlink.Rule, list []Numbers) bool {
	return slices.ContainsFunc(list, func(n Numbers) bool { return isFlowkeeps(r, n) })
}

// isFlowkeeps reports whether a rule's protocol, priority, selector and table are as Flowkeep writes them. Versions
// with FormerNumbers also wrote none as the protocol.
func isFlowkeeps(r *netlink.Rule, n Numbers) bool {
	k := keyOf(r)
	ours := k.protocol == unix.RTPROT_KERNEL || k.protocol == unix.RTPROT_UNSPEC && n == FormerNumbers
	if !ours || k.oif != "" {
		return false
	}
	if isForged(&k, n) {
		return true
	}
	if k.other != "" {
		return isGeneve(&k, n) || k.src != "" && k == keyOf(returningFrom(n, r.Src))
	}
	fromPods := isFromPods(&k)
	switch k.priority - n.Priority {
	case wellknown.GatewayLocalRule:
		return fromPods && k.dst != "" && k.table == unix.RT_TABLE_LOCAL
	case wellknown.ServiceRule:
		return fromPods && k.dst == "" && k.table == n.Table
	case wellknown.TranslatedRule:
		return isTranslated(&k, n)
	case wellknown.ArrivalRule, wellknown.OutArrivalRule:
		return isArrival(&k, n)
	case wellknown.LocalRule:
		return isMovedLocal(r)
	case wellknown.OwnRule:
		return isOwnRule(&k) && k.table == n.ownTable()
	case wellknown.ReplyRule:
		return isToPods(&k) && k.iif == Gateway && k.table == n.Table
	}
	return false
}

// isFromPods reports whether a rule applies to all packets with a source that come by the gateway.
func isFromPods(k *ruleKey) bool {
	return k.iif == Gateway && k.src != "" && k.mark == 0 && k.mask == 0
}

// isOwnRule reports whether a rule applies to all packets that the node itself sends to some addresses.
func isOwnRule(k *ruleKey) bool { return isToPods(k) && k.iif == "lo" }

// isToPods reports whether a rule applies to all packets to some addresses by one interface. No version wrote one
// without a protocol.
func isToPods(k *ruleKey) bool {
	unmarked := k.mark == 0 && k.mask == 0
	return k.src == "" && k.dst != "" && unmarked && k.protocol == unix.RTPROT_KERNEL
}

// isForAll reports whether a rule applies to all packets.
func isForAll(k *ruleKey) bool {
	return k.src == "" && k.dst == "" && k.iif == "" && k.oif == "" && k.mark == 0 && k.mask == 0 && k.other == ""
}

// numbersOf returns the numbers by which Flowkeep, also of another version or with other flags, made rules. It goes by
// the rule that looks up the table of Services.
func numbersOf(have []netlink.Rule) (out []Numbers) {
	for i := range have {
		n := Numbers{Table: have[i].Table, Priority: have[i].Priority - wellknown.ServiceRule}
		if n.mayBeEarlier() && isFlowkeeps(&have[i], n) && !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// knownNumbers returns some numbers, and those that rules may have by default.
func knownNumbers(some ...Numbers) []Numbers {
	return slices.Concat(some, []Numbers{DefaultNumbers, FormerNumbers})
}

// isKernelsLocal reports whether a rule is the kernel's first one, which sends packets for the node itself to the
// table local.
func isKernelsLocal(r netlink.Rule) bool { return max(r.Priority, 0) == 0 && isMovedLocal(&r) }

// isMovedLocal reports whether a rule looks up the table local for all packets, with any priority. Without such a rule
// the node receives no packet of the family.
func isMovedLocal(r *netlink.Rule) bool {
	k := keyOf(r)
	return k.table == unix.RT_TABLE_LOCAL && isForAll(&k)
}

// addKernelsLocal adds the first rule that the kernel has by itself (ip-rule(8)). One that exists is no error.
func addKernelsLocal(family int) error {
	local := newRule(family, 0, unix.RT_TABLE_LOCAL, nil, nil)
	if err := addRule(local); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("add policy rule 0: %w", err)
	}
	return nil
}

// listRules is netlink.RuleList but in tests.
var listRules = netlink.RuleList

func dumpRules(family int) ([]netlink.Rule, error) {
	return rtnl.Dump(func() ([]netlink.Rule, error) { return listRules(family) })
}

// rulesOf returns the policy rules of a family; none where the kernel has no such family, as with ipv6.disable=1.
func rulesOf(family int) ([]netlink.Rule, error) {
	list, err := dumpRules(family)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil
	}
	return list, err
}

// removeRules removes the rules that match: last those that look up the table of Services, by which Teardown recognises
// the others, and without which only nftables keeps packets in the bridge. It calls done for each with the result, and
// with the rule behind which it could not be removed, if there is one; and returns the errors that done returns.
func removeRules(
	family int, match func(*netlink.Rule) bool,
	done func(r, behind *netlink.Rule, err error) error,
) error {
	have, err := rulesOf(family)
	if err != nil {
		return fmt.Errorf("list policy rules: %w", err)
	}
	var errs []error
	for _, last := range []bool{false, true} {
		for i := 0; i < len(have); i++ {
			r := have[i]
			if looksUpServices(&r) != last || !match(&r) {
				continue
			}
			behind, err := removeRule(family, have, i)
			errs = append(errs, done(&r, behind, err))
			if err == nil {
				have = slices.Delete(have, i, i+1)
				i--
			}
		}
	}
	return errors.Join(errs...)
}

func looksUpServices(r *netlink.Rule) bool {
	k := keyOf(r)
	return isFromPods(&k) && k.dst == ""
}

// removeRule removes one of a family's rules. The kernel removes the first rule with the attributes that a request
// names, whatever else it has: where that is another one, it is returned as behind, with an error.
func removeRule(family int, have []netlink.Rule, at int) (behind *netlink.Rule, err error) {
	r := have[at]
	if first := slices.IndexFunc(have, func(h netlink.Rule) bool { return selects(&r, &h) }); first < at {
		return &have[first], fmt.Errorf("remove the policy rule %s: the kernel would remove %s instead: give that "+
			"another priority", ruleText(&r), ruleText(&have[first]))
	}
	r.Family, r.Priority = family, max(r.Priority, 0)
	if err := deleteRule(&r); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove policy rule %d: %w", r.Priority, err)
	}
	return nil, nil
}

// selects reports whether a request to remove a rule of Flowkeep's or the kernel's is also one for the other.
func selects(rule, other *netlink.Rule) bool {
	a, b := keyOf(rule), keyOf(other)
	same := func(want, have string) bool { return want == "" || want == have }
	return a.priority == b.priority && a.table == b.table && same(a.src, b.src) && same(a.dst, b.dst) &&
		same(a.iif, b.iif) && (a.mark == 0 || a.mark == b.mark) && (a.mask == 0 || a.mask == b.mask) &&
		(a.protocol == 0 || a.protocol == b.protocol)
}

// Teardown removes what Setup made, but for the ports themselves. n are the numbers with which it did, if they are
// known; rules with others are recognised by the one that looks up their table.
func Teardown(n Numbers) error {
	errs := []error{deleteNftables(), removeForward(), removeAllRoutes()}
	for _, family := range families46 {
		// The kernel accepts a second rule that differs from its own in the protocol only.
		have, err := dumpRules(family)
		if errors.Is(err, unix.EAFNOSUPPORT) {
			continue
		}
		if !slices.ContainsFunc(have, isKernelsLocal) {
			if err := addKernelsLocal(family); err != nil { // without it the moved one must stay
				errs = append(errs, err)
				continue
			}
		}
		known := append(knownNumbers(numbersOf(have)...), n.OrDefault())
		errs = append(errs, removeRules(family, func(r *netlink.Rule) bool { return isFlowkeepsOf(r, known) },
			func(_, _ *netlink.Rule, err error) error { return err }))
	}
	return errors.Join(errs...)
}

// Remains returns the names of the objects that Setup created and that still exist, except for ports. n are the numbers
// with which it did, if they are known.
func Remains(n Numbers) (names []string, err error) {
	list, err := allRoutes()
	if err != nil {
		return nil, err
	}
	for i := range list {
		if r := &list[i]; r.Protocol == protocolFlowkeep {
			names = append(names, "route to "+routeName(r))
		}
	}
	for _, family := range families46 {
		have, err := rulesOf(family)
		if err != nil {
			return nil, fmt.Errorf("list policy rules: %w", err)
		}
		known := append(knownNumbers(numbersOf(have)...), n.OrDefault())
		for i := range have {
			if r := &have[i]; isFlowkeepsOf(r, known) {
				names = append(names,
					fmt.Sprintf("policy rule %d of IPv%d", r.Priority,
						map[int]int{netlink.FAMILY_V4: 4, netlink.FAMILY_V6: 6}[family]))
			}
		}
	}
	tables, err := nftTables()
	return slices.Concat(names, tables, forwardRemains()), err
}
