package tap

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/macvtap"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Want is an interface that a pod is to have.
type Want struct {
	Device string // id of one that was allocated; "" makes one on Parent, in Mode
	Parent string
	Mode   macvtap.Mode

	Network, ContainerID, IfName, NetNS string

	MTU          int              // 0 is the parent's
	MAC          net.HardwareAddr // nil is one of the kernel's choice, as is what Check takes for any
	Promiscuous  bool
	Owner, Group int // of the device node
}

// Interface is what a pod got.
type Interface struct {
	Name string
	MAC  net.HardwareAddr
	MTU  int
	Device
}

func (w *Want) id() string {
	if w.Device != "" {
		return w.Device
	}
	return direct(w.ContainerID, w.IfName)
}

func (w *Want) validate() error {
	switch {
	case !plain(w.ContainerID):
		return refuse("%q is no id of a container: it has letters, digits, '.', '_' and '-', 200 at most", w.ContainerID)
	case !linkName(w.IfName):
		return refuse("%q is no name of an interface: it has 15 characters at most, no '/', ':' or space", w.IfName)
	case w.Device == "" && !linkName(w.Parent):
		return refuse("%q is no name of an interface to make a device on: it has 15 characters at most, no '/', ':' or space", w.Parent)
	case w.Device == "" && !slices.Contains(macvtap.Modes, w.Mode):
		return refuse("there is no mode %q: it is one of %q", w.Mode, macvtap.Modes)
	case w.MTU < 0 || w.MTU > 0 && w.MTU < 68 || w.MTU > 65535:
		return refuse("an MTU of %d bytes: it is between 68 and 65535", w.MTU)
	case w.MAC != nil && !unicast(w.MAC):
		return refuse("%s is no MAC address of one interface", w.MAC)
	case w.Owner < 0 || w.Group < 0:
		return refuse("owner %d and group %d of the device node: both are numbers from 0", w.Owner, w.Group)
	}
	return nil
}

// Attach makes a device and its node, in a pod. What an earlier try left is removed; when it fails, so is what it made.
func (s *Store) Attach(w Want) (_ *Interface, err error) {
	if err := w.validate(); err != nil {
		return nil, err
	}
	release, err := s.hold()
	if err != nil {
		return nil, err
	}
	defer release()
	p, err := enter(w.NetNS)
	if err != nil {
		return nil, err
	}
	defer p.close()
	if err := s.detach(w.id(), w.ContainerID, w.IfName, w.NetNS); err != nil {
		return nil, fmt.Errorf("remove what an earlier attempt left: %w", err)
	}
	r, err := s.record(&w)
	if err != nil {
		return nil, err
	}
	if err := s.vacate(r); err != nil {
		return nil, err
	}
	if err := adopt(s, r, &w); err != nil {
		return nil, err
	}
	parent, err := fit(p, r, &w)
	if err != nil {
		return nil, err
	}
	a := Attachment{Record: r, Network: w.Network, ContainerID: w.ContainerID, IfName: w.IfName, NetNS: w.NetNS}
	defer func() {
		if err == nil {
			return
		}
		if undone := s.end(a); undone != nil {
			err = fmt.Errorf("%w; and it could not be undone: %w", err, undone)
		}
	}()
	return s.make(p, parent, a, &w)
}

// record is the device's, or a new one for a device that is named by its parent.
func (s *Store) record(w *Want) (Record, error) {
	if w.Device == "" {
		index, err := s.freeIndex()
		return Record{ID: w.id(), Parent: w.Parent, Mode: w.Mode, Index: index}, err
	}
	r, there, err := load(s.devicePath(w.Device), decodeRecord)
	switch {
	case errors.Is(err, ErrTorn):
		return r, fmt.Errorf("device %s must be allocated again, to a new pod: %w", w.Device, err)
	case err != nil:
		return r, fmt.Errorf("read the record of device %s: %w", w.Device, err)
	case !there:
		return r, refuse("device %s was not allocated on this node: %s has no record of it (the device plugin's --state-dir and the "+
			"configuration's stateDir have to be the same)", w.Device, s.dir)
	}
	return r, nil
}

// vacate takes a device from the pod that had it before it was allocated again. A pod with the same allocation keeps
// it.
func (s *Store) vacate(r Record) error {
	a, there, err := load(s.attachedPath(r.ID), decodeAttachment)
	if err != nil && !errors.Is(err, ErrTorn) {
		return fmt.Errorf("read who has device %s: %w", r.ID, err)
	}
	if !there {
		return nil
	}
	if a.Generation == r.Generation {
		alive, err := living(a)
		if err != nil {
			return err
		}
		if alive {
			return fmt.Errorf("device %s is interface %s of container %s, until that is removed", r.ID, a.IfName, a.ContainerID)
		}
	}
	return s.end(a)
}

func living(a Attachment) (bool, error) {
	p, err := enter(a.NetNS)
	if errors.Is(err, ErrNoNetNS) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer p.close()
	m, err := p.tap(a.Index)
	return m != nil, err
}

// fit is the parent, if it can have what is wanted.
func fit(p *pod, r Record, w *Want) (netlink.Link, error) {
	parent, err := parentOf(r.Parent)
	if err != nil {
		return nil, err
	}
	if macvtap.OfFlowkeep(parent.Attrs().Name) {
		return nil, refuse("a device on %s: Flowkeep enforces network policies there, and the device would pass them by", r.Parent)
	}
	if mtu := parent.Attrs().MTU; w.MTU > mtu {
		return nil, refuse("an MTU of %d bytes: interface %s, which the device is made on, has %d, and no device on it has more", w.MTU, r.Parent, mtu)
	}
	if _, err := p.handle.LinkByName(w.IfName); err == nil {
		return nil, refuse("the pod has an interface %s already", w.IfName)
	} else if !notFound(err) {
		return nil, fmt.Errorf("read interface %s in %s: %w", w.IfName, p.path, err)
	}
	if other, err := p.handle.LinkByIndex(r.Index); err == nil {
		return nil, fmt.Errorf("interface %s of the pod has index %d, which device %s needs for its /dev/tap%[2]d: delete the pod",
			other.Attrs().Name, r.Index, r.ID)
	} else if !notFound(err) {
		return nil, fmt.Errorf("read interface %d in %s: %w", r.Index, p.path, err)
	}
	return parent, nil
}

// make takes the steps of an attachment.
func (s *Store) make(p *pod, parent netlink.Link, a Attachment, w *Want) (*Interface, error) {
	var m *netlink.Macvtap
	var dev uint64
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"write", func() error {
			if err := save(s.attachedPath(a.ID), a); err != nil {
				return fmt.Errorf("write down who has device %s: %w", a.ID, err)
			}
			return nil
		}},
		{"link", func() error { return p.addTap(a, parent, *w) }},
		{"read", func() (err error) {
			if m, err = p.tap(a.Index); err == nil && m == nil {
				err = fmt.Errorf("interface %s vanished as it was made: was %s removed?", a.IfName, a.Parent)
			}
			return err
		}},
		{"number", func() (err error) { dev, err = p.number(m); return err }},
		{"node", func() error { return placeNode(s, a.ID, dev, w.Owner, w.Group) }},
		{"up", func() error { return p.raise(m, w.Promiscuous) }},
		{"done", func() error { return nil }},
	} {
		if err := s.step(step.name); err != nil {
			return nil, err
		}
		if err := step.do(); err != nil {
			return nil, err
		}
	}
	return &Interface{Name: a.IfName, MAC: m.HardwareAddr, MTU: m.MTU, Device: s.device(a.Record)}, nil
}

// placeNode makes the device node of a device, and removes others with its number: those of devices that the kernel
// removed with their parent, after which it gives the number to the next device.
func placeNode(s *Store, id string, dev uint64, owner, group int) error {
	nodes, err := os.ReadDir(s.path("dev"))
	if err != nil {
		return err
	}
	for _, n := range nodes {
		path := s.path("dev", n.Name())
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != dev {
			continue
		}
		if err := remove(path); err != nil {
			return fmt.Errorf("remove a device node of a device that is gone: %w", err)
		}
	}
	return makeNode(s.Node(id), dev, owner, group)
}

// end removes an attachment: link, node, and last what is written down of it.
func (s *Store) end(a Attachment) error {
	p, err := enter(a.NetNS)
	if err == nil {
		defer p.close()
		err = p.removeTap(a.Index)
	}
	if err != nil && !errors.Is(err, ErrNoNetNS) {
		return err
	}
	if err := remove(s.Node(a.ID)); err != nil {
		return fmt.Errorf("remove a device node: %w", err)
	}
	if err := remove(s.attachedPath(a.ID)); err != nil {
		return fmt.Errorf("remove an attachment: %w", err)
	}
	return nil
}

// Detach removes a container's interface, its node, and what is written down of it. All of them may be gone, the network namespace too.
func (s *Store) Detach(w Want) error {
	release, err := s.hold()
	if err != nil {
		return err
	}
	defer release()
	return s.detach(w.id(), w.ContainerID, w.IfName, w.NetNS)
}

func (s *Store) detach(id, containerID, ifName, netNS string) error {
	attachments, err := list(s.path("attached"), decodeAttachment)
	if err != nil && !errors.Is(err, ErrTorn) {
		return err
	}
	of := func(a Attachment) bool { return a.ContainerID == containerID && a.IfName == ifName }
	for _, a := range attachments {
		if !of(a) {
			continue
		}
		if err := s.end(a); err != nil {
			return err
		}
	}
	attachments = slices.DeleteFunc(attachments, of)
	if err := removeUnrecorded(ifName, netNS, attachments); err != nil {
		return err
	}
	if slices.ContainsFunc(attachments, func(a Attachment) bool { return a.ID == id }) {
		return nil
	}
	if is, err := isOnNode(s, id); is || err != nil { // another pod has it by now
		return err
	}
	return remove(s.Node(id))
}

// removeUnrecorded removes an interface of ours that nothing is written down of, as the state directory was emptied.
func removeUnrecorded(ifName, netNS string, others []Attachment) error {
	p, err := enter(netNS)
	if errors.Is(err, ErrNoNetNS) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.close()
	m, err := p.tapNamed(ifName)
	if m == nil || err != nil || slices.ContainsFunc(others, func(a Attachment) bool { return a.Index == m.Index }) {
		return err
	}
	return p.removeTap(m.Index)
}

// Check says how a container's interface and its node differ from what is wanted; nil if they do not.
func (s *Store) Check(w Want) error {
	if err := w.validate(); err != nil {
		return err
	}
	release, err := s.hold()
	if err != nil {
		return err
	}
	defer release()
	a, there, err := load(s.attachedPath(w.id()), decodeAttachment)
	if err != nil {
		return err
	}
	if !there || a.ContainerID != w.ContainerID || a.IfName != w.IfName {
		return fmt.Errorf("device %s is not attached to container %s as %s", w.id(), w.ContainerID, w.IfName)
	}
	p, err := enter(w.NetNS)
	if err != nil {
		return err
	}
	defer p.close()
	m, err := p.tap(a.Index)
	if err != nil {
		return err
	}
	if m == nil {
		return fmt.Errorf("the pod has no macvtap of index %d, which interface %s had", a.Index, a.IfName)
	}
	differences, err := differ(a, &w, m)
	if err != nil {
		return err
	}
	dev, err := p.number(m)
	if err != nil {
		return err
	}
	if d := nodeDiffers(s.Node(a.ID), dev, w.Owner, w.Group); d != "" {
		differences = append(differences, d)
	}
	if len(differences) > 0 {
		return errors.New(strings.Join(differences, "; "))
	}
	return nil
}

func differ(a Attachment, w *Want, m *netlink.Macvtap) (list []string, err error) {
	parent, err := parentOf(a.Parent)
	if err != nil {
		return nil, err
	}
	say := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if m.Name != a.IfName {
		say("the interface is named %s, not %s", m.Name, a.IfName)
	}
	if m.ParentIndex != lower(parent) {
		say("interface %s is not on %s", a.IfName, a.Parent)
	}
	if m.Mode != modes[a.Mode] {
		say("interface %s is not in mode %s", a.IfName, a.Mode)
	}
	if m.Flags&net.FlagUp == 0 {
		say("interface %s is down", a.IfName)
	}
	if w.MTU != 0 && m.MTU != w.MTU {
		say("interface %s has an MTU of %d bytes, not %d", a.IfName, m.MTU, w.MTU)
	}
	if w.MAC != nil && m.HardwareAddr.String() != w.MAC.String() {
		say("interface %s has the MAC address %s, not %s", a.IfName, m.HardwareAddr, w.MAC)
	}
	if w.Promiscuous && m.Promisc == 0 {
		say("interface %s is not promiscuous", a.IfName)
	}
	return list, nil
}

// lower is what the kernel makes macvtaps on that are to be on a link: of a macvlan or a macvtap, what that is on.
func lower(parent netlink.Link) int {
	if t := parent.Type(); t == kind || t == "macvlan" {
		return parent.Attrs().ParentIndex
	}
	return parent.Attrs().Index
}

// Collect removes what a network's attachments that are not kept have.
func (s *Store) Collect(network string, keep func(containerID, ifName string) bool) error {
	release, err := s.hold()
	if err != nil {
		return err
	}
	defer release()
	attachments, err := list(s.path("attached"), decodeAttachment)
	var errs []error
	if err != nil && !errors.Is(err, ErrTorn) {
		errs = append(errs, err)
	}
	for _, a := range attachments {
		if a.Network == network && !keep(a.ContainerID, a.IfName) {
			errs = append(errs, s.end(a))
		}
	}
	return errors.Join(append(errs, s.removeStrayNodes())...)
}

// removeStrayNodes removes device nodes without a device: their numbers may be another device's by now.
func (s *Store) removeStrayNodes() error {
	nodes, err := os.ReadDir(s.path("dev"))
	if err != nil {
		return err
	}
	records, err := list(s.path("devices"), decodeRecord)
	if err != nil && !errors.Is(err, ErrTorn) {
		return err
	}
	links, err := onNode()
	if err != nil {
		return err
	}
	used := map[string]bool{}
	for _, r := range records {
		used[key(r.ID)] = links[r.Index] && r.Adopted != r.Generation
	}
	var errs []error
	for _, n := range nodes {
		record := s.path("attached", n.Name()+".json")
		if exists(record) || exists(record+torn) || used[n.Name()] {
			continue
		}
		errs = append(errs, remove(s.path("dev", n.Name())))
	}
	return errors.Join(errs...)
}

// Ready returns nil if the kernel can make macvtaps and the state directory takes files and device nodes.
func (s *Store) Ready() error {
	release, err := s.hold()
	if err != nil {
		return err
	}
	defer release()
	if err := canMake(); err != nil {
		return err
	}
	probe := s.path("probe")
	if err := save(probe, "a file to test the free space"); err != nil {
		return fmt.Errorf("the state directory takes no files: %w", err)
	}
	if err := remove(probe); err != nil {
		return fmt.Errorf("the state directory takes no files: %w", err)
	}
	if err := makeNode(s.path("dev", "probe"), 0, os.Getuid(), os.Getgid()); err != nil {
		return fmt.Errorf("the state directory takes no device nodes: %w", err)
	}
	return remove(s.path("dev", "probe"))
}
