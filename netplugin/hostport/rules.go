package hostport

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/netplugin/endpoints"
)

// Names in portmap's tables (containernetworking/plugins, plugins/meta/portmap/portmap_nftables.go).
const (
	table     = "cni_hostport"
	portChain = "hostports"
)

// baseChains are those that every packet to a hostPort passes. Each ADD fills them.
var baseChains = []string{"prerouting", "output", "hostports_all"}

// rules is what portmap's table of a family has: numbers of rules by chain, by container, and by container in the chain
// of ports.
type rules struct {
	chains, own, ports map[string]int
}

// parse reads the output of nft --json list table.
func parse(text []byte) (rules, error) {
	var list struct {
		Objects []struct {
			Rule *struct {
				Chain   string `json:"chain"`
				Comment string `json:"comment"`
			} `json:"rule"`
		} `json:"nftables"`
	}
	out := rules{chains: map[string]int{}, own: map[string]int{}, ports: map[string]int{}}
	if err := json.Unmarshal(text, &list); err != nil {
		return out, fmt.Errorf("parse the rules of hostPorts: %w", err)
	}
	for _, o := range list.Objects {
		if o.Rule == nil {
			continue
		}
		out.chains[o.Rule.Chain]++
		if o.Rule.Comment != "" {
			out.own[o.Rule.Comment]++
		}
		if o.Rule.Chain == portChain {
			out.ports[o.Rule.Comment]++
		}
	}
	return out, nil
}

// byFamily is portmap's tables of IPv4 and of IPv6.
type byFamily struct{ four, six rules }

// presence is what the tables have of a pod.
type presence int

const (
	present presence = iota
	absent           // some or all of its own rules are missing
	reset            // rules that all pods share are missing, which the runtime never removes
)

// of returns what is there of a pod. Portmap writes rules for the first address of each family.
func (b *byFamily) of(e *endpoints.Endpoint) presence {
	out := present
	for _, four := range []bool{true, false} {
		if !slices.ContainsFunc(e.Addresses, func(a netip.Addr) bool { return a.Is4() == four }) {
			continue
		}
		family := &b.six
		if four {
			family = &b.four
		}
		want := mappings(e.HostPorts, four)
		switch {
		case want > 0 && !family.hasBase():
			return reset
		case family.ports[e.ContainerID] < want:
			out = absent
		}
	}
	return out
}

func (r *rules) hasBase() bool {
	return !slices.ContainsFunc(baseChains, func(chain string) bool { return r.chains[chain] == 0 })
}

// mappings returns how many of a pod's mappings are of a family: one for an address of the node is of its family alone.
func mappings(list []endpoints.PortMapping, four bool) (n int) {
	for _, m := range list {
		if a, err := netip.ParseAddr(m.HostIP); m.HostIP == "" || err == nil && a.Is4() == four {
			n++
		}
	}
	return n
}
