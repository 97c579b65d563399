package pipeline

import (
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl"
)

// TestPutEndpoint_TakesThePort gives an ended pod's port number to another pod: no flow of the first is left.
func TestPutEndpoint_TakesThePort(t *testing.T) {
	local := func(id string, port uint32, address string) LocalEndpoint {
		return LocalEndpoint{
			ID:        id,
			Port:      port,
			MAC:       ofctl.MAC{2, 0xf1, 0, 0, 0, byte(len(id))},
			Addresses: []netip.Addr{netip.MustParseAddr(address)},
		}
	}
	alone := New(Config{}, nil)
	alone.PutEndpoint(local("shop/new", 3, "10.244.1.9"))
	c := New(Config{}, nil)
	c.PutEndpoint(local("shop/ended", 3, "10.244.1.5"))
	c.PutEndpoint(local("shop/new", 3, "10.244.1.9"))
	if got, want := len(c.Flows()), len(alone.Flows()); got != want {
		t.Errorf("%d flows, want %d", got, want)
	}
	if id := c.EndpointAt(3); id != "shop/new" {
		t.Errorf("port 3 is %q's", id)
	}
	c.PutEndpoint(local("shop/new", 0, "10.244.1.9"))
	if got, want := len(c.Flows()), len(New(Config{}, nil).Flows()); got != want {
		t.Errorf("%d flows for a pod without a port, want %d", got, want)
	}
}
