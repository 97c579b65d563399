package feed

import (
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Links are sent when they change, and by the hello after a reconnection.
func TestClient_SetLinks(t *testing.T) {
	c := New(Config{Node: "n"})
	one := func() *policy.Links {
		return &policy.Links{OnLink: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	}
	c.SetLinks(one())
	if out := c.takeOutbox(); len(out) != 0 {
		t.Errorf("%d messages without a stream", len(out))
	}
	c.setOpen(true)
	c.SetLinks(one())
	c.SetLinks(&policy.Links{})
	c.SetLinks(&policy.Links{})
	if out := c.takeOutbox(); len(out) != 1 || out[0].GetLinks() == nil {
		t.Errorf("messages %v", out)
	}
	if got := c.linksNow(); got == nil || len(got.OnLink) != 0 {
		t.Errorf("%v for the hello", got)
	}
}
