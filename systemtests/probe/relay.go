package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"syscall"
)

// relayed is the EtherType of the frames that relays send on, one for experiments. The payload is the number of stations that are left,
// their MAC addresses, and whatever the last of them is to get.
const relayed = 0x88b5

// virtio is the size of the header before each frame that passes a macvtap's device: virtio_net_hdr, all zero without offloads.
const virtio = 10

// relayCommand does with the device /dev/tapN of a link what a virtual machine does: it takes frames and sends frames.
func relayCommand(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("relay wants a link:\n%s", usage)
	}
	link, err := net.InterfaceByName(args[0])
	if err != nil {
		return err
	}
	device := fmt.Sprintf("/dev/tap%d", link.Index)
	fd, err := syscall.Open(device, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", device, err)
	}
	defer syscall.Close(fd)
	buf := make([]byte, 1<<16)
	for {
		n, err := syscall.Read(fd, buf)
		if err != nil {
			return fmt.Errorf("take a frame from %s: %w", device, err)
		}
		frame := onward(buf[min(n, virtio):n], link.HardwareAddr)
		if frame == nil {
			continue
		}
		if _, err := syscall.Write(fd, append(make([]byte, virtio), frame...)); err != nil {
			return fmt.Errorf("send a frame to %s: %w", device, err)
		}
	}
}

// onward is the frame to the next station; nil of one that goes no further.
func onward(frame []byte, own net.HardwareAddr) []byte {
	const header, address = 14, 6
	if len(frame) < header+1+address || binary.BigEndian.Uint16(frame[12:]) != relayed || frame[header] == 0 {
		return nil
	}
	payload := frame[header+1:]
	return slices.Concat(payload[:address], own, frame[12:header], []byte{frame[header] - 1}, payload[address:])
}
