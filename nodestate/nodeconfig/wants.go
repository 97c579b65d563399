package nodeconfig

import (
	"fmt"
	"slices"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// want is what one policy wants of one node.
type want struct {
	selected     bool
	matched      bool
	why          string   // why not, or what matched
	interfaces   []string // that matched, sorted
	found        []*nic   // the same, and what the policy itself would make
	contribution pieces   // laid in this order
	err          error    // the policy cannot be brought about on this node
}

// earlier is what a policy wanted of a node before.
type earlier struct {
	want
	sameNode bool   // as far as policies select by it
	came     []*nic // since
}

// wants returns what the policy contributes to the node as it is now. Its earlier result, if known, saves work: the
// contribution goes by the names of the interfaces alone.
func (p *Policy) wants(n *Node, before *earlier) (w want) {
	if p.Err != nil {
		return want{why: "the policy cannot be understood", err: p.Err}
	}
	if before != nil && before.sameNode && before.selected {
		w.selected = true
	} else if w.why, w.selected = p.selector.chooses(n.Object); !w.selected {
		return w
	}
	w.found = p.find(n.current, before)
	if w.interfaces = p.namesOf(w.found); len(p.rules) > 0 && len(w.interfaces) == 0 {
		w.why = "no interface of the node matches"
		if n.current.truncated {
			w.why += "; its report is too large to show all (status.truncated)"
		}
		return w
	}
	w.matched, w.why = true, matchedText(len(p.rules) > 0, w.interfaces)
	if before != nil && before.matched && slices.Equal(before.interfaces, w.interfaces) {
		w.contribution, w.err = before.contribution, before.err
		return w
	}
	w.contribution, w.err = p.contribute(w.interfaces)
	return w
}

func matchedText(rules bool, interfaces []string) string {
	switch {
	case !rules:
		return "the policy selects the node"
	case len(interfaces) == 1:
		return "interface " + interfaces[0] + " matches"
	}
	return fmt.Sprintf("%d interfaces match", len(interfaces))
}

// find is the interfaces that match. Those that matched before still do if they are there, and of those only that came since others may.
func (p *Policy) find(current *report, before *earlier) (found []*nic) {
	if before != nil && before.selected {
		for _, i := range before.found {
			if current.has[i] {
				found = append(found, i)
			}
		}
		for _, i := range before.came {
			if slices.ContainsFunc(p.rules, func(r rule) bool { return r.matches(i) }) {
				found = append(found, i)
			}
		}
		return found
	}
	for _, r := range p.rules {
		for _, i := range current.candidates(r) {
			if r.matches(i) {
				found = append(found, i)
			}
		}
	}
	return found
}

// namesOf are sorted. What the policy itself would make of others that match is left out: a VLAN eth1.100 over eth1 is not to have a VLAN of its own because it matches eth*.
func (p *Policy) namesOf(found []*nic) (names []string) {
	for _, i := range found {
		names = append(names, i.name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if p.auto == nil {
		return names
	}
	made := p.makes(names)
	return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(made, name) })
}

// makes returns the names of the interfaces that autoConfig makes of these.
func (p *Policy) makes(of []string) (names []string) {
	if b := p.auto.Bonding; b != nil {
		of = []string{bondName(b)}
		names = append(names, of...)
	}
	for _, base := range of {
		for _, id := range vlansOf(p.auto) {
			names = append(names, vlanName(base, id))
		}
	}
	return names
}

func (p *Policy) contribute(matched []string) (pieces, error) {
	all := slices.Clip(p.fixed)
	for _, name := range matched {
		for _, attributes := range p.each {
			all = append(all, piece{placeOf(interfaces, keyOf(name, attributes)), attributes})
		}
	}
	if p.auto == nil {
		return all, nil
	}
	made, err := p.configure(matched)
	return append(all, made...), err
}

func keyOf(name string, attributes map[string]any) string {
	return nmstate.Interface{"name": name, "type": attributes["type"]}.Key()
}

// longestName is the kernel's limit, in bytes.
const longestName = 15

// configure is what autoConfig makes: a bond, VLANs over the matched interfaces, or VLANs over the bond. It is canonical.
func (p *Policy) configure(matched []string) (made pieces, err error) {
	bases := matched
	if b := p.auto.Bonding; b != nil {
		bases = []string{bondName(b)}
		made = append(made, piece{placeOf(interfaces, bondName(b)), bondOf(b, matched)})
	}
	for _, base := range bases {
		if p.auto.Bonding == nil { // a VLAN is up only where the interface below is
			made = append(made, piece{placeOf(interfaces, base), map[string]any{"state": nmstate.Up}})
		}
		for _, id := range vlansOf(p.auto) {
			made = append(made, piece{placeOf(interfaces, vlanName(base, id)), map[string]any{
				"type": "vlan", "state": nmstate.Up, "vlan": map[string]any{"base-iface": base, "id": int64(id)},
			}})
		}
	}
	for _, i := range made {
		if len(i.key()) > longestName {
			return nil, fmt.Errorf("autoConfig would make an interface %s, whose name is longer than %d bytes", i.key(), longestName)
		}
	}
	return made, nil
}

func bondOf(b *nmstatev1.Bonding, matched []string) map[string]any {
	var mode any = "active-backup"
	if b.Mode != "" {
		mode = nmstate.BondMode(b.Mode)
	}
	ports := make([]any, len(matched))
	for n, name := range matched {
		ports[n] = name
	}
	aggregation := map[string]any{"mode": mode, "port": ports}
	if len(b.Options) > 0 {
		options := map[string]any{}
		for key, value := range b.Options {
			options[key] = value
		}
		aggregation["options"] = options
	}
	bond := map[string]any{"type": "bond", "state": nmstate.Up, "link-aggregation": aggregation}
	return nmstate.Canonical(nmstate.State{"interfaces": []any{bond}}).Interfaces()[0]
}

func bondName(b *nmstatev1.Bonding) string {
	if b.Name == "" {
		return "bond0"
	}
	return b.Name
}

func vlansOf(auto *nmstatev1.AutoConfig) []int32 {
	if auto.VLAN == nil {
		return nil
	}
	return vlanIDs(auto.VLAN)
}

func vlanName(base string, id int32) string { return fmt.Sprintf("%s.%d", base, id) }
