package live

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/soak"
)

// place is somewhere that packets come from and go to: a pod, a node, the host outside.
type place struct {
	name string // a pod's ID, a node's name, or "outside"
	node string // the node, if it is one
	ips  []netip.Addr
	*cluster.NetNS
}

// leave may be called twice.
func (p *place) leave() {
	if p.NetNS != nil {
		p.Close()
	}
	p.NetNS = nil
}

func (p *place) ip(family int) (netip.Addr, bool) {
	i := slices.IndexFunc(p.ips, func(a netip.Addr) bool { return a.Is4() == (family == 4) })
	if i < 0 {
		return netip.Addr{}, false
	}
	return p.ips[i], true
}

const canaryNamespace = "soak-canary"

// begin clears what an earlier run left, and finds nodes and the host outside, which is the control plane.
func (p *player) begin(ctx context.Context) error {
	var err error
	if p.api, err = p.Cluster.API(ctx); err != nil {
		return err
	}
	var nodes struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct{ PodCIDRs []string }
			Status   struct {
				Addresses []struct{ Type, Address string }
			}
		}
	}
	text, err := p.api.Ask(ctx, "GET", "/api/v1/nodes", nil)
	if err == nil {
		err = json.Unmarshal(text, &nodes)
	}
	if err != nil {
		return err
	}
	var ways [][2]string
	for _, n := range nodes.Items {
		node := &place{name: n.Metadata.Name, node: n.Metadata.Name}
		for _, a := range n.Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == "InternalIP" {
				node.ips = append(node.ips, ip)
			}
		}
		for _, cidr := range n.Spec.PodCIDRs {
			ways = append(ways, [2]string{cidr, n.Metadata.Name})
		}
		p.nodes[node.name] = node
		if err := p.enter(node, p.Cluster.NodeNS(node.name)); err != nil {
			return err
		}
	}
	if err := p.beginOutside(ctx, ways); err != nil {
		return err
	}
	return p.clear(ctx)
}

// machinePorts are those on which nodes and the host outside answer. They are silent on Services' target: for a while kube-proxy leads to the node
// whose pod of the host's network is gone, and its answer would be taken for that of the pod which has come instead.
var machinePorts = slices.DeleteFunc(slices.Clone(soak.Ports), func(n int) bool { return n == soak.ServiceTarget })

// enter makes a node or the host outside answer.
func (p *player) enter(at *place, netns string) (err error) {
	if at.NetNS, err = cluster.EnterNetNS(netns); err != nil {
		return err
	}
	p.ends = append(p.ends, at.leave)
	stop, err := at.Echo(at.ips, machinePorts)
	if err == nil {
		p.ends = append(p.ends, stop)
	}
	return err
}

// beginOutside gives the host outside routes to the pods, so that it needs no Service to reach them.
func (p *player) beginOutside(ctx context.Context, ways [][2]string) error {
	p.outside = &place{name: "outside"}
	families := []int{4, 6}
	for _, family := range families {
		ip, err := p.Cluster.ControlPlaneIP(ctx, family)
		if err != nil {
			return err
		}
		p.outside.ips = append(p.outside.ips, ip)
	}
	for _, way := range ways {
		family := 4
		if strings.Contains(way[0], ":") {
			family = 6
		}
		via, ok := p.nodes[way[1]].ip(family)
		if !ok {
			continue
		}
		if _, err := p.Cluster.RunIn(ctx, p.Cluster.ControlPlaneNS(), "ip", "route", "replace", way[0], "via", via.String()); err != nil {
			return err
		}
	}
	return p.enter(p.outside, p.Cluster.ControlPlaneNS())
}

// addressOf is what the symbols of policies stand for. A rule may outlive the pod that it speaks of: its last addresses count then.
func (p *player) addressOf(of string, family int) (netip.Addr, error) {
	at := p.outside
	if id, ok := strings.CutPrefix(of, "pod:"); ok {
		at = p.known[id]
	} else if name, ok := strings.CutPrefix(of, "node:"); ok {
		at = p.nodes[name]
	}
	if at == nil {
		return netip.Addr{}, fmt.Errorf("there is no %s", of)
	}
	ip, ok := at.ip(family)
	if !ok {
		return ip, fmt.Errorf("%s has no IPv%d address", of, family)
	}
	return ip, nil
}
