package hostnet

import (
	"net/netip"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// firewalldAsAdvised runs a real firewalld with a bus of its own, as netctl doctor and docs/field.md advise, reloads it,
// and leaves its rules.
const firewalldAsAdvised = `unshare -m -p -f --kill-child sh -ec '
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/log
mkdir -p /run/dbus /run/firewalld
cp -r /etc/firewalld /run/etc
mount --bind /run/etc /etc/firewalld
dbus-daemon --system --fork --nopidfile
{ echo "<zone target=\"ACCEPT\"><interface name=\"fk-gw\"/><interface name=\"fk-wire\"/>"
echo "<interface name=\"fk-out\"/>"
echo "<source address=\"10.244.0.0/16\"/><source address=\"fd00:244::/32\"/></zone>"; } >/etc/firewalld/zones/trusted.xml
firewalld --nofork --nopid &
for n in $(seq 600); do if firewall-cmd --state; then break; fi; sleep 0.1; done
firewall-cmd --reload
nft list table inet firewalld | grep -q fk-gw
nft list table inet firewalld | grep -q "fib saddr"
kill -9 $!
' >/dev/null 2>&1`

// TestSetup_Firewalld: with a firewalld that is configured as advised, pods reach the outside, and pods elsewhere reach
// them.
func TestSetup_Firewalld(t *testing.T) {
	for _, program := range []string{"firewalld", "dbus-daemon"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs " + program)
		}
	}
	h, cfg := host(t), nodeConfig()
	in(t, h, func() error {
		sockets := serviceHost(t, cfg)
		shell(t, firewalldAsAdvised+"; ip -6 route add fd00:244:2::/64 dev under")
		under := macOf(t, "under")
		for _, w := range []struct{ port, to, from, dst string }{
			{Out, "under", "10.244.1.5", "198.51.100.7"},
			{Out, "under", "fd00:244:1::5", "2001:db8::7"},
			{"under", Gateway, "10.244.2.5", "10.244.1.5"},
			{"under", Gateway, "fd00:244:2::5", "fd00:244:1::5"},
		} {
			mac := under
			if w.port == Out {
				mac = cfg.OutMAC[:]
			}
			frame := udpFrame(mac, netip.MustParseAddr(w.from), netip.MustParseAddr(w.dst), "from "+w.from)
			if _, err := unix.Write(sockets[w.port], frame); err != nil {
				return err
			}
			heardUntil(t, sockets[w.to], "from "+w.from)
		}
		serviceOfPod(t, cfg, sockets)
		return nil
	})
}
