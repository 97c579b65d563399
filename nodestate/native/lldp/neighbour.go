package lldp

import (
	"encoding/json"
	"fmt"
	"reflect"
)

// Types of the units of a frame: IEEE 802.1AB, table 8-1.
const (
	endOfUnit = iota
	chassisID
	portID
	timeToLive
	portDescription
	systemName
	systemDescription
	systemCapabilities
	managementAddress
	organizationSpecific = 127
)

// Subtypes of chassis and port ids that are not text; the numbers of the two differ.
const (
	chassisMAC, chassisNetwork = 4, 5
	portMAC, portNetwork       = 3, 4
)

// What the subtypes of ids are called, in the standard and in nmstate.
var (
	chassisTypes = []string{1: "Chassis component", "Interface alias", "Port component", "MAC address", "Network address", "Interface name", "Locally assigned"}
	portTypes    = []string{1: "Interface alias", "Port component", "MAC address", "Network address", "Interface name", "Agent circuit ID", "Locally assigned"}
)

// capabilities by bit, from the lowest.
var capabilities = []string{
	"Other", "Repeater", "MAC Bridge component", "802.11 Access Point (AP)", "Router", "Telephone", "DOCSIS cable device", "Station Only",
	"C-VLAN component", "S-VLAN component", "Two-port MAC Relay component",
}

// Neighbour has the units of a neighbour in nmstate's schema and order: an entry of lldp.neighbors. Chassis and port
// are always there.
type Neighbour []TLV

// TLV is one unit of a neighbour. Only the keys of its type are there.
type TLV struct {
	Type            int          `json:"type"`
	SystemName      string       `json:"system-name,omitempty"`
	Description     string       `json:"system-description,omitempty"`
	Capabilities    []string     `json:"system-capabilities,omitempty"`
	ChassisID       string       `json:"chassis-id,omitempty"`
	ChassisType     int          `json:"chassis-id-type,omitempty"`
	PortID          string       `json:"port-id,omitempty"`
	PortType        int          `json:"port-id-type,omitempty"`
	TypeName        string       `json:"_description,omitempty"`
	VLANs           []VLAN       `json:"ieee-802-1-vlans,omitempty"`
	PPVIDs          []int        `json:"ieee-802-1-ppvids,omitempty"`
	Physical        *Physical    `json:"ieee-802-3-mac-phy-conf,omitempty"`
	MaxFrame        int          `json:"ieee-802-3-max-frame-size,omitempty"`
	Management      []Management `json:"management-addresses,omitempty"`
	Organization    string       `json:"oui,omitempty"`
	OrganizationSub int          `json:"subtype,omitempty"`
}

// VLAN is one that the neighbour's port has a name for.
type VLAN struct {
	Name string `json:"name"`
	ID   int    `json:"vid"`
}

// Physical is how the neighbour's port is set.
type Physical struct {
	Autoneg        bool `json:"autoneg"`
	MAU            int  `json:"operational-mau-type"`
	AutonegCapable int  `json:"pmd-autoneg-cap"`
}

// Management is an address by which the neighbour is managed.
type Management struct {
	Address       string `json:"address"`
	Family        string `json:"address-subtype"` // IPv4, IPv6 or MAC
	Interface     int64  `json:"interface-number"`
	InterfaceType int    `json:"interface-number-subtype"`
}

// key returns the key of a neighbour on its port: the standard's MSAP identifier.
func (n Neighbour) key() string {
	key := ""
	for _, t := range n {
		if t.Type == chassisID || t.Type == portID {
			key += fmt.Sprintf("%d %q %d %q ", t.ChassisType, t.ChassisID, t.PortType, t.PortID)
		}
	}
	return key
}

func (n Neighbour) equal(o Neighbour) bool { return reflect.DeepEqual(n, o) }

// JSON returns the neighbour as an entry of a state document.
func (n Neighbour) JSON() json.RawMessage {
	raw, err := json.Marshal(n)
	if err != nil {
		return json.RawMessage("[]") // of texts and numbers there is nothing that JSON does not hold
	}
	return raw
}
