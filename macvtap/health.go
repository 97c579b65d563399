package macvtap

import "strings"

// Health reports whether devices on a link work, and if not, why; nil is a link that is not there.
func (l *Link) Health() (healthy bool, why string) {
	switch {
	case l == nil:
		return false, "it is not there"
	case OfFlowkeep(l.Name):
		return false, "Flowkeep enforces network policies there: a device on it would pass them by"
	case l.isPort():
		return false, "it is a port of a " + l.masterKind()
	case !l.Up:
		return false, "it is down"
	}
	return true, ""
}

// OfFlowkeep reports by a link's name whether Flowkeep evaluates packets on it: its bridge and that bridge's ports, or
// pods' links. The userspace datapath leaves no other mark on them.
func OfFlowkeep(name string) bool {
	return name == "fk0" || strings.HasPrefix(name, "fk-") || strings.HasPrefix(name, "fkp") || strings.HasPrefix(name, "ovs-")
}

// isPort reports whether a master takes all that the link receives, so that macvtap can't have it. A VRF takes none.
func (l *Link) isPort() bool { return l.Master != 0 && l.MasterKind != "vrf" }

func (l *Link) masterKind() string {
	switch l.MasterKind {
	case "":
		return "device that has ports"
	case "openvswitch":
		return "switch of Open vSwitch"
	}
	return l.MasterKind
}

// isDevice reports whether implicit exposure and globs take links like this one in: devices, bonds, and what also
// names.
func (l *Link) isDevice(also []string) bool {
	if l.Loopback {
		return false
	}
	for _, glob := range also {
		if matches(glob, l.Name) {
			return true
		}
	}
	return l.Physical || l.Kind == "bond"
}
