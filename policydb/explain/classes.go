package explain

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// facts are all of which policies in force may judge pods by.
type facts struct {
	// labels are the values that selectors name of pods' labels, by key. All other values of a key are as good as each other.
	labels map[string]map[string]bool
	names  map[string]bool // of ports
	blocks []*policy.IPBlock
}

func factsOf(policies []*policy.Policy) facts {
	f := facts{labels: map[string]map[string]bool{}, names: map[string]bool{}}
	seen := map[string]bool{}
	for _, pol := range policies {
		if pol.Audit {
			continue
		}
		f.addSelector(&pol.AppliedTo)
		for _, rules := range [][]policy.PolicyRule{pol.Ingress, pol.Egress} {
			for i := range rules {
				f.addRule(&rules[i], seen)
			}
		}
	}
	return f
}

func (f *facts) addRule(r *policy.PolicyRule, seen map[string]bool) {
	for _, p := range r.Peers {
		f.addSelector(p.Pods)
		if p.Block == nil || seen[blockText(p.Block)] {
			continue
		}
		seen[blockText(p.Block)] = true
		f.blocks = append(f.blocks, p.Block)
	}
	for _, pp := range r.Ports {
		if pp.Name != "" {
			f.names[pp.Name] = true
		}
	}
}

func (f *facts) addSelector(s *policy.Selector) {
	if s == nil {
		return
	}
	for _, r := range s.Requirements {
		if f.labels[r.Key] == nil {
			f.labels[r.Key] = map[string]bool{}
		}
		for _, value := range r.Values {
			f.labels[r.Key][value] = true
		}
	}
}

// with are the facts of both; of labels alone.
func (f *facts) with(o *facts) facts {
	both := facts{labels: map[string]map[string]bool{}}
	for _, labels := range []map[string]map[string]bool{f.labels, o.labels} {
		for key, values := range labels {
			if both.labels[key] == nil {
				both.labels[key] = map[string]bool{}
			}
			maps.Copy(both.labels[key], values)
		}
	}
	return both
}

// told are the labels that policies tell apart, and the keys of those of which they only tell that they are there; both as a
// text too: "app=web,tier", sorted.
func (f *facts) told(e *policy.Endpoint) (labels map[string]string, text string) {
	labels = map[string]string{}
	var texts []string
	for key, value := range e.Labels {
		switch named, ok := f.labels[key]; {
		case !ok:
		case named[value]:
			labels[key] = value
			texts = append(texts, key+"="+value)
		default:
			texts = append(texts, key)
		}
	}
	slices.Sort(texts)
	return labels, strings.Join(texts, ",")
}

// ports is a text that two pods share exactly if they give the same numbers to the names that policies use.
func (f *facts) ports(e *policy.Endpoint) string {
	var ports []string
	for _, p := range e.Ports {
		if f.names[p.Name] {
			ports = append(ports, strconv.Quote(p.Name)+p.Protocol.String()+strconv.Itoa(int(p.Number)))
		}
	}
	slices.Sort(ports)
	return strings.Join(slices.Compact(ports), ",")
}

// class is a text that two pods share exactly if no policy can tell them apart: by namespace, labels, named ports and the
// ipBlocks that have their addresses.
func (m *Model) class(e *policy.Endpoint) string {
	var b strings.Builder
	b.WriteString(strconv.Quote(e.Namespace))
	_, labels := m.facts.told(e)
	b.WriteString(labels + "|" + m.facts.ports(e))
	for _, six := range families {
		if a := m.address(e, six); a.IsValid() {
			b.WriteString("|" + m.facts.blocksOf(a))
		} else {
			b.WriteString("-")
		}
	}
	return b.String()
}

func (f *facts) blocksOf(a netip.Addr) string {
	in := make([]byte, (len(f.blocks)+7)/8)
	for i, b := range f.blocks {
		if blockContains(b, a) {
			in[i/8] |= 1 << (i % 8)
		}
	}
	return string(in)
}

// families are those of addresses, by Is6.
var families = []bool{false, true}

// address is the pod's own of a family, or an invalid one.
func (m *Model) address(e *policy.Endpoint, six bool) netip.Addr {
	for _, a := range e.Addresses {
		if a.Is6() == six && m.owners[a] == e {
			return a
		}
	}
	return netip.Addr{}
}

// has tells of each family whether the pod has an address that is its own.
func (m *Model) has(e *policy.Endpoint) (has [2]bool) {
	for i, six := range families {
		has[i] = m.address(e, six).IsValid()
	}
	return has
}

// addressable tells whether the pod has any address that is its own.
func (m *Model) addressable(e *policy.Endpoint) bool { return m.has(e) != [2]bool{} }
