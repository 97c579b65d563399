package install

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
)

func TestManagers(t *testing.T) {
	networkd, networkManager := filepath.Join(t.TempDir(), "systemd", "network"), filepath.Join(t.TempDir(), "conf.d")
	want := []string{networkd + "/10-flowkeep.network", networkManager + "/10-flowkeep.conf"}
	for i, again := range [][]string{want, nil} {
		if got, err := Managers(networkd, networkManager); err != nil || !slices.Equal(got, again) {
			t.Errorf("run %d wrote %q (%v), want %q", i, got, err, again)
		}
	}
	if got, err := Managers("", networkManager); err != nil || got != nil {
		t.Errorf("wrote %q (%v)", got, err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(want[1]); err != nil {
		t.Fatal(err)
	}
	if got, err := Managers(file, networkManager); err == nil || !slices.Equal(got, want[1:]) {
		t.Errorf("where one is no directory: wrote %q (%v), want %q", got, err, want[1:])
	}
}

// A real systemd-networkd that is to give all links an address leaves Flowkeep's alone.
func TestManagers_Networkd(t *testing.T) {
	const networkd = "/lib/systemd/systemd-networkd"
	if _, err := os.Stat(networkd); err != nil {
		t.Skip("systemd-networkd is not installed")
	}
	dir := t.TempDir()
	if _, err := Managers(dir, ""); err != nil {
		t.Fatal(err)
	}
	netns.New(t).Do(func() {
		// With a read-only /sys it does not wait for udev.
		out, err := exec.Command("unshare", "-m", "-p", "-f", "--kill-child", "sh", "-ec", `
mount -t tmpfs tmpfs /run
mount --bind /sys /sys
mount -o remount,bind,ro /sys
mkdir -p /run/systemd/netif/links /run/systemd/netif/leases /run/systemd/netif/lldp /run/systemd/network
chown -R systemd-network:systemd-network /run/systemd/netif
cp "$1"/* /run/systemd/network
printf "[Match]\nName=fk* other0\n[Network]\nAddress=198.51.100.9/24\n" >/run/systemd/network/20-all.network
for name in fk-gw fkp1 other0; do
  ip link add $name type veth peer name peer-$name
  ip link set $name up; ip link set peer-$name up
done
`+networkd+` >/dev/null 2>&1 &
n=0
until ip addr show dev other0 | grep -q 198.51.100.9; do n=$((n + 1)); [ $n -lt 600 ]; sleep 0.1; done
ip -4 -o addr show`, "sh", dir).CombinedOutput()
		if text := string(out); err != nil || strings.Contains(text, "fk") || !strings.Contains(text, "other0") {
			t.Errorf("%v; addresses: %s", err, out)
		}
	})
}
