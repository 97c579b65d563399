package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
)

// machine is where commands are run.
type machine struct {
	*testing.T
	dir string // short: unix socket paths have 108 bytes
}

func (m *machine) run(name string, args ...string) string {
	m.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		m.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (m *machine) await(what string, is func() bool) {
	m.Helper()
	for deadline := time.Now().Add(3 * time.Minute); !is(); <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			m.Fatalf("waited in vain for %s", what)
		}
	}
}

// The last commit's images: built twice, in folders and environments that differ, and run by containerd. It takes half a minute.
func TestImagesOfTheLastCommit(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the programs twice")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, program := range []string{"containerd", "runc", "ctr", "dpkg-deb", "git", "ip", "ethtool"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	if err := exec.Command("git", "-C", "../..", "rev-parse", "HEAD").Run(); err != nil {
		t.Skip("not a checkout")
	}
	dir, err := os.MkdirTemp("", "fk-im")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	m := &machine{T: t, dir: dir}
	first, names := m.build("../..", "one", "TZ=UTC", "LC_ALL=C")
	second, _ := m.build(filepath.Join(dir, "one"), "another/folder", // of that commit too, whatever is committed meanwhile
		"TZ=Asia/Tokyo", "GOAMD64=v2", "GOFLAGS=", "CGO_ENABLED=1")
	files, err := os.ReadDir(first)
	if err != nil || len(files) != 2*len(recipes) {
		t.Fatalf("%v, %v", files, err)
	}
	for _, f := range files {
		a, err := os.ReadFile(filepath.Join(first, f.Name()))
		if b, err2 := os.ReadFile(filepath.Join(second, f.Name())); err != nil || err2 != nil || sumOf(a) != sumOf(b) {
			t.Errorf("%s: the second build is another (%v, %v)", f.Name(), err, err2)
		}
	}
	m.bill(filepath.Join(first, "flowkeep.spdx.json"), "pkg:golang/k8s.io/client-go@v", "pkg:golang/stdlib@1.", "pkg:golang/github.com/containernetworking/plugins@v",
		"pkg:deb/debian/nftables@1", "pkg:deb/debian/libc6@2")
	m.bill(filepath.Join(first, "openvswitch.spdx.json"), "pkg:deb/debian/openvswitch-switch@3", "pkg:deb/debian/libssl3@3", "pkg:golang/google.golang.org/grpc@v")
	m.noShell(first)
	m.containerd(first)
	m.flowkeep(names["flowkeep"])
	m.openvswitch(names["openvswitch"])
}

// build builds the last commit of a checkout in a clone, and tells the images' names.
func (m *machine) build(of, folder string, env ...string) (out string, names map[string]string) {
	m.Helper()
	clone := filepath.Join(m.dir, folder)
	m.run("git", "clone", "-q", of, clone)
	out = clone + ".out"
	cmd := exec.Command(filepath.Join(clone, "scripts/images"), out)
	cmd.Env = append(os.Environ(), env...)
	var said, err strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &err
	if failed := cmd.Run(); failed != nil {
		m.Fatalf("scripts/images: %v\n%s%s", failed, said.String(), err.String())
	}
	names = map[string]string{}
	for line := range strings.Lines(said.String()) {
		var name, reference string
		if _, err := fmt.Sscan(line, &name, &reference); err != nil {
			m.Fatalf("%q: %v", line, err)
		}
		names[name] = reference
	}
	return out, names
}

// bill reads an SPDX document: whatever it relates is there once, everything has a version, and what is named is among it.
func (m *machine) bill(file string, wanted ...string) {
	m.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		m.Fatal(err)
	}
	var d spdx
	if err := json.Unmarshal(data, &d); err != nil {
		m.Fatal(err)
	}
	ids := map[string]bool{spdxDocument: true}
	for _, p := range d.Packages {
		if ids[p.ID] || p.Version == "" {
			m.Errorf("%s: %s %q is there twice, or has no version", file, p.ID, p.Version)
		}
		ids[p.ID] = true
		for _, r := range p.References {
			wanted = slices.DeleteFunc(wanted, func(w string) bool { return strings.HasPrefix(r.Locator, w) })
		}
	}
	for _, r := range d.Relationships {
		if !ids[r.From] || !ids[r.To] {
			m.Errorf("%s: %+v speaks of what is not there", file, r)
		}
	}
	if len(wanted) > 0 {
		m.Errorf("%s has no %v", file, wanted)
	}
}

func (m *machine) noShell(dir string) {
	m.Helper()
	for _, r := range recipes {
		layout := filepath.Join(m.dir, r.name)
		if err := os.Mkdir(layout, 0o755); err != nil {
			m.Fatal(err)
		}
		m.run("tar", "-C", layout, "-xf", filepath.Join(dir, r.name+".tar"))
		blobs, err := filepath.Glob(filepath.Join(layout, "blobs/sha256/*"))
		if err != nil || len(blobs) < 4 {
			m.Fatalf("%v, %v", blobs, err)
		}
		seen := 0
		for _, blob := range blobs {
			list, err := exec.Command("tar", "-tzf", blob).Output()
			if err != nil {
				continue // a document
			}
			for path := range strings.Lines(string(list)) {
				seen++
				if slices.Contains([]string{"sh", "bash", "dash", "busybox", "perl", "python3"}, filepath.Base(strings.TrimSpace(path))) {
					m.Errorf("%s has %s", r.name, path)
				}
			}
		}
		if seen < 50 {
			m.Errorf("%s has %d files", r.name, seen)
		}
	}
}

// containerd is one of the test's own, with the images in it.
func (m *machine) containerd(images string) {
	m.Helper()
	config := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\", \"io.containerd.internal.v1.opt\"]\n[grpc]\n  address = %q\n[debug]\n  address = %q\n",
		m.dir+"/root", m.dir+"/state", m.dir+"/s", m.dir+"/d")
	if err := os.WriteFile(m.dir+"/containerd.toml", []byte(config), 0o600); err != nil {
		m.Fatal(err)
	}
	log, err := os.Create(m.dir + "/log")
	if err != nil {
		m.Fatal(err)
	}
	cmd := exec.Command("containerd", "--config", m.dir+"/containerd.toml")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		log.Close()
	})
	m.await("containerd", func() bool { return exec.Command("ctr", "-a", m.dir+"/s", "version").Run() == nil })
	for _, r := range recipes {
		m.ctr("images", "import", filepath.Join(images, r.name+".tar"))
	}
}

func (m *machine) ctr(args ...string) string {
	m.Helper()
	return m.run("ctr", append([]string{"-a", m.dir + "/s"}, args...)...)
}

// flowkeep: the programs run, as nobody.
func (m *machine) flowkeep(image string) {
	m.Helper()
	_, version, _ := strings.Cut(image[strings.LastIndex(image, "/"):], ":")
	for i, program := range []string{"netmaster", "netplugin", "netctl"} {
		if out := m.ctr("run", "--rm", "--read-only", image, fmt.Sprint("v", i), program, "--version"); !strings.Contains(out, version) {
			m.Errorf("%s says %q, want %s", program, out, version)
		}
	}
	if out := m.ctr("run", "--rm", "--read-only", image, "nft", "nft", "--version"); !strings.Contains(out, "nftables") {
		m.Errorf("nft says %q", out)
	}
	target := m.dir + "/cni"
	if err := os.Mkdir(target, 0o755); err != nil {
		m.Fatal(err)
	}
	install := []string{"run", "--rm", "--mount", "type=bind,src=" + target + ",dst=/opt/cni/bin,options=rbind:rw", image, "install", "netplugin", "install"}
	out, err := exec.Command("ctr", append([]string{"-a", m.dir + "/s"}, install...)...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "permission denied") {
		m.Errorf("nobody may write into root's directory, or so it should be: %v, %s", err, out)
	}
	if err := os.Chown(target, 65532, 65532); err != nil {
		m.Fatal(err)
	}
	m.ctr(install...)
	for _, plugin := range []string{"flowkeep-cni", "flowkeep-portmap", "macvtap"} {
		cmd := exec.Command(filepath.Join(target, plugin))
		cmd.Env, cmd.Stdin = append(os.Environ(), "CNI_COMMAND=VERSION"), strings.NewReader("{}")
		if out, err := cmd.Output(); err != nil || !strings.Contains(string(out), "supportedVersions") {
			m.Errorf("%s, installed: %v, %s", plugin, err, out)
		}
	}
}

// openvswitch: two network namespaces reach each other through a switch in a container if its flows say so, and not otherwise.
func (m *machine) openvswitch(image string) {
	m.Helper()
	node, a, b := netns.NewNamed(m, "node"), netns.NewNamed(m, "a"), netns.NewNamed(m, "b")
	for i, end := range []*netns.Namespace{a, b} {
		port := "to-" + string("ab"[i])
		m.run("ip", "link", "add", port, "netns", node.Name(), "type", "veth", "peer", "name", "eth0", "netns", end.Name())
		m.run("ip", "-n", node.Name(), "link", "set", port, "up")
		m.run("ip", "-n", end.Name(), "addr", "add", fmt.Sprintf("192.0.2.%d/24", i+1), "dev", "eth0")
		m.run("ip", "-n", end.Name(), "link", "set", "eth0", "up")
		end.Do(func() { m.run("ethtool", "-K", "eth0", "tx", "off") }) // the userspace datapath fills no checksums in
	}
	args := []string{"run", "-d", "--privileged", "--with-ns", "network:" + node.Path()}
	for _, mount := range []string{"run:/run/openvswitch", "db:/etc/openvswitch"} {
		src, dst, _ := strings.Cut(mount, ":")
		if err := os.MkdirAll(filepath.Join(m.dir, "ovs", src), 0o755); err != nil {
			m.Fatal(err)
		}
		args = append(args, "--mount", "type=bind,src="+filepath.Join(m.dir, "ovs", src)+",dst="+dst+",options=rbind:rw")
	}
	m.ctr(append(args, image, "ovs")...)
	ended := false
	m.Cleanup(func() {
		if !ended {
			_ = exec.Command("ctr", "-a", m.dir+"/s", "tasks", "kill", "-s", "SIGKILL", "ovs").Run()
		}
		_ = exec.Command("ctr", "-a", m.dir+"/s", "tasks", "rm", "-f", "ovs").Run()
	})
	n := 0
	in := func(args ...string) (string, error) {
		n++
		out, err := exec.Command("ctr", append([]string{"-a", m.dir + "/s", "tasks", "exec", "--exec-id", fmt.Sprint("e", n), "ovs"}, args...)...).CombinedOutput()
		return string(out), err
	}
	m.await("the switch", func() bool { _, err := in("ovs-appctl", "version"); return err == nil })
	if out, err := in("ovs-vsctl", "add-br", "fk0", "--", "set", "bridge", "fk0", "datapath_type=netdev", "fail-mode=secure", "protocols=OpenFlow13",
		"external_ids:owner=flowkeep", "other_config:disable-in-band=true", "--", "add-port", "fk0", "to-a", "--", "add-port", "fk0", "to-b"); err != nil {
		m.Fatalf("%v: %s", err, out)
	}
	flow := func() {
		m.await("the flow", func() bool {
			_, err := in("ovs-ofctl", "-OOpenFlow13", "add-flow", "fk0", "actions=normal")
			return err == nil
		})
	}
	reach := reachable(m.T, a, b)
	if reach(300 * time.Millisecond) {
		m.Error("packets pass without flows")
	}
	flow()
	if !reach(time.Minute) {
		m.Error("packets do not pass")
	}
	old, err := os.ReadFile(filepath.Join(m.dir, "ovs/run/ovs-vswitchd.pid"))
	if err != nil {
		m.Fatal(err)
	}
	if out, err := in("ovs-appctl", "exit"); err != nil {
		m.Fatalf("%v: %s", err, out)
	}
	m.await("another ovs-vswitchd", func() bool {
		now, err := os.ReadFile(filepath.Join(m.dir, "ovs/run/ovs-vswitchd.pid"))
		return err == nil && string(now) != string(old)
	})
	flow()
	if !reach(time.Minute) {
		m.Error("packets do not pass a switch that was started again")
	}
	m.ctr("tasks", "kill", "-s", "SIGTERM", "ovs")
	m.await("the switch to end", func() bool { return strings.Contains(m.ctr("tasks", "ls"), "STOPPED") })
	ended = true
}

// reachable returns a function that reports whether a connection from one namespace to the other is made in time.
func reachable(t *testing.T, from, to *netns.Namespace) func(time.Duration) bool {
	t.Helper()
	to.Do(func() {
		l, err := net.Listen("tcp", "192.0.2.2:80")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				conn.Close()
			}
		}()
	})
	return func(within time.Duration) (reached bool) {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		for !reached && ctx.Err() == nil {
			from.Do(func() {
				conn, err := (&net.Dialer{Timeout: 300 * time.Millisecond}).DialContext(ctx, "tcp", "192.0.2.2:80")
				if reached = err == nil; reached {
					conn.Close()
				}
			})
		}
		return reached
	}
}
