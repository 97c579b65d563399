package native

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
)

// TestPortOfARemovedBridge (U23): the port stays up, with the address that the same document gives it.
func TestPortOfARemovedBridge(t *testing.T) {
	const bridge = "interfaces: [{name: br1, type: linux-bridge, state: up, bridge: {port: [{name: eth1}]}}]"
	const address = ", ipv4: {enabled: true, dhcp: false, address: [{ip: 192.0.2.50, prefix-length: 24}]}}"
	t.Run("kernel", func(t *testing.T) {
		netns.New(t).Enter(t)
		b := newBench(t, Config{})
		b.apply(devices)
		for _, port := range []string{"", ", {name: eth1, state: up" + address} {
			b.apply(bridge)
			b.apply("interfaces: [{name: br1, state: absent}" + port + "]")
			out, err := exec.Command("ip", "addr", "show", "eth1").CombinedOutput()
			if text := string(out); err != nil || !strings.Contains(text, ",UP") || strings.Contains(text, "master") ||
				strings.Contains(text, "192.0.2.50/24") != (port != "") {
				t.Errorf("%v: %s", err, text)
			}
		}
	})
	b := &bench{onFake(newFake()), t}
	b.apply(bridge)
	b.apply("interfaces: [{name: br1, state: absent}, {name: eth1, type: ethernet, state: up" + address + "]")
}

// TestAnotherTagOfAnAccessPort (U23): only the port's VLANs change.
func TestAnotherTagOfAnAccessPort(t *testing.T) {
	b := &bench{onFake(newFake()), t}
	port := func(tag string) string {
		return "interfaces: [{name: br1, type: linux-bridge, state: up, " +
			"bridge: {port: [{name: eth1, vlan: {mode: access, tag: " + tag + "}}]}}]"
	}
	b.apply(port("100"))
	if c := b.apply(port("101")); !slices.Equal(c.Steps, []string{"set options of eth1: vlan=[{101 true true}]"}) {
		t.Errorf("%q", c.Steps)
	}
}
