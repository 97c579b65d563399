package hostnet

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// waitingDamage are changes of things without which no packet passes that policies deny, by the thing.
var waitingDamage = map[string]string{
	"link fk-gw":                       "ip link set fk-gw mtu 1350",
	"link fk-wire":                     "ip link set fk-wire arp on",
	"address 10.244.1.1":               "ip addr del 10.244.1.1/32 dev fk-gw",
	"address 203.0.113.7":              "ip addr add 203.0.113.7/32 dev fk-gw",
	"neighbour fe80::f1:103":           "ip -6 neigh del fe80::f1:103 dev fk-gw",
	"sysctl ipv4/ip_forward":           "echo 0 >/proc/sys/net/ipv4/ip_forward",
	"route 10.244.2.0/24 in table 254": "ip route del 10.244.2.0/24 via 192.0.2.12",
	"route ::/0 in table 26215":        "ip -6 route del default table 26215",
	"rule 59":                          "ip rule del pref 59",
	"rule 62":                          "ip -6 rule del pref 62",
	"rule 63":                          "ip -6 rule del pref 63",
	"nftables ip filter FORWARD":       "iptables-nft -F FORWARD",
}

// guardDamage are changes of things that keep packets from passing that policies deny, or that probes of pods need.
var guardDamage = map[string]string{
	"nftables flowkeep":                        "nft delete table inet flowkeep",
	"rule 60":                                  "ip rule del pref 60",
	"rule 101":                                 "ip rule del pref 101",
	"route 10.244.1.0/24 in table 26216":       "ip route flush table 26216",
	"rule 61":                                  "ip rule del pref 61",
	"route 10.244.0.0/16 in table 26217":       "ip route flush table 26217",
	"rule 100":                                 "ip rule del pref 100; ip rule add pref 0 table local",
	"route 0.0.0.0/0 in table 26214":           "ip route del default via 169.254.102.1 table 26214",
	"route blackhole 0.0.0.0/0 in table 26214": "ip route del blackhole default table 26214",
}

// TestSetup_Waits: what Postpone names stays as it is, and is repaired when it waits no longer. Things that
// are a layer of their own never wait.
func TestSetup_Waits(t *testing.T) {
	h, cfg := host(t), nodeConfig()
	cfg.Kept = new(Kept)
	in(t, h, func() error {
		shell(t, "iptables-nft -P FORWARD DROP")
		for range 2 {
			if err := Setup(cfg); err != nil {
				return err
			}
		}
		for thing, command := range waitingDamage {
			called, changed := setUpAfter(t, cfg, command, thing)
			if !slices.Contains(called, thing) || slices.Contains(changed, thing) {
				t.Errorf("%s: called Postpone for %q, wrote %q", command, called, changed)
			}
			if _, changed := setUpAfter(t, cfg, "true", ""); !slices.Contains(changed, thing) {
				t.Errorf("%s: repaired %q, want %q", command, changed, thing)
			}
		}
		for thing, command := range guardDamage {
			called, changed := setUpAfter(t, cfg, command, thing)
			if slices.Contains(called, thing) || !slices.Contains(changed, thing) {
				t.Errorf("%s: called Postpone for %q, repaired %q, want %q", command, called, changed, thing)
			}
		}
		return nil
	})
}

// setUpAfter runs a command and calls Setup, where one thing waits. It returns those for which Setup called Waits, and
// those that it wrote.
func setUpAfter(t *testing.T, cfg *Config, command, waits string) (called, changed []string) {
	t.Helper()
	shell(t, command)
	cfg.Postpone = func(object, name string) bool {
		called = append(called, object+" "+name)
		return object+" "+name == waits
	}
	cfg.Changed = func(object, name string) { changed = append(changed, object+" "+name) }
	if err := Setup(cfg); err != nil {
		t.Errorf("%s: %v", command, err)
	}
	return called, changed
}

// TestSetup_Postponed: where a thing waits on which others depend, Setup repairs those that keep packets from passing,
// and leaves the others without an error until it waits no longer.
func TestSetup_Postponed(t *testing.T) {
	for thing, command := range map[string]string{
		"link fk-gw":                          "ip link set fk-gw down",
		"link fk-wire":                        "ip link set fk-wire mtu 1200",
		"address 10.244.1.1":                  "ip addr flush dev fk-gw",
		"sysctl ipv6/conf/fk-gw/disable_ipv6": "echo 1 >/proc/sys/net/ipv6/conf/fk-gw/disable_ipv6",
	} {
		t.Run(thing, func(t *testing.T) {
			cfg := nodeConfig()
			in(t, host(t), func() error {
				if err := Setup(cfg); err != nil {
					return err
				}
				var changed []string
				cfg.Changed = func(object, name string) { changed = append(changed, object+" "+name) }
				cfg.Postpone = func(object, name string) bool { return object+" "+name == thing }
				shell(t, command+"; ip rule del pref 60; ip route flush table 26214")
				if err := Setup(cfg); err != nil {
					t.Error(err)
				}
				for _, want := range []string{"rule 60", "route blackhole 0.0.0.0/0 in table 26214"} {
					if !slices.Contains(changed, strings.Replace(want, "60", fmt.Sprint(prefService), 1)) {
						t.Errorf("wrote %q, not %s", changed, want)
					}
				}
				if !cfg.Postponed || slices.Contains(changed, thing) {
					t.Errorf("postponed: %v, wrote %q", cfg.Postponed, changed)
				}
				cfg.Postpone = nil
				if err := Setup(cfg); err != nil || cfg.Postponed || !slices.Contains(changed, thing) {
					t.Errorf("postponed: %v (%v), wrote %q", cfg.Postponed, err, changed)
				}
				return nil
			})
		})
	}
}
