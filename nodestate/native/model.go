package native

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/nodestate/native/lldp"
)

// network is what a node has, or should have.
type network struct {
	Links  map[string]*link `json:"links,omitempty"`
	Routes []route          `json:"routes,omitempty"`
	Rules  []rule           `json:"rules,omitempty"`
	DNS    *resolver        `json:"dns,omitempty"` // nil: no file is kept
	Deaf   error            `json:"-"`             // the reason for which no neighbours can be received
	Away   error            `json:"-"`             // why Open vSwitch, of which the node may have something, is not in here; nil: it is
}

// Types of interfaces, as nmstate calls them.
const (
	typeEthernet     = "ethernet"
	typeLoopback     = "loopback"
	typeVeth         = "veth"
	typeDummy        = "dummy"
	typeIfb          = "ifb"
	typeBond         = "bond"
	typeVLAN         = "vlan"
	typeBridge       = "linux-bridge"
	typeVXLAN        = "vxlan"
	typeMacVLAN      = "mac-vlan"
	typeMacVTap      = "mac-vtap"
	typeVRF          = "vrf"
	typeOVSBridge    = "ovs-bridge"
	typeOVSInterface = "ovs-interface"
	typeUnknown      = "unknown"
)

// link is one interface. Links are known by their names, and bridges of Open vSwitch by a key of their own: one may have the
// name of one of its interfaces. Base and Controller are such keys. Base is what it lies upon: of a VLAN, macvlan, macvtap or VXLAN; of a veth it is the other end.
// Addresses hold neither IPv6 link-local ones nor those that the kernel made of router advertisements.
type link struct {
	Name       string         `json:"name"`
	Type       string         `json:"type"`
	Index      int            `json:"index,omitempty"`
	Up         bool           `json:"up"`
	MTU        int            `json:"mtu,omitempty"`    // 0: not known, or the kernel's choice
	MAC        string         `json:"mac,omitempty"`    // empty: not known, or the kernel's choice
	OwnMAC     string         `json:"ownMAC,omitempty"` // of a bond's port, which has the bond's as long as it is one
	Permanent  string         `json:"permanent,omitempty"`
	Driver     string         `json:"driver,omitempty"`
	Controller string         `json:"controller,omitempty"`
	Base       string         `json:"base,omitempty"`
	IPv6Off    bool           `json:"ipv6Off,omitempty"`
	Autoconf   bool           `json:"autoconf,omitempty"` // takes addresses and routes from router advertisements
	AcceptRA   int            `json:"acceptRA,omitempty"` // the kernel's accept_ra: 2 where a router takes advertisements; 0 with Autoconf: to be chosen
	Addresses  []netip.Prefix `json:"addresses,omitempty"`
	Protected  string         `json:"protected,omitempty"` // the reason for which only its owner may change it
	Doubt      string         `json:"-"`                   // the reason for which its protection is unknown: it may not be changed now
	Listens    bool           `json:"listens,omitempty"`   // receives neighbours by LLDP

	Neighbours []lldp.Neighbour `json:"-"` // that it hears

	VLAN       *vlanSpec       `json:"vlan,omitempty"`
	VXLAN      *vxlanSpec      `json:"vxlan,omitempty"`
	MACMode    string          `json:"macMode,omitempty"` // of macvlan and macvtap
	Bond       *bondSpec       `json:"bond,omitempty"`
	Bridge     *bridgeSpec     `json:"bridge,omitempty"`
	BridgePort *bridgePortSpec `json:"bridgePort,omitempty"`
	VRFTable   int             `json:"vrfTable,omitempty"`
	OVSBridge  *ovsBridgeSpec  `json:"ovsBridge,omitempty"`
	OVSPort    *ovsPortSpec    `json:"ovsPort,omitempty"`
	Ethernet   *ethernetSpec   `json:"ethernet,omitempty"`
}

type vlanSpec struct {
	ID       int    `json:"id"`
	Protocol string `json:"protocol"` // 802.1q or 802.1ad
}

type vxlanSpec struct {
	ID       int        `json:"id"`
	Remote   netip.Addr `json:"remote,omitzero"`
	Local    netip.Addr `json:"local,omitzero"`
	Port     int        `json:"port"`
	Learning bool       `json:"learning"`
}

type bondSpec struct {
	Mode    string            `json:"mode"`
	Options map[string]string `json:"options,omitempty"` // numbers in decimal
}

// bridgeSpec has times in the kernel's hundredths of a second.
type bridgeSpec struct {
	Filtering         bool `json:"filtering,omitempty"`
	STP               bool `json:"stp,omitempty"`
	Priority          int  `json:"priority"`
	ForwardDelay      int  `json:"forwardDelay"`
	HelloTime         int  `json:"helloTime"`
	MaxAge            int  `json:"maxAge"`
	Ageing            int  `json:"ageing"`
	GroupForwardMask  int  `json:"groupForwardMask"`
	MulticastSnooping bool `json:"multicastSnooping"`
}

type bridgePortSpec struct {
	Hairpin  bool       `json:"hairpin,omitempty"`
	Cost     int        `json:"cost,omitempty"`
	Priority int        `json:"priority,omitempty"`
	VLANs    []portVLAN `json:"vlans,omitempty"` // by id; counts only where the bridge filters
}

type portVLAN struct {
	ID       int  `json:"id"`
	PVID     bool `json:"pvid,omitempty"`
	Untagged bool `json:"untagged,omitempty"`
}

type ovsBridgeSpec struct {
	Datapath          string `json:"datapath,omitempty"`
	FailMode          string `json:"failMode,omitempty"`
	STP               bool   `json:"stp,omitempty"`
	RSTP              bool   `json:"rstp,omitempty"`
	MulticastSnooping bool   `json:"multicastSnooping,omitempty"`
}

type ovsPortSpec struct {
	Mode   string `json:"mode,omitempty"` // access, trunk, native-tagged, native-untagged; empty: as Open vSwitch takes it
	Tag    int    `json:"tag,omitempty"`
	Trunks []int  `json:"trunks,omitempty"`
}

type ethernetSpec struct {
	Auto   bool   `json:"auto"`
	Speed  int    `json:"speed,omitempty"` // Mbit/s; 0: not known
	Duplex string `json:"duplex,omitempty"`
}

// route is one of any table but the local one.
type route struct {
	Dst      netip.Prefix `json:"dst"`
	Table    int          `json:"table"`
	Metric   int          `json:"metric,omitempty"`
	Type     string       `json:"type,omitempty"` // empty: unicast
	Link     string       `json:"link,omitempty"`
	Via      netip.Addr   `json:"via,omitzero"`
	Source   netip.Addr   `json:"source,omitzero"`
	OnLink   bool         `json:"onLink,omitempty"`
	Protocol int          `json:"protocol"`
	Scope    int          `json:"scope,omitempty"`
	TOS      int          `json:"tos,omitempty"`
	MTU      int          `json:"mtu,omitempty"`
	AdvMSS   int          `json:"advMSS,omitempty"`
	Window   int          `json:"window,omitempty"`
	InitCwnd int          `json:"initCwnd,omitempty"`
	InitRwnd int          `json:"initRwnd,omitempty"`
	Hops     []hop        `json:"hops,omitempty"` // of a route with several; Link and Via are empty then
}

type hop struct {
	Link   string     `json:"link"`
	Via    netip.Addr `json:"via,omitzero"`
	Weight int        `json:"weight"`
	OnLink bool       `json:"onLink,omitempty"`
}

// Protocols of routes, linux/rtnetlink.h.
const (
	protoRedirect = 1
	protoKernel   = 2
	protoBoot     = 3
	protoStatic   = 4
	protoRA       = 9
)

const (
	mainTable  = 254
	localTable = 255 // the kernel has its routes to the node's own addresses there
)

// kernelMade reports whether the route comes and goes with addresses and advertisements: it is never planned.
func (r *route) kernelMade() bool {
	return r.Protocol == protoKernel || r.Protocol == protoRedirect || r.Protocol == protoRA
}

// administered reports whether a person or this program has set the route, not a routing daemon.
func (r *route) administered() bool {
	return r.Protocol == protoStatic || r.Protocol == protoBoot || r.Protocol == 0
}

// over reports whether the route leaves by the link.
func (r *route) over(name string) bool {
	return r.Link == name || slices.ContainsFunc(r.Hops, func(h hop) bool { return h.Link == name })
}

// sameKey reports whether the kernel takes both for the same route, so that one replaces the other.
func (r *route) sameKey(o *route) bool {
	return r.Dst == o.Dst && r.Table == o.Table && r.Metric == o.Metric && r.TOS == o.TOS
}

func (r *route) equal(o *route) bool { return reflect.DeepEqual(r, o) }

// rule is a routing policy rule. The three that the kernel begins with are left out.
type rule struct {
	IPv6     bool         `json:"ipv6,omitempty"`
	Priority int          `json:"priority"` // -1: the kernel's choice
	From     netip.Prefix `json:"from,omitzero"`
	To       netip.Prefix `json:"to,omitzero"`
	Iif      string       `json:"iif,omitempty"`
	Oif      string       `json:"oif,omitempty"`
	Mark     uint32       `json:"mark,omitempty"`
	Mask     uint32       `json:"mask,omitempty"`
	Table    int          `json:"table,omitempty"`
	Action   string       `json:"action,omitempty"`         // empty: look up the table
	Suppress int          `json:"suppressPrefix,omitempty"` // one more than the prefix length suppressed; 0: none
	Protocol int          `json:"protocol,omitempty"`
	Others   string       `json:"others,omitempty"` // names of what the rule has besides: such a rule is left alone
}

// resolver is what resolv.conf says.
type resolver struct {
	Servers []string `json:"servers,omitempty"`
	Search  []string `json:"search,omitempty"`
	Options []string `json:"options,omitempty"`

	owner *resolverOwner // another program that writes the file; nil: none that is known
}

func (r *resolver) equal(o *resolver) bool {
	return r != nil && o != nil && slices.Equal(r.Servers, o.Servers) && slices.Equal(r.Search, o.Search) && slices.Equal(r.Options, o.Options)
}

// clone is deep as far as steps write: specs are replaced, never written into.
func (n *network) clone() *network {
	out := &network{Links: make(map[string]*link, len(n.Links)), Routes: slices.Clone(n.Routes), Rules: slices.Clone(n.Rules), DNS: n.DNS, Deaf: n.Deaf, Away: n.Away}
	for name, l := range n.Links {
		out.Links[name] = l.clone()
	}
	return out
}

// barred returns the reason for which the link may not be changed, or "".
func (l *link) barred() string { return cmp.Or(l.Protected, l.Doubt) }

func (l *link) clone() *link {
	out := *l
	out.Addresses = slices.Clone(l.Addresses)
	return &out
}

// names of the links, sorted.
func (n *network) names() []string { return slices.Sorted(maps.Keys(n.Links)) }

// ports of a controller, sorted.
func (n *network) ports(controller string) []string {
	var out []string
	for _, name := range n.names() {
		if n.Links[name].Controller == controller {
			out = append(out, name)
		}
	}
	return out
}

// above are the links that lie upon one and go with it, sorted. A veth's other end is not among them.
func (n *network) above(base string) []string {
	var out []string
	for _, name := range n.names() {
		if l := n.Links[name]; l.Base == base && l.Type != typeVeth {
			out = append(out, name)
		}
	}
	return out
}

// creatable types can be made and removed.
func creatable(kind string) bool {
	switch kind {
	case typeVeth, typeDummy, typeIfb, typeBond, typeVLAN, typeBridge, typeVXLAN, typeMacVLAN, typeMacVTap, typeVRF, typeOVSBridge, typeOVSInterface:
		return true
	}
	return false
}

// key returns the key of an interface in nmstate's schema.
func (l *link) key() string {
	if l.Type == typeOVSBridge {
		return bridgeKey(l.Name)
	}
	return l.Name
}

const keySuffix = " " + typeOVSBridge

func bridgeKey(name string) string { return name + keySuffix }

// shown is a key as people know it.
func shown(key string) string { return strings.TrimSuffix(key, keySuffix) }

// newBridge is how the kernel makes one.
func newBridge() *bridgeSpec {
	return &bridgeSpec{Priority: 32768, ForwardDelay: 1500, HelloTime: 200, MaxAge: 2000, Ageing: 30000, MulticastSnooping: true}
}

// sameMake: a link of the one make becomes one of the other without being made again.
func (l *link) sameMake(o *link) bool {
	return l.Type == o.Type && l.Base == o.Base && l.MACMode == o.MACMode && l.VRFTable == o.VRFTable &&
		reflect.DeepEqual(l.VLAN, o.VLAN) && reflect.DeepEqual(l.VXLAN, o.VXLAN) && sameBondMake(l.Bond, o.Bond) &&
		(l.Type != typeOVSInterface || l.Controller == o.Controller) && sameDatapath(l.OVSBridge, o.OVSBridge)
}

func sameDatapath(a, b *ovsBridgeSpec) bool {
	return a == nil || b == nil || a.Datapath == b.Datapath || b.Datapath == ""
}

// sameBondMake: the mode and what the kernel takes only while a bond is down or without ports.
func sameBondMake(a, b *bondSpec) bool {
	if a == nil || b == nil {
		return a == b
	}
	for name, o := range bondOptions {
		if want, named := b.Options[name]; named && !o.live && want != a.Options[name] {
			return false
		}
	}
	return a.Mode == b.Mode
}
