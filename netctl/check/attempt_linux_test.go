package check

import (
	"context"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
)

// ip runs ip(8), one command a line.
func ip(t *testing.T, commands string) {
	t.Helper()
	for line := range strings.Lines(commands) {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", line, err, out)
		}
	}
}

// TestEchoWhole_NarrowLink: packets of the client's MTU come back over a router, and do not where a link on the way is
// narrower than the pods' own.
func TestEchoWhole_NarrowLink(t *testing.T) {
	client, router, server := netns.NewNamed(t, "client"), netns.NewNamed(t, "router"), netns.NewNamed(t, "server")
	ip(t, strings.NewReplacer("CLIENT", client.Name(), "ROUTER", router.Name(), "SERVER", server.Name()).Replace(
		`-n CLIENT link add eth0 mtu 1500 up type veth peer name client netns ROUTER
		-n SERVER link add eth0 mtu 1500 up type veth peer name server netns ROUTER
		-n ROUTER link set client up
		-n ROUTER link set server up
		-n ROUTER addr add 192.0.2.1/25 dev client
		-n ROUTER addr add 192.0.2.129/25 dev server
		-n ROUTER addr add fd00:1::1/64 dev client nodad
		-n ROUTER addr add fd00:2::1/64 dev server nodad
		-n CLIENT addr add 192.0.2.2/25 dev eth0
		-n CLIENT addr add fd00:1::2/64 dev eth0 nodad
		-n SERVER addr add 192.0.2.130/25 dev eth0
		-n SERVER addr add fd00:2::2/64 dev eth0 nodad
		-n CLIENT route add default via 192.0.2.1
		-n SERVER route add default via 192.0.2.129
		-n CLIENT route add default via fd00:1::1
		-n SERVER route add default via fd00:2::1
		netns exec ROUTER sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1`))
	routes := map[string]string{"udp4": "192.0.2.128/25", "udp6": "fd00:2::/64 metric 256"}
	for network, address := range map[string]string{"udp4": "192.0.2.130:8080", "udp6": "[fd00:2::2]:8080"} {
		server.Do(func() {
			conn, err := (&net.ListenConfig{Control: dontFragment}).ListenPacket(t.Context(), network, address)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			go echo(conn)
		})
		send := func() (note string, err error) {
			ctx, cancel := context.WithTimeout(t.Context(), attemptTimeout)
			defer cancel()
			client.Do(func() { note, err = (&Probe{Kind: KindMTU, Address: address}).attempt(ctx) })
			return note, err
		}
		note, err := send()
		for end := time.Now().Add(20 * time.Second); err != nil && time.Now().Before(end); { // duplicate address detection
			note, err = send()
		}
		if err != nil || note != "1500 bytes" {
			t.Errorf("%s: %q, %v", address, note, err)
		}
		// In one direction: the reply of a packet that was fragmented would pass.
		ip(t, "-n "+router.Name()+" route replace "+routes[network]+" dev server mtu lock 1400")
		const want = "a packet of the interface's MTU gets no reply"
		for range 2 { // the second time the kernel knows the path's MTU, and must not fragment the packet
			if note, err := send(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s behind a narrow link: %q, %v", address, note, err)
			}
		}
	}
}
