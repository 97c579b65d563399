package pipeline

import (
	"net/netip"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
)

// served is an endpoint over UDP that serves a frontend. That of a node port has no address.
type served struct{ endpoint, frontend netip.AddrPort }

// serve replaces the endpoints that serve a Service over UDP.
func (s *services) serve(k *knownService, with []served) {
	before := k.serving
	k.serving = with
	for _, e := range with {
		s.serving[e]++
	}
	for _, e := range before {
		if s.serving[e]--; s.serving[e] == 0 {
			delete(s.serving, e)
			s.stale = append(s.stale, e)
		}
	}
}

// TakeStale returns the UDP connections to endpoints that have ceased to serve their frontend since the last call.
// Once the flows of Take are in the switch, they are to be forgotten: else their clients go on to an endpoint that no
// longer responds. TCP connections end with the endpoint's pod.
func (c *Compiler) TakeStale() (list []ofctl.Connections) {
	for _, e := range c.services.stale {
		if c.services.serving[e] > 0 {
			continue // it serves again
		}
		list = append(list, ofctl.Connections{
			Zone:     ZoneTranslation,
			Protocol: uint8(policy.UDP),
			Addr:     e.endpoint.Addr(),
			From:     true,
			Reply:    true,
			Port:     e.endpoint.Port(),
			To:       e.frontend,
		})
	}
	c.services.stale = nil
	return list
}

// serves notes the endpoints that serve a frontend over UDP, of which the node may use some.
func (o *serviceFlows) serves(f *service.Frontend, behind []service.Backend) {
	for i := range behind {
		if b := &behind[i]; b.Ready || b.Serving {
			o.serving = append(o.serving, served{b.AddrPort(), netip.AddrPortFrom(f.Address, f.Port)})
		}
	}
}
