// Package clean removes from a node what Flowkeep put there: first it finds what is there, then removes it, then looks again. Nothing that is not
// Flowkeep's is touched, and what is gone already is no error.
package clean

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/flowkeep/flowkeep/netplugin/cni"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/netplugin/node/install"
	"github.com/flowkeep/flowkeep/netplugin/node/vswitch"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl/appctl"
	"github.com/flowkeep/flowkeep/ofctl/ovsdb"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Config says where things are, and what is wanted.
type Config struct {
	CNIConfDir, CNIBinDir string
	OVSDB                 string // endpoint
	OVSRunDir, OVSControl string
	Bridge                string
	CNISocket             string
	// NetworkdDir and NetworkManagerDir are where install has network managers leave links alone; empty: nowhere.
	NetworkdDir, NetworkManagerDir string
	StateDir                       string
	State                          bool // the state directory goes too
	Force                          bool // although netplugin runs, or pods are wired
	DryRun                         bool
	// TapLinks returns the macvtap devices of the node; nil: none.
	TapLinks func() ([]netlink.Link, error)
}

// Refused are the reasons not to clean.
type Refused struct{ Reasons []string }

func (r *Refused) Error() string {
	return "not cleaned, as " + strings.Join(r.Reasons, ", and ") + "; remove them first, or use --force"
}

// thing is one that is there.
type thing struct {
	name   string
	remove func(context.Context) error
}

// Node cleans the node. What could not be looked at or removed does not keep the rest from going.
func Node(ctx context.Context, cfg *Config, out io.Writer) error {
	if reasons := standing(ctx, cfg); len(reasons) > 0 && !cfg.Force && !cfg.DryRun {
		return &Refused{reasons}
	}
	things, err := find(ctx, cfg)
	if len(things) == 0 && err == nil {
		fmt.Fprintln(out, "nothing of Flowkeep's is on this node")
		return nil
	}
	errs := []error{err}
	for _, t := range things {
		if cfg.DryRun {
			fmt.Fprintln(out, "would remove", t.name)
			continue
		}
		if err := t.remove(ctx); err != nil {
			errs = append(errs, fmt.Errorf("remove %s: %w", t.name, err))
			continue
		}
		fmt.Fprintln(out, "removed", t.name)
	}
	if cfg.DryRun {
		return errors.Join(errs...)
	}
	left, err := find(ctx, cfg)
	errs = append(errs, err)
	for _, t := range left {
		errs = append(errs, fmt.Errorf("%s is still there", t.name))
	}
	return errors.Join(errs...)
}

// standing returns the reasons not to clean the node.
func standing(ctx context.Context, cfg *Config) (reasons []string) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if conn, err := new(net.Dialer).DialContext(ctx, "unix", cfg.CNISocket); err == nil {
		conn.Close()
		reasons = append(reasons, "netplugin runs (it answers at "+cfg.CNISocket+")")
	}
	pods, _ := podLinks()
	if len(pods) == 1 {
		reasons = append(reasons, "a pod is wired by "+pods[0].Attrs().Name)
	} else if len(pods) > 1 {
		reasons = append(reasons, fmt.Sprintf("%d pods are wired", len(pods)))
	}
	return reasons
}

// find names what is there, in the order in which it goes: first what makes new pods, connections after the bridge that would track new ones, last what
// the others are known by.
func find(ctx context.Context, cfg *Config) (things []thing, err error) {
	var errs []error
	for _, look := range []func(context.Context, *Config) ([]thing, error){
		configurations, programs, bridge, connections, links, taps, network, leftDevices, sockets, switchFile, record, state,
	} {
		list, err := look(ctx, cfg)
		things, errs = append(things, list...), append(errs, err)
	}
	return things, errors.Join(errs...)
}

func fileThing(path string) thing {
	return thing{path, func(context.Context) error { return gone(os.Remove(path)) }}
}

// gone: what is not there any more need not be removed.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func configurations(_ context.Context, cfg *Config) (out []thing, _ error) {
	for _, name := range []string{install.ConfigurationFile, unfinished(install.ConfigurationFile)} {
		if path := filepath.Join(cfg.CNIConfDir, name); there(path) {
			out = append(out, fileThing(path))
		}
	}
	for _, path := range []string{
		filepath.Join(cfg.NetworkdDir, install.NetworkdFile),
		filepath.Join(cfg.NetworkManagerDir, install.NetworkManagerFile),
	} {
		for _, p := range []string{path, filepath.Join(filepath.Dir(path), unfinished(filepath.Base(path)))} {
			if filepath.IsAbs(p) && there(p) {
				out = append(out, fileThing(p))
			}
		}
	}
	return out, nil
}

// unfinished returns the name under which install writes a file before renaming it.
func unfinished(name string) string { return "." + name + ".new" }

// programs: those of our name alone, and the plugin macvtap if it was built from this module.
func programs(_ context.Context, cfg *Config) (out []thing, _ error) {
	for _, name := range []string{install.Plugin, install.Portmap, "macvtap"} {
		path := filepath.Join(cfg.CNIBinDir, name)
		if name == "macvtap" && !ours(path) {
			continue
		}
		for _, p := range []string{path, filepath.Join(cfg.CNIBinDir, unfinished(name)), path + ".json"} {
			if there(p) && (p != path+".json" || name == "macvtap") {
				out = append(out, fileThing(p))
			}
		}
	}
	return out, nil
}

const module = "github.com/flowkeep/flowkeep"

func ours(path string) bool {
	st, err := os.Lstat(path)
	if err != nil || !st.Mode().IsRegular() {
		return false
	}
	info, err := buildinfo.ReadFile(path)
	return err == nil && info.Main.Path == module
}

// zones are those that the bridge tracks connections in.
var zones = []uint16{
	pipeline.ZonePolicy,
	pipeline.ZoneService,
	pipeline.ZoneTranslation,
	pipeline.ZoneHairpin,
}

// connections of the bridge's zones: those that the kernel tracks, and those of the datapath in userspace.
func connections(ctx context.Context, cfg *Config) (out []thing, _ error) {
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		flows, err := rtnl.Dump(func() ([]*netlink.ConntrackFlow, error) {
			return netlink.ConntrackTableList(netlink.ConntrackTable, family)
		})
		if err != nil {
			continue // a kernel without conntrack
		}
		n := 0
		for _, f := range flows {
			if slices.Contains(zones, f.Zone) {
				n++
			}
		}
		if n > 0 {
			out = append(out, thing{fmt.Sprintf("%d tracked connections of IPv%d", n, map[netlink.InetFamily]int{unix.AF_INET: 4, unix.AF_INET6: 6}[family]), func(context.Context) error { return forget(family) }})
		}
	}
	text := tracked(ctx, cfg)
	for _, zone := range zones {
		if word := fmt.Sprintf("zone=%d", zone); strings.Contains(text, word) {
			out = append(out, thing{"tracked connections of the userspace datapath, " + word, func(ctx context.Context) error { return flush(ctx, cfg, word) }})
		}
	}
	return out, nil
}

const userspaceDatapath = "netdev@ovs-netdev"

// tracked are the connections of the datapath in userspace, a line each. Where that is not there it tracks none: it goes with its last bridge.
func tracked(ctx context.Context, cfg *Config) string {
	socket := userspace(cfg)
	if !there(socket) {
		return ""
	}
	text, err := appctl.Call(ctx, socket, "dpctl/dump-conntrack", userspaceDatapath)
	if err != nil {
		return ""
	}
	return text
}

// flush names the datapath, and then does not: flush-conntrack of Open vSwitch 3.1.0 takes the name for a connection ("field netdev@ovs-netdev missing
// value"), and without one it means the only datapath there is.
func flush(ctx context.Context, cfg *Config, zone string) error {
	var errs []error
	for _, args := range [][]string{{userspaceDatapath, zone}, {zone}} {
		if !strings.Contains(tracked(ctx, cfg), zone) {
			return nil // gone with the bridge
		}
		_, err := appctl.Call(ctx, userspace(cfg), "dpctl/flush-conntrack", args...)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// userspace returns the path of ovs-vswitchd's control socket.
func userspace(cfg *Config) string {
	if cfg.OVSControl != "" {
		return cfg.OVSControl
	}
	socket, err := appctl.Socket(cfg.OVSRunDir)
	if err != nil {
		return filepath.Join(cfg.OVSRunDir, "none")
	}
	return socket
}

func forget(family netlink.InetFamily) error {
	var errs []error
	for _, zone := range zones {
		f := new(netlink.ConntrackFilter)
		if err := f.AddZone(zone); err != nil {
			return err
		}
		_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, f)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// away tells that no ovsdb-server listens there: then there is no bridge either, or none that it could remove. One that was killed leaves its socket.
func away(ctx context.Context, endpoint string) bool {
	path, is := strings.CutPrefix(endpoint, "unix:")
	if !is {
		return false
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err == nil {
		conn.Close()
	}
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist)
}

const patience = 10 * time.Second

func bridge(ctx context.Context, cfg *Config) ([]thing, error) {
	if away(ctx, cfg.OVSDB) {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	db, err := ovsdb.Open(ctx, cfg.OVSDB)
	if err != nil {
		return nil, fmt.Errorf("look for the bridge: %w", err)
	}
	defer db.Close()
	is, ours, ports, err := db.Made(ctx, cfg.Bridge)
	if err != nil || !is {
		return nil, err
	}
	if !ours {
		return nil, fmt.Errorf("there is a bridge %s that Flowkeep did not make: it stays", cfg.Bridge)
	}
	name := fmt.Sprintf("bridge %s with its flows and %d ports (%s)", cfg.Bridge, len(ports), strings.Join(ports[:min(len(ports), 8)], ", "))
	return []thing{{name, func(ctx context.Context) error { return deleteBridge(ctx, cfg, ports) }}}, nil
}

// deleteBridge waits until ovs-vswitchd has taken the devices away, if it runs.
func deleteBridge(ctx context.Context, cfg *Config, ports []string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	db, err := ovsdb.Open(ctx, cfg.OVSDB)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := db.DeleteBridge(ctx, cfg.Bridge); err != nil {
		return err
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		left := slices.DeleteFunc(slices.Clone(ports), func(name string) bool {
			_, err := netlink.LinkByName(name)
			return err != nil || strings.HasPrefix(name, hostnet.PodPrefix)
		})
		if len(left) == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("it is deleted, but ovs-vswitchd has not taken away %s: does it run?", strings.Join(left, ", "))
		}
	}
}

func podLinks() (out []netlink.Link, err error) {
	list, err := rtnl.Dump(netlink.LinkList)
	for _, l := range list {
		if strings.HasPrefix(l.Attrs().Name, hostnet.PodPrefix) && l.Type() == "veth" {
			out = append(out, l)
		}
	}
	return out, err
}

// links returns the host ends of the pods' links.
func links(context.Context, *Config) (out []thing, err error) {
	list, err := podLinks()
	for _, l := range list {
		out = append(out, thing{"link " + l.Attrs().Name, func(context.Context) error {
			if err := netlink.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
				return err
			}
			return nil
		}})
	}
	return out, err
}

// network returns the host network that hostnet configured, as one thing because one call removes it.
func network(_ context.Context, cfg *Config) ([]thing, error) {
	n, _, readErr := hostnet.ReadRecord(cfg.StateDir)
	names, err := hostnet.Remains(n)
	if err != nil || len(names) == 0 {
		return nil, errors.Join(readErr, err)
	}
	remove := func(context.Context) error { return hostnet.Teardown(n) }
	return []thing{{strings.Join(names, ", "), remove}}, readErr
}

// leftDevices are the bridge's ports where no database has the bridge any more: a switch that was ended before its bridge was removed leaves them in the kernel.
func leftDevices(ctx context.Context, cfg *Config) (out []thing, _ error) {
	if !away(ctx, cfg.OVSDB) {
		return nil, nil
	}
	datapaths, err := kernelDatapaths()
	seen := map[string]bool{}
	for _, d := range datapaths {
		ours, whole := d.left(cfg.Bridge)
		for _, name := range ours {
			seen[name] = true
			if !whole {
				out = append(out, thing{fmt.Sprintf("port %s of the kernel's datapath %s", name, d.name), func(context.Context) error { return d.removePort(name) }})
			}
		}
		if whole {
			out = append(out, thing{fmt.Sprintf("the kernel's datapath %s with its flows and ports (%s)", d.name, strings.Join(ours, ", ")), func(context.Context) error { return d.remove() }})
			out = append(out, devices(tunnelDevice)...)
		}
	}
	for _, name := range append([]string{cfg.Bridge}, hostnet.Devices...) {
		if !seen[name] {
			out = append(out, devices(name)...)
		}
	}
	return out, err
}

// devices returns the interface of that name, if it exists.
func devices(name string) []thing {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil
	}
	return []thing{{"interface " + name, func(context.Context) error {
		if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("%w: what made it may have to remove it; or restart the node", err)
		}
		return nil
	}}}
}

// marks are files in the directory of netplugin's socket: the mark of rules on disk that are not the last ones, what a
// crash left of it, and the time of STATUS's last success.
var marks = []string{"rules.stale", "rules.stale.new", cni.ReadyFile}

// sockets returns netplugin's socket, the records of pods that were deleted while netplugin was away, and their
// directory if it is Flowkeep's alone.
func sockets(_ context.Context, cfg *Config) (out []thing, _ error) {
	if there(cfg.CNISocket) {
		out = append(out, fileThing(cfg.CNISocket))
	}
	for _, name := range marks {
		if path := filepath.Join(filepath.Dir(cfg.CNISocket), name); there(path) {
			out = append(out, fileThing(path))
		}
	}
	dir := filepath.Dir(cfg.CNISocket)
	if path := filepath.Join(dir, cni.DeletedDir); there(path) {
		out = append(out, thing{path, func(context.Context) error { return os.RemoveAll(path) }})
	}
	if filepath.Base(dir) == ownDir && there(dir) && !mounted(dir) {
		own := append([]string{filepath.Base(cfg.CNISocket), cni.DeletedDir}, marks...)
		if others(dir, own...) == 0 {
			out = append(out, fileThing(dir))
		}
	}
	return out, nil
}

// switchFile returns the file that "netplugin switch" leaves in Open vSwitch's directory.
func switchFile(_ context.Context, cfg *Config) ([]thing, error) {
	if path := filepath.Join(cfg.OVSRunDir, vswitch.Started); there(path) {
		return []thing{fileThing(path)}, nil
	}
	return nil, nil
}

// record finds the file with the numbers of the host's network: those of a later installation may be others.
func record(_ context.Context, cfg *Config) ([]thing, error) {
	if path := hostnet.RecordPath(cfg.StateDir); !cfg.State && filepath.IsAbs(path) && there(path) {
		return []thing{fileThing(path)}, nil
	}
	return nil, nil
}

// ownDir is what directories are called that are Flowkeep's alone.
const ownDir = "flowkeep"

func others(dir string, but ...string) (n int) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if !slices.Contains(but, e.Name()) {
			n++
		}
	}
	return n
}

// mounted: a directory that something is mounted on cannot be removed, but emptied.
func mounted(dir string) bool {
	var x unix.Statx_t // tells it of a mount of the same device too, from Linux 5.8 on
	if unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, 0, &x) == nil && x.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return x.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	}
	var self, up unix.Stat_t
	return unix.Lstat(dir, &self) == nil && unix.Lstat(filepath.Dir(dir), &up) == nil && self.Dev != up.Dev
}

// known are files that netplugin's state directory has, and no other.
var known = []string{"rules.db", "counters.db"}

func state(_ context.Context, cfg *Config) (out []thing, _ error) {
	if !cfg.State {
		return nil, nil
	}
	dir := filepath.Clean(cfg.StateDir)
	named := filepath.Base(dir) == ownDir
	if named { // node-state's and macvtap's lie beside it
		for _, part := range []string{"-node-state", "-macvtap"} {
			list, err := emptied(dir + part)
			if err != nil {
				return nil, err
			}
			out = append(out, list...)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return out, gone(err)
	}
	is := named || slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return slices.Contains(known, e.Name()) })
	if len(entries) > 0 && !is {
		return out, fmt.Errorf("%s does not look like Flowkeep's state directory: it stays", dir)
	}
	list, err := emptied(dir)
	return append(out, list...), err
}

// emptied returns a state directory, or its entries if it is a mount point and cannot be removed itself.
func emptied(dir string) (out []thing, _ error) {
	if !there(dir) {
		return nil, nil
	}
	if !mounted(dir) {
		return []thing{{"state directory " + dir, func(context.Context) error { return os.RemoveAll(dir) }}}, nil
	}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		out = append(out, thing{path, func(context.Context) error { return os.RemoveAll(path) }})
	}
	return out, err
}
