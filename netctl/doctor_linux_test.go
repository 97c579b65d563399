package main

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/netctl/doctor"
)

// brokenNode is a node in network and mount namespaces of the test's own, in which much is wrong.
const brokenNode = `set -e
mkdir -p /etc/containerd
mount -t tmpfs tmpfs /etc/containerd
printf '[plugins."io.containerd.grpc.v1.cri".cni]\n  bin_dir = "/usr/lib/cni"\n  conf_dir = "/k3s/net.d"\n' >/etc/containerd/config.toml
ip link add eth0 mtu 1400 type veth peer name far
ip link add fk-gw mtu 1500 type veth peer name far2
ip link add cali12ab type veth peer name far3
ip addr add 192.0.2.11/24 dev eth0
ip link set eth0 up
ip link set far up
ip route add default via 192.0.2.1
iptables -P FORWARD DROP
nft 'add table inet wall; add chain inet wall in { type filter hook input priority 5; policy drop; }; add chain inet wall through { type filter hook forward priority 5; policy drop; }'
`

// TestDoctorOnABrokenNode: each thing that is wrong on a real node is found, with what to do; what is said to do about a firewall helps.
func TestDoctorOnABrokenNode(t *testing.T) {
	for _, program := range []string{"ip", "iptables", "nft"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	b, s := doctorCluster(t, wellObjects)
	s.refuse = func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Date", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusForbidden)
		return true
	}
	netns.New(t).EnterWithMounts(t)
	shell := func(script string) {
		t.Helper()
		if out, err := exec.Command("bash", "-c", script).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s\n%s", err, out, script)
		}
	}
	shell(brokenNode)
	l, err := net.Listen("tcp", "127.0.0.1:9441")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "05-x.conf"), []byte(`{"type": "calico", "name": "x"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	look := func() (r doctor.Report) {
		t.Helper()
		out, errOut, code := b.run("doctor", "node", "-o", "json", "--traffic-mode", "geneve",
			"--state-dir", dir, "--cni-conf-dir", dir, "--ovs-run-dir", dir,
			"--cni-socket", filepath.Join(dir, "cni.sock"))
		if err := json.Unmarshal([]byte(out), &r); err != nil || code != 1 {
			t.Fatalf("exit code %d: %v\n%s%s", code, err, out, errOut)
		}
		return r
	}
	r := look()
	finding := func(check string, level doctor.Level, seen string) *doctor.Finding {
		t.Helper()
		at := slices.IndexFunc(r.Findings, func(f doctor.Finding) bool {
			return f.Check == check && f.Level == level && strings.Contains(f.Seen, seen)
		})
		if at < 0 {
			t.Fatalf("no %s of %s with %q among %+v", level, check, seen, r.Findings)
		}
		return &r.Findings[at]
	}
	for _, want := range []struct {
		check    string
		level    doctor.Level
		seen, do string
	}{
		{"cni", doctor.Problem, "05-x.conf is of Calico and comes before 10-flowkeep.conflist", "remove that network"},
		{"cni", doctor.Problem, "by /etc/containerd/config.toml the container runtime looks for CNI configurations in /k3s/net.d, and not in " + dir, "netplugin.cniConfDir=/k3s/net.d"},
		{"cni", doctor.Problem, "CNI plugins in /usr/lib/cni, and not in /opt/cni/bin", "netplugin.cniBinDir=/usr/lib/cni"},
		{"mtu", doctor.Warning, "an MTU of 1400: pods have 1350 in traffic mode geneve, and netplugin's interface fk-gw has 1500", "--mtu"},
		{"other-networks", doctor.Warning, "Calico makes them: cali12ab", "remove Calico"},
		{"clock", doctor.Problem, "behind the API server's", "timedatectl"},
		{"ports", doctor.Problem, "TCP/9441, for netplugin's metrics, is held by netctl", "ss -tlnp"},
		{"firewall", doctor.Note, "ip filter FORWARD drops", "iptables -I FORWARD -i fk-+ -j ACCEPT"},
		{"firewall", doctor.Warning, "inet wall through drops", "nft insert rule inet wall through"},
		{"firewall", doctor.Note, "inet wall in drops", "7443"},
		{"modules", doctor.OK, "nf_tables is there", ""},
		{"host-network", doctor.Note, "netplugin does not listen on " + dir, ""},
	} {
		if f := finding(want.check, want.level, want.seen); !strings.Contains(f.Do, want.do) {
			t.Errorf("%s: do %q, want %q", f.Seen, f.Do, want.do)
		}
	}
	for chain, level := range map[string]doctor.Level{
		"ip filter FORWARD": doctor.Note,
		"inet wall through": doctor.Warning,
	} {
		do, _, _ := strings.Cut(finding("firewall", level, chain).Do, ";")
		shell(do)
	}
	r = look()
	finding("firewall", doctor.OK, "ip filter FORWARD drops what no rule accepts, and accepts")
	finding("firewall", doctor.OK, "inet wall through drops what no rule accepts, and accepts")
}
