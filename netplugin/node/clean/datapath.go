package clean

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// What the kernel calls things (linux/openvswitch.h).
const (
	datapathFamily, datapathVersion = "ovs_datapath", 2
	portFamily, portVersion         = "ovs_vport", 1

	commandDelete, commandGet = 2, 3

	datapathName = 1 // attributes
	portName     = 3
)

// header of a message is of a datapath, by the index of its own interface.
type header struct{ index int32 }

func (h header) Len() int { return 4 }
func (h header) Serialize() []byte {
	return binary.NativeEndian.AppendUint32(nil, uint32(h.index))
}

// kernelDatapath is one, with its ports by name.
type kernelDatapath struct {
	header
	name  string
	ports []string
}

// kernelDatapaths returns the kernel datapaths of this network namespace.
func kernelDatapaths() ([]*kernelDatapath, error) {
	var all []*kernelDatapath
	err := ask(datapathFamily, datapathVersion, commandGet, unix.NLM_F_DUMP, header{}, func(h header, name string) {
		all = append(all, &kernelDatapath{header: h, name: name})
	}, datapathName)
	if err != nil {
		return nil, fmt.Errorf("list the kernel's datapaths: %w", err)
	}
	for _, d := range all {
		err := ask(portFamily, portVersion, commandGet, unix.NLM_F_DUMP, d.header, func(_ header, name string) { d.ports = append(d.ports, name) }, portName)
		if err != nil {
			return nil, fmt.Errorf("list the ports of the kernel's datapath %s: %w", d.name, err)
		}
	}
	return all, nil
}

// ask sends a message and tells, of each that is answered, what it is about and the attribute that is a name. A kernel without the family answers nothing.
func ask(family string, version, command uint8, flags int, about header, each func(header, string), attribute uint16, attributes ...nl.NetlinkRequestData) error {
	families, err := netlink.GenlFamilyList() // to ask for one would have the kernel load it
	if err != nil {
		return err
	}
	at := slices.IndexFunc(families, func(f *netlink.GenlFamily) bool { return f.Name == family })
	if at < 0 {
		return nil
	}
	req := nl.NewNetlinkRequest(int(families[at].ID), flags)
	req.AddData(&nl.Genlmsg{Command: command, Version: version})
	req.AddData(about)
	for _, a := range attributes {
		req.AddData(a)
	}
	answers, err := req.Execute(unix.NETLINK_GENERIC, 0)
	for _, text := range answers {
		const begins = nl.SizeofGenlmsg + 4
		if len(text) < begins || each == nil {
			continue
		}
		list, err := nl.ParseRouteAttr(text[begins:])
		if err != nil {
			return err
		}
		for _, a := range list {
			if a.Attr.Type == attribute {
				each(header{int32(binary.NativeEndian.Uint32(text[nl.SizeofGenlmsg:]))}, string(bytes.TrimRight(a.Value, "\x00")))
			}
		}
	}
	return err
}

// remove the datapath, with all ports that are its own, or one port of it.
func (d *kernelDatapath) remove() error {
	return ask(datapathFamily, datapathVersion, commandDelete, unix.NLM_F_ACK, d.header, nil, 0)
}

func (d *kernelDatapath) removePort(name string) error {
	return ask(portFamily, portVersion, commandDelete, unix.NLM_F_ACK, d.header, nil, 0, nl.NewRtAttr(portName, nl.ZeroTerminated(name)))
}

// tunnelDevice is what Open vSwitch calls the kernel's device of its Geneve tunnels, which all of its bridges share.
const tunnelDevice = "genev_sys_6081"

// left is what of the datapath goes: all of it, where nobody else has a port in it.
func (d *kernelDatapath) left(bridge string) (ours []string, whole bool) {
	whole = true
	for _, name := range d.ports {
		switch {
		case name == bridge || slices.Contains(hostnet.Devices, name):
			ours = append(ours, name)
		case name != d.name && name != tunnelDevice && !strings.HasPrefix(name, hostnet.PodPrefix):
			whole = false
		}
	}
	slices.Sort(ours)
	return ours, whole && len(ours) > 0
}
