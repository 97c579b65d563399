package pipeline

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
)

// claims has the Services that claim each frontend. One of them has it, by service.Claim.Compare.
type claims struct {
	at map[frontendKey][]service.Claim // sorted: the first is in force
	// external has the number of claims of each Service on a port of external addresses, by the key of the node port
	// with this number.
	external map[frontendKey]map[string]int
	nodes    map[netip.Addr]struct{} // addresses of all nodes
	pods     prefixSet               // podCIDRs of all nodes
}

// frontendKey identifies a frontend. That of a node port has no address.
type frontendKey struct {
	address  netip.Addr
	family   service.Family
	protocol policy.Protocol
	port     uint16
}

func keyOfFrontend(f *service.Frontend) frontendKey {
	return frontendKey{
		address:  f.Address,
		family:   f.Family,
		protocol: f.Protocol,
		port:     f.Port,
	}
}

// nodePort returns the key of the node port with the same number.
func (k frontendKey) nodePort() frontendKey {
	k.address = netip.Addr{}
	return k
}

func newClaims() claims {
	return claims{at: map[frontendKey][]service.Claim{}, external: map[frontendKey]map[string]int{}}
}

// configure sets the addresses of nodes and pods.
func (l *claims) configure(cfg *Services) {
	l.nodes = make(map[netip.Addr]struct{}, len(cfg.NodeAddrs))
	for _, a := range cfg.NodeAddrs {
		l.nodes[a] = struct{}{}
	}
	l.pods = newPrefixSet(cfg.PodCIDRs)
}

// claimsOf returns the claims of a Service, one of each frontend; nil: none.
func claimsOf(s *service.Service) map[frontendKey]service.Claim {
	if s == nil {
		return nil
	}
	frontends := s.Frontends()
	out := make(map[frontendKey]service.Claim, len(frontends))
	for i := range frontends {
		f := &frontends[i]
		c, key := s.Claim(f), keyOfFrontend(f)
		if other, twice := out[key]; !twice || c.Compare(other) < 0 {
			out[key] = c
		}
	}
	return out
}

// update replaces the claims of a Service, where nil is none. It returns the other Services whose frontends may be in
// force now, or no longer.
func (l *claims) update(id string, before, now *service.Service) map[string]struct{} {
	if before == now { // other endpoints
		return nil
	}
	concerned := map[string]struct{}{}
	was, is := claimsOf(before), claimsOf(now)
	for key := range was {
		if _, still := is[key]; !still {
			l.set(key, id, nil, concerned)
		}
	}
	for key, c := range is {
		if was[key] != c {
			l.set(key, id, &c, concerned)
		}
	}
	delete(concerned, id)
	return concerned
}

// set replaces the claim of a Service on a frontend, and adds the Services that this concerns.
func (l *claims) set(key frontendKey, id string, c *service.Claim, concerned map[string]struct{}) {
	before, list := l.first(key), l.at[key]
	if at := slices.IndexFunc(list, func(o service.Claim) bool { return o.Service == id }); at >= 0 {
		l.count(key, &list[at], -1)
		list = slices.Delete(list, at, at+1)
	}
	if c != nil {
		l.count(key, c, 1)
		at, _ := slices.BinarySearchFunc(list, *c, service.Claim.Compare)
		list = slices.Insert(list, at, *c)
	}
	if l.at[key] = list; len(list) == 0 {
		delete(l.at, key)
	}
	now := l.first(key)
	if now == before {
		return
	}
	for _, other := range []string{before.Service, now.Service} {
		if other != "" {
			concerned[other] = struct{}{}
		}
	}
	if !key.address.IsValid() {
		for other := range l.external[key] {
			concerned[other] = struct{}{}
		}
	}
}

// count adds a claim on an external address to those of its port, or with -1 removes it.
func (l *claims) count(key frontendKey, c *service.Claim, n int) {
	if !c.Kind.IsExternal() {
		return
	}
	port := key.nodePort()
	of := l.external[port]
	if of == nil {
		of = map[string]int{}
		l.external[port] = of
	}
	if of[c.Service] += n; of[c.Service] == 0 {
		delete(of, c.Service)
	}
	if len(of) == 0 {
		delete(l.external, port)
	}
}

// first returns the claim on a frontend that is in force; without a Service: there is none.
func (l *claims) first(key frontendKey) service.Claim {
	if list := l.at[key]; len(list) > 0 {
		return list[0]
	}
	return service.Claim{}
}

// refusal returns why a frontend of a Service is not translated, for people; empty: it is.
func (l *claims) refusal(cfg *Config, s *service.Service, f *service.Frontend) string {
	var use service.AddressUse
	if f.Address.IsValid() {
		use = service.AddressUse{
			LocalPods: contains(cfg.PodCIDRs, f.Address),
			Pods:      l.pods.contains(f.Address),
			Services:  contains(cfg.ServiceCIDRs, f.Address),
			Node:      has(l.nodes, f.Address),
		}
	}
	key := keyOfFrontend(f)
	return s.Refusal(f, use, l.first(key), l.first(key.nodePort()))
}

// leftOut returns which frontends of a Service are not translated, as indices of Frontends.
func (l *claims) leftOut(cfg *Config, s *service.Service) (out []int) {
	frontends := s.Frontends()
	for i := range frontends {
		if l.refusal(cfg, s, &frontends[i]) != "" {
			out = append(out, i)
		}
	}
	return out
}

// refusals returns why frontends of a Service are not translated, for people.
func (l *claims) refusals(cfg *Config, k *knownService) (out []string) {
	if len(k.left) == 0 {
		return nil
	}
	frontends := k.service.Frontends()
	for _, i := range k.left {
		text := l.refusal(cfg, k.service, &frontends[i])
		if text != "" && !slices.Contains(out, text) {
			if out = append(out, text); len(out) == maxProblems {
				break
			}
		}
	}
	return out
}

// settleClaims compiles those of the Services again of which other frontends are translated than before.
func (c *Compiler) settleClaims(ids []string) {
	if !c.config.Services.Translated {
		return
	}
	for _, id := range ids {
		k := c.services.known[id]
		if k != nil && !slices.Equal(k.left, c.services.claims.leftOut(&c.config, k.service)) {
			c.compileService(id, k)
		}
	}
}

// prefixSet is a set of prefixes, in which an address is found by their lengths.
type prefixSet struct {
	prefixes map[netip.Prefix]struct{}
	lengths  []int
}

func newPrefixSet(list []netip.Prefix) (out prefixSet) {
	out.prefixes = make(map[netip.Prefix]struct{}, len(list))
	for _, p := range list {
		out.prefixes[p.Masked()] = struct{}{}
		if !slices.Contains(out.lengths, p.Bits()) {
			out.lengths = append(out.lengths, p.Bits())
		}
	}
	return out
}

// contains reports whether an address is in one of the prefixes.
func (s *prefixSet) contains(a netip.Addr) bool {
	for _, bits := range s.lengths {
		if p, err := a.Prefix(bits); err == nil && has(s.prefixes, p) {
			return true
		}
	}
	return false
}
