package native

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// target is a whole desired network, and the parts of it that the document names. Other parts are kept where
// possible.
type target struct {
	network
	named       map[string]bool // interfaces
	namedRoutes []route
}

// transition finds the steps from the network as it is to the target, in the order in which they must be done.
func transition(now *network, to *target) ([]Step, error) {
	p := &planner{now: now, sim: now.clone(), to: to}
	p.plan()
	if p.check(); p.err != nil {
		return nil, p.err
	}
	return p.steps, nil
}

// wayBack returns the steps of a transition as far as they can be planned, and an error for the rest.
func wayBack(now *network, to *target) ([]Step, error) {
	p := &planner{now: now, sim: now.clone(), to: to, lenient: true}
	p.plan()
	return p.steps, errors.Join(p.stuck...)
}

func (p *planner) plan() {
	for _, phase := range []func(){
		p.dropRulesAndRoutes, p.letPortsGo, p.removeLinks, p.makeLinks, p.setMTUs, p.setMACs, p.takePorts, p.tuneLinks,
		p.switchIPv6, p.setListening, p.setUps, p.setAddresses, p.setRoutes, p.setRules, p.setDNS,
	} {
		if phase(); p.err != nil {
			return
		}
	}
}

type planner struct {
	now, sim *network
	to       *target
	steps    []Step
	err      error // the first; nothing is planned after it
	lenient  bool  // errors go to stuck, and the plan goes on
	stuck    []error
}

// do plans a step where it can be done.
func (p *planner) do(s Step) bool {
	if p.err != nil {
		return false
	}
	if err := p.sim.do(s); err != nil {
		err = fmt.Errorf("cannot %s: %w", s.what(), err)
		if p.lenient {
			p.stuck = append(p.stuck, err)
		} else {
			p.err = err
		}
		return false
	}
	p.steps = append(p.steps, s)
	return true
}

// try plans a step that the document does not name, and leaves it out if it is not possible.
func (p *planner) try(s Step) {
	if p.err == nil && p.sim.do(s) == nil {
		p.steps = append(p.steps, s)
	}
}

// each calls do for the links that are there and are wanted, those that others lie upon first.
func (p *planner) each(do func(have, want *link)) {
	for _, name := range p.to.byDepth() {
		if have := p.sim.Links[name]; have != nil && have.Type == p.to.Links[name].Type && p.err == nil {
			do(have, p.to.Links[name])
		}
	}
}

// eachDown is each, from the top.
func (p *planner) eachDown(do func(have, want *link)) {
	names := p.to.byDepth()
	slices.Reverse(names)
	for _, name := range names {
		if have := p.sim.Links[name]; have != nil && have.Type == p.to.Links[name].Type && p.err == nil {
			do(have, p.to.Links[name])
		}
	}
}

// byDepth are the links' names, each after what it lies upon.
func (n *network) byDepth() []string {
	depth := make(map[string]int, len(n.Links))
	for name := range n.Links {
		depth[name] = n.depth(name)
	}
	return slices.SortedFunc(maps.Keys(n.Links), func(a, b string) int {
		if depth[a] != depth[b] {
			return depth[a] - depth[b]
		}
		return strings.Compare(a, b)
	})
}

func (n *network) depth(name string) int {
	d := 0
	for l := n.Links[name]; l != nil && d < len(n.Links); d++ {
		switch l.Type {
		case typeOVSInterface:
			l = n.Links[l.Controller]
		case typeVeth:
			return d + 1
		default:
			l = n.Links[l.Base]
		}
	}
	return d
}

func (p *planner) dropRulesAndRoutes() {
	for _, r := range p.now.Rules {
		if !slices.Contains(p.to.Rules, r) {
			p.do(Step{verb: deleteRule, rule: &r})
		}
	}
	for _, r := range p.now.Routes {
		wanted := slices.ContainsFunc(p.to.Routes, func(w route) bool { return w.equal(&r) })
		if l := p.to.Links[r.Link]; wanted || r.kernelMade() || r.Link != "" && (l == nil || !l.Up) {
			continue // the kernel takes a route with its link
		}
		p.do(Step{verb: deleteRoute, route: &r})
	}
}

func (p *planner) letPortsGo() {
	p.each(func(have, want *link) {
		if have.Controller != "" && have.Controller != want.Controller && have.Type != typeOVSInterface {
			p.do(Step{verb: detachPort, name: have.key(), text: have.Controller})
		}
	})
}

func (p *planner) removeLinks() {
	names := p.sim.byDepth()
	slices.Reverse(names)
	for _, name := range names {
		have := p.sim.Links[name]
		if want := p.to.Links[name]; have == nil || want != nil && have.sameMake(want) {
			continue
		}
		p.do(Step{verb: deleteLink, name: name, link: have, was: removedWhy(p.to.Links[name])})
	}
}

func removedWhy(want *link) string {
	if want == nil {
		return ""
	}
	return "another kind, and is made again"
}

func (p *planner) makeLinks() {
	for _, name := range p.to.byDepth() {
		want := p.to.Links[name]
		if p.sim.Links[name] != nil || p.err != nil {
			continue
		}
		if base := p.sim.Links[want.Base]; base != nil && want.MTU > want.mostMTU(base) { // which may be raised later
			want = want.clone()
			want.MTU = want.mostMTU(base)
		}
		p.do(Step{verb: createLink, name: name, link: want})
	}
}

// setMTUs lowers from the top, and raises from the bottom.
func (p *planner) setMTUs() {
	set := func(have *link, mtu int) {
		p.do(Step{verb: setMTU, name: have.key(), number: mtu, was: number(have.MTU)})
	}
	p.eachDown(func(have, want *link) {
		if want.MTU != 0 && want.MTU < have.MTU {
			set(have, want.MTU)
		}
	})
	p.each(func(have, want *link) {
		mtu := want.MTU
		if base := p.sim.Links[want.Base]; base != nil && want.VXLAN != nil && !p.to.named[want.key()] {
			mtu = min(mtu, want.mostMTU(base)) // a VXLAN keeps a larger MTU when its base's falls, but is not given it
		}
		if mtu > have.MTU {
			set(have, mtu)
		}
	})
}

// lent reports whether a bond, and not the link itself, determines the link's MAC address.
func (p *planner) lent(l *link) bool {
	c := p.to.Links[l.Controller]
	return c != nil && c.Type == typeBond
}

func number(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func (p *planner) setMACs() {
	p.each(func(have, want *link) {
		if want.MAC != "" && want.MAC != have.MAC && (!p.lent(want) || have.Controller != want.Controller) {
			p.do(Step{verb: setMAC, name: have.key(), text: want.MAC, was: have.MAC})
		}
	})
}

func (p *planner) takePorts() {
	p.each(func(have, want *link) {
		if want.Controller == "" || have.Controller == want.Controller {
			return
		}
		if c := p.to.Links[want.Controller]; c != nil && c.Type == typeBond && have.Up {
			p.do(Step{verb: setDown, name: have.key()})
		}
		p.do(Step{verb: attachPort, name: have.key(), text: want.Controller, link: want})
	})
	p.each(func(have, want *link) { // what a bond gives its ports comes after them
		if want.MTU != 0 && have.MTU != 0 && want.MTU != have.MTU && (want.VXLAN == nil || want.Base == "") {
			p.do(Step{verb: setMTU, name: have.key(), number: want.MTU, was: number(have.MTU)})
		}
	})
}

func (p *planner) tuneLinks() {
	p.each(func(have, want *link) {
		if text := p.untuned(have, want); text != "" {
			p.do(Step{verb: tuneLink, name: have.key(), link: want, text: text})
		}
	})
	p.each(func(have, want *link) {
		c := p.to.Links[want.Controller]
		if want.BridgePort == nil || c == nil || c.Bridge == nil {
			return
		}
		if text := want.BridgePort.differs(have.BridgePort, c.Bridge.Filtering); text != "" {
			p.do(Step{verb: tunePort, name: have.key(), link: want, text: text, on: c.Bridge.Filtering})
		}
	})
}

// untuned returns the link's own options that differ.
func (p *planner) untuned(have, want *link) string {
	switch {
	case want.Bond != nil:
		return diffText(have.Bond.Options, want.Bond.Options)
	case want.Bridge != nil && !reflect.DeepEqual(have.Bridge, want.Bridge):
		return want.Bridge.differs(have.Bridge)
	case want.OVSBridge != nil && !reflect.DeepEqual(have.OVSBridge, want.OVSBridge):
		return fmt.Sprintf("fail-mode=%s stp=%v rstp=%v mcast-snooping-enable=%v", want.OVSBridge.FailMode, want.OVSBridge.STP,
			want.OVSBridge.RSTP, want.OVSBridge.MulticastSnooping)
	case want.OVSPort != nil && !reflect.DeepEqual(have.OVSPort, want.OVSPort):
		return fmt.Sprintf("vlan %s %d %v", want.OVSPort.Mode, want.OVSPort.Tag, want.OVSPort.Trunks)
	case want.Ethernet != nil && !reflect.DeepEqual(have.Ethernet, want.Ethernet):
		return fmt.Sprintf("auto-negotiation=%v speed=%d duplex=%s", want.Ethernet.Auto, want.Ethernet.Speed, want.Ethernet.Duplex)
	}
	return ""
}

// switchIPv6: a VLAN made again, say, begins as the kernel likes it.
func (p *planner) switchIPv6() {
	p.each(func(have, want *link) {
		if have.MTU != 0 && have.MTU < leastIPv6 || want.MTU != 0 && want.MTU < leastIPv6 {
			return // there is nothing to switch
		}
		if have.IPv6Off != want.IPv6Off {
			p.do(Step{verb: setIPv6, name: have.key(), on: !want.IPv6Off})
		}
		if have.Autoconf != want.Autoconf {
			p.do(Step{verb: setAutoconf, name: have.key(), on: want.Autoconf, number: want.AcceptRA})
		}
	})
}

func (p *planner) setListening() {
	p.each(func(have, want *link) {
		if have.Listens != want.Listens {
			p.do(Step{verb: setLLDP, name: have.key(), on: want.Listens})
		}
	})
}

func (p *planner) setUps() {
	p.each(func(have, want *link) {
		if want.Up && !have.Up {
			p.do(Step{verb: setUp, name: have.key()})
		}
	})
	p.eachDown(func(have, want *link) {
		if !want.Up && have.Up {
			p.do(Step{verb: setDown, name: have.key()})
		}
	})
}

// setAddresses adds first what the removals will not take along, so that an interface is not without an address in between.
func (p *planner) setAddresses() {
	p.each(func(have, want *link) {
		var gone []netip.Prefix
		for _, a := range have.Addresses {
			if !slices.Contains(want.Addresses, a) {
				gone = append(gone, a)
			}
		}
		p.addMissing(have, want, func(a netip.Prefix) bool {
			return !slices.ContainsFunc(gone, func(g netip.Prefix) bool { return g.Overlaps(a) })
		})
		for _, a := range gone {
			if slices.Contains(have.Addresses, a) {
				p.do(Step{verb: deleteAddress, name: have.key(), address: a})
			}
		}
		p.addMissing(have, want, func(netip.Prefix) bool { return true })
	})
}

func (p *planner) addMissing(have, want *link, now func(netip.Prefix) bool) {
	for _, a := range want.Addresses {
		if !slices.Contains(have.Addresses, a) && now(a) {
			p.do(Step{verb: addAddress, name: have.key(), address: a})
		}
	}
}

// setRoutes adds routes without a gateway first: other gateways may be reached by them. Routes that went with a link,
// and that the document does not name, are set again where possible.
func (p *planner) setRoutes() {
	var missing []route
	for _, r := range p.to.Routes {
		if !r.kernelMade() && !slices.ContainsFunc(p.sim.Routes, func(s route) bool { return s.equal(&r) }) {
			missing = append(missing, r)
		}
	}
	slices.SortStableFunc(missing, func(a, b route) int {
		if a.Via.IsValid() != b.Via.IsValid() {
			if a.Via.IsValid() {
				return 1
			}
			return -1
		}
		return b.Dst.Bits() - a.Dst.Bits()
	})
	for _, r := range missing {
		s := Step{verb: addRoute, route: &r}
		if slices.ContainsFunc(p.to.namedRoutes, func(n route) bool { return n.equal(&r) }) {
			p.do(s)
		} else {
			p.try(s)
		}
	}
}

func (p *planner) setRules() {
	for _, r := range p.to.Rules {
		if !slices.Contains(p.sim.Rules, r) {
			p.do(Step{verb: addRule, rule: &r})
		}
	}
}

func (p *planner) setDNS() {
	if p.to.DNS != nil && !p.to.DNS.equal(p.sim.DNS) {
		s := Step{verb: setResolver, dns: p.to.DNS}
		if was := p.sim.DNS; was != nil {
			s.was, s.on = list(was.Servers)+", "+list(was.Search), len(was.Options) > 0
			if len(was.Options) > 0 {
				s.was += ", " + list(was.Options)
			}
		}
		p.do(s)
	}
}

// check holds the end of the plan against what was asked for: a desire that contradicts itself is found here.
func (p *planner) check() {
	if p.err != nil {
		return
	}
	var errs []error
	for _, name := range sortedKeys(p.to.named) {
		have, want := p.sim.Links[name], p.to.Links[name]
		switch {
		case want == nil && have != nil:
			errs = append(errs, fmt.Errorf("interfaces[%s] cannot be removed", name))
		case want != nil && have == nil:
			errs = append(errs, fmt.Errorf("interfaces[%s] goes with another that is removed", name))
		case want != nil && have.Up != want.Up:
			errs = append(errs, fmt.Errorf("interfaces[%s] cannot be %s with what it lies upon or is a port of as desired", name, upDown(want.Up)))
		case want != nil && have.Controller != want.Controller:
			errs = append(errs, fmt.Errorf("interfaces[%s] cannot be a port of %q", name, want.Controller))
		case want != nil && want.MTU != 0 && have.MTU != want.MTU:
			errs = append(errs, fmt.Errorf("interfaces[%s] cannot have the mtu %d: others make it %d", name, want.MTU, have.MTU))
		case want != nil && !sameAddresses(have.Addresses, want.Addresses):
			errs = append(errs, fmt.Errorf("interfaces[%s] cannot keep its addresses %v", name, want.Addresses))
		}
	}
	for _, name := range p.now.names() {
		if l := p.now.Links[name]; l.barred() != "" && !reflect.DeepEqual(l, p.sim.Links[name]) {
			errs = append(errs, fmt.Errorf("this would change another: %s", l.barred()))
		}
	}
	p.err = errors.Join(errs...)
}

func upDown(up bool) string {
	if up {
		return "up"
	}
	return "down"
}

func sameAddresses(a, b []netip.Prefix) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(p netip.Prefix) bool { return !slices.Contains(b, p) })
}

// differs returns the options that differ, or "".
func (b *bridgeSpec) differs(have *bridgeSpec) string {
	var out []string
	say := func(name string, have, want any) {
		if have != want {
			out = append(out, fmt.Sprintf("%s=%v", name, want))
		}
	}
	say("vlan-filtering", have.Filtering, b.Filtering)
	say("stp.enabled", have.STP, b.STP)
	say("stp.priority", have.Priority, b.Priority)
	say("stp.forward-delay", have.ForwardDelay, b.ForwardDelay)
	say("stp.hello-time", have.HelloTime, b.HelloTime)
	say("stp.max-age", have.MaxAge, b.MaxAge)
	say("mac-ageing-time", have.Ageing, b.Ageing)
	say("group-forward-mask", have.GroupForwardMask, b.GroupForwardMask)
	say("multicast-snooping", have.MulticastSnooping, b.MulticastSnooping)
	return strings.Join(out, " ")
}

// differs: cost and priority of 0 are the kernel's choice.
func (b *bridgePortSpec) differs(have *bridgePortSpec, filtering bool) string {
	var out []string
	if have == nil {
		have = &bridgePortSpec{}
	}
	if b.Hairpin != have.Hairpin {
		out = append(out, fmt.Sprintf("stp-hairpin-mode=%v", b.Hairpin))
	}
	if b.Cost != 0 && b.Cost != have.Cost {
		out = append(out, fmt.Sprintf("stp-path-cost=%d", b.Cost))
	}
	if b.Priority != 0 && b.Priority != have.Priority {
		out = append(out, fmt.Sprintf("stp-priority=%d", b.Priority))
	}
	if filtering && !slices.Equal(b.VLANs, have.VLANs) {
		out = append(out, fmt.Sprintf("vlan=%v", b.VLANs))
	}
	return strings.Join(out, " ")
}
