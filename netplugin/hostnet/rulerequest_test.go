package hostnet

import (
	"testing"

	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// TestRuleRequest_AttributeLengths: numbers in requests about all rules are as long as the kernel has them
// (fib_rule_policy in net/core/fib_rules.c), which logs each that is longer.
func TestRuleRequest_AttributeLengths(t *testing.T) {
	lengths := map[uint16]int{
		nl.FRA_GOTO:        4,
		nl.FRA_PRIORITY:    4,
		nl.FRA_FWMARK:      4,
		nl.FRA_TABLE:       4,
		nl.FRA_FWMASK:      4,
		nl.FRA_PROTOCOL:    1,
		nl.FRA_IP_PROTO:    1,
		nl.FRA_DPORT_RANGE: 4,
	}
	addresses := map[int]int{unix.AF_INET: 4, unix.AF_INET6: 16}
	seen := map[uint16]bool{}
	for family, rules := range wantedRules(tunnelConfig()) {
		for _, r := range rules {
			for _, kind := range []int{unix.RTM_NEWRULE, unix.RTM_DELRULE} {
				message := ruleRequest(kind, 0, r).Serialize()
				attributes := rtnl.Attributes(message[unix.SizeofNlMsghdr+unix.SizeofRtMsg:])
				if len(attributes) == 0 {
					t.Fatalf("%s: no attributes in %x", ruleText(r), message)
				}
				for attribute, value := range attributes {
					want, isNumber := lengths[attribute]
					switch attribute {
					case nl.FRA_SRC, nl.FRA_DST:
						want = addresses[family]
					case nl.FRA_IIFNAME:
						want = len(r.IifName) + 1
					default:
						seen[attribute] = isNumber
					}
					if len(value) != want {
						t.Errorf("%s: attribute %d has %d bytes, want %d", ruleText(r), attribute, len(value), want)
					}
				}
			}
		}
	}
	for attribute := range lengths {
		if !seen[attribute] {
			t.Errorf("no rule has attribute %d", attribute)
		}
	}
}

// TestRuleRequest_Kernel: the kernel has each rule as it was requested, and deletes it.
func TestRuleRequest_Kernel(t *testing.T) {
	in(t, host(t), func() error {
		for family, rules := range wantedRules(tunnelConfig()) {
			for _, r := range rules {
				before, err := rulesOf(family)
				if err != nil {
					return err
				}
				if err := addRule(r); err != nil {
					t.Errorf("add %s: %v", ruleText(r), err)
				}
				have, err := rulesOf(family)
				if err != nil {
					return err
				}
				if n := len(have); n != len(before)+1 || !isWanted(r, pointers(have)) {
					t.Errorf("%s: the kernel has %d rules, want %d with it: %+v", ruleText(r), n, len(before)+1, have)
				}
				if err := deleteRule(r); err != nil {
					t.Errorf("delete %s: %v", ruleText(r), err)
				}
				if left, err := rulesOf(family); err != nil || len(left) != len(before) {
					t.Errorf("%s: %d rules are left (%v), want %d", ruleText(r), len(left), err, len(before))
				}
			}
		}
		return nil
	})
}

func pointers[T any](list []T) (out []*T) {
	for i := range list {
		out = append(out, &list[i])
	}
	return out
}
