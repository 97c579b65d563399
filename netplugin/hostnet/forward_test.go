package hostnet

import (
	"errors"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// forwards returns the rules of a chain FORWARD as iptables(8) lists them.
func forwards(t *testing.T, tool string) []string {
	t.Helper()
	out, err := exec.Command(tool, "-S", "FORWARD").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// Where Docker has the chain FORWARD drop, pods' packets are accepted behind the chain's other rules, once, and again
// after a flush. Teardown removes the rules, and no others.
func TestSetup_ForwardDrops(t *testing.T) {
	if _, err := exec.LookPath("iptables-nft"); err != nil {
		t.Skip("needs iptables-nft")
	}
	h, cfg := host(t), nodeConfig()
	in(t, h, func() error {
		if err := Setup(cfg); err != nil {
			return err
		}
		shell(t, "iptables-nft -P FORWARD ACCEPT; iptables-nft -A FORWARD -i docker0 -j ACCEPT")
		if err := Setup(cfg); err != nil {
			return err
		}
		want := []string{"-P FORWARD ACCEPT", "-A FORWARD -i docker0 -j ACCEPT"}
		if got := forwards(t, "iptables-nft"); !slices.Equal(got, want) {
			t.Errorf("rules %q of a chain that accepts, want %q", got, want)
		}
		shell(t, "iptables-nft -P FORWARD DROP; ip6tables-nft -P FORWARD DROP")
		for _, damage := range []string{"", "iptables-nft -F FORWARD; iptables-nft -A FORWARD -i docker0 -j ACCEPT",
			"iptables-nft -D FORWARD 2; iptables-nft -S >/dev/null", ""} {
			shell(t, damage)
			if err := Setup(cfg); err != nil {
				return err
			}
			for _, tool := range []string{"iptables-nft", "ip6tables-nft"} {
				got := forwards(t, tool)
				want := []string{`-A FORWARD -i fk-+ -m comment --comment flowkeep -j ACCEPT`,
					`-A FORWARD -o fk-+ -m comment --comment flowkeep -j ACCEPT`}
				n := len(got)
				if n < 3 || got[0] != "-P FORWARD DROP" || !slices.Equal(got[n-2:], want) ||
					strings.Count(strings.Join(got, "\n"), "fk-+") != 2 {
					t.Errorf("after %q, %s: rules %q, want at the end %q", damage, tool, got, want)
				}
			}
		}
		if left, err := Remains(DefaultNumbers); err != nil || !slices.Contains(left, "nftables rules of chain ip filter FORWARD") {
			t.Errorf("remains: %q (%v)", left, err)
		}
		if err := teardown(); err != nil {
			return err
		}
		want = []string{"-P FORWARD DROP", "-A FORWARD -i docker0 -j ACCEPT"}
		if got := forwards(t, "iptables-nft"); !slices.Equal(got, want) {
			t.Errorf("rules %q after Teardown, want %q", got, want)
		}
		return nil
	})
}

// TestLegacyDrops checks that LegacyDrops returns an error if iptables-legacy drops forwarded packets and no rule
// accepts those of pods.
func TestLegacyDrops(t *testing.T) {
	if _, err := exec.LookPath("iptables-legacy"); err != nil {
		t.Skip("needs iptables-legacy")
	}
	const docker = `-P FORWARD DROP; iptables-legacy -N DOCKER; iptables-legacy -A FORWARD -j DOCKER
		iptables-legacy -A DOCKER -i docker0 ! -o docker0 -j ACCEPT
		iptables-legacy -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
		iptables-legacy -A FORWARD -p tcp -j ACCEPT`
	for name, test := range map[string]struct {
		command string
		drops   bool
	}{
		"nothing":            {"true", false},
		"accepts":            {"iptables-legacy -P FORWARD ACCEPT", false},
		"drops":              {"iptables-legacy -P FORWARD DROP", true},
		"IPv6 drops":         {"ip6tables-legacy -P FORWARD DROP", true},
		"Docker":             {"iptables-legacy " + docker, true},
		"only INPUT accepts": {"iptables-legacy -P FORWARD DROP; iptables-legacy -A INPUT -j ACCEPT", true},
		"and accepts Flowkeep's": {"iptables-legacy " + docker + "; " +
			"iptables-legacy -A FORWARD -i fk-+ -j ACCEPT", false},
		"and accepts the podCIDR": {"iptables-legacy " + docker + "; " +
			"iptables-legacy -A DOCKER -s 10.244.0.0/16 -m comment --comment x -j ACCEPT", false},
		"and accepts all": {"iptables-legacy -P FORWARD DROP; iptables-legacy -A FORWARD -j ACCEPT", false},
		"and all but Docker's": {"iptables-legacy -P FORWARD DROP; " +
			"iptables-legacy -A FORWARD ! -i docker0 -j ACCEPT", false},
		"and accepts IPv6 of pods": {"ip6tables-legacy -P FORWARD DROP; " +
			"ip6tables-legacy -A FORWARD -o fk-gw -j ACCEPT", false},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, host(t), func() error {
				shell(t, test.command)
				if err := LegacyDrops(); errors.Is(err, ErrForwardDrops) != test.drops {
					t.Errorf("after %q: %v, want an error: %v", test.command, err, test.drops)
				}
				return nil
			})
		})
	}
}

// A packet from a pod to another node leaves the node though the chain FORWARD drops.
func TestSetup_ForwardDrops_Packets(t *testing.T) {
	if _, err := exec.LookPath("iptables-nft"); err != nil {
		t.Skip("needs iptables-nft")
	}
	h, cfg := host(t), nodeConfig()
	in(t, h, func() error {
		sockets := serviceHost(t, cfg)
		shell(t, "iptables-nft -P FORWARD DROP")
		send := func(text string) {
			from, to := netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("10.244.2.5")
			frame := udpFrame(cfg.WireMAC[:], from, to, text)
			if _, err := unix.Write(sockets[Wire], frame); err != nil {
				t.Fatal(err)
			}
		}
		if send("dropped"); heardWithin(sockets["under"], "dropped", 200*time.Millisecond) {
			t.Error("the chain drops nothing: the test shows nothing")
		}
		if err := Setup(cfg); err != nil {
			return err
		}
		send("accepted")
		heardUntil(t, sockets["under"], "accepted")
		return nil
	})
}
