package lint

import (
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// declared are the ports that some pods declare, by name and by number.
type declared struct {
	pods       int
	namespaces int
	names      map[string]protocols
	numbers    map[uint16]protocols
}

// protocols are those of one port, in no particular order.
type protocols []policy.Protocol

func newDeclared() *declared {
	return &declared{names: map[string]protocols{}, numbers: map[uint16]protocols{}}
}

func (d *declared) add(e *effort, pods []*policy.Endpoint) {
	d.pods += len(pods)
	for _, pod := range pods {
		if !e.step(1 + 2*len(pod.Ports)) {
			return
		}
		for _, p := range pod.Ports {
			if !slices.Contains(d.names[p.Name], p.Protocol) {
				d.names[p.Name] = append(d.names[p.Name], p.Protocol)
			}
			if !slices.Contains(d.numbers[p.Number], p.Protocol) {
				d.numbers[p.Number] = append(d.numbers[p.Number], p.Protocol)
			}
		}
	}
}

// of returns the protocols with which a port is declared: by its name, or by the only number that it is.
func (d *declared) of(p *policy.PolicyPort) protocols {
	switch {
	case p.Name != "":
		return d.names[p.Name]
	case p.First == p.Last:
		return d.numbers[p.First]
	}
	return nil
}
