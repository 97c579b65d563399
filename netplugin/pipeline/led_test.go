package pipeline

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// ledOf returns where the flows that LedFilters choose lead, with how many of them, as a switch would list them.
func ledOf(c *Compiler) map[Led]int {
	out := map[Led]int{}
	for _, f := range c.Flows() {
		chosen := slices.ContainsFunc(LedFilters(), func(l ofctl.Filter) bool { return l.Chooses(f.Table, f.Cookie) })
		kept := f.Table == TableServiceChoice && f.Match.Reg[regBackend].Mask != 0 // a client with affinity
		counted := ofctl.Counted{Table: f.Table, Priority: f.Priority, Cookie: f.Cookie, Match: f.Match}
		if led, ok := c.Led(&counted); ok && chosen {
			out[led]++
		} else if kept {
			out[Led{Service: "uncounted " + f.String()}]++
		}
	}
	return out
}

// TestLed_EachEndpointIsCounted: by one flow at least, whatever the number of endpoints, the protocol and the affinity.
func TestLed_EachEndpointIsCounted(t *testing.T) {
	for _, endpoints := range []int{1, 3, 10} {
		for _, affinity := range []time.Duration{0, time.Hour} {
			t.Run(fmt.Sprintf("%d endpoints, affinity %v", endpoints, affinity), func(t *testing.T) {
				c := New(withServices(), nil)
				s, all := aService("a", endpoints)
				s.Affinity = affinity
				c.PutService(s, all)
				got := ledOf(c)
				for i := range endpoints {
					a := netip.AddrFrom4([4]byte{10, 250, 0, byte(i)})
					for protocol, port := range map[policy.Protocol]uint16{policy.TCP: 8080, policy.UDP: 5353} {
						led := Led{Service: "ns/a", Protocol: protocol, Endpoint: netip.AddrPortFrom(a, port)}
						if got[led] == 0 {
							t.Errorf("no flow counts for %+v", led)
						}
						delete(got, led)
					}
				}
				// The load balancer's address takes clients of its ranges alone: all others are led nowhere.
				for _, p := range []policy.Protocol{policy.TCP, policy.UDP} {
					delete(got, Led{Service: "ns/a", Protocol: p})
				}
				if len(got) > 0 {
					t.Errorf("counted too: %+v", got)
				}
			})
		}
	}
}

// TestLed_WithoutEndpoints checks that the frontends of a Service without endpoints count packets.
func TestLed_WithoutEndpoints(t *testing.T) {
	c := New(withServices(), nil)
	c.PutService(aService("a", 0))
	got := ledOf(c)
	for _, p := range []policy.Protocol{policy.TCP, policy.UDP} {
		if got[Led{Service: "ns/a", Protocol: p}] < 3 {
			t.Errorf("%+v", got)
		}
	}
	if len(got) != 2 || !c.HasService("ns/a") || c.HasService("ns/b") {
		t.Errorf("%+v", got)
	}
	if c.RemoveService("ns/a"); len(ledOf(c)) != 0 || c.HasService("ns/a") {
		t.Errorf("after its removal: %+v", ledOf(c))
	}
}

// TestDescribe_NamesTheEndpoint: netctl flows shows which endpoint of a Service a flow leads to.
func TestDescribe_NamesTheEndpoint(t *testing.T) {
	c := New(withServices(), nil)
	c.PutService(aService("a", 3))
	texts := map[string]int{}
	for _, f := range c.Flows() {
		texts[c.Describe(&f).Text]++
	}
	for _, want := range []string{
		"frontend of Service ns/a",
		"slot of Service ns/a, to 10.250.0.1:8080",
		"slot of Service ns/a, to 10.250.0.2:5353",
		"service-endpoint of Service ns/a, to 10.250.0.0:8080",
	} {
		if texts[want] == 0 {
			t.Errorf("no flow is described as %q: %v", want, texts)
		}
	}
}
