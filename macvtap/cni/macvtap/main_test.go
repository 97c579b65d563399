package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/macvtap"
	"github.com/flowkeep/flowkeep/macvtap/tap"
	"github.com/flowkeep/flowkeep/macvtap/taptest"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// asPlugin makes the test's own program the plugin.
const asPlugin = "FLOWKEEP_MACVTAP_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(asPlugin) != "" {
		main()
		return
	}
	var err error
	if ipamPlugins, err = os.MkdirTemp("", "flowkeep-ipam"); err != nil {
		panic(err)
	}
	os.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0") // under the race detector each plugin would sleep for a second as it ends
	code := m.Run()
	os.RemoveAll(ipamPlugins)
	os.Exit(code)
}

// ipamPlugins is the directory that builtIPAM fills.
var ipamPlugins string

const (
	device = "dataplane:eth0:0"
	wish   = "02:00:00:00:00:01"
)

// node is a node of tests, with one parent and one allocated device.
type node struct {
	t             *testing.T
	host, outside *netns.Namespace
	store         *tap.Store
	dir           string
	device        tap.Device
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, dir: t.TempDir()}
	n.host, n.outside = taptest.Node(t, "eth0")
	var err error
	if n.store, err = tap.Open(n.dir); err != nil {
		t.Fatal(err)
	}
	taptest.In(t, n.host, func() error {
		if n.device, err = n.store.Allocate("dataplane", "eth0", macvtap.Bridge, device); err == nil {
			err = n.store.Drop(device, 1) // what is on the node is the device plugin's
		}
		return err
	})
	return n
}

// in is the node for a part of the test.
func (n node) in(t *testing.T) *node {
	n.t = t
	return &n
}

// conf is a network configuration; more are its fields beside the usual ones.
func (n *node) conf(version, more string) string {
	if more != "" {
		more = ", " + more
	}
	return fmt.Sprintf(`{"cniVersion": %q, "name": "net", "type": "macvtap", "stateDir": %q%s}`, version, n.dir, more)
}

func (n *node) plugin(command, conf string, pod *netns.Namespace, env ...string) (map[string]any, error) {
	n.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asPlugin+"=1", "CNI_COMMAND="+command, "CNI_PATH="+ipamDir(n.t), "CNI_CONTAINERID=c1", "CNI_IFNAME=net1", "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAME=vm")
	if pod != nil {
		cmd.Env = append(cmd.Env, "CNI_NETNS="+pod.Path())
	}
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdin = strings.NewReader(conf)
	cmd.Stderr = n.t.Output()
	var out []byte
	var failed error
	taptest.In(n.t, n.host, func() error { out, failed = cmd.Output(); return nil })
	var answer map[string]any
	if len(out) > 0 {
		if err := json.Unmarshal(out, &answer); err != nil {
			n.t.Fatalf("%s printed %q: %v", command, out, err)
		}
	}
	return answer, failed
}

func (n *node) must(command, conf string, pod *netns.Namespace, env ...string) map[string]any {
	n.t.Helper()
	out, err := n.plugin(command, conf, pod, env...)
	if err != nil {
		n.t.Fatalf("%s: %v (%v)", command, out, err)
	}
	return out
}

// wantNothing fails the test if a pod has a link, or the state directory a node or an attachment.
func (n *node) wantNothing(pod *netns.Namespace) {
	n.t.Helper()
	if links := taptest.Links(n.t, pod); len(links) > 0 {
		n.t.Errorf("links %v are left in the pod", links)
	}
	if links := taptest.Links(n.t, n.host); !slices.Equal(links, []string{"eth0"}) {
		n.t.Errorf("links %v are left on the node", links)
	}
	for _, dir := range []string{"dev", "attached"} {
		if entries, err := os.ReadDir(filepath.Join(n.dir, dir)); err != nil || len(entries) > 0 {
			n.t.Errorf("%s has %v (%v)", dir, entries, err)
		}
	}
}

func withPrevious(conf string, result map[string]any) string {
	text, _ := json.Marshal(result)
	return strings.TrimSuffix(conf, "}") + `, "prevResult": ` + string(text) + "}"
}

var builtIPAM = sync.OnceValue(func() error {
	for _, name := range []string{"host-local", "static"} {
		cmd := exec.Command("go", "build", "-o", ipamPlugins+"/", "github.com/containernetworking/plugins/plugins/ipam/"+name)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	return nil
})

// ipamDir has the IPAM plugins of the module's version: distributions' are often too old for version 1.1.0.
func ipamDir(t *testing.T) string {
	t.Helper()
	if err := builtIPAM(); err != nil {
		t.Fatal(err)
	}
	return ipamPlugins
}

// All commands in all versions that have them; a frame goes out, and the result names what there is.
func TestEveryVersion(t *testing.T) {
	n := newNode(t)
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			n := n.in(t)
			pod := netns.NewNamed(t, "pod")
			conf := n.conf(version, fmt.Sprintf(`"deviceID": %q, "mac": %q, "mtu": 1400`, device, wish))
			out := n.must("ADD", conf, pod)
			i := out["interfaces"].([]any)[0].(map[string]any)
			if out["cniVersion"] != version || i["name"] != "net1" || i["mac"] != wish || i["sandbox"] != pod.Path() || out["ips"] != nil {
				t.Errorf("ADD: %v", out)
			}
			if mtu, ok := i["mtu"]; ok != (version >= "1.0.0") || ok && mtu != 1400.0 {
				t.Errorf("MTU: %v", mtu)
			}
			taptest.OpenTap(t, n.device.HostPath).Send([]byte{2, 0, 0, 0, 0, 1}, []byte{2, 0, 0, 0, 0, 2}, version)
			if version != "0.3.1" {
				n.must("CHECK", withPrevious(conf, out), pod)
			}
			if version == "1.1.0" {
				n.must("STATUS", conf, nil)
				n.must("GC", n.conf(version, `"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "net1"}]`), nil)
				n.must("CHECK", withPrevious(conf, out), pod)
				n.must("GC", n.conf(version, `"cni.dev/attachments": []`), nil)
				n.wantNothing(pod)
			}
			n.must("DEL", conf, pod)
			n.must("DEL", conf, pod)
			n.must("DEL", conf, nil)
			n.wantNothing(pod)
		})
	}
}

func TestVersionsAreTold(t *testing.T) {
	n := newNode(t)
	out, err := n.plugin("VERSION", "", nil)
	if err != nil || len(out["supportedVersions"].([]any)) < 6 {
		t.Errorf("%v (%v)", out, err)
	}
}

func TestTheNodesOwner(t *testing.T) {
	n := newNode(t)
	for more, want := range map[string][2]uint32{``: {107, 107}, `, "owner": 0, "group": 36`: {0, 36}} {
		pod := netns.NewNamed(t, "pod")
		conf := n.conf("1.1.0", `"deviceID": "`+device+`"`+more)
		n.must("ADD", conf, pod)
		var st unix.Stat_t
		if err := unix.Stat(n.device.HostPath, &st); err != nil || st.Uid != want[0] || st.Gid != want[1] || st.Mode&0o777 != 0o660 {
			t.Errorf("the node is %d:%d's, mode %o (%v)", st.Uid, st.Gid, st.Mode&0o777, err)
		}
		n.must("DEL", conf, pod)
	}
}

// The guide's NetworkAttachmentDefinition is one that works, with what multus adds: the network's name and the device's id.
func TestGuide(t *testing.T) {
	guide, err := os.ReadFile("../../../docs/macvtap.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?s)kind: NetworkAttachmentDefinition.*?config: '(.*?)'`).FindSubmatch(guide)
	if found == nil {
		t.Fatal("the guide has no NetworkAttachmentDefinition")
	}
	n := newNode(t)
	pod := netns.NewNamed(t, "pod")
	taptest.In(t, n.host, func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(link, 9000)
	})
	config := map[string]any{}
	if err := json.Unmarshal(found[1], &config); err != nil {
		t.Fatal(err)
	}
	config["name"], config["deviceID"], config["stateDir"] = "macvtap0", device, n.dir
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	n.must("ADD", string(text), pod)
	taptest.In(t, pod, func() error {
		link, err := netlink.LinkByName("net1")
		if err == nil && link.Attrs().MTU != 9000 {
			t.Errorf("an MTU of %d", link.Attrs().MTU)
		}
		return err
	})
	n.must("DEL", string(text), pod)
	n.wantNothing(pod)
}

// What the runtime asks for comes before what the configuration has; multus and others have it in different places.
func TestWhereMACsComeFrom(t *testing.T) {
	n := newNode(t)
	for name, c := range map[string]struct{ more, env, want string }{
		"configuration": {`"mac": "02:00:00:00:00:03"`, "", "02:00:00:00:00:03"},
		"CNI_ARGS":      {`"mac": "02:00:00:00:00:03"`, "CNI_ARGS=IgnoreUnknown=1;MAC=02:00:00:00:00:04", "02:00:00:00:00:04"},
		"args.cni":      {`"args": {"cni": {"mac": "02:00:00:00:00:05"}}`, "CNI_ARGS=MAC=02:00:00:00:00:04", "02:00:00:00:00:05"},
		"runtimeConfig": {`"runtimeConfig": {"mac": "02-00-00-00-00-06"}, "args": {"cni": {"mac": "02:00:00:00:00:05"}}`, "X=", "02:00:00:00:00:06"},
	} {
		pod := netns.NewNamed(t, "pod")
		conf := n.conf("1.0.0", `"deviceID": "`+device+`", `+c.more)
		out := n.must("ADD", conf, pod, c.env)
		if i := out["interfaces"].([]any)[0].(map[string]any); i["mac"] != c.want {
			t.Errorf("%s: %v", name, i)
		}
		n.must("DEL", conf, pod)
	}
}

func TestWithoutADevicePlugin(t *testing.T) {
	n := newNode(t)
	for _, more := range []string{`"lowerDevice": "eth0"`, `"master": "eth0", "mode": "private"`, `"runtimeConfig": {"deviceID": "` + device + `"}`} {
		pod := netns.NewNamed(t, "pod")
		conf := n.conf("1.1.0", more)
		out := n.must("ADD", conf, pod)
		node := filepath.Join(n.dir, "dev", "c1@net1")
		if strings.Contains(more, "deviceID") {
			node = n.device.HostPath
		}
		mac := out["interfaces"].([]any)[0].(map[string]any)["mac"].(string)
		vm, wire := taptest.OpenTap(t, node), taptest.OpenPacket(t, n.outside, taptest.Peer)
		vm.Send(hardware(t, mac), []byte{2, 0, 0, 0, 0, 9}, "direct")
		wire.Want("direct")
		n.must("CHECK", withPrevious(conf, out), pod)
		n.must("DEL", conf, pod)
		n.wantNothing(pod)
	}
}

func hardware(t *testing.T, text string) net.HardwareAddr {
	t.Helper()
	mac, err := net.ParseMAC(text)
	if err != nil {
		t.Fatal(err)
	}
	return mac
}

func TestErrorsSayWhatToDo(t *testing.T) {
	n := newNode(t)
	id := `"deviceID": "` + device + `"`
	previous := `, "prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "net1", "sandbox": "NETNS"}]}`
	for name, c := range map[string]struct {
		command, version, more string
		code                   float64
		text                   string
		env                    []string
	}{
		"nothing to make it of":        {"ADD", "1.0.0", ``, 7, "k8s.v1.cni.cncf.io/resourceName", nil},
		"both":                         {"ADD", "1.0.0", id + `, "lowerDevice": "eth0"`, 7, "leave them out", nil},
		"a mode of a device":           {"ADD", "1.0.0", id + `, "mode": "vepa"`, 7, "leave them out", nil},
		"two parents":                  {"ADD", "1.0.0", `"lowerDevice": "eth0", "master": "eth1"`, 7, "leave one out", nil},
		"unknown device":               {"ADD", "1.0.0", `"deviceID": "x:eth0:0"`, 7, "--state-dir", nil},
		"unknown mode":                 {"ADD", "1.0.0", `"lowerDevice": "eth0", "mode": "source"`, 7, "passthru", nil},
		"parent of 41 characters":      {"ADD", "1.0.0", `"lowerDevice": "` + strings.Repeat("x", 41) + `"`, 7, "15 characters", nil},
		"no such parent":               {"ADD", "1.0.0", `"lowerDevice": "eth9"`, 11, "no interface eth9", nil},
		"MTU above the parent's":       {"ADD", "1.0.0", id + `, "mtu": 9000`, 7, "has 1500", nil},
		"an MTU that is a text":        {"ADD", "1.0.0", id + `, "mtu": "1500"`, 6, "mtu", nil},
		"no MAC":                       {"ADD", "1.0.0", id + `, "mac": "eth0"`, 7, "no MAC address", nil},
		"a multicast MAC":              {"ADD", "1.0.0", id + `, "mac": "01:00:00:00:00:00"`, 7, "of one interface", nil},
		"a relative directory":         {"ADD", "1.0.0", `"stateDir": "x"`, 7, "absolute", nil},
		"an owner below 0":             {"ADD", "1.0.0", id + `, "owner": -1`, 7, "from 0", nil},
		"no network namespace":         {"ADD", "1.0.0", id, 3, "/gone", []string{"CNI_NETNS=/gone"}},
		"the node's network namespace": {"ADD", "1.0.0", id, 8, "node's network namespace", []string{"CNI_NETNS=" + n.host.Path()}},
		"an interface name of 16":      {"ADD", "1.0.0", id, 4, "", []string{"CNI_IFNAME=" + strings.Repeat("x", 16)}},
		"a container that is a path":   {"ADD", "1.0.0", id, 4, "", []string{"CNI_CONTAINERID=../c1"}},
		"arguments that are none":      {"ADD", "1.0.0", id, 4, "CNI_ARGS", []string{"CNI_ARGS=x"}},
		"an interface that is there":   {"ADD", "1.0.0", id, 7, "already", []string{"CNI_IFNAME=lo"}},
		"no such IPAM plugin":          {"ADD", "1.0.0", id + `, "ipam": {"type": "none-such"}`, 11, "none-such", nil},
		"IPAM without addresses":       {"ADD", "1.0.0", id + `, "ipam": {"type": "static"}`, 11, "no address", nil},
		"IPAM's own refusal":           {"ADD", "1.0.0", id + `, "ipam": {"type": "static", "addresses": [{"address": "x"}]}`, 11, "IPAM plugin static", nil},
		"CHECK of nothing":             {"CHECK", "1.1.0", id + previous, 11, "not attached", nil},
		"CHECK without a result":       {"CHECK", "1.1.0", id, 7, "prevResult", nil},
		"CHECK of another interface":   {"CHECK", "1.1.0", id + strings.Replace(previous, "net1", "net2", 1), 7, "no interface net1", nil},
		"CHECK with a broken MAC":      {"CHECK", "1.1.0", id + strings.Replace(previous, `"sandbox"`, `"mac": "x", "sandbox"`, 1), 7, "no MAC", nil},
		"GC without its list":          {"GC", "1.1.0", ``, 7, "lose their devices", nil},
		"GC with no list":              {"GC", "1.1.0", `"cni.dev/valid-attachments": 7`, 6, "", nil},
		"STATUS without a directory":   {"STATUS", "1.1.0", `"stateDir": "/proc/none"`, 50, "state directory", nil},
		"STATUS of IPAM":               {"STATUS", "1.1.0", `"ipam": {"type": "none-such"}`, 50, "none-such", nil},
	} {
		pod := netns.NewNamed(t, "pod")
		more := strings.ReplaceAll(c.more, "NETNS", pod.Path())
		out, err := n.plugin(c.command, n.conf(c.version, more), pod, c.env...)
		text, _ := json.Marshal(out)
		if err == nil || out["code"] != c.code || !strings.Contains(string(text), c.text) {
			t.Errorf("%s: %s (%v), want code %v and %q", name, text, err, c.code, c.text)
		}
		n.wantNothing(pod)
	}
}

func TestAddresses(t *testing.T) {
	n := newNode(t)
	leases := t.TempDir()
	for name, ipam := range map[string]string{
		"host-local": fmt.Sprintf(`{"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.9.0.0/30"}], [{"subnet": "fd09::/64", "rangeStart": "fd09::2", "rangeEnd": "fd09::2"}]],
			"routes": [{"dst": "10.77.0.0/16"}]}`, leases),
		"static": `{"type": "static", "addresses": [{"address": "10.9.0.2/24", "gateway": "10.9.0.1"}, {"address": "fd09::2/64"}],
			"routes": [{"dst": "10.77.0.0/16", "gw": "10.9.0.1"}], "dns": {"nameservers": ["10.9.0.1"]}}`,
	} {
		for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
			t.Run(name+" "+version, func(t *testing.T) {
				n := n.in(t)
				pod := netns.NewNamed(t, "pod")
				conf := n.conf(version, `"deviceID": "`+device+`", "ipam": `+ipam)
				out := n.must("ADD", conf, pod)
				ips, _ := json.Marshal(out["ips"])
				for _, want := range []string{`"address":"10.9.0.2/`, `"address":"fd09::2/64"`, `"interface":0`} {
					if !strings.Contains(string(ips), want) {
						t.Errorf("ips %s, want %s", ips, want)
					}
				}
				wantAddresses(t, pod)
				if version != "0.3.1" {
					n.must("CHECK", withPrevious(conf, out), pod)
					taptest.In(t, pod, func() error {
						link, err := netlink.LinkByName("net1")
						if err != nil {
							return err
						}
						addr, _ := netlink.ParseAddr("fd09::2/64")
						return netlink.AddrDel(link, addr)
					})
					if out, err := n.plugin("CHECK", withPrevious(conf, out), pod); err == nil {
						t.Errorf("CHECK without an address: %v", out)
					}
				}
				n.must("DEL", conf, pod)
				n.must("DEL", conf, nil)
				n.wantNothing(pod)
				wantNoLeases(t, leases)
			})
		}
	}
}

func wantAddresses(t *testing.T, pod *netns.Namespace) {
	t.Helper()
	taptest.In(t, pod, func() error {
		link, err := netlink.LinkByName("net1")
		if err != nil {
			return err
		}
		addrs, err := netlink.AddrList(link, netlink.FAMILY_V4)
		if err != nil || len(addrs) != 1 || !strings.HasPrefix(addrs[0].IPNet.String(), "10.9.0.2/") {
			t.Errorf("addresses %v (%v)", addrs, err)
		}
		routes, err := netlink.RouteList(link, netlink.FAMILY_V4)
		if err != nil || !slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Dst != nil && r.Dst.String() == "10.77.0.0/16" }) {
			t.Errorf("routes %v (%v)", routes, err)
		}
		return nil
	})
}

func wantNoLeases(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "net", "10.*"))
	if err != nil || len(files) > 0 {
		t.Errorf("leases are left: %v (%v)", files, err)
	}
}

func TestCheckAsksTheIPAMPlugin(t *testing.T) {
	n := newNode(t)
	leases, pod := t.TempDir(), netns.NewNamed(t, "pod")
	conf := n.conf("1.1.0", fmt.Sprintf(`"deviceID": %q, "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.9.0.0/30"}]]}`, device, leases))
	out := n.must("ADD", conf, pod)
	n.must("CHECK", withPrevious(conf, out), pod)
	if err := os.Remove(filepath.Join(leases, "net", "10.9.0.2")); err != nil {
		t.Fatal(err)
	}
	out, err := n.plugin("CHECK", withPrevious(conf, out), pod)
	if text, _ := json.Marshal(out); err == nil || !strings.Contains(string(text), "IPAM plugin host-local") {
		t.Errorf("a lease that is gone: %s (%v)", text, err)
	}
}

// What comes after the link is undone too: a route that cannot be, and no addresses left.
func TestAddressesThatFailLeaveNothing(t *testing.T) {
	n := newNode(t)
	leases := t.TempDir()
	for more, why := range map[string]string{
		`"ranges": [[{"subnet": "10.9.0.0/30"}]], "routes": [{"dst": "10.77.0.0/16", "gw": "192.0.2.1"}]`: "route",
		`"ranges": [[{"subnet": "10.9.0.0/30", "rangeStart": "10.9.0.1", "rangeEnd": "10.9.0.1"}]]`:       "host-local",
	} {
		pod := netns.NewNamed(t, "pod")
		out, err := n.plugin("ADD", n.conf("1.1.0", fmt.Sprintf(`"deviceID": %q, "ipam": {"type": "host-local", "dataDir": %q, %s}`, device, leases, more)), pod)
		text, _ := json.Marshal(out)
		if err == nil || out["code"] != 11.0 || !strings.Contains(string(text), why) {
			t.Errorf("%s (%v)", text, err)
		}
		n.wantNothing(pod)
		wantNoLeases(t, leases)
	}
}

// Through the library that runtimes use, as the only plugin of a list.
func TestThroughLibcni(t *testing.T) {
	n := newNode(t)
	bin := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\n" + asPlugin + "=1 exec " + self + "\n"
	if err := os.WriteFile(filepath.Join(bin, "macvtap"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"1.0.0", "1.1.0"} {
		list, err := libcni.ConfListFromBytes([]byte(fmt.Sprintf(`{"cniVersion": %q, "name": "net", "plugins": [
			{"type": "macvtap", "capabilities": {"deviceID": true, "mac": true}, "stateDir": %q, "ipam": {"type": "static", "addresses": [{"address": "10.9.0.2/24"}]}}]}`, version, n.dir)))
		if err != nil {
			t.Fatal(err)
		}
		pod := netns.NewNamed(t, "pod")
		cni := libcni.NewCNIConfigWithCacheDir([]string{bin, ipamDir(t)}, t.TempDir(), nil)
		rt := &libcni.RuntimeConf{ContainerID: "c1", NetNS: pod.Path(), IfName: "net1", CapabilityArgs: map[string]any{"deviceID": device, "mac": wish}}
		ctx := context.Background()
		taptest.In(t, n.host, func() error {
			answer, err := cni.AddNetworkList(ctx, list, rt)
			if err != nil {
				return err
			}
			r, err := current.NewResultFromResult(answer)
			if err != nil || len(r.Interfaces) != 1 || r.Interfaces[0].Mac != wish || len(r.IPs) != 1 {
				return fmt.Errorf("result %+v: %w", r, err)
			}
			err = cni.CheckNetworkList(ctx, list, rt)
			if version == "1.1.0" {
				err = errors.Join(err, cni.GetStatusNetworkList(ctx, list),
					cni.GCNetworkList(ctx, list, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "c1", IfName: "net1"}}}),
					cni.CheckNetworkList(ctx, list, rt), cni.GCNetworkList(ctx, list, &libcni.GCArgs{}))
			}
			return errors.Join(err, cni.DelNetworkList(ctx, list, rt), cni.DelNetworkList(ctx, list, rt))
		})
		n.wantNothing(pod)
	}
}

// Whatever the configuration is, what is wanted of it is an error or has a device or a parent, and a good MAC address.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{"cniVersion": "1.1.0", "name": "net", "deviceID": "a:eth0:0", "mtu": 9000, "owner": 107}`), "MAC=02:00:00:00:00:01")
	f.Add([]byte(`{"lowerDevice": "eth0", "mode": "vepa", "runtimeConfig": {"mac": "02:00:00:00:00:01", "deviceID": "x"}}`), "")
	f.Add([]byte(`{"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "net1"}]}`), "IgnoreUnknown=1;X=Y")
	f.Fuzz(func(t *testing.T, conf []byte, env string) {
		c, err := parse(conf)
		if err != nil {
			return
		}
		_, _ = c.valid()
		_, _ = c.previous()
		w, err := c.want(&skel.CmdArgs{ContainerID: "c1", IfName: "net1", Netns: "/x", Args: env})
		if err != nil {
			return
		}
		if (w.Device == "") == (w.Parent == "") || w.Device == "" && w.Mode == "" || w.MAC != nil && len(w.MAC) < 6 || !bytes.Contains(conf, []byte("{")) {
			t.Errorf("%s: %+v", conf, w)
		}
	})
}

// Nodes that share a file system have a state directory each, by a file beside the plugin; the network configuration's own comes first.
func TestANodesStateDirectory(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, "macvtap.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := nodesStateDir(dir); err != nil || got != tap.DefaultDir {
		t.Errorf("without a file: %s (%v)", got, err)
	}
	for text, want := range map[string]string{`{"stateDir": "/run/x"}`: "/run/x", `{}`: tap.DefaultDir} {
		write(text)
		if got, err := nodesStateDir(dir); err != nil || got != want {
			t.Errorf("%s: %s (%v)", text, got, err)
		}
	}
	write("nonsense")
	if _, err := nodesStateDir(dir); err == nil || !strings.Contains(err.Error(), "macvtap.json is no JSON") {
		t.Errorf("nonsense: %v", err)
	}
	if c, err := parse([]byte(`{"stateDir": "/run/y"}`)); err != nil || c.StateDir != "/run/y" {
		t.Errorf("the configuration's: %+v (%v)", c, err)
	}
}

// A network attachment is a tenant's: it names no link that Flowkeep enforces policies on.
func TestNoDeviceIsWhereFlowkeepEnforces(t *testing.T) {
	n := newNode(t)
	taptest.In(t, n.host, func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "fkp1"}, PeerName: "fkp2"})
	})
	pod := netns.NewNamed(t, "pod")
	out, err := n.plugin("ADD", n.conf("1.0.0", `"lowerDevice": "fkp1"`), pod)
	if text, _ := json.Marshal(out); err == nil || out["code"] != 7.0 || !strings.Contains(string(text), "enforces network policies there") {
		t.Errorf("%s (%v)", text, err)
	}
	if left := taptest.Links(t, pod); len(left) > 0 {
		t.Errorf("links %v are left in the pod", left)
	}
}
