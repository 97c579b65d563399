package tap

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A device is made in the node's network namespace when it is allocated. A pod without an attachment by the CNI plugin
// uses it there, by its device node alone. The CNI plugin removes it and makes it in the pod. The agent removes it when
// the kubelet lists no pod that holds it.

// DefaultOwner is owner and group of device nodes: those that virtual machines run as (qemu).
const DefaultOwner = 107

// nodePrefix begins the names of links that are made in the node's network namespace; what their index is above
// FirstIndex follows.
const nodePrefix = "fktap"

func nodeName(index int) string { return nodePrefix + strconv.FormatInt(int64(index-FirstIndex), 16) }

// isNodes reports whether a link is a device in the node's network namespace.
func isNodes(l netlink.Link) bool {
	a := l.Attrs()
	return l.Type() == kind && a.Index >= FirstIndex && a.Name == nodeName(a.Index)
}

// ownNode opens the network namespace of the calling thread, which is the node's.
func ownNode() (*pod, error) {
	n, err := ns.GetCurrentNS()
	if err != nil {
		return nil, fmt.Errorf("open the node's network namespace: %w", err)
	}
	handle, err := netlink.NewHandleAt(netns.NsHandle(n.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		n.Close()
		return nil, fmt.Errorf("open the node's network namespace: %w", err)
	}
	return &pod{"the node's network namespace", n, handle}, nil
}

// Links returns the links of devices in the node's network namespace.
func Links() ([]netlink.Link, error) {
	links, err := rtnl.Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list the node's links: %w", err)
	}
	return slices.DeleteFunc(links, func(l netlink.Link) bool { return !isNodes(l) }), nil
}

// onNode returns the indexes of the devices in the node's network namespace.
func onNode() (map[int]bool, error) {
	links, err := Links()
	found := map[int]bool{}
	for _, l := range links {
		found[l.Attrs().Index] = true
	}
	return found, err
}

// taken reports whether another link than a device of ours has an index.
func (p *pod) taken(index int) (bool, error) {
	l, err := p.handle.LinkByIndex(index)
	if notFound(err) || index == 0 {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read link %d: %w", index, err)
	}
	return !isNodes(l), nil
}

// makeOnNode makes a device and its device node in the node's network namespace, and leaves nothing if it fails.
func makeOnNode(s *Store, p *pod, r Record) (err error) {
	w := Want{Device: r.ID, IfName: nodeName(r.Index)}
	parent, err := fit(p, r, &w)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, dropOnNode(s, p, r))
		}
	}()
	if err := s.step("node link"); err != nil {
		return err
	}
	if err := p.addTap(Attachment{Record: r, IfName: w.IfName}, parent, w); err != nil {
		return err
	}
	m, err := p.tap(r.Index)
	if m == nil {
		return errors.Join(err, fmt.Errorf("interface %s vanished as it was made: was %s removed?", w.IfName, r.Parent))
	}
	dev, err := p.number(m)
	if err != nil {
		return err
	}
	if err := s.step("node node"); err != nil {
		return err
	}
	if err := placeNode(s, r.ID, dev, DefaultOwner, DefaultOwner); err != nil {
		return err
	}
	return p.raise(m, false)
}

// dropOnNode removes a device from the node's network namespace, and its device node, unless that is an attachment's.
// Both may be gone.
func dropOnNode(s *Store, p *pod, r Record) error {
	l, err := p.handle.LinkByIndex(r.Index)
	switch {
	case err == nil && isNodes(l):
		if err := p.handle.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("remove interface %s: %w", l.Attrs().Name, err)
		}
	case err != nil && !notFound(err):
		return fmt.Errorf("read link %d: %w", r.Index, err)
	}
	if r.ID == "" || exists(s.attachedPath(r.ID)) {
		return nil
	}
	return remove(s.Node(r.ID))
}

func drop(s *Store, r Record) error {
	p, err := ownNode()
	if err != nil {
		return err
	}
	defer p.close()
	return dropOnNode(s, p, r)
}

// adopt removes a device from the node's network namespace, as it is made in a pod's, and writes down that it is a
// pod's.
func adopt(s *Store, r Record, w *Want) error {
	if w.Device == "" {
		return nil
	}
	if r.Adopted != r.Generation {
		r.Adopted = r.Generation
		if err := save(s.devicePath(r.ID), r); err != nil {
			return fmt.Errorf("write the record of device %s: %w", r.ID, err)
		}
	}
	return drop(s, r)
}

// current returns a device's record, and whether it still has that generation and no CNI plugin has attached it.
func current(s *Store, id string, generation int64) (r Record, is bool, err error) {
	r, there, err := load(s.devicePath(id), decodeRecord)
	return r, there && r.Generation == generation && r.Adopted != generation && !exists(s.attachedPath(id)), err
}

// isOnNode reports whether a device is in the node's network namespace, and no CNI plugin's.
func isOnNode(s *Store, id string) (bool, error) {
	text, err := os.ReadFile(s.devicePath(id))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	// A damaged record is reported where it is needed.
	if r, why := decodeRecord(text); why == nil && r.Adopted != r.Generation {
		links, err := onNode()
		return links[r.Index], err
	}
	return false, nil
}

// Ensure makes a device in the node's network namespace if it is not there: after a reboot, or as its parent was away
// when it was allocated.
func (s *Store) Ensure(id string, generation int64) error {
	release, err := s.hold()
	if err != nil {
		return err
	}
	defer release()
	r, is, err := current(s, id, generation)
	if err != nil || !is {
		return err
	}
	p, err := ownNode()
	if err != nil {
		return err
	}
	defer p.close()
	if l, err := p.handle.LinkByIndex(r.Index); err == nil && isNodes(l) && exists(s.Node(id)) {
		return nil
	}
	return errors.Join(dropOnNode(s, p, r), makeOnNode(s, p, r))
}

// Drop removes a device from the node's network namespace, if it still has that generation. It stays allocated.
func (s *Store) Drop(id string, generation int64) error {
	release, err := s.hold()
	if err != nil {
		return err
	}
	defer release()
	r, there, err := load(s.devicePath(id), decodeRecord)
	if err != nil || !there || r.Generation != generation {
		return err
	}
	return drop(s, r)
}

// Restore removes what an earlier boot or an emptied state directory left: device nodes of devices with no link, as
// their numbers may be another device's by now, and links in the node's network namespace with no record. Call it
// before devices are given away.
func (s *Store) Restore() error {
	release, err := s.hold()
	if err != nil {
		return err
	}
	defer release()
	p, err := ownNode()
	if err != nil {
		return err
	}
	defer p.close()
	links, err := p.handle.LinkList()
	if err != nil {
		return fmt.Errorf("list the node's links: %w", err)
	}
	records, err := list(s.path("devices"), decodeRecord)
	if err != nil && !errors.Is(err, ErrTorn) {
		return err
	}
	known, there := map[int]bool{}, map[int]bool{}
	for _, r := range records {
		known[r.Index] = true
	}
	var errs []error
	for _, l := range links {
		if index := l.Attrs().Index; isNodes(l) && !known[index] {
			errs = append(errs, p.handle.LinkDel(l))
		} else if isNodes(l) {
			there[index] = true
		}
	}
	for _, r := range records {
		if !there[r.Index] {
			errs = append(errs, dropOnNode(s, p, r))
		}
	}
	return errors.Join(errs...)
}
