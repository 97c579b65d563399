package soak

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
)

// What a history is made of: few names and labels, so that selectors meet pods often.
var (
	nodes          = []string{"node1", "node2"}
	NamespaceNames = []string{"soak0", "soak1", "soak2"}
	PodNames       = []string{"p0", "p1", "p2", "p3"}
	labelKeys      = []string{"app", "tier"}
	values         = []string{"a", "b", "c"}
	processes      = []string{"netmaster", "node1-netplugin", "node2-netplugin", "node1-vswitchd", "node2-vswitchd"}
)

const (
	mostPods     = 9
	fewestPods   = 6
	mostPolicies = 8
)

// History draws changes from a seed, each sensible after those before it.
type History struct {
	*rand.Rand
	state *State
	setup []Change
}

// NewHistory begins with namespaces and pods; then come random changes.
func NewHistory(seed uint64) *History {
	h := &History{Rand: rand.New(rand.NewPCG(seed, 0x736f616b)), state: NewState()}
	for _, name := range NamespaceNames {
		h.setup = append(h.setup, Change{Namespace: h.namespace(name)})
	}
	for i := range fewestPods + 1 {
		h.setup = append(h.setup, Change{Pod: h.pod(NamespaceNames[i%len(NamespaceNames)], PodNames[i/len(NamespaceNames)])})
	}
	return h
}

// Changes are the first n of a seed's history.
func Changes(seed uint64, n int) []Change {
	h := NewHistory(seed)
	list := make([]Change, n)
	for i := range list {
		list[i] = h.Next()
	}
	return list
}

// Next is the next change.
func (h *History) Next() Change {
	c := h.draw()
	h.state.Apply(c)
	return c
}

// Setup tells whether the next change still belongs to the beginning, before which there is nothing to compare.
func (h *History) Setup() bool { return len(h.setup) > 0 }

func (h *History) draw() Change {
	if len(h.setup) > 0 {
		c := h.setup[0]
		h.setup = h.setup[1:]
		return c
	}
	if len(h.state.Pods) < fewestPods {
		return h.newPod()
	}
	switch n := h.IntN(1000); {
	case n < 520:
		return h.putPolicy()
	case n < 640:
		return h.deletePolicy()
	case n < 790:
		return h.relabelPod()
	case n < 850:
		return Change{Namespace: h.namespace(h.pick(NamespaceNames))}
	case n < 890:
		return h.replacePod()
	case n < 930:
		return Change{DeletePod: h.pick(h.pods()), Forced: h.chance(30)}
	case n < 970:
		return h.newPod()
	case n < 982:
		return Change{Namespace: h.namespace(h.pick(NamespaceNames)), Anew: true}
	}
	return Change{Restart: h.pick(processes)}
}

func (h *History) pick(from []string) string { return from[h.IntN(len(from))] }

func (h *History) chance(percent int) bool { return h.IntN(100) < percent }

func (h *History) pods() []string { return slices.Sorted(maps.Keys(h.state.Pods)) }

func (h *History) labels(percent int) map[string]string {
	out := map[string]string{}
	for _, k := range labelKeys {
		if h.chance(percent) {
			out[k] = h.pick(values)
		}
	}
	return out
}

func (h *History) namespace(name string) *Namespace {
	return &Namespace{Name: name, Labels: h.labels(70)}
}

// pod has a label with its name, by which its Service finds it. web and dns mean different numbers on different pods.
func (h *History) pod(namespace, name string) *Pod {
	p := &Pod{Namespace: namespace, Name: name, Node: h.pick(nodes), Labels: h.labels(80), HostNetwork: h.chance(8)}
	p.Labels["pod"] = name
	if h.chance(80) {
		p.Named = append(p.Named, NamedPort{"web", "TCP", Ports[h.IntN(len(Ports))]})
	}
	if h.chance(60) {
		p.Named = append(p.Named, NamedPort{"dns", []string{"TCP", "UDP", "UDP"}[h.IntN(3)], Ports[h.IntN(len(Ports))]})
	}
	return p
}

func (h *History) newPod() Change {
	var free []Pod
	for _, ns := range NamespaceNames {
		for _, name := range PodNames {
			if _, taken := h.state.Pods[ns+"/"+name]; !taken {
				free = append(free, Pod{Namespace: ns, Name: name})
			}
		}
	}
	if len(h.state.Pods) >= mostPods {
		return h.replacePod()
	}
	p := free[h.IntN(len(free))]
	return Change{Pod: h.pod(p.Namespace, p.Name)}
}

func (h *History) replacePod() Change {
	p := h.state.Pods[h.pick(h.pods())]
	return Change{Pod: h.pod(p.Namespace, p.Name), Anew: true, Forced: h.chance(30)}
}

func (h *History) relabelPod() Change {
	p := h.state.Pods[h.pick(h.pods())]
	p.Labels = h.labels(80)
	p.Labels["pod"] = p.Name
	return Change{Pod: &p}
}

func (h *History) deletePolicy() Change {
	if len(h.state.Policies) == 0 {
		return h.putPolicy()
	}
	return Change{DeletePolicy: h.pick(slices.Sorted(maps.Keys(h.state.Policies)))}
}

// putPolicy makes a policy or edits one: wholly, in one rule, or in its mode alone.
func (h *History) putPolicy() Change {
	ids := slices.Sorted(maps.Keys(h.state.Policies))
	if len(ids) < 2 || len(ids) < mostPolicies && h.chance(45) {
		p := Policy{Namespace: h.pick(NamespaceNames), Name: fmt.Sprintf("policy%d", h.IntN(100)), DryRun: h.chance(20), Spec: h.spec()}
		return Change{Policy: &p}
	}
	p := h.state.Policies[h.pick(ids)]
	switch n := h.IntN(5); {
	case n == 0:
		p.Spec = h.spec()
	case n == 3:
		p.DryRun = !p.DryRun
	case n == 1 && len(p.Spec.Ingress) > 0:
		p.Spec.Ingress = slices.Clone(p.Spec.Ingress)
		p.Spec.Ingress[h.IntN(len(p.Spec.Ingress))] = h.rule(true)
	case n == 2 && len(p.Spec.Egress) > 0:
		p.Spec.Egress = slices.Clone(p.Spec.Egress)
		p.Spec.Egress[h.IntN(len(p.Spec.Egress))] = h.rule(false)
	default:
		p.Spec.PodSelector = h.selector()
	}
	return Change{Policy: &p}
}
