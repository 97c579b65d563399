package nodeconfig

import (
	"errors"
	"fmt"
	"net"
	"path"
	"strings"

	nmstatev1 "github.com/flowkeep/flowkeep/api/nmstate/v1"
	"github.com/flowkeep/flowkeep/internal/nmstate"
)

// glob is a pattern of path.Match: *, ?, [a-z], [^a-z], and \ before what is meant as it is. Empty matches everything. Slashes
// are characters like any other: switches call their ports Ethernet1/1.
type glob string

func newGlob(pattern string) (glob, error) {
	if _, err := path.Match(pattern, ""); err != nil {
		return "", fmt.Errorf("%q is no pattern: write * for any characters, ? for one, [ab] for one of these", pattern)
	}
	return glob(withoutSlashes(pattern)), nil
}

func (g glob) matches(text string) bool {
	if g == "" {
		return true
	}
	ok, _ := path.Match(string(g), withoutSlashes(text)) // newGlob has seen the pattern
	return ok
}

// withoutSlashes has something in their place that no name has: path.Match takes * for what lies between slashes.
func withoutSlashes(text string) string { return strings.ReplaceAll(text, "/", "\x00") }

// rule is a MatchRule, understood.
type rule struct {
	name   glob
	typ    string
	vlan   *int32
	lldp   *neighbour
	mac    string // as net.HardwareAddr prints it
	driver string
}

type neighbour struct{ system, chassis, port glob }

func newRules(match []nmstatev1.MatchRule) (rules []rule, err error) {
	for i, m := range match {
		r, err := newRule(m)
		if err != nil {
			return nil, fmt.Errorf("match[%d].%w", i, err)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

func newRule(m nmstatev1.MatchRule) (r rule, err error) {
	r = rule{typ: m.Type, vlan: m.VLANID, driver: m.Driver}
	if r.name, err = newGlob(m.Name); err != nil {
		return r, fmt.Errorf("name: %w", err)
	}
	if m.MAC != "" {
		mac, err := net.ParseMAC(m.MAC)
		if err != nil {
			return r, fmt.Errorf("mac: %q is no MAC address", m.MAC)
		}
		r.mac = mac.String()
	}
	if m.LLDP != nil {
		if r.lldp, err = newNeighbour(*m.LLDP); err != nil {
			return r, fmt.Errorf("lldp.%w", err)
		}
	}
	if m == (nmstatev1.MatchRule{}) {
		return r, errors.New("name: the rule says nothing; to match all interfaces write name: \"*\"")
	}
	return r, nil
}

func newNeighbour(m nmstatev1.LLDPMatch) (*neighbour, error) {
	var n neighbour
	for _, f := range []struct {
		name, pattern string
		to            *glob
	}{{"systemName", m.SystemName, &n.system}, {"chassisID", m.ChassisID, &n.chassis}, {"portID", m.PortID, &n.port}} {
		g, err := newGlob(f.pattern)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		*f.to = g
	}
	return &n, nil
}

// matches tells whether all that the rule names is so.
func (r rule) matches(i nic) bool {
	return r.name.matches(i.Name()) &&
		(r.typ == "" || r.typ == i.Type()) &&
		(r.vlan == nil || r.matchesVLAN(i.Interface)) &&
		(r.mac == "" || r.mac == i.mac) &&
		(r.driver == "" || r.driver == i.Interface["driver"]) &&
		(r.lldp == nil || r.lldp.seenBy(i.Interface))
}

func (r rule) matchesVLAN(i nmstate.Interface) bool {
	vlan, _ := i["vlan"].(map[string]any)
	switch id := vlan["id"].(type) {
	case int64:
		return id == int64(*r.vlan)
	case float64:
		return id == float64(*r.vlan)
	}
	return false
}

// macOf is the permanent address where there is one: the ports of a bond all show the bond's, and would match no more, or
// all, once a policy has made them ports.
func macOf(i nmstate.Interface) string {
	text, ok := i["permanent-mac-address"].(string)
	if !ok || text == "" {
		text, _ = i["mac-address"].(string)
	}
	mac, err := net.ParseMAC(text)
	if err != nil {
		return ""
	}
	return mac.String()
}

// seenBy tells whether one neighbour of the interface is the one that is meant. In nmstate's schema a neighbour is a list of
// what it told, each a map with one of these keys.
func (n neighbour) seenBy(i nmstate.Interface) bool {
	lldp, _ := i["lldp"].(map[string]any)
	neighbours, _ := lldp["neighbors"].([]any)
	for _, told := range neighbours {
		facts, _ := told.([]any)
		seen := map[string]string{}
		for _, fact := range facts {
			f, _ := fact.(map[string]any)
			for _, key := range []string{"system-name", "chassis-id", "port-id"} {
				if text, ok := f[key].(string); ok {
					seen[key] = text
				}
			}
		}
		if len(seen) > 0 && n.system.matches(seen["system-name"]) && n.chassis.matchesID(seen["chassis-id"]) && n.port.matchesID(seen["port-id"]) {
			return true
		}
	}
	return false
}

// matchesID: ids are often MAC addresses, whose case says nothing.
func (g glob) matchesID(id string) bool {
	return g.matches(id) || glob(strings.ToLower(string(g))).matches(strings.ToLower(id))
}
