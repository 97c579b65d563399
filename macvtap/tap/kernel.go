package tap

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/flowkeep/flowkeep/macvtap"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const kind = "macvtap"

var modes = map[macvtap.Mode]netlink.MacvlanMode{
	macvtap.Bridge: netlink.MACVLAN_MODE_BRIDGE, macvtap.Private: netlink.MACVLAN_MODE_PRIVATE,
	macvtap.VEPA: netlink.MACVLAN_MODE_VEPA, macvtap.Passthru: netlink.MACVLAN_MODE_PASSTHRU,
}

func notFound(err error) bool {
	return errors.As(err, new(netlink.LinkNotFoundError))
}

// hostHas reports whether the node has a link of an index.
func hostHas(index int) (bool, error) {
	_, err := netlink.LinkByIndex(index)
	if err != nil && !notFound(err) {
		return false, fmt.Errorf("read link %d: %w", index, err)
	}
	return err == nil, nil
}

// parentOf is a link that can have macvtaps.
func parentOf(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if notFound(err) {
		return nil, fmt.Errorf("the node has no interface %s, the parent of the device", name)
	}
	if err != nil {
		return nil, fmt.Errorf("read interface %s: %w", name, err)
	}
	return link, nil
}

// pod is a network namespace.
type pod struct {
	path   string
	ns     ns.NetNS
	handle *netlink.Handle
}

// enter opens a network namespace; one that is gone is ErrNoNetNS.
func enter(path string) (*pod, error) {
	if path == "" {
		return nil, fmt.Errorf("%w: none is named", ErrNoNetNS)
	}
	n, err := ns.GetNS(path)
	if errors.As(err, new(ns.NSPathNotExistErr)) || errors.As(err, new(ns.NSPathNotNSErr)) {
		return nil, fmt.Errorf("%w at %s", ErrNoNetNS, path)
	}
	if err != nil {
		return nil, fmt.Errorf("open the network namespace %s: %w", path, err)
	}
	handle, err := netlink.NewHandleAt(netns.NsHandle(n.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		n.Close()
		return nil, fmt.Errorf("open the network namespace %s: %w", path, err)
	}
	return &pod{path, n, handle}, nil
}

func (p *pod) close() {
	p.handle.Close()
	p.ns.Close()
}

// tap is the macvtap of an index, or nil.
func (p *pod) tap(index int) (*netlink.Macvtap, error) {
	link, err := p.handle.LinkByIndex(index)
	if notFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read interface %d in %s: %w", index, p.path, err)
	}
	m, _ := link.(*netlink.Macvtap)
	return m, nil
}

// tapNamed is the macvtap of ours that has a name, or nil.
func (p *pod) tapNamed(name string) (*netlink.Macvtap, error) {
	link, err := p.handle.LinkByName(name)
	if notFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read interface %s in %s: %w", name, p.path, err)
	}
	if m, ok := link.(*netlink.Macvtap); ok && m.Index >= FirstIndex {
		return m, nil
	}
	return nil, nil
}

// removeTap removes the macvtap of an index; there may be none.
func (p *pod) removeTap(index int) error {
	m, err := p.tap(index)
	if m == nil || err != nil {
		return err
	}
	if err := p.handle.LinkDel(m); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove interface %s in %s: %w", m.Name, p.path, err)
	}
	return nil
}

// addTap makes a macvtap in the pod with its final name and index, in one step: nothing is moved, so that no name of the node's is in the way,
// and the numbers of its device stay.
func (p *pod) addTap(a Attachment, parent netlink.Link, w Want) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Index, attrs.ParentIndex, attrs.Namespace = a.IfName, a.Index, parent.Attrs().Index, netlink.NsFd(p.ns.Fd())
	attrs.MTU, attrs.HardwareAddr = w.MTU, w.MAC
	err := netlink.LinkAdd(&netlink.Macvtap{Macvlan: netlink.Macvlan{LinkAttrs: attrs, Mode: modes[a.Mode]}})
	what := fmt.Sprintf("make interface %s on %s in mode %s", a.IfName, a.Parent, a.Mode)
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%s: the kernel has no macvtap (modprobe macvtap): %w", what, err)
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%s: %s is a port of a bridge or a bond, or of Open vSwitch, and has no room for macvtaps: %w", what, a.Parent, err)
	case errors.Is(err, unix.EINVAL) && a.Mode == macvtap.Passthru:
		return fmt.Errorf("%s: passthru is for one device, and %s has another: %w", what, a.Parent, err)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%s: %s has a device in mode passthru, which has it for itself, or takes none: %w", what, a.Parent, err)
	case err != nil:
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// raise takes the interface up.
func (p *pod) raise(m *netlink.Macvtap, promiscuous bool) error {
	if err := p.handle.LinkSetUp(m); errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("take interface %s up: another device on its parent, or the parent, has the MAC address %s: %w", m.Name, m.HardwareAddr, err)
	} else if err != nil {
		return fmt.Errorf("take interface %s up: %w", m.Name, err)
	}
	if !promiscuous {
		return nil
	}
	if err := p.handle.SetPromiscOn(m); err != nil {
		return fmt.Errorf("make interface %s promiscuous: %w", m.Name, err)
	}
	return nil
}

// number is the device number of a macvtap's character device. Sysfs shows the links of the network namespace that it
// was mounted in. If this process's shows another one, a thread mounts one of its own, which needs more rights.
func (p *pod) number(m *netlink.Macvtap) (dev uint64, err error) {
	dir := filepath.Join("/sys/class/net", m.Name)
	file := filepath.Join(dir, "macvtap", "tap"+strconv.Itoa(m.Index), "dev")
	address, err := os.ReadFile(filepath.Join(dir, "address"))
	if err == nil && strings.TrimSpace(string(address)) == m.HardwareAddr.String() {
		if text, err := os.ReadFile(file); err == nil {
			return parseNumber(string(text))
		}
	}
	err = onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("make a mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		if err := unix.Setns(int(p.ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter %s: %w", p.path, err)
		}
		if err := unix.Mount("sysfs", "/sys", "sysfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("mount sysfs: %w", err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		dev, err = parseNumber(string(text))
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("find the device number of interface %s: %w", m.Name, err)
	}
	return dev, nil
}

// onOwnThread runs do on a thread that ends with it. It is never the process's first one, whose namespaces others take for the process's.
func onOwnThread(do func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- onOwnThread(do)
			return
		}
		done <- do()
	}()
	return <-done
}

// parseNumber reads sysfs's major:minor.
func parseNumber(text string) (uint64, error) {
	major, minor, ok := strings.Cut(strings.TrimSpace(text), ":")
	a, errA := strconv.ParseUint(major, 10, 32)
	b, errB := strconv.ParseUint(minor, 10, 32)
	if !ok || errA != nil || errB != nil {
		return 0, fmt.Errorf("%q is no major:minor", text)
	}
	return unix.Mkdev(uint32(a), uint32(b)), nil
}

// nodeMode is of device nodes: owner and group may read and write.
const nodeMode = 0o660

// makeNode puts a device node at path, in place of what is there, whole.
func makeNode(path string, dev uint64, owner, group int) (err error) {
	next := path + ".new"
	defer func() {
		if err != nil {
			_ = os.Remove(next)
			err = fmt.Errorf("make the device node %s: %w", path, err)
		}
	}()
	if err := remove(next); err != nil {
		return err
	}
	if err := unix.Mknod(next, unix.S_IFCHR|nodeMode, int(dev)); err != nil {
		return err
	}
	if err := os.Chmod(next, nodeMode); err != nil { // whatever the umask, and while it is ours
		return err
	}
	if err := os.Chown(next, owner, group); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// nodeDiffers returns how a device node differs from the desired one; "" if it does not.
func nodeDiffers(path string, dev uint64, owner, group int) string {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fmt.Sprintf("the device node %s: %v", path, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFCHR:
		return path + " is no device node"
	case st.Rdev != dev:
		return fmt.Sprintf("the device node %s is %d:%d, and the interface's device is %d:%d",
			path, unix.Major(st.Rdev), unix.Minor(st.Rdev), unix.Major(dev), unix.Minor(dev))
	case int(st.Uid) != owner || int(st.Gid) != group:
		return fmt.Sprintf("the device node %s is %d:%d's, not %d:%d's", path, st.Uid, st.Gid, owner, group)
	case st.Mode&0o777 != nodeMode:
		return fmt.Sprintf("the device node %s has mode %o, not %o", path, st.Mode&0o777, nodeMode)
	}
	return ""
}

// canMake reports whether the kernel knows macvtaps: asked for one without a parent, it refuses one way or the other.
func canMake() error {
	err := netlink.LinkAdd(&netlink.Macvtap{Macvlan: netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "mvtprobe", Index: lastIndex, TxQLen: -1}}})
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return errors.New("the kernel has no macvtap: modprobe macvtap")
	case errors.Is(err, unix.EPERM):
		return errors.New("making links is not permitted: it needs the capability NET_ADMIN")
	}
	return nil
}

// unicast is what a link may have for an address.
func unicast(mac net.HardwareAddr) bool {
	return len(mac) == 6 && mac[0]&1 == 0 && mac.String() != "00:00:00:00:00:00"
}
