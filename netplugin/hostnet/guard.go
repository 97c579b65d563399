package hostnet

import (
	"fmt"
)

// serviceGuard returns the chains behind the policy rules of the second pass (docs/decisions/002), independent of
// them: where a rule or a route of the Services' table is missing, packets that no policy has evaluated end here. The
// priority is behind kube-proxy's filter chains, which reject packets to Services without endpoints.
//
// A packet that a pod sent to a Service comes by the gateway, and goes back by it once it was translated. So does the
// translated packet to a node port. What comes by the gateway without a translation would circulate between the bridge
// and the node until its TTL ends: so would a packet without an entry of conntrack, which has no status to match, such
// as a RST or an ICMP error of a connection that ended. No rule of Flowkeep's leaves packets of the gateway untracked.
// Of the node's own addresses a pod reaches only the gateway's this way.
func serviceGuard(cfg *Config) []chain {
	forward := chain{name: "service-forward", hook: "type filter hook forward priority filter + 10; policy accept;"}
	input := chain{name: "service-input", hook: "type filter hook input priority filter + 10; policy accept;"}
	forward.rules = append(forward.rules,
		fmt.Sprintf("iifname %q oifname %[1]q ct state invalid,untracked drop", Gateway),
		fmt.Sprintf("iifname %q oifname %[1]q ct status & dnat == 0 drop", Gateway))
	forward.rules = append(forward.rules, translatedElsewhere(cfg)...)
	for _, c := range []*chain{&forward, &input} {
		c.rules = append(c.rules, translatedHere(cfg)...)
	}
	for _, message := range []string{"nd-neighbor-solicit", "nd-neighbor-advert"} {
		input.rules = append(input.rules, fmt.Sprintf("iifname %q icmpv6 type %s accept", Gateway, message))
	}
	for _, f := range families(cfg) {
		for _, a := range f.gateways {
			input.rules = append(input.rules, fmt.Sprintf("iifname %q %s daddr %s accept", Gateway, f.name, a))
		}
		for _, pods := range f.pods {
			from := fmt.Sprintf("iifname %q %s saddr %s ", Gateway, f.name, pods)
			forward.rules = append(forward.rules, from+fmt.Sprintf("oifname != %q drop", Gateway))
			input.rules = append(input.rules, from+"drop")
		}
	}
	return []chain{dropToPods(cfg), forward, input}
}

// droppingChain is the name of the chain that drops packets to any pod.
const droppingChain = "drop-to-pods"

// dropToPods returns the chain that drops packets to any pod. Its rules have no set (ruleset), so there is one for each
// pod CIDR outside of the cluster's: rules of other chains jump to it.
func dropToPods(cfg *Config) chain {
	drop := chain{name: droppingChain}
	for _, part := range podsByFamily(cfg) {
		for _, p := range part.list {
			drop.rules = append(drop.rules, fmt.Sprintf("%s daddr %s drop", part.family, p))
		}
	}
	return drop
}

// translatedElsewhere drops what pods sent to addresses that are no pods' and a program of the node translated to a
// pod, where it does not go back into the bridge. Such packets come by fk-out. By fk-wire come those to an address
// within the pods' prefixes that is one of the node's and not in its Node, or an external one of a Service; and all
// while the flows are those of a former version.
func translatedElsewhere(cfg *Config) (rules []string) {
	byWire := fmt.Sprintf("iifname %q ether saddr != %s ct direction original ct status dnat", Wire,
		mac(cfg.ServiceMAC))
	byOut := fmt.Sprintf("iifname %q", Out)
	for _, own := range byFamilyList(merge(cfg.Self.PodCIDRs)) {
		for _, src := range own.list {
			for _, packets := range []string{byOut, byWire} {
				rules = append(rules, fmt.Sprintf("%s %s saddr %s oifname != %q jump %s", packets, own.family, src,
					Gateway, droppingChain))
			}
		}
	}
	return rules
}

// translatedHere drops what pods send and a program of the node translates, where the switch translates Services: no
// policy has evaluated it where it goes. Replies in connections that others opened go on.
func translatedHere(cfg *Config) (rules []string) {
	if !cfg.Translated {
		return nil
	}
	for _, f := range families(cfg) {
		for _, pods := range f.pods {
			for _, port := range Devices {
				rules = append(rules, fmt.Sprintf("iifname %q %s saddr %s ct direction original ct status dnat drop",
					port, f.name, pods))
			}
		}
	}
	return rules
}
