package nodeconfig

import (
	"errors"
	"fmt"
	"net"
	"path"
	"slices"
	"strings"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
)

// glob is a pattern of path.Match: *, ?, [a-z], [^a-z], and \ before what is meant as it is. Empty matches everything. Slashes
// are characters like any other: switches call their ports Ethernet1/1.
type glob string

func newGlob(pattern string) (glob, error) {
	if _, err := path.Match(pattern, ""); err != nil || strings.Contains(pattern, slash) {
		return "", fmt.Errorf("%q is no pattern: write * for any characters, ? for one, [ab] for one of these", pattern)
	}
	return glob(withoutSlashes(pattern)), nil
}

func (g glob) matches(text string) bool {
	if g == "" {
		return true
	}
	if strings.Contains(text, slash) && strings.Contains(string(g), slash) {
		return false // a neighbour may be called anything
	}
	ok, _ := path.Match(string(g), withoutSlashes(text)) // newGlob has seen the pattern
	return ok
}

// literal is what all that the pattern matches begins with, without slashes.
func (g glob) literal() string {
	if n := strings.IndexAny(string(g), `*?[\`); n >= 0 {
		return string(g[:n])
	}
	return string(g)
}

// slash stands for one: path.Match takes * for what lies between slashes. No link's name has it.
const slash = "\x00"

func withoutSlashes(text string) string { return strings.ReplaceAll(text, "/", slash) }

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
		return r, errors.New("name: the rule is empty; to match all interfaces write name: \"*\"")
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

// matches reports whether all conditions of the rule hold.
func (r rule) matches(i *nic) bool {
	return r.name.matches(i.name) &&
		(r.typ == "" || r.typ == i.typ) &&
		(r.vlan == nil || i.vlan != nil && *i.vlan == int64(*r.vlan)) &&
		(r.mac == "" || r.mac == i.mac) &&
		(r.driver == "" || r.driver == i.driver) &&
		(r.lldp == nil || slices.ContainsFunc(i.neighbours, r.lldp.is))
}

// is reports whether a neighbour fits the rule.
func (n neighbour) is(seen seenNeighbour) bool {
	return n.system.matches(seen.system) && n.chassis.matchesID(seen.chassis) && n.port.matchesID(seen.port)
}

// matchesID: ids are often MAC addresses, whose case says nothing.
func (g glob) matchesID(id string) bool {
	return g.matches(id) || glob(strings.ToLower(string(g))).matches(strings.ToLower(id))
}
