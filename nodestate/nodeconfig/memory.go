package nodeconfig

import (
	"bytes"
	"maps"
	"reflect"
	"slices"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	corev1 "k8s.io/api/core/v1"
)

// Memory is what was worked out about one node, so that the next decision costs what has changed since. It saves work and changes
// no decision: what is taken from it is found by all that it was made of, and none of that is ever changed in place. A nil Memory
// remembers nothing. One goroutine uses it.
type Memory struct {
	report known[report]
	wishes known[wishes]
	// What policies wanted of this node, which reported this.
	node  *corev1.Node
	seen  *report
	wants map[*Policy]want
	// What was merged for the last decision: it may have taken several attempts. Now is the same of the one that is being made.
	last, now map[place][]*merged
}

// NewMemory returns an empty memory.
func NewMemory() *Memory { return new(Memory) }

// wantsOf is what the policies want of the node.
func (m *Memory) wantsOf(n *Node, policies []*Policy) []want {
	list := make([]want, len(policies))
	if m == nil {
		for by, p := range policies {
			list[by] = p.wants(n, nil)
		}
		return list
	}
	sameNode := m.node != nil && sameToPolicies(m.node, n.Object)
	sameReport := m.seen == n.current
	var came []*nic
	if m.seen != nil && !sameReport {
		came = n.current.since(m.seen)
	}
	if m.wants == nil {
		m.wants = make(map[*Policy]want, len(policies))
	}
	for by, p := range policies {
		before, known := m.wants[p]
		switch {
		case known && sameNode && sameReport:
			list[by] = before
		case known:
			list[by] = p.wants(n, &earlier{before, sameNode, came})
		default:
			list[by] = p.wants(n, nil)
		}
		m.wants[p] = list[by]
	}
	if len(m.wants) > len(policies) {
		m.forget(policies)
	}
	m.node, m.seen = n.Object, n.current
	return list
}

// forget drops what is remembered of policies that are not among these.
func (m *Memory) forget(policies []*Policy) {
	stay := make(map[*Policy]bool, len(policies))
	for _, p := range policies {
		stay[p] = true
	}
	maps.DeleteFunc(m.wants, func(p *Policy, _ want) bool { return !stay[p] })
}

// sameToPolicies reports whether two Nodes are equal in all that policies select by.
func sameToPolicies(a, b *corev1.Node) bool {
	return a == b || a.Name == b.Name && maps.Equal(a.Labels, b.Labels) && reflect.DeepEqual(a.Spec.Taints, b.Spec.Taints)
}

// begin and end have what was merged in between remembered.
func (m *Memory) begin() {
	if m != nil {
		m.now = make(map[place][]*merged, len(m.last))
	}
}

func (m *Memory) end() {
	if m != nil {
		m.last, m.now = m.now, nil
	}
}

// merge is quick where the same was merged before.
func (m *Memory) merge(at place, s stack, byHand bool) *merged {
	if m == nil {
		return merge(at, s, byHand)
	}
	for _, known := range [][]*merged{m.now[at], m.last[at]} {
		for _, one := range known {
			if one.byHand == byHand && one.stack.alike(s) {
				return m.remember(at, one.again(s))
			}
		}
	}
	return m.remember(at, merge(at, s, byHand))
}

func (m *Memory) remember(at place, one *merged) *merged {
	for _, known := range m.now[at] {
		if known == one {
			return one
		}
	}
	m.now[at] = append(m.now[at], one)
	return one
}

// known is something that was read from texts, and the texts.
type known[T any] struct {
	texts []*nmstatev1.State
	read  *T
}

// again takes what was read where the texts are the same, else reads. Texts that are the same it keeps once: those of now.
func (k *known[T]) again(read func() (*T, error), texts ...*nmstatev1.State) (*T, error) {
	if slices.EqualFunc(k.texts, texts, sameText) {
		k.texts = texts
		return k.read, nil
	}
	value, err := read()
	if err == nil {
		*k = known[T]{texts, value}
	}
	return value, err
}

func sameText(a, b *nmstatev1.State) bool {
	return a == b || a != nil && b != nil && bytes.Equal(a.Raw, b.Raw)
}

func (m *Memory) reportOf(s nmstatev1.NodeNetworkStateStatus) (*report, error) {
	if m == nil {
		return newReport(s.CurrentState, s.Truncated, nil)
	}
	if m.report.read != nil && m.report.read.truncated != s.Truncated {
		m.report = known[report]{}
	}
	return m.report.again(func() (*report, error) { return newReport(s.CurrentState, s.Truncated, m.report.read) }, s.CurrentState)
}

func (m *Memory) wishesOf(desired, record *nmstatev1.State) (*wishes, error) {
	read := func() (*wishes, error) { return newWishes(desired, record) }
	if m == nil {
		return read()
	}
	return m.wishes.again(read, desired, record)
}
