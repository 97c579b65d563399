package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Hook is a chain of rules on the way of packets that drops what none of them accepts.
type Hook struct {
	On    string // forward or input
	Chain string // FAMILY TABLE NAME
	Lets  bool   // what comes and goes by Flowkeep's interfaces is accepted
}

// legacy begins the family of chains of iptables-legacy, for which no rule of nftables can accept anything.
const legacy = "legacy-"

// ParseHooks finds them in what iptables-save(8) prints, for a family, or nft(8) lists.
func ParseHooks(family, text string) (hooks []Hook) {
	generated, _, _ := strings.Cut(text, "\n")
	if family != "" && strings.Contains(generated, "tables-save") && !strings.Contains(generated, "(nf_tables)") {
		family = legacy + family
	}
	table, chain := "", ""
	accepted := map[string]string{} // by chain: "i", "o" or both
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0:
		case f[0][0] == '*': // iptables-save
			table = family + " " + f[0][1:]
		case f[0][0] == ':' && len(f) > 1:
			if on := strings.ToLower(f[0][1:]); f[1] == "DROP" && (on == "forward" || on == "input") && strings.HasSuffix(table, " filter") {
				hooks = append(hooks, Hook{On: on, Chain: table + " " + f[0][1:]})
			}
		case f[0] == "-A" && len(f) > 2:
			name := table + " " + f[1]
			if f[1] == "DOCKER-USER" { // which Docker's FORWARD begins with
				name = table + " FORWARD"
			}
			accepted[name] += letsThrough(f[2:], "-i", "-o", "ACCEPT")
		case f[0] == "table" && len(f) > 3: // nft
			table = f[1] + " " + f[2]
		case f[0] == "chain" && len(f) > 1:
			chain = table + " " + f[1]
		case f[0] == "type":
			if on := after(f, "hook"); after(f, "policy") == "drop;" && (on == "forward" || on == "input") {
				hooks = append(hooks, Hook{On: on, Chain: chain})
			}
		default:
			accepted[chain] += letsThrough(f, "iifname", "oifname", "accept")
		}
	}
	for i := range hooks {
		hooks[i].Lets = strings.Contains(accepted[hooks[i].Chain], "i") && strings.Contains(accepted[hooks[i].Chain], "o")
	}
	return hooks
}

// letsThrough returns the direction in which a rule accepts all of Flowkeep's interfaces without further conditions.
func letsThrough(rule []string, in, out, accept string) string {
	const words = 2 // the option and the name
	text := " " + strings.Join(rule, " ") + " "
	for _, noCondition := range []string{
		" -j ", " counter ", " -m comment ", " --comment flowkeep ", ` comment "flowkeep" `,
	} {
		text = strings.Replace(text, noCondition, " ", 1)
	}
	rule = strings.Fields(packetCount.ReplaceAllString(text, " "))
	if len(rule) != words+1 || rule[words] != accept || !slices.Contains([]string{"fk-+", "fk-*"}, strings.Trim(rule[1], `"`)) {
		return ""
	}
	return map[string]string{in: "i", out: "o"}[rule[0]]
}

// packetCount is what a counter of nftables has counted.
var packetCount = regexp.MustCompile(` packets \d+ bytes \d+ `)

func after(words []string, word string) string {
	if i := slices.Index(words, word); i >= 0 && i+1 < len(words) {
		return words[i+1]
	}
	return ""
}

// firewall: what one chain drops no other lets through, whichever table it is in.
func (b *book) firewall(list []Chains) {
	const check = "firewall"
	seen := map[string]bool{}
	known, walled := false, false
	for _, c := range list {
		known = known || !c.Absent && c.Listing.known()
		walled = walled || slices.Contains(c.Listing.Value, "firewalld")
		for _, h := range c.Drops {
			if seen[h.Chain] { // of iptables that writes nftables both tell
				continue
			}
			seen[h.Chain] = true
			switch {
			case h.On == "input":
				b.add(check, Note, fmt.Sprintf("the chain %s drops what to this node no rule accepts", h.Chain), "have it accept TCP 7443 and 7445 from the other nodes where netmaster runs, 7444 there from the API server, and UDP 6081 for tunnels")
			case !h.Lets && slices.Contains([]string{"ip filter FORWARD", "ip6 filter FORWARD"}, h.Chain):
				b.add(check, Note, fmt.Sprintf("the chain %s drops what is forwarded and no rule accepts", h.Chain),
					opening(h.Chain)+"; netplugin does the same, and again when they are removed")
			case h.Lets:
				b.ok(check, "the chain %s drops what no rule accepts, and accepts Flowkeep's interfaces", h.Chain)
			default:
				b.add(check, Warning, fmt.Sprintf("the chain %s drops what is forwarded and no rule accepts: pods reach nothing beyond their node", h.Chain), opening(h.Chain))
			}
		}
	}
	if walled {
		b.add(check, Warning, "firewalld is active, which rejects what is forwarded between interfaces of no zone of its",
			"firewall-cmd --permanent --zone=trusted --add-interface=fk-gw --add-interface=fk-wire "+
				"--add-interface=fk-out; "+
				"the same with --add-source=CIDR for each cluster CIDR; "+
				"in firewalld.conf not IPv6_rpfilter=strict-forward, and no with FirewallBackend=iptables; "+
				"firewall-cmd --reload; or stop firewalld")
	}
	if len(seen) == 0 && !walled && known {
		b.ok(check, "no chain of the node's drops by its policy what is forwarded, or comes to it")
	}
}

// opening returns commands that make a chain accept packets of Flowkeep's interfaces.
func opening(chain string) string {
	const stay = "; and the same wherever the policy is set (Docker, ufw, a script), so that it stays"
	family, name, _ := strings.Cut(chain, " ")
	tools := map[string]string{
		"ip":  "iptables",
		"ip6": "ip6tables",

		legacy + "ip":  "iptables-legacy",
		legacy + "ip6": "ip6tables-legacy",
	}
	if tool, is := tools[family]; is && name == "filter FORWARD" {
		return fmt.Sprintf("%[1]s -I FORWARD -i fk-+ -j ACCEPT && %[1]s -I FORWARD -o fk-+ -j ACCEPT", tool) + stay
	}
	return fmt.Sprintf(`nft insert rule %[1]s iifname '"fk-*"' accept && nft insert rule %[1]s oifname '"fk-*"' accept`, chain) + stay
}
