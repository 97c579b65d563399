package look

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/flowkeep/flowkeep/netctl/doctor"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Node reads the facts of this node.
func Node(ctx context.Context, o *Options) (*doctor.NodeFacts, error) {
	f := &doctor.NodeFacts{TrafficMode: o.TrafficMode, Services: o.Services, Kernel: doctor.Read(o.release()), CNI: doctor.Read(o.netConfs()), BinDir: o.CNIBinDir, Runtimes: o.runtimes(),
		Links: doctor.Read(links()), Ways: o.ways(), Sockets: doctor.Read(o.sockets()), Sysctls: o.sysctls(), State: doctor.Read(room(o.StateDir)),
		Switch: o.openvswitch(ctx), Clock: o.clock(ctx), Chains: o.chains(ctx), Numbers: o.numbers()}
	f.Contested = o.contested(ctx)
	f.Host, _ = os.Hostname()
	f.Modules = o.modules(f.Kernel.Value)
	if last := f.Chains[len(f.Chains)-1]; !last.Absent && last.Listing.Error == "" { // nft was answered
		f.Modules = append(f.Modules[:len(f.Modules)-1], doctor.Module{Name: "nf_tables", State: doctor.Known(doctor.ModuleThere)})
	}
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/sbin") {
		if path := filepath.Join(dir, "nft"); f.NFT == "" && unix.Access(path, unix.X_OK) == nil {
			f.NFT = path
		}
	}
	return f, ctx.Err()
}

func (o *Options) path(name string) string { return filepath.Join("/", o.Root, name) }

// file reads an ordinary file, or one of /proc, of at most so many bytes. Nothing that blocks is opened: a pipe, a device.
func file(path string, most int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular():
		return nil, doctor.ErrNoFile
	}
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("it has more than %d KiB", most>>10)
	}
	return text, err
}

func (o *Options) release() (string, error) {
	text, err := file(o.path("proc/sys/kernel/osrelease"), 4096)
	return strings.TrimSpace(string(text)), err
}

// modules: none is loaded by the question. What is registered with generic netlink is there, however it came.
func (o *Options) modules(release string) (out []doctor.Module) {
	for _, name := range []string{"openvswitch", "nf_conntrack", "geneve", "nf_tables"} {
		out = append(out, doctor.Module{Name: name, State: doctor.Read(o.module(release, name))})
	}
	return out
}

func (o *Options) module(release, name string) (doctor.ModuleState, error) {
	if o.Root == "" && name == "openvswitch" {
		if families, err := netlink.GenlFamilyList(); err == nil && slices.ContainsFunc(families, func(f *netlink.GenlFamily) bool { return f.Name == "ovs_datapath" }) {
			return doctor.ModuleThere, nil
		}
	}
	there := []string{"sys/module/" + name}
	if name == "nf_conntrack" {
		there = append(there, "proc/sys/net/netfilter/nf_conntrack_max", "proc/sys/net/netfilter/nf_conntrack_buckets")
	}
	for _, path := range there {
		if _, err := os.Stat(o.path(path)); err == nil {
			return doctor.ModuleThere, nil
		}
	}
	const mostModules = 32 << 20
	dir := o.path("lib/modules/" + release)
	builtin, err := file(filepath.Join(dir, "modules.builtin"), mostModules)
	if err == nil && bytes.Contains(builtin, []byte("/"+name+".ko")) {
		return doctor.ModuleThere, nil
	}
	deps, err := file(filepath.Join(dir, "modules.dep"), mostModules)
	if err == nil {
		for line := range bytes.Lines(deps) {
			path, _, _ := bytes.Cut(line, []byte(":"))
			if bytes.HasPrefix(path[bytes.LastIndexByte(path, '/')+1:], []byte(name+".ko")) {
				return doctor.ModuleLoadable, nil
			}
		}
		return doctor.ModuleAbsent, nil
	}
	if _, err := os.Stat(o.path("proc/modules")); errors.Is(err, fs.ErrNotExist) {
		return doctor.ModuleAbsent, nil // a kernel that loads none, and has it not
	}
	return "", fmt.Errorf("it is not loaded, and %s cannot be read: %w", dir, err)
}

func links() (out []doctor.Link, err error) {
	list, err := rtnl.Dump(netlink.LinkList)
	for _, l := range list {
		out = append(out, doctor.Link{Name: l.Attrs().Name, MTU: l.Attrs().MTU})
	}
	return out, err
}

// ways returns the routes to the peers or, without peers, the default routes.
func (o *Options) ways() (out []doctor.Way) {
	for _, to := range o.Peers {
		a, err := netip.ParseAddr(to)
		w := doctor.Way{To: to, IPv6: a.Is6() && !a.Is4In6()}
		if err == nil {
			w.Hop = doctor.Read(hop(a.Unmap()))
		} else {
			w.Hop = doctor.Fact[doctor.Hop]{Error: err.Error()}
		}
		out = append(out, w)
	}
	if len(out) > 0 {
		return out
	}
	for family, to := range map[int]string{netlink.FAMILY_V4: "the default gateway", netlink.FAMILY_V6: "the default gateway of IPv6"} {
		routes, err := rtnl.Dump(func() ([]netlink.Route, error) { return netlink.RouteList(nil, family) })
		if err != nil {
			out = append(out, doctor.Way{To: to, IPv6: family == netlink.FAMILY_V6, Hop: doctor.Fact[doctor.Hop]{Error: err.Error()}})
			continue
		}
		for _, r := range routes {
			if r.LinkIndex != 0 && (r.Dst == nil || ones(r.Dst) == 0) {
				out = append(out, doctor.Way{To: to, IPv6: family == netlink.FAMILY_V6, Hop: doctor.Read(hopOf(&r))})
				break
			}
		}
	}
	slices.SortFunc(out, func(a, b doctor.Way) int { return strings.Compare(a.To, b.To) })
	return out
}

func ones(n *net.IPNet) int {
	ones, _ := n.Mask.Size()
	return ones
}

func hop(to netip.Addr) (doctor.Hop, error) {
	routes, err := netlink.RouteGet(net.IP(to.AsSlice()))
	if err != nil {
		return doctor.Hop{}, err
	}
	if len(routes) == 0 {
		return doctor.Hop{}, errors.New("there is no route")
	}
	return hopOf(&routes[0])
}

// hopOf: the route may know of a smaller MTU on the way.
func hopOf(r *netlink.Route) (doctor.Hop, error) {
	link, err := netlink.LinkByIndex(r.LinkIndex)
	if err != nil {
		return doctor.Hop{}, err
	}
	h := doctor.Hop{Device: link.Attrs().Name, MTU: link.Attrs().MTU}
	if r.MTU > 0 {
		h.MTU = min(h.MTU, r.MTU)
	}
	return h, nil
}

// How much of the directory of CNI configurations is looked at.
const (
	mostNetConfs = 100
	mostNetConf  = 1 << 20
)

func (o *Options) netConfs() (doctor.NetConfDir, error) {
	d := doctor.NetConfDir{Path: o.CNIConfDir}
	dir, err := os.Open(o.CNIConfDir)
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil // as it is before any network is there
	}
	if err != nil {
		return d, err
	}
	defer dir.Close()
	const mostNames = 100_000
	names, err := dir.Readdirnames(mostNames)
	if err != nil && !errors.Is(err, io.EOF) {
		return d, err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !doctor.IsNetConf(name) })
	slices.Sort(names)
	if len(names) > mostNetConfs {
		d.More, names = len(names)-mostNetConfs, names[:mostNetConfs]
	}
	for _, name := range names {
		text, err := file(filepath.Join(o.CNIConfDir, name), mostNetConf)
		if err != nil {
			d.Conf = append(d.Conf, doctor.NetConf{File: name, Error: err.Error()})
			continue
		}
		d.Conf = append(d.Conf, doctor.ParseNetConf(name, text))
	}
	return d, nil
}

// runtimeFiles are those of containerd and CRI-O, as distributions of Kubernetes have them.
var runtimeFiles = []string{"etc/containerd/config.toml", "etc/crio/crio.conf", "etc/crio/crio.conf.d/*", "etc/k0s/containerd.toml", "var/lib/rancher/k3s/agent/etc/containerd/config.toml",
	"var/lib/rancher/rke2/agent/etc/containerd/config.toml"}

func (o *Options) runtimes() (out []doctor.Runtime) {
	for _, pattern := range runtimeFiles {
		names, _ := filepath.Glob(o.path(pattern))
		for _, name := range names[:min(len(names), mostNetConfs)] {
			shown := strings.TrimPrefix(name, strings.TrimSuffix(o.path(""), "/"))
			text, err := file(name, mostNetConf)
			if err != nil {
				out = append(out, doctor.Runtime{File: shown, Error: err.Error()})
				continue
			}
			r := doctor.ParseRuntime(shown, string(text))
			if strings.HasSuffix(pattern, "*") && len(r.ConfDir)+len(r.BinDirs) == 0 {
				continue // adds to another, and nothing of this
			}
			out = append(out, r)
		}
	}
	return out
}

func (o *Options) chains(ctx context.Context) (out []doctor.Chains) {
	for _, tool := range [][]string{
		{"ip", "iptables-save"}, {"ip6", "ip6tables-save"},
		{"ip", "iptables-legacy-save"}, {"ip6", "ip6tables-legacy-save"},
		{"", "nft", "--terse", "list", "ruleset"},
	} {
		text, absent, err := o.output(ctx, tool[1], tool[2:]...)
		out = append(out, doctor.Chains{Tool: strings.Join(tool[1:], " "), Absent: absent, Listing: doctor.Read(doctor.ParseChains(text), err), Drops: doctor.ParseHooks(tool[0], text)})
	}
	return out
}

func (o *Options) clock(ctx context.Context) (c doctor.Clock) {
	state, err := unix.Adjtimex(&unix.Timex{})
	if err != nil {
		c.Synchronised = doctor.Read(false, err)
	} else {
		c.Synchronised = doctor.Known(state != unix.TIME_ERROR)
	}
	if o.API != nil {
		ctx, cancel := context.WithTimeout(ctx, o.Each)
		defer cancel()
		offset := doctor.Read(o.API(ctx))
		c.API = &offset
	}
	return c
}

// mostSockets bounds /proc/net's files.
const mostSockets = 64 << 20

func (o *Options) sockets() (out []doctor.Socket, err error) {
	of := "proc/net/"
	if o.Root == "" {
		of = "proc/thread-self/net/" // of the network namespace that the rest is looked at in
	}
	for _, name := range []string{"tcp", "tcp6", "udp", "udp6"} {
		text, err := file(o.path(of+name), mostSockets)
		if errors.Is(err, fs.ErrNotExist) {
			continue // no IPv6
		}
		if err != nil {
			return nil, err
		}
		list, bad := doctor.ParseSockets(name[:3], text)
		if bad > 0 {
			return nil, fmt.Errorf("%d lines of /proc/net/%s are not as proc_net(5) has them", bad, name)
		}
		out = append(out, list...)
	}
	o.holders(out)
	return out, nil
}

// holders finds whose the sockets are that Flowkeep would have.
func (o *Options) holders(list []doctor.Socket) {
	wanted := map[string][]*doctor.Socket{}
	for i := range list {
		if s := &list[i]; s.Inode != 0 && doctor.IsOwnPort(s) {
			link := fmt.Sprintf("socket:[%d]", s.Inode)
			wanted[link] = append(wanted[link], s)
		}
	}
	if len(wanted) == 0 {
		return
	}
	processes, _ := os.ReadDir(o.path("proc"))
	for _, p := range processes {
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		dir := o.path("proc/" + p.Name())
		open, _ := os.ReadDir(filepath.Join(dir, "fd"))
		for _, fd := range open {
			link, err := os.Readlink(filepath.Join(dir, "fd", fd.Name()))
			if err != nil || wanted[link] == nil {
				continue
			}
			name, _ := file(filepath.Join(dir, "comm"), 4096)
			for _, s := range wanted[link] {
				s.Program = fmt.Sprintf("%s (process %s)", strings.TrimSpace(string(name)), p.Name())
			}
		}
	}
}

func (o *Options) sysctls() (out []doctor.Sysctl) {
	for _, s := range []doctor.Sysctl{
		{Name: "net.ipv4.ip_forward", Want: "1"},
		{Name: "net.ipv6.conf.all.forwarding", Want: "1"},
		{Name: doctor.ConntrackCount},
		{Name: doctor.ConntrackMax},
	} {
		path := o.path("proc/sys/" + strings.ReplaceAll(s.Name, ".", "/"))
		text, err := file(path, 4096)
		s.None = errors.Is(err, fs.ErrNotExist)
		s.Value = doctor.Read(strings.TrimSpace(string(text)), err)
		s.Fixed = os.Getuid() == 0 && unix.Access(path, unix.W_OK) != nil
		out = append(out, s)
	}
	return out
}

// room looks at the nearest directory that is there.
func room(dir string) (doctor.Room, error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(dir, &st)
		up := filepath.Dir(dir)
		if errors.Is(err, unix.ENOENT) && up != dir {
			dir = up
			continue
		}
		if err != nil {
			return doctor.Room{}, fmt.Errorf("%s: %w", dir, err)
		}
		return doctor.Room{Path: dir, Free: st.Bavail * uint64(st.Bsize), Inodes: st.Ffree, Counted: st.Files > 0, ReadOnly: st.Flags&unix.ST_RDONLY != 0}, nil
	}
}

func (o *Options) openvswitch(ctx context.Context) (s doctor.Switch) {
	text, absent, err := o.output(ctx, "ovs-vswitchd", "--version")
	if absent {
		text = ""
	}
	first, _, _ := strings.Cut(text, "\n")
	s.Program = doctor.Read(strings.TrimSpace(first), err)
	s.Socket = filepath.Join(o.OVSRunDir, "db.sock")
	if _, err := os.Stat(s.Socket); errors.Is(err, fs.ErrNotExist) {
		s.Absent = true
		return s
	}
	short, cancel := context.WithTimeout(ctx, o.Each)
	s.Database = doctor.Read(database(short, s.Socket))
	cancel()
	version, socket, err := o.answers(ctx)
	s.Answers = doctor.Read(version, err)
	s.Started = started(socket)
	return s
}

// answers returns the version of the running ovs-vswitchd, and its control socket.
func (o *Options) answers(ctx context.Context) (version, socket string, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.Each)
	defer cancel()
	sockets, err := filepath.Glob(filepath.Join(o.OVSRunDir, "ovs-vswitchd*.ctl"))
	if err != nil {
		return "", "", err
	}
	if given := filepath.Join(o.OVSRunDir, "vswitchd.ctl"); len(sockets) == 0 {
		sockets = append(sockets, given)
	}
	for _, path := range sockets[:min(len(sockets), 8)] { // those of before a crash may still lie there
		var text string
		err = call(ctx, path, "version", []any{}, &text)
		if err == nil {
			line, _, _ := strings.Cut(text, "\n")
			return line[strings.LastIndexByte(line, ' ')+1:], path, nil // "ovs-vswitchd (Open vSwitch) 3.1.0"
		}
		if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	return "", "", err
}

// started returns how long after the boot the process in the name of a socket was started, nil if unknown. The unit is
// the clock tick of proc_pid_stat(5), 1/100 s on Linux.
func started(socket string) *time.Duration {
	var pid int
	if _, err := fmt.Sscanf(filepath.Base(socket), "ovs-vswitchd.%d.ctl", &pid); err != nil {
		return nil
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	const startTime = 22 - 3 // the third is the first after the name
	if len(fields) <= startTime {
		return nil
	}
	ticks, err := strconv.ParseInt(fields[startTime], 10, 63)
	if err != nil {
		return nil
	}
	after := time.Duration(ticks) * time.Second / 100
	return &after
}
