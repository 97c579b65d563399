package native

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// Node is a node as its NodeNetworkState reports it.
type Node struct {
	Report       nmstate.State
	Capabilities []string     // empty: not reported, so that nothing is refused for the lack of one
	Volatile     bool         // a change of the only uplink is allowed
	Addresses    []netip.Addr // of the Node; empty: not known
}

// Plan returns the steps from a node's report to a desired state, or the error for which the backend on that node would
// refuse it. The report has neither Flowkeep's own interfaces and routes nor those of pods: their names are refused all
// the same. Plan is pure.
func Plan(node Node, desired nmstate.State, own Own) ([]Step, error) {
	now, err := networkOf(node.Report)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrReport, err)
	}
	if len(node.Capabilities) > 0 && !slices.Contains(node.Capabilities, capabilityDNS) {
		now.DNS.owner = &othersResolver
	}
	_, steps, err := planFor(now, desired, own)
	if err == nil && !node.Volatile {
		err = now.checkUplink(steps, node.Addresses)
	}
	return steps, err
}

// ErrReport is the error of a report that no plan can begin from.
var ErrReport = errors.New("the node's report cannot be planned from")

// othersResolver stands for the program that writes resolv.conf where the agent reports no capability to change it.
var othersResolver = resolverOwner{
	name:    "another program",
	instead: "the log and the status of the node's agent name it",
}

// protoDHCP is the protocol of a route that another program set, linux/rtnetlink.h.
const protoDHCP = 16

// networkOf returns the network that a report describes.
func networkOf(s nmstate.State) (*network, error) {
	doc, err := parse(s)
	if err != nil {
		return nil, err
	}
	there := &network{Links: map[string]*link{}, DNS: &resolver{}}
	for _, d := range doc.Interfaces { // no step makes these
		l := &link{Name: d.Name, Type: d.Type, Index: 1}
		switch {
		case d.Type == typeVeth && (d.Veth == nil || deref(d.Veth.Peer) == ""): // it leads into another namespace
		case creatable(d.Type):
			continue
		case d.Ethernet != nil:
			l.Ethernet = &ethernetSpec{}
		}
		there.Links[l.key()] = l
	}
	routes := doc.Routes
	doc.Routes = nil
	macs := map[string]string{} // of bonds: a desired state may not name that of fail_over_mac
	for i := range doc.Interfaces {
		if d := &doc.Interfaces[i]; d.Bond != nil {
			macs[d.Name], d.MAC = canonicalMAC(deref(d.MAC)), nil
		}
	}
	to, err := (&wanter{now: there, reported: true}).want(doc)
	if err != nil {
		return nil, err
	}
	for name, mac := range macs {
		to.network.Links[name].MAC = mac
	}
	if routes != nil {
		to.network.Routes = routes.reported(&to.network)
	}
	to.network.made()
	return &to.network, nil
}

// made gives links an index: they are there.
func (n *network) made() {
	for i, key := range n.names() {
		n.Links[key].Index = i + 1
	}
}

// reported returns the routes of a report. Those in force that are not configured are the kernel's, or another
// program's.
func (d *routesDoc) reported(n *network) (list []route) {
	all := slices.Concat(d.Config, slices.DeleteFunc(slices.Clone(d.Running), d.configures))
	for i := range all {
		r, err := all[i].pattern()
		if err != nil || all[i].Destination == nil {
			continue
		}
		if r.Table == 0 {
			r.Table = mainTable
		}
		switch {
		case i < len(d.Config):
			r.Protocol = protoStatic
		case r.Via.IsValid():
			r.Protocol = protoDHCP
		default:
			r.Protocol = protoKernel
		}
		if r.Dst.Addr().Is4() && r.Type == "" && !r.Via.IsValid() {
			r.Scope = scopeLink
		}
		r.OnLink = r.Via.IsValid() && n.reaches(hop{Link: r.Link, Via: r.Via}) != nil
		same := slices.IndexFunc(list, func(o route) bool { return !o.kernelMade() && o.sameKey(&r) })
		if same < 0 || r.kernelMade() {
			list = append(list, r)
			continue
		}
		list[same].join(&r)
	}
	return list
}

func (d *routesDoc) configures(r routeDoc) bool {
	return slices.ContainsFunc(d.Config, func(o routeDoc) bool { return reflect.DeepEqual(r, o) })
}

// join makes a route of several next hops of two that the report has of one.
func (r *route) join(o *route) {
	if len(r.Hops) == 0 {
		r.Hops = []hop{{Link: r.Link, Via: r.Via, Weight: 1, OnLink: r.OnLink}}
		r.Link, r.Via = "", netip.Addr{}
	}
	r.Hops = append(r.Hops, hop{Link: o.Link, Via: o.Via, Weight: 1, OnLink: o.OnLink})
}
