package macvtap

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Holder is a container of a pod, with a device that it has.
type Holder struct {
	Resource, Device          string
	Namespace, Pod, Container string
}

// Parent returns the parent link of a device, "" if the ID is of another plugin.
func (h Holder) Parent() string {
	_, parent, _, ok := ParseDeviceID(h.Device)
	if !ok {
		return ""
	}
	return parent
}

// ParseDeviceID takes an id apart that DeviceID has made.
func ParseDeviceID(id string) (resource, parent string, n int, ok bool) {
	parts := strings.Split(id, ":")
	if len(parts) != 3 || CheckResource(parts[0]) != "" || CheckLink(parts[1]) != "" {
		return "", "", 0, false
	}
	n, err := strconv.Atoi(parts[2])
	if err != nil || n < 0 || strconv.Itoa(n) != parts[2] {
		return "", "", 0, false
	}
	return parts[0], parts[1], n, true
}

// SortHolders by resource and device: eth0:9 before eth0:10.
func SortHolders(holders []Holder) {
	slices.SortFunc(holders, func(a, b Holder) int {
		_, parentA, nA, _ := ParseDeviceID(a.Device)
		_, parentB, nB, _ := ParseDeviceID(b.Device)
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(parentA, parentB), cmp.Compare(nA, nB), cmp.Compare(a.Device, b.Device),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container))
	})
}
