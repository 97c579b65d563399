package native

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
)

func TestResolverFile(t *testing.T) {
	netns.New(t).Enter(t)
	dir := t.TempDir()
	target, path := filepath.Join(dir, "real"), filepath.Join(dir, "resolv.conf")
	const text = "# by hand\nnameserver 192.0.2.53\nsearch example.org corp.example.org\nsortlist 10.0.0.0\noptions ndots:2\n"
	if err := os.WriteFile(target, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", path); err != nil {
		t.Fatal(err)
	}
	b := newBench(t, Config{ResolvConf: path})
	before := b.show()
	c := b.apply("dns-resolver: {config: {server: ['192.0.2.54', '2001:DB8:0::53']}}")
	have, _ := os.ReadFile(target)
	if want := "# by hand\nsortlist 10.0.0.0\nsearch example.org corp.example.org\nnameserver 192.0.2.54\nnameserver 2001:db8::53\noptions ndots:2\n"; string(have) != want {
		t.Errorf("the file is\n%s", have)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is no link any more: %v, %v", info, err)
	}
	if info, err := os.Stat(target); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	b.rolledBack(c, before)
	if list, _ := os.ReadDir(dir); len(list) != 2 {
		t.Errorf("left behind: %v", list)
	}
}

func TestNoResolverFile(t *testing.T) {
	netns.New(t).Enter(t)
	newBench(t, Config{}).refused("dns-resolver: {config: {server: ['192.0.2.54']}}", "start the agent with the path")
	b := newBench(t, Config{ResolvConf: filepath.Join(t.TempDir(), "not-yet")})
	b.apply("dns-resolver: {config: {server: ['192.0.2.54'], search: [example.org]}}")
}

func FuzzResolver(f *testing.F) {
	f.Add("nameserver 1.1.1.1\nsearch a b\noptions x\n", "2.2.2.2", "c")
	f.Add("domain x\n\n;comment\r\nnameserver", "::1", "d.e")
	f.Add("\n\n0\n0", "::", "\v")
	f.Fuzz(func(t *testing.T, text, server, search string) {
		r := parseResolver(text)
		r.Servers, r.Search = append(r.Servers, server), append(r.Search, search)
		if r.check() != nil {
			return
		}
		for i, s := range r.Servers {
			r.Servers[i] = canonicalAddress(s)
		}
		written := r.rewrite(text)
		if back := parseResolver(written); !reflect.DeepEqual(r, back) {
			t.Errorf("%+v was written and read as %+v:\n%s", r, back, written)
		}
		if again := r.rewrite(written); strings.Count(again, "\n") > strings.Count(written, "\n") {
			t.Errorf("written again, it grows: %q", again)
		}
	})
}

// Whatever is desired is refused, or applied so that nothing of it is missing; and undone.
func FuzzDesire(f *testing.F) {
	for _, seed := range []string{
		"interfaces: [{name: d0, type: dummy, state: up, mtu: 1450}]",
		"interfaces: [{name: b0, type: bond, link-aggregation: {mode: 1, port: [eth1]}}, {name: b0.5, type: vlan, vlan: {base-iface: b0, id: 5}}]",
		"interfaces: [{name: br1, type: linux-bridge, bridge: {port: [{name: eth2, vlan: {mode: trunk, trunk-tags: [{id-range: {min: 1, max: 9}}]}}], options: {stp: true}}}]",
		"routes: {config: [{destination: ::/0, next-hop-interface: eth1, next-hop-address: 'fe80::1'}]}",
		"rules: {config: [{ip-from: 10.0.0.0/8, route-table: 5, action: blackhole}]}",
		"interfaces: [{name: o1, type: ovs-bridge, bridge: {port: [{name: o1}]}}, {name: o1, type: ovs-interface, ipv4: {enabled: true, address: [{ip: 10.0.0.1, prefix-length: 8}]}}]",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		b := onFake(newFake())
		desired, err := parseForFuzz(text)
		if err != nil {
			return
		}
		before, _ := b.Show(t.Context())
		change, err := b.Apply(t.Context(), desired, volatile)
		if err == nil {
			if steps, err := b.Plan(t.Context(), desired); err != nil || len(steps) > 0 {
				t.Fatalf("%s\nonce applied, there remains to %s, %v", text, texts(steps), err)
			}
		}
		if len(change.Before) == 0 {
			return
		}
		if err := b.Rollback(t.Context(), change); err != nil {
			t.Fatalf("%s\n%v", text, err)
		}
		if after, _ := b.Show(t.Context()); !reflect.DeepEqual(indent(before), indent(after)) {
			t.Fatalf("%s\nbefore %s\nafter  %s", text, indent(before), indent(after))
		}
	})
}

// TestResolverOfTheNode: in a container the node's root is a directory, and links of the node lead into it.
func TestResolverOfTheNode(t *testing.T) {
	netns.New(t).Enter(t)
	for _, c := range []struct{ link, owner string }{
		{"../run/systemd/resolve/stub-resolv.conf", "systemd-resolved"},
		{"/run/NetworkManager/resolv.conf", "NetworkManager"},
		{"../run/resolvconf/resolv.conf", "resolvconf"},
		{"resolv.real", ""},
	} {
		root := t.TempDir()
		file := filepath.Join(root, "etc", c.link)
		if strings.HasPrefix(c.link, "/") {
			file = filepath.Join(root, c.link)
		}
		for _, dir := range []string{filepath.Join(root, "etc"), filepath.Dir(file)} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(file, []byte("nameserver 127.0.0.53\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(c.link, filepath.Join(root, "etc/resolv.conf")); err != nil {
			t.Fatal(err)
		}
		b := newBench(t, Config{ResolvConf: "/etc/resolv.conf", Root: root})
		b.apply("dns-resolver: {config: {server: [127.0.0.53]}}") // as it is
		change := "dns-resolver: {config: {server: [192.0.2.54]}}"
		if c.owner != "" {
			b.refused(change, "is written by "+c.owner+", which would undo the change")
			continue
		}
		b.apply(change)
		if have, _ := os.ReadFile(file); string(have) != "nameserver 192.0.2.54\n" {
			t.Errorf("the node's file has %q", have)
		}
	}
}

// TestResolverOfAnotherProgram: a comment in the file names the program that writes it.
func TestResolverOfAnotherProgram(t *testing.T) {
	netns.New(t).Enter(t)
	for comment, owner := range map[string]string{
		"# Generated by NetworkManager": "NetworkManager",
		"# This is /run/systemd/resolve/resolv.conf managed by man:systemd-resolved(8).": "systemd-resolved",
		"# Dynamic resolv.conf(5) file for glibc resolver(3) generated by resolvconf(8)": "resolvconf",
		"# Generated by resolvconf": "resolvconf",
		"### /etc/resolv.conf is a symlink. It is dynamically generated by netconfig.":      "netconfig",
		"; generated by /usr/sbin/dhclient-script":                                          "dhclient",
		"# Generated by dhcpcd from eth0.dhcp":                                              "dhcpcd",
		"# Generated by Connection Manager":                                                 "ConnMan",
		"# resolv.conf(5) file generated by tailscale":                                      "Tailscale",
		"# by hand, after the notes on systemd-resolved and NetworkManager in our handbook": "",
	} {
		path := filepath.Join(t.TempDir(), "resolv.conf")
		if err := os.WriteFile(path, []byte(comment+"\nnameserver 192.0.2.53\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		b := newBench(t, Config{ResolvConf: path})
		if owner == "" {
			b.apply("dns-resolver: {config: {}}")
			continue
		}
		b.refused("dns-resolver: {config: {}}", "is written by "+owner+", which would undo the change: ")
	}
}
