package hostnet

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
)

// forwardMark is the comment of Flowkeep's rules in a chain of iptables.
const forwardMark = "flowkeep"

// forwardRules accept what comes and goes by Flowkeep's ports. iptables-nft lists them as -i fk-+ and -o fk-+.
var forwardRules = []string{
	`iifname "fk-*" counter accept comment "` + forwardMark + `"`,
	`oifname "fk-*" counter accept comment "` + forwardMark + `"`,
}

// forwardFamilies are the families of the tables filter of iptables-nft and ip6tables-nft.
var forwardFamilies = []string{"ip", "ip6"}

// protocolFamilies has their numbers (linux/netfilter.h).
var protocolFamilies = map[string]uint8{"ip": unix.NFPROTO_IPV4, "ip6": unix.NFPROTO_IPV6}

// ruleHandle finds the handle of one of Flowkeep's rules in what nft(8) lists.
var ruleHandle = regexp.MustCompile(`comment "` + forwardMark + `" # handle (\d+)`)

// forwardChain returns the chain FORWARD of a family as nft lists it, and the handles of Flowkeep's rules there. It is
// empty where iptables-nft has not made it.
func forwardChain(family string) (listing string, handles []string) {
	out, err := runNft("", "-a", "-s", "list", "chain", family, "filter", "FORWARD")
	if err != nil {
		return "", nil
	}
	for _, m := range ruleHandle.FindAllStringSubmatch(string(out), -1) {
		handles = append(handles, m[1])
	}
	return string(out), handles
}

// acceptForwarded adds rules for pods' packets to the chains FORWARD of iptables-nft where their policy is to drop:
// Docker sets it, and a packet that one chain drops no other accepts. The rules are the chain's last. isComplete is
// false if a chain could not be listed, and isForwarded if one waits.
func acceptForwarded(cfg *Config) (isComplete, isForwarded bool, err error) {
	isComplete, isForwarded = true, true
	var errs []error
	for _, family := range forwardFamilies {
		drops, err := chainDrops(protocolFamilies[family], "FORWARD")
		if err != nil {
			errs = append(errs, err)
			continue
		}
		chain := family + " filter FORWARD"
		if !drops {
			continue
		}
		listing, handles := forwardChain(family)
		if hasForwardRules(listing) {
			continue
		}
		switch {
		case listing == "":
			isComplete = false
			continue
		case cfg.waits(ObjectNftables, chain):
			isForwarded = false
			continue
		}
		script := deleteForward(family, handles)
		for _, rule := range forwardRules {
			script += fmt.Sprintf("add rule %s filter FORWARD %s\n", family, rule)
		}
		if err := nft(script); err != nil {
			errs = append(errs, err)
			continue
		}
		cfg.changed(ObjectNftables, chain)
	}
	return isComplete, isForwarded, errors.Join(errs...)
}

func hasForwardRules(listing string) bool {
	for _, rule := range forwardRules {
		if strings.Count(listing, "\t\t"+rule+" # handle ") != 1 {
			return false
		}
	}
	return true
}

func deleteForward(family string, handles []string) string {
	var script strings.Builder
	for _, handle := range handles {
		fmt.Fprintf(&script, "delete rule %s filter FORWARD handle %s\n", family, handle)
	}
	return script.String()
}

// removeForward removes Flowkeep's rules from the chains of iptables-nft.
func removeForward() error {
	script := ""
	for _, family := range forwardFamilies {
		_, handles := forwardChain(family)
		script += deleteForward(family, handles)
	}
	if script == "" {
		return nil
	}
	return nft(script)
}

// forwardRemains names the chains of iptables-nft with rules of Flowkeep.
func forwardRemains() (names []string) {
	for _, family := range forwardFamilies {
		if _, handles := forwardChain(family); len(handles) > 0 {
			names = append(names, fmt.Sprintf("nftables rules of chain %s filter FORWARD", family))
		}
	}
	return names
}
