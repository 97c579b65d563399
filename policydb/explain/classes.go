package explain

import (
	"encoding/binary"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// facts are all of which policies in force may judge pods by.
type facts struct {
	// labels are the values that selectors name of pods' labels, by key. All other values of a key are as good as each
	// other.
	labels map[string]*namedLabel
	names  map[string]bool // of ports
	blocks []*policy.IPBlock
	index  blockIndex // of blocks
	number uint32     // of labels and values
}

// namedLabel is a key of labels with the values that selectors name, all of them numbered.
type namedLabel struct {
	number uint32
	values map[string]uint32
}

func factsOf(policies []*policy.Policy) facts {
	f := facts{labels: map[string]*namedLabel{}, names: map[string]bool{}, index: blockIndex{}}
	seen := map[string]bool{}
	for _, pol := range policies {
		if pol.DryRun {
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
		f.index.add(p.Block, uint32(len(f.blocks)))
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
	for i := range s.Requirements {
		r := &s.Requirements[i]
		f.name(r.Key, slices.Values(r.Values))
	}
}

// name notes values of a label.
func (f *facts) name(key string, values iter.Seq[string]) {
	l := f.labels[key]
	if l == nil {
		f.number++
		l = &namedLabel{number: f.number, values: map[string]uint32{}}
		f.labels[key] = l
	}
	for value := range values {
		if _, known := l.values[value]; !known {
			f.number++
			l.values[value] = f.number
		}
	}
}

// with returns the facts of both worlds, limited to labels.
func (f *facts) with(o *facts) facts {
	both := facts{labels: map[string]*namedLabel{}}
	for _, labels := range []map[string]*namedLabel{f.labels, o.labels} {
		for key, l := range labels {
			both.name(key, maps.Keys(l.values))
		}
	}
	return both
}

// distinguished returns the labels whose values policies distinguish, and the keys of labels that policies only test
// for existence; text has both, sorted, such as "app=web,tier".
func (f *facts) distinguished(e *policy.Endpoint) (labels map[string]string, text string) {
	labels = map[string]string{}
	var texts []string
	for key, value := range e.Labels {
		l := f.labels[key]
		if l == nil {
			continue
		}
		if _, named := l.values[value]; named {
			labels[key] = value
			texts = append(texts, key+"="+value)
		} else {
			texts = append(texts, key)
		}
	}
	slices.Sort(texts)
	return labels, strings.Join(texts, ",")
}

// appendLabels appends bytes that two pods share exactly if no selector distinguishes their labels.
func (f *facts) appendLabels(key []byte, e *policy.Endpoint) []byte {
	var buf [16]uint32
	numbers := buf[:0]
	for name, value := range e.Labels {
		l := f.labels[name]
		if l == nil {
			continue
		}
		number, named := l.values[value]
		if !named {
			number = l.number
		}
		numbers = append(numbers, number)
	}
	slices.Sort(numbers)
	return appendNumbers(key, numbers)
}

// appendNumbers appends a list so that it has an end.
func appendNumbers(key []byte, list []uint32) []byte {
	key = binary.LittleEndian.AppendUint32(key, uint32(len(list)))
	for _, n := range list {
		key = binary.LittleEndian.AppendUint32(key, n)
	}
	return key
}

// ports returns a text that is equal for two pods if and only if they assign the same numbers to the port names that
// policies use.
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

// appendClass appends bytes that are equal for two pods if and only if no policy distinguishes them by namespace,
// labels, named ports or the ipBlocks that contain their addresses.
func appendClass(m *Model, key []byte, e *policy.Endpoint, w *work) []byte {
	if !w.step(4 + len(e.Labels) + len(e.Ports)) {
		return key
	}
	key = append(append(key, e.Namespace...), 0)
	key = m.facts.appendLabels(key, e)
	key = append(append(key, m.facts.ports(e)...), 0)
	var buf [16]uint32
	for _, six := range families {
		a := m.address(e, six)
		if !a.IsValid() {
			key = append(key, '-')
			continue
		}
		blocks, looked := m.facts.index.holding(buf[:0], a)
		w.step(looked)
		key = appendNumbers(append(key, '|'), blocks)
	}
	return key
}

// families are those of addresses, by Is6.
var families = []bool{false, true}

// address returns the address of a family that belongs to the pod, or an invalid one.
func (m *Model) address(e *policy.Endpoint, six bool) netip.Addr {
	for _, a := range e.Addresses {
		if a.Is6() == six && m.owners[a] == e {
			return a
		}
	}
	return netip.Addr{}
}

// has reports for each family whether an address of it belongs to the pod.
func (m *Model) has(e *policy.Endpoint) (has [2]bool) {
	for i, six := range families {
		has[i] = m.address(e, six).IsValid()
	}
	return has
}

// addressable reports whether any address belongs to the pod.
func (m *Model) addressable(e *policy.Endpoint) bool { return m.has(e) != [2]bool{} }
