package native

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	kjson "sigs.k8s.io/json"
)

// document is a state document, as far as this backend knows nmstate's schema. What else a desire names is refused.
type document struct {
	Interfaces []interfaceDoc `json:"interfaces,omitempty"`
	Routes     *routesDoc     `json:"routes,omitempty"`
	RouteRules *rulesDoc      `json:"route-rules,omitempty"`
	Rules      *rulesDoc      `json:"rules,omitempty"` // an older name
	DNS        *dnsDoc        `json:"dns-resolver,omitempty"`
	// Capabilities are in reports alone.
	Capabilities []string `json:"capabilities,omitempty"`
}

type interfaceDoc struct {
	Name       string       `json:"name"`
	Type       string       `json:"type,omitempty"`
	State      string       `json:"state,omitempty"`
	MTU        *int         `json:"mtu,omitempty"`
	MAC        *string      `json:"mac-address,omitempty"`
	Permanent  *string      `json:"permanent-mac-address,omitempty"`
	Driver     *string      `json:"driver,omitempty"`
	Controller *string      `json:"controller,omitempty"`
	IPv4       *ipDoc       `json:"ipv4,omitempty"`
	IPv6       *ipDoc       `json:"ipv6,omitempty"`
	Ethernet   *ethernetDoc `json:"ethernet,omitempty"`
	Veth       *vethDoc     `json:"veth,omitempty"`
	Bond       *bondDoc     `json:"link-aggregation,omitempty"`
	VLAN       *vlanDoc     `json:"vlan,omitempty"`
	Bridge     *bridgeDoc   `json:"bridge,omitempty"`
	VXLAN      *vxlanDoc    `json:"vxlan,omitempty"`
	MacVLAN    *macDoc      `json:"mac-vlan,omitempty"`
	MacVTap    *macDoc      `json:"mac-vtap,omitempty"`
	VRF        *vrfDoc      `json:"vrf,omitempty"`
	LLDP       *lldpDoc     `json:"lldp,omitempty"`
	// Description is for people: the kernel keeps none.
	Description *string `json:"description,omitempty"`
}

// lldpDoc has neighbours in reports alone.
type lldpDoc struct {
	Enabled    *bool             `json:"enabled,omitempty"`
	Neighbours []json.RawMessage `json:"neighbors,omitempty"`
}

type ipDoc struct {
	Enabled  *bool         `json:"enabled,omitempty"`
	DHCP     *bool         `json:"dhcp,omitempty"`
	Autoconf *bool         `json:"autoconf,omitempty"`
	Address  *[]addressDoc `json:"address,omitempty"`
}

type addressDoc struct {
	IP     string `json:"ip"`
	Length *int   `json:"prefix-length"`
}

type ethernetDoc struct {
	Auto   *bool   `json:"auto-negotiation,omitempty"`
	Speed  *int    `json:"speed,omitempty"`
	Duplex *string `json:"duplex,omitempty"`
}

type vethDoc struct {
	Peer *string `json:"peer,omitempty"`
}

type bondDoc struct {
	Mode    *string                    `json:"mode,omitempty"`
	Port    *[]string                  `json:"port,omitempty"`
	Options map[string]json.RawMessage `json:"options,omitempty"`
}

type vlanDoc struct {
	Base     *string `json:"base-iface,omitempty"`
	ID       *int    `json:"id,omitempty"`
	Protocol *string `json:"protocol,omitempty"`
}

type vxlanDoc struct {
	ID       *int    `json:"id,omitempty"`
	Base     *string `json:"base-iface,omitempty"`
	Remote   *string `json:"remote,omitempty"`
	Local    *string `json:"local,omitempty"`
	Port     *int    `json:"destination-port,omitempty"`
	Learning *bool   `json:"learning,omitempty"`
}

type macDoc struct {
	Base        *string `json:"base-iface,omitempty"`
	Mode        *string `json:"mode,omitempty"`
	Promiscuous *bool   `json:"promiscuous,omitempty"`
}

type vrfDoc struct {
	Port  *[]string `json:"port,omitempty"`
	Table *int      `json:"route-table-id,omitempty"`
}

// bridgeDoc is of Linux bridges and of Open vSwitch's; each refuses the other's options.
type bridgeDoc struct {
	Port    *[]bridgePortDoc  `json:"port,omitempty"`
	Options *bridgeOptionsDoc `json:"options,omitempty"`
}

type bridgeOptionsDoc struct {
	STP               *stpDoc `json:"stp,omitempty"`
	Ageing            *int    `json:"mac-ageing-time,omitempty"`
	GroupForwardMask  *int    `json:"group-forward-mask,omitempty"`
	MulticastSnooping *bool   `json:"multicast-snooping,omitempty"`

	FailMode      *string `json:"fail-mode,omitempty"`
	RSTP          *bool   `json:"rstp,omitempty"`
	McastSnooping *bool   `json:"mcast-snooping-enable,omitempty"`
	Datapath      *string `json:"datapath,omitempty"`
}

// stpDoc has times in seconds, and only enabled on an ovs-bridge.
type stpDoc struct {
	Enabled      *bool `json:"enabled,omitempty"`
	Priority     *int  `json:"priority,omitempty"`
	ForwardDelay *int  `json:"forward-delay,omitempty"`
	HelloTime    *int  `json:"hello-time,omitempty"`
	MaxAge       *int  `json:"max-age,omitempty"`
}

type bridgePortDoc struct {
	Name     string       `json:"name"`
	Hairpin  *bool        `json:"stp-hairpin-mode,omitempty"`
	Cost     *int         `json:"stp-path-cost,omitempty"`
	Priority *int         `json:"stp-priority,omitempty"`
	VLAN     *portVLANDoc `json:"vlan,omitempty"`
}

type portVLANDoc struct {
	Mode   string     `json:"mode,omitempty"`
	Tag    *int       `json:"tag,omitempty"`
	Native *bool      `json:"enable-native,omitempty"`
	Trunks []trunkDoc `json:"trunk-tags,omitempty"`
}

type trunkDoc struct {
	ID    *int      `json:"id,omitempty"`
	Range *rangeDoc `json:"id-range,omitempty"`
}

type rangeDoc struct {
	Min int `json:"min"`
	Max int `json:"max"`
}

type routesDoc struct {
	Running []routeDoc `json:"running,omitempty"`
	Config  []routeDoc `json:"config,omitempty"`
}

type routeDoc struct {
	State       *string `json:"state,omitempty"`
	Destination *string `json:"destination,omitempty"`
	Link        *string `json:"next-hop-interface,omitempty"`
	Via         *string `json:"next-hop-address,omitempty"`
	Metric      *int    `json:"metric,omitempty"`
	Table       *int    `json:"table-id,omitempty"`
	Type        *string `json:"route-type,omitempty"`
	Source      *string `json:"source,omitempty"`
}

type rulesDoc struct {
	Config []ruleDoc `json:"config,omitempty"`
}

type ruleDoc struct {
	State    *string `json:"state,omitempty"`
	Family   *string `json:"family,omitempty"`
	From     *string `json:"ip-from,omitempty"`
	To       *string `json:"ip-to,omitempty"`
	Priority *int    `json:"priority,omitempty"`
	Table    *int    `json:"route-table,omitempty"`
	Mark     *uint32 `json:"fwmark,omitempty"`
	Mask     *uint32 `json:"fwmask,omitempty"`
	Iif      *string `json:"iif,omitempty"`
	Action   *string `json:"action,omitempty"`
	Suppress *int    `json:"suppress-prefix-length,omitempty"`
}

type dnsDoc struct {
	Running *dnsListsDoc `json:"running,omitempty"`
	Config  *dnsListsDoc `json:"config,omitempty"`
}

type dnsListsDoc struct {
	Server  *[]string `json:"server,omitempty"`
	Search  *[]string `json:"search,omitempty"`
	Options *[]string `json:"options,omitempty"`
}

// parse reads a desire strictly: a key that is not known here is an error that names it.
func parse(s nmstate.State) (*document, error) {
	raw, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode the desired state: %w", err)
	}
	var whole struct {
		Interfaces []json.RawMessage `json:"interfaces"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &whole); err != nil {
		return nil, fmt.Errorf("read the desired state: %w", err)
	}
	doc := &document{}
	for i, one := range whole.Interfaces {
		var d interfaceDoc
		path := fmt.Sprintf("interfaces[%d]", i)
		err := strict(one, &d)
		if d.Name != "" {
			path = "interfaces[" + d.Name + "]"
		}
		if err != nil { // options of DHCP are unknown too: the error about DHCP has the remedy
			return nil, fmt.Errorf("%s: %w", path, errors.Join(d.wantsDHCP(), err))
		}
		doc.Interfaces = append(doc.Interfaces, d)
	}
	rest := make(nmstate.State, len(s))
	for k, v := range s {
		if k != "interfaces" {
			rest[k] = v
		}
	}
	if raw, err = json.Marshal(rest); err != nil {
		return nil, fmt.Errorf("encode the desired state: %w", err)
	}
	return doc, strict(raw, doc)
}

// strict refuses keys that the schema here does not have.
func strict(raw []byte, into any) error {
	unknown, err := kjson.UnmarshalStrict(raw, into)
	if mismatch := (*json.UnmarshalTypeError)(nil); errors.As(err, &mismatch) {
		return fmt.Errorf("%s: must be %s, not a %s", mismatch.Field, jsonKind(mismatch.Type.Kind()), mismatch.Value)
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, u := range unknown {
		if key, ok := strings.CutPrefix(u.Error(), `unknown field "`); ok {
			u = fmt.Errorf("%s is not supported by the native backend", strings.TrimSuffix(key, `"`))
		}
		errs = append(errs, u)
	}
	return errors.Join(errs...)
}

// jsonKind names what JSON has for a Go type.
func jsonKind(kind reflect.Kind) string {
	switch kind {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a text"
	case reflect.Int, reflect.Uint32:
		return "a whole number"
	case reflect.Slice:
		return "a list"
	}
	return "an object"
}

// state makes a state document of what this backend knows.
func (d *document) state() (nmstate.State, error) {
	raw, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("encode the state: %w", err)
	}
	var out nmstate.State
	dec := json.NewDecoder(bytes.NewReader(raw))
	if err := dec.Decode(&out); err != nil {
		return nil, fmt.Errorf("encode the state: %w", err)
	}
	return out, nil
}
